"""Mastermind against a slow count of its pegs and against a published strategy."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from ponder.tasks import Mastermind
from ponder.tasks.environments.mastermind import all_codes, compare
from ponder.tasks.environments.scripted_play import gold_play, play
from ponder.types import Problem

codes = st.text("123456", min_size=4, max_size=4)


def slow_compare(guess: str, code: str) -> tuple[int, int]:
    """The rules by pegs: each peg of the code is used once, first by the guesses in place."""
    free = list(code)
    black = white = 0
    for place, peg in enumerate(guess):
        if code[place] == peg:
            black += 1
            free[place] = ""
    for place, peg in enumerate(guess):
        if code[place] != peg and peg in free:
            white += 1
            free[free.index(peg)] = ""
    return black, white


@given(codes, codes)
def test_compare_agrees_with_counting_pegs(guess, code):
    assert compare(guess, code) == slow_compare(guess, code)


def test_first_consistent_code_takes_the_published_number_of_guesses():
    """Shapiro (1983): over all 1,296 codes 7,471 guesses, 5.765 on average, and 9 at most."""
    longest = 0

    def total(candidates: list[str], depth: int) -> int:
        nonlocal longest
        longest = max(longest, depth)
        parts = defaultdict(list)
        for code in candidates:
            parts[compare(candidates[0], code)].append(code)
        return sum(depth if reply == (4, 0) else total(part, depth + 1) for reply, part in parts.items())

    assert total(list(all_codes(6, 4)), 1) == 7471
    assert longest == 9


def turns_at_worst(digits: int, length: int, clues: int) -> int:
    """Of the first consistent code, over all codes and clues."""
    codes = list(all_codes(digits, length))

    def depth(left: list[str]) -> int:
        parts = defaultdict(list)
        for code in left[1:]:
            parts[compare(left[0], code)].append(code)
        return 1 + max(map(depth, parts.values()), default=0)

    worst = 0
    for clue_codes in itertools.combinations_with_replacement(codes, clues):
        parts = defaultdict(list)
        for code in codes:
            parts[tuple(compare(clue, code) for clue in clue_codes)].append(code)
        worst = max(worst, *map(depth, parts.values()))
    return worst


def test_gold_always_has_turns_enough():
    """By exhaustion; levels 2 and 3 need 7 and 8 at worst, which takes minutes to see."""
    assert turns_at_worst(4, 2, 2) == 4 == Mastermind(level=1).max_turns
    assert turns_at_worst(6, 4, 0) == 9 <= Mastermind(level=4).max_turns
    assert Mastermind(level=2).max_turns >= 7 and Mastermind(level=3).max_turns >= 8


def test_gold_is_the_first_consistent_code():
    task = Mastermind()
    episode = gold_play(task, Problem("1", (), {"code": "3632", "clues": []}))
    left = list(all_codes(6, 4))
    for guess in episode.actions:
        assert guess == left[0]
        left = [code for code in left if compare(guess, code) == compare(guess, "3632")]


def test_clues_are_answered_in_the_first_message():
    task = Mastermind(level=1)
    for problem in task.train[:20]:
        code, clues = problem.answer["code"], problem.answer["clues"]
        assert len(clues) == 2
        for clue in clues:
            black, white = slow_compare(clue, code)
            assert f"{clue}: black {black}, white {white}" in problem.question


def test_reply_names_the_pegs_and_a_malformed_guess_costs_a_turn():
    task, problem = Mastermind(max_turns=3), Problem("1", (), {"code": "1123", "clues": []})
    texts = iter(["3 1 1 2", "I guess 1123", "<think>1124?</think><answer>1123</answer>"])
    episode = play(task, problem, lambda _: next(texts))
    assert [m["content"] for turn in episode.turns for m in turn.messages] == [
        "black 1, white 3",
        "Not a guess: 4 digits from 1 to 6.",
    ]
    assert episode.reward == 1.0 and episode.turns[-1].reason == "found in 3"


def test_last_guess_ends_the_game():
    task, problem = Mastermind(max_turns=2), Problem("1", (), {"code": "1111", "clues": []})
    episode = play(task, problem, lambda environment: environment.random_action(random.Random(1)), max_turns=9)
    assert len(episode.actions) == 2 and episode.done and episode.reward == 0.0
