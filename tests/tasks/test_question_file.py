"""A file of questions and answers as a task: AIME-style files, whatever their columns are called."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from ponder.errors import TaskError, UnknownName, UsageError
from ponder.runs import job_json
from ponder.tasks import QuestionFile

AIME: list[dict[str, Any]] = [
    {"ID": "2024-I-1", "Problem": "Find m + n.", "Solution": "long", "Answer": 204},
    {"ID": "2024-I-2", "Problem": "Find xy.", "Solution": "longer", "Answer": "025"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist([{k: str(v) for k, v in r.items()} for r in rows]), path)
    else:
        with open(path, "w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_aime_style_files(tmp_path: Path, suffix: str) -> None:
    task = QuestionFile(data=write(tmp_path / f"aime{suffix}", AIME))
    first, second = task.test
    assert first.id == "questions/test/2024-I-1"
    assert "Find m + n." in first.question and "boxed" in first.question
    assert task.verifier.grade("so \\boxed{204}", first.answer).value == 1.0  # type: ignore[attr-defined]
    assert task.verifier.grade("so \\boxed{25}", second.answer).value == 1.0, "025 is 25"  # type: ignore[attr-defined]
    assert task.verifier.grade("so \\boxed{24}", second.answer).value == 0.0  # type: ignore[attr-defined]
    assert job_json.decode(job_json.encode(task)) == task


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "q.csv", [{"frage": "2+2?", "loesung": "4"}])
    task = QuestionFile(data=path, question="frage", answer="loesung", answer_type="number")
    assert task.test[0].answer == "4"
    with pytest.raises(TaskError, match="no column 'problem or question' among frage, loesung"):
        QuestionFile(data=path).test  # noqa: B018
    with pytest.raises(UnknownName, match="answer_type"):
        QuestionFile(data=path, answer_type="maths")  # type: ignore[arg-type]


def test_a_row_without_an_answer_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", [{"problem": "a", "answer": "1"}, {"problem": "b", "answer": None}])
    with pytest.raises(TaskError, match="line 2"):
        QuestionFile(data=path).test  # noqa: B018
    with pytest.warns(UserWarning, match="left out"):
        assert len(QuestionFile(data=path, bad_rows="skip").test) == 1


def test_training_without_other_questions_is_refused(tmp_path: Path) -> None:
    asked = write(tmp_path / "test.jsonl", [{"problem": "What is 2 + 2?", "answer": "4"}])
    with pytest.raises(TaskError, match="train_data=FILE"):
        QuestionFile(data=asked).train  # noqa: B018
    rows = [{"problem": "what is 2 + 2", "answer": "4"}, {"problem": "What is 2 + 3?", "answer": "5"}]
    task = QuestionFile(data=asked, train_data=write(tmp_path / "train.jsonl", rows))
    assert [p.answer for p in task.train] == ["5"], "a question to measure with is not trained on"
    with pytest.raises(TaskError, match="has no question that"):
        QuestionFile(data=asked, train_data=asked).train  # noqa: B018


def test_invalid_question_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"give \.jsonl"):
        QuestionFile(data="questions.txt").test  # noqa: B018
    with pytest.raises(UsageError, match="cannot be filled in"):
        QuestionFile(data="q.csv", prompt="{q}")


@pytest.mark.parametrize("answer", [float("inf"), float("nan")])
def test_an_answer_that_is_no_number_is_a_bad_row(tmp_path: Path, answer: float) -> None:
    data = write(tmp_path / "own.jsonl", [{"question": "a?", "answer": 1.0}, {"question": "b?", "answer": answer}])
    with pytest.raises(TaskError, match=r"line 2: .*no number"):
        QuestionFile(data=data).test  # noqa: B018
    with pytest.warns(UserWarning, match="left out"):
        assert [p.answer for p in QuestionFile(data=data, bad_rows="skip").test] == ["1"]
