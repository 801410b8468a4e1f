"""No cheat proves a false statement, with or without the fence of words; honest proofs pass."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.protocols import Scorer
from ponder.types import Problem, Score, Step, Trace, ids, user_messages
from ponder.verify.proof import Coq, checker_limits, run_checker
from ponder.verify.proof import coq as module
from ponder.verify.proof.coq import message, parse_assumptions, parse_coqchk_context
from ponder.verify.proof.coq_text import CoqSource, check_coq_source, without_comments
from ponder.verify.proof.proof_verifier import CheckerFailed
from verify.proof.coq_cases import CHEATS, ENDLESS, FALSE, HONEST, KERNEL, Case
from verify.proof.grading import block, grade_all, need


def verdicts(cases: Mapping[str, Case], coq: Coq = Coq()) -> dict[str, Score]:
    return grade_all(coq, {name: (c.source, {"statement": c.statement, **c.extra}) for name, c in cases.items()})


HEAVY = ("lia", "ring over Z", "program", "by computation", "well-founded")  # each loads much of the library
LIGHT = [name for name in HONEST if name not in HEAVY]


@pytest.fixture(scope="module")
def honest() -> dict[str, Score]:
    return verdicts({name: HONEST[name] for name in LIGHT})


@pytest.fixture(scope="module")
def cheats() -> dict[str, Score]:
    return verdicts(CHEATS)


@pytest.fixture(scope="module")
def unfenced() -> dict[str, Score]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "check_coq_source", lambda source, trusted: CoqSource(without_comments(source) or "", ""))
        return verdicts(KERNEL)


@pytest.mark.parametrize("name", LIGHT)
def test_coq_accepts_honest_proofs(honest, name):
    assert honest[name].value == 1.0, honest[name].reason
    assert honest[name].reason.startswith("proved")


@pytest.mark.slow
def test_coq_accepts_proofs_with_large_libraries():
    assert set(verdicts({name: HONEST[name] for name in HEAVY}).values()) == {Score(1.0, "proved")}


@pytest.mark.parametrize("name", CHEATS)
def test_coq_rejects_cheats(cheats, name):
    assert cheats[name].value == 0.0 and cheats[name].reason, cheats[name]


@pytest.mark.parametrize("name", KERNEL)
def test_coq_kernel_rejects_cheats_that_pass_the_word_filter(unfenced, name):
    score = unfenced[name]
    assert score.value == 0.0 and score.reason.startswith("wrong: "), score


def test_shared_coq_cheats_get_the_expected_verdict(data):
    known = Path(data).parent / "attacks" / "coq_cheats.json"
    if not known.exists():
        pytest.skip(f"no list of cheats beside {data}")
    cases = json.loads(known.read_text())
    scores = verdicts({entry["name"]: Case(entry["source"], entry["goal"]) for entry in cases})
    assert {name: score.value for name, score in scores.items()} == {
        entry["name"]: 0.0 if entry["cheat"] else 1.0 for entry in cases
    }


def test_a_proof_that_never_ends_is_killed():
    for name, score in verdicts(ENDLESS, Coq(checker_limits(1, memory=1 << 30))).items():
        # On a machine too busy to give it a second of time, or killed first, nothing is known; it never passes.
        known = score.value == 0.0
        assert known or (score.value is None and score.reason.startswith(("starved", "crashed"))), (name, score)


def test_the_jail_confines_coq_without_the_word_filter(monkeypatch, tmp_path):
    """Commands that read and write files see neither this machine's files nor leave any."""
    tmp_path.chmod(0o777)
    monkeypatch.setattr(module, "check_coq_source", lambda source, trusted: CoqSource(source, ""))
    leak = tmp_path / "leak"
    tries = [
        f'Redirect "{leak}" Print nat.',
        f'Require Extraction. Extraction "{leak}" plus.',
        f'Print Universes "{leak}".',
        'Redirect "/tmp/ponder_leak" Print nat.',
        f'Load "{tmp_path}/secret".',
        'Cd "/usr". Redirect "leak" Print nat.',
    ]
    (tmp_path / "secret.v").write_text("Definition secret := 1.")
    proof = "Theorem solution : 1 = 2. Proof. Admitted."
    for source, score in verdicts({source: Case(f"{source}\n{proof}", "1 = 2") for source in tries}).items():
        assert score.value == 0.0, (source, score)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.v"]
    assert not list(Path("/tmp").glob("ponder_leak*")) and not list(Path("/usr").glob("leak*"))


def test_coq_feedback_has_the_position_and_no_paths():
    need(Coq())
    wrong = "Theorem solution : forall n : nat, n + 0 = n.\nProof.\n  intro n. rewrite nothing.\nQed."
    gold = {"statement": "forall n : nat, n + 0 = n", "header": "Require Import List.\nImport ListNotations."}
    score = Coq().grade(block(wrong), gold)
    assert score.value == 0.0 and "/" not in score.reason
    assert score.reason.startswith("rejected: line 3, characters 19-26: ") and "nothing was not found" in score.reason


@pytest.mark.parametrize(
    "gold",
    [None, "1 = 1", {}, {"statement": ""}, {"statement": "forall n, n ="},
     {"statement": "1 = 1", "header": "Require No."}, {"statement": "1 = 1", "axioms": "classic"},
     {"statement": "1 = 1", "theorem": "a b"}],
)  # fmt: skip
def test_a_bad_problem_is_undecided(gold):
    need(Coq())
    score = Coq().grade(block("Lemma solution : 1 = 1. Proof. trivial. Qed."), gold)
    assert score.value is None and score.reason.startswith("bad data: ")


def test_coq_scores_steps_of_a_trace():
    need(Coq())
    assert isinstance(Coq(), Scorer)
    texts = [
        block("Lemma solution : 1 = 1. Proof. trivial. Qed."),
        "<think>\n```\nx\n```\n</think>",
        block("Axiom f : False."),
    ]
    steps = [Step(None, "", ids([])), *(Step(0, text, ids([])) for text in texts)]
    scores = asyncio.run(Coq()(Trace(Problem("p", user_messages("?"), {"statement": "1 = 1"}), steps), [1, 2, 3]))
    assert [score.value for score in scores] == [1.0, 0.0, 0.0]
    assert scores[0].reason == "proved" and scores[1].reason == "no answer" and "Axiom" in scores[2].reason


def test_missing_coq_is_undecided(monkeypatch):
    monkeypatch.setattr(run_checker, "find_checker", lambda program, tools: "")
    monkeypatch.setenv("PATH", "")
    score = Coq().grade(block("Lemma solution : 1 = 1."), {"statement": "1 = 1"})
    assert score.value is None and "apt-get install coq" in score.reason


@given(st.text('(*)" \n.Aa', max_size=40))
def test_without_comments_removes_every_comment(source):
    stripped = without_comments(source)
    if stripped is None:
        return
    assert len(stripped) == len(source) and stripped.count("\n") == source.count("\n")
    assert without_comments(stripped) == stripped
    assert all(remaining in (char, " ") for remaining, char in zip(stripped, source, strict=True))


@pytest.mark.parametrize(
    ("source", "refused"),
    [("Load x.", True), ("my_Load x.", False), ("Load' x.", False), ("1Load x.", True), ("1_Load.", True),
     ("'Load", True), ("Set Primitive Projections.", False), ("Primitive x.", True), ('"Load"', True),
     ("(* Load *)", False), ("Guard\n \tChecking", True), ("Guard(* *)Checking", True),
     ("Guard (* unclosed", True), ("admitted", False)],
)  # fmt: skip
def test_check_coq_source_refuses_forbidden_words(source, refused):
    assert bool(check_coq_source(source).fault) is refused


@pytest.mark.parametrize("piece", ["(*", "*)", '"', "(*)", "Print ", "Guard\n", "1_", '(* "', "\n"])
def test_check_coq_source_is_fast_on_hostile_text(piece):
    before = time.thread_time()
    check_coq_source(piece * (50_000 // len(piece)))
    assert time.thread_time() - before < 8


def test_check_coq_source_allows_words_of_the_trusted_part():
    assert not check_coq_source("exact Load.", "Inductive i := Load.").fault
    assert check_coq_source("Drop.", "Inductive i := Load.").fault


SUMMARY = """
CONTEXT SUMMARY
===============

* Theory: Set is predicative
  
* Axioms:
    Coq.Logic.Classical_Prop.classic
    PonderCheck.Candidate.f
  
* Constants/Inductives relying on type-in-type: <none>
  
* Constants/Inductives relying on unsafe (co)fixpoints:
    PonderCheck.Candidate.g
  
* Inductives whose positivity is assumed: <none>
  
"""


def test_parse_coqchk_context():
    assert parse_coqchk_context(SUMMARY) == (
        ("Coq.Logic.Classical_Prop.classic", "PonderCheck.Candidate.f"),
        ("PonderCheck.Candidate.g",),
    )
    for changed in ("", SUMMARY.replace("predicative", "impredicative"), SUMMARY.replace("* Axioms", "* Assumed")):
        with pytest.raises(CheckerFailed):
            parse_coqchk_context(changed)


def test_parse_assumptions():
    assert parse_assumptions("Closed under the global context\n") == ()
    assert parse_assumptions("Axioms:\nM.classic : forall P : Prop,\n  P \\/ ~ P\nf : False\n") == ("M.classic", "f")
    assert parse_assumptions("Axioms:\ng is assumed to be guarded.\n") == ("g is assumed to be guarded.",)
    for unreadable in ("", "Axioms:\n", "Closed under the global context\nI\n: True", "f : False"):
        with pytest.raises(CheckerFailed):
            parse_assumptions(unreadable)


def test_message_uses_the_last_error():
    place = 'File "./Candidate.v", line {}, characters 3-9:\n'
    errors = f"{place.format(3)}Warning: w\n{place.format(5)}Error: In x.\n"
    assert message(errors, 2) == "line 3, characters 3-9: In x."
    assert message("") == "no message" and message("Error: a") == "a"


def test_coq_never_proves_false():
    """What the cheats aim at can be refuted."""
    need(Coq())
    refutation = f"Theorem solution : ~ ({FALSE}). Proof. intro h. discriminate (h 0). Qed."
    assert Coq().grade(block(refutation), {"statement": f"~ ({FALSE})"}).value == 1.0
