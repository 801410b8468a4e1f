"""An attack on a task's reward before anything is trained on it: what do cheap answers earn?

Each problem gets an honest answer, which is its gold answer, and answers that took no thought: nothing, an echo of the
prompt, many answers at once, the format alone, a repetition, another problem's answer, a very long text. A policy finds
whichever of these pays as much as an honest answer, and learns nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ponder.errors import NoGoldAnswer, TaskError, UsageError
from ponder.protocols import Task
from ponder.types import Problem, Score, Step, ids, prompt_trace

MANY_ANSWERS = 10  # that are given at once
REPEATS = 60  # of a sentence
LONG_ANSWER_WORDS = 4000
FLAGGED_SHARE = 0.5  # of the problems on which a cheap answer earns as much as an honest one
_ROUNDING = 1e-9
_THOUGHT = "I work through the question step by step and check the result."
_SENTENCE = "first then note that we can see the sum of each part so far and write it with care"


@dataclass(frozen=True)
class _Material:
    """What the answers to one problem are made of."""

    problem: Problem
    gold: str | None
    other_golds: tuple[str, ...]  # that differ from this problem's
    rng: random.Random


def _many_answers(m: _Material) -> str:
    listed = [*m.other_golds[: MANY_ANSWERS - 1], *([m.gold] if m.gold is not None else [])]
    m.rng.shuffle(listed)
    return "\n".join(listed or map(str, range(MANY_ANSWERS)))


def _long_answer(m: _Material) -> str:
    words = [m.rng.choice(_SENTENCE.split()) for _ in range(LONG_ANSWER_WORDS)]
    return " ".join([*words, *m.other_golds[:1]])


CHEAP_ANSWERS: dict[str, Callable[[_Material], str | None]] = {
    "empty": lambda m: "",
    "echo of the prompt": lambda m: m.problem.question,
    "many answers at once": _many_answers,
    "format alone": lambda m: f"<think> {_THOUGHT} </think> <answer> the answer </answer>",
    "boxed nothing": lambda m: f"{_THOUGHT} \\boxed{{?}}",
    "repetition": lambda m: "The answer is the answer. " * REPEATS,
    "another problem's answer": lambda m: m.other_golds[0] if m.other_golds else None,
    "very long": _long_answer,
}


@dataclass(frozen=True)
class AnswerEarnings:
    """What one kind of answer earns over the problems."""

    kind: str
    example: str
    reward: float | None  # mean over the problems on which it is decided; None: on none
    num_undecided: int
    num_as_good: int  # problems on which it earns at least what the honest answer does
    num_problems: int  # that it was tried on
    parts: dict[str, float]  # means by the name of the score
    reason: str  # of the first score

    @property
    def flagged(self) -> bool:
        return self.num_problems > 0 and self.num_as_good >= FLAGGED_SHARE * self.num_problems


@dataclass(frozen=True)
class AttackReport:
    task: str
    num_problems: int
    honest: AnswerEarnings | None  # None: the task has no gold answers
    cheap: tuple[AnswerEarnings, ...]

    @property
    def flagged(self) -> list[AnswerEarnings]:
        return [earnings for earnings in self.cheap if earnings.flagged]


async def attack_rewards(task: Task, limit: int = 20, seed: int = 0) -> AttackReport:
    """What honest and cheap answers to the first problems earn."""
    if limit < 1:
        raise UsageError(f"limit is {limit}; try at least 1 problem")
    problems = _first_problems(task, limit)
    golds = {problem.id: _gold(task, problem) for problem in problems}
    honest = [await _best_honest(task, problem, golds[problem.id]) for problem in problems]
    cheap = []
    for kind, write in CHEAP_ANSWERS.items():
        attempts: list[_Graded] = []
        for i, (problem, best) in enumerate(zip(problems, honest, strict=True)):
            text = write(
                _Material(problem, golds[problem.id], _others(problem, problems, golds, i), random.Random(seed + i))
            )
            if text is not None:
                attempts.append(await _grade(task, problem, text, best))
        cheap.append(_summary(kind, attempts))
    known = [graded for graded in honest if graded is not None]
    return AttackReport(task.name, len(problems), _summary("honest", known) if known else None, tuple(cheap))


@dataclass(frozen=True)
class _Graded:
    text: str
    score: Score
    parts: dict[str, float]
    as_good: bool = False


async def _grade(task: Task, problem: Problem, text: str, honest: _Graded | None = None) -> _Graded:
    trace = prompt_trace(problem, ids([]))
    step = trace.add(Step(0, text, ids(list(text.encode())), stop="eos"))  # a token for each byte: lengths may count
    (score,) = await task.verifier(trace, [step])
    parts = {name: s.value for name, s in trace.steps[step].scores.items() if s.value is not None}
    best = None if honest is None else honest.score.value
    as_good = score.value is not None and best is not None and score.value >= best - _ROUNDING
    return _Graded(text, score, parts, as_good)


async def _best_honest(task: Task, problem: Problem, gold: str | None) -> _Graded | None:
    """The gold answer, also after a thought in tags, whichever earns more."""
    if gold is None:
        return None
    stated = gold.rpartition("</think>")[2].strip()  # some styles close the thinking that the prompt opened
    tagged = stated if "<answer>" in stated or "\\boxed" in stated else f"<answer> {stated} </answer>"
    attempts = [await _grade(task, problem, text) for text in (gold, f"<think> {_THOUGHT} </think> {tagged}")]
    decided = [graded for graded in attempts if graded.score.value is not None]
    return max(decided, key=lambda graded: graded.score.value or 0.0, default=attempts[0])


def _summary(kind: str, attempts: Sequence[_Graded]) -> AnswerEarnings:
    values = [graded.score.value for graded in attempts if graded.score.value is not None]
    names = dict.fromkeys(name for graded in attempts for name in graded.parts)
    parts = {name: [g.parts[name] for g in attempts if name in g.parts] for name in names}
    return AnswerEarnings(
        kind,
        attempts[0].text if attempts else "",
        sum(values) / len(values) if values else None,
        len(attempts) - len(values),
        sum(graded.as_good for graded in attempts),
        len(attempts),
        {name: sum(own) / len(own) for name, own in parts.items()},
        attempts[0].score.reason if attempts else "",
    )


def _first_problems(task: Task, limit: int) -> list[Problem]:
    try:
        problems = task.train
    except TaskError:  # a set to measure with only
        problems = task.test
    return [problems[i] for i in range(min(limit, len(problems)))]


def _gold(task: Task, problem: Problem) -> str | None:
    try:
        return task.gold(problem)
    except (NoGoldAnswer, NotImplementedError):
        return None


def _others(problem: Problem, problems: Sequence[Problem], golds: dict[str, str | None], at: int) -> tuple[str, ...]:
    """Different gold answers of the problems after this one, in their order, then of those before it."""
    rest = (golds[p.id] for p in (*problems[at + 1 :], *problems[:at]))
    return tuple(dict.fromkeys(gold for gold in rest if gold is not None and gold != golds[problem.id]))
