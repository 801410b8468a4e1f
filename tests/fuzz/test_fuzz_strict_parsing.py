"""Readers of tables, JSON lines and other tools' logs: rows come back as written, and any file is read or refused with
one of ponder's errors."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from fuzz.fuzzing import corpus, fuzz
from ponder.errors import PonderError
from ponder.measure.readers import read_log
from ponder.measure.readers.raw_files import load_data
from ponder.pipelines.problems.conversations import read_conversations
from ponder.strict_parsing import RowError, parse_csv, parse_json
from ponder.tasks.datasets.question_file import QuestionFile
from ponder.tasks.step_labels import read_labels as read_labels
from ponder.tasks.synthetic import read_problems, read_templates

READERS = (
    read_log,
    lambda path: read_conversations(str(path)),
    lambda path: read_conversations(str(path), pairs=True),
    read_problems,
    read_labels,
    read_templates,
    lambda path: QuestionFile(data=str(path)).test,
)
CELL = st.text(st.characters(exclude_characters="\0\r", codec="utf-8"))
LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=5)
    | st.sampled_from([10**400, -1, 1e308, "1", "0", "true", "[1, 0]", "inf", "1e999", "nan", "[[[[", "\ud800"])
)  # fmt: skip
# What readers look for in rows: a random name would never be looked at.
KEYS = st.sampled_from([
    "id", "question", "answer", "gold", "correct", "score", "tokens", "attempt", "text", "system", "task", "version",
    "n", "c", "pass@1", "samples", "sample_0", "sample_1", "results", "eval", "doc_id", "doc", "target", "resps",
    "filtered_resps", "exact_match", "exact_matches", "filter", "metrics", "step", "prompt", "completion", "advantage",
    "completions", "scores", "pred", "pred_naive@1", "idx", "ys", "usage_so_far", "epoch", "input", "output", "choices",
    "chosen", "rejected", "messages", "role", "content", "label", "labels", "steps", "name", "variables", "", "x",
])  # fmt: skip
DATA = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)
KNOWN = st.sampled_from([
    ("doc_id", "doc", "target", "resps"), ("step", "prompt", "completion", "advantage"), ("idx", "ys", "usage_so_far"),
    ("completions", "scores", "pred", "answer"), ("id", "epoch", "input", "target", "scores"), ("id", "correct"),
    ("id", "n", "c"), ("question", "answer", "gold"), ("id", "correct", "score", "tokens"),
    ("prompt", "completion", "label"),
])  # fmt: skip
LOGS = KNOWN.flatmap(
    lambda keys: st.lists(
        st.tuples(st.fixed_dictionaries(dict.fromkeys(keys, DATA)), st.dictionaries(KEYS, DATA, max_size=2)).map(
            lambda two: {**two[1], **two[0]}
        ),
        min_size=1,
        max_size=3,
    )
)


def walked(name: str, content: bytes) -> None:
    """Every reader reads this file, or says in a sentence why not."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, name)
        path.write_bytes(content)
        for use in READERS:
            try:
                use(path)  # type: ignore[operator]
            except PonderError as error:
                assert str(error)


def lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize(("name", "content"), corpus("strict_parsing"), ids=lambda text: text[:40])
def test_corpus_of_strict_parsing(name: str, content: str) -> None:
    walked(name, content.encode("utf-8", "surrogateescape"))
    if name.endswith("gz"):
        walked(name, gzip.compress(content.encode("utf-8", "surrogateescape")))


@fuzz(st.lists(st.lists(CELL, min_size=3, max_size=3), min_size=1), st.sampled_from(",\t;|"))
def test_csv_round_trips(rows: list[list[str]], mark: str) -> None:
    out = io.StringIO()
    csv.writer(out, delimiter=mark).writerows([["one", "two", "three"], *rows])
    assert [list(row.values()) for _, row in parse_csv(out.getvalue(), mark) if isinstance(row, dict)] == rows


@fuzz(st.text(st.sampled_from('ab,;\t|"\n\r\0 1')), st.sampled_from(",\t;|"))
def test_any_text_is_a_table_or_a_bad_row(text: str, mark: str) -> None:
    try:
        rows = parse_csv(text, mark)
    except RowError as bad:
        assert 1 <= bad.line <= text.count("\n") + text.count("\r") + 1
    else:
        assert all(isinstance(row, RowError) or len(row) == len(rows[0][1]) for _, row in rows[:1])
        assert [line for line, _ in rows] == sorted({line for line, _ in rows})


@fuzz(DATA)
def test_json_round_trips(value: Any) -> None:
    text = json.dumps(value)
    assert json.dumps(parse_json(text)) == text


@fuzz(LOGS)
def test_any_log_is_read_or_refused(rows: list[Any]) -> None:
    walked("log.jsonl", lines(rows))


@fuzz(DATA)
def test_any_json_is_read_or_refused(value: Any) -> None:
    walked("log.json", json.dumps(value).encode())


@fuzz(st.sampled_from(["a.csv", "a.tsv", "a.jsonl", "a.json", "a.csv.gz", "a.parquet"]), st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(name: str, content: bytes) -> None:
    walked(name, content)


@fuzz(LOGS, st.data())
def test_a_cut_or_changed_file_is_read_or_refused(rows: list[Any], data: st.DataObject) -> None:
    content = lines(rows)
    packed = data.draw(st.booleans())
    if packed:
        content = gzip.compress(content, mtime=0)
    at = data.draw(st.integers(0, len(content) - 1))
    end = data.draw(st.sampled_from([content[at + 1 :], b""]))
    walked("log.jsonl.gz" if packed else "log.jsonl", content[:at] + data.draw(st.binary(max_size=1)) + end)


@fuzz(st.lists(st.dictionaries(st.sampled_from("abc"), DATA), min_size=2, max_size=4))
def test_json_lines_round_trip(rows: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        path.write_bytes(lines(rows))
        assert json.dumps(load_data(path)) == json.dumps(rows)
