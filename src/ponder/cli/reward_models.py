"""Commands about reward models: `reward` trains one, `label` labels steps for it, `processbench` measures it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from ponder.cli import flags
from ponder.cli import shared_flags as opt
from ponder.cli.launch import JobLaunch
from ponder.cli.progress import print_json
from ponder.cli.remote_model import resolve_remote_model
from ponder.cli.run_names import default_run_folder
from ponder.errors import UsageError
from ponder.settings import When
from ponder.terminal import raw_stream


def reward(
    *data: Annotated[str, "JSONL of labels or traces, or a run directory; several are read one after another"],
    algorithm: Annotated[
        Literal["pairs", "orm", "prm", "value"], "learn from preferences, outcomes, steps, or values of states"
    ],
    model: opt.Model = "smollm2",
    format: Annotated[str | None, "prm800k, shepherd, omega, stepwise, pairs, ranked, outcomes or traces"] = None,
    scorer: Annotated[str | None, "whose scores are the labels of a run's traces"] = None,
    separator: Annotated[
        str | None, "cut what a model wrote into steps here, such as '\\n'", When("algorithm", "prm", "value")
    ] = None,
    skip_bad: Annotated[bool, "go on without rows of a file that cannot be used"] = False,
    held_out_tenths: Annotated[int, "tenths of the questions to measure on, and to fit the temperature"] = 1,
    include_held_out: Annotated[bool, "also an evaluation's problems, which are left out otherwise"] = False,
    steps: int = 100,
    batch_size: Annotated[int, "solutions (or prompts) per step"] = 32,
    lr: opt.LearningRate = 1e-5,
    warmup_steps: Annotated[int, "optimizer steps over which the learning rate rises"] = 0,
    cosine: Annotated[bool, "lower the learning rate to 0 by the last step, along a cosine"] = False,
    head_only: Annotated[bool, "train the head alone: it can then read the policy's own states"] = False,
    seed: int = 0,
    template: opt.Template = None,
    frozen_layers: opt.FrozenLayers = 0,
    save_every: opt.SaveEvery = 50,
    keep_checkpoints: opt.KeepCheckpoints = 2,
    max_tokens_per_microbatch: opt.MaxTokensPerMicrobatch = 0,
    gradient_checkpointing: opt.GradientCheckpointing = False,
    optimizer_states: opt.OptimizerStates = "float32",
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    run: opt.RunDirectory = None,
    no_resume: opt.NoResume = False,
    json: opt.Json = False,
    algorithm_settings: opt.AlgorithmSettings = {},  # noqa: B006 (never changed)
    optimizer_settings: opt.OptimizerSettings = {},  # noqa: B006
    lora_settings: opt.LoraSettings = {},  # noqa: B006
) -> JobLaunch:
    """Train a reward model on preferences, outcomes or steps, or a value model."""
    from ponder.cli.job_commands import build_lora
    from ponder.pipelines.reward_model import TrainRewardModel
    from ponder.train.optimizer import AdamW
    from ponder.train.reward_objectives import REWARD_OBJECTIVES

    adam = AdamW(lr=lr, warmup_steps=warmup_steps, decay_steps=cosine * steps, states=optimizer_states)
    job = TrainRewardModel(
        data=data,
        model=model,
        algorithm=flags.build_with_settings("algorithm", REWARD_OBJECTIVES[algorithm], algorithm_settings, "algorithm"),
        template=template,
        format=format,
        scorer=scorer,
        separator=_unescape(separator),
        skip_bad=skip_bad,
        held_out_tenths=held_out_tenths,
        include_held_out=include_held_out,
        optimizer=flags.build_with_settings("optimizer", adam, optimizer_settings, "optimizer"),
        steps=steps,
        batch_size=batch_size,
        lora=build_lora(lora_settings),
        head_only=head_only,
        max_tokens_per_microbatch=max_tokens_per_microbatch,
        gradient_checkpointing=gradient_checkpointing,
        frozen_layers=frozen_layers,
        save_every=save_every,
        keep_checkpoints=keep_checkpoints,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    return JobLaunch(job, run or default_run_folder(job, algorithm, Path(data[0]).stem, model), json, no_resume)


def label(
    task: opt.TaskName,
    /,
    *,
    model: opt.Model = "smollm2",
    data: Annotated[list[str], "label the answers of these runs, in place of new ones; may be given again"] = [],  # noqa: B006
    include_held_out: Annotated[bool, "of these runs also an evaluation's problems"] = False,
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
    limit: Annotated[int, "the first so many training problems"] = 100,
    max_concurrency: Annotated[int, "problems at once"] = 32,
    separator: Annotated[str, "where a step ends; none: steps as they are"] = "\\n",
    temperature: float = 0.7,
    max_tokens: opt.MaxTokens = 256,
    template: opt.Template = None,
    seed: int = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    run: opt.RunDirectory = None,
    json: opt.Json = False,
    task_settings: opt.TaskSettings = {},  # noqa: B006 (never changed)
) -> JobLaunch:
    """Label the steps of answers by completing them: the run directory is data for `ponder reward --algorithm prm`."""
    from ponder.cli.job_commands import build_task
    from ponder.pipelines.label import Label
    from ponder.pipelines.rewards.step_labelling import FirstErrorSearch, MathShepherd, StepLabeller
    from ponder.reason.strategies import Samples
    from ponder.types import Sampling

    resolve_remote_model(model, device=device, dtype=dtype)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    first = min(2, max_completions)
    step_labeller: StepLabeller = MathShepherd(
        max_completions=max_completions,
        first_round=first,
        sampling=sampling,
        kind=estimation,
        max_interval_width=max_interval_width,
    )
    if labeller == "first-error":
        step_labeller = FirstErrorSearch(max_completions=max_completions, first_round=first, sampling=sampling)
    job = Label(
        task=build_task(task, task_settings), model=model, template=template, data=tuple(data),
        include_held_out=include_held_out, strategy=Samples(answers_per_problem, sampling), labeller=step_labeller,
        separator=None if separator == "none" else _unescape(separator), limit=limit, max_concurrency=max_concurrency,
        seed=seed, device=device, dtype=dtype,
    )  # fmt: skip
    return JobLaunch(job, run or default_run_folder(job, "label", task, model), json)


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
    from ponder.models.reward_models import PRM
    from ponder.pipelines.processbench import evenly_spaced, process_bench
    from ponder.tasks.step_labels import processbench_labels as bench

    if limit is not None and limit < 1:
        raise UsageError(f"--limit is {limit}; take at least one solution")
    reward_model = load_scorer(model, device, dtype)
    if not isinstance(reward_model, PRM):
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
