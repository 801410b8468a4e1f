"""`ponder replay RUN --strategy NAME`: another strategy, offline, on stored steps and scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fake_runs import TASK, StoredJob, grade_answers, right_answer, write_run, wrong_answer
from ponder.cli import main
from ponder.errors import UnknownName, UsageError
from ponder.pipelines.replay import StoredAttempts, replay, rescore
from ponder.pipelines.replay_search import longest_stored_answer, replay_search
from ponder.reason.budget import Budget
from ponder.reason.operators.cut import CUTS
from ponder.reason.strategies import BeamSearch, BestOfN, BudgetForcing, MajorityVote, Samples
from ponder.runs import Run
from ponder.types import Cost, Score, Step, ids, prompt_trace
from ponder.verify import FinalNumber

SAID = [
    [wrong_answer(0), right_answer(0), right_answer(0)],  # majority right, first wrong, best by rm wrong
    [right_answer(1), wrong_answer(1), wrong_answer(1)],  # majority wrong, first right, best by rm right
    [wrong_answer(2), wrong_answer(2, 2), right_answer(2)],  # a tie: the first seen wins; best by rm right
]
SCORES = [[0.9, 0.1, 0.2], [0.9, 0.1, 0.2], [0.3, 0.3, 0.9]]


@pytest.fixture
def stored(tmp_path: Path) -> StoredAttempts:
    return StoredAttempts.read(str(write_run(tmp_path / "run", SAID, scores=SCORES)))


def test_strategies_over_all_samples_equal_the_decision_rules(stored: StoredAttempts) -> None:
    vote = replay_search(stored, MajorityVote(3), "majority-vote")
    assert vote.after == replay(stored, method="majority").after and vote.after.mean == pytest.approx(1 / 3)
    best = replay_search(stored, BestOfN(3), "best-of-n", "rm")
    assert best.after == replay(stored, method="best", by="rm").after and best.after.mean == pytest.approx(2 / 3)
    mean = replay_search(stored, Samples(3), "samples")
    assert mean.after.mean == mean.before.mean == pytest.approx(4 / 9) and mean.before_rule == "mean"
    assert vote.not_replayable == {} and vote.problems == 3 and vote.guide == ""


def test_fewer_samples_cost_fewer_tokens(stored: StoredAttempts) -> None:
    one = replay_search(stored, BestOfN(1), "best-of-n", "rm")
    assert one.after == replay(stored, method="first").after and one.replayed_tokens == 3
    assert replay_search(stored, BestOfN(3), "best-of-n", "rm").replayed_tokens == 3 + 4 + 5
    assert one.stored_tokens == 30 and (one.pair.wins, one.pair.losses) == (1, 2)


def test_problem_without_enough_samples_is_not_replayable(tmp_path: Path) -> None:
    answers = [[right_answer(0)] * 4, [wrong_answer(1)] * 2]
    stored = StoredAttempts.read(str(write_run(tmp_path / "run", answers)))
    result = replay_search(stored, MajorityVote(4), "majority-vote")
    assert result.after.mean == result.before.mean == 1.0, "the other problem counts neither before nor after"
    ((why, count),) = result.not_replayable.items()
    assert count == 1 and why.startswith("4 continuations are asked for, and 0 of the 2 stored")
    cycled = replay_search(stored, MajorityVote(4), "majority-vote", when_exhausted="cycle")
    assert cycled.not_replayable == {} and cycled.after.mean == 0.5
    with pytest.raises(UsageError, match="no stored problem can be replayed with best-of-n: 9 continuations"):
        replay_search(stored, BestOfN(9, rank_by="logprob"), "best-of-n")
    with pytest.raises(UsageError, match=r"no stored problem .* no step that was inserted"):
        replay_search(stored, BudgetForcing(think_start="<think>"), "budget-forcing")


def test_budget_ends_a_replayed_vote(stored: StoredAttempts) -> None:
    result = replay_search(stored, MajorityVote(3, chains_per_round=1, early_stopping="decided"), "v", budget=Budget(8))
    assert result.after == replay(stored, method="first").after, "3 and 4 tokens are spent; one is not enough for more"
    assert result.replayed_tokens == 7


def tree_run(folder: Path) -> Path:
    """Two first steps; below each a right and a wrong answer. The guide prefers step a, and there the wrong answer."""
    problem = TASK.test[0]
    trace = prompt_trace(problem, ids([1, 2]))

    def add(parent: int, text: str, tokens: list[int], score: float) -> int:
        stop = "stop" if text.endswith("\n") else "eos"
        logprobs = np.full(len(tokens), -1.0, np.float32)
        return trace.add(Step(parent, text, ids(tokens), logprobs, stop, scores={"rm": Score(score)}))  # type: ignore[arg-type]

    a, b = add(0, "first\n", [3], 0.9), add(0, "second\n", [4], 0.1)
    add(a, wrong_answer(0), [5], 0.8)
    add(a, right_answer(0), [6], 0.3)
    add(b, right_answer(0), [7], 0.2)
    add(b, wrong_answer(0), [8], 0.1)
    grade_answers(trace, TASK.verifier)
    trace.add_cost(Cost(generated_tokens=6))
    with Run(folder, StoredJob(TASK)) as run:
        run.write_traces(0, [trace])
    return folder


def test_beam_search_on_a_stored_tree(tmp_path: Path) -> None:
    stored = StoredAttempts.read(str(tree_run(tmp_path / "run")))
    narrow = replay_search(stored, BeamSearch(2, 2, cut=CUTS["line"], choose="best"), "beam-search", "rm")
    assert narrow.after.mean == 0.0 and narrow.replayed_tokens == 4, "two first steps, two answers below the better"
    one = BeamSearch(2, 1, cut=CUTS["line"], choose="weighted")
    assert replay_search(stored, one, "beam-search", "rm").replayed_tokens == 4, "one answer below each step"


def test_guide_must_be_stored(stored: StoredAttempts) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'rm'"):
        replay_search(stored, BestOfN(2), "best-of-n", "rn")
    with pytest.raises(UsageError, match="give a scorer"):
        replay_search(stored, BestOfN(2), "best-of-n")
    assert replay_search(stored, BestOfN(2), "best-of-n", "likelihood").guide == "likelihood"


def test_another_verifier_says_what_is_right(tmp_path: Path) -> None:
    """The task's verifier takes the bare number; one that reads boxes alone finds no answer in it."""
    text = [[f"\\boxed{{{TASK.test[p].answer}}}", right_answer(p), wrong_answer(p)] for p in range(3)]
    stored = StoredAttempts.read(str(write_run(tmp_path / "run", text)))
    last = replay_search(stored, BestOfN(3), "best-of-n", "likelihood")
    boxes = rescore(stored, FinalNumber(("boxed",)))
    vote = replay_search(boxes, MajorityVote(3), "majority-vote", truth="boxes")
    assert vote.after.mean == 1.0 and vote.before.mean == pytest.approx(1 / 3) and vote.truth == "boxes"
    assert last.truth == "stored verdicts" and last.before.mean > vote.before.mean


def test_room_for_the_longest_stored_answer(stored: StoredAttempts, tmp_path: Path) -> None:
    assert longest_stored_answer(stored) == 5
    log = tmp_path / "log.jsonl"
    rows = [{"id": str(i), "question": "?", "responses": ["7", "x" * 20], "correct": [1, 0]} for i in range(2)]
    log.write_text("\n".join(map(json.dumps, rows)))
    texts = StoredAttempts.read(str(log))
    assert longest_stored_answer(texts) == 20, "bytes, where a log has no tokens"
    result = replay_search(texts, Samples(2), "samples")
    assert result.after.mean == 0.5 and any("UTF-8" in note for note in result.notes)


def test_command_prints_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(write_run(tmp_path / "run", [*SAID, [right_answer(3)]], scores=[*SCORES, [0.5]]))
    command = ["replay", run, "--strategy", "best-of-n", "--guide", "rm", "--strategy.n", "2"]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "best-of-n guided by rm, replayed; right by stored verdicts" in output
    assert "1 of 4 problems are not replayable" in output and "tokens      7 per problem; stored: 30" in output
    assert main([*command, "--when-exhausted", "cycle", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["problems"] == 4 and printed["not_replayable"] == {} and printed["after"]["mean"] == 0.5
    assert main([*command, "--budget.tokens", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replayed_tokens"] < 7
    for wrong, why in (
        (["--select", "first"], "--strategy decides by itself, and --select"),
        (["--group-sizes", "2"], "--group-sizes"),
        (["--score", "format"], "no verifier"),
    ):
        assert main([*command, *wrong]) == 2 and why in capsys.readouterr().err
    assert main(["replay", run, "--guide", "rm"]) == 2 and "--strategy" in capsys.readouterr().err
