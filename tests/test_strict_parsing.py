"""Rows of files: what a lenient parser would lose is an error with its line, in every reader of such files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.errors import PonderError, TaskError
from ponder.measure.readers.raw_files import load_data
from ponder.pipelines.problems.conversations import read_conversations
from ponder.strict_parsing import RowError, parse_csv, parse_json
from ponder.tasks.datasets.custom import CustomTask
from ponder.tasks.datasets.question_file import QuestionFile
from ponder.tasks.question_identity import same_question_key
from ponder.tasks.step_labels import read_labels as read_labels
from ponder.tasks.synthetic import read_problems, read_templates

OPEN = 'id,question,answer\n1,What is 1 + 1?,2\n2,"What is 2 + 2?,4\n3,What is 3 + 3?,6\n'
BAD = {
    "an open quote": (OPEN, "line 3: a quote is opened in this row and never closed"),
    "a quote that the next row closes": (
        'id,question,answer\n1,"What is 1 + 1?,2\n2,"What is 2?",4\n', "line 2: after a closing quote a cell goes on",
    ),
    "a cell too few": ("id,question,answer\n1,What is 1 + 1?\n2,b,3\n", "line 2: 2 cells under 3 names"),
    "a cell too many": ("id,question,answer\n1,a,2\n\n2,b, c,3\n", "line 4: 4 cells under 3 names"),
    "two columns of one name": ("id,answer,question,answer\n1,2,b,3\n", "line 1: the column 'answer' stands there"),
    "a NUL byte": ("id,question,answer\n1,a,2\n2,b\0,3\n", "line 3: it has a NUL byte"),
}  # fmt: skip
READERS: dict[str, Callable[[Path], Any]] = {
    "logs": load_data,
    "questions": lambda path: QuestionFile(data=str(path)).test,
    "columns": lambda path: CustomTask(data=str(path), rewards=("ponder.tasks.synthetic.problem_rows:accuracy",)).train,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("what", BAD)
def test_lossy_tables_are_refused(what: str, reader: str, tmp_path: Path) -> None:
    text, wanted = BAD[what]
    path = tmp_path / "t.csv"
    path.write_text(text.replace("question", "prompt") if reader == "columns" else text)
    with pytest.raises(PonderError) as error:
        READERS[reader](path)
    assert f"{path}, {wanted}" in str(error.value)


def test_only_a_ragged_row_may_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('id,question,answer\n1,"two\nlines",2\n2,b\n3,c,4\n')
    with pytest.warns(UserWarning, match=r"line 4: 2 cells under 3 names"):
        result = QuestionFile(data=str(path), bad_rows="skip").test
    assert [p.answer for p in result] == ["2", "4"]
    path.write_text(OPEN)
    with pytest.raises(TaskError, match="never closed"):
        QuestionFile(data=str(path), bad_rows="skip").test  # noqa: B018


def test_valid_tables_are_parsed(tmp_path: Path) -> None:
    text = '\n a,"b ""x""",\n\n"1,\n2",5" pipe,\n'
    assert parse_csv(text) == [(4, {" a": "1,\n2", 'b "x"': '5" pipe', "": ""})]
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfid;correct\r\n1;1\r\n   \r\n2;0\r\n")
    assert load_data(path) == [{"id": "1", "correct": "1"}, {"id": "2", "correct": "0"}]


CELLS = st.lists(st.lists(st.text(st.characters(exclude_characters="\0\r", codec="utf-8")), min_size=2, max_size=2))


@given(CELLS)
def test_csv_writer_round_trip(rows: list[list[str]]) -> None:
    import csv
    import io

    out = io.StringIO()
    csv.writer(out).writerows([["one", "two"], *rows])
    assert [list(row.values()) for _, row in parse_csv(out.getvalue()) if isinstance(row, dict)] == rows


JSON_READERS: dict[str, tuple[dict[str, Any], Callable[[Path], Any]]] = {
    "conversations": ({"prompt": "a", "completion": "b"}, lambda path: read_conversations(str(path))),
    "pairs": ({"prompt": "a", "chosen": "b", "rejected": "c"}, lambda path: read_conversations(str(path), pairs=True)),
    "problems": ({"prompt": "a", "answer": "b"}, read_problems),
    "labels": ({"prompt": "a", "completion": "b", "label": 1}, read_labels),
    "questions": ({"question": "a", "answer": "b"}, lambda path: QuestionFile(data=str(path)).test),
    "templates": ({"name": "t", "question": "{a}?", "variables": {"a": [1, 2]}, "answer": "a"}, read_templates),
}


@pytest.mark.parametrize("reader", JSON_READERS)
def test_lines_of_json(reader: str, tmp_path: Path) -> None:
    """A byte order mark and blank lines are nothing; a key that stands twice and a line that was cut are errors."""
    row, read = JSON_READERS[reader]
    path, text = tmp_path / "rows.jsonl", json.dumps(row)
    path.write_text(f"\ufeff\n{text}\n  \n")
    assert len(read(path)) == 1
    last = list(row)[-1]
    for bad in (f"{text[:-1]}, {json.dumps(last)}: 7}}", text[:-5]):
        path.write_text(f"{text}\n{bad}\n")
        with pytest.raises(TaskError, match=r"line 2|JSON"):
            read(path)
    assert parse_json(text) == row
    with pytest.raises(ValueError, match="the key 'b' stands there twice"):
        parse_json('{"a": {"b": 1, "b": 2}}')


def test_nulls_of_a_parquet_file_are_named(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for place, (questions, answers) in enumerate((([None, "b"], ["1", "2"]), (["a", "b"], ["1", None]))):
        path = tmp_path / f"{place}.parquet"
        parquet.write_table(arrow.table({"question": questions, "answer": answers}), path)
        with pytest.raises(TaskError, match=f"row {place + 1}: malformed .*no question or no answer"):
            QuestionFile(data=str(path)).test  # noqa: B018


def test_questions_in_any_script_are_told_apart(tmp_path: Path) -> None:
    """Two that differ in their words, and not in their figures, are two: the second may be trained on."""
    test, train = tmp_path / "test.jsonl", tmp_path / "train.jsonl"
    test.write_text(json.dumps({"question": "小明有12个苹果?", "answer": "12"}) + "\n")
    rows = ["小红有12只猫?", "小明有12个苹果", "ещё вопрос"]
    train.write_text("".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in rows))
    result = QuestionFile(data=str(test), train_data=str(train), style="plain").train
    assert [p.question for p in result] == [rows[0], rows[2]]
    assert same_question_key("What's 2+2 ?") == same_question_key("what s 2 2") and same_question_key("??") == "??"


def test_row_error_names_its_line() -> None:
    assert str(RowError(3, "oops")) == "line 3: oops"
