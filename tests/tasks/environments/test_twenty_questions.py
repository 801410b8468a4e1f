"""Twenty questions: how questions are read, and how few halving needs."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from ponder.tasks import TwentyQuestions
from ponder.tasks.environments.scripted_play import play
from ponder.tasks.environments.things import ANIMALS, SHAPES
from ponder.tasks.environments.twenty_questions import HiddenThing, halving_turns, next_question, plain_question
from ponder.types import Problem

PROBLEM = Problem("1", (), {"thing": "owl", "candidates": ["cat", "owl", "shark", "zebra"]})


def replies(texts, problem=PROBLEM, **settings):
    left = iter(texts)
    task = TwentyQuestions(world="animals", candidates=4, max_turns=10)
    return play(task, problem, lambda _: next(left), max_turns=len(texts))


@pytest.mark.parametrize("things", [SHAPES, ANIMALS], ids=["shapes", "animals"])
def test_no_two_things_have_the_same_attributes(things):
    assert len(set(things.values())) == len(things) >= 24
    plain = [plain_question(text) for text in [*things, *set(itertools.chain.from_iterable(things.values()))]]
    assert len(set(plain)) == len(plain)


@pytest.mark.parametrize(
    "text",
    ["is it a bird?", "Is it a Bird", "a bird?", "bird", "<think>fish?</think>Is it a bird?", "IS IT A BIRD?!",
     "<answer>a bird</answer>"],
)  # fmt: skip
def test_question_is_read_in_many_forms(text):
    assert replies([text]).turns[1].messages[0]["content"] == "yes"


def test_wrong_guess_and_unknown_question():
    episode = replies(["is it a cat?", "is it striped?", "is it nice?", "My guess: the owl"])
    answers = [message["content"] for turn in episode.turns for message in turn.messages]
    assert answers[:2] == ["no", "no"] and answers[2].startswith("I cannot answer that")
    assert episode.reward == 1.0 and episode.turns[-1].reason == "named in 4 turns"


def test_halving_takes_the_logarithm_where_attributes_split_evenly():
    """Eight shapes of two sizes, two colours and two forms: three questions leave one, or two ask and two guesses."""
    shapes = tuple(" ".join(w) for w in itertools.product(("small", "large"), ("red", "blue"), ("circle", "square")))
    turns = [halving_turns(SHAPES, HiddenThing(shapes, thing)) for thing in shapes]
    assert max(turns) == 1 + math.ceil(math.log2(8)) and min(turns) == 3


def test_next_question_splits_nearest_to_half():
    rng = random.Random(0)
    for _ in range(50):
        left = rng.sample(list(ANIMALS), 9)
        attribute = next_question(ANIMALS, left).removeprefix("is it ").removesuffix("?")
        off = abs(2 * sum(attribute in ANIMALS[name] for name in left) - 9)
        others = set(itertools.chain.from_iterable(ANIMALS[name] for name in left))
        assert off == min(abs(2 * sum(a in ANIMALS[name] for name in left) - 9) for a in others)


@pytest.mark.parametrize(
    ("animal", "attributes"),
    [("bat", {"a mammal", "able to fly", "a hunter"}), ("ostrich", {"a bird", "larger than a person", "long-necked"}),
     ("whale", {"a mammal", "at home in the sea", "larger than a person", "a hunter"})],
)  # fmt: skip
def test_animals_have_their_attributes(animal, attributes):
    assert ANIMALS[animal] == attributes


def test_every_animal_is_of_one_class():
    classes = {"a mammal", "a bird", "a fish", "a reptile", "an insect"}
    assert all(len(attributes & classes) == 1 for attributes in ANIMALS.values())
