"""Deduction: what follows, found by going through every case."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from ponder.tasks.suite.question import SuiteQuestion, choice_question, shuffled_choice_question

NAMES = ("Ines", "Jonas", "Kofi", "Lena", "Mira", "Noor", "Oskar", "Pia")
NONSENSE_WORDS = ("blick", "dorp", "fenk", "gramp", "jolt", "merk", "plon", "quib", "snaf", "trell", "vosk", "wump")
VERDICTS = ("It must be true", "It must be false", "It cannot be known")


def ordering(rng: random.Random) -> SuiteQuestion:
    """Five in a row by height; clues are added until one order is left."""
    people = rng.sample(NAMES, 5)
    truth = tuple(rng.sample(people, 5))  # the tallest first
    pairs = [(a, b) for i, a in enumerate(truth) for b in truth[i + 1 :]]
    rng.shuffle(pairs)
    clues: list[tuple[str, str]] = []
    left = list(itertools.permutations(people))
    for a, b in pairs:
        fewer = [o for o in left if o.index(a) < o.index(b)]
        if len(fewer) < len(left):
            clues, left = [*clues, (a, b)], fewer
    assert left == [truth]
    rank = rng.randrange(5)
    text = " ".join(f"{a} is taller than {b}." if rng.random() < 0.5 else f"{b} is shorter than {a}." for a, b in clues)
    rank_name = ("the tallest", "the second tallest", "in the middle", "the second shortest", "the shortest")[rank]
    wrong = [p for p in people if p != truth[rank]]
    return shuffled_choice_question(
        "ordering", f"{text} Ordered by height, who is {rank_name}?", truth[rank], wrong, rng
    )


def syllogism(rng: random.Random) -> SuiteQuestion:
    """Three made-up kinds of things: a model says which of their eight combinations exist."""
    words = rng.sample(NONSENSE_WORDS, 3)
    while True:
        links = rng.sample(((0, 1), (1, 2), (1, 0), (2, 1)), 2)
        if {frozenset(link) for link in links} == {frozenset((0, 1)), frozenset((1, 2))}:
            break
    premises = [(rng.choice(("all", "no", "some")), *link) for link in links]
    claim = (rng.choice(("all", "no", "some")), *rng.choice(((0, 2), (2, 0))))
    models = [m for m in _models() if all(_holds(m, *p) for p in premises)]
    truths = {_holds(m, *claim) for m in models}
    if not models or (len(truths) == 2 and rng.random() < 0.7):  # most random conclusions are open: keep a third
        return syllogism(rng)
    verdict = VERDICTS[2] if len(truths) == 2 else VERDICTS[0 if truths == {True} else 1]
    text = " ".join(_sentence(*p, words) for p in premises)
    there = "There is at least one of each kind."
    return choice_question("syllogism", f"{text} {there} Consider: {_sentence(*claim, words)}", verdict, VERDICTS)


def _models() -> list[frozenset[int]]:
    """Which of the eight kinds of thing exist, where each of the three words has at least one."""
    sets = (frozenset(i for i in range(8) if mask >> i & 1) for mask in range(1, 256))
    return [w for w in sets if all(any(element >> k & 1 for element in w) for k in range(3))]


def _holds(world: frozenset[int], quantity: str, a: int, b: int) -> bool:
    both = [bool(element >> b & 1) for element in world if element >> a & 1]
    return {"all": all(both), "no": not any(both), "some": any(both)}[quantity]


def _sentence(quantity: str, a: int, b: int, words: list[str]) -> str:
    return f"{quantity.capitalize()} {words[a]}s are {words[b]}s."


def implication(rng: random.Random) -> SuiteQuestion:
    """A chain of ifs and one fact: what of another letter?"""
    events = rng.sample(("the alarm rings", "the bell tolls", "the door opens", "the fan runs", "the lamp glows"), 4)
    edges = [(0, 1), (1, 2), (2, 3)]
    fact, value, target = rng.randrange(4), rng.random() < 0.5, rng.randrange(4)
    if target == fact:
        return implication(rng)
    cases = [c for c in itertools.product((False, True), repeat=4) if all(c[b] or not c[a] for a, b in edges)]
    values = {c[target] for c in cases if c[fact] == value}
    verdict = VERDICTS[2] if len(values) == 2 else VERDICTS[0 if values == {True} else 1]
    rng.shuffle(edges)
    ifs = " ".join(f"If {events[a]}, then {events[b]}." for a, b in edges)
    known = f"It is {'true' if value else 'false'} that {events[fact]}."
    return choice_question("implication", f"{ifs} {known} Consider: {events[target]}.", verdict, VERDICTS)


def liars(rng: random.Random) -> SuiteQuestion:
    """Truth-tellers and liars: statements about each other that leave one way."""
    people = rng.sample(NAMES, 3)
    statements: list[tuple[str, Callable[[tuple[bool, ...]], bool]]] = []
    for i in range(3):
        j, k = rng.sample([x for x in range(3) if x != i], 2)
        statements.append(
            rng.choice((
                (f"{people[j]} is a liar", lambda c, j=j: not c[j]),
                (f"{people[j]} tells the truth", lambda c, j=j: c[j]),
                (f"{people[j]} and {people[k]} are of the same kind", lambda c, j=j, k=k: c[j] == c[k]),
                (f"exactly one of {people[j]} and {people[k]} is a liar", lambda c, j=j, k=k: c[j] != c[k]),
            ))
        )  # fmt: skip
    ways = [
        c
        for c in itertools.product((True, False), repeat=3)
        if all(c[i] == s(c) for i, (_, s) in enumerate(statements))
    ]
    if len(ways) != 1:
        return liars(rng)
    claims = " ".join(f'{p} says: "{text}."' for p, (text, _) in zip(people, statements, strict=True))
    question = f"Each person always tells the truth or always lies. {claims} Who tells the truth?"
    named = {
        c: _join_names([p for p, honest in zip(people, c, strict=True) if honest])
        for c in itertools.product((True, False), repeat=3)
    }
    wrong = rng.sample([text for c, text in named.items() if c != ways[0]], 3)
    return shuffled_choice_question("liars", question, named[ways[0]], wrong, rng)


def _join_names(people: list[str]) -> str:
    if not people:
        return "nobody"
    return people[0] if len(people) == 1 else f"{', '.join(people[:-1])} and {people[-1]}"


def matching(rng: random.Random) -> SuiteQuestion:
    """Three people, three pets: clues by exclusion until one way is left."""
    people, pets = rng.sample(NAMES, 3), rng.sample(("cat", "dog", "parrot", "rabbit", "turtle"), 3)
    truth = dict(zip(people, rng.sample(pets, 3), strict=True))
    nots = [(p, pet) for p in people for pet in pets if truth[p] != pet]
    rng.shuffle(nots)
    left = [dict(zip(people, o, strict=True)) for o in itertools.permutations(pets)]
    clues: list[str] = []
    for p, pet in nots:
        fewer = [way for way in left if way[p] != pet]
        if len(fewer) < len(left):
            clues, left = [*clues, f"{p} does not own the {pet}."], fewer
    assert left == [truth]
    person = rng.choice(people)
    owned = f"{_join_names(people)} own a {pets[0]}, a {pets[1]} and a {pets[2]}, one each."
    question = f"{owned} {' '.join(clues)} What does {person} own?"
    return shuffled_choice_question(
        "matching", question, f"the {truth[person]}", [f"the {p}" for p in pets if p != truth[person]], rng
    )


GENERATORS = (ordering, syllogism, implication, liars, matching)
