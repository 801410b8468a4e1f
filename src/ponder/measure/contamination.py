"""Was an evaluation seen in training? Runs of words that both have (Brown et al. 2020, GPT-3's rule), and whole texts.

A text is its words, in lower case, without punctuation. An evaluation problem is flagged where one of its runs of n
words stands in a training text; a problem of fewer words where all of it does. A run that stands in more than
`COMMON` training texts is boilerplate and does not count, unless the whole problem is the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.measure.intervals import Accuracy

WORDS = 13
COMMON = 10
SHORTEST = 5  # words: fewer stand in other texts by chance, so that only an equal text counts

Named = tuple[str, str]  # an id and a text
_SIGNS = "\u3040-\u30ff\u3400-\u9fff"  # Chinese and Japanese have no spaces: each sign is a word
_WORD = re.compile(f"[{_SIGNS}]|[^\\W{_SIGNS}]+")


@dataclass(frozen=True)
class Overlap:
    """A problem of the evaluation that training has seen."""

    problem: str
    exact: bool  # the same words from first to last
    share: float  # of its runs of n words, how many stand in training
    run: str  # the first of them
    seen_in: str  # id of a training text that has it


@dataclass(frozen=True)
class Contamination:
    n: int
    training: int  # texts
    problems: int
    flagged: tuple[Overlap, ...]
    short: int  # problems of fewer than n words, compared as a whole
    tiny: int  # of fewer than SHORTEST words, compared for equality only
    common: int  # runs left out as boilerplate

    @property
    def exact(self) -> int:
        return sum(o.exact for o in self.flagged)

    @property
    def share(self) -> Accuracy:
        """Flagged problems among all, with an interval."""
        return Accuracy(len(self.flagged), self.problems)


def contamination(
    training: Iterable[Named], problems: Sequence[Named], n: int = WORDS, common: int = COMMON
) -> Contamination:
    """Reads training once, and keeps only what the evaluation could meet."""
    if n < 2:
        raise UsageError(f"n is {n}; runs of at least 2 words are compared, usually {WORDS}")
    if not problems:
        raise UsageError("the evaluation has no problems to look for")
    asked = [words(text) for _, text in problems]
    if empty := [name for (name, _), w in zip(problems, asked, strict=True) if not w]:
        raise UsageError(f"the problem {empty[0]!r} of the evaluation has no words: name the column of its text")
    index = _Index(asked, n)
    texts = 0
    for texts, (name, text) in enumerate(training, 1):  # noqa: B007
        index.meet(name, words(text))
    if not texts:
        raise UsageError("the training data have no texts to look in")
    left_out = {run for run, seen in index.seen.items() if len(seen) > common}
    flagged = [o for i, (name, _) in enumerate(problems) if (o := index.overlap(i, name, left_out))]
    sizes = [len(w) for w in asked]
    short, tiny = sum(SHORTEST <= s < n for s in sizes), sum(s < SHORTEST for s in sizes)
    return Contamination(n, texts, len(problems), tuple(flagged), short, tiny, len(left_out))


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


class _Index:
    """The evaluation's runs of words, and in which training texts each was met."""

    def __init__(self, asked: Sequence[list[str]], n: int) -> None:
        self.asked, self.n = asked, n
        self.vocabulary = {w for text in asked for w in text}
        self.lengths = sorted({min(n, len(text)) for text in asked if len(text) >= SHORTEST})
        self.runs = {run for text in asked if len(text) >= SHORTEST for run in self._runs(text)}
        self.whole = {tuple(text) for text in asked}
        self.longest = max(map(len, asked))
        self.seen: dict[tuple[str, ...], list[str]] = defaultdict(list)  # ids of training texts, not all of them
        self.equal: dict[tuple[str, ...], str] = {}

    def _runs(self, text: list[str]) -> list[tuple[str, ...]]:
        size = min(self.n, len(text))
        return [tuple(text[i : i + size]) for i in range(len(text) - size + 1)]

    def meet(self, name: str, text: list[str]) -> None:
        if len(text) <= self.longest and tuple(text) in self.whole:
            self.equal.setdefault(tuple(text), name)
        met: set[tuple[str, ...]] = set()
        known = 0  # words in a row that the evaluation has, too: only there can a run lie
        for end, word in enumerate(text, 1):
            known = known + 1 if word in self.vocabulary else 0
            for size in self.lengths:
                if size > known:
                    break
                if (run := tuple(text[end - size : end])) in self.runs:
                    met.add(run)
        for run in met:
            self.seen[run].append(name)

    def overlap(self, place: int, name: str, left_out: set[tuple[str, ...]]) -> Overlap | None:
        text = self.asked[place]
        equal = self.equal.get(tuple(text))
        runs = self._runs(text) if len(text) >= SHORTEST else []
        met = [r for r in runs if r in self.seen and (equal is not None or r not in left_out)]
        if equal is None and not met:
            return None
        share = len(met) / len(runs) if runs else 1.0
        return Overlap(
            name, equal is not None, share, " ".join((met or [tuple(text)])[0]), equal or self.seen[met[0]][0]
        )
