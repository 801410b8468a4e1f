"""`ponder plot`: pictures of runs and logs, as PNG and SVG, with their numbers as CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from ponder.cli.compare import Column, Select, Source
from ponder.cli.progress import print_json
from ponder.settings import When

_PARETO_ONLY = When("kind", "pareto")


def plot(
    kind: Annotated[
        Literal["coverage", "selection", "law", "two-axis", "pareto", "training", "length"],
        "coverage, selection, law, two-axis, pareto, training or length",
    ],
    /,
    *runs: Source,
    out: Annotated[Path | None, "where to write: PATH.png, PATH.svg and PATH.csv; default plots/KIND"] = None,
    title: str = "",
    select: Annotated[Select, _PARETO_ONLY] = None,
    cost: Annotated[
        Literal["tokens", "flops", "seconds", "dollars"] | None, "what pareto pays in", _PARETO_ONLY
    ] = None,
    metric: Annotated[
        list[str], "a metric for training, in place of the usual ones; may be given again", When("kind", "training")
    ] = [],  # noqa: B006
    common_problems: Annotated[
        bool, "pareto: where the problems differ, take those that all have", _PARETO_ONLY
    ] = False,
    column: Annotated[Column, When("kind", other_than=("training", "length"))] = [],  # noqa: B006 (never changed)
    json: Annotated[bool, "one JSON object"] = False,
) -> int:
    """Draw runs, or logs of other tools. Every number in a picture stands in the CSV file beside it.

    coverage   pass@k against what a vote or a score chooses
    selection  what rules choose among k samples, with their spread
    law        the law of coverage, fitted, tried out and extended
    two-axis   accuracy over samples and length
    pareto     accuracy against cost, with the frontier
    training   reward, length, entropy ... of a training
    length     how answers grow, right and wrong ones
    """
    from ponder.measure.figures import draw_figure
    from ponder.measure.readers import ColumnMap

    drawn, systems = draw_figure(kind, runs, title, ColumnMap.from_flags(column), select, cost, common_problems, metric)
    files = drawn.save(out or Path("plots") / kind)
    read = list(dict.fromkeys(line for s in systems for line in s.reading_notes))
    if json:
        print_json({"files": [str(f) for f in files], "notes": list(drawn.notes), "read": read})
    else:
        print("\n".join([f"wrote {', '.join(map(str, files))}", *drawn.notes, *(f"read: {line}" for line in read)]))
    return 0
