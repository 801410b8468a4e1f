"""The value of a prefix as it is written: what PPO's critic says after each line, beside the share of continuations
that come out right."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ponder import event_loop
from ponder.book.figure import COSINE, SHARE, FigureRun, format_interval, markdown_table
from ponder.measure import auroc
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.runs import read_traces
from ponder.types import Sampling, Step, Trace

ANSWERS = 64  # whose prefixes are valued, half of them right and half wrong where there are as many
CONTINUATIONS = 64  # of each prefix
MAX_LINES = 5


def measure_prefix_values(folder: Path, verifier: Any, job: Any, run: FigureRun) -> dict[str, Any]:
    """The critic's values of the last training step against continuations by the trained policy, which is one
    optimiser step further."""
    last: dict[int, list[Trace]] = {}
    for step, trace in read_traces(folder):
        if last and step > next(iter(last)):
            last.clear()
        last.setdefault(step, []).append(trace)
    traces = next(iter(last.values()))
    policy = load_policy(str(folder), device=run.device, dtype=run.dtype)
    policy.reseed(run.seed)
    chosen = choose_answers(traces, verifier.name)
    out = event_loop.run(_value_all(policy, chosen, verifier, job.sampling))
    policy.sleep()
    return out


def choose_answers(traces: Sequence[Trace], scorer: str) -> list[tuple[Trace, int, bool]]:
    """One right and one wrong answer of each problem, where there are, until there are enough of both."""
    kept: dict[bool, list[tuple[Trace, int, bool]]] = {True: [], False: []}
    for trace in traces:
        for want in kept:
            leaf = next((i for i in trace.answers() if bool(trace.score(i, scorer)) is want), None)
            if leaf is not None and len(kept[want]) < ANSWERS // 2:
                kept[want].append((trace, leaf, want))
    return kept[True] + kept[False]


def line_starts(texts: Sequence[str]) -> list[int]:
    """The number of tokens before each line: 0, and after each token that ends one, the last token left out."""
    ends = [i + 1 for i, text in enumerate(texts[:-1]) if "\n" in text]
    return [0, *ends][: MAX_LINES + 1]


async def _value_all(
    policy: PonderPolicy, chosen: Sequence[tuple[Trace, int, bool]], verifier: Any, sampling: Sampling
) -> dict[str, Any]:
    async def one(trace: Trace, leaf: int) -> list[tuple[float, float]]:
        step = trace.steps[leaf]
        prompt, tokens, values = trace.steps[0].token_ids, step.token_ids, step.notes["values"]
        starts = line_starts([policy.text(tokens[i : i + 1]) for i in range(len(tokens))])
        shares = [await _share_right(policy, trace, prompt, tokens[:at], verifier, sampling) for at in starts]
        return [(float(values[at]), share) for at, share in zip(starts, shares, strict=True)]

    every = await asyncio.gather(*(one(trace, leaf) for trace, leaf, _ in chosen))
    return summarise_values([(right, points) for (_, _, right), points in zip(chosen, every, strict=True)])


async def _share_right(
    policy: PonderPolicy, trace: Trace, prompt: Any, prefix: Any, verifier: Any, sampling: Sampling
) -> float:
    """The share of right ones among continuations of a prefix."""
    left = replace(sampling, max_tokens=max(1, (sampling.max_tokens or 256) - len(prefix)))
    texts = await policy.generate(np.concatenate([prompt, prefix]), left, CONTINUATIONS)
    written = policy.text(prefix)
    graded = Trace(trace.problem, [replace(trace.steps[0])])
    leaves = [graded.add(Step(0, written + c.text, np.concatenate([prefix, c.token_ids]))) for c in texts]
    scores = await verifier(graded, leaves)
    return float(np.mean([score.value or 0.0 for score in scores]))


def summarise_values(answers: Sequence[tuple[bool, Sequence[tuple[float, float]]]]) -> dict[str, Any]:
    """Mean value and mean share after each number of lines, for answers that are right and wrong in the end; the
    correlation of the two over prefixes after at least one line, and how well the value tells what the end will be."""
    out: dict[str, Any] = {}
    for kind, want in (("right", True), ("wrong", False)):
        own = [points for right, points in answers if right is want]
        most = max((len(points) for points in own), default=0)
        at = [[points[k] for points in own if k < len(points)] for k in range(most)]
        out[kind] = {"answers": len(own), "value": [round(float(np.mean([v for v, _ in p])), 4) for p in at]}
        out[kind]["truth"] = [round(float(np.mean([t for _, t in p])), 4) for p in at]
    pairs = np.array([pair for _, points in answers for pair in points[1:]]).reshape(-1, 2)
    spread = len(pairs) > 1 and pairs.std(0).min() > 0
    out["correlation"] = round(float(np.corrcoef(pairs.T)[0, 1]), 4) if spread else 0.0
    out["auroc"] = []
    for k in range(min(map(len, (out["right"]["value"], out["wrong"]["value"])))):
        there = [(points[k][0], float(right)) for right, points in answers if k < len(points)]
        out["auroc"].append(round(auroc([v for v, _ in there], [y for _, y in there], resamples=2).area, 4))
    return out


def prefix_value_lines(seeds: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the figure says of prefixes, over seeds."""
    lines = min(len(s["auroc"]) for s in seeds)
    if not lines:
        return [
            "What PPO's critic says of prefixes is not compared: in the last step of a seed all answers are right, or"
            " all are wrong.",
            "",
        ]
    rows = []
    for kind in ("right", "wrong"):
        for key, title, bounds in (("value", "critic's value", None), ("truth", "share of continuations right", SHARE)):
            cells = [format_interval([s[kind][key][k] for s in seeds], 1, 2, bounds=bounds) for k in range(lines)]
            rows.append([f"{kind} in the end, {title}", *cells])
    tells = [format_interval([s["auroc"][k] for s in seeds], 1, 2, bounds=SHARE) for k in range(lines)]
    rows.append(["AUROC of the value", *tells])
    correlation = format_interval([s["correlation"] for s in seeds], 1, 2, bounds=COSINE)
    return [
        "The value of a prefix as it is written, by PPO's critic at the end of training, beside the share of"
        f" {CONTINUATIONS} continuations by the policy that come out right; of the last step one right and one wrong"
        f" answer of a problem where there are, {_counts(seeds)}. After so many lines:",
        *markdown_table(["", *map(str, range(lines))], rows),
        f"Correlation of value and share over prefixes of at least one line: {correlation}.",
        "",
    ]


def _counts(seeds: Sequence[Mapping[str, Any]]) -> str:
    """How many answers the lines are of, in each seed."""
    right, wrong = (", ".join(str(s[kind]["answers"]) for s in seeds) for kind in ("right", "wrong"))
    return f"{right} right ones and {wrong} wrong ones"
