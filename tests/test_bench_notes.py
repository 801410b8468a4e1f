"""bench/NOTES.md: its table shows the numbers of the kept files, and every file that the page names exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import harness
import write_readme

PAGE = (harness.HERE / "NOTES.md").read_text(encoding="utf-8")
HEAD = "| figure | goal | reached | verdict | file | of the limit | what holds it back |\n" + "|---" * 7 + "|\n"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition(HEAD)[2].partition("\n\n")[0].splitlines()
]
KEPT = {path.stem: path for path in harness.RESULTS.glob("*.json")}


def kept_result(name: str) -> dict[str, Any]:
    """A file by its name, which without a machine is the H200's."""
    path = KEPT.get(name) or KEPT[f"{name}-nvidia-h200"]
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def values_under(value: Any, key: str, named: bool = False) -> Iterator[float]:
    """The numbers at or below `key`, wherever it is."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from values_under(each, key, named or name == key)
    elif isinstance(value, list):
        for each in value:
            yield from values_under(each, key, named)
    elif named and isinstance(value, int | float):
        yield float(value)


def shown_numbers(result: dict[str, Any], keys: list[str]) -> list[float]:
    """What a row may show: the figure, a peer's, their ratio, the share of the limit, and the values it names."""
    peers = [float(value) for value in result["peers"].values() if value is not None]
    named = [value for key in keys for value in values_under(result["details"], key)]
    ours = [float(result["ours"]), *named]
    ratios = [a / b for a, b in [(o, p) for o in ours for p in peers] + [(p, o) for o in ours for p in peers]]
    share = write_readme.limit_share(result)
    return [*ours, *peers, *ratios, *(r - 1 for r in ratios), *([] if share is None else [share])]


def is_shown(text: str, numbers: list[float]) -> bool:
    """The number of the text, to its own digits: as it is, in percent, or in 10^9 bytes."""
    digits = len(text.partition(".")[2])
    return any(round(scale * n, digits) == float(text.replace(",", "")) for n in numbers for scale in (1, 100, 1e-9))


def test_table_has_a_row_for_each_figure() -> None:
    assert len(ROWS) > 25 and {len(row) for row in ROWS} == {7}


@pytest.mark.parametrize("row", [row for row in ROWS if row[4] != "no file"], ids=lambda row: row[0])
def test_row_shows_the_numbers_of_its_file(row: list[str]) -> None:
    name, *keys = re.findall(r"`([^`]+)`", row[4])
    result = kept_result(name)
    for text in re.findall(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?", row[2]):
        assert is_shown(text, shown_numbers(result, keys)), f"{name} has no {text}"
    share = write_readme.limit_share(result)
    assert row[5] == ("–" if share is None else f"{100 * share:.0f} %")


def test_files_that_the_page_names_are_kept() -> None:
    benches = "|".join(sorted({re.split(r"[-_]", name)[0] for name in KEPT}))
    named = {n for n in re.findall(r"`([a-z][a-z0-9_.-]*)`", PAGE) if re.match(rf"(?:{benches})_", n)}
    kept = set(KEPT) | {name.rpartition(f"-{json.loads(p.read_text())['hardware']}")[0] for name, p in KEPT.items()}
    assert len(named) > 30 and named - kept == set()
