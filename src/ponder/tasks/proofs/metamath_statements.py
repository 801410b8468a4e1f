"""Theorems of propositional calculus in Metamath, drawn with their proofs.

A `Proof` is a formula with the labels that derive it, so that a proof is put together like an expression and is right
by construction. The database has Łukasiewicz's axioms, modus ponens, and two theorems that are proved here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ponder.tasks.proofs.statement import ProofStatement

Formula = str | tuple["Formula", ...]  # a variable; ("not", f); ("implies", f, g)
VARIABLES = ("ph", "ps", "ch", "th", "ta", "et", "ze", "si")
MAX_STEPS = len(VARIABLES) - 1


class Proof(NamedTuple):
    """A formula, and the steps that derive it."""

    formula: Formula
    steps: tuple[str, ...]


def implies(left: Formula, right: Formula) -> Formula:
    return ("implies", left, right)


def negation(formula: Formula) -> Formula:
    return ("not", formula)


def _sides(formula: Formula) -> tuple[Formula, Formula]:
    """Both sides of an implication."""
    assert len(formula) == 3 and formula[0] == "implies", "no implication"
    return formula[1], formula[2]


def to_text(formula: Formula) -> str:
    """The formula in Metamath's notation."""
    if isinstance(formula, str):
        return formula
    operator, *parts = formula
    if operator == "not":
        return f"-. {to_text(parts[0])}"
    return f"( {to_text(parts[0])} -> {to_text(parts[1])} )"


def wff_steps(*formulas: Formula) -> tuple[str, ...]:
    """The steps that build the formulas."""
    out: list[str] = []
    for formula in formulas:
        if isinstance(formula, str):
            out.append(f"w{formula}")
        else:
            out += [*wff_steps(*formula[1:]), "wn" if formula[0] == "not" else "wi"]
    return tuple(out)


def axiom_1(a: Formula, b: Formula) -> Proof:
    return Proof(implies(a, implies(b, a)), (*wff_steps(a, b), "ax-1"))


def axiom_2(a: Formula, b: Formula, c: Formula) -> Proof:
    formula = implies(implies(a, implies(b, c)), implies(implies(a, b), implies(a, c)))
    return Proof(formula, (*wff_steps(a, b, c), "ax-2"))


def axiom_3(a: Formula, b: Formula) -> Proof:
    return Proof(implies(implies(negation(a), negation(b)), implies(b, a)), (*wff_steps(a, b), "ax-3"))


def modus_ponens(minor: Proof, major: Proof) -> Proof:
    """From A and A -> B."""
    left, right = _sides(major.formula)
    assert left == minor.formula, "the premise is another formula"
    return Proof(right, (*wff_steps(left, right), *minor.steps, *major.steps, "ax-mp"))


def weaken(proof: Proof, condition: Formula) -> Proof:
    """From A, condition -> A."""
    return modus_ponens(proof, axiom_1(proof.formula, condition))


def syllogism(first: Proof, second: Proof) -> Proof:
    """From A -> B and B -> C, A -> C."""
    (a, b), (_, c) = _sides(first.formula), _sides(second.formula)
    return modus_ponens(first, modus_ponens(weaken(second, a), axiom_2(a, b, c)))


def hypothesis(label: str, formula: Formula) -> Proof:
    return Proof(formula, (label,))


@lru_cache(maxsize=1)
def database() -> str:
    """Axioms, rule and two theorems, in Metamath."""
    lines = ["$c ( ) -> -. wff |- $.", f"$v {' '.join(VARIABLES)} $."]
    lines += [f"w{name} $f wff {name} $." for name in VARIABLES]
    a, b, c = VARIABLES[:3]
    lines += [
        f"wn $a wff -. {a} $.",
        f"wi $a wff ( {a} -> {b} ) $.",
        *(f"ax-{n} $a |- {to_text(axiom.formula)} $." for n, axiom in
          enumerate((axiom_1(a, b), axiom_2(a, b, c), axiom_3(a, b)), 1)),
        f"${{ ax-mp.1 $e |- {a} $. ax-mp.2 $e |- ( {a} -> {b} ) $. ax-mp $a |- {b} $. $}}",
        _theorem("a1i", weaken(hypothesis("a1i.1", a), b), {"a1i.1": a}),
        _theorem("syl", syllogism(hypothesis("syl.1", implies(a, b)), hypothesis("syl.2", implies(b, c))),
                 {"syl.1": implies(a, b), "syl.2": implies(b, c)}),
    ]  # fmt: skip
    return "\n".join(lines)


def _theorem(label: str, proof: Proof, hypotheses: dict[str, Formula]) -> str:
    premises = " ".join(f"{name} $e |- {to_text(formula)} $." for name, formula in hypotheses.items())
    return f"${{ {premises} {label} $p |- {to_text(proof.formula)} $= {' '.join(proof.steps)} $. $}}"


QUESTION = """{given}Prove: {statement}
Write the labels of the proof, in order, with spaces between them."""
INTRODUCTION = "Prove a theorem in Metamath. The database is\n{database}\n"


def draw_metamath(rng: random.Random, steps: int) -> ProofStatement:
    """A theorem whose proof takes so many inferences: a chain of modus ponens, or of implications."""
    kind = rng.choice(("modus-ponens", "syllogism", "weakening"))
    formulas = _formulas(rng, steps + 1)
    if kind == "weakening":
        return _weakening(rng, formulas)
    links = [implies(left, right) for left, right in pairwise(formulas)]
    if kind == "syllogism" and steps > 1:
        ordered, join = links, _join_syllogism
    else:
        kind, ordered, join = "modus-ponens", [formulas[0], *links], _join_modus_ponens
    labels = [f"solution.{n}" for n in range(1, len(ordered) + 1)]
    rng.shuffle(labels)
    proof = hypothesis(labels[0], ordered[0])
    for label, formula in zip(labels[1:], ordered[1:], strict=True):
        proof = join(proof, hypothesis(label, formula))
    return _statement(kind, proof, dict(sorted(zip(labels, ordered, strict=True))), ordered)


def _join_modus_ponens(proof: Proof, link: Proof) -> Proof:
    return modus_ponens(proof, link)


def _join_syllogism(proof: Proof, link: Proof) -> Proof:
    """By the theorem `syl` of the database."""
    (a, b), (_, c) = _sides(proof.formula), _sides(link.formula)
    return Proof(implies(a, c), (*wff_steps(a, b, c), *proof.steps, *link.steps, "syl"))


def _weakening(rng: random.Random, formulas: Sequence[Formula]) -> ProofStatement:
    """An axiom or a hypothesis, under one condition after another."""
    first, *conditions = formulas
    hypotheses: dict[str, Formula] = {}
    if rng.random() < 0.5:
        proof = axiom_1(first, conditions[0])
    else:
        hypotheses = {"solution.1": first}
        proof = hypothesis("solution.1", first)
    for condition in conditions:
        steps = (*wff_steps(proof.formula, condition), *proof.steps, "a1i")
        proof = Proof(implies(condition, proof.formula), steps)
    return _statement("weakening", proof, hypotheses, (*hypotheses.values(), proof.formula))


def _statement(kind: str, proof: Proof, hypotheses: dict[str, Formula], ordered: Sequence[Formula]) -> ProofStatement:
    claim = f"|- {to_text(proof.formula)}"
    hypothesis_texts = {label: f"|- {to_text(formula)}" for label, formula in hypotheses.items()}
    listed = "".join(f"{label}: {text}\n" for label, text in hypothesis_texts.items())
    question = QUESTION.format(given=f"Given:\n{listed}" if listed else "", statement=claim)
    answer = {"language": "metamath", "statement": claim, "database": database(), "hypotheses": hypothesis_texts}
    return ProofStatement("metamath", kind, _canonical(kind, ordered), question, answer, " ".join(proof.steps))


def _formulas(rng: random.Random, count: int) -> list[Formula]:
    """Different formulas: variables, some of them negated, some implied by another variable."""
    out: list[Formula] = []
    for name in rng.sample(VARIABLES, count):
        shape = rng.random()
        other = rng.choice([v for v in VARIABLES if v != name])
        out.append(name if shape < 0.5 else negation(name) if shape < 0.75 else implies(other, name))
    return out


def _canonical(kind: str, formulas: Sequence[Formula]) -> str:
    """The formulas with their variables numbered by their first place."""
    numbers: dict[str, str] = {}
    words = " , ".join(map(to_text, formulas)).split()
    return " ".join([kind, *(numbers.setdefault(w, f"v{len(numbers)}") if w in VARIABLES else w for w in words)])
