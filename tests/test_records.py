"""Lines of a run: what was written whole is read, a torn end is forgiven, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.errors import RunError
from ponder.records import as_written, open_append, records
from ponder.runs import read_findings, read_metrics, read_traces
from ponder.types import Problem, Step, Trace, ids, user


def add(path: Path, *rows: object) -> None:
    with open_append(path) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def held(path: Path) -> list[dict[str, object]]:
    return [record for _, record in records(path)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"step": 1, "x"', "it is not JSON"),
        ("\x00\x00\x00", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ('{"x": 1}', "it has no step"),
        ('{"step": "1"}', "it is no record"),
        ('{"step": true}', "it is no record"),
        ('{"resumed": null}', "it has no step"),
        ("[1]", "it is no record"),
        ("null", "it is no record"),
    ],
)
def test_damage_is_named_wherever_it_stands(line: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for place in range(3):
        lines = ['{"step":0}', '{"step":2}']
        lines.insert(place, line)
        path.write_text("\n".join(lines) + "\n")
        for read in (records, as_written):
            with pytest.raises(RunError) as error:
                list(read(path))
            assert str(error.value).startswith(f"{path}, line {place + 1} is damaged ({why}): ")
    path.write_text('{"step":0}\n\n{"step":1}\n' + line[:50])  # nothing is lost with an empty line, or a torn last one
    assert held(path) == [{"step": 0}, {"step": 1}]


def test_a_record_that_is_no_trace_or_no_metric(tmp_path: Path) -> None:
    whole = {"step": 0, **Trace(Problem("a", user("?")), [Step(None, "?", ids([1]))]).to_json()}
    for spoilt, why in (
        ({"step": 1}, "it has no 'problem'"),
        ({**whole, "steps": [{"parent": 7}]}, "damaged"),
        ({**whole, "steps": None}, "it is no trace"),
        ({**whole, "cost": {"gold": 1}}, "it is no trace"),
        ({**whole, "problem": "a"}, "it is no trace"),
    ):
        (tmp_path / "traces.jsonl").unlink(missing_ok=True)
        add(tmp_path / "traces.jsonl", whole, spoilt)
        with pytest.raises(RunError, match=r"traces\.jsonl, line 2 is damaged") as error:
            list(read_traces(tmp_path))
        assert why in str(error.value)
    for value in ("much", [1], {"a": 1}):
        (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
        add(tmp_path / "metrics.jsonl", {"step": 0, "loss": None}, {"step": 1, "loss": value})
        with pytest.raises(RunError, match=r"metrics\.jsonl, line 2 is damaged \('loss' is "):
            read_metrics(tmp_path)
    add(tmp_path / "metrics.jsonl", {"step": 2, "findings": "x"})
    with pytest.raises(RunError, match="line 2"):
        read_findings(tmp_path)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=6), min_size=1, max_size=5), st.data())
def test_cut_anywhere_what_was_whole_stays(texts: list[str], data: st.DataObject) -> None:
    """A crash can stop the writing after any byte. What comes next is read whole, and no line is ever damaged."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        rows = [{"step": i, "text": text} for i, text in enumerate(texts)]
        with open_append(path) as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:cut])
        ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
        kept = rows[: sum(end - 1 <= cut for end in ends)]  # the end of a line may be missing
        assert held(path) == kept
        add(path, {"step": 9})
        assert held(path) == [*kept, {"step": 9}] and path.read_bytes().endswith(b"\n")
        assert len(path.read_bytes().splitlines()) >= 1


def test_a_long_torn_line_goes_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    add(path, {"step": 0}, {"step": 1, "text": "y" * 200_000})
    path.write_bytes(path.read_bytes()[:-7])
    add(path, {"step": 2})
    assert held(path) == [{"step": 0}, {"step": 2}] and len(path.read_bytes()) < 100
