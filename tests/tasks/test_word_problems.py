import json
import os
from fractions import Fraction

import pytest

from ponder.errors import TaskError, UsageError
from ponder.protocols import Task
from ponder.tasks import GSM8K, MAWPS, SVAMP
from ponder.tasks.question_identity import split_key
from ponder.verify import evaluate_arithmetic, format_answer, parse_plain_number

needs_data = pytest.mark.skipif(not os.environ.get("PONDER_DATA"), reason="PONDER_DATA names no folder of public sets")


@needs_data
@pytest.mark.parametrize(("task", "train", "test"), [(GSM8K(), 7473, 1319), (SVAMP(), 695, 305), (MAWPS(), 1291, 573)])
def test_word_problem_datasets_load(task, train, test):
    assert isinstance(task, Task)
    assert (len(task.train), len(task.test)) == (train, test)
    asked = [{split_key(p.question) for p in side} for side in (task.train, task.test)]
    assert not asked[0] & asked[1]
    grade = task.verifier.grade
    for problem in [*task.train, *task.test]:
        assert grade(task.gold(problem), problem.answer).value == 1.0, problem
    for problem in task.test:
        off = str(parse_plain_number(problem.answer).value + Fraction(1))
        assert grade(format_answer(off, "boxed"), problem.answer).value == 0.0, problem
        assert grade(problem.question, problem.answer).value == 0.0, problem


@needs_data
def test_expressions_of_word_problems_are_those_of_their_solutions():
    wrong = []
    for problem in [*SVAMP().train, *SVAMP().test]:
        (expression,) = problem.tags["expressions"]
        value = evaluate_arithmetic(expression, allow_decimals=True).value
        if abs(value - parse_plain_number(problem.answer).value) > Fraction(1, 1000):
            wrong.append(problem.id)
    assert wrong == ["svamp/train/chal-680"]  # the file's own mistake: (4 - 2) + 3, and the answer 1
    noted = [problem.tags["expressions"] for problem in GSM8K().train]
    calculable = [[evaluate_arithmetic(text, allow_decimals=True).value is not None for text in e] for e in noted]
    assert sum(map(any, calculable)) > 0.98 * len(noted) and sum(map(all, calculable)) > 0.98 * len(noted)


@needs_data
def test_mawps_near_copies_stay_together():
    task = MAWPS()
    sides = [
        {(tuple(sorted(c for c in p.question if c.isdigit())), p.answer) for p in s} for s in (task.train, task.test)
    ]
    shared = sides[0] & sides[1]  # digits alone are coarser than numbers: 1, 23 and 12, 3
    assert len(shared) < 0.1 * len(sides[1])


def write(folder, name, *records):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("PONDER_DATA", str(tmp_path))
    return tmp_path


def gsm(question, answer="1 + 1 = <<1+1=2>>2\n#### 2"):
    return {"question": question, "answer": answer}


def test_gsm8k_train_excludes_test_questions(data):
    write(data, "gsm8k/train.jsonl", gsm("How many, then?"), gsm("Other"), gsm("Third"))
    write(data, "gsm8k/test.jsonl", gsm("how many then"), gsm("Fourth", "#### 1,234"))
    task = GSM8K(style="plain")
    assert [p.question for p in task.train] == ["Other", "Third"]
    assert [p.answer for p in task.test] == ["2", "1234"]
    assert task.gold(task.train[0]) == "1 + 1 = 2\n\\boxed{2}"
    assert GSM8K(forms=("bare",)).gold(task.train[0]) == "2"
    assert task.train[0].id == "gsm8k/train/1" and len(GSM8K(limit=1).train) == 1


def test_svamp_joins_body_and_question(data):
    rows = [
        {"ID": f"chal-{i}", "Body": f"Dan had {i} sweets", "Question": "How many?", "Answer": float(i), "Type": "X"}
        for i in range(50)
    ]
    write(data, "svamp/SVAMP.json", json.dumps(rows))
    task = SVAMP(style="plain")
    assert len(task.train) + len(task.test) == 50 and task.train and task.test
    assert task.train[0].question == f"Dan had {task.train[0].answer} sweets, How many?"


def test_mawps_keeps_copies_together_and_drops_contradictions(data):
    many = [{"input": f"There are {i} cards . How many ?", "target": i} for i in range(30)]
    copies = [{"input": f"There are {i} cards. How many?", "target": float(i)} for i in range(30)]
    write(data, "mawps/addsub.jsonl", *many)
    write(data, "mawps/singleeq.jsonl", *copies, {"input": "There are 5 cards, how many", "target": 6})
    write(data, "mawps/multiarith.jsonl", {"input": "A third?", "target": 0.3333333333})
    write(data, "mawps/singleop.jsonl", {"input": "Cost 9.43 ?", "target": 9.43})
    task = MAWPS()
    every = [*task.train, *task.test]
    assert len(every) == 31 and {"1/3", "9.43", "29"} <= {p.answer for p in every} and "6" in {p.answer for p in every}
    assert not any("are 5 cards" in p.question for p in every)


def test_missing_data_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.delenv("PONDER_DATA", raising=False)
    with pytest.raises(TaskError, match="PONDER_DATA is not set; set it to the folder that holds gsm8k/"):
        _ = GSM8K().train
    monkeypatch.setenv("PONDER_DATA", str(tmp_path))
    for task in (GSM8K(), SVAMP(), MAWPS()):
        with pytest.raises(TaskError, match=f"set PONDER_DATA to the folder that holds {task.name}/"):
            _ = task.test
        (tmp_path / task.name).mkdir()
        with pytest.raises(TaskError, match="cannot read"):
            _ = task.test


@pytest.mark.parametrize(
    "bad",
    ["{", "[]", '"x"', "{}", '{"question": "a", "answer": "no mark"}', '{"question": 1, "answer": "#### 2"}',
     '{"question": "a", "answer": "#### many"}'],
)  # fmt: skip
def test_a_malformed_line_is_named(data, bad):
    path = write(data, "gsm8k/train.jsonl", gsm("a"), bad)
    write(data, "gsm8k/test.jsonl", gsm("b"))
    with pytest.raises(
        TaskError, match=r"line 2: (malformed|the column 'answer' is missing; the columns are none)"
    ) as caught:
        _ = GSM8K().train
    assert str(path) in str(caught.value)


def test_malformed_files(data):
    for bad in ("[", "{}", '[{"ID": "x"}]'):
        write(data, "svamp/SVAMP.json", bad)
        with pytest.raises(TaskError, match=r"SVAMP\.json"):
            _ = SVAMP().train
    write(data, "gsm8k/train.jsonl", "")
    write(data, "gsm8k/test.jsonl", gsm("b"))
    with pytest.raises(TaskError, match=r"train.jsonl is empty; download"):
        _ = GSM8K().train


@pytest.mark.parametrize("setting", [{"limit": 0}, {"prompt": "{q}"}, {"prompt": r"\boxed{}"}, {"style": "loud"}])
def test_bad_settings_are_refused(setting):
    with pytest.raises(UsageError):
        GSM8K(**setting)
