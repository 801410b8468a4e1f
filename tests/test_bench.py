"""The bench scaffold: results are whole, and the page shows them as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import harness
import table

BENCH = harness.HERE


def test_page_is_current() -> None:
    assert (BENCH / "README.md").read_text(encoding="utf-8") == table.render(table.load()), "run: python bench/table.py"


@pytest.mark.parametrize("path", sorted((BENCH / "results").glob("*.json")), ids=lambda p: p.stem)
def test_result_is_whole(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    assert set(harness.KEYS) <= result.keys()
    assert path.stem == f"{result['name']}-{result['hardware']}"
    assert result["commit"] != "unknown", "measured outside a repository: set PONDER_COMMIT there"
    scripts = [p.stem for p in BENCH.glob("*.py") if result["name"].startswith(p.stem)]
    assert scripts, "a result without its script cannot be measured again"


def test_report_ends_with_the_object_it_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = harness.report(
        "adding", "add two numbers", 30.0, {"slow": 10.0, "fast": 20.0, "gone": None}, limit=1.0,
        unit="sums/s", packages=["numpy", "no-such-package"], results=tmp_path,
    )  # fmt: skip
    shown = capsys.readouterr().out.splitlines()
    (path,) = tmp_path.iterdir()
    assert json.loads(shown[-1]) == json.loads(path.read_text(encoding="utf-8")) == kept
    assert set(harness.KEYS) <= kept.keys()
    assert kept["ratio"] == 1.5
    assert kept["versions"]["no-such-package"] == "absent"
    assert path.stem == f"adding-{kept['hardware']}"
    assert any("not measured here" in line for line in shown)
    assert "| adding | add two numbers | 30 sums/s | slow 10, fast 20, gone – | 1.50 | 1.00 |" in table.render([kept])


def test_ratio_above_one_means_ponder_wins() -> None:
    assert harness.best_ratio(2.0, {"a": 8.0, "b": 4.0}, "lower") == 2.0
    assert harness.best_ratio(2.0, {"a": 8.0, "b": 4.0}, "higher") == 0.25
    assert harness.best_ratio(2.0, {"a": None}) is None


def test_names_fit_a_file() -> None:
    assert harness.slug("NVIDIA H200") == "nvidia-h200"
    assert harness.slug("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz 14") == "intel-xeon-e5-2690-v4-14"
    assert harness.slug(harness.hardware()) == harness.hardware() != ""
    with pytest.raises(ValueError, match="lower-case"):
        harness.report("No Good", "", 1.0, {})


def test_an_incomplete_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"name": "half"}')
    with pytest.raises(SystemExit, match=r"half\.json lacks work"):
        table.load(tmp_path)


def test_seconds_is_the_median_after_warming_up() -> None:
    calls: list[int] = []
    assert harness.seconds(lambda: calls.append(1), repeats=3, warmup=2) >= 0
    assert len(calls) == 5
