"""Several tasks as one, and a task with more rewards than its verifier's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ponder.errors import TaskError, UsageError
from ponder.protocols import Scorer, Task
from ponder.runs.trust import names_code
from ponder.tasks.answer_style import with_style
from ponder.tasks.lazy_problems import LazyProblems
from ponder.tasks.question_identity import bare_question_text
from ponder.tasks.reward_functions import FunctionReward
from ponder.tasks.wrapped_task import WrappedTask
from ponder.types import Problem, Score, Trace
from ponder.verify.rewards.reward_registry import reward_code, weighted_reward

_TASK_TAG = "task"  # the tag that says which task a problem is of
MAX_SKIPPED_PROBLEMS = 1_000  # held problems in a row


@dataclass(frozen=True)
class WeightedRewardTask(WrappedTask):
    """A task whose reward is a weighted sum: `(("accuracy", 1.0), ("format", 0.2), ("mine.py:reward", 0.5))`.

    `accuracy` is the task's verifier. The others are rewards of ponder, scorers, or functions in TRL's form.
    """

    task: Task
    rewards: tuple[tuple[str, float], ...] = field(metadata=names_code(reward_code))

    def __post_init__(self) -> None:
        _refuse_environment(self.task, "its reward is the episode's: leave out the others")
        self.verifier  # noqa: B018  says at once which name is unknown

    @property
    def verifier(self) -> Scorer:
        return weighted_reward(dict(self.rewards), self.task.verifier, FunctionReward)

    def restyle(self, style: str) -> WeightedRewardTask:
        return replace(self, task=with_style(self.task, style))


@dataclass(frozen=True)
class TaskMixture:
    """The problems of several tasks, each judged by its own task's verifier. A question that one of them tests with is
    none that another trains on. In their own order tasks take turns as long as all have problems left; a training run
    shuffles them, so that a task's share is that of its problems: of 1,000 word problems and 100,000 drawn sums nearly
    all are sums. `balanced` gives every task the same share of training: problems of the smaller ones come again, so
    that a job which takes each problem once, such as `Collect`, finds fewer than it looks at."""

    tasks: tuple[Task, ...]
    balanced: bool = False

    def __post_init__(self) -> None:
        names = [t.name for t in self.tasks]
        if not names or len(set(names)) < len(names):
            raise UsageError(f"a mixture needs tasks with names of their own; these are {names}")
        for task in self.tasks:
            _refuse_environment(task, "a mixture has single questions only: train on it by itself")

    @property
    def name(self) -> str:
        return "+".join(t.name for t in self.tasks)

    @property
    def train(self) -> Sequence[Problem]:
        parts = [(task.name, self._train_by_task[task.name]) for task in self.tasks]
        return _Balanced(parts) if self.balanced else _RoundRobin(parts)

    @cached_property
    def _train_by_task(self) -> dict[str, Sequence[Problem]]:
        """The training problems of each task that no other task is tested with."""
        tests = {t.name: _test_questions(t) for t in self.tasks} if len(self.tasks) > 1 else {}
        out: dict[str, Sequence[Problem]] = {}
        for task in self.tasks:
            held_out = frozenset[str]().union(*(keys for name, keys in tests.items() if name != task.name))
            out[task.name] = train_without_held_out(task, held_out)
        return out

    @property
    def test(self) -> Sequence[Problem]:
        return _RoundRobin([(t.name, t.test) for t in self.tasks])

    @property
    def verifier(self) -> Scorer:
        return PerTaskVerifier(self.tasks)

    def gold(self, problem: Problem) -> str:
        return self._task_of(problem).gold(problem)

    def restyle(self, style: str) -> TaskMixture:
        return replace(self, tasks=tuple(with_style(task, style) for task in self.tasks))

    def _task_of(self, problem: Problem) -> Task:
        return next(t for t in self.tasks if t.name == problem.tags[_TASK_TAG])


@dataclass(frozen=True)
class PerTaskVerifier:
    """The verdict of the task that a problem is of. Rewards of several tasks should lie in one range."""

    tasks: tuple[Task, ...]

    @property
    def name(self) -> str:
        return "each"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        of = trace.problem.tags.get(_TASK_TAG)
        for task in self.tasks:
            if task.name == of:
                return list(await task.verifier(trace, steps))
        return [Score(None, f"bad data: the problem is of {of!r}, which is none of the tasks")] * len(steps)


def _refuse_environment(task: Task, reason: str) -> None:
    if hasattr(task.verifier, "episodes"):
        raise UsageError(f"the task {task.name!r} is played in turns, and {reason}")


def train_without_held_out(task: Task, held_out: frozenset[str]) -> Sequence[Problem]:
    """The training problems of a task whose questions are none of these."""
    train = task.train
    if not isinstance(train, list):
        return _WithoutHeldOut(task, train, held_out)
    left = [p for p in train if bare_question_text(task, p) not in held_out]
    if train and not left:
        raise TaskError(f"all training problems of {task.name!r} are test problems of the others: leave that task out")
    return left


def _test_questions(task: Task) -> frozenset[str]:
    try:
        return frozenset(bare_question_text(task, problem) for problem in task.test)
    except TaskError:  # it has none to test with
        return frozenset()


class _WithoutHeldOut(LazyProblems):
    """In place of a problem that is held out, the next that is not."""

    def __init__(self, task: Task, problems: Sequence[Problem], held_out: frozenset[str]) -> None:
        self.task, self.problems, self.held = task, problems, held_out

    def __len__(self) -> int:
        return len(self.problems)

    def problem_at(self, index: int) -> Problem:
        for i in range(min(len(self), MAX_SKIPPED_PROBLEMS)):
            problem = self.problems[(index + i) % len(self)]
            if bare_question_text(self.task, problem) not in self.held:
                return problem
        raise TaskError(f"the task {self.task.name!r} hardly has a training problem that the others do not test with")


class _RoundRobin(LazyProblems):
    """One of each in turn, as long as all have one; then of those that have more."""

    def __init__(self, parts: Sequence[tuple[str, Sequence[Problem]]]) -> None:
        self.parts = parts
        least = min(len(p) for _, p in parts)
        self.interleaved_count = least * len(parts)
        self.rest = [(name, p, least) for name, p in parts if len(p) > least]

    def __len__(self) -> int:
        return sum(len(p) for _, p in self.parts)

    def problem_at(self, index: int) -> Problem:
        if index < self.interleaved_count:
            name, problems = self.parts[index % len(self.parts)]
            return _tagged_with_task(problems[index // len(self.parts)], name)
        at = index - self.interleaved_count
        for name, problems, first in self.rest:
            if at < len(problems) - first:
                return _tagged_with_task(problems[first + at], name)
            at -= len(problems) - first
        raise AssertionError("counted above")


class _Balanced(LazyProblems):
    """One of each in turn until the longest is through; shorter ones begin again."""

    def __init__(self, parts: Sequence[tuple[str, Sequence[Problem]]]) -> None:
        self.parts = [(name, problems) for name, problems in parts if len(problems)]

    def __len__(self) -> int:
        return len(self.parts) * max((len(problems) for _, problems in self.parts), default=0)

    def problem_at(self, index: int) -> Problem:
        name, problems = self.parts[index % len(self.parts)]
        return _tagged_with_task(problems[index // len(self.parts) % len(problems)], name)


def _tagged_with_task(problem: Problem, name: str) -> Problem:
    return replace(problem, id=f"{name}:{problem.id}", tags={**problem.tags, _TASK_TAG: name})
