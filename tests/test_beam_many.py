"""The two sides of bench/beam_many.py do the same work."""

from __future__ import annotations

import beam_many
from ponder.types import Problem, user_messages


def test_both_sides_grow_the_same_beams() -> None:
    policy = beam_many.load_model("small", "cpu")
    problems = [Problem(str(i), user_messages(f"{i}+{i}=?")) for i in range(3)]
    shape = beam_many.Shape(beams=4, keep=2, steps=3, tokens=4)
    result = []
    for side in (beam_many.beam_concurrently, beam_many.beam_one_by_one):
        policy.reseed(1)
        result.append(side(policy, problems, shape))
    assert result[0] == result[1] and [answers.total() for answers in result[0]] == [4, 4, 4]
