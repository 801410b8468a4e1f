"""Chosen wrong answers: edit distances against the recursion, near misses by hand, and what a judge learns from."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, trace_group
from ponder.errors import TaskError, UsageError
from ponder.filter_report import FilterReport
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.rewards.negatives import choose_negatives, edit_distances, keep_answers, nearest_distances
from ponder.runs import read_metrics
from ponder.runs.data_files import read_filter_report
from ponder.train.reward_objectives import OutcomeReward, StateValue
from ponder.types import Problem, Score, Step, Trace, ids, user_messages


def plain_distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    @lru_cache(None)
    def of(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(of(i - 1, j) + 1, of(i, j - 1) + 1, of(i - 1, j - 1) + (one[i - 1] != other[j - 1]))

    return of(len(one), len(other))


def test_edit_distances_are_those_of_the_recursion() -> None:
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(0, 4, size).tolist()) for size in (0, 1, 5, 9, 9, 12)]
    for other in [(), *(tuple(rng.integers(0, 4, size).tolist()) for size in (1, 6, 14))]:
        assert edit_distances([ids(t) for t in texts], ids(other)).tolist() == [plain_distance(t, other) for t in texts]
    assert nearest_distances([ids([1, 2, 3])], [ids([7, 7, 7]), ids([1, 2])]) == [1.0]


RIGHT, NEAR, OTHER, FAR = [3, 4, 5, 6, 2], [3, 4, 5, 7, 2], [3, 4, 8, 7, 2], [9, 9, 9, 9, 9, 9, 2]


def group(answers: list[list[int]], scores: list[float | None], question: str = "?") -> Trace:
    trace = trace_group([5], answers, scores, question)
    trace.problem = Problem(question, user_messages(question))
    return trace


def kept(traces: list[Trace]) -> list[list[int]]:
    return [t.steps[i].token_ids.tolist() for t in traces for i in t.answers()]


def test_near_misses_are_the_wrong_answers_nearest_to_a_right_one() -> None:
    trace = group([FAR, OTHER, RIGHT, NEAR, NEAR, RIGHT], [0.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    report = FilterReport()
    assert kept(choose_negatives([trace], "wanted", "near", 0, report)) == [OTHER, RIGHT, NEAR, RIGHT], "one of equals"
    assert report.stages == {"problems with right and wrong answers": 1, "right answers": 2, "near wrong answers": 2}
    assert report.dropped["near wrong answers"] == {"not chosen": 2}
    seen = {str(kept(choose_negatives([trace], "wanted", "random", s, FilterReport()))) for s in range(20)}
    assert len(seen) > 1 and any(str(FAR) in text for text in seen)
    assert choose_negatives([trace], "wanted", "all", 0, FilterReport()) == [trace]


def test_answers_of_a_problem_are_compared_over_its_traces_and_others_are_left_out() -> None:
    traces = [group([RIGHT], [1.0]), group([FAR], [0.0]), group([NEAR], [0.0]), group([RIGHT, RIGHT], [1.0, 1.0], "x")]
    report = FilterReport()
    assert kept(choose_negatives(traces, "wanted", "near", 0, report)) == [RIGHT, NEAR]
    assert report.dropped["problems with right and wrong answers"] == {"all alike": 1}


def test_a_tree_keeps_the_steps_that_lead_to_its_answers() -> None:
    trace = group([FAR], [0.0])
    shared = trace.add(Step(0, "", ids([3, 4]), np.full(2, -1.0, np.float32), "stop"))
    for tokens, score in (([5, 2], 0.0), ([6, 2], 1.0), ([6, 7, 2], 0.0)):
        end = Step(shared, "", ids(tokens), np.full(len(tokens), -1.0, np.float32), "eos")
        end.scores["wanted"] = Score(score)
        trace.add(end)
    out = keep_answers(trace, [4, 5])
    assert [out.token_ids(i).tolist() for i in out.answers()] == [[5, 3, 4, 6, 2], [5, 3, 4, 6, 7, 2]]
    assert len(out.steps) == 4 and [out.score(i, "wanted") for i in out.answers()] == [1.0, 0.0]
    (near,) = choose_negatives([trace], "wanted", "near", 0, FilterReport())
    assert [near.token_ids(i).tolist() for i in near.answers()] == [[5, 3, 4, 5, 2], [5, 3, 4, 6, 2]]


def test_job_learns_from_near_misses_alone(tmp_path: Path) -> None:
    rows = [f'{{"prompt": "{i}?", "completion": "{text}", "label": {str(text == "1+1=2").lower()}}}'
            for i in range(12) for text in ("1+1=2", "1+1=3", "9999999", "5+4=7")]  # fmt: skip
    data = tmp_path / "labels.jsonl"
    data.write_text("\n".join(rows))
    job = TrainRewardModel(
        (str(data),), ScratchModel(ALPHABET, width=16, layers=1, heads=2, context=24), OutcomeReward(),
        QUESTION_TEMPLATE, negatives="near", steps=1, batch_size=24, held_out_tenths=0, device="cpu", dtype="float32",
    )  # fmt: skip
    job(tmp_path / "run")
    assert read_metrics(tmp_path / "run")[-1]["labels"] == 24
    stages = read_filter_report(tmp_path / "run").stages
    assert stages["right answers"] == stages["near wrong answers"] == 12


def test_settings_that_choose_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="negatives"):
        TrainRewardModel(("x",), negatives="hard")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leave out negatives"):
        TrainRewardModel(("x",), algorithm=StateValue(), negatives="near")
    data = tmp_path / "labels.jsonl"
    data.write_text("\n".join(f'{{"prompt": "{i}?", "completion": "{i}", "label": {i % 2}}}' for i in range(8)))
    model = ScratchModel(ALPHABET, width=16, layers=1, heads=2, context=24)
    job = TrainRewardModel((str(data),), model, OutcomeReward(), QUESTION_TEMPLATE, negatives="near",
                           held_out_tenths=0, device="cpu", dtype="float32")  # fmt: skip
    for how in ("near", "random"):
        with pytest.raises(TaskError, match=f"as negatives '{how}' need: give more answers to each problem"):
            replace(job, negatives=how)(tmp_path / how)
