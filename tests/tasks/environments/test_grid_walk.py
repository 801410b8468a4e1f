"""The grid walk against FrozenLake's published maps, moves and values."""

from __future__ import annotations

import random

import pytest

from ponder.tasks import GridWalk
from ponder.tasks.environments.grid_moves import read_move
from ponder.tasks.environments.grid_walk import distances_to_goal, find_sign, success_values
from ponder.tasks.environments.scripted_play import gold_play, play
from ponder.types import Problem

# FrozenLake's two maps, with a dot for F.
FROZEN_LAKE_4 = ("S...", ".H.H", "...H", "H..G")
FROZEN_LAKE_8 = ("S.......", "........", "...H....", ".....H..", "...H....", ".HH...H.", ".H..H.H.", "...H...G")
LAKE = Problem("lake", (), list(FROZEN_LAKE_4))


def walk(task, texts, problem=LAKE, seed=0):
    left = iter(texts)
    return play(task, problem, lambda _: next(left), seed, max_turns=len(texts))


def test_shortest_ways_over_the_frozen_lakes():
    assert distances_to_goal(FROZEN_LAKE_4)[0, 0] == 6
    assert distances_to_goal(FROZEN_LAKE_8)[0, 0] == 14
    assert gold_play(GridWalk(), LAKE).reward == 1.0 and len(gold_play(GridWalk(), LAKE).actions) == 6


@pytest.mark.parametrize(("rows", "value"), [(FROZEN_LAKE_4, 14 / 17), (FROZEN_LAKE_8, 1.0)])
def test_slippery_values_are_those_of_frozen_lake(rows, value):
    """The optimal policy of the slippery 4x4 lake reaches the goal with probability 14/17 = 0.8235; of 8x8, always."""
    assert success_values(rows, 3000)[0, 0] == pytest.approx(value, abs=1e-4)


def test_slippery_gold_reaches_the_goal_as_often_as_its_value():
    task = GridWalk(slippery=True, max_turns=60)
    rewards = [gold_play(task, LAKE, seed=seed).reward for seed in range(400)]
    expected = success_values(FROZEN_LAKE_4, 60)[0, 0]
    assert abs(sum(rewards) / 400 - expected) < 4 * (expected * (1 - expected) / 400) ** 0.5


def test_slippery_moves_go_aside_and_never_back():
    """From the middle of an empty grid: a third each, and never against the aim."""
    rows = ["G....", ".....", "..S..", ".....", "....."]
    ends = []
    for seed in range(300):
        turn = walk(GridWalk(slippery=True), "R", Problem("open", (), rows), seed).turns[1]
        lines = turn.messages[0]["content"].splitlines()
        ends.append(find_sign(lines, "P"))
    counts = [ends.count(cell) for cell in ((2, 3), (1, 2), (3, 2), (2, 1))]
    assert counts[3] == 0 and min(counts[:3]) > 60 and sum(counts) == 300


def test_seeds_differ_on_slippery_ice_only():
    def hashable(turns):
        return {str(turn) for turn in turns}

    task = GridWalk(slippery=True)
    assert len(hashable(walk(task, "RR", seed=seed).turns for seed in range(20))) > 1
    assert len(hashable(walk(GridWalk(), "RR", seed=seed).turns for seed in range(20))) == 1


def test_a_hole_ends_the_walk_and_the_edge_stops_it():
    fallen = walk(GridWalk(), ["left", "U", "R", "down"])
    assert [len(turn.messages) for turn in fallen.turns] == [0, 1, 1, 1, 0]
    assert fallen.turns[1].messages[0]["content"].startswith("P...\n.H.H")
    assert fallen.done and fallen.reward == 0.0 and fallen.turns[-1].reason == "fell into a hole"


def test_a_view_around_the_player():
    """FrozenLake's map, by hand: right, right, down to (1, 2), between two holes."""
    task = GridWalk(shown_as="around")
    asked = task.problem(FROZEN_LAKE_4, "lake").messages[0]["content"]
    assert asked.splitlines()[-1] == "D3 R3" and "small letters" in asked
    turns = walk(task, "RRD").turns[1:]
    assert [turn.messages[0]["content"] for turn in turns] == ["D3 R2 d", "D3 R1", "D2 R1 l r"]
    assert gold_play(task, LAKE).reward == 1.0


def test_turns_run_out():
    episode = walk(GridWalk(max_turns=3), ["U", "what?", "L", "R"])
    assert len(episode.actions) == 3 and episode.done and episode.reward == 0.0
    assert episode.turns[2].messages[0]["content"].startswith("Not a move")


@pytest.mark.parametrize(
    ("text", "move"),
    [("U", "U"), (" d\n", "D"), ("left", "L"), ("I go RIGHT.", "R"), ("up, up", "U"), ("", None), ("UD", None),
     ("up or down", None), ("north", None), ("ＵＰ", None), ("updown", None)],
)  # fmt: skip
def test_read_move_takes_one_direction(text, move):
    assert read_move(text) == move


def test_every_grid_has_a_way_within_its_turns():
    for level in range(1, 6):
        task = GridWalk(level=level)
        rng = random.Random(level)
        for _ in range(30):
            rows = task.draw(rng)
            assert 2 <= distances_to_goal(rows)[find_sign(rows, "S")] <= task.max_turns
            assert "".join(rows).count("H") == task.holes
