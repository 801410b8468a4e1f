"""Propositions for Coq: chains of implications, sums on natural numbers, and witnesses of existence."""

from __future__ import annotations

import random
from itertools import pairwise

from ponder.tasks.proofs.statement import ProofStatement

NAMES = ("A", "B", "C", "D", "E", "F", "G", "H")
MAX_STEPS = len(NAMES) - 1

QUESTION = """Prove this proposition in Coq.
{statement}
Write a whole theorem with the name solution: Theorem solution : {statement}. Proof. ... Qed."""


def draw_coq(rng: random.Random, steps: int) -> ProofStatement:
    """A proposition of so many premises, unknowns or summands."""
    kind = rng.choice(("implications", "sum", "witness"))
    return {"implications": _implications, "sum": _sum, "witness": _witness}[kind](rng, steps)


def _implications(rng: random.Random, steps: int) -> ProofStatement:
    """The premises A, A -> B, B -> C, ... in any order."""
    names = NAMES[: steps + 1]
    premises = [names[0], *(f"({left} -> {right})" for left, right in pairwise(names))]
    order = rng.sample(range(len(premises)), len(premises))
    statement = f"forall {' '.join(names)} : Prop, {' -> '.join(premises[i] for i in order)} -> {names[-1]}"
    term = "h0"
    for i in range(1, len(premises)):
        term = f"(h{i} {term})"
    tactics = f"intros {' '.join(names)} {' '.join(f'h{i}' for i in order)}. exact {term}."
    return _statement("implications", statement, tactics)


def _sum(rng: random.Random, steps: int) -> ProofStatement:
    """Both sides compute to the same numeral."""
    numbers = [rng.randint(2, 12) for _ in range(steps + 1)]
    return _statement("sum", f"{' + '.join(map(str, numbers))} = {sum(numbers)}", "reflexivity.")


def _witness(rng: random.Random, steps: int) -> ProofStatement:
    """A natural number for each unknown."""
    names = [f"n{i}" for i in range(1, steps + 1)]
    values = [rng.randint(1, 9) for _ in names]
    factors = [rng.randint(2, 6) for _ in names]
    left = " + ".join(f"{factor} * {name}" for factor, name in zip(factors, names, strict=True))
    total = sum(a * b for a, b in zip(factors, values, strict=True))
    claim = "".join(f"exists {name} : nat, " for name in names) + f"{left} = {total}"
    return _statement("witness", claim, " ".join(f"exists {value}." for value in values) + " reflexivity.")


def _statement(kind: str, statement: str, tactics: str) -> ProofStatement:
    proof = f"Theorem solution : {statement}.\nProof. {tactics} Qed."
    answer = {"language": "coq", "statement": statement}
    return ProofStatement("coq", kind, statement, QUESTION.format(statement=statement), answer, proof)
