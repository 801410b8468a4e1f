"""Find test problems that stand in the training data: shared n-grams (GPT-3's rule, Brown et al. 2020) and whole texts.

A text is its words, in lower case, without punctuation; a sign between two operands stays, since 3 + 4 is not 3 - 4. A
training text may have parts, such as the messages of a conversation: a run of words lies within one of them.

An evaluation problem is flagged where
- it has n words or more, and a training text contains one of its n-grams;
- it has fewer, and a training text contains all of it;
- it has fewer than `MIN_OVERLAP_WORDS`, and a part, or a line or sentence of one, is equal: so few words occur inside
  other texts by chance.

A run that stands in more than `COMMON` training texts is boilerplate and does not count. A whole problem counts however
often it stands there. Answers to one prompt are one text in that count.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ponder.errors import UsageError
from ponder.measure.statistics.intervals import Accuracy

NGRAM_WORDS = 13
MAX_COMMON_TEXTS = 10
MIN_OVERLAP_WORDS = 5  # words: fewer stand in other texts by chance, so that only an equal text counts

NamedText = tuple[str, str]  # an id and a text
_CJK = "\u3040-\u30ff\u3400-\u9fff"  # Chinese and Japanese have no spaces: each sign is a word
_OPERAND = f"(?:[0-9]|[^\\W{_CJK}](?![^\\W{_CJK}]))"  # a number, or a letter alone
_WORD = re.compile(f"(?<=[\\w)])[ \\t]*([-+*/^=<>])[ \\t]*(?={_OPERAND})|([{_CJK}]|[^\\W{_CJK}]+)")
_NORMALIZED_SIGNS = str.maketrans({"\u2212": "-", "\u2013": "-", "\u00d7": "*", "\u00b7": "*", "\u00f7": "/"})
_SENTENCE_BREAK = re.compile(r"<\|[^|>]{0,40}\|>|(?<=[.?!:])\s+")  # special tokens, and where a sentence ends
_MAX_WORD_CHARS = 64  # of a word, at most: a longer piece is no problem of so many words


class TrainingText(NamedTuple):
    """A training text in its parts. `of`: what it shares with others, as the prompt that they answer, too."""

    name: str
    parts: Sequence[str]
    prompt_group: str = ""


@dataclass(frozen=True)
class ContaminatedProblem:
    """A test problem that the training data contain."""

    problem: str
    exact: bool  # a training text, or a line or sentence of it, has the same words from first to last
    whole: bool  # all of it stands in a training text, word after word
    share: float  # of its runs of n words, how many stand in training
    first_ngram: str  # the first of them
    seen_in: str  # id of a training text that has it


@dataclass(frozen=True)
class ContaminationReport:
    n: int
    training_texts: int  # texts
    problems: int
    flagged: tuple[ContaminatedProblem, ...]
    short_problems: int  # problems of fewer than n words, compared as a whole
    tiny_problems: int  # of fewer than SHORTEST words, compared for equality only
    common_ngrams: int  # runs left out as boilerplate

    @property
    def exact(self) -> int:
        return sum(o.exact for o in self.flagged)

    @property
    def whole(self) -> int:
        return sum(o.whole for o in self.flagged)

    @property
    def share(self) -> Accuracy:
        """Flagged problems among all, with an interval."""
        return Accuracy(len(self.flagged), self.problems)


def find_contamination(
    training: Iterable[NamedText | TrainingText],
    problems: Sequence[NamedText],
    n: int = NGRAM_WORDS,
    common: int = MAX_COMMON_TEXTS,
) -> ContaminationReport:
    """Reads the training texts once, and stores only n-grams that the test problems have."""
    if n < 2:
        raise UsageError(f"n is {n}; runs of at least 2 words are compared, usually {NGRAM_WORDS}")
    if not problems:
        raise UsageError("the evaluation has no problems to look for")
    problem_words = [normalized_words(text) for _, text in problems]
    if empty := [name for (name, _), w in zip(problems, problem_words, strict=True) if not w]:
        raise UsageError(f"the problem {empty[0]!r} of the evaluation has no words: name the column of its text")
    index = _NgramIndex(problem_words, n, common)
    texts = 0
    for texts, text in enumerate(training, 1):  # noqa: B007
        index.add_training_text(text if isinstance(text, TrainingText) else TrainingText(text[0], (text[1],)))
    if not texts:
        raise UsageError("the training data have no texts to look in")
    left_out = {run for run, seen in index.seen.items() if len(seen) > common}
    flagged = [o for i, (name, _) in enumerate(problems) if (o := index.overlap(i, name, left_out))]
    sizes = [len(w) for w in problem_words]
    short, tiny = sum(MIN_OVERLAP_WORDS <= s < n for s in sizes), sum(s < MIN_OVERLAP_WORDS for s in sizes)
    return ContaminationReport(n, texts, len(problems), tuple(flagged), short, tiny, len(left_out))


def normalized_words(text: str) -> list[str]:
    """In lower case; a sign between two operands stands before the second one, which stays one word."""
    words, sign = [], ""
    for match in _WORD.finditer(text.lower().translate(_NORMALIZED_SIGNS)):
        if match[1]:
            sign = match[1]
        else:
            words.append(sign + match[2])
            sign = ""
    return words


def lines_and_sentences(part: str) -> Iterator[str]:
    """Its lines and sentences: a question often stands beside how to answer it."""
    lines = part.split("\n")
    for line in lines:
        cuts = _SENTENCE_BREAK.split(line)
        yield from (line, *cuts) if len(cuts) > 1 else (line,) if len(lines) > 1 else ()


class _NgramIndex:
    """The evaluation's runs of words, and in which training texts each was met."""

    def __init__(self, problem_words: Sequence[list[str]], n: int, common: int) -> None:
        self.problem_words, self.n, self.common = problem_words, n, common
        self.vocabulary = {w for text in problem_words for w in text}
        self.lengths = sorted({min(n, len(text)) for text in problem_words if len(text) >= MIN_OVERLAP_WORDS})
        self.runs = {run for text in problem_words if len(text) >= MIN_OVERLAP_WORDS for run in self._ngrams(text)}
        self.equals = {tuple(text) for text in problem_words}
        self.longest = max(map(len, problem_words))
        self.begins: dict[tuple[str, ...], list[int]] = defaultdict(list)  # problems by their first run
        for place, text in enumerate(problem_words):
            if len(text) >= MIN_OVERLAP_WORDS:
                self.begins[tuple(text[:n])].append(place)
        self.seen: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)  # the first training texts with a run
        self.equal: dict[tuple[str, ...], str] = {}
        self.held: dict[int, str] = {}  # problems that stand in a training text as a whole

    def _ngrams(self, text: list[str]) -> list[tuple[str, ...]]:
        size = min(self.n, len(text))
        return [tuple(text[i : i + size]) for i in range(len(text) - size + 1)]

    def add_training_text(self, text: TrainingText) -> None:
        matches: set[tuple[str, ...]] = set()
        for part in text.parts:
            all_words = normalized_words(part)
            short = (
                normalized_words(piece)
                for piece in lines_and_sentences(part)
                if len(piece) <= _MAX_WORD_CHARS * self.longest
            )
            for same in map(tuple, (all_words, *short)):
                if same in self.equals:
                    self.equal.setdefault(same, text.name)
            matches |= self._find_ngrams(text.name, all_words)
        for run in matches:
            if len(self.seen[run]) <= self.common:  # one more than that is enough to know
                self.seen[run].setdefault(text.prompt_group or text.name, text.name)

    def _find_ngrams(self, name: str, part: list[str]) -> set[tuple[str, ...]]:
        matches: set[tuple[str, ...]] = set()
        known = 0  # words in a row that the evaluation has, too: only there can a run lie
        for end, word in enumerate(part, 1):
            known = known + 1 if word in self.vocabulary else 0
            for size in self.lengths:
                if size > known:
                    break
                run = tuple(part[end - size : end])
                if run not in self.runs:
                    continue
                matches.add(run)
                for place in self.begins.get(run, ()):
                    whole = self.problem_words[place]
                    if part[end - size : end - size + len(whole)] == whole:
                        self.held.setdefault(place, name)
        return matches

    def overlap(self, place: int, name: str, left_out: set[tuple[str, ...]]) -> ContaminatedProblem | None:
        text = self.problem_words[place]
        equal = self.equal.get(tuple(text))
        whole = equal or self.held.get(place)
        runs = self._ngrams(text) if len(text) >= MIN_OVERLAP_WORDS else []
        matches = [r for r in runs if r in self.seen and (whole is not None or r not in left_out)]
        if whole is None and not matches:
            return None
        share = len(matches) / len(runs) if runs else 1.0
        first = (matches or [tuple(text)])[0]
        seen_in = whole or next(iter(self.seen[matches[0]].values()))
        return ContaminatedProblem(name, equal is not None, whole is not None, share, " ".join(first), seen_in)
