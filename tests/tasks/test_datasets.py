"""Public sets: as many problems as their files hold, gold accepted, and bad rows named, counted and left out."""

from __future__ import annotations

import gzip
import json
import os
import warnings

import pytest

from ponder.errors import TaskError, UsageError
from ponder.tasks import ARC, BBH, GSM8K, MATH500, MBPP, CRUXEval, Game24, HumanEval
from ponder.tasks.question_identity import split_key

needs_data = pytest.mark.skipif(not os.environ.get("PONDER_DATA"), reason="PONDER_DATA names no folder of public sets")

SETS_WITH_TRAIN = [(Game24(), 1262, 100), (MBPP(), 374, 500), (MBPP(sanitized=True), 120, 257)]
TEST_ONLY_SETS = [
    (MATH500(), 500),
    (HumanEval(), 164),
    (CRUXEval(), 800),
    (CRUXEval(direction="input"), 800),
    (BBH(), 6511),
]


@needs_data
@pytest.mark.parametrize(("task", "train", "test"), SETS_WITH_TRAIN, ids=lambda x: getattr(x, "name", x))
def test_datasets_with_train_and_test_load(task, train, test):
    assert (len(task.train), len(task.test)) == (train, test)
    sides = [{split_key(p.question) for p in side} for side in (task.train, task.test)]
    assert not sides[0] & sides[1]
    ids = [p.id for p in (*task.train, *task.test)]
    assert len(set(ids)) == len(ids)


@needs_data
@pytest.mark.parametrize(("task", "test"), TEST_ONLY_SETS, ids=lambda x: getattr(x, "name", x))
def test_evaluation_sets_have_no_training_problems(task, test):
    assert len(task.test) == test == len({p.id for p in task.test})
    with pytest.raises(TaskError, match=r"no training problems: .*(train on|put MATH)"):
        _ = task.train
    assert all(json.loads(json.dumps(p.answer)) == p.answer for p in task.test[:50])


@needs_data
def test_mbpp_has_974_problems():
    task = MBPP()
    sizes = [len(part) for part in (task.train, task.test, task.validation, task.few_shot)]
    assert sizes == [374, 500, 90, 10] and sum(sizes) == 974
    assert "assert" in task.test[0].question


@needs_data
def test_game24_accepts_only_gold():
    task = Game24()
    grade = task.verifier.grade
    for problem in task.test[:40]:
        assert grade(task.gold(problem), problem.answer).value == 1.0
        assert grade(task.gold(problem).replace("</", " + 1</"), problem.answer).value == 0.0
        assert grade("<answer>24</answer>", problem.answer).value == 0.0
    assert task.test[0].id == "game24/test/901" and 0 < task.test[0].tags["solved"] < 1


@needs_data
@pytest.mark.parametrize("cot", [False, True])
def test_bbh_accepts_gold_in_both_forms_only(cot):
    task = BBH(cot=cot)
    grade = task.verifier.grade
    for problem in task.test[:: 4 if cot else 1]:
        assert grade(task.gold(problem), problem.answer).value == 1.0, problem.id
    for part in {p.tags["part"] for p in task.test}:
        few = [p for p in task.test if p.tags["part"] == part][:6]
        for one in few:
            for two in few:
                if one.answer != two.answer:
                    assert grade(task.gold(two), one.answer).value == 0.0, (one.id, two.id)
    asked = task.test[0].question
    assert asked.count("Let's think step by step.") == (4 if cot else 0)
    assert "canary" not in asked


@needs_data
def test_bbh_part_is_a_setting():
    assert {p.tags["part"] for p in BBH(part="snarks").test} == {"snarks"} and len(BBH(part="snarks").test) == 178
    with pytest.raises(UsageError, match="Did you mean 'snarks'"):
        BBH(part="snark")


@needs_data
def test_math500_accepts_gold_and_refuses_the_next_gold():
    task = MATH500()
    grade = task.verifier.grade
    problems = task.test
    for problem in problems:
        assert grade(task.gold(problem), problem.answer).value == 1.0, (problem.id, problem.answer)
    assert sum(len(task.gold(p)) > 60 for p in problems) > 400  # worked solutions, mostly
    wrong = [grade(f"\\boxed{{{b.answer}}}", a.answer).value for a, b in zip(problems, problems[7:], strict=False)]
    assert wrong.count(1.0) < 0.03 * len(wrong)  # a few share an answer


@needs_data
@pytest.mark.parametrize(
    ("task", "step"),
    [(HumanEval(), 30), (MBPP(), 100), (MBPP(sanitized=True), 60)],
    ids=lambda x: getattr(x, "name", x),
)
def test_references_pass_their_tests_and_mutants_fail(task, step):
    grade = task.verifier.grade
    for problem in task.test[::step]:
        gold = task.gold(problem)
        assert grade(gold, problem.answer).value == 1.0, problem.id
        entry = problem.answer["entry"]
        empty = f"```python\ndef {entry}(*given, **named):\n    return None\n```"
        assert grade(empty, problem.answer).value == 0.0, problem.id


@needs_data
def test_cruxeval_output_is_graded():
    task = CRUXEval()
    grade = task.verifier.grade
    for problem, other in zip(task.test, task.test[1:], strict=False):
        assert grade(task.gold(problem), problem.answer).value == 1.0, problem.answer
        if problem.answer["output"] != other.answer["output"]:
            assert grade(task.gold(other), problem.answer).value == 0.0
    first = task.test[0]
    for bad in ("f([1, 1, 3])", "[(4, 1)] * 2", "__import__('os')", "(" * 500, "-" * 1500 + "1", "x"):
        assert grade(f"<answer>{bad}</answer>", first.answer).value == 0.0, bad
    assert grade(task.gold(first), {"code": "x"}).value is None


@needs_data
def test_cruxeval_input_is_graded():
    task = CRUXEval(direction="input")
    grade = task.verifier.grade
    for problem in task.test:  # the set's own inputs, as they are written
        assert grade(task.gold(problem), problem.answer).value == 1.0, problem.answer
    for problem in task.test[:200:10]:  # called in the jail: written otherwise
        assert grade(f"<answer>{problem.answer['input']} ,</answer>", problem.answer).value == 1.0, problem.answer
    upper = {"code": "def f(s, n):\n    return s.upper()[:n]", "input": "'ab', 9", "output": "'AB'"}
    assert grade("<answer>'aB', 2</answer>", upper).value == 1.0  # any input that gives the output
    assert grade("<answer>f('Ab', 3)</answer>", upper).value == 1.0
    for bad in ("'ab', 1", "'ab'", "'ab', 2), ('x'", "'AB' and 'AB', 2", "__import__('os').getcwd(), 2", ""):
        assert grade(f"<answer>{bad}</answer>", upper).value == 0.0, bad


def test_cruxeval_refuses_unknown_direction():
    with pytest.raises(UsageError, match="no direction named 'outputs'"):
        CRUXEval(direction="outputs")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PONDER_DATA", str(tmp_path))
    return tmp_path


def write(folder, name, *records):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(r if isinstance(r, str) else json.dumps(r) for r in records)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def science(id, key="B", labels="ABCD", stem="What floats?"):
    choices = [{"text": f"thing {label}", "label": label} for label in labels]
    return {"id": id, "question": {"stem": stem, "choices": choices}, "answerKey": key}


def test_arc_reads_its_files(folder):
    write(folder, "arc/ARC-Easy/ARC-Easy-Train.jsonl", science("t1", stem="What sinks?"), science("t2"))
    write(folder, "arc/ARC-Easy/ARC-Easy-Test.jsonl", science("e1"), science("e2", "3", "1234", "What flies?"))
    task = ARC(part="Easy")
    assert [p.id for p in task.train] == ["arc/train/t1"]  # the other stands in test
    assert "(A) thing A\n(B) thing B" in task.test[0].question
    assert [p.answer["choice"] for p in task.test] == ["B", "C"]
    grade = task.verifier.grade
    for problem in task.test:
        assert grade(task.gold(problem), problem.answer).value == 1.0
        for letter in set("ABCDE") - {problem.answer["choice"]}:
            assert grade(f"\\boxed{{{letter}}}", problem.answer).value == 0.0
    with pytest.raises(UsageError, match="part of arc"):
        ARC(part="easy")


@pytest.mark.parametrize(
    "bad", ["{", "[]", science("x", "E"), science("x", "A", "A"), science("x", "A", "AAB"), {"id": "x"}]
)
def test_bad_rows_are_named_counted_and_left_out_when_asked(folder, bad):
    path = write(folder, "arc/ARC-Challenge/ARC-Challenge-Train.jsonl", science("a", stem="Why?"), bad, "", bad)
    write(folder, "arc/ARC-Challenge/ARC-Challenge-Test.jsonl", science("b"))
    refused = r"2 of 4 rows cannot.*line 2: (malformed|the column).*--task.bad_rows skip"
    with pytest.raises(TaskError, match=refused) as caught:
        _ = ARC().train
    assert str(path) in str(caught.value)
    with pytest.warns(UserWarning, match=r"2 of 4 rows .* were left out"):
        assert len(ARC(bad_rows="skip").train) == 1
    with pytest.raises(UsageError, match="bad_rows is 'ignore'"):
        ARC(bad_rows="ignore")


def test_duplicate_id_is_reported(folder):
    write(folder, "arc/ARC-Challenge/ARC-Challenge-Train.jsonl", science("a", stem="Why?"), science("a", stem="How?"))
    write(folder, "arc/ARC-Challenge/ARC-Challenge-Test.jsonl", science("a"))
    with pytest.raises(TaskError, match="line 2: the id 'a' stands at line 1 already"):
        _ = ARC().train


def test_many_bad_rows_are_counted_not_listed(folder):
    write(folder, "gsm8k/train.jsonl", *["{"] * 50)
    write(folder, "gsm8k/test.jsonl", {"question": "a", "answer": "#### 2"})
    with pytest.raises(TaskError, match=r"50 of 51 rows .*and 47 more"):
        _ = GSM8K().train


def human(id, **other):
    row = {"task_id": f"HumanEval/{id}", "prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": "    x\n"}
    return {**row, "test": "def check(f):\n    assert f(1) == 1", **other}


def test_row_without_tests_is_reported(folder):
    write(folder, "humaneval/HumanEval.jsonl.gz", human(0), human(1, test=""), human(2, entry_point=None))
    with pytest.raises(TaskError, match=r"2 of 3 rows .*line 2: problem HumanEval/1 has no 'test'"):
        _ = HumanEval().test
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [p.id for p in HumanEval(bad_rows="skip").test] == ["humaneval/test/0"]


def test_wrong_files_are_reported(folder):
    for content in (b"", b"\x1f\x8b\x00", gzip.compress(b""), b"plain"):
        path = write(folder, "humaneval/HumanEval.jsonl.gz")
        path.write_bytes(content)
        with pytest.raises(TaskError, match=r"HumanEval\.jsonl\.gz"):
            _ = HumanEval().test
    write(folder, "bbh/bbh/snarks.json", json.dumps({"canary": ""}))
    with pytest.raises(TaskError, match="not the JSON it should be"):
        _ = BBH(part="snarks").test
    write(folder, "bbh/bbh/snarks.json", json.dumps({"examples": []}))
    with pytest.raises(TaskError, match="is empty"):
        _ = BBH(part="snarks").test
    write(folder, "bbh/bbh/snarks.json", json.dumps({"examples": [{"input": "a", "target": " "}]}))
    with pytest.raises(TaskError, match=r"problem 1: malformed .*no gold answer"):
        _ = BBH(part="snarks").test
    write(folder, "game24/24.csv", "Rank,Puzzles,Solved rate", "1,1 2 3,9%", "2,1 1 1 8,99%", "901,a b c d,1%")
    with pytest.raises(TaskError, match=r"2 of 3 rows .*line 2: .*3 numbers, not 4"):
        _ = Game24().test


def test_math_has_training_problems_if_its_file_exists(folder):
    row = {"problem": "1+1?", "level": "Level 1", "subject": "Algebra", "solution": "$\\boxed{2}$", "answer": "2"}
    write(folder, "math500/test.jsonl", {**row, "unique_id": "test/a/1.json"})
    write(folder, "math500/train.jsonl", {**row, "unique_id": "train/a/1.json", "problem": "2+0?"})
    task = MATH500()
    assert len(task.train) == len(task.test) == 1 and task.train[0].id == "math500/train/train/a/1"
    assert task.gold(task.train[0]) == "$\\boxed{2}$"
