"""`ponder plot`: pictures of runs and logs, as PNG and SVG, with their numbers as CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from ponder.cli.compare import Column, Select, Source
from ponder.cli.progress import print_json
from ponder.settings import GreaterThan, When

_PAYS = ("coverage", "compute", "pareto", "routing", "train-or-think")


def plot(
    kind: Annotated[
        Literal[
            "coverage",
            "selection",
            "votes",
            "condorcet",
            "law",
            "two-axis",
            "compute",
            "pareto",
            "routing",
            "train-or-think",
            "reliability",
            "training",
            "length",
        ],
        "which figure; see above",
    ],
    /,
    *runs: Source,
    out: Annotated[Path | None, "where to write: PATH.png, PATH.svg and PATH.csv; default plots/KIND"] = None,
    title: Annotated[str, "above the figure; default the names of the runs"] = "",
    select: Annotated[Select, When("kind", "compute", "pareto", "routing", "train-or-think")] = None,
    scorer: Annotated[
        str | None,
        "whose scores reliability is of, or that routing goes by; votes: how many samples agree",
        When("kind", "reliability", "routing"),
    ] = None,
    cost: Annotated[
        Literal["tokens", "flops", "seconds", "dollars"] | None,
        "what the cost axis counts; of coverage in place of k, else the first that all runs tell",
        When("kind", *_PAYS),
    ] = None,
    budgets: Annotated[
        tuple[int, ...], "the token budget of each run, in their order: 512,1024,2048", When("kind", "two-axis")
    ] = (),
    training_cost: Annotated[
        float | None, "what training costs once, in the unit of --cost", When("kind", "train-or-think"), GreaterThan(0)
    ] = None,
    quality: Annotated[
        float | None, "the accuracy to reach (0.8); default what both reach", When("kind", "train-or-think")
    ] = None,
    metric: Annotated[
        list[str], "a metric for training, in place of the usual ones; may be given again", When("kind", "training")
    ] = [],  # noqa: B006
    x: Annotated[
        Literal["step", "tokens", "flops", "seconds"],
        "what a training is drawn against; FLOPs are those of sampling and learning",
        When("kind", "training"),
    ] = "step",
    common_problems: Annotated[
        bool, "where the problems differ, take those that all have", When("kind", "pareto", "routing")
    ] = False,
    column: Annotated[Column, When("kind", other_than=("training", "length"))] = [],  # noqa: B006 (never changed)
    json: Annotated[bool, "one JSON object"] = False,
) -> int:
    """Draw runs, or logs of other tools. Every number in a picture stands in the CSV file beside it.

    coverage        pass@k against what a vote or a score chooses, over k or (--cost) over what k samples cost
    selection       what rules choose among k samples, with their spread
    votes           a bar for each problem: right, wrong and missing answers
    condorcet       a majority of N samples over N and over the chance p of one, and what votes do
    law             the law of coverage, fitted, tried out and extended
    two-axis        accuracy over samples and length, with s1's Control, Scaling and Performance
    compute         accuracy over log compute with its fitted line, and families overlaid by a shift
    pareto          accuracy against cost, with the frontier
    routing         a weak system (the first run) that hands problems on to a strong one
    train-or-think  what a trained model (the first run) and more samples of the present one cost over queries
    reliability     how often answers are right, by their score
    training        reward, length, entropy ... of a training
    length          how answers grow, right and wrong ones

    pareto and compute also take a table of systems (CSV, JSON lines): a row each with name, score and cost, and for
    compute a column family.
    """
    from ponder.measure.figures import FigureSettings, draw_figure
    from ponder.measure.readers import ColumnMap

    settings = FigureSettings(
        title, ColumnMap.from_flags(column), select, scorer, cost, common_problems, metric, x, budgets,
        training_cost, quality,
    )  # fmt: skip
    figure, systems = draw_figure(kind, runs, settings)
    files = figure.save(out or Path("plots") / kind)
    read = list(dict.fromkeys(line for s in systems for line in s.reading_notes))
    if json:
        print_json({"files": [str(f) for f in files], "notes": list(figure.notes), "read": read})
    else:
        print("\n".join([f"wrote {', '.join(map(str, files))}", *figure.notes, *(f"read: {line}" for line in read)]))
    return 0
