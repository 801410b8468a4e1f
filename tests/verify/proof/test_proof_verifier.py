"""Where the proof is, and what every checker does alike."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from ponder.types import Score
from ponder.verify.proof import ProofVerifier, extract_proof
from ponder.verify.proof.proof_verifier import MAX_PROOF_CHARS, CheckerFailed, score_unfinished, shorten_message
from ponder.verify.proof.run_checker import CheckerResult


@pytest.mark.parametrize(
    ("text", "proof"),
    [("```\nx.\n```", "x."), ("So:\n```coq\nx.\ny.\n```\nDone.", "x.\ny."), ("<answer>x.</answer>", "x."),
     ("<answer>\n```lean\nx.\n```\n</answer>", "x."), ("<think>```\ny.\n```</think>\n```\nx.\n```", "x."),
     ("  ```v\n  x.\n  ```", "  x.")],
)  # fmt: skip
def test_extract_proof_finds_one_proof(text, proof):
    assert extract_proof(text).answer == proof


@pytest.mark.parametrize(
    ("text", "reason"),
    [("x.", "no answer"), ("", "no answer"), ("```\nx.\n", "no answer"), ("```\n\n```", "no answer"),
     ("```\nx.\n```\n```\ny.\n```", "several answers"), ("<think>\n```\nx.\n```\n", "no answer"),
     ("<answer>x.</answer><answer>y.</answer>", "several answers"), ("<answer>x.", "malformed"),
     (f"```\n{'x' * (MAX_PROOF_CHARS + 1)}\n```", "too long"), ("```coq x. ```", "no answer")],
)  # fmt: skip
def test_extract_proof_rejects_other_text(text, reason):
    extracted = extract_proof(text)
    assert (extracted.answer, extracted.reason) == (None, reason)


@pytest.mark.parametrize("piece", ["```\n", "```a\n", "`", "\n", "<answer>", "<think>", "  ```\nx\n"])
def test_extract_proof_is_fast_on_hostile_text(piece):
    before = time.thread_time()
    extract_proof(piece * (200_000 // len(piece)))
    assert time.thread_time() - before < 8


@dataclass(frozen=True)
class Broken(ProofVerifier):
    missing: str = ""

    def missing_tools(self):
        return self.missing

    def check_proof(self, proof, gold):
        raise CheckerFailed("crashed: by accident")


def test_a_failed_checker_is_undecided():
    assert Broken().grade("```\nx\n```", {}) == Score(None, "crashed: by accident")
    assert Broken("no checker").grade("```\nx\n```", {}) == Score(None, "no checker")
    assert Broken().grade("no proof", {}) == Score(0.0, "no answer")
    assert Broken().grade("```\nx\n```", None).reason.startswith("bad data: ")


def test_score_unfinished_blames_the_proof_only_for_limits():
    assert score_unfinished(CheckerResult("ended", 1), "it") is None
    for fate in ("timed out", "out of memory", "too much output"):
        score = score_unfinished(CheckerResult(fate), "the proof")
        assert score is not None and score.value == 0.0 and score.reason.startswith(fate)
        with pytest.raises(CheckerFailed, match=fate):
            score_unfinished(CheckerResult(fate), "the checker", blamed=False)
    for fate in ("starved", "crashed"):
        with pytest.raises(CheckerFailed, match=fate):
            score_unfinished(CheckerResult(fate), "the proof")


def test_shorten_message_bounds_feedback():
    assert shorten_message(" a  \nb \n\n") == "a\nb"
    assert len(shorten_message("x" * 10**6)) < 1100
