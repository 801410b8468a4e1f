"""Proofs as a task: the checker of each language accepts the gold proof and rejects every other text."""

from __future__ import annotations

import random

import pytest

from ponder.errors import UnknownName, UsageError
from ponder.tasks import Proofs, find
from ponder.tasks.proofs import LANGUAGES, ProofGrader, coq_statements, metamath_statements, smt_statements
from ponder.tasks.proofs.metamath_statements import (
    VARIABLES,
    axiom_1,
    axiom_2,
    axiom_3,
    database,
    hypothesis,
    implies,
    modus_ponens,
    syllogism,
    to_text,
    weaken,
)
from ponder.verify.proof import Coq, SmtInvariant
from ponder.verify.proof.metamath_kernel import MetamathDatabase, MetamathError

needs_z3 = pytest.mark.skipif(bool(SmtInvariant().missing_tools()), reason="Z3 is not installed")
needs_coq = pytest.mark.skipif(bool(Coq().missing_tools()), reason="Coq is not installed")


def answer(proof: str) -> str:
    return f"<answer>{proof}</answer>"


@pytest.mark.parametrize("steps", range(1, metamath_statements.MAX_STEPS + 1))
def test_metamath_gold_is_proved_and_broken_proofs_are_not(steps: int) -> None:
    grader, rng = ProofGrader(), random.Random(steps)
    for _ in range(20):
        drawn = metamath_statements.draw_metamath(rng, steps)
        assert grader.grade(answer(drawn.proof), drawn.answer).value == 1.0, drawn
        labels = drawn.proof.split()
        place = rng.randrange(len(labels))
        for broken in (labels[:place] + labels[place + 1 :], [*labels[:place], labels[place], *labels[place:]]):
            assert grader.grade(answer(" ".join(broken)), drawn.answer).value == 0.0, (drawn, broken)
        assert drawn.answer["statement"] in drawn.question


def test_metamath_proofs_are_put_together_from_axioms() -> None:
    a, b, c = VARIABLES[:3]
    identity = modus_ponens(axiom_1(a, a), modus_ponens(axiom_1(a, implies(a, a)), axiom_2(a, implies(a, a), a)))
    assert to_text(identity.formula) == "( ph -> ph )"
    theorems = [identity, axiom_3(a, b), weaken(identity, c), syllogism(axiom_1(a, b), axiom_1(implies(b, a), c))]
    lines = [f"t{i} $p |- {to_text(t.formula)} $= {' '.join(t.steps)} $." for i, t in enumerate(theorems)]
    assert MetamathDatabase("\n".join([database(), *lines])).open_proofs == []
    with pytest.raises(MetamathError, match="The result is"):
        MetamathDatabase(f"{database()}\nt $p |- ( ps -> ps ) $= {' '.join(identity.steps)} $.")
    with pytest.raises(AssertionError, match="another formula"):
        modus_ponens(hypothesis("h", b), axiom_1(a, b))


@needs_z3
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_smt_gold_is_right(steps: int) -> None:
    grader, rng = ProofGrader(), random.Random(steps)
    drawn = [smt_statements.draw_smt(rng, steps) for _ in range(60)]
    kinds = {s.kind: s for s in drawn}
    assert kinds.keys() >= {"assignment", "invariant-bound", "invariant-remainder"}
    for statement in kinds.values():
        assert grader.grade(answer(statement.proof), statement.answer).value == 1.0, statement
        assert grader.grade(answer("true"), statement.answer).value == 0.0, statement
    other = next(s for s in drawn if s.kind == "assignment" and s.key != kinds["assignment"].key)
    assert grader.grade(answer(other.proof), kinds["assignment"].answer).value == 0.0


@needs_coq
@pytest.mark.parametrize("steps", [1, 3])
def test_coq_gold_is_proved(steps: int) -> None:
    rng = random.Random(steps)
    for statement in {s.kind: s for s in (coq_statements.draw_coq(rng, steps) for _ in range(20))}.values():
        assert ProofGrader().grade(answer(statement.proof), statement.answer).value == 1.0, statement
        assert ProofGrader().grade(answer("Theorem solution : True. exact I. Qed."), statement.answer).value == 0.0


def test_coq_statements_are_closed_propositions() -> None:
    for i in range(30):
        drawn = coq_statements.draw_coq(random.Random(i), 3)
        assert drawn.proof.startswith(f"Theorem solution : {drawn.answer['statement']}.\nProof. ")
        assert drawn.proof.endswith(" Qed.") and drawn.answer["statement"] in drawn.question


def test_renamed_variables_are_the_same_problem() -> None:
    task = Proofs(languages=("metamath",), steps=3)
    keys = {task.key(task.draw(random.Random(i))) for i in range(50)}
    assert len(keys) > 20 and all("ph" not in key.split() for key in keys)


def test_proofs_settings_are_applied_and_checked() -> None:
    assert find("proofs") == (Proofs, {})
    assert set(LANGUAGES) == {"metamath", "smt", "coq"}
    plain = Proofs(languages=("metamath",), show_database=False)
    assert "ax-mp" not in plain.test[0].question and "ax-mp" in Proofs(languages=("metamath",)).test[0].question
    assert Proofs(languages=("metamath",)).unused() == {}
    with pytest.raises(UnknownName, match="metamath"):
        Proofs(languages=("metamat",))
    for settings in ({"languages": ()}, {"languages": "metamath"}, {"steps": 0}, {"steps": 8}):
        with pytest.raises(UsageError):
            Proofs(**settings)  # type: ignore[arg-type]


@pytest.mark.skipif(not Coq().missing_tools(), reason="Coq is installed")
def test_missing_checker_is_named() -> None:
    with pytest.raises(UsageError, match=r"Coq is not installed.*leave coq out of languages"):
        Proofs(languages=("metamath", "coq"))
    gold = coq_statements.draw_coq(random.Random(0), 1)
    score = ProofGrader().grade(answer(gold.proof), gold.answer)
    assert score.value is None and "Coq is not installed" in score.reason


def test_problem_without_a_language_is_undecided() -> None:
    score = ProofGrader().grade(answer("wph"), {"statement": "|- ph"})
    assert score.value is None and score.reason.startswith("bad data: the language is None")
