"""The task `proofs`: drawn statements, each graded by the checker of its language."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from ponder.errors import UnknownName, UsageError
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import QuestionTask
from ponder.tasks.proofs import coq_statements, metamath_statements, smt_statements
from ponder.tasks.proofs.statement import Language, ProofStatement
from ponder.types import Problem, Score
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.base import bad_data, repr_for_reason
from ponder.verify.proof import Coq, Metamath, ProofVerifier, SmtAssignment, SmtInvariant

LANGUAGES: tuple[Language, ...] = get_args(Language)
MAX_STEPS = min(metamath_statements.MAX_STEPS, smt_statements.MAX_STEPS, coq_statements.MAX_STEPS)
_DRAW: dict[str, Callable[[random.Random, int], ProofStatement]] = {
    "metamath": metamath_statements.draw_metamath,
    "smt": smt_statements.draw_smt,
    "coq": coq_statements.draw_coq,
}
_CHECKERS: dict[str, tuple[ProofVerifier, ...]] = {
    "metamath": (Metamath(),),
    "smt": (SmtAssignment(), SmtInvariant()),
    "coq": (Coq(),),
}


@dataclass(frozen=True)
class ProofGrader(ProofVerifier):
    """Grades each proof with the checker of its problem's language."""

    def missing_tools(self) -> str:
        return ""  # each checker says it itself

    def check_proof(self, proof: str, gold: Mapping[str, Any]) -> Score:
        checker = _checker(gold)
        if missing := checker.missing_tools():
            return Score(None, missing)
        return checker.check_proof(proof, gold)


def _checker(gold: Mapping[str, Any]) -> ProofVerifier:
    language = gold.get("language")
    if language not in _CHECKERS:
        bad_data(f"the language is {repr_for_reason(language)}; it must be one of {', '.join(_CHECKERS)}")
    return _CHECKERS[language][1 if "state" in gold else 0]


@dataclass(frozen=True, kw_only=True)
class Proofs(QuestionTask[ProofStatement]):
    """Theorems to prove in `steps` steps, in Metamath, SMT (Z3) or Coq; a checker decides.

    Metamath needs nothing; smt needs the extra `proofs` (Z3); coq needs Coq on this machine.
    """

    ANSWER_SPEC = AnswerSpec("the proof", ("tag",), allow_bare=False)
    LEVELS = tuple({"steps": n} for n in (1, 2, 3, 5, 7))

    languages: tuple[str, ...] = ("metamath", "smt")
    steps: int = 2
    show_database: bool = True  # write Metamath's axioms out in each question; without them a model has to learn them

    def unused(self) -> dict[str, str]:
        return {} if "metamath" in self.languages else {"show_database": "only metamath has a database"}

    def check(self) -> None:
        require_at_least(1, steps=self.steps)
        require_at_most(MAX_STEPS, steps=self.steps)
        if not self.languages or isinstance(self.languages, str):
            raise UsageError(f"languages is {self.languages!r}; name some of {', '.join(LANGUAGES)}")
        for language in self.languages:
            if language not in LANGUAGES:
                raise UnknownName("language of proofs", language, LANGUAGES)
            if missing := _CHECKERS[language][0].missing_tools():
                raise UsageError(f"{missing}; or leave {language} out of languages")

    @property
    def name(self) -> str:
        return "proofs"

    @property
    def verifier(self) -> ProofGrader:
        return ProofGrader()

    def draw(self, rng: random.Random) -> ProofStatement:
        return _DRAW[rng.choice(self.languages)](rng, self.steps)

    def key(self, item: ProofStatement) -> str:
        return f"{item.language} {item.key}"

    def question(self, item: ProofStatement) -> str:
        shown = self.show_database and item.language == "metamath"
        before = metamath_statements.INTRODUCTION.format(database=metamath_statements.database()) if shown else ""
        return before + item.question

    def answer(self, item: ProofStatement) -> Mapping[str, Any]:
        return dict(item.answer)

    def tags(self, item: ProofStatement) -> dict[str, Any]:
        return {"language": item.language, "kind": item.kind, "steps": self.steps, "proof": item.proof}

    def solution(self, problem: Problem) -> str:
        return str(problem.tags["proof"])
