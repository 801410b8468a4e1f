"""Commands about reward models: `reward` trains one, `label` labels steps for it, `processbench` measures it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from ponder.cli import shared_flags as opt
from ponder.cli.job_command import Fields, job_command
from ponder.cli.progress import print_json
from ponder.cli.remote_model import resolve_remote_model
from ponder.errors import UsageError
from ponder.settings import When
from ponder.terminal import raw_stream

if TYPE_CHECKING:
    from ponder.pipelines.label import Label
    from ponder.pipelines.reward_model import TrainRewardModel


@job_command(
    "ponder.pipelines.reward_model:TrainRewardModel",
    place="data",
    required=("algorithm",),
    aliases={
        "lr": "optimizer.lr", "warmup_steps": "optimizer.warmup_steps", "cosine": "optimizer.cosine",
        "optimizer_states": "optimizer.states",
    },
    logs_metrics=True,
)  # fmt: skip
def reward(fields: Fields, /) -> TrainRewardModel:
    """Train a reward model on preferences, outcomes or steps, or a value model."""
    from ponder.pipelines.reward_model import TrainRewardModel

    return TrainRewardModel(**fields | {"separator": _unescape(fields.get("separator"))})


@job_command("ponder.pipelines.label:Label", place="task")
def label(
    fields: Fields,
    /,
    *,
    data: Annotated[list[str], "label the answers of these runs, in place of new ones; may be given again"] = [],  # noqa: B006
    labeller: Annotated[
        Literal["shepherd", "first-error"], "every step, or a binary search for the first wrong one"
    ] = "shepherd",
    estimation: Annotated[
        Literal["soft", "hard"],
        "shepherd: the share of right completions, or whether any is",
        When("labeller", "shepherd"),
    ] = "soft",
    max_interval_width: Annotated[
        float,
        "shepherd, soft: draw until the 95 % interval is no wider; 0: always all",
        When("labeller", "shepherd"),
        When("estimation", "soft"),
    ] = 0.0,
    max_completions: Annotated[int, "drawn from each prefix, at most"] = 8,
    answers_per_problem: Annotated[int, "new answers per problem", When("data", [])] = 4,
    separator: Annotated[str, "where a step ends; none: steps as they are"] = "\\n",
    temperature: float = 0.7,
    max_tokens: opt.MaxTokens = 256,
) -> Label:
    """Label the steps of answers by completing them: the run directory is data for `ponder reward --algorithm prm`."""
    from ponder.pipelines.label import Label
    from ponder.pipelines.rewards.step_labelling import FirstErrorSearch, MathShepherd, StepLabeller
    from ponder.reason.strategies import Samples
    from ponder.types import Sampling

    place = {name: fields[name] for name in ("device", "dtype") if name in fields}
    resolve_remote_model(fields.get("model", "smollm2"), **place)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    first = min(2, max_completions)
    step_labeller: StepLabeller = FirstErrorSearch(
        max_completions=max_completions, first_round=first, sampling=sampling
    )
    if labeller == "shepherd":
        step_labeller = MathShepherd(
            max_completions=max_completions, first_round=first, sampling=sampling, kind=estimation,
            max_interval_width=max_interval_width,
        )  # fmt: skip
    return Label(
        data=tuple(data), strategy=Samples(answers_per_problem, sampling), labeller=step_labeller,
        separator=None if separator == "none" else _unescape(separator), **fields,
    )  # fmt: skip


def processbench(
    model: Annotated[str, "a process reward model: a run directory or a folder"],
    /,
    *,
    subset: Annotated[str, "gsm8k, math, olympiadbench, omnimath, or a JSON file"] = "gsm8k",
    threshold: Annotated[float, "below it a step is wrong"] = 0.5,
    limit: Annotated[int | None, "the first so many solutions"] = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: Annotated[bool, "one JSON object"] = False,
) -> int:
    """Does a process reward model find the first wrong step? F1 over solutions with an error and without."""
    from dataclasses import asdict

    from ponder.models.load_scorer import load_scorer
    from ponder.models.reward_models import PRM, ImplicitRewardModel
    from ponder.pipelines.processbench import evenly_spaced, process_bench
    from ponder.tasks.step_labels import processbench_labels as bench

    if limit is not None and limit < 1:
        raise UsageError(f"--limit is {limit}; take at least one solution")
    reward_model = load_scorer(model, device, dtype)
    if not isinstance(reward_model, PRM | ImplicitRewardModel):
        raise UsageError(
            f"{model} is trained for {reward_model.head_kind!r}: ProcessBench is for process reward models"
        )
    traces = evenly_spaced(bench.read_processbench(subset), limit)

    def report_done(done: int) -> None:
        if sys.stderr.isatty() and not json:
            end = "\n" if done == len(traces) else ""
            print(f"\r{done} of {len(traces)} solutions", end=end, file=raw_stream(sys.stderr), flush=True)

    result = process_bench(reward_model, traces, threshold, report_done)
    if json:
        print_json(
            {"model": model, "part": subset, **asdict(result), "f1": result.result.f1, "best_f1": result.best_result.f1}
        )
        return 0
    few = " (fewer than 500: not precise)" if result.result.solutions < 500 else ""
    print(f"part        {subset}, {result.result.solutions} solutions{few}")
    if result.num_unread:
        print(
            f"undecided   {result.num_unread} solutions are longer than the model's context: nothing was found in them"
        )
    print("threshold   F1      first error found   no error seen")
    for at, errors, note in (
        (result.threshold, result.result, ""),
        (result.best_threshold, result.best_result, "  (the best, set on these very solutions)"),
    ):
        print(f"{at:<9g}   {errors.f1:5.1%}   {errors.error_accuracy:17.1%}   {errors.correct_accuracy:13.1%}{note}")
    return 0


def _unescape(separator: str | None) -> str | None:
    """A line break can be typed as \\n."""
    return None if separator is None else separator.replace("\\n", "\n").replace("\\t", "\t")
