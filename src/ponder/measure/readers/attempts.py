"""The attempts of a system at each problem: the table that all estimators read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError
from ponder.types import Cost

MAX_LISTED_PROBLEMS = 3  # problems that a message names; the rest are counted

# What becomes of attempts without a verdict.
NO_VERDICT_NOTE = "have no verdict and are left out; a problem with no other is not right as far as is known"
SCORE_COLUMN = "score"  # where a log's own score stands
LOGPROB_COLUMN, LOGPROB_SUM_COLUMN = "logprob", "logprob_sum"  # the mean log-probability per token, and the sum
LOGPROB_COLUMNS = (LOGPROB_COLUMN, LOGPROB_SUM_COLUMN)


@dataclass(frozen=True, slots=True)
class ProblemAttempts:
    """The attempts at one problem, each column with one entry per attempt, or only how many there were.

    None within a column is missing: an undecided verdict, no answer found, no score given.
    """

    problem: str
    correct: tuple[float | None, ...] = ()  # 1 right, 0 wrong, between them graded
    answers: tuple[str | None, ...] | None = None  # canonical, as votes count them; None: the log has none
    scores: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)  # by scorer
    tokens: tuple[int | None, ...] | None = None
    texts: tuple[str, ...] | None = None
    sample_counts: tuple[int, int] | None = None  # samples and how many were right, where nothing else is known of them
    chosen: int | None = None  # the attempt that the system itself gave as its answer
    cost: Cost | None = None
    question: str = ""
    gold: Any = None
    error: str = ""  # the error that ended the thinking, if one did
    no_attempt_finished: bool = False  # it was asked, no error ended the thinking, and yet no attempt came to an end

    def __post_init__(self) -> None:
        columns = {"answers": self.answers, "tokens": self.tokens, "texts": self.texts, **dict(self.scores)}
        for name, column in columns.items():
            if column is not None and len(column) != self.size:
                raise UsageError(
                    f"problem {self.problem!r} has {self.size} verdicts and {len(column)} {name}; one each is needed"
                )
        if self.sample_counts is not None:
            n, c = self.sample_counts
            if self.correct or not 0 <= c <= n:
                raise UsageError(
                    f"problem {self.problem!r} has {c} right of {n} samples; it takes 0 <= right <= samples"
                )

    @property
    def size(self) -> int:
        return self.sample_counts[0] if self.sample_counts else len(self.correct)

    @property
    def verdicts(self) -> list[float]:
        return [c for c in self.correct if c is not None]

    @property
    def undecided(self) -> int:
        return 0 if self.sample_counts else len(self.correct) - len(self.verdicts)

    @property
    def counts(self) -> tuple[int, int]:
        """Judged attempts, and how many of them were right."""
        if self.sample_counts:
            return self.sample_counts
        if graded := [c for c in self.verdicts if c not in (0, 1)]:
            raise UsageError(
                f"problem {self.problem!r} has the graded verdict {graded[0]:g}; counting takes right (1) or wrong (0)"
            )
        return len(self.verdicts), int(sum(self.verdicts))

    @property
    def mean(self) -> float | None:
        """Of one attempt, drawn at random; None where none was judged."""
        if self.sample_counts:
            n, c = self.sample_counts
            return c / n if n else None
        return sum(self.verdicts) / len(self.verdicts) if self.verdicts else None

    def first_k(self, k: int) -> ProblemAttempts:
        """Its first k attempts."""
        if self.sample_counts:
            raise UsageError(f"problem {self.problem!r} has counts only: its attempts have no order to take {k} from")
        return replace(
            self,
            correct=self.correct[:k],
            answers=self.answers and self.answers[:k],
            scores={name: column[:k] for name, column in self.scores.items()},
            tokens=self.tokens and self.tokens[:k],
            texts=self.texts and self.texts[:k],
        )


@dataclass(frozen=True)
class Attempts:
    """One system on a set of problems. `reading_notes` say which column was read as what, and what is missing."""

    name: str
    groups: tuple[ProblemAttempts, ...]
    reading_notes: tuple[str, ...] = ()
    task: Any = None  # what the problems are, where the log tells: the encoded task of a run, another tool's version
    derived: bool = False  # chosen by some rule among another system's attempts

    def __post_init__(self) -> None:
        if not self.groups:
            raise UsageError(f"{self.name} holds no problem: check the file, or name its columns")
        seen: set[str] = set()
        for g in self.groups:
            if g.problem in seen:
                raise UsageError(
                    f"{self.name} has the problem {shorten_id(g.problem)} twice; each must have an id of its own"
                )
            seen.add(g.problem)

    @property
    def problems(self) -> list[str]:
        return [g.problem for g in self.groups]

    @property
    def problems_without_verdict(self) -> list[str]:
        """Problems without a judged attempt."""
        return [g.problem for g in self.groups if g.mean is None]

    @property
    def undecided(self) -> int:
        return sum(g.undecided for g in self.groups)

    @property
    def samples(self) -> tuple[int, int]:
        """The fewest and the most attempts at a problem."""
        sizes = [g.size for g in self.groups]
        return min(sizes), max(sizes)

    @property
    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """n and c of each problem, as pass@k takes them."""
        n, c = zip(*(g.counts for g in self.groups), strict=True)
        return np.array(n, dtype=np.int64), np.array(c, dtype=np.int64)

    @property
    def means(self) -> list[float | None]:
        return [g.mean for g in self.groups]

    @property
    def cost(self) -> Cost | None:
        """Of all problems; None where any is unknown."""
        costs = [g.cost for g in self.groups]
        return sum((c for c in costs if c), Cost()) if all(c is not None for c in costs) else None

    @property
    def has_answers(self) -> bool:
        """Are there answers to count votes on?"""
        return all(g.answers is not None for g in self.groups if g.size)

    @property
    def scorers(self) -> list[str]:
        """Names under which every group with attempts has scores."""
        own = [set(g.scores) for g in self.groups if g.size]
        return sorted(set.intersection(*own)) if own else []

    def on_problems(self, problems: Iterable[str]) -> Attempts:
        """The same system on these problems, in this order."""
        by_id = {g.problem: g for g in self.groups}
        return replace(self, groups=tuple(by_id[p] for p in problems))

    def map_problems(self, change: Callable[[ProblemAttempts], ProblemAttempts]) -> Attempts:
        return replace(self, groups=tuple(change(g) for g in self.groups))


def align_problems(systems: Sequence[Attempts], common_only: bool = False) -> tuple[list[Attempts], list[str]]:
    """The systems with their problems in one order, and what to say about it.

    Refuses systems on different problems, or on different versions of one, unless `common` asks for those that all
    of them have.
    """
    first, others = systems[0], [set(s.problems) for s in systems[1:]]
    shared = [p for p in first.problems if all(p in known for known in others)]
    notes: list[str] = []
    apart = [s for s in systems if len(s.problems) != len(shared)]
    if apart and not shared:
        raise UsageError(
            f"{first.name} and {apart[-1].name} have no problem in common (ids {shorten_id(first.problems[0])} and"
            f" {shorten_id(apart[-1].problems[0])}); name the id's column with --column id=NAME, or compare other logs"
        )
    if apart and not common_only:
        sizes = ", ".join(f"{s.name} {len(s.problems)}" for s in systems)
        raise UsageError(
            f"the systems have different problems ({sizes}; {len(shared)} in common): give runs on the same ones, or"
            " --common-problems to compare on those"
        )
    if apart:
        sizes = ", ".join(f"{s.name} has {len(s.problems)}" for s in systems)
        notes.append(f"compared on the {len(shared)} problems that all have ({sizes})")
    out = [s.on_problems(shared) for s in systems]
    for other in out[1:]:
        notes += _check_same_version(out[0], other)
    return out, list(dict.fromkeys(notes))


def _check_same_version(a: Attempts, b: Attempts) -> list[str]:
    pairs = list(zip(a.groups, b.groups, strict=True))
    both = [(x, y) for x, y in pairs if x.gold is not None and y.gold is not None]
    if other := [x.problem for x, y in both if comparable_text(x.gold) != comparable_text(y.gold)]:
        raise UsageError(
            f"{a.name} and {b.name} are on different versions of a task: {len(other)} of {len(both)} problems have"
            f" another gold answer ({list_problems(other)}). Compare runs on one version"
        )
    if a.task is not None and b.task is not None and (difference := _version_difference(a.task, b.task)):
        raise UsageError(
            f"{a.name} and {b.name} are on different versions of a task: {difference}. Compare runs on one version"
        )
    questions = [(x.question, y.question) for x, y in pairs if x.question and y.question]
    differ = sum(x != y for x, y in questions)
    if differ and isinstance(a.task, Mapping) and a.task == b.task:
        raise UsageError(
            f"{a.name} and {b.name} are on different versions of a task: it has the same settings in both, but"
            f" {differ} of {len(pairs)} questions are others, so its data or code changed between them. Run one again"
        )
    if differ:
        return [f"{differ} of {len(pairs)} questions are worded differently in {a.name} and {b.name}"]
    if not both and not questions:
        return ["not checked: that equal ids mean the same problem (the logs hold neither questions nor gold answers)"]
    return []


def _version_difference(a: Any, b: Any) -> str:
    """Where two tasks say that they are different ones. A prompt may differ: that can be what is compared."""
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return "" if a == b else f"{a} and {b}"
    for key in ("is", "name", "version"):
        if key in a and key in b and a[key] != b[key]:
            return f"{key} {a[key]} and {b[key]}"
    return ""


def short_labels(names: Sequence[str]) -> list[str]:
    """Names without the words with which all of them begin or end."""
    words = [re.findall(r"[A-Za-z0-9.]+|[^A-Za-z0-9.]+", n) for n in names]
    if len(names) < 2 or len(set(names)) < len(names):
        return list(names)
    shortest = min(map(len, words))
    head = next((i for i in range(shortest) if len({w[i] for w in words}) > 1), shortest)
    tail = next((i for i in range(shortest - head) if len({w[-1 - i] for w in words}) > 1), shortest - head)
    cut = ["".join(w[head : len(w) - tail]).strip(" _-:/") for w in words]
    while head > 0 and all(c.isdigit() for c in cut):  # a number alone names nothing
        head = max(head - 2, 0)
        cut = ["".join(w[head:]).strip(" _-:/") for w in words]
    return cut if all(cut) and len(set(cut)) == len(cut) else list(names)


def comparable_text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def shorten_id(text: str, width: int = 40) -> str:
    """A problem's id, which may be its whole question, short enough for a message."""
    line = " ".join(str(text).split())
    return repr(line if len(line) <= width else line[: width - 3] + "...")


def list_problems(problems: Sequence[str]) -> str:
    more = f" and {len(problems) - MAX_LISTED_PROBLEMS} more" if len(problems) > MAX_LISTED_PROBLEMS else ""
    return ", ".join(shorten_id(p) for p in problems[:MAX_LISTED_PROBLEMS]) + more
