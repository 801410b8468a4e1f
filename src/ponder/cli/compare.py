"""`ponder compare`: runs, and logs of other tools, side by side on the same problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ponder.cli.progress import print_json
from ponder.settings import When
from ponder.terminal import escape_controls

if TYPE_CHECKING:
    from ponder.measure.readers import Attempts
    from ponder.measure.statistics.compare_systems import Comparison, SystemResult

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
ScorerName = Annotated[
    str | None, "whose scores weighted and best go by, where there are several", When("select", "weighted", "best")
]

MAX_NAME_CHARS = 44  # characters of a system's name


def compare(
    *runs: Source,
    select: Select = None,
    scorer: ScorerName = None,
    common_problems: Annotated[bool, "where the problems differ, compare on those that all have"] = False,
    all_pairs: Annotated[bool, "compare every two, not each with the first"] = False,
    prices: Annotated[Path | None, 'JSON: dollars per million tokens by system, {"NAME": {"generated": 2.5}}'] = None,
    column: Column = [],  # noqa: B006 (never changed)
    json: Annotated[bool, "one JSON object"] = False,
) -> int:
    """Accuracy with its interval, cost per problem, and paired differences from the first system."""
    from ponder.measure.readers import ColumnMap, read_logs, short_labels
    from ponder.measure.statistics.compare_systems import compare_systems as compare_all
    from ponder.reason.price import read_prices

    systems = read_logs(runs, ColumnMap.from_flags(column))
    systems = [
        replace(s, name=label) for s, label in zip(systems, short_labels([s.name for s in systems]), strict=True)
    ]
    comparison = compare_all(
        systems, select, common_problems, scorer, all_pairs, None if prices is None else read_prices(prices)
    )
    if json:
        print_json(comparison_json(comparison, systems))
    else:
        print("\n".join(comparison_lines(comparison, systems)))
    return 0


def comparison_json(comparison: Comparison, systems: Sequence[Attempts]) -> dict[str, Any]:
    out = asdict(comparison)
    for line, system in zip(out["systems"], systems, strict=True):
        del line["values"]
        line["accuracy"] |= {"mean": next(x.accuracy.mean for x in comparison.systems if x.name == line["name"])}
        line["reading_notes"] = list(system.reading_notes)
    return {"select": out.pop("rule"), **out}


def comparison_lines(comparison: Comparison, systems: Sequence[Attempts]) -> list[str]:
    from ponder.measure.statistics.decision_rules import RULE_DESCRIPTIONS

    head = f"{comparison.problems} problems, {comparison.rule}: {RULE_DESCRIPTIONS[comparison.rule]}; 95 % intervals"
    out = [head, "", *format_table(_accuracy_rows(comparison.systems))]
    if comparison.pairs:
        out += [
            "",
            f"difference from {shorten_name(comparison.pairs[0].second)}"
            if _has_one_baseline(comparison)
            else "differences",
            "",
        ]
        out += format_table(_difference_rows(comparison))
    notes = [*comparison.notes, *_reading_notes(systems)]
    return out + (["", *notes] if notes else [])


def _has_one_baseline(comparison: Comparison) -> bool:
    return len({p.second for p in comparison.pairs}) == 1


def _accuracy_rows(systems: Sequence[SystemResult]) -> list[list[str]]:
    rows = [["system", "samples", "accuracy, %", "", "undecided", "tokens", "TFLOP", "seconds", "dollars"]]
    for s in systems:
        few, most = s.samples
        a = s.accuracy
        rows.append([
            shorten_name(s.name), f"{few}" if few == most else f"{few}-{most}", f"{100 * a.mean:.1f}",
            f"[{100 * a.low:.1f}, {100 * a.high:.1f}]", str(s.undecided) if s.undecided else "",
            _format_amount(s.tokens_per_problem, 1, ",.0f"), _format_amount(s.flops_per_problem, 1e-12, ".3g"),
            _format_amount(s.seconds_per_problem, 1, ".3g"), _format_amount(s.dollars_per_problem, 1, ".3g"),
        ])  # fmt: skip
    columns = [i for i in range(len(rows[0])) if i < 4 or any(row[i] for row in rows[1:])]
    return [[row[i] or ("" if i < 5 else "-") for i in columns] for row in rows]


def _difference_rows(comparison: Comparison) -> list[list[str]]:
    several = len(comparison.pairs) > 1
    rows = [["system", "points", "", "won", "lost", "p", *(["p (Holm)"] if several else []), "test"]]
    for p in comparison.pairs:
        name = (
            shorten_name(p.first)
            if _has_one_baseline(comparison)
            else f"{shorten_name(p.first, 28)} - {shorten_name(p.second, 28)}"
        )
        interval = f"[{100 * p.low:+.1f}, {100 * p.high:+.1f}]"
        adjusted = [_format_p_value(p.adjusted_p_value)] if several else []
        test = p.test if p.total == comparison.problems else f"{p.test}; {p.total} problems"
        rows.append(
            [name, f"{100 * p.difference:+.1f}", interval, str(p.wins), str(p.losses), _format_p_value(p.p_value)]
        )
        rows[-1] += [*adjusted, test]
    return rows


def _reading_notes(systems: Sequence[Attempts]) -> list[str]:
    """What was read as what; once, where all were read alike."""
    ways = {s.reading_notes for s in systems}
    if len(ways) == 1:
        return [f"read: {line}" for line in ways.pop()]
    return [f"read {shorten_name(s.name)}: {line}" for s in systems for line in s.reading_notes]


def _format_amount(value: float | None, scale: float, form: str) -> str:
    return "" if value is None else f"{value * scale:{form}}"


def _format_p_value(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def shorten_name(name: str, wide: int = MAX_NAME_CHARS) -> str:
    """The end of a name tells more than its beginning."""
    line = escape_controls(" ".join(name.split()))
    return line if len(line) <= wide else f"...{line[3 - wide :]}"


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Words to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    words = {0, *(i for i, head in enumerate(rows[0]) if head == "test")}
    out = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        out.append("  ".join(cell.ljust(w) if i in words else cell.rjust(w) for i, (cell, w) in cells).rstrip())
    return out
