"""Evaluation: numbers by hand, and a run that goes on problem by problem."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import QUESTION_TEMPLATE, DigitTask, FakePolicy, FirstCharVerifier, RecordingProgress, trace_group
from ponder.errors import Interrupted, ModelError, RunError, TaskError, UsageError
from ponder.measure import Accuracy, MeanInterval
from ponder.measure.statistics.evaluation_report import EvaluationReport, evaluation_report
from ponder.models.model_paths import pin_checkpoint
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate, evaluate
from ponder.pipelines.solve import solve_all
from ponder.protocols import NoProgress, Progress
from ponder.reason.budget import Budget
from ponder.reason.strategies import Chain, Samples
from ponder.runs import Run, read_traces
from ponder.types import Cost, Sampling, Score, Trace


def ran(job: Evaluate, folder: Path, policy: Any, watch: Progress | None = None) -> Any:
    with Run(folder, job) as run:
        return asyncio.run(evaluate(job, policy, run, watch or NoProgress()))


def test_report_counts_single_answers(tmp_path: Path) -> None:
    """Asked for 0 to 9, always 3 or nothing: one right of ten, and one undecided."""
    script = ["3"] * 5 + [""] + ["3"] * 4
    job = Evaluate(DigitTask(), strategy=Chain(), max_concurrency=4)
    result = ran(job, tmp_path / "run", FakePolicy(script))
    assert (result.num_problems, result.samples_per_problem, result.num_undecided) == (10, 1, 1)
    assert isinstance(result.accuracy, Accuracy)
    assert (result.accuracy.correct, result.accuracy.total, result.accuracy.undecided) == (1, 10, 1)

    def end(right: int, sign: int) -> float:
        z, p, n = 1.959963984540054, right / 10, 10  # Wilson (1927), by hand
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (p + z * z / (2 * n)) / (1 + z * z / n) + sign * half

    assert (result.accuracy.low, result.accuracy.high) == pytest.approx((end(1, -1), end(2, 1))), "1 or 2 are right"
    assert result.majority is None and result.coverage is None
    assert result.cost.generated_tokens == 10 and result.cost.prompt_tokens == 20
    text = "\n".join(result.lines())
    assert "10.0 %" in text and "1 of 10" in text and "undecided       1" in text and "fewer than 500" in text


def judged(scores: Sequence[float | None], texts: Sequence[str], answer: str = "1") -> Trace:
    trace = trace_group([5], [[1]] * len(scores), scores)
    for step, text in zip(trace.steps[1:], texts, strict=True):
        step.text = text
    trace.cost = Cost(prompt_tokens=2, generated_tokens=3, flops=1e12, seconds=1.0)
    return trace


def test_report_of_several_samples() -> None:
    traces = [
        judged([1.0, 1.0, 0.0], ["1", "1", "2"]),  # the vote is right
        judged([0.0, 1.0, 0.0], ["2", "1", "2"]),  # covered, but voted down
        judged([0.0, None, 0.0], ["2", "", "3"]),  # a tie of wrong answers
        judged([None, None, None], ["", "", ""]),  # nothing known
    ]
    result = evaluation_report(traces, "wanted", FirstCharVerifier().extract_answer)
    assert (result.num_problems, result.samples_per_problem, result.num_undecided) == (4, 3, 4)
    assert isinstance(result.accuracy, MeanInterval)
    assert result.accuracy.mean == pytest.approx(np.mean([2 / 3, 1 / 3, 0.0, 0.0])) and result.accuracy.undecided == 1
    assert result.accuracy.total == 4
    assert result.coverage is not None and (result.coverage.correct, result.coverage.total) == (2, 4)
    assert result.coverage.undecided == 2, "the third problem's undecided sample may be right"
    assert result.majority is not None and result.majority.correct == 1
    assert result.cost == Cost(prompt_tokens=8, generated_tokens=12, flops=4e12, seconds=4.0)
    assert evaluation_report(traces, "wanted", None).majority is None


def test_evaluation_resumes_by_problem(tmp_path: Path) -> None:
    job = Evaluate(DigitTask(), strategy=Samples(2, Sampling(max_tokens=1)), max_concurrency=3)
    whole = ran(job, tmp_path / "whole", FakePolicy(["3"] * 20))
    policy = FakePolicy(["3"] * 40)
    with pytest.raises(Interrupted):
        ran(job, tmp_path / "run", policy, RecordingProgress("step", 2))
    assert len(list(read_traces(tmp_path / "run"))) == 2
    result = ran(job, tmp_path / "run", policy)
    assert 10 <= len(policy.calls) <= 10 + job.max_concurrency, "only what was in flight was asked twice"
    assert [t.problem.id for _, t in read_traces(tmp_path / "run")] == [p.id for p in DigitTask().test]
    assert result == whole
    again = FakePolicy()
    assert ran(job, tmp_path / "run", again) == whole and not again.calls


def test_unfinished_trace_is_solved_again(tmp_path: Path) -> None:
    job = Evaluate(DigitTask(), max_concurrency=5)
    whole = ran(job, tmp_path / "run", FakePolicy(["3"] * 10))
    path = tmp_path / "run" / "traces.bin"
    path.write_bytes(path.read_bytes()[:-30])
    policy = FakePolicy(["3"])
    result = ran(job, tmp_path / "run", policy)
    assert len(policy.calls) == 1 and result.accuracy == whole.accuracy
    assert len(list(read_traces(tmp_path / "run"))) == 10


@dataclass(frozen=True)
class Shy(FirstCharVerifier):
    """Cannot judge the first problems."""

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        if str(trace.problem.answer) < "4":
            return [Score(None, "timed out") for _ in steps]
        return await super().__call__(trace, steps)


@dataclass(frozen=True)
class ShyDigits(DigitTask):
    @property
    def verifier(self) -> FirstCharVerifier:
        return Shy()


@pytest.mark.parametrize("strategy", [Chain(), Samples(2)])
def test_undecided_first_batch_does_not_end_the_run(strategy: Any, tmp_path: Path) -> None:
    watcher = RecordingProgress()
    result = ran(
        Evaluate(ShyDigits(), strategy=strategy, max_concurrency=2), tmp_path / "run", FakePolicy(["5"] * 20), watcher
    )
    n = 1 if isinstance(strategy, Chain) else 2
    assert result.accuracy.mean == pytest.approx(1 / 10) and result.num_undecided == 4 * n
    output = [s[3]["accuracy"] for s in watcher.calls if s[0] == "step"]
    assert math.isnan(output[0]) and output[-1] == pytest.approx(result.accuracy.mean)
    assert result.reasons == {"timed out": 4 * n} and "4 of 10 problems have no verdict" in result.unmeasured


def test_limit_and_empty_task(tmp_path: Path) -> None:
    result = ran(Evaluate(DigitTask(), limit=3), tmp_path / "few", FakePolicy(["0"] * 3))
    assert result.num_problems == 3 and result.accuracy.correct == 1
    with pytest.raises(TaskError, match="no held-out problems"):
        ran(Evaluate(DigitTask(size=0)), tmp_path / "none", FakePolicy())
    for bad in ({"limit": 0}, {"max_concurrency": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            Evaluate(DigitTask(), **bad)


def test_run_of_another_evaluation_is_refused(tmp_path: Path) -> None:
    ran(Evaluate(DigitTask(), limit=3), tmp_path / "run", FakePolicy())
    with pytest.raises(RunError, match=r"limit: 3 -> 4"):
        ran(Evaluate(DigitTask(), limit=4), tmp_path / "run", FakePolicy())


def test_evaluate_with_a_real_policy_resumes_to_the_same_answers(tmp_path: Path) -> None:
    """Through the real policy, stopped while sampling and taken up again: the same answers."""
    from ponder.pipelines import evaluate as module

    job = Evaluate(
        DigitTask(),
        template=QUESTION_TEMPLATE,
        strategy=Samples(3, Sampling(max_tokens=2)),
        max_concurrency=4,
        device="cpu",
        dtype="float32",
    )
    fresh = ScratchModel("0123456789=", width=16, layers=1, heads=2, context=16)
    loader = next(name for name in ("load_inference_policy", "load_policy") if hasattr(module, name))
    real = getattr(module, loader)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, loader, lambda model, **more: real(fresh, **more))
        whole = job(tmp_path / "whole")
        with pytest.raises(Interrupted, match="stopped after 4 of 10 problems; the same command goes on"):
            job(tmp_path / "run", RecordingProgress("tokens", 4))
        result = job(tmp_path / "run")
    assert replace(result, cost=Cost()) == replace(whole, cost=Cost())
    texts = [[[s.text for s in t.steps] for _, t in read_traces(tmp_path / f)] for f in ("run", "whole")]
    assert texts[0] == texts[1]


def test_a_stop_that_ends_several_problems_at_once_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when an engine fails all calls in flight: asyncio must not log the error of each problem after the first."""

    class Stopped(FakePolicy):
        async def generate(self, prefix: Any, sampling: Any, n: int = 1) -> Any:
            raise Interrupted("all at once")

    with pytest.raises(Interrupted, match="stopped after 0 of 10 problems"):
        ran(Evaluate(DigitTask()), tmp_path / "run", Stopped())
    gc.collect()  # asyncio logs an error that nobody asked for when its task is freed
    assert "all at once" not in caplog.text


def test_solve_all_stops_at_the_first_failure() -> None:
    class Failing(FakePolicy):
        async def generate(self, prefix: Any, sampling: Any, n: int = 1) -> Any:
            if prefix[0] == ord("3"):
                raise ValueError("broken")
            return await super().generate(prefix, sampling, n)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(solve_all(DigitTask().test, Chain(), Failing()))
    assert isinstance(caught.value.exceptions[0], ValueError)


def test_evaluation_pins_the_checkpoint(tmp_path: Path) -> None:
    """Trained on in between, the same command must not pass off the old model's traces as the new one's."""
    trained = tmp_path / "trained"
    (trained / "checkpoints" / "step-000001").mkdir(parents=True)
    (trained / "job.json").write_text("{}")
    assert pin_checkpoint(str(trained)) == str(trained / "checkpoints" / "step-000001" / "model")
    (trained / "checkpoints" / "step-000002").mkdir()
    assert pin_checkpoint(str(trained)) == str(trained / "checkpoints" / "step-000002" / "model")
    assert pin_checkpoint("smollm2") == "smollm2"


def test_report_lines_are_aligned() -> None:
    right = Accuracy(8, 10)
    result = EvaluationReport(10, 16, right, right, right, num_undecided=1, cost=Cost(generated_tokens=5))
    assert all(line[15] == " " and line[16] != " " for line in result.lines())
    assert result.lines()[1].startswith("majority of 16  80.0 %")


class Slow(FakePolicy):
    """The first problem takes for ever; the others do not wait for it."""

    async def generate(self, prefix: Any, sampling: Any, n: int = 1) -> Any:
        if prefix[0] == ord("0"):
            while len(self.calls) < 9:
                await asyncio.sleep(0)
        return await super().generate(prefix, sampling, n)


def test_slow_problem_does_not_block_others(tmp_path: Path) -> None:
    result = ran(Evaluate(DigitTask(), max_concurrency=2), tmp_path / "run", Slow(["3"] * 10))
    order = [t.problem.id for _, t in read_traces(tmp_path / "run")]
    assert result.num_problems == 10 and order.index("digits/test/0") >= 8


class Moody(FakePolicy):
    bad = "12"

    async def generate(self, prefix: Any, sampling: Any, n: int = 1) -> Any:
        if chr(prefix[0]) in self.bad:
            raise UsageError("not today")
        return await super().generate(prefix, sampling, n)


def test_failed_problem_is_undecided_and_retried(tmp_path: Path) -> None:
    result = ran(Evaluate(DigitTask()), tmp_path / "run", Moody(["3"] * 10))
    assert (result.num_failed, result.accuracy.total, result.accuracy.undecided) == (2, 10, 2)
    assert result.accuracy.mean == 1 / 10 and result.reasons == {"not today": 2} and not result.unmeasured
    assert "2 problems: an error ended the thinking" in "\n".join(result.lines())
    again = FakePolicy(["1", "2"])
    assert ran(Evaluate(DigitTask()), tmp_path / "run", again).accuracy.correct == 3 and len(again.calls) == 2
    still = Moody(["3"])  # what is left goes on failing, and the others still count
    assert ran(Evaluate(DigitTask()), tmp_path / "again", Moody(["3"] * 10)).num_failed == 2
    assert ran(Evaluate(DigitTask()), tmp_path / "again", still).accuracy.total == 10
    everything = Moody()
    everything.bad = "0123456789"
    with pytest.raises(ModelError, match="every attempt to solve fails, the last one because: not today"):
        ran(Evaluate(DigitTask()), tmp_path / "other", everything)


def test_chosen_answer_counts_and_no_answer_is_wrong(tmp_path: Path) -> None:
    traces = [judged([1.0, 0.0], ["1", "2"]), judged([1.0, 0.0], ["1", "2"]), judged([1.0, 1.0], ["1", "1"])]
    traces[0].chosen, traces[1].chosen = 1, 2
    traces[2].budget_exhausted = True
    result = evaluation_report(traces, "wanted", None)
    assert isinstance(result.accuracy, Accuracy) and (result.accuracy.correct, result.accuracy.total) == (1, 3)
    assert result.coverage is not None and result.coverage.mean == 1.0 and result.num_out_of_budget == 1
    traces[2].failed = "an error"
    failed = evaluation_report(traces, "wanted", None).accuracy
    assert (failed.correct, failed.total, failed.undecided) == (1, 3, 1)


def test_no_answer_is_wrong_and_a_failure_is_undecided() -> None:
    """As for a single answer, and as `ponder compare` has it."""
    silent, failed = judged([], []), judged([], [])
    failed.failed = "the prompt has 9000 tokens"
    result = evaluation_report(
        [judged([1.0, 1.0], ["1", "1"]), silent, failed], "wanted", FirstCharVerifier().extract_answer
    )
    assert (result.accuracy.mean, result.accuracy.total, result.accuracy.undecided) == (1 / 3, 3, 1)
    for rate in (result.majority, result.coverage):
        assert rate is not None and (rate.total, rate.undecided, rate.mean) == (3, 1, 1 / 3)
    assert result.reasons == {"the prompt has N tokens": 1} and "1 of 3 problems have no verdict" in result.unmeasured


def test_report_says_that_an_oracle_guided(tmp_path: Path) -> None:
    job = Evaluate(DigitTask(), guide="oracle", limit=2)
    with Run(tmp_path / "run", job) as run:
        result = asyncio.run(evaluate(job, FakePolicy(["0", "1"]), run, NoProgress(), FirstCharVerifier()))
    assert result.oracle and any(line.startswith("oracle") for line in result.lines())
    assert not ran(replace(job, guide=""), tmp_path / "plain", FakePolicy(["0", "1"])).oracle


def test_shared_budget_covers_all_problems(tmp_path: Path) -> None:
    """One token an answer: four are paid for, whichever they are, and a run that goes on has spent them."""
    job = Evaluate(DigitTask(), strategy=Chain(Sampling(max_tokens=1)), budget=Budget(4), max_concurrency=1)
    assert ran(job, tmp_path / "each", FakePolicy(["3"] * 10)).cost.generated_tokens == 10
    policy = FakePolicy(["3"] * 10)
    result = ran(replace(job, shared_budget=True), tmp_path / "all", policy)
    assert result.cost.generated_tokens == policy.written == 4 and result.num_out_of_budget == 6
    assert (result.accuracy.correct, result.accuracy.total) == (1, 10), "no answer for want of budget is wrong"


def test_report_measures_the_guide() -> None:
    """By hand: of the four pairs of a right and a wrong answer the guide orders three, and ties in one."""
    traces = [judged([1.0, 0.0], ["1", "2"]), judged([1.0, 0.0], ["1", "2"]), judged([None, 1.0], ["", "1"])]
    marks = [[0.9, 0.1], [0.5, 0.5], [0.7, None]]
    for trace, row in zip(traces, marks, strict=True):
        for step, mark in zip(trace.steps[1:], row, strict=True):
            step.scores["orm"] = Score(mark)
    result = evaluation_report(traces, "wanted", None, "orm").guide_auroc
    assert result is not None and (result.area, result.right, result.wrong) == (3.5 / 4, 2, 2)
    assert 0 <= result.low <= result.area <= result.high <= 1
    assert any(
        line.startswith("guide           a right answer")
        for line in evaluation_report(traces, "wanted", None, "orm").lines()
    )
    for guide in ("", "wanted", "unknown"):
        assert evaluation_report(traces, "wanted", None, guide).guide_auroc is None
    assert evaluation_report(traces[:1], "wanted", None, "orm").guide_auroc is None, "one problem has no interval"
    assert evaluation_report([judged([0.5, 1.0], ["1", "2"])] * 2, "wanted", None, "wanted").guide_auroc is None


@pytest.mark.nightly
def test_replicas_evaluate_as_one_process(tmp_path: Path) -> None:
    model = ScratchModel("0123456789+-=", width=32, layers=1, heads=2, context=32)
    job = Evaluate(DigitTask(), model, QUESTION_TEMPLATE, Samples(3, Sampling(max_tokens=3)), device="cpu")  # type: ignore[arg-type]
    tokens = []
    for replicas in (0, 1):
        folder = tmp_path / str(replicas)
        replace(job, replicas=replicas)(folder)
        traces = sorted(read_traces(folder), key=lambda row: row[1].problem.id)
        tokens.append([[s.token_ids.tolist() for s in trace.steps] for _, trace in traces])
    assert tokens[0] == tokens[1]


def test_replicas_are_for_own_networks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out --replicas"):
        ran(Evaluate(DigitTask(), strategy=Chain(), replicas=1), tmp_path / "run", FakePolicy())
    with pytest.raises(UsageError, match="replicas is -1"):
        Evaluate(DigitTask(), replicas=-1)
