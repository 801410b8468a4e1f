"""Commands about judges: `reward` trains one, `label` makes labels for it, `processbench` measures it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from ponder.cli import flags
from ponder.cli import options as opt
from ponder.cli.progress import emit
from ponder.cli.served import served
from ponder.cli.start import Launch
from ponder.errors import UsageError
from ponder.terminal import raw


def reward(
    *,
    data: Annotated[list[str], "JSONL of labels or traces, or a run directory; may be given again"],
    kind: Annotated[Literal["pairs", "orm", "prm", "value"], "rewards from preferences, outcomes, steps, or values"],
    model: opt.Model = "smollm2",
    option: Annotated[list[str], "a setting of the objective, as key=value; may be given again"] = [],  # noqa: B006
    format: Annotated[str | None, "prm800k, shepherd, omega, stepwise, pairs, ranked, outcomes or traces"] = None,
    scorer: Annotated[str | None, "whose scores are the labels of a run's traces"] = None,
    separator: Annotated[
        str | None, "cut what a model wrote into steps here, such as '\\n'", flags.When("kind", "prm", "value")
    ] = None,
    skip_bad: Annotated[bool, "go on without rows of a file that cannot be used"] = False,
    held_out: Annotated[int, "tenths of the questions to measure on, and to fit the temperature"] = 1,
    include_held_out: Annotated[bool, "also an evaluation's problems, which are left out otherwise"] = False,
    steps: int = 100,
    batch: Annotated[int, "solutions (or prompts) per step"] = 32,
    lr: opt.Rate = 1e-5,
    warmup: Annotated[int, "optimiser steps over which the learning rate rises"] = 0,
    cosine: Annotated[bool, "lower the learning rate to 0 by the last step, along a cosine"] = False,
    lora: opt.Rank = 0,
    head_only: Annotated[bool, "train the head alone: it can then read the policy's own states"] = False,
    seed: int = 0,
    template: opt.Template = None,
    frozen_layers: opt.Frozen = 0,
    save_every: opt.SaveEvery = 50,
    keep: opt.Keep = 2,
    micro_tokens: opt.MicroTokens = 0,
    recompute: opt.Recompute = False,
    states: opt.States = "float32",
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    run: opt.Folder = None,
    fresh: opt.New = False,
    json: opt.Json = False,
) -> Launch:
    """Train a reward model on preferences, outcomes or steps, or a value model."""
    from ponder.cli.work import slug
    from ponder.nets.lora import LoRA
    from ponder.pipelines.reward import RewardModel
    from ponder.train.optimiser import AdamW
    from ponder.train.reward import OBJECTIVES

    job = RewardModel(
        data=tuple(data),
        model=model,
        objective=flags.build("objective", OBJECTIVES[kind], option, "--option"),
        template=template,
        format=format,
        scorer=scorer,
        separator=_unescaped(separator),
        skip_bad=skip_bad,
        held_out=held_out,
        include_held_out=include_held_out,
        optimiser=AdamW(lr=lr, warmup=warmup, decay_steps=cosine * steps, states=states),
        steps=steps,
        batch=batch,
        lora=LoRA(lora) if lora else None,
        head_only=head_only,
        micro_tokens=micro_tokens,
        recompute=recompute,
        frozen_layers=frozen_layers,
        save_every=save_every,
        keep=keep,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    return Launch(job, run or Path("runs") / f"{kind}-{slug(Path(data[0]).stem)}-{slug(model)}", json, fresh)


def label(
    task: opt.TaskName,
    /,
    *,
    model: opt.Model = "smollm2",
    data: Annotated[list[str], "label the answers of these runs, in place of new ones; may be given again"] = [],  # noqa: B006
    include_held_out: Annotated[bool, "of these runs also an evaluation's problems"] = False,
    rule: Annotated[
        Literal["shepherd", "first-error"], "every step, or a binary search for the first wrong one"
    ] = "shepherd",
    kind: Annotated[
        Literal["soft", "hard"],
        "shepherd: the share of right completions, or whether any is",
        flags.When("rule", "shepherd"),
    ] = "soft",
    width: Annotated[
        float,
        "shepherd, soft: draw until the 95 % interval is no wider; 0: always all",
        flags.When("rule", "shepherd"),
        flags.When("kind", "soft"),
    ] = 0.0,
    completions: Annotated[int, "drawn from each prefix, at most"] = 8,
    n: Annotated[int, "new answers per problem", flags.When("data", [])] = 4,
    limit: Annotated[int, "the first so many training problems"] = 100,
    batch: Annotated[int, "problems at once"] = 32,
    separator: Annotated[str, "where a step ends; none: steps as they are"] = "\\n",
    temperature: float = 0.7,
    max_tokens: opt.MaxTokens = 256,
    template: opt.Template = None,
    seed: int = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    set: opt.Settings = [],  # noqa: B006 (never changed)
    run: opt.Folder = None,
    json: opt.Json = False,
) -> Launch:
    """Label the steps of answers by completing them: the run directory is data for `ponder reward --kind prm`."""
    from ponder.cli.work import find_task, slug
    from ponder.pipelines.label import Label
    from ponder.pipelines.rollouts import FirstError, Labelling, Shepherd
    from ponder.reason.strategies import Ensemble
    from ponder.types import Sampling

    served(model, device=device, dtype=dtype)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    first = min(2, completions)
    tried: Labelling = Shepherd(n=completions, first=first, sampling=sampling, kind=kind, width=width)
    if rule == "first-error":
        tried = FirstError(n=completions, first=first, sampling=sampling)
    job = Label(
        task=find_task(task, set), model=model, template=template, data=tuple(data),
        include_held_out=include_held_out, strategy=Ensemble(n, sampling), rule=tried,
        separator=None if separator == "none" else _unescaped(separator), limit=limit, batch=batch,
        seed=seed, device=device, dtype=dtype,
    )  # fmt: skip
    return Launch(job, run or Path("runs") / f"label-{slug(task)}-{slug(model)}", json)


def processbench(
    model: Annotated[str, "a process reward model: a run directory or a folder"],
    /,
    *,
    part: Annotated[str, "gsm8k, math, olympiadbench, omnimath, or a JSON file"] = "gsm8k",
    threshold: Annotated[float, "below it a step is wrong"] = 0.5,
    limit: Annotated[int | None, "the first so many solutions"] = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: Annotated[bool, "one JSON object"] = False,
) -> int:
    """Does a process reward model find the first wrong step? F1 over solutions with an error and without."""
    from dataclasses import asdict

    from ponder.models.reward import PRM, load_scorer
    from ponder.pipelines.processbench import process_bench
    from ponder.tasks.steps import processbench as bench

    if limit is not None and limit < 1:
        raise UsageError(f"--limit is {limit}; take at least one solution")
    judge = load_scorer(model, device, dtype)
    if not isinstance(judge, PRM):
        raise UsageError(f"{model} is trained for {judge.kind!r}: ProcessBench is for process reward models")
    traces = bench.read(part)[:limit]

    def told(done: int) -> None:
        if sys.stderr.isatty() and not json:
            end = "\n" if done == len(traces) else ""
            print(f"\r{done} of {len(traces)} solutions", end=end, file=raw(sys.stderr), flush=True)

    found = process_bench(judge, traces, threshold, told)
    if json:
        emit({"model": model, "part": part, **asdict(found), "f1": found.found.f1, "best_f1": found.best.f1})
        return 0
    few = " (fewer than 500: not precise)" if found.found.solutions < 500 else ""
    print(f"part        {part}, {found.found.solutions} solutions{few}")
    if found.undecided:
        print(f"undecided   {found.undecided} solutions are longer than the model's context: nothing was found in them")
    print("threshold   F1      first error found   no error seen")
    for at, errors, note in (
        (found.threshold, found.found, ""),
        (found.best_threshold, found.best, "  (the best, set on these very solutions)"),
    ):
        print(f"{at:<9g}   {errors.f1:5.1%}   {errors.erroneous:17.1%}   {errors.correct:13.1%}{note}")
    return 0


def _unescaped(separator: str | None) -> str | None:
    """A line break can be typed as \\n."""
    return None if separator is None else separator.replace("\\n", "\n").replace("\\t", "\t")
