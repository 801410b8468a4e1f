"""How the steps of a model's answers got their labels, for a page: by code, or by rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ponder.book.stage_costs import UNITS, StageCost, stage_cost
from ponder.pipelines.label import label_metrics
from ponder.pipelines.rewards.step_labelling import MathShepherd
from ponder.runs import read_traces

OUTCOMES, STEPS = "outcomes", "steps"  # stages of the recipe: answers, and the same with labels of their steps


def describe_labels(job: Any, folder: Path) -> dict[str, Any]:
    """The labels of a finished run of the recipe: how they were made, and how many there are."""
    (label, *_), names = _label_jobs(job)
    found = label_metrics([trace for name in names for _, trace in read_traces(folder / name)])
    out = {"steps": int(found["labels"]), "mean": round(found["reward"], 4), "separator": label.separator}
    out["undecided"] = round(found["frac_undecided"], 4)
    if not isinstance(label.labeller, MathShepherd):
        return out | {"check": type(label.labeller).__name__}
    return out | {"completions": label.labeller.max_completions, "kind": label.labeller.kind}


def rollout_cost(job: Any, folder: Path) -> StageCost | None:
    """What rollouts took; None where code checks steps, which takes nothing."""
    (label, *_), names = _label_jobs(job)
    if not isinstance(label.labeller, MathShepherd):
        return None
    after = [stage_cost(folder / name) for name in names]  # the answers themselves are in both
    before = [stage_cost(folder / f"{OUTCOMES}{name.removeprefix(STEPS)}") for name in names]
    if None in (*after, *before):
        return None
    return {unit: sum(x[unit] - y[unit] for x, y in zip(after, before, strict=True) if x and y) for unit in UNITS}


def _label_jobs(job: Any) -> tuple[list[Any], list[str]]:
    """The stages that label the answers to a task each: their jobs and names."""
    stages = [stage for stage in job.stages if stage.name.partition("-")[0] == STEPS]
    return [stage.job for stage in stages], [stage.name for stage in stages]


def labels_line(found: Mapping[str, Any]) -> str:
    """What a page says of them."""
    known, ends = found["labels"], found["right ends"]
    separator = "a line break" if known["separator"] == "\n" else f"`{known['separator']!r}`"
    if "check" in known:
        how = f"code checked (`{known['check']}`; after a wrong step all are wrong), {100 * known['mean']:.1f} % right"
    else:
        soft = "the share of right ones is its label" if known["kind"] == "soft" else "its label is 1 if any is right"
        how = (
            f"rollouts labelled, as Math-Shepherd's do (Wang et al. 2024, arXiv:2312.08935): up to"
            f" {known['completions']} completions of the answer up to that step, and {soft} (a {known['kind']} label);"
            f" the mean label is {known['mean']:.2f}. Such a label says whether this model gets on from here, not"
            " whether the step is right"
        )
    return (
        f"{found['answers learned from']:,} answers to learn from, {sum(ends.values()):,} of them right, whose"
        f" {known['steps']:,} steps (a step ends at {separator}) {how}."
        " These numbers are of the first seed."
    )
