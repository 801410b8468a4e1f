"""Problems made in each of ponder's ways, what each filter drops of them, and what a model learns from the rest.

From a few seed problems come new ones: from templates, by changing numbers, and written by the model itself (new ones
like the seeds, harder ones, ones with the same answers). The model then tries each, filters drop duplicates, held-out
problems, answers that the attempts do not agree on, and what is too easy or too hard, and the model learns its own
right answers to the rest, as many steps on each set. Beside these are the seeds alone, new problems of the task itself,
and all ways together with each filter left out in turn. Of sums it also learns by those right answers whose lines are
all right. `ponder book synthetic` runs this with three seeds.

The tiny model adds three to six numbers below 10; its seeds have three or four. Before, it reads worked sums and, as
often, requests for problems with their replies, in which the fixed sentences of `ponder problems` are one token each.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    RecipeBase,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    Validation,
    find_base,
)
from _checked_steps import SumSteps

from ponder.cli.flags import build_with_settings
from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.make_problems import MakeProblems
from ponder.pipelines.problems.filters import Filters
from ponder.pipelines.problems.reapply_filters import (
    FILTER_NAMES,
    FilterName,
    MadeProblem,
    apply_filters,
    read_made_problems,
)
from ponder.pipelines.problems.sources import Source
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Task
from ponder.tasks import Sums
from ponder.tasks.lazy_problems import LazyProblems
from ponder.tasks.question_identity import bare_question
from ponder.tasks.synthetic import backward_prompt, evolve_prompt, new_problem_prompt
from ponder.tasks.wrapped_task import WrappedTask
from ponder.types import Message, Problem, Sampling

WAYS: tuple[Source, ...] = ("templates", "mutate", "write", "evolve", "backward")
GIVEN = ("seeds", "task")  # problems that nobody made: the seeds again, and new ones of the task
TOGETHER = "together"
CHECKED = ("task", TOGETHER)  # from which sums also learn by answers whose lines are all right
SUMS_TEMPLATES = Path(__file__).with_name("_sums_templates.json")
LIMIT = 10  # numbers of a sum are below
EVOLVED = {"constraint": 1, "steps": 2}  # numbers that an operator adds to a sum
EXAMPLES = 1  # shown to a model that writes
CONTEXT = 128  # tokens: six numbers and their lines
MAX_TOKENS = 64
WEIGHT_STD = 0.08  # sqrt(2 / (5 width)), from which a narrow model learns to copy
BATCH_SIZE = 32  # answers in a step; there are a few hundred
REPLY = ("<problem>", "</problem>\n<answer>", "</answer>")


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 200,
    seeds: Annotated[int, "problems to start from"] = 128, count: Annotated[int, "problems to make in each way"] = 256,
    samples: Annotated[int, "attempts at each problem"] = 8,
    templates: Annotated[str | None, "a file of templates; None: those of sums, and none for another task"] = None,
    start_steps: Steps = None, steps: Steps = None, lr: Lr = None, max_per_problem: Count = 4,
    validation: Annotated[bool, "measure on problems kept out of training, to choose settings"] = False, seed: int = 0,
) -> Stages:  # fmt: skip
    sums = task is None and model == "tiny"
    b = find_base(model, task, NO_SETTINGS if sums else task_settings, template, max_tokens, limit)
    steps = steps or (60 if model == "tiny" else None)
    if sums:
        b = sums_base(b, max_tokens, task_settings)
    if validation:
        b = replace(b, task=Validation(b.task))
    parents = Seeds(fewer_numbers(b.task) if sums else b.task, seeds)
    stages, first = b.cold_start_stages(seed, None)
    if b.has_cold_start:
        job = b.cold_start_job(seed, start_steps)
        stages[0] = replace(stages[0], job=replace(job, data=SolvesAndWrites(b.task)) if sums else job)
    elif start_steps is not None:
        raise UsageError("--start-steps changes nothing: this model starts as it is")
    file = templates or (str(SUMS_TEMPLATES) if sums else None)
    ways = [way for way in WAYS if way != "templates" or file]
    shared: dict[str, Any] = {
        "prompt": "{question}" if sums else None, "solvers": (first,), "samples_per_solver": samples,
        "writer_sampling": b.sampling, "solver_sampling": b.sampling, "min_votes": 0, "min_pass_rate": 0.0,
        "max_pass_rate": 1.0, "filters": Filters(min_chars=1, dedup_threshold=0.0, keep_duplicates=True),
        "max_concurrency": 512, "seed": seed,
    }  # fmt: skip
    for name in (*GIVEN, *ways):
        if name == "templates":
            source: dict[str, Any] = {"source": "templates", "file": file}
        elif name in GIVEN:
            source = {"source": "filter", "task": parents if name == "seeds" else Seeds(b.task, count)}
        else:
            source = {"source": name, "task": parents, "model": first, "examples": EXAMPLES}
            source |= {"operators": tuple(EVOLVED)} if name == "evolve" else {}
            source |= {"operators": ("numbers",)} if name == "mutate" else {}
        stages.append(
            Stage(f"{name}-made", MakeProblems(count=seeds if name == "seeds" else count, **source, **shared))
        )

    def learn(name: str, made: Sequence[str], filters: tuple[FilterName, ...], checked: bool = False) -> None:
        runs = tuple(f"stage:{way}-made" for way in made)
        data = FilteredAnswers(b.task, runs, filters, max_per_problem, checked)
        stages.append(
            Stage(f"{name}-tune", replace(b.fine_tune("", first, seed, steps, lr, batch_size=BATCH_SIZE), data=data))
        )
        stages.append(Stage(f"{name}-accuracy", b.evaluate(f"stage:{name}-tune", seed)))

    for name in (*GIVEN, *ways):
        learn(name, [name], FILTER_NAMES)
    learn(TOGETHER, ways, FILTER_NAMES)
    for left_out in FILTER_NAMES:
        learn(f"without-{left_out}", ways, tuple(name for name in FILTER_NAMES if name != left_out))
    learn("without-all", ways, ())
    for name in CHECKED if sums else ():
        learn(f"{name}-checked", ways if name == TOGETHER else [name], FILTER_NAMES, checked=True)
    return Stages(tuple(stages))


@dataclass(frozen=True)
class VariedSums(Sums):
    """Sums of `fewest` to `terms` numbers, none of them 0."""

    fewest: int = 3

    def draw(self, rng: random.Random) -> tuple[int, ...]:
        return tuple(rng.randint(1, self.limit - 1) for _ in range(rng.randint(self.fewest, self.terms)))

    def is_training(self, terms: tuple[int, ...]) -> bool:
        return not self._is_test_item(terms)


def sums_base(b: RecipeBase, max_tokens: int | None, settings: Mapping[str, str]) -> RecipeBase:
    """The tiny base on sums of several lengths, with the sentences of requests in its vocabulary."""
    assert isinstance(b.model, ScratchModel) and isinstance(b.task, Sums)
    alphabet = b.model.alphabet + "."
    scratch = replace(b.model, alphabet=alphabet, context=CONTEXT, weight_std=WEIGHT_STD, words=request_words())
    task = VariedSums(terms=6, limit=LIMIT, prompt=b.task.prompt, forms=b.task.forms, test_size=b.limit)
    task = build_with_settings("task", task, settings, "task")
    return replace(b, model=scratch, task=task, sampling=Sampling(max_tokens=max_tokens or MAX_TOKENS))


def fewer_numbers(task: Task) -> Task:
    """The same sums with at most four numbers."""
    if isinstance(task, Validation):
        return replace(task, task=fewer_numbers(task.task))
    assert isinstance(task, VariedSums)
    return replace(task, terms=4)


def request_words() -> tuple[str, ...]:
    """The fixed sentences of the requests to a model that writes, and of its replies."""
    blank = Problem("", ({"role": "user", "content": "\0"},), "\0")
    prompts = [new_problem_prompt([blank]), backward_prompt("\0", blank)]
    prompts += [evolve_prompt(operator, [blank]) for operator in EVOLVED]
    parts = [part for messages in prompts for part in str(messages[-1]["content"]).split("\0")]
    return tuple(dict.fromkeys([*(part for part in parts if part), *REPLY]))


@dataclass(frozen=True)
class Seeds(WrappedTask):
    """The first training problems of a task, and no test problems: what is made of them is filtered later."""

    task: Task
    count: int

    @property
    def train(self) -> Sequence[Problem]:
        return self.task.train[: self.count]

    @property
    def test(self) -> Sequence[Problem]:
        return ()


@dataclass(frozen=True)
class SolvesAndWrites(WrappedTask):
    """Sums with their worked answers and, every other time, a request for a sum with the reply."""

    task: Task

    @property
    def train(self) -> LazyProblems:
        return _SolvesAndWrites(self.task)

    def gold(self, problem: Problem) -> str:
        return str(problem.tags["reply"]) if "reply" in problem.tags else self.task.gold(problem)


class _SolvesAndWrites(LazyProblems):
    def __init__(self, task: Task) -> None:
        self.problems = task.train
        self.fewer = fewer_numbers(task)
        sums = task.task if isinstance(task, Validation) else task
        assert isinstance(sums, VariedSums)
        self.sums = sums

    def __len__(self) -> int:
        return len(self.problems)

    def problem_at(self, index: int) -> Problem:
        if index % 2 == 0:
            return self.problems[index]
        parent, rng = self.fewer.train[index], random.Random(f"request {index}")
        terms = tuple(parent.tags["terms"])
        messages: tuple[Message, ...]
        if (way := rng.choice(("write", "evolve", "backward"))) == "write":
            messages, child = new_problem_prompt([parent]), self.like(rng)
        elif way == "evolve":
            operator = rng.choice(tuple(EVOLVED))
            messages, child = evolve_prompt(operator, [parent]), self.longer(terms, EVOLVED[operator], rng)
        else:
            messages, child = backward_prompt(str(parent.answer), parent), self.with_sum(sum(terms), rng)
        reply = f"{REPLY[0]}{'+'.join(map(str, child))}={REPLY[1]}{sum(child)}{REPLY[2]}"
        return replace(parent, messages=messages, tags={**parent.tags, "reply": reply})

    def like(self, rng: random.Random) -> tuple[int, ...]:
        return tuple(self.fewer.train[rng.randrange(len(self.problems))].tags["terms"])

    def longer(self, terms: tuple[int, ...], more: int, rng: random.Random) -> tuple[int, ...]:
        while not self.sums.is_training(child := (*terms, *(rng.randint(1, self.sums.limit - 1) for _ in range(more)))):
            pass
        return child

    def with_sum(self, total: int, rng: random.Random) -> tuple[int, ...]:
        while True:
            *some, _ = self.like(rng)
            child = (*some, total - sum(some))
            if 1 <= child[-1] < self.sums.limit and self.sums.is_training(child):
                return child


@dataclass(frozen=True)
class FilteredAnswers(WrappedTask):
    """The right answers, as the problems' own answers say, to made problems that pass these filters. `checked`: of
    sums, only those whose lines are all right; errors that cancel out, or a result that was guessed, are right, too."""

    task: Task
    runs: tuple[str, ...]
    filters: tuple[FilterName, ...]
    max_per_problem: int
    checked: bool = False

    @property
    def train(self) -> Sequence[Problem]:
        return self._problems

    @cached_property
    def _problems(self) -> Sequence[Problem]:
        made = [one for run in self.runs for one in read_made_problems(run)]
        return [
            replace(one.problem, tags={**one.problem.tags, "solution": text})
            for one in apply_filters(made, self.filters, self.task.test)
            for text in self._chosen(one)[: self.max_per_problem]
        ]

    def _chosen(self, one: MadeProblem) -> Sequence[str]:
        return [text for text in one.solutions if has_right_lines(one, text)] if self.checked else one.solutions

    def gold(self, problem: Problem) -> str:
        return str(problem.tags["solution"])


def has_right_lines(one: MadeProblem, text: str) -> bool:
    """Whether each line of a sum's answer adds the next number, and rightly."""
    terms = [int(number) for number in re.findall(r"\d+", bare_question(one.problem))]
    right = SumSteps().are_right_lines(replace(one.problem, tags={"terms": terms}), text)
    return right and len(text.splitlines()) == len(terms)
