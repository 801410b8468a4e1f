"""Any table of attempts, however it is laid out, gives the same numbers; what is unclear is asked, never guessed."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ponder.errors import UnknownName, UsageError
from ponder.measure.readers import (
    Attempts,
    ColumnMap,
    ProblemAttempts,
    align_problems,
    read_log,
    read_logs,
    short_labels,
)

Matrix = list[list[int]]
MATRIX: Matrix = [[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]


def write_json(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    with open(path, "w", newline="") as file:
        out = csv.DictWriter(file, list(rows[0]))
        out.writeheader()
        out.writerows(rows)
    return path


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def wide(m: Matrix) -> list[dict[str, Any]]:
    return [{"problem_id": f"p{i}", "is_correct": [bool(x) for x in row]} for i, row in enumerate(m)]


def long(m: Matrix, right: Any = True, wrong: Any = False) -> list[dict[str, Any]]:
    """One row per attempt, in the order of the attempts: all first ones, then all second ones, ..."""
    return [
        {"problem_id": f"p{i}", "sample_idx": j, "passed": right if m[i][j] else wrong}
        for j in range(len(m[0]))
        for i in range(len(m))
    ]


def counts(m: Matrix) -> list[dict[str, Any]]:
    return [{"problem_id": f"p{i}", "num_samples": len(r), "num_correct": sum(r)} for i, r in enumerate(m)]


LAYOUTS: dict[str, Callable[[Path, Matrix], Path]] = {
    "wide jsonl": lambda f, m: write_lines(f / "a.jsonl", wide(m)),
    "wide json": lambda f, m: write_json(f / "a.json", wide(m)),
    "wide json under a name": lambda f, m: write_json(f / "a.json", {"results": wide(m), "mean": 0.5, "model": "x"}),
    "wide parquet": lambda f, m: write_parquet(f / "a.parquet", wide(m)),
    "jsonl called json": lambda f, m: write_lines(f / "a.json", wide(m)),
    "columns": lambda f, m: write_json(
        f / "a.json", {"id": [f"p{i}" for i in range(len(m))], "correct": [[bool(x) for x in r] for r in m]}
    ),
    "problems by id": lambda f, m: write_json(f / "a.json", {f"p{i}": row for i, row in enumerate(m)}),
    "problems by id, objects": lambda f, m: write_json(
        f / "a.json", {f"p{i}": {"corrects": row, "level": 3} for i, row in enumerate(m)}
    ),
    "problems by id, under a name": lambda f, m: write_json(
        f / "a.json", {"date": "x", "eval": {f"p{i}": [{"passed": bool(x)} for x in row] for i, row in enumerate(m)}}
    ),
    "numbered objects": lambda f, m: write_json(
        f / "a.json", {f"p{i}": [[j, {"passed": bool(x)}] for j, x in enumerate(row)] for i, row in enumerate(m)}
    ),
    "matrix": lambda f, m: write_json(f / "a.json", m),
    "objects in lists": lambda f, m: write_lines(
        f / "a.jsonl", [{"idx": i, "infos": [{"r": x} for x in row]} for i, row in enumerate(m)]
    ),
    "numbered columns": lambda f, m: write_csv(
        f / "a.csv", [{"task_id": f"p{i}", **{f"sample_{j}": x for j, x in enumerate(row)}} for i, row in enumerate(m)]
    ),
    "numbers alone for columns": lambda f, m: write_csv(
        f / "a.csv", [{"qid": f"p{i}", **{str(j): bool(x) for j, x in enumerate(row)}} for i, row in enumerate(m)]
    ),
    "lists as text in csv": lambda f, m: write_csv(
        f / "a.csv", [{"problem_id": f"p{i}", "correct": str([bool(x) for x in row])} for i, row in enumerate(m)]
    ),
    "arrays as text in csv": lambda f, m: write_csv(
        f / "a.csv", [{"problem_id": f"p{i}", "correct": f"[{' '.join(map(str, row))}]"} for i, row in enumerate(m)]
    ),
    "long csv": lambda f, m: write_csv(f / "a.csv", long(m)),
    "long csv, words": lambda f, m: write_csv(f / "a.csv", long(m, "correct", "incorrect")),
    "long csv, 0 and 1": lambda f, m: write_csv(f / "a.csv", long(m, 1, 0)),
    "long parquet": lambda f, m: write_parquet(f / "a.parquet", long(m)),
    "long jsonl, text": lambda f, m: write_lines(f / "a.jsonl", long(m, "True", "False")),
    "counts csv": lambda f, m: write_csv(f / "a.csv", counts(m)),
    "counts parquet": lambda f, m: write_parquet(f / "a.parquet", counts(m)),
    "counts, short names": lambda f, m: write_lines(
        f / "a.jsonl", [{"id": i, "n": len(r), "c": sum(r)} for i, r in enumerate(m)]
    ),
    "attempts by temperature": lambda f, m: write_json(
        f / "a.json",
        {
            str(i): {"problem": f"q{i}", "responses": {"0.7": [{"content": "x", "correctness": bool(x)} for x in row]}}
            for i, row in enumerate(m)
        },
    ),
    "samples as objects": lambda f, m: write_lines(
        f / "a.jsonl",
        [{"problem": f"q{i}", "samples": [{"text": "t", "correct": bool(x)} for x in r]} for i, r in enumerate(m)],
    ),
    "counts, long names": lambda f, m: write_csv(
        f / "a.csv", [{"problem": f"q{i}", "num_trials": len(r), "num_successes": sum(r)} for i, r in enumerate(m)]
    ),
    "a rate and its samples": lambda f, m: write_lines(
        f / "a.jsonl", [{"id": i, "n": len(r), "pass_rate": sum(r) / len(r)} for i, r in enumerate(m)]
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_counts(tmp_path: Path, layout: str) -> None:
    (log,) = read_log(LAYOUTS[layout](tmp_path, MATRIX))
    n, c = log.counts
    assert n.tolist() == [3, 3, 3, 3]
    assert c.tolist() == [2, 0, 3, 1]
    assert len(log.problems) == 4
    assert any(line.startswith("columns: ") for line in log.reading_notes), "what was read as what is shown"


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if not name.startswith(("counts", "a rate"))])
def test_attempts_keep_their_order(tmp_path: Path, layout: str) -> None:
    (log,) = read_log(LAYOUTS[layout](tmp_path, MATRIX))
    assert [list(g.correct) for g in log.groups] == MATRIX


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    matrix=st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 1), min_size=n, max_size=n), min_size=2, max_size=6)
    ),
    layout=st.sampled_from([n for n in LAYOUTS if "parquet" not in n]),
)
def test_any_verdicts_survive_any_layout(tmp_path: Path, matrix: Matrix, layout: str) -> None:
    """Above all where all are right, all wrong, or each problem has one attempt."""
    for old in tmp_path.iterdir():
        old.unlink()
    try:
        (log,) = read_log(LAYOUTS[layout](tmp_path, matrix))
    except UsageError:  # asked, not guessed: a lone column of one value may be anything
        assert len(matrix[0]) == 1
        return
    assert log.counts[1].tolist() == [sum(row) for row in matrix]
    assert log.counts[0].tolist() == [len(row) for row in matrix]


def test_packed_and_marked_text_is_read(tmp_path: Path) -> None:
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + "".join(json.dumps(r) + "\n" for r in wide(MATRIX)).encode()))
    (log,) = read_log(packed)
    assert log.counts[1].tolist() == [2, 0, 3, 1]
    assert log.name == "a"


def test_a_folder_of_shards_is_one_log(tmp_path: Path) -> None:
    rows = wide(MATRIX)
    write_parquet(tmp_path / "train-00000.parquet", rows[:2])
    write_parquet(tmp_path / "train-00001.parquet", rows[2:])
    (log,) = read_log(tmp_path)
    assert log.problems == ["p0", "p1", "p2", "p3"]


def test_texts_of_a_large_file_can_stay_on_the_disk(tmp_path: Path) -> None:
    rows = [{**r, "response": ["x"] * 3, "samples": ["y"] * 3} for r in wide(MATRIX)]
    path = write_parquet(tmp_path / "a.parquet", rows)
    assert read_log(path)[0].groups[0].texts == ("x", "x", "x")
    assert read_log(path, texts=False)[0].groups[0].texts is None
    assert read_log(path, ColumnMap(text="samples"), texts=False)[0].groups[0].texts == ("y", "y", "y"), (
        "unless asked for"
    )
    assert read_log(path, texts=False)[0].counts[1].tolist() == [2, 0, 3, 1]
    bare = write_parquet(tmp_path / "b.parquet", [{"id": 1, "response": ["\\boxed{4}"], "gold": "4"}])
    assert read_log(bare, texts=False)[0].counts[1].tolist() == [1], "without verdicts they are needed"


def test_one_verdict_by_id_is_enough(tmp_path: Path) -> None:
    (log,) = read_log(write_json(tmp_path / "a.json", {"p1": True, "p2": False, "p3": True}))
    assert log.counts[1].tolist() == [1, 0, 1]


def test_parquet_without_its_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "a.parquet", wide(MATRIX))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(Exception, match=r"pip install 'ponder\[hf\]'"):
        read_log(path)


# Verdicts, scores and answers


def test_an_empty_verdict_is_undecided_not_wrong(tmp_path: Path) -> None:
    (log,) = read_log(
        write_lines(tmp_path / "a.jsonl", [{"id": 1, "correct": [True, None, False]}, {"id": 2, "correct": []}])
    )
    assert log.groups[0].correct == (1.0, None, 0.0)
    assert log.counts[0].tolist() == [2, 0]
    assert log.problems_without_verdict == ["2"]
    assert any("1 attempts have no verdict" in line for line in log.reading_notes)
    assert any("1 problems have no attempts" in line for line in log.reading_notes)


def test_other_words_for_right_must_be_said(tmp_path: Path) -> None:
    rows = [{"id": i, "result": "timed out" if i else "passed"} for i in range(4)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(UsageError, match="right=VALUE"):
        read_log(path, ColumnMap(correct="result"))
    (log,) = read_log(path, ColumnMap(correct="result", right="passed"))
    assert log.counts[1].tolist() == [1, 0, 0, 0]


def test_minus_one_is_no_verdict(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"id": i, "label": x} for i, x in enumerate([1, -1, 1])])
    with pytest.raises(UsageError, match="no column says which attempts are right"):
        read_log(path)
    (log,) = read_log(path, ColumnMap(correct="label", right="1"))
    assert log.counts[1].tolist() == [1, 0, 1]


def test_scores_answers_tokens_and_texts_are_found(tmp_path: Path) -> None:
    rows = [
        {
            "idx": i, "question": f"q{i}", "gt": "7", "pred": ["7", "8"], "score": [True, False],
            "pred_score": [[0.9], [0.4, 0.8]], "response": ["a", "b"], "completion_tokens": [5, 6],
        }
        for i in range(2)
    ]  # fmt: skip
    (log,) = read_log(write_lines(tmp_path / "a.jsonl", rows))
    first = log.groups[0]
    assert first.correct == (1.0, 0.0)
    assert first.answers == ("7", "8")
    assert first.scores == {"score": (0.9, 0.4)}, "step scores count by the lowest"
    assert (first.tokens, first.texts, first.gold, first.question) == ((5, 6), ("a", "b"), "7", "q0")
    (last,) = read_log(tmp_path / "a.jsonl", ColumnMap(step_score_reduction="last"))
    assert last.groups[0].scores == {"score": (0.9, 0.8)}


def test_a_missing_score_is_counted(tmp_path: Path) -> None:
    rows = [{"id": i, "correct": [1, 0], "rm_score": [0.5, None if i else 0.1]} for i in range(2)]
    (log,) = read_log(write_lines(tmp_path / "a.jsonl", rows))
    assert log.groups[1].scores["score"] == (0.5, None)
    assert any("1 attempts have no score" in line for line in log.reading_notes)


def test_without_verdicts_answers_are_compared_with_gold(tmp_path: Path) -> None:
    rows = [{"id": i, "answer": "1/2", "preds": ["0.5", "\\frac{1}{2}", "2", None]} for i in range(2)]
    (log,) = read_log(write_lines(tmp_path / "a.jsonl", rows))
    assert log.groups[0].correct == (1.0, 1.0, 0.0, 0.0)
    assert any("no verdicts" in line for line in log.reading_notes)


def test_more_answers_than_verdicts_is_an_error(tmp_path: Path) -> None:
    rows = [{"id": 1, "correct": [1, 0], "pred": ["a", "b", "c"]}]
    with pytest.raises(UsageError, match=r"2 verdicts and 3 answers"):
        read_log(write_lines(tmp_path / "a.jsonl", rows))


# Which column is what


def test_a_row_number_is_not_the_problem_where_a_question_repeats(tmp_path: Path) -> None:
    rows = [{"index": 2 * i + j, "question": f"what is {i}?", "correct": j} for i in range(3) for j in range(2)]
    (log,) = read_log(write_csv(tmp_path / "a.csv", rows))
    assert log.counts[0].tolist() == [2, 2, 2]


def test_an_attempts_number_is_no_verdict(tmp_path: Path) -> None:
    rows = [{"id": f"p{i}", "attempt": j, "ok": i == j} for i in range(3) for j in range(2)]
    (log,) = read_log(write_csv(tmp_path / "a.csv", rows))
    assert log.counts[1].tolist() == [1, 1, 0]


def test_counts_of_0_and_1_beside_n_are_counts(tmp_path: Path) -> None:
    (log,) = read_log(write_csv(tmp_path / "a.csv", [{"id": i, "n": 100, "correct": i % 2} for i in range(4)]))
    assert log.counts[0].tolist() == [100] * 4
    assert log.counts[1].tolist() == [0, 1, 0, 1]


def test_n_beside_one_row_per_attempt_is_no_count(tmp_path: Path) -> None:
    rows = [{"problem_id": i, "n": 2, "correct": j} for i in range(3) for j in range(2)]
    (log,) = read_log(write_csv(tmp_path / "a.csv", rows))
    assert log.counts[0].tolist() == [2, 2, 2]
    assert log.counts[1].tolist() == [1, 1, 1]


def test_a_number_of_samples_can_be_given(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [{"name": f"x{i}", "hits": i} for i in range(3)])
    (log,) = read_log(path, ColumnMap(id="name", n="10", c="hits"))
    assert log.counts[0].tolist() == [10, 10, 10]
    assert log.counts[1].tolist() == [0, 1, 2]


def test_a_rate_that_is_no_whole_number_of_samples_is_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [{"id": 0, "n": 10, "solve_rate": 0.25}])
    with pytest.raises(UsageError, match="row 1"):
        read_log(path)


def test_more_right_than_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="5 right of 4 samples"):
        read_log(write_csv(tmp_path / "a.csv", [{"id": 0, "n": 4, "c": 5}]))


def test_two_columns_that_fit_equally_well_are_asked_about(tmp_path: Path) -> None:
    rows = [{"id": i, "gpt": i % 2, "llama": 1 - i % 2} for i in range(4)]
    path = write_csv(tmp_path / "a.csv", rows)
    with pytest.raises(UsageError, match="systems=gpt,llama"):
        read_log(path)
    one, other = read_log(path, ColumnMap(systems="gpt,llama"))
    assert (one.name, other.name) == ("a: gpt", "a: llama")
    assert one.counts[1].tolist() == [0, 1, 0, 1]
    assert other.counts[1].tolist() == [1, 0, 1, 0]
    (joined,) = read_log(path, ColumnMap(correct="gpt,llama"))
    assert joined.counts[0].tolist() == [2] * 4


def test_a_column_of_any_name_is_asked_about(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [{"id": i, "truncated": i % 2} for i in range(4)])
    with pytest.raises(UsageError, match="is truncated the verdict"):
        read_log(path)
    assert read_log(path, ColumnMap(correct="truncated"))[0].counts[1].sum() == 2
    (log,) = read_log(
        write_csv(tmp_path / "b.csv", [{"id": i, "math_match": i % 2, "truncated": 1 - i % 2} for i in range(4)])
    )
    assert log.counts[1].tolist() == [0, 1, 0, 1], "a telling word in its name is enough"


def test_a_label_beside_predictions_is_gold(tmp_path: Path) -> None:
    rows = [{"id": i, "label": i % 2, "prediction": 1} for i in range(4)]
    with pytest.raises(UsageError, match=r"no column says|the verdict"):
        read_log(write_csv(tmp_path / "a.csv", rows))


def test_verdicts_beside_a_total_of_anything_are_asked_about(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [{"id": i, "correct": i % 2, "total": 512} for i in range(4)])
    with pytest.raises(UsageError, match="correct may be verdicts, or counts of total"):
        read_log(path)
    assert read_log(path, ColumnMap(correct="correct"))[0].counts[0].tolist() == [1] * 4
    assert read_log(path, ColumnMap(n="total", c="correct"))[0].counts[0].tolist() == [512] * 4


def test_unequal_numbers_of_attempts_are_shown(tmp_path: Path) -> None:
    rows = [{"task_id": i, "passed": True} for i in (0, 0, 0, 1, 1, 1, 2, 2)]
    (log,) = read_log(write_csv(tmp_path / "a.csv", rows))
    assert any("problems have 2 to 3 attempts, the fewest at '2'" in line for line in log.reading_notes)


def test_a_second_choice_is_shown(tmp_path: Path) -> None:
    rows = [{"id": i, "base_status": "pass", "plus_status": "fail" if i else "pass"} for i in range(3)]
    (log,) = read_log(write_csv(tmp_path / "a.csv", rows))
    assert log.counts[1].tolist() == [1, 0, 0]
    assert any("could also be base_status" in line for line in log.reading_notes)


def test_a_column_that_is_passed_over_is_shown(tmp_path: Path) -> None:
    """EvalPlus's results: a status may be pass, fail or timeout."""
    tried = [{"base_status": "pass", "plus_status": s} for s in ("pass", "fail", "timeout")]
    path = write_json(tmp_path / "a.json", {"date": "x", "eval": {f"HumanEval/{i}": tried for i in range(3)}})
    (log,) = read_log(path)
    assert log.counts[1].tolist() == [3, 3, 3]
    assert any("plus_status was passed over: 'timeout'" in line for line in log.reading_notes)
    (plus,) = read_log(path, ColumnMap(correct="values.plus_status", right="pass"))
    assert plus.counts[1].tolist() == [1, 1, 1]


def test_a_column_that_is_not_there_is_named_with_its_likes(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", wide(MATRIX))
    with pytest.raises(UnknownName, match="Did you mean 'is_correct'"):
        read_log(path, ColumnMap(correct="is_corect"))
    with pytest.raises(UnknownName, match="role of a column"):
        ColumnMap.from_flags(["corect=x"])


def test_models_in_one_log_are_systems(tmp_path: Path) -> None:
    rows = [{"model": m, "task_id": i, "passed": i % k == 0} for m, k in (("a", 1), ("b", 2)) for i in range(4)]
    one, other = read_log(write_csv(tmp_path / "log.csv", rows))
    assert [one.name, other.name] == ["log: a", "log: b"]
    assert one.counts[1].sum() == 4
    assert other.counts[1].sum() == 2
    (only,) = read_logs([f"{tmp_path}/log.csv::b"])
    assert only.counts[1].sum() == 2
    with pytest.raises(UnknownName, match="system in"):
        read_logs([f"{tmp_path}/log.csv::c"])


def test_ids_of_several_tasks_do_not_collide(tmp_path: Path) -> None:
    rows = [{"task": t, "doc": "x", "idx": i, "acc": 1.0} for t in ("add", "sort") for i in range(2)]
    (log,) = read_log(write_lines(tmp_path / "a.jsonl", rows))
    assert log.problems == ["add/0", "add/1", "sort/0", "sort/1"]


def test_what_a_column_called_answer_is(tmp_path: Path) -> None:
    rows = [{"id": i, "answer": "5", "correct": bool(j)} for i in range(2) for j in range(2)]

    def of(*rows: dict[str, Any], **named: str) -> tuple[Any, Any, Attempts]:
        (result,) = read_log(write_lines(tmp_path / "a.jsonl", rows), ColumnMap(**named))
        return result.groups[0].gold, result.groups[0].answers, result

    assert of(*rows)[:2] == ("5", None), "the same for all attempts: gold"
    assert of(*({**r, "answer": str(i)} for i, r in enumerate(rows)))[:2] == (None, ("0", "1")), "it differs: given"
    assert of(*({**r, "answer": "6", "target": "5"} for r in rows))[:2] == ("5", ("6", "6"))
    assert of(*({**r, "pred": "6"} for r in rows))[:2] == ("5", ("6", "6"))
    gold, answers, result = of(*rows[::2])
    assert (gold, answers) == (None, None), "one row each: nothing tells"
    assert any("answer was left out" in line for line in result.reading_notes)
    assert of(*rows[::2], gold="answer")[0] == "5"
    assert of(*rows[::2], answer="answer")[1] == ("5",)


def test_two_gold_answers_of_one_problem_are_refused(tmp_path: Path) -> None:
    rows = [{"id": 1, "gold": str(j), "correct": True} for j in range(2)]
    with pytest.raises(UsageError, match="one gold in row 1 and another in row 2"):
        read_log(write_lines(tmp_path / "a.jsonl", rows))


# Duplicates, versions, nothing


def test_a_problem_twice_in_a_wide_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'p0' stands in rows 1 and 5"):
        read_log(write_lines(tmp_path / "a.jsonl", [*wide(MATRIX), wide(MATRIX)[0]]))


def test_an_attempt_twice_in_a_long_log_is_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [*long(MATRIX), long(MATRIX)[0]])
    with pytest.raises(UsageError, match=r"attempt 0 at 'p0' stands in rows 1 and 13"):
        read_log(path)
    (log,) = read_log(path, ColumnMap(duplicates="attempts"))
    assert log.counts[0].tolist() == [4, 3, 3, 3]


def test_a_few_problems_with_two_rows_are_asked_about(tmp_path: Path) -> None:
    rows = [{"task_id": i, "passed": True} for i in (0, 1, 2, 3, 1)]
    with pytest.raises(UsageError, match="most problems have one row, but 1 have more"):
        read_log(write_csv(tmp_path / "a.csv", rows))


def test_mixed_versions_in_one_log_are_refused(tmp_path: Path) -> None:
    rows = [{"id": i, "correct": True, "task_version": i // 2} for i in range(4)]
    with pytest.raises(UsageError, match="mixes versions of a task"):
        read_log(write_csv(tmp_path / "a.csv", rows))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.jsonl", "", "is empty"),
        ("a.json", "[]", "no rows"),
        ("a.json", "3", "not data"),
        ("a.jsonl", '{"id": 1}\n{"id": 2', "line 2 is not JSON"),
        ("a.csv", "id,correct\n", "no rows"),
        ("a.csv", "id,correct\n1,0,0\n", "3 cells under 2 names"),
        ("a.txt", "hello", "not data"),
        ("a.json", '{"a": 1, "b": {"c": 2}}', "no table was found"),
        ("a.json", '{"one": [{"a": 1}], "two": [{"b": 1}]}', "all hold right and wrong"),
        ("a.json", '{"one": [{"a": 1}], "two": [{"b": 1}], "three": 3}', "several tables"),
        ("a.jsonl", '{"id": 1, "text": "x"}\n{"id": 2, "text": "y"}', "no column says"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=why):
        read_log(tmp_path / name)


def test_a_cut_parquet_file_says_so(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", wide(MATRIX))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UsageError, match="cannot read"):
        read_log(path)


def test_no_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run or log at"):
        read_log(tmp_path / "none.jsonl")


# Systems together


def system(name: str, correct: dict[str, float], gold: Any = None, task: Any = None) -> Attempts:
    return Attempts(name, tuple(ProblemAttempts(p, (c,), gold=gold) for p, c in correct.items()), task=task)


def test_systems_are_put_in_one_order() -> None:
    (a, b), text = align_problems([system("a", {"x": 1, "y": 0}), system("b", {"y": 1, "x": 0})])
    assert a.problems == b.problems == ["x", "y"]
    assert b.means == [0, 1]
    assert "not checked" in text[0]


def test_different_problems_are_refused_or_cut_to_the_common_ones() -> None:
    pair = [system("a", {"x": 1, "y": 0}), system("b", {"y": 1, "z": 0})]
    with pytest.raises(UsageError, match=r"different problems \(a 2, b 2; 1 in common\).*--common"):
        align_problems(pair)
    (a, b), text = align_problems(pair, common_only=True)
    assert a.problems == b.problems == ["y"]
    assert "compared on the 1 problems that all have" in text[0]
    with pytest.raises(UsageError, match="no problem in common"):
        align_problems([system("a", {"x": 1}), system("b", {"y": 1})], common_only=True)


def test_another_gold_answer_or_version_is_another_task() -> None:
    with pytest.raises(UsageError, match="1 of 1 problems have another gold answer"):
        align_problems([system("a", {"x": 1}, "4"), system("b", {"x": 1}, "5")])
    with pytest.raises(UsageError, match="version 1 and 2"):
        align_problems([system("a", {"x": 1}, "4", {"version": 1}), system("b", {"x": 1}, "4", {"version": 2})])


def test_names_are_told_by_what_differs() -> None:
    assert short_labels(["run_a_seed1", "run_b_seed1"]) == ["a", "b"]
    assert short_labels(["log: x", "log: y y"]) == ["x", "y y"]
    assert short_labels(["one"]) == ["one"]
    assert short_labels(["run_1", "run_1_2"]) == ["run_1", "run_1_2"]


def test_two_logs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        write_lines(tmp_path / folder / "a.jsonl", wide(MATRIX))
    result = read_logs([tmp_path / "first" / "a.jsonl", tmp_path / "second" / "a.jsonl"])
    assert len({s.name for s in result}) == 2
    assert "first" in result[0].name


def test_a_table_under_any_one_name_is_a_table(tmp_path: Path) -> None:
    rows = [{"name": f"case {i}", "success": bool(line[0])} for i, line in enumerate(MATRIX)]
    (log,) = read_log(write_json(tmp_path / "log.json", {"test_results": rows}))
    assert log.means == [1.0, 0.0, 1.0, 0.0], "not one problem with four attempts"
    assert any("each row is one" in line for line in log.reading_notes), "that no column names the problem is told"
    (matrix,) = read_log(write_json(tmp_path / "matrix.json", {"outcomes of runs": MATRIX}))
    assert matrix.counts[1].tolist() == [2, 0, 3, 1]


def test_systems_by_name_are_told_from_problems_by_id(tmp_path: Path) -> None:
    by_system = {
        name: [{"problem_id": f"p{i}", "correct": line[at]} for i, line in enumerate(MATRIX)]
        for at, name in enumerate(("small", "large"))
    }
    log = read_log(write_json(tmp_path / "log.json", by_system))
    assert [(s.name, s.means) for s in log] == [
        ("log: small", [1.0, 0.0, 1.0, 0.0]), ("log: large", [0.0, 0.0, 1.0, 1.0]),
    ]  # fmt: skip
    by_problem = {f"p{i}": [{"id": j, "correct": c} for j, c in enumerate(line)] for i, line in enumerate(MATRIX)}
    (one,) = read_log(write_json(tmp_path / "other.json", by_problem))
    assert one.counts[1].tolist() == [2, 0, 3, 1], "ids that only count the attempts tell no problem"
    same_id = {f"p{i}": [{"task_id": f"p{i}", "correct": c} for c in line] for i, line in enumerate(MATRIX)}
    (one,) = read_log(write_json(tmp_path / "third.json", same_id))
    assert one.counts[1].tolist() == [2, 0, 3, 1]


def test_the_id_of_something_else_is_no_problem(tmp_path: Path) -> None:
    rows = [{"success": bool(line[0]), "provider": {"id": "m"}, "case": i} for i, line in enumerate(MATRIX)]
    (log,) = read_log(write_lines(tmp_path / "log.jsonl", rows))
    assert log.means == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_a_table_may_be_parted_by_another_mark(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"id{mark}correct\na{mark}1\nb{mark}0\n")
    assert read_log(path)[0].means == [1.0, 0.0]


def test_decimals_and_infinite_answers_are_read(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"problem_id": "a", "correct": Decimal(1)}, {"problem_id": "b", "correct": Decimal(0)}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    assert read_log(tmp_path / "log.parquet")[0].means == [1.0, 0.0]
    path = write_lines(tmp_path / "log.jsonl", [{"id": i, "pred": math.inf, "correct": i} for i in (0, 1)])
    assert read_log(path)[0].groups[0].answers == ("inf",)


def test_logs_of_two_versions_are_not_compared(tmp_path: Path) -> None:
    def log(name: str, version: int) -> Path:
        rows = [{"id": i, "correct": line[0], "version": version} for i, line in enumerate(MATRIX)]
        return write_lines(tmp_path / f"{name}.jsonl", rows)

    old, new, same = log("old", 1), log("new", 2), log("same", 1)
    with pytest.raises(UsageError, match="different versions of a task: version 1 and version 2"):
        align_problems(read_logs([old, new]))
    align_problems(read_logs([old, same]))
    align_problems(read_logs([old, new], ColumnMap(version="none")))  # a version of something else


def test_words_that_are_no_verdicts_are_told_with_the_way_out(tmp_path: Path) -> None:
    rows = [{"problem_id": i, "verdict": v} for i, v in enumerate(("Accepted", "Wrong Answer", "Time Limit Exceeded"))]
    path = write_lines(tmp_path / "log.jsonl", rows)
    with pytest.raises(UsageError, match="--column correct=verdict --column right=accepted"):
        read_log(path)
    assert read_log(path, ColumnMap(correct="verdict", right="accepted"))[0].means == [1.0, 0.0, 0.0]


def test_numbered_columns_can_be_named(tmp_path: Path) -> None:
    rows = [{"id": i, "gold": "7", "model_1": a, "model_2": b} for i, (a, b, _) in enumerate(MATRIX)]
    path = write_csv(tmp_path / "log.csv", rows)
    log = read_log(path, ColumnMap(systems="model_1,model_2"))
    assert [s.means for s in log] == [[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    (second,) = read_log(path, ColumnMap(correct="model_2"))
    assert second.means == [0.0, 0.0, 1.0, 1.0]
    (both,) = read_log(path, ColumnMap(correct="model_1,model_2"))
    assert both.counts[1].tolist() == [1, 0, 2, 1]


def test_a_number_alone_names_no_system() -> None:
    assert short_labels(["log: model_1", "log: model_2"]) == ["model_1", "model_2"]
    assert short_labels(["log (1)", "log (2)"]) == ["log (1)", "log (2)"]
    assert short_labels(["run 7b chat", "run 70b chat"]) == ["7b", "70b"]


def test_a_few_long_lists_are_systems_or_problems(tmp_path: Path) -> None:
    verdicts = {"gpt-4": [1, 0, 1, 1, 0, 1], "llama-3-8b": [0, 0, 1, 1, 0, 0]}
    path = write_json(tmp_path / "log.json", verdicts)
    with pytest.raises(UsageError, match=r"--column systems=gpt-4,llama-3-8b, or --column id=id"):
        read_log(path)
    log = read_log(path, ColumnMap(systems="gpt-4,llama-3-8b"))
    assert [s.means for s in log] == [[float(c) for c in v] for v in verdicts.values()]
    (one,) = read_log(path, ColumnMap(id="id"))
    assert one.counts[1].tolist() == [4, 2]
    (counted,) = read_log(write_json(tmp_path / "ids.json", {f"p{i}": [1, 0, 1, 1, 0, 1] for i in range(2)}))
    assert len(counted.groups) == 2, "ids that count are ids"
