"""Curricula: which problems to train on next, given how often each was solved so far.

A choice is a pure function of (seed, cursor, history), so a resumed run chooses the same problems as an uninterrupted
one. A generated task may have millions of problems: a curriculum never looks at all of them, only at those that were
tried and at the next ones of the shuffled stream.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError
from ponder.pipelines.problems.shuffled_order import shuffled_indices
from ponder.types import Problem

HALF_LIFE_TRIES = 16.0  # of a problem's own tries: two groups of eight; by the next visit the policy is another one
MAX_REMEMBERED_PROBLEMS = 20_000  # problems remembered: half a megabyte of JSON, weighed in some ten milliseconds
CANDIDATES_PER_PROBLEM = 4  # candidates from the stream for each problem that is wanted, besides those tried before
DRAW_STREAM = 1  # marks the random numbers of a draw; those of the stream are unmarked
BETA_PRIOR = 0.5  # Beta(1/2, 1/2): most problems are solved nearly always or nearly never
DIFFICULTY_WORDS = {"easy": 1.0, "medium": 2.0, "hard": 3.0}


class PassRateHistory:
    """Tries and passes of each problem, older ones counting less. The least recently tried problems are forgotten."""

    def __init__(self, half_life: float = HALF_LIFE_TRIES, max_problems: int = MAX_REMEMBERED_PROBLEMS) -> None:
        if not 0 < half_life < math.inf or max_problems < 1:
            raise UsageError(
                f"half_life is {half_life} tries and max_problems {max_problems}; give positive, finite numbers"
            )
        self.half_life, self.max_problems = half_life, max_problems
        self._seen: dict[int, tuple[float, float]] = {}  # by problem: tries, passes; the latest is last

    def add(self, index: int, rewards: Sequence[float | None]) -> None:
        """Add the rewards of one group, each clipped to [0, 1] as a share of a pass. Undecided ones do not count."""
        shares = [min(1.0, max(0.0, float(r))) for r in rewards if r is not None and r == r]
        if not shares:
            return
        tries, passes = self._seen.pop(index, (0.0, 0.0))
        decay = 0.5 ** (len(shares) / self.half_life)
        self._seen[index] = tries * decay + len(shares), passes * decay + sum(shares)
        if len(self._seen) > self.max_problems:
            del self._seen[next(iter(self._seen))]

    def counts(self, index: int) -> tuple[float, float]:
        """Tries and passes, decayed."""
        return self._seen.get(index, (0.0, 0.0))

    def rate(self, index: int) -> float | None:
        """The share of tries that passed; None if there were none."""
        tries, passes = self.counts(index)
        return passes / tries if tries else None

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[int]:
        """Problems that were tried, the latest first."""
        return reversed(self._seen)

    def to_json(self) -> dict[str, Any]:
        """Plain data, from which `from_json` builds exactly the same history."""
        tries, passes = [t for t, _ in self._seen.values()], [p for _, p in self._seen.values()]
        return {
            "half_life": self.half_life,
            "max_problems": self.max_problems,
            "index": list(self._seen),
            "tries": tries,
            "passes": passes,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PassRateHistory:
        history = cls(data["half_life"], data["max_problems"])
        counts = zip(data["tries"], data["passes"], strict=True)
        history._seen = dict(zip(data["index"], counts, strict=True))
        return history


class Curriculum(Protocol):
    def choose(
        self, problems: Sequence[Problem], seed: int, cursor: int, count: int, history: PassRateHistory
    ) -> list[int]:
        """Indices of the next `count` problems. `cursor`: how many the run has asked so far."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Every problem once per epoch, in a new order each time: the shuffled stream itself."""

    def choose(
        self, problems: Sequence[Problem], seed: int, cursor: int, count: int, history: PassRateHistory
    ) -> list[int]:
        return shuffled_indices(len(problems), seed, cursor, count)


@dataclass(frozen=True)
class Frontier:
    """Prefers problems that are solved about half the time: a group has a gradient only if its rewards differ.

    A problem's weight is the variance p (1 - p) of its reward, expected under a Beta posterior of its pass rate p, to
    the power of `focus`. So an untried problem weighs more than one that always fails or always passes. A share
    `explore_share` follows the shuffled stream, so that every estimate is renewed.
    """

    explore_share: float = 0.2
    focus: float = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.explore_share <= 1 or not 0 <= self.focus < math.inf:
            raise UsageError(
                f"explore_share is {self.explore_share}, focus {self.focus}; give a share in [0, 1] and a power >= 0"
            )

    def choose(
        self, problems: Sequence[Problem], seed: int, cursor: int, count: int, history: PassRateHistory
    ) -> list[int]:
        parts = _split_into_epochs(len(problems), cursor, count)
        return [i for first, some in parts for i in self._draw(len(problems), seed, first, some, history)]

    def _draw(self, size: int, seed: int, cursor: int, count: int, history: PassRateHistory) -> list[int]:
        begin, end = (math.floor(self.explore_share * place) for place in (cursor, cursor + count))
        explored = dict.fromkeys(shuffled_indices(size, seed, begin, end - begin))
        pool = [
            i for i in _candidates(size, seed, cursor, CANDIDATES_PER_PROBLEM * count, history) if i not in explored
        ]
        # The largest sums of log weight and Gumbel noise: a draw without replacement in proportion to the weights.
        noise_P = np.random.default_rng([seed, cursor, DRAW_STREAM]).gumbel(size=len(pool))
        order = np.argsort(-self.focus * np.log(_expected_variance(pool, history)) - noise_P, kind="stable")
        return [*explored, *(pool[i] for i in order[: count - len(explored)])]


@dataclass(frozen=True)
class EasyToHard:
    """The easiest problems first: uniform among the easiest share, which grows from `start_share` to all of them.

    As competence-based curricula do (Platanios et al. 2019), with a linear pace. How easy a problem is: its pass rate,
    which is guessed from its tag "level" or "difficulty" before it was tried, and is one half without a tag.
    """

    ramp_problems: int = 1600  # problems, after which the choice is uniform
    start_share: float = 0.2

    def __post_init__(self) -> None:
        if self.ramp_problems < 1 or not 0 < self.start_share <= 1:
            raise UsageError(
                f"ramp_problems is {self.ramp_problems}, start_share {self.start_share}; give at least 1 problem and a "
                "share in (0, 1]"
            )

    def choose(
        self, problems: Sequence[Problem], seed: int, cursor: int, count: int, history: PassRateHistory
    ) -> list[int]:
        if cursor >= self.ramp_problems:
            return shuffled_indices(len(problems), seed, cursor, count)
        parts = _split_into_epochs(len(problems), cursor, count)
        return [i for first, some in parts for i in self._draw(problems, seed, first, some, history)]

    def _draw(
        self, problems: Sequence[Problem], seed: int, cursor: int, count: int, history: PassRateHistory
    ) -> list[int]:
        # So many that there is a choice among the easiest share, too.
        fresh = math.ceil(CANDIDATES_PER_PROBLEM * count / self.start_share)
        # Levels are read from the problems themselves, which takes time: of those tried, take only the latest.
        pool = _candidates(len(problems), seed, cursor, fresh, islice(history, fresh))
        rng = np.random.default_rng([seed, cursor, DRAW_STREAM])
        rng.shuffle(pool)  # equals come in any order
        rates_P = _estimated_pass_rates(problems, pool, history)
        share = min(1.0, self.start_share + (1 - self.start_share) * cursor / self.ramp_problems)
        easiest = np.argsort(-rates_P, kind="stable")[: max(count, round(share * len(pool)))]
        return [pool[i] for i in rng.choice(easiest, count, replace=False)]


CURRICULA: dict[str, type] = {"uniform": Uniform, "frontier": Frontier, "easy-to-hard": EasyToHard}


def _split_into_epochs(size: int, cursor: int, count: int) -> list[tuple[int, int]]:
    """(cursor, count) of draws, in none of which a problem has to come twice."""
    return [(cursor + done, min(size, count - done)) for done in range(0, count, max(1, size))]


def _candidates(size: int, seed: int, cursor: int, fresh: int, known_indices: Iterable[int]) -> list[int]:
    """Distinct candidates: problems that were tried, and the next `fresh` ones of the stream.

    At least half of the latter lie in one epoch, or they hold a whole epoch: min(size, fresh / 2) differ.
    """
    return list(dict.fromkeys((*known_indices, *shuffled_indices(size, seed, cursor, min(fresh, 2 * size)))))


def _expected_variance(pool: Sequence[int], history: PassRateHistory) -> NDArray[np.float64]:
    """E[p (1 - p)] = ab / ((a + b)(a + b + 1)) under Beta(a, b)."""
    tries_P, passes_P = np.array([history.counts(i) for i in pool]).reshape(-1, 2).T  # P: problems of the pool
    a_P, b_P = BETA_PRIOR + passes_P, BETA_PRIOR + tries_P - passes_P
    return a_P * b_P / ((a_P + b_P) * (a_P + b_P + 1))


def _estimated_pass_rates(
    problems: Sequence[Problem], pool: Sequence[int], history: PassRateHistory
) -> NDArray[np.float64]:
    """Pass rates, each shrunk towards a guess from the problem's level: 1 for the lowest of the pool, 0 for the
    highest."""
    levels = [difficulty(problems[i]) for i in pool]
    known = [v for v in levels if v is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    rates = []
    for i, v in zip(pool, levels, strict=True):
        guess = 0.5 if v is None or low == high else (high - v) / (high - low)
        tries, passes = history.counts(i)
        rates.append((passes + 2 * BETA_PRIOR * guess) / (tries + 2 * BETA_PRIOR))
    return np.array(rates)


def difficulty(problem: Problem) -> float | None:
    """The difficulty in a problem's tags: a number, the number in a text ("Level 5"), or a word; None: no tag."""
    for tag in ("level", "difficulty"):
        text = str(problem.tags.get(tag, "")).strip().lower()
        if text in DIFFICULTY_WORDS:
            return DIFFICULTY_WORDS[text]
        if (number := re.search(r"-?\d+(\.\d+)?", text)) is not None:
            return float(number[0])
    return None
