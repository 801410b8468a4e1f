"""Replay: what another judge, rule, reward or group size would have made of stored attempts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_runs import TASK, right_answer, write_run, wrong_answer
from ponder.cli import main
from ponder.errors import PonderError, UnknownName, UsageError
from ponder.measure.statistics.intervals import Accuracy
from ponder.pipelines.replay import StoredAttempts, equal_reward_share, find_scorer, group_statistics, replay
from ponder.types import Score, Trace
from ponder.verify import FinalNumber, MathAnswer


class Shortest:
    """Likes short answers."""

    name = "short"

    async def __call__(self, trace: Trace, steps: Any) -> list[Score]:
        return [Score(-float(len(trace.text(i)))) for i in steps]


class Nobody:
    name = "nobody"

    async def __call__(self, trace: Trace, steps: Any) -> list[Score]:
        return [Score(None, "no idea")] * len(steps)


def no_task(name: str) -> Any:
    raise AssertionError("no task was asked for")


def test_another_scorer_changes_verdicts(tmp_path: Path) -> None:
    """The task takes a bare number; a judge of boxes alone takes neither that nor anything else here but the box."""
    boxed = [f"\\boxed{{{TASK.test[p].answer}}}" for p in range(3)]
    source = StoredAttempts.read(
        str(write_run(tmp_path / "run", [[box, right_answer(p), wrong_answer(p)] for p, box in enumerate(boxed)]))
    )
    before = [g.correct for g in source.attempts.groups]
    assert all(c[1:] == (1.0, 0.0) for c in before)
    result = replay(source, FinalNumber(("boxed",)), "boxes", truth="new")
    assert result.change.to_wrong == 3 and result.change.to_right == 3 - sum(c[0] == 1.0 for c in before)
    assert result.after.mean == pytest.approx(1 / 3)
    assert result.truth == "boxes"
    assert result.change.examples[0][0] == TASK.test[0].id


def test_same_scorer_changes_nothing(tmp_path: Path) -> None:
    source = StoredAttempts.read(
        str(write_run(tmp_path / "run", [[right_answer(p), wrong_answer(p)] for p in range(4)]))
    )
    result = replay(source, TASK.verifier, "addition", "majority", truth="new")
    assert result.change.same == 8
    assert (result.pair.difference, result.pair.wins, result.pair.losses) == (0.0, 0, 0)
    assert result.agreement == pytest.approx(1.0)
    for old, new in result.groups:
        assert old == new


def test_rules_by_hand(tmp_path: Path) -> None:
    text = [
        [wrong_answer(0), right_answer(0), right_answer(0)],  # majority right, first wrong, best by rm wrong
        [right_answer(1), wrong_answer(1), wrong_answer(1)],  # majority wrong, first right, best by rm right
        [wrong_answer(2), wrong_answer(2, 2), right_answer(2)],  # a tie: the first seen wins; logprob right
    ]
    scores = [[0.9, 0.1, 0.2], [0.9, 0.1, 0.2], [0.3, 0.3, 0.9]]
    logprobs = [[-3.0, -2.0, -1.0], [-3.0, -2.0, -1.0], [-3.0, -2.0, -1.0]]
    source = StoredAttempts.read(
        str(write_run(tmp_path / "run", text, scores=scores, logprobs=logprobs, chosen=[1, 1, 1]))
    )

    def right_ones(method: Any, by: str | None = None) -> int:
        result = replay(source, method=method, by=by).after
        assert isinstance(result, Accuracy)
        return result.correct

    assert right_ones("majority") == 1
    assert right_ones("first") == 1
    assert right_ones("best", "rm") == 2
    assert right_ones("weighted", "rm") == 2  # 0.9 against 0.3; 0.9 against 0.3; 0.9 against 0.3 each
    assert right_ones("logprob") == 2
    assert right_ones("any") == 3
    assert right_ones("chosen") == 1
    assert replay(source, method="mean").after.mean == pytest.approx((2 / 3 + 1 / 3 + 1 / 3) / 3)


def test_a_new_score_chooses_while_the_stored_verdict_is_the_truth(tmp_path: Path) -> None:
    answers = [[right_answer(p) + " " * 5, wrong_answer(p)] for p in range(2)] + [
        [wrong_answer(2) + "  ", right_answer(2)]
    ]
    source = StoredAttempts.read(str(write_run(tmp_path / "run", answers)))
    result = replay(source, Shortest(), "short", "best")
    stored_verdicts = [g.correct for g in source.attempts.groups]
    assert result.truth == "stored verdicts"
    assert result.after.mean == pytest.approx(np.mean([c[1] for c in stored_verdicts if c[1] is not None]))
    assert any("bound" in note for note in result.notes)


def test_scorer_that_decides_nothing_is_refused(tmp_path: Path) -> None:
    source = StoredAttempts.read(str(write_run(tmp_path / "run", [[right_answer(0)]])))
    with pytest.raises(UsageError, match="no stored attempt could be judged by this scorer: no idea"):
        replay(source, Nobody(), "nobody")


# Groups


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=7), st.data())
def test_equal_groups_are_counted_over_all_subsets(rewards: list[float], draw: st.DataObject) -> None:
    size = draw.draw(st.integers(2, len(rewards)))
    subsets = list(itertools.combinations(rewards, size))
    dead, failed, solved = equal_reward_share(rewards, size)
    assert dead == pytest.approx(np.mean([len(set(s)) == 1 for s in subsets]))
    assert failed == pytest.approx(np.mean([set(s) == {0.0} for s in subsets]))
    assert solved == pytest.approx(np.mean([set(s) == {1.0} for s in subsets]))


def test_groups_of_rewards_that_differ_by_rounding_are_equal() -> None:
    assert equal_reward_share([0.1 + 0.2, 0.3, 0.3], 2) == (1.0, 0.0, 0.0)
    assert equal_reward_share([0.7 + 0.2 + 0.1, 1.0], 2) == (1.0, 0.0, 1.0)


def test_advantages_are_those_of_the_paper() -> None:
    """Three right of eight: 1.291 and -0.775 (definitions of GRPO with the population's deviation)."""
    rewards = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    result = group_statistics([rewards], 8)
    assert result.mean_advantage == pytest.approx((3 * 1.2910 + 5 * 0.7746) / 8, abs=1e-4)
    assert result.dead_share == 0.0
    assert group_statistics([rewards], 8, "dr-grpo").mean_advantage == pytest.approx((3 * 0.625 + 5 * 0.375) / 8)
    assert group_statistics([rewards], 2).dead_share == pytest.approx((3 + 10) / 28)


def test_an_undecided_reward_leaves_its_group() -> None:
    result = group_statistics([[1.0, None, 0.0], [1.0, None, None]], 2)
    assert (result.problems, result.dead_share) == (1, 0.0)
    assert group_statistics([[None, None]], 2).problems == 0


def test_a_reward_that_is_always_equal_kills_every_group(tmp_path: Path) -> None:
    class Flat:
        name = "flat"

        async def __call__(self, trace: Trace, steps: Any) -> list[Score]:
            return [Score(1.0)] * len(steps)

    source = StoredAttempts.read(
        str(write_run(tmp_path / "run", [[right_answer(p), wrong_answer(p)] for p in range(3)]))
    )
    ((old, new),) = replay(source, Flat(), "flat").groups
    assert old.dead_share == 0.0
    assert new is not None and (new.dead_share, new.solved_share, new.mean_advantage) == (1.0, 1.0, 0.0)
    assert replay(source, Flat(), "flat").agreement is None


def test_a_group_larger_than_stored_is_refused(tmp_path: Path) -> None:
    source = StoredAttempts.read(str(write_run(tmp_path / "run", [[right_answer(0), wrong_answer(0)]])))
    with pytest.raises(UsageError, match="a group of 8 cannot be drawn: the stored ones have up to 2"):
        replay(source, sizes=(8,))


# Names


def test_scorers_by_name(tmp_path: Path) -> None:
    source = StoredAttempts.read(str(write_run(tmp_path / "run", [[right_answer(0)]])))
    assert isinstance(find_scorer("math", source, no_task)[0], MathAnswer)
    assert find_scorer("addition", source, lambda name: TASK) == (TASK.verifier, True)
    assert find_scorer("format", source, no_task)[1] is False
    both, verifies = find_scorer(f"{TASK.verifier.name}=1,format=0.5", source, no_task)
    assert not verifies and both.name
    assert find_scorer("ponder.verify:FinalNumber", source, no_task)[0] == FinalNumber()
    with pytest.raises(UnknownName, match="Did you mean 'math'"):
        find_scorer("maths", source, no_task)
    with pytest.raises(UsageError, match="neither a scorer"):
        find_scorer("json:dumps", source, no_task)
    with pytest.raises(UsageError, match="name=weight"):
        find_scorer("math=x", source, no_task)


def test_the_command_says_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path / "run", [[right_answer(p), wrong_answer(p)] for p in range(4)])
    assert main(["replay", str(path), "--score", "addition", "--task.digits", "2", "--select", "majority"]) == 0
    out = capsys.readouterr().out
    assert "8 the same" in out and "groups (grpo)" in out and "before" in out
    assert main(["replay", str(path), "--select", "any", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["after"]["mean"] == 1.0
    assert output["groups"][0]["stored"]["dead_share"] == 0.0
    assert main(["replay", str(tmp_path / "none")]) == 2


def test_a_log_of_another_tool_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": i, "question": "?", "gold": "4", "correct": [False, False], "response": ["\\boxed{4}", "5"]}
        for i in range(3)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert main(["replay", str(path), "--score", "math", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["change"]["to_right"] == 3
    assert output["after"]["mean"] == 0.5


def test_several_systems_are_refused(tmp_path: Path) -> None:
    rows = [{"id": 0, "a": {"is_correct": True, "solution": "x"}, "b": {"is_correct": False, "solution": "y"}}]
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(PonderError, match="holds several systems \\(a, b\\)"):
        StoredAttempts.read(str(path))
    assert StoredAttempts.read(f"{path}::a").attempts.counts[1].tolist() == [1]


def test_another_rule_needs_no_texts(tmp_path: Path) -> None:
    rows = [{"id": i, "correct": [0, 1], "rm_scores": [0.1, 0.9]} for i in range(3)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = StoredAttempts.read(str(path))
    assert replay(result, method="best").after.mean == 1.0
    with pytest.raises(UsageError, match="no texts to judge again"):
        replay(result, MathAnswer(), "math")
