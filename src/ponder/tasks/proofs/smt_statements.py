"""Goals for Z3 without quantifiers: an assignment that satisfies a formula, and an invariant of a loop."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

from ponder.tasks.proofs.statement import ProofStatement

NAMES = ("x", "y", "z", "u", "v", "w", "p", "q")
MAX_STEPS = len(NAMES) - 1

ASSIGNMENT = """Find values that satisfy this SMT-LIB formula.
{formula}
Write one line for each constant, such as x = -3."""

INVARIANT = """Find an inductive invariant of this loop over integers; x.next is the value of x after a step.
Variables: {state}
At the start: {initial}
One step: {step}
Must always hold: {safe}
Write one SMT-LIB formula without quantifiers over the variables. It must hold at the start, every step must keep
it, and it must imply what must always hold."""


def draw_smt(rng: random.Random, steps: int) -> ProofStatement:
    """`steps` + 1 unknowns of an assignment, or as many variables of a loop as there are steps."""
    return _assignment(rng, steps + 1) if rng.random() < 0.5 else _invariant(rng, steps)


def _assignment(rng: random.Random, count: int) -> ProofStatement:
    """Linear equations and inequalities around values that are drawn first."""
    names = NAMES[:count]
    values = {name: rng.randint(-9, 9) for name in names}
    lines = [f"(declare-const {name} Int)" for name in names]
    for left, right in pairwise(names):
        a, b = rng.randint(1, 5), rng.choice((-3, -2, -1, 1, 2, 3))
        total = a * values[left] + b * values[right]
        lines.append(f"(assert (= (+ (* {a} {left}) (* {_literal(b)} {right})) {_literal(total)}))")
    low = values[names[0]] - rng.randint(0, 3)
    lines.append(f"(assert (and (>= {names[0]} {_literal(low)}) (<= {names[0]} {_literal(values[names[0]])})))")
    formula = "\n".join(lines)
    proof = "\n".join(f"{name} = {value}" for name, value in values.items())
    answer = {"language": "smt", "formula": formula}
    return ProofStatement("smt", "assignment", formula, ASSIGNMENT.format(formula=formula), answer, proof)


def _invariant(rng: random.Random, count: int) -> ProofStatement:
    """Counters that grow by fixed amounts; what must hold is never reached, by size, by remainder or by their sum."""
    names = NAMES[:count]
    start = {name: rng.randint(0, 20) for name in names}
    kind = rng.choice(("bound", "remainder") if count == 1 else ("bound", "remainder", "sum"))
    if kind == "sum":
        return _sum_invariant(rng, start)
    grows = {name: rng.randint(2, 9) for name in names}
    claims, unsafe = [], []
    for name in names:
        if kind == "bound":
            claims.append(f"(>= {name} {start[name]})")
            unsafe.append(f"(not (= {name} {_literal(start[name] - rng.randint(1, 9))}))")
        else:
            step = grows[name]
            claims.append(f"(= (mod {name} {step}) {start[name] % step})")
            never = start[name] + step * rng.randint(2, 9) + rng.randint(1, step - 1)
            unsafe.append(f"(not (= {name} {never}))")
    step_formula = _joined(f"(= {name}.next (+ {name} {grows[name]}))" for name in names)
    return _loop(kind, start, step_formula, _joined(unsafe), _joined(claims))


def _sum_invariant(rng: random.Random, start: dict[str, int]) -> ProofStatement:
    """What one variable gains, the next one loses."""
    names = list(start)
    amounts = [rng.randint(1, 9) for _ in names]
    gains = [amounts[0]] + [b - a for a, b in pairwise(amounts[:-1])] + [-(amounts[-2])]
    step = _joined(f"(= {n}.next (+ {n} {_literal(g)}))" for n, g in zip(names, gains, strict=True))
    total = sum(start.values())
    invariant = f"(= (+ {' '.join(names)}) {total})"
    return _loop("sum", start, step, f"(not (= (+ {' '.join(names)}) {total + rng.randint(1, 9)}))", invariant)


def _loop(kind: str, start: dict[str, int], step: str, safe: str, proof: str) -> ProofStatement:
    initial = _joined(f"(= {name} {value})" for name, value in start.items())
    question = INVARIANT.format(state=", ".join(start), initial=initial, step=step, safe=safe)
    state = dict.fromkeys(start, "Int")
    answer = {"language": "smt", "state": state, "initial": initial, "step": step, "safe": safe}
    return ProofStatement("smt", f"invariant-{kind}", f"{initial} {step} {safe}", question, answer, proof)


def _joined(formulas: Iterable[str]) -> str:
    listed = list(formulas)
    return listed[0] if len(listed) == 1 else f"(and {' '.join(listed)})"


def _literal(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"
