"""A statement to prove, whatever its language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Language = Literal["metamath", "smt", "coq"]


@dataclass(frozen=True)
class ProofStatement:
    """`answer` is what the language's verifier takes; `proof` is one that it accepts.

    Statements with the same `key` differ in names and order only, so they fall on the same side of the split.
    """

    language: Language
    kind: str
    key: str
    question: str
    answer: Mapping[str, Any]
    proof: str
