"""`ponder compare`: runs, and logs of other tools, side by side on the same problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ponder.cli.progress import print_json
from ponder.settings import GreaterThan, When
from ponder.terminal import escape_controls

if TYPE_CHECKING:
    from ponder.measure import Accuracy, MeanInterval
    from ponder.measure.readers import Attempts
    from ponder.measure.statistics.compare_systems import Comparison, SystemResult

Source = Annotated[
    str, "a run directory, a log (.parquet, .csv, .jsonl, .json), or LOG::SYSTEM of one that holds several"
]
Column = Annotated[
    list[str], "what a log's column is, as role=name (correct=passed, id=task_id, n=100); may be given again"
]
Select = Annotated[
    Literal["mean", "first", "majority", "weighted", "best", "logprob", "logprob_sum", "any", "chosen"] | None,
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
    k: Annotated[int | None, "also pass@k, G-Pass@k, mG-Pass@k and pass^k of k samples", GreaterThan(0)] = None,
    tau: Annotated[float, "the share of k samples that G-Pass@k wants right", When("k")] = 0.5,
    elo: Annotated[bool, "also Elo ratings: every problem is a game of every two systems"] = False,
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
        systems,
        select,
        common_problems,
        scorer,
        all_pairs,
        None if prices is None else read_prices(prices),
        k,
        tau,
        elo,
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
        out += _problems_needed_lines(comparison)
    if any(s.consistency for s in comparison.systems):
        out += ["", "consistency of k samples", "", *format_table(_consistency_rows(comparison.systems))]
    if comparison.rule == "mean" and any(s.clustered for s in comparison.systems):
        out += ["", "standard error of one sample's accuracy, in points, by where it comes from", ""]
        out += format_table(_clustered_rows(comparison.systems))
    if comparison.ratings:
        out += ["", "Elo ratings: every problem is a game, equal answers draw", ""]
        out += format_table(_rating_rows(comparison))
    notes = [*comparison.notes, *_reading_notes(systems)]
    return out + (["", *notes] if notes else [])


def _has_one_baseline(comparison: Comparison) -> bool:
    return len({p.second for p in comparison.pairs}) == 1


def _accuracy_rows(systems: Sequence[SystemResult]) -> list[list[str]]:
    rows = [["system", "samples", "accuracy", "undecided", "tokens", "TFLOP", "seconds", "dollars"]]
    for s in systems:
        few, most = s.samples
        rows.append([
            shorten_name(s.name), f"{few}" if few == most else f"{few}-{most}", _format_accuracy(s.accuracy),
            str(s.undecided) if s.undecided else "",
            _format_amount(s.tokens_per_problem, 1, ",.0f"), _format_amount(s.flops_per_problem, 1e-12, ".3g"),
            _format_amount(s.seconds_per_problem, 1, ".3g"), _format_amount(s.dollars_per_problem, 1, ".3g"),
        ])  # fmt: skip
    columns = [i for i in range(len(rows[0])) if i < 3 or any(row[i] for row in rows[1:])]
    return [[row[i] or ("" if i < 4 else "-") for i in columns] for row in rows]


def _format_accuracy(a: Accuracy | MeanInterval) -> str:
    """As everywhere, without what is said once for all systems."""
    count = f"{a.correct} of {a.total}" if hasattr(a, "correct") else f"mean of {a.total} problems"
    return f"{a.share} ({count})"


def _consistency_rows(systems: Sequence[SystemResult]) -> list[list[str]]:
    first = next(s.consistency for s in systems if s.consistency)
    head = [f"pass@{first.k}", f"G-Pass@{first.k}, tau {first.tau:g}", f"mG-Pass@{first.k}", f"pass^{first.k}"]
    rows = [["system", *head]]
    for s in systems:
        if c := s.consistency:
            cells = [c.pass_at_k, c.g_pass_at_k, c.mean_g_pass_at_k, c.pass_hat_k]
            rows.append([shorten_name(s.name), *(cell.share for cell in cells)])
    return rows


def _clustered_rows(systems: Sequence[SystemResult]) -> list[list[str]]:
    """More samples of each problem lower the second part only."""
    rows = [["system", "which problems", "what was sampled"]]
    for s in systems:
        if c := s.clustered:
            inner = "-" if c.sample_standard_error is None else f"{100 * c.sample_standard_error:.2f}"
            rows.append([shorten_name(s.name), f"{100 * c.problem_standard_error:.2f}", inner])
    return rows


def _rating_rows(comparison: Comparison) -> list[list[str]]:
    rows = [["system", "rating", "", "games"]]
    for r in comparison.ratings:
        rows.append([shorten_name(r.player), f"{r.rating:.0f}", f"[{r.low:.0f}, {r.high:.0f}]", f"{r.games:,}"])
    return rows


def _problems_needed_lines(comparison: Comparison) -> list[str]:
    """For differences that luck may explain: how many problems would tell."""
    out = []
    for p in comparison.pairs:
        if p.adjusted_p_value > 0.05 and p.problems_needed is not None:
            names = f"{shorten_name(p.first)} and {shorten_name(p.second)}"
            out.append(
                f"to tell {names} apart, were {100 * p.difference:+.1f} points the true difference, takes about"
                f" {p.problems_needed:,} problems like these {p.total:,} (80 % power)"
            )
    return ["", *out] if out else []


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
    notes = {s.reading_notes for s in systems}
    if len(notes) == 1:
        return [f"read: {line}" for line in notes.pop()]
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
