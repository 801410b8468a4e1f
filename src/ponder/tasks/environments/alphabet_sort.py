"""Sort words by the alphabet over several turns: each turn brings more words, and the answer is the whole list."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal

from ponder.protocols import Environment
from ponder.tasks.environments.answer_text import answer_text
from ponder.tasks.environments.environment_task import EnvironmentTask
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.word_lists import WORDS
from ponder.types import Action, Problem, Turn, user_messages

VOCABULARIES = {"letters": tuple("abcdefghijklmnopqrstuvwxyz"), "words": WORDS}

Words = tuple[tuple[str, ...], ...]  # those of each turn


@dataclass(frozen=True, kw_only=True)
class AlphabetSort(EnvironmentTask[Words]):
    """Sort words over several turns: each turn brings more of them, and the answer is the whole sorted list.

    There are `turns` turns, and each earns its share of 1 where its list is right. `partial_credit` gives the
    similarity of the lists (the ratio of their matching words) in place of all or nothing.
    """

    LEVELS = (
        {"vocabulary": "letters", "words_per_turn": 2, "turns": 2},
        {"vocabulary": "letters", "words_per_turn": 3, "turns": 3},
        {"vocabulary": "words", "words_per_turn": 2, "turns": 3},
        {"vocabulary": "words", "words_per_turn": 4, "turns": 3},
        {"vocabulary": "words", "words_per_turn": 6, "turns": 4},
    )

    vocabulary: Literal["letters", "words"] = "words"
    words_per_turn: int = 3
    turns: int = 3
    partial_credit: bool = False
    show_rules: bool = True  # in the first message; a model that was trained on the task needs none

    def check(self) -> None:
        require_at_least(1, turns=self.turns, words_per_turn=self.words_per_turn)
        require_at_most(16, turns=self.turns)
        object.__setattr__(self, "max_turns", self.turns)
        words = len(VOCABULARIES[self.vocabulary])
        require_at_most(words // self.turns, words_per_turn=self.words_per_turn)

    def unused(self) -> dict[str, str]:
        return {"max_turns": "an episode has as many turns as `turns` says"}

    @property
    def name(self) -> str:
        return "alphabet-sort"

    def draw(self, rng: random.Random) -> Words:
        n = self.words_per_turn
        words = rng.sample(VOCABULARIES[self.vocabulary], n * self.turns)
        return tuple(tuple(words[i : i + n]) for i in range(0, len(words), n))

    def key(self, item: Words) -> str:
        """The same for words of one turn in another order."""
        return " / ".join(" ".join(sorted(words)) for words in item)

    def problem(self, item: Words, id: str) -> Problem:
        rules = (
            "Sort these words by the alphabet. Answer with the sorted words, separated by spaces, and nothing else."
            " I then give you more words: each time, answer with the whole list so far, sorted.\n"
        )
        text = (rules if self.show_rules else "") + " ".join(item[0])
        answer = [list(words) for words in item]
        tags = {"words_per_turn": self.words_per_turn, "turns": self.turns}
        return Problem(id, user_messages(text, self.system), answer, tags)

    def environment(self) -> Environment:
        return AlphabetSortEpisode(self.partial_credit)


@dataclass
class AlphabetSortEpisode:
    """One episode. The problem's answer is the words of each turn."""

    partial_credit: bool = False
    words: Sequence[Sequence[str]] = field(default_factory=list)
    turn: int = 0
    right: int = 0

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.words, self.turn, self.right = problem.answer, 0, 0
        return Turn()

    def act(self, action: Action) -> Turn:
        expected = self._sorted_words()
        answer = re.findall(r"[^\s,;]+", answer_text(action).casefold())
        share = self._share(answer, expected)
        self.turn += 1
        self.right += share == 1.0
        last = self.turn == len(self.words)
        messages = () if last else ({"role": "user", "content": " ".join(self.words[self.turn])},)
        reason = f"{self.right} of {self.turn} lists are right"
        return Turn(messages, reward=share / len(self.words), done=last, reason=reason)

    def _share(self, answer: list[str], expected: list[str]) -> float:
        if answer == expected or not self.partial_credit:
            return float(answer == expected)
        return SequenceMatcher(None, answer[: 4 * len(expected)], expected, autojunk=False).ratio()

    def _sorted_words(self) -> list[str]:
        return sorted(word for words in self.words[: self.turn + 1] for word in words)

    def gold(self) -> str:
        return " ".join(self._sorted_words())

    def random_action(self, rng: random.Random) -> str:
        words = self._sorted_words()
        rng.shuffle(words)
        return " ".join(words)

    def copy(self) -> AlphabetSortEpisode:
        return AlphabetSortEpisode(self.partial_credit, self.words, self.turn, self.right)

    def close(self) -> None:
        pass
