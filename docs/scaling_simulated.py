"""Write docs/scaling-simulated.md and its figures from what `bench/cluster_sim.py` kept: no number is typed by hand.

python bench/cluster_sim.py              simulate, and keep the result (half an hour on one core)
python docs/scaling_simulated.py         write the page and the figures
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.measure.figures.canvas import make_panels, set_headline
from ponder.measure.figures.theme import COLOURS, DASHES, MARKERS, MUTED_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parent
PAGE, FIGURES = DOCS / "scaling-simulated.md", DOCS / "figures"
RESULTS = DOCS.parent / "bench" / "results"
Rows = list[dict[str, Any]]

INTRODUCTION = """\
# Scaling, simulated

Written by `python docs/scaling_simulated.py` from the kept result of `bench/cluster_sim.py`; no number is typed by
hand. ponder has run on one GPU at a time. This page says what a discrete-event model of a cluster makes of those
measurements: what more GPUs give, where the bottleneck moves, and what staleness buys. It is a model. Its error against
other projects' figures stands below.

## The model

Replicas sample with continuous batching; lengths are log-normal and cut at the longest answer that is allowed.
Verifiers grade in a queue. The learner's ranks get the sequences longest first, as ponder deals them, compute, gather
weights and scatter gradients (FSDP, or HSDP where that is faster), and publish. With staleness S the batch of step b
begins when version b - S is published (a job of ponder's begins it later where the learner stays busy all the same);
answers in flight are interrupted and go on. The rule of AReaL and verl, in which a step takes whatever is done first,
is there too.
"""

LIMITS = """\
## What it leaves out

- Failures, restarts, checkpoints, evaluation, and the time between a sample and its place in a batch.

- Lengths that grow while a model learns, and that depend on the problem: answers to one problem are not alike here.

- What tensor parallelism costs between GPUs: the 32B and 70B rows assume it for sampling (2 and 4 GPUs a replica).

- What an old sample is worth. S buys seconds; `bench/sampling_ahead.py --part demo` measures what a step then teaches.

- A batch that grows with the cluster. All rows learn from the same batch, so the last doublings have little to share.
"""


def main() -> None:
    details = load()
    PAGE.write_text(page(details), encoding="utf-8")
    for name, figure in figures(details).items():
        figure.savefig(FIGURES / f"{name}.png", dpi=160, facecolor="white")


def load() -> dict[str, Any]:
    (path,) = RESULTS.glob("cluster_sim-*.json")
    details: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["details"]
    return details


def page(details: dict[str, Any]) -> str:
    parts = [
        INTRODUCTION, rates_section(details["rates"]), overlap_section(details["overlap"]),
        published_section(details["fit"]), scaling_section(details), staleness_section(details["staleness"]),
        networks_section(details["networks"]), LIMITS,
    ]  # fmt: skip
    return "\n".join(map(fill, parts))


def fill(text: str) -> str:
    """Paragraphs of even lines; headings, pictures, tables and lists as they are."""
    blocks = [b if b[:1] in "#!|-" else textwrap.fill(" ".join(b.split()), 140) for b in text.strip().split("\n\n")]
    return re.sub(r"(?m)(^- .*)\n\n(?=- )", r"\1\n", "\n\n".join(blocks)) + "\n"


def rates_section(rates: dict[str, Any]) -> str:
    rows = [
        [name, f"{r['layer_seconds'] * 1e6:.0f} us", f"{r['row_seconds'] * 1e6:.1f} us", f"{r['read_factor']:.2f}",
         f"{100 * r['trainer_share']:.0f} %"]
        for name, r in (("ponder", rates["ponder"]), ("vLLM, transformers", rates["peers"]))
    ]  # fmt: skip
    text = f"""\
An H200 reached {100 * rates["ponder"]["matrix_share"]:.0f} % of its data sheet's matrix rate and
{100 * rates["ponder"]["bandwidth_share"]:.0f} % of its bandwidth; other GPUs are taken to reach the same. A decoding
pass takes a time for each layer, one for each sequence, and the longer of reading and multiplying times a factor: three
numbers, from three runs of `engine_groups`. An update takes the model's FLOPs at the trainer's share of the matrix rate
(`trainer_rate`); what it takes beside products goes by bandwidth. Weights reach samplers at
{100 * rates["publish_share"]:.0f} % of a NIC, the geometric mean of five published times. An answer is verified in
{rates["verify_seconds"] * 1000:.2f} ms (`verify_math`)."""
    return f"{text}\n\n" + table(
        ["software", "layer", "sequence", "factor", "trainer's share of the matrix rate"], rows, right=1
    )


def overlap_section(overlap: dict[str, Any]) -> str:
    rows = [
        [s, f"{t['measured']:.3f} s", f"{t['simulated']:.3f} s", f"{100 * (t['measured'] / t['simulated'] - 1):+.1f} %"]
        for s, t in overlap["by_staleness"].items()
    ]
    text = f"""\
## Checked

Against closed forms, in `tests/test_cluster_sim.py`: a step is the sum of sampling and learning in turn and the longer
one ahead; the verifiers' queue is M/D/1; a replica ends its sequences when a loop over passes does; every sample is
trained once, and none is older than S. Against this code: `bench/sampling_ahead.py`, with a sampler and a learner that
take {overlap["seconds"]:g} s each, {overlap["steps"]} steps:"""
    return f"{text}\n\n" + table(
        ["staleness", "measured step", "simulated step", "measured over simulated"], rows, right=1
    )


def published_section(fit: dict[str, Any]) -> str:
    rows = []
    for new, old in zip(fit["rows"], fit["unfitted"], strict=True):
        seconds = [f"{a:.0f} to {b:.0f}" for a, b in (new["published_steps"], new["simulated_steps"])]
        rows.append(
            [new["name"], *seconds, f"{new['published']:.2f}", f"{new['simulated']:.2f}", f"{old['simulated']:.2f}"]
        )
    left = "; ".join(f"{who} {r['rms']:.2f}" for who, r in fit["left_out"].items())
    factors = sorted(r["simulated"] / r["published"] for r in fit["rows"])
    text = f"""\
## Against published speed-ups

![simulated against published speed-ups](figures/sim-published.png)

Set-ups are the sources' own: GPUs, batch, longest answer, mini-batches, parallelism, and which GPUs sample. Engine and
trainer are the peers' row above. Two numbers that nobody published were free, the same for all rows, and chosen on a
grid of {len(fit["grid"])}: the spread of the logarithm of lengths ({fit["spread"]:g}), and what a pass of a deployed
engine takes beside what was measured ({1000 * fit["overhead"]:g} ms). The mean lengths of verl's and AReaL's answers
are assumed ({fit["assumed"]["verl"]:,.0f} and {fit["assumed"]["AReaL"]:,.0f} tokens); NeMo's are published. Nothing was
fitted to a single row.

**The error is a factor of {fit["rms"]:.2f}** (root mean square of logarithms; simulated over published goes from
{factors[0]:.2f} to {factors[-1]:.2f}). Without the extra time of a pass it is {rms(fit["unfitted"]):.2f}. With both
numbers chosen without a source, the factor for that source is: {left}."""
    more = """\
NeMo's scaling needs no free number: decoding waits for memory, so half the sequences on each replica take nearly as
long, and pipelines have longer bubbles. What the extra time of a pass explains is how long the last answers of a batch
take where few sequences are left, which is what AReaL and verl avoid. verl's rows hang on lengths, which its runs did
not share: on 32 GPUs its document has 1.72 for the first 100 steps and 2.66 for 400."""
    header = ["set-up", "published steps, s", "simulated", "published speed-up", "simulated", "without the extra time"]
    return f"{text}\n\n{table(header, rows, right=1)}\n{more}\n"


def rms(rows: Rows) -> float:
    errors = [math.log(r["simulated"] / r["published"]) ** 2 for r in rows]
    return math.exp(math.sqrt(sum(errors) / len(errors)))


def scaling_section(details: dict[str, Any]) -> str:
    rows = []
    scaling: Rows = details["scaling"]
    for model in dict.fromkeys(r["model"] for r in scaling):
        for gpus in dict.fromkeys(r["gpus"] for r in scaling):
            own = {r["staleness"]: r for r in scaling if (r["model"], r["gpus"]) == (model, gpus)}
            if not own:
                rows.append([model, f"{gpus:,}", "does not fit", "", "", "", "", ""])
                continue
            cells = [f"{own[s]['step']:.0f}" if s in own else "–" for s in (0, 1, 4)]
            best = own[max(own)]
            split = f"{best['learner_gpus']:,} of {gpus:,}" if best["learner_gpus"] else "all"
            rows.append(
                [model, f"{gpus:,}", *cells, f"{best['tokens_per_second'] / 1000:,.0f}", split, best["bottleneck"]]
            )
    text = """\
## What more GPUs give

![tokens a second against GPUs](figures/sim-scaling.png)

H200s in nodes of eight with NVLink, and 400 Gbit/s of InfiniBand for each GPU; 256 problems x 16 answers of 4,000
tokens in the mean and 16,384 at most. S = 0: all GPUs sample, then all learn. S above 0: the split that a formula finds
best. Engine and trainer are ponder's, without the extra time that deployed engines were fitted with; lengths have the
fitted spread.
Steps in seconds; tokens a second, GPUs that learn and bottleneck are of S = 4."""
    notes = scaling_notes(scaling)
    header = ["model", "GPUs", "S = 0", "S = 1", "S = 4", "thousand tokens/s", "GPUs that learn", "bottleneck"]
    return f"{text}\n\n{table(header, rows, right=1, text_from=6)}\n{notes}\n"


def scaling_notes(scaling: Rows) -> str:
    """In words: from fewest to most GPUs, what the speed-up is, each with the S that is fastest there."""
    lines = []
    for model in dict.fromkeys(r["model"] for r in scaling):
        own = [r for r in scaling if r["model"] == model]
        few, many = (min((r for r in own if r["gpus"] == n), key=step_of) for n in (own[0]["gpus"], own[-1]["gpus"]))
        gain, more = few["step"] / many["step"], many["gpus"] / few["gpus"]
        lines.append(
            f"- {model}: {more:,.0f} times the GPUs ({few['gpus']} to {many['gpus']:,}) are {gain:.0f} times as fast, "
            f"{100 * gain / more:.0f} %; the bottleneck goes from {few['bottleneck']} to {many['bottleneck']}."
        )
    return "\n".join(lines)


def step_of(row: dict[str, Any]) -> float:
    return float(row["step"])


def staleness_section(rows: Rows) -> str:
    cells = [
        [f"{r['gpus']:,}", f"{r['staleness']:g}", f"{r['step']:.1f}",
         f"{next(x['step'] for x in rows if x['gpus'] == r['gpus']) / r['step']:.2f}",
         f"{100 * r['sampler_busy']:.0f} %", f"{100 * r['learner_busy']:.0f} %", f"{r['mean_age']:.1f}",
         r["bottleneck"]]
        for r in rows
    ]  # fmt: skip
    text = """\
## What staleness buys

![step time against staleness](figures/sim-staleness.png)

The 7B model. Speed-ups are over S = 0 on the same GPUs; age is of a sample's first token, in steps."""
    header = ["GPUs", "S", "step, s", "speed-up", "samplers busy", "learner busy", "mean age", "bottleneck"]
    return f"{text}\n\n{table(header, cells, right=0, text_from=7)}"


def networks_section(rows: Rows) -> str:
    cells = [
        [r["model"], f"{r['staleness']:g}", r["network"], r["publish_network"], f"{r['step']:.1f}",
         f"{r['shard']:,} of {r['learner_gpus']:,}", f"{100 * r['shares']['wires']:.0f} %",
         f"{100 * r['shares']['publish']:.0f} %", r["bottleneck"]]
        for r in rows
    ]  # fmt: skip
    text = """\
## Wires

128 GPUs. Ethernet is 100 Gbit/s for a node, internet 1 Gbit/s. A shard smaller than the learner's GPUs means HSDP.
Where samplers have other wires than the learner, nobody waits while weights are on them. Shares are of a step. Over
Ethernet the formula picks HSDP: weights are gathered inside a node, and only gradients cross, once."""
    header = [
        "model",
        "S",
        "learner's wires",
        "to samplers",
        "step, s",
        "shard",
        "waiting for wires",
        "publishing",
        "bottleneck",
    ]
    return f"{text}\n\n{table(header, cells, right=4, text_from=8)}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: int, text_from: int = 99) -> str:
    """Columns from `right` on are aligned right, up to `text_from`."""
    marks = ["---:" if right <= i < text_from else "---" for i in range(len(header))]
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|" + "|".join(marks) + "|", *lines[1:], ""])


def figures(details: dict[str, Any]) -> dict[str, Figure]:
    return {
        "sim-published": make_panels(1, lambda f, a: paint_published(a[0], details["fit"]), size=(5.4, 4.4)),
        "sim-scaling": make_panels(2, lambda f, a: paint_scaling(a, details["scaling"]), size=(4.8, 3.8)),
        "sim-staleness": make_panels(2, lambda f, a: paint_staleness(a, details["staleness"]), size=(4.3, 3.2)),
    }


def paint_published(axes: Axes, fit: dict[str, Any]) -> None:
    low, high = 0.7, 6.5
    axes.fill_between(
        [low, high], [low / fit["rms"], high / fit["rms"]], [low * fit["rms"], high * fit["rms"]], color="#e6e8eb"
    )
    axes.plot([low, high], [low, high], color=MUTED_COLOUR, linewidth=1)
    for i, source in enumerate(dict.fromkeys(r["name"].split(",")[0] for r in fit["rows"])):
        own = [r for r in fit["rows"] if r["name"].startswith(source)]
        axes.scatter(
            [r["published"] for r in own],
            [r["simulated"] for r in own],
            color=COLOURS[i],
            marker=MARKERS[i],
            s=42,
            label=source,
            zorder=3,
        )
        first = [r for r in fit["unfitted"] if r["name"].startswith(source)]
        axes.scatter(
            [r["published"] for r in first],
            [r["simulated"] for r in first],
            facecolors="none",
            edgecolors=COLOURS[i],
            marker=MARKERS[i],
            s=42,
            zorder=2,
        )
    for scale in (axes.set_xscale, axes.set_yscale):
        scale("log")
    ticks = [1, 1.5, 2, 3, 4, 5]
    for one in (axes.xaxis, axes.yaxis):
        one.set_ticks(ticks, [f"{t:g}" for t in ticks])
        one.set_ticks([], minor=True)
    axes.set_xlim(1.0, high)
    axes.set_ylim(low * 0.75, high)
    axes.set_xlabel("published speed-up")
    axes.set_ylabel("simulated")
    axes.legend(loc="upper left")
    set_headline(axes, f"grey: within a factor of {fit['rms']:.2f}; open: without the extra time of a pass")


def paint_scaling(axes: list[Axes], rows: Rows) -> None:
    for i, model in enumerate(dict.fromkeys(r["model"] for r in rows)):
        fewest = [r for r in rows if r["model"] == model]
        fewest = [r for r in fewest if r["gpus"] == fewest[0]["gpus"]]
        most = max(r["tokens_per_second"] / r["gpus"] for r in fewest)
        for staleness, dash in ((4, DASHES[0]), (0, DASHES[2])):
            own = [r for r in rows if r["model"] == model and r["staleness"] == staleness]
            x, y = [r["gpus"] for r in own], [r["tokens_per_second"] for r in own]
            look: Any = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 4, "linestyle": dash}
            axes[0].plot(x, y, label=model if staleness == 4 else None, **look)
            axes[1].plot(x, [100 * v / n / most for v, n in zip(y, x, strict=True)], **look)
    for one in axes:
        one.set_xscale("log", base=2)
        ticks = sorted({r["gpus"] for r in rows})
        one.set_xticks(ticks, [f"{t:,}" for t in ticks])
        one.minorticks_off()
        one.set_xlabel("GPUs")
        one.grid(axis="y")
    axes[0].set_yscale("log")
    axes[0].set_ylabel("tokens a second")
    axes[0].legend(loc="upper left")
    set_headline(axes[0], "S = 4 solid, S = 0 dotted")
    axes[1].set_ylabel("% of the best rate of the fewest GPUs")
    axes[1].set_ylim(bottom=0)
    set_headline(axes[1], "what each GPU gives")


def paint_staleness(axes: list[Axes], rows: Rows) -> None:
    for one, gpus in zip(axes, dict.fromkeys(r["gpus"] for r in rows), strict=True):
        own = [r for r in rows if r["gpus"] == gpus]
        one.bar(range(len(own)), [r["step"] for r in own], color=COLOURS[0], width=0.62)
        for i, r in enumerate(own):
            one.annotate(f"{own[0]['step'] / r['step']:.2f}x", (i, r["step"]), ha="center", va="bottom", fontsize=8)
        one.set_xticks(range(len(own)), [f"{r['staleness']:g}" for r in own])
        one.set_xlabel("staleness S")
        one.set_ylabel("seconds a step")
        one.set_ylim(top=max(r["step"] for r in own) * 1.12)
        set_headline(one, f"7B, {gpus} GPUs")


if __name__ == "__main__":
    main()
