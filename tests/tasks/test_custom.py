"""Rows with any columns and reward functions in TRL's signature."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from ponder.errors import MissingExtra, NoGoldAnswer, PonderError, TaskError, UsageError
from ponder.protocols import Task
from ponder.runs import job_json
from ponder.tasks import CustomTask, RewardFunctions
from ponder.types import Problem, Step, ids, prompt_trace
from ponder.verify import count_verdicts

ROWS = [{"prompt": f"What is {n} + {n}?", "answer": 2 * n, "note": None} for n in range(40)]
TALKS = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]


def right(completions, answer, **kwargs):
    return [float(str(a) in c) for c, a in zip(completions, answer, strict=True)]


def short(completions, **kwargs):
    return [-len(c) / 10 for c in completions]


async def later(prompts, completions, completion_ids, trainer_state, note, **kwargs):
    await asyncio.sleep(0)
    assert len(prompts) == len(completions) == len(completion_ids) == len(note) and trainer_state is None
    return [None if "?" in c else len(i) for c, i in zip(completions, completion_ids, strict=True)]


def named_only(completions, answer):
    return [1.0] * len(completions)


def reward_conversations(completions, prompts, **kwargs):
    assert all(p[-1]["role"] == "user" for p in prompts)
    return [float(c[0]["role"] == "assistant" and len(c) == 1) for c in completions]


def greedy(completions, answer, prompts, **kwargs):
    answer.clear()
    prompts.append("x")
    return [1.0] * len(completions)


def mutates_arguments(completions, nested, **kwargs):
    for item in nested:
        item.append(1)
    return [float(len(item)) for item in nested]


def score(rewards, problem, *texts, weights=()):
    trace = prompt_trace(problem, ids([1, 2]))
    steps = [trace.add(Step(0, text, ids(range(len(text))), stop="eos")) for text in texts]
    return trace, asyncio.run(RewardFunctions(rewards, weights)(trace, steps))


def custom_task(*rewards, data=ROWS, **settings):
    return CustomTask(data=data, rewards=rewards, **settings)


def test_is_a_task():
    task = custom_task(right, short, weights=(1.0, 0.5))
    assert isinstance(task, Task) and len(task.train) + len(task.test) == 40 and 0 < len(task.test) < 15
    assert not {p.question for p in task.train} & {p.question for p in task.test}
    problem = task.train[3]
    assert problem.answer["columns"]["answer"] == 2 * int(problem.question.split()[2])
    trace, scores = score(task.rewards, problem, f"It is {problem.answer['columns']['answer']}", "9", weights=(1, 0.5))
    assert scores[0].value > 0 > scores[1].value
    assert scores[0].reason.startswith("1 x right 1 + 0.5 x short -")
    assert trace.steps[1].scores["right"].value == 1.0 and trace.steps[2].scores["right"].value == 0.0


def test_a_coroutine_gets_all_that_trl_passes_and_may_abstain():
    problem = custom_task(later).train[0]
    _, scores = score((later,), problem, "abc", "?", "")
    assert [s.value for s in scores] == [3.0, None, 0.0]
    _, scores = score((later, short), problem, "?", weights=(1.0, 1.0))
    assert scores[0].value == pytest.approx(-0.1)  # None is left out of the sum, as in TRL
    _, scores = score((later, later), problem, "?")
    assert scores[0].value is None and "says anything" in scores[0].reason


def test_conversations():
    task = custom_task(reward_conversations, data=TALKS, system="Be brief.")
    problem = task.train[0]
    assert [m["role"] for m in problem.messages] == ["system", "user"]
    assert [s.value for s in score((reward_conversations,), problem, "a", "b")[1]] == [1.0, 1.0]
    own = [{"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": str(n)}]} for n in range(30)]
    assert custom_task(reward_conversations, data=own, system="Be brief.").train[0].messages[0]["content"] == "s"


def test_functions_without_kwargs_get_what_they_name():
    assert score((named_only,), custom_task(named_only).train[0], "a", "b")[1][1].value == 1.0


def test_no_function_can_change_a_problem_or_what_the_next_one_sees():
    problem = custom_task(greedy, right).train[0]
    answer = json.dumps(problem.answer)
    assert score((greedy, right), problem, str(problem.answer["columns"]["answer"]))[1][0].value == 2.0
    rows = [{**row, "nested": [0]} for row in ROWS]
    deep = custom_task(mutates_arguments, data=rows).train[0]
    assert [s.value for s in score((mutates_arguments, mutates_arguments), deep, "a", "b")[1]] == [4.0, 4.0]
    assert json.dumps(problem.answer) == answer and deep.answer["columns"]["nested"] == [0]


@pytest.mark.parametrize(
    ("returned", "why"),
    [([1.0], "returned 1 rewards for 2"), ([1.0] * 3, "returned 3 rewards for 2"), ([float("nan"), 1.0], "nan"),
     ([float("inf"), 1.0], "inf"), (["1", 1.0], "text, not a number"), ([[1, 2], 1.0], "not a number"),
     (None, "crashed"), (3.5, "crashed"), (RuntimeError("boom"), "crashed: RuntimeError: boom"),
     (SystemExit(3), "crashed: SystemExit: 3 (test_custom.py"),
     ([None, 1.0], "says anything")],
)  # fmt: skip
def test_what_is_no_reward_is_undecided_with_the_reason(returned, why):
    def reward(completions, **kwargs):
        if isinstance(returned, BaseException):
            raise returned
        return returned

    _, scores = score((reward,), custom_task(reward).train[0], "a", "b")
    assert scores[0].value is None and why in scores[0].reason


def test_numbers_of_other_libraries_are_numbers():
    def reward(completions, **kwargs):
        return np.array([1, 0.5], dtype=np.float32)

    assert [s.value for s in score((reward,), custom_task(reward).train[0], "a", "b")[1]] == [1.0, 0.5]


def test_two_functions_of_one_name_keep_their_scores_apart():
    trace, scores = score((short, short), custom_task(short).train[0], "a")
    assert set(trace.steps[1].scores) == {"short", "short_2"} and scores[0].value == pytest.approx(-0.2)


def test_a_missing_column_is_named():
    with pytest.raises(TaskError, match="'named_only' asks for the column 'answer', which the given rows"):
        _ = custom_task(named_only, data=[{"prompt": str(n), "target": n} for n in range(20)]).train


def test_a_job_keeps_functions_by_name():
    task = custom_task("json:dumps")  # any function of a module
    assert job_json.decode(job_json.encode(task), trust=["json:dumps"]).rewards == ("json:dumps",)
    assert custom_task(json.loads).rewards == ("json:loads",)
    recorded = job_json.encode(custom_task(lambda completions, **kwargs: []))["rewards"][0]
    assert recorded["source"] == "lambda completions, **kwargs: []"


@pytest.mark.parametrize(
    "settings",
    [{"rewards": ()}, {"rewards": ("nowhere:f",)}, {"rewards": ("json:nothing",)}, {"rewards": ("json:__doc__",)},
     {"weights": (1.0, 2.0)}, {"weights": (float("nan"),)}, {"held_out_tenths": 0}, {"held_out_tenths": 10},
     {"limit": 0}],
)  # fmt: skip
def test_bad_settings_are_refused(settings):
    with pytest.raises(UsageError):
        CustomTask(**{"data": ROWS, "rewards": (right,), **settings})


def test_files(tmp_path):
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(json.dumps(row) for row in ROWS))
    listed = tmp_path / "rows.json"
    listed.write_text(json.dumps(ROWS))
    table = tmp_path / "rows.csv"
    table.write_text("prompt,answer\n" + "\n".join(f'"What is {n} + {n}?",{2 * n}' for n in range(40)))
    plain = custom_task(right)
    for path in (lines, listed, table):
        task = custom_task(right, data=str(path))
        assert [p.messages for p in task.train] == [p.messages for p in plain.train], path
    assert custom_task(right, data=lines).train[0].answer == plain.train[0].answer  # a Path will do
    assert custom_task(right, data=str(lines), test_data=str(listed), limit=3)
    with pytest.raises(TaskError, match="gives 0 training"):
        _ = custom_task(right, data=str(lines), test_data=str(listed)).train  # every prompt stands in test
    with pytest.raises(TaskError, match="cannot read"):
        _ = custom_task(right, data=str(tmp_path / "none.jsonl")).train
    with pytest.raises(UsageError, match="cannot be read as rows"):
        _ = custom_task(right, data=str(tmp_path / "rows.xml")).train


def test_parquet(tmp_path):
    path = tmp_path / "rows.parquet"
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        with pytest.raises(MissingExtra, match="pyarrow"):
            _ = custom_task(right, data=str(path)).train
        return
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    assert custom_task(right, data=str(path)).train[0].answer == custom_task(right).train[0].answer


@pytest.mark.parametrize(
    "bad",
    [{"answer": 1}, {"prompt": ""}, {"prompt": []}, {"prompt": None}, {"prompt": [{"role": "user"}]},
     {"prompt": [{"role": "user", "content": [1]}]}, {"prompt": "a", "x": float("nan")}, {"prompt": "a", "x": {1}}],
)  # fmt: skip
def test_bad_rows_are_named(bad):
    with pytest.raises(TaskError, match="1 of 41 rows cannot be used: rows/given, row 41"):
        _ = custom_task(short, data=[*ROWS, bad]).train
    with pytest.warns(UserWarning, match="left out"):
        assert len(custom_task(short, data=[*ROWS, bad], bad_rows="skip").train) > 20


@pytest.mark.parametrize("prompt", [float("nan"), float("inf"), None, {"role": "user", "content": "a"}])
def test_prompt_that_is_neither_text_nor_messages_is_refused(prompt):
    with pytest.raises(TaskError, match=r"row 41: the prompt is .*; it must be text or a list of messages"):
        _ = custom_task(short, data=[*ROWS, {"prompt": prompt}]).train


@pytest.mark.parametrize("column", ["prompt", "question"])
@pytest.mark.parametrize(
    ("number", "text"),
    [pytest.param(10**400, "1" + 400 * "0", id="huge"), (-7, "-7"), (2.5, "2.5"), (np.int64(3), "3"),
     (np.uint8(200), "200"), (np.float32(0.1), "0.1"), (np.float64(2.5), "2.5"), (np.array(4), "4")],
)  # fmt: skip
def test_numeral_of_a_table_is_served_as_text(column, number, text):
    rows = [{column: row["prompt"], "answer": row["answer"]} for row in ROWS]
    task = custom_task(short, data=[*rows, {column: number, "answer": "1"}])
    assert sum(p.question == text for p in [*task.train, *task.test]) == 1


@pytest.mark.parametrize("prompt", [np.float32("nan"), np.float64("inf"), np.datetime64("2024-01-01"), 1j])
def test_number_of_numpy_that_is_not_finite_is_refused(prompt):
    with pytest.raises(TaskError, match=r"row 41: the prompt is .*; it must be text or a list of messages"):
        _ = custom_task(short, data=[*ROWS, {"prompt": prompt}]).train


@pytest.mark.parametrize("column", ["prompt", "messages", "question"])
def test_conversation_may_be_an_array(column):
    """As a parquet file that pandas reads has them."""
    rows = [
        {column: np.array([{"role": "system", "content": "Add."}, *row["prompt"]], dtype=object), "answer": "1"}
        for row in TALKS
    ]
    problem = custom_task(short, data=rows).train[0]
    assert [m["role"] for m in problem.messages] == ["system", "user"]
    rows = [{"messages": np.array([*row["prompt"], {"role": "assistant", "content": "2"}])} for row in TALKS]
    task = custom_task(reward_conversations, data=rows, gold_column="completion")
    assert [m["role"] for m in task.train[0].messages] == ["user"] and task.gold(task.train[0]) == "2"
    with pytest.raises(TaskError, match=r"row 41: .*there is no message"):
        _ = custom_task(short, data=[*TALKS, {"prompt": np.array([])}]).train


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('\ufeff{"puzzle": "1+1=", "answer": "2"}\n', "utf-8")
    there = r"the columns are 'puzzle', 'answer'"
    with pytest.raises(TaskError, match=f"line 1: no column holds the prompt: name it with prompt_column.*{there}"):
        _ = custom_task(right, data=str(path)).train
    with pytest.raises(TaskError, match=rf"the column 'pussle' \(prompt_column\) is missing; {there}"):
        _ = custom_task(right, data=str(path), prompt_column="pussle").train
    with pytest.raises(TaskError, match=r"row 41: malformed \(KeyError\('role'\)\)"):  # of a message, not a column
        _ = custom_task(right, data=[*ROWS, {"prompt": [{"content": "?"}]}]).train


def test_gold_comes_from_a_column_or_not_at_all():
    rows = [{**row, "solution": f"It is {row['answer']}."} for row in ROWS]
    task = custom_task(right, data=rows, gold_column="solution")
    problem = task.train[0]
    assert score((right,), problem, task.gold(problem))[1][0].value == 1.0
    with pytest.raises(TaskError, match="gold_column"):
        custom_task(right).gold(problem)


@pytest.mark.parametrize("name", ["question", "problem", "Input", "instruction", "query"])
def test_prompt_column_is_found_by_its_usual_name(name):
    task = custom_task(right, data=[{name: row["prompt"], "answer": row["answer"]} for row in ROWS])
    assert task.train[0].question.startswith("What is") and task.train[0].answer["columns"][name].startswith("What")


def test_prompt_column_is_named_where_two_may_be_meant():
    rows = [{"instruction": "Add.", "input": row["prompt"]} for row in ROWS]
    with pytest.raises(TaskError, match="'instruction' and 'input' may both hold the prompt: name it with"):
        _ = custom_task(short, data=rows).train
    task = custom_task(short, data=rows, prompt_column="input")
    assert task.train[0].question.startswith("What is") and task.train[0].answer["columns"]["instruction"] == "Add."
    assert job_json.decode(job_json.encode(task), trust=True) == task


def test_messages_that_end_with_the_assistant_are_prompt_and_completion():
    rows = [{"messages": [*row["prompt"], {"role": "assistant", "content": str(row["answer"])}]} for row in TALKS]
    task = custom_task(reward_conversations, data=rows, gold_column="completion")
    problem = task.train[0]
    assert [m["role"] for m in problem.messages] == ["user"] and "messages" not in problem.answer["columns"]
    assert int(task.gold(problem)) == 2 * int(problem.question.split()[2])
    assert [m["role"] for m in custom_task(short, data=[{"messages": r["prompt"]} for r in TALKS]).train[0].messages]


def test_rows_of_a_table():
    class Table:  # pandas' form, which may not be installed
        def iterrows(self): ...
        def to_dict(self, form):
            assert form == "records"
            return ROWS

    assert custom_task(right, data=Table()).train == custom_task(right).train


def test_task_without_gold_column_has_no_gold_answers():
    with pytest.raises(NoGoldAnswer, match=r"name the column .* gold_column=\.\.\.; columns: answer, note"):
        custom_task(right).gold(custom_task(right).train[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot read .*rows\.jsonl \(there is no such file\); check its name and folder"),
        (b"", r"rows\.jsonl is empty; write at least one row into it"),
        ('{"prompt": "a"}\n'.encode("utf-16"), r"rows\.jsonl \(it is not UTF-8 text.*\); save it as UTF-8"),
        (b"[1, 2]\n3\n", r"line 1: the row is not a JSON object.*line 2: the row is not a JSON object"),
    ],
)  # fmt: skip
def test_file_that_cannot_be_read_says_what_to_do(tmp_path, content, message):
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TaskError, match=message) as caught:
        _ = custom_task(right, data=str(path)).train
    assert "PONDER_DATA" not in str(caught.value) and "; download" not in str(caught.value)


def test_crash_names_file_and_line_of_the_reward():
    def broken(completions, **columns):
        return [1 / 0 for _ in completions]

    line = broken.__code__.co_firstlineno + 1
    _, scores = score((broken,), custom_task(broken).train[0], "a")
    assert f"crashed: ZeroDivisionError: division by zero (test_custom.py, line {line})" in scores[0].reason
    counted = count_verdicts(scores)
    assert f"(test_custom.py, line {line})" in next(iter(counted.reasons))


def test_wrong_number_of_rewards_says_both_numbers():
    def too_few(completions, **columns):
        return [1.0]

    _, scores = score((too_few,), custom_task(too_few).train[0], "a", "b", "c")
    assert "too_few returned 1 rewards for 3 completions" in next(iter(count_verdicts(scores).reasons))


def test_a_problem_of_another_task_is_undecided():
    problem = Problem("x", ({"role": "user", "content": "?"},), "5")
    assert score((short,), problem, "a")[1][0].value is None


def test_the_command_line_finds_it(tmp_path):
    from ponder.cli.named_objects import build_task

    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    task = build_task("custom", {"data": str(path), "rewards": "json:dumps,json:loads", "weights": "1,0.5"})
    assert task.rewards == ("json:dumps", "json:loads") and task.weights == (1.0, 0.5)
    with pytest.raises(PonderError, match="rewards"):
        build_task("custom", {"data": str(path)})


LIMITS = [{"prompt": f"What is {n} in words?", "constraints": [{"kind": "words", "at_most": 2}]} for n in range(40)]


def test_a_scorer_judges_by_its_own_column():
    task = CustomTask(data=LIMITS, rewards=("ponder.verify:Constraints",))
    trace, scores = score(task.rewards, task.train[0], "two words", "three words here")
    assert [s.value for s in scores] == [1.0, 0.0] and trace.steps[1].scores["constraints"].value == 1.0
    task = CustomTask(data=ROWS, rewards=("ponder.verify:FinalNumber", short), weights=(1.0, 1.0))
    trace, (good, bad) = score(task.rewards, task.train[0], f"#### {task.train[0].answer['columns']['answer']}", "no")
    assert good.value > bad.value == -0.2 and trace.problem == task.train[0], "the problem stays what it was"
    assert job_json.decode(job_json.encode(CustomTask(data=LIMITS, rewards=("ponder.verify:Constraints",)))) is not None


def test_a_class_that_is_no_scorer_is_refused():
    for given, why in (("ponder.types:Problem", "cannot be made without settings"), ("builtins:dict", "neither")):
        with pytest.raises(UsageError, match=why):
            CustomTask(data=ROWS, rewards=(given,))


def test_gold_may_be_a_number_and_zero():
    rows = [{"prompt": f"{n}?", "answer": n} for n in range(4)]
    task = CustomTask(data=rows, rewards=lambda completions, **columns: [0.0] * len(completions), gold_column="answer")
    golds = {task.gold(problem) for problem in [*task.train, *task.test]}
    assert golds == {"0", "1", "2", "3"}
