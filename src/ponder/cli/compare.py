"""`ponder compare`: runs, and logs of other tools, side by side on the same problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ponder.cli.flags import When
from ponder.cli.progress import emit
from ponder.terminal import visible

if TYPE_CHECKING:
    from ponder.measure.compare import Comparison, Line
    from ponder.measure.readers import Attempts

Source = Annotated[
    str, "a run directory, a log (.parquet, .csv, .jsonl, .json), or LOG::SYSTEM of one that holds several"
]
Column = Annotated[
    list[str], "what a log's column is, as role=name (correct=passed, id=task_id, n=100); may be given again"
]
Select = Annotated[
    Literal["mean", "first", "majority", "weighted", "best", "logprob", "any", "chosen"] | None,
    "how attempts become one answer; chosen where every system chose, else mean",
]
By = Annotated[
    str | None, "whose scores weighted and best go by, where there are several", When("select", "weighted", "best")
]

WIDE = 44  # characters of a system's name


def compare(
    *runs: Source,
    select: Select = None,
    by: By = None,
    common: Annotated[bool, "where the problems differ, compare on those that all have"] = False,
    pairs: Annotated[bool, "compare every two, not each with the first"] = False,
    prices: Annotated[Path | None, 'JSON: dollars per million tokens by system, {"NAME": {"generated": 2.5}}'] = None,
    column: Column = [],  # noqa: B006 (never changed)
    json: Annotated[bool, "one JSON object"] = False,
) -> int:
    """Accuracy with its interval, cost per problem, and paired differences from the first system."""
    from ponder.measure.compare import compare as against
    from ponder.measure.price import read_prices
    from ponder.measure.readers import Columns, labels, read_all

    systems = read_all(runs, Columns.of(column))
    systems = [replace(s, name=label) for s, label in zip(systems, labels([s.name for s in systems]), strict=True)]
    found = against(systems, select, common, by, pairs, None if prices is None else read_prices(prices))
    if json:
        emit(plain(found, systems))
    else:
        print("\n".join(lines(found, systems)))
    return 0


def plain(found: Comparison, systems: Sequence[Attempts]) -> dict[str, Any]:
    out = asdict(found)
    for line, system in zip(out["lines"], systems, strict=True):
        del line["worths"]
        line["accuracy"] |= {"mean": next(x.accuracy.mean for x in found.lines if x.name == line["name"])}
        line["how"] = list(system.how)
    return {"select": out.pop("method"), **out}


def lines(found: Comparison, systems: Sequence[Attempts]) -> list[str]:
    from ponder.measure.decide import ABOUT

    head = f"{found.problems} problems, {found.method}: {ABOUT[found.method]}; 95 % intervals"
    out = [head, "", *table(_accuracies(found.lines))]
    if found.pairs:
        out += ["", f"difference from {named(found.pairs[0].second)}" if _one_base(found) else "differences", ""]
        out += table(_differences(found))
    notes = [*found.notes, *_readings(systems)]
    return out + (["", *notes] if notes else [])


def _one_base(found: Comparison) -> bool:
    return len({p.second for p in found.pairs}) == 1


def _accuracies(systems: Sequence[Line]) -> list[list[str]]:
    rows = [["system", "samples", "accuracy, %", "", "undecided", "tokens", "TFLOP", "seconds", "dollars"]]
    for s in systems:
        few, most = s.samples
        a = s.accuracy
        rows.append([
            named(s.name), f"{few}" if few == most else f"{few}-{most}", f"{100 * a.mean:.1f}",
            f"[{100 * a.low:.1f}, {100 * a.high:.1f}]", str(s.undecided) if s.undecided else "",
            _amount(s.tokens, 1, ",.0f"), _amount(s.flops, 1e-12, ".3g"), _amount(s.seconds, 1, ".3g"),
            _amount(s.dollars, 1, ".3g"),
        ])  # fmt: skip
    kept = [i for i in range(len(rows[0])) if i < 4 or any(row[i] for row in rows[1:])]
    return [[row[i] or ("" if i < 5 else "-") for i in kept] for row in rows]


def _differences(found: Comparison) -> list[list[str]]:
    several = len(found.pairs) > 1
    rows = [["system", "points", "", "won", "lost", "p", *(["p (Holm)"] if several else []), "test"]]
    for p in found.pairs:
        name = named(p.first) if _one_base(found) else f"{named(p.first, 28)} - {named(p.second, 28)}"
        interval = f"[{100 * p.low:+.1f}, {100 * p.high:+.1f}]"
        adjusted = [_chance(p.adjusted)] if several else []
        test = p.test if p.total == found.problems else f"{p.test}; {p.total} problems"
        rows.append([name, f"{100 * p.difference:+.1f}", interval, str(p.won), str(p.lost), _chance(p.p_value)])
        rows[-1] += [*adjusted, test]
    return rows


def _readings(systems: Sequence[Attempts]) -> list[str]:
    """What was read as what; once, where all were read alike."""
    ways = {s.how for s in systems}
    if len(ways) == 1:
        return [f"read: {line}" for line in ways.pop()]
    return [f"read {named(s.name)}: {line}" for s in systems for line in s.how]


def _amount(value: float | None, scale: float, form: str) -> str:
    return "" if value is None else f"{value * scale:{form}}"


def _chance(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def named(name: str, wide: int = WIDE) -> str:
    """The end of a name tells more than its beginning."""
    line = visible(" ".join(name.split()))
    return line if len(line) <= wide else f"...{line[3 - wide :]}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Words to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    words = {0, *(i for i, head in enumerate(rows[0]) if head == "test")}
    out = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        out.append("  ".join(cell.ljust(w) if i in words else cell.rjust(w) for i, (cell, w) in cells).rstrip())
    return out
