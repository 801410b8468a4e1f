"""docs/effort.py: the page is that of the kept answers, more effort pays, and a run of its own at the smallest size."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ponder.reason.effort import EFFORTS
from ponder.tasks import Sums
from serve.served_folders import save_policy

DOCS = Path(__file__).parent.parent / "docs"
spec = importlib.util.spec_from_file_location("effort_page", DOCS / "effort.py")  # a recipe has the name effort, too
assert spec is not None and spec.loader is not None
effort = importlib.util.module_from_spec(spec)
sys.modules["effort_page"] = effort  # dataclasses look for it
spec.loader.exec_module(effort)


def kept_results() -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text())
        for name in effort.CASES
        if (path := DOCS / "results" / f"effort-{name}.json").exists()
    ]


def test_page_is_that_of_the_kept_results() -> None:
    results = kept_results()
    assert results, "nothing is kept: python docs/effort.py tiny"
    assert (DOCS / "effort.md").read_text() == effort.page(results), "run: python docs/effort.py --render"
    assert all((DOCS / "figures" / f"effort-{result['case']}.png").exists() for result in results)


@pytest.mark.parametrize("result", kept_results(), ids=lambda result: result["case"])
def test_max_beats_none_in_every_task(result: dict[str, Any]) -> None:
    assert len(result["tasks"]) == 2
    for efforts in result["tasks"].values():
        assert set(efforts) == set(EFFORTS)
        both = [efforts[name]["right"] for name in ("max", "none")]
        gain = effort.paired_difference(*(list(map(bool, right)) for right in both))
        assert gain.low > 0
        assert effort.mean(efforts["max"]["tokens"]) > effort.mean(efforts["none"]["tokens"])


def test_table_has_plain_counts() -> None:
    efforts = {
        "none": {"right": [1, 0, 0, 0], "tokens": [10, 10, 10, 30], "seconds": 1.0},
        "max": {"right": [1, 1, 1, 0], "tokens": [100, 100, 100, 100], "seconds": 1.0},
    }
    text = effort.section({"case": "tiny", "command": "x", "machine": "y", "tasks": {"sums": efforts}})
    assert "| `none` | 25.0 %" in text and "(1 of 4" in text and "| 15 |  |" in text
    assert "| `max` | 75.0 %" in text and "| 100 | +50.0 [" in text and "; 2 won, 0 lost |" in text


def test_labels_of_points_with_about_as_many_tokens_are_joined() -> None:
    labels = list(effort.labels(["none", "minimal", "low", "high", "xhigh", "max"], [33, 33, 34, 1000, 1500, 2000]))
    assert labels == [("none, minimal, low", 0, False), ("high", 3, False), ("xhigh", 4, True), ("max", 5, False)]


def test_run_asks_a_live_server_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")
    case = effort.Case("A test", str(save_policy(tmp_path / "model")), {"sums": lambda: Sums(terms=2, limit=5)})
    monkeypatch.setitem(effort.CASES, "test", case)
    monkeypatch.setattr(effort, "ORDER", ("none", "minimal"))
    effort.measure_case("test", 3, "cpu", tmp_path)
    kept = json.loads((tmp_path / "effort-test.json").read_text())
    for name, one in kept["tasks"]["sums"].items():
        assert len(one["right"]) == len(one["tokens"]) == 3
        assert all(0 < tokens <= (EFFORTS[name].budget.tokens or 0) for tokens in one["tokens"])
    assert "sums, minimal" in capsys.readouterr().out
    effort.measure_case("test", 3, "cpu", tmp_path)
    assert "sums" not in capsys.readouterr().out  # all of it was kept
