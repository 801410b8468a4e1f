"""Self-improvement in rounds, from one start: STaR without and with hints, expert iteration by samples and by search.

STaR (Zelikman et al. 2022) keeps one right answer to a problem and fine-tunes the *start* on them, each round with
answers of the newest model; with rationalisation, a problem without a right answer is asked again with the result as a
hint, and what then ends right is learned without the hint. Expert iteration (Anthony et al. 2017) fine-tunes the newest
model on up to four different right answers to a problem, from independent samples or from MCTS whose rollouts the gold
answer scores. A right answer may have wrong lines, whose errors cancel out. So STaR, with and without hints, and expert
iteration by samples run again with a verifier that also wants every line right, where code can check lines: of sums,
and of a task with `step_check`. `ponder book self-improvement` draws the rounds of all.

The tiny model's start has read half of its worked answers with the result ahead of them: it knows what a hint is.
Results with ten seeds: docs/book/self-improvement.md.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    Problems,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)
from _checked_steps import CheckedLines, find_step_check

from ponder.errors import NoGoldAnswer
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.rewards.step_labelling import ExactSteps
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Task
from ponder.reason.prompts import Prompt
from ponder.reason.strategies import Samples, STaR
from ponder.settings import GreaterThan
from ponder.tasks.lazy_problems import LazyProblems
from ponder.tasks.wrapped_task import WrappedTask
from ponder.types import Problem

TINY_HINT = "#{answer}="
CHECKED = ("star", "star-hints", "sampling")


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 200,
    rounds: Count = 3, problems: Problems = None, n: Annotated[int, "samples of a problem in STaR", GreaterThan(0)] = 4,
    samples: Annotated[int, "of a problem in expert iteration", GreaterThan(0)] = 8,
    simulations: Annotated[int, "of MCTS for a problem", GreaterThan(0)] = 16, steps: Steps = None, lr: Lr = None,
    seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    problems = problems or b.answer_budget // (16 * n)
    steps = steps or (100 if model == "tiny" else None)
    stages, first = b.cold_start_stages(seed, None)
    hint = {"hint": TINY_HINT} if model == "tiny" else {}
    if model == "tiny":
        reading = stages[0].job
        stages[0] = replace(stages[0], job=replace(reading, data=HalfHinted(reading.data, TINY_HINT)))
    ways: dict[str, Any] = {
        "star": STaR(n, b.sampling, rationalise=False),
        "star-hints": STaR(n, b.sampling, rationalise=True, **hint),
        "sampling": Samples(samples, b.sampling),
        "search": b.mcts(simulations, rollouts=1),
    }
    arms = {arm: (way, b) for arm, way in ways.items()}
    check = find_step_check(b.task, is_sums=task is None)
    if check is not None and accepts_gold(check, b.task):
        checked = replace(b, task=CheckedLines(b.task, check))
        arms |= {f"{arm}-checked": (ways[arm], checked) for arm in CHECKED}
    for arm, (way, judged) in arms.items():
        newest, each = first, 1 if arm.startswith("star") else 4
        for k in range(1, rounds + 1):
            guide = "" if arm.startswith("sampling") else "oracle"
            sampled = judged.collect(newest, way, problems, seed, (k - 1) * problems, guide)
            start = first if arm.startswith("star") else newest
            stages += [
                Stage(f"{arm}-sample-{k}", sampled),
                Stage(
                    f"{arm}-harvest-{k}",
                    Harvest((f"stage:{arm}-sample-{k}",), "chains", max_per_problem=each, tokenizer=first),
                ),
                Stage(f"{arm}-tune-{k}", b.fine_tune(f"stage:{arm}-harvest-{k}/data.jsonl", start, seed, steps, lr)),
                Stage(f"{arm}-accuracy-{k}", b.evaluate(f"stage:{arm}-tune-{k}", seed)),
            ]
            newest = f"stage:{arm}-tune-{k}"
    return Stages(tuple(stages))


def accepts_gold(check: ExactSteps, task: Task) -> bool:
    """Whether the lines of a worked answer are right: sums may be stated in another form than the check knows."""
    gold, problem = getattr(task, "gold", None), task.train[0]
    try:
        return gold is None or check.are_right_lines(problem, gold(problem))
    except NoGoldAnswer:
        return True


@dataclass(frozen=True)
class HalfHinted(WrappedTask):
    """A task whose every second training problem gives the result away, as STaR's hint does."""

    task: Task
    hint: str

    @property
    def train(self) -> LazyProblems:
        return _HalfHinted(self.task.train, self.hint)


class _HalfHinted(LazyProblems):
    def __init__(self, problems: Any, hint: str) -> None:
        self.problems, self.hint = problems, hint

    def __len__(self) -> int:
        return len(self.problems)

    def problem_at(self, index: int) -> Problem:
        problem = self.problems[index]
        if index % 2 == 0:
            return problem
        instruction = self.hint.replace("{answer}", str(problem.answer))
        return replace(problem, messages=tuple(Prompt(instruction).messages(problem.messages)))
