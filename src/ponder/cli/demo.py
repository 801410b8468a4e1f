"""`ponder demo`: a small model learns to add on this machine; measured before and after on problems it never saw."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.cli import export, recipe_files, solve
from ponder.cli.commands import DEMO_DESCRIPTION, DEMO_RECIPE
from ponder.cli.graceful_stop import GracefulStop
from ponder.cli.job_commands import job_from_recipe
from ponder.cli.launch import job_progress
from ponder.cli.progress import one_line, print_json
from ponder.errors import UsageError
from ponder.memory_check import peak_memory
from ponder.pipelines.job.base_job import solve_hint

if TYPE_CHECKING:
    from ponder.measure import Accuracy, PairedDifference
    from ponder.measure.statistics.evaluation_report import EvaluationReport
    from ponder.pipelines.ask import Answer
    from ponder.pipelines.rl import RL

ASKED, SUGGESTED = (27, 58), (31, 46)  # sums


def demo(argv: Sequence[str]) -> int:
    """ponder demo [--run DIR] [--json] [the recipe's flags]"""
    from ponder.pipelines.rl import RL

    recipe = recipe_files.load_recipe(recipe_files.find_recipe(DEMO_RECIPE))
    job, _, folder, no_resume, json, log_to, *_ = job_from_recipe(recipe, argv, "ponder demo", DEMO_DESCRIPTION)
    if not isinstance(job, RL) or not isinstance(job.model, str):
        raise UsageError(f"the recipe {DEMO_RECIPE!r} must return an RL job on a named model")
    folder = folder or Path("runs") / "demo"
    if no_resume and folder.exists():
        raise UsageError(f"{folder} exists already, which --no-resume leaves alone: give another --run, or remove it")
    with GracefulStop() as stop:
        run_demo(job, folder, stop, json, log_to)
    return 0


@dataclass
class PhaseTimer:
    """Seconds of each part, in order."""

    began: float
    parts: dict[str, float]

    def add(self, name: str, seconds: float) -> None:
        self.parts[name] = self.parts.get(name, 0.0) + seconds


def run_demo(job: RL, folder: Path, stop: GracefulStop, json: bool = False, log_to: str = "") -> None:
    """Before, training, after, and what changed. Every part is a run directory, so each resumes."""
    from ponder.measure import Accuracy
    from ponder.pipelines.job.finished_training import finished_model
    from ponder.runs.cleanup import remove_failed_start
    from ponder.runs.metric_logging import log_metrics_to
    from ponder.runs.prior_results import PriorResults

    logging = log_metrics_to(*filter(None, log_to.split(",")))
    stored = PriorResults.read(folder)
    clock = PhaseTimer(time.perf_counter(), {"load": 0.0})
    say = (lambda *lines: None) if json else _print_lines
    say(f"1/4  {job.model} on {_held_out_count(job)} held-out problems of {job.task.name}, before training")
    before = _evaluate(job, str(job.model), job.template, folder / "before", stop, json, clock)
    say(f"     {before.accuracy}", "", f"2/4  training {job.steps} steps, each {job.problems_per_step} problems")
    with job_progress(job, folder / "train", stop, json, "train" if json else "") as seen:
        began = time.perf_counter()
        with logging, remove_failed_start(folder / "train"):
            if finished_model(job, folder / "train") is None:
                job(folder / "train", seen)
        clock.add("train", time.perf_counter() - began)
    stop.check()
    say("", "3/4  the same problems, after training")
    after = _evaluate(job, str(folder / "train"), None, folder / "after", stop, json, clock)
    say(f"     {after.accuracy}", "")
    assert isinstance(before.accuracy, Accuracy) and isinstance(after.accuracy, Accuracy)
    result = DemoResult(job, folder, before.accuracy, after.accuracy)
    result.save_curve()
    stop.check()
    say("4/4  what it learned", "", *stored.lines(), *result.lines(), "")

    _export_model(folder, job)
    answer = _ask_trained_model(folder / "model", job, stop)
    whole = time.perf_counter() - clock.began
    shown = one_line(answer.answer or "(nothing)", 80)
    say(f"asked     {_question(job, *ASKED)}", f"answered  {shown} (vote: {answer.votes} of {answer.n})", "")
    say(*_timing_lines(clock, whole), "", f"model     {folder / 'model'}")
    say(f"try it    {solve_hint(_question(job, *SUGGESTED), folder / 'model', job)}")
    if json:
        spent = {**clock.parts, "whole": whole}
        measured = {"seconds": spent, "peak_memory_bytes": peak_memory()}
        shown_json = {**result.to_json(), "answer": solve.answer_json(answer), **measured, **stored.to_json()}
        print_json({"event": "done", "run": str(folder), **shown_json})


def _export_model(folder: Path, job: RL) -> None:
    """The model as a folder, unless it was written after the last checkpoint. It ends where it did in training."""
    from ponder.models.model_paths import find_model

    trained, config = find_model(str(folder / "train")) / "config.json", folder / "model" / "config.json"
    if config.is_file() and config.stat().st_mtime_ns > trained.stat().st_mtime_ns:
        return
    if config.is_file():
        shutil.rmtree(config.parent)
    export.write_model(str(folder / "train"), config.parent, end_texts=job.rollout_sampling.stop)


def _evaluate(
    job: RL, model: str, template: str | None, folder: Path, stop: GracefulStop, json: bool, clock: PhaseTimer
) -> EvaluationReport:
    from ponder.pipelines.evaluate import Evaluate
    from ponder.reason.strategies import Chain
    from ponder.runs.cleanup import remove_failed_start
    from ponder.types import Sampling

    greedy = Chain(Sampling(temperature=0.0, max_tokens=32, stop=job.rollout_sampling.stop))
    evaluation = Evaluate(
        job.task, model, template, greedy, max_concurrency=512, seed=job.seed, device=job.device, dtype=job.dtype
    )
    title = folder.name if json else f"{folder.name} · {model}"
    began = time.perf_counter()
    with job_progress(evaluation, folder, stop, json, title) as seen, remove_failed_start(folder):
        report = evaluation(folder, seen)
    loading = seen.phase_seconds.get("load", 0.0)
    if not clock.parts["load"]:
        clock.add("load", loading)
        began += loading
    clock.add(folder.name, time.perf_counter() - began)
    return report


@dataclass(frozen=True)
class DemoResult:
    """What changed, read from the run directories."""

    job: RL
    folder: Path
    before: Accuracy
    after: Accuracy

    def difference(self) -> PairedDifference:
        from ponder.measure import paired_difference

        old, new = self._scored_answers("before"), self._scored_answers("after")
        return paired_difference([new[i][0] for i in old], [old[i][0] for i in old])

    def _scored_answers(self, part: str) -> dict[str, tuple[float | None, str, str]]:
        """By problem: score, question, completion."""
        from ponder.runs import read_traces

        name = self.job.task.verifier.name
        result = {}
        for _, trace in read_traces(self.folder / part):
            (leaf,) = trace.answers()
            result[trace.problem.id] = trace.score(leaf, name), trace.problem.question, trace.text(leaf)
        return result

    def rewards(self) -> list[float]:
        from ponder.runs import read_metrics

        return [row["reward"] for row in read_metrics(self.folder / "train")]

    def save_curve(self) -> None:
        from ponder.measure import plot_reward_curve

        rewards = self.rewards()
        plot_reward_curve(
            self.folder / "curve.png", range(1, len(rewards) + 1), rewards,
            before=self.before, after=self.after, title=f"{self.job.model} learns {self.job.task.name}",
        )  # fmt: skip

    def example(self) -> tuple[str, str, str]:
        """A question with its completions before and after: the first that was learned, else the first."""
        old, new = self._scored_answers("before"), self._scored_answers("after")
        learned = [i for i in old if old[i][0] == 0 and new[i][0] == 1]
        chosen = next(iter(learned or old))
        return old[chosen][1], old[chosen][2], new[chosen][2]

    def lines(self) -> list[str]:
        from ponder.measure.figures.sparkline import sparkline

        rewards = self.rewards()
        question, old, new = self.example()
        return [
            f"before    {self.before}",
            f"after     {self.after}",
            f"change    {self.difference()}",
            f"reward    {rewards[0]:.2f} {sparkline(rewards, 50, 0, 1)} {rewards[-1]:.2f}",
            f"curve     {self.folder / 'curve.png'}",
            "",
            f"asked     {question}",
            f"before    {one_line(old, 100) or '(nothing)'}",
            f"after     {one_line(new, 100) or '(nothing)'}",
        ]

    def to_json(self) -> dict[str, Any]:
        question, old, new = self.example()
        return {
            "before": {**asdict(self.before), "mean": self.before.mean},
            "after": {**asdict(self.after), "mean": self.after.mean},
            "difference": asdict(self.difference()),
            "rewards": self.rewards(),
            "example": {"question": question, "before": old, "after": new},
            "curve": str(self.folder / "curve.png"),
            "model": str(self.folder / "model"),
        }


def _question(job: RL, a: int, b: int) -> str:
    """The sum as the task asks it: a model this small seldom answers another prompt than that of its training."""
    prompt: str = getattr(job.task, "prompt", "What is {a} + {b}?")
    return prompt.format(a=a, b=b)


def _ask_trained_model(model: Path, job: RL, stop: GracefulStop) -> Answer:
    from ponder.models.load import load_policy
    from ponder.pipelines.ask import decide
    from ponder.reason.strategies import MajorityVote

    policy = load_policy(str(model), device=job.device, dtype=job.dtype)
    policy.on_tokens = lambda tokens: stop.check()
    policy.reseed(job.seed)
    question_job = solve.QuestionJob(_question(job, *ASKED), str(model), None, "majority-vote", "", job.seed)
    strategy = MajorityVote(8, sampling=replace(job.rollout_sampling, max_tokens=32))
    return decide(solve.solve_question(question_job, strategy, policy, None, None, None))


def _timing_lines(clock: PhaseTimer, whole: float) -> list[str]:
    rows = [f"{name:<9} {seconds:7.1f} s" for name, seconds in [*clock.parts.items(), ("whole", whole)]]
    memory = [f"memory    {peak / 2**30:.2f} GiB at most"] if (peak := peak_memory()) else []
    return ["time", *(f"  {row}" for row in rows), *memory]


def _held_out_count(job: RL) -> int:
    return len(job.task.test)


def _print_lines(*lines: str) -> None:
    print("\n".join(lines), flush=True)
