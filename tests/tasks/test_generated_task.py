import os
import pickle
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.cli import recipe_files
from ponder.errors import TaskError, UsageError
from ponder.protocols import Task
from ponder.tasks import TASKS, Addition, Arithmetic, Countdown, Sums
from ponder.tasks.generated.countdown import solve
from ponder.verify import ANSWER_FORMS, evaluate_arithmetic, format_answer

GENERATED_TASKS = [
    Addition(),
    Addition(4),
    Arithmetic(),
    Arithmetic(5, brackets=False),
    Countdown(),
    Countdown(4, largest=12),
]
named = pytest.mark.parametrize("task", GENERATED_TASKS, ids=lambda t: f"{t.name}-{list(vars(t).values())[4]}")


@named
def test_is_a_task(task):
    assert isinstance(task, Task) and TASKS[task.name] is type(task)
    assert len(task.train) == 100_000 and len(task.test) == 300
    assert task.train[17].id == f"{task.name}/train/17" and task.test[3].id == f"{task.name}/test/3"


@named
def test_verifier_accepts_gold_and_refuses_near_misses(task):
    for problem in [*task.train[:40], *task.test[:40]]:
        grade = task.verifier.grade
        assert grade(task.gold(problem), problem.answer).value == 1.0, problem
        for form in task.forms:
            assert grade(format_answer(str(truth(task, problem) + 1), form), problem.answer).value == 0.0
            assert grade(format_answer(problem.question, form), problem.answer).value == 0.0


def truth(task, problem):
    return problem.answer["target"] if isinstance(task, Countdown) else int(problem.answer)


@named
def test_splits_do_not_overlap_and_test_is_distinct(task):
    def keys(problems):
        return [key_of(task, problem) for problem in problems]

    held = keys(task.test)
    assert len(set(held)) == len(held)
    assert not set(held) & set(keys(task.train[:2000]))


def key_of(task, problem):
    if isinstance(task, Countdown):
        return task.key((problem.answer["numbers"], problem.answer["target"]))
    if isinstance(task, Arithmetic):
        return task.key(problem.tags["expression"])
    a, b = problem.question.removeprefix("What is ").removesuffix("?").split(" + ")
    return task.key((int(a), int(b)))


@given(st.integers(0, 99_999), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_a_problem_is_a_function_of_its_index(index, seed):
    for kind in (Addition, Arithmetic, Countdown):
        assert kind(seed=seed).train[index] == kind(seed=seed).train[index]


def test_seeds_draw_different_problems_with_one_split():
    one, two = Addition(seed=1), Addition(seed=2)
    assert one.train[:20] != [p for p in two.train[:20]]
    held = {key_of(one, p) for p in one.test}
    assert not held & {key_of(two, p) for p in two.train[:2000]}


def test_commuted_problems_share_a_split():
    assert Addition().key((3, 4)) == Addition().key((4, 3))
    assert Arithmetic().key("(2 + 10) * 3") == Arithmetic().key("3 * (10 + 2)")
    assert Countdown().key(((1, 2, 3), 6)) == Countdown().key(((3, 1, 2), 6))


def test_another_process_draws_the_same():
    code = "from ponder.tasks import *; print([t().train[7].question for t in (Addition, Arithmetic, Countdown)])"
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    text = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert text.strip() == str([kind().train[7].question for kind in (Addition, Arithmetic, Countdown)])


def test_train_is_a_sequence():
    train = Addition(size=5).train
    assert len(train) == 5 and train[-1] == train[4] and len(train[1:9]) == 4 and len(list(train)) == 5
    with pytest.raises(IndexError):
        train[5]


def test_tasks_pickle_and_compare():
    task = Countdown()
    assert task.test and pickle.loads(pickle.dumps(task)) == task == Countdown()


def test_small_problem_space_gives_fewer_problems():
    assert 0 < len(Addition(1).test) < 20
    assert len({p.question for p in Countdown(2, largest=5).test}) < 100


def test_problem_space_without_test_problems_is_refused(monkeypatch):
    monkeypatch.setattr("ponder.tasks.generated.generated_task.hashes_to_test", lambda key, tenths: False)
    with pytest.raises(TaskError, match="widen"):
        _ = Addition().test
    monkeypatch.setattr("ponder.tasks.generated.generated_task.hashes_to_test", lambda key, tenths: True)
    with pytest.raises(TaskError, match="widen"):
        Addition().train[0]


def test_prompt_system_and_forms_are_settings():
    task = Addition(3, prompt="{a}+{b}=", system="Be brief.", forms=("tag",))
    problem = task.train[0]
    assert problem.messages[0] == {"role": "system", "content": "Be brief."} and problem.question.endswith("=")
    assert task.gold(problem) == f"<answer>{problem.answer}</answer>"
    assert task.verifier.grade(problem.answer, problem.answer).value == 0.0


def test_default_forms_accept_an_equation():
    assert set(Addition().answer_forms) == set(ANSWER_FORMS)
    assert Addition().verifier.grade("27 + 58 = 85.", "85").value == 1.0


@pytest.mark.parametrize(
    ("kind", "setting"),
    [(Addition, {"digits": 0}), (Addition, {"size": 0}), (Addition, {"test_size": 0}), (Addition, {"prompt": "{x}"}),
     (Addition, {"prompt": "{a"}), (Addition, {"forms": ("box",)}), (Arithmetic, {"terms": 1}),
     (Arithmetic, {"terms": 99}),
     (Arithmetic, {"largest": 1}), (Countdown, {"numbers": 1}), (Countdown, {"numbers": 7}),
     (Countdown, {"highest": 0})],
)  # fmt: skip
def test_bad_settings_are_refused(kind, setting):
    with pytest.raises(UsageError):
        kind(**setting)


def test_arithmetic_uses_its_settings():
    drawn = [p.tags["expression"] for p in Arithmetic(4, largest=9).train[:200]]
    assert all(
        len(evaluate_arithmetic(e).used_integers) == 4 and max(evaluate_arithmetic(e).used_integers) <= 9 for e in drawn
    )
    assert any("(" in e for e in drawn)
    assert not any("(" in p.question for p in Arithmetic(brackets=False).train[:50])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9))
def test_countdown_is_always_solved_by_its_solver(seed):
    task = Countdown(4, largest=10)
    numbers, target = task.draw(random.Random(seed))
    expression = evaluate_arithmetic(solve(numbers, target))
    assert expression.value == target and sorted(expression.used_integers) == sorted(numbers)


def test_solver_returns_none_without_a_solution():
    assert solve([1, 1], 5) is None
    assert evaluate_arithmetic(solve([3, 3, 8, 8], 24)).value == 24  # only 8 / (3 - 8 / 3) does it
    assert solve([5, 5, 5, 1], 24).count("/") == 1


def test_countdown_may_leave_numbers_unused():
    task = Countdown(use_all=False)
    assert "at most once" in task.test[0].question
    assert task.verifier.grade("<answer>7 * 2</answer>", {"numbers": [7, 2, 5], "target": 14}).value == 1.0


def test_prompts_say_which_form_is_read_and_the_measured_recipe_keeps_its_own():
    assert Arithmetic().train[0].messages[-1]["content"].endswith("Answer with the number only.")
    assert "####" in Sums().train[0].messages[-1]["content"]
    job = recipe_files.build_job(recipe_files.load_recipe(recipe_files.shipped_recipes()["addition"]), {})
    own, plain = job.task.train[0], Addition().train[0]  # the same sum, in the recipe's words
    assert plain.question == f"What is {own.question.removeprefix('Addition: ').removesuffix(' =')}?"
    assert own.question.startswith("Addition: ") and own.question.endswith(" =") and own.answer == plain.answer
    assert [job.task.verifier.grade(text, "85").value for text in ("85", " 85", "85.", "84", "")] == [1, 1, 1, 0, 0]
    assert set(job.task.forms) == {"bare", "boxed", "tag", "hash", "line"}
