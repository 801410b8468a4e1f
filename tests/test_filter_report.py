"""The funnel: counts, reasons, and an end where nothing is left."""

from __future__ import annotations

import pytest

from ponder.errors import TaskError
from ponder.filter_report import FilterReport


def test_counts_and_reasons():
    funnel = FilterReport()
    funnel.add("traces", 1200)
    kept = [n for n in range(1200) if funnel.record("even", n % 2 == 0, "odd")]
    assert len(kept) == funnel.stages["even"] == 600
    assert funnel.require_some("few", kept[:3], {"too many": 597, "never": 0}) == [0, 2, 4]
    assert funnel.lines() == [
        "  traces  1,200",
        "  even      600   - 600 odd",
        "  few         3   - 597 too many",
    ]
    assert funnel.to_json()[2] == {"stage": "few", "count": 3, "dropped": {"too many": 597}}
    assert FilterReport.from_json(funnel.to_json()) == funnel


def test_only_the_most_common_reasons_are_listed():
    funnel = FilterReport()
    for n, why in enumerate(["a", "b", "b", "c", "c", "c", "d" * 100, "e"]):
        funnel.record("s", False, why)
        assert funnel.stages["s"] == 0 and n >= 0
    (line,) = funnel.lines()
    assert line.endswith("- 3 c, 2 b, 1 a, 2 others")
    assert max(map(len, funnel.dropped["s"])) == 60


def test_empty_stage_raises_with_the_report():
    funnel = FilterReport()
    funnel.add("problems", 7)
    with pytest.raises(TaskError) as error:
        funnel.require_some("new", [], {"seen before": 7})
    assert str(error.value).splitlines() == [
        "nothing is left at the stage 'new':",
        "  problems  7",
        "  new       0   - 7 seen before",
    ]
    assert FilterReport().lines() == []
