"""Sokoban against a published level, and the walk back that draws rooms."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ponder.tasks import Sokoban
from ponder.tasks.environments.grid_moves import MOVES
from ponder.tasks.environments.scripted_play import play
from ponder.tasks.environments.sokoban import Room, parse_room, room_lines, solve, step_back, step_forward
from ponder.types import Problem

# The first level of Microban (David W. Skinner). Its best known solution has 33 moves.
MICROBAN_1 = ["######", "#-.###", "#--###", "#*@--#", "#--$-#", "#--###", "######"]
MICROBAN_1_SOLUTION = "DLURRRDLULLDDRULURUULDRDDRRULDLUU"


def test_published_solution_solves_microban_1():
    room = parse_room(MICROBAN_1)
    for move in MICROBAN_1_SOLUTION:
        assert not room.solved
        room = step_forward(room, move)
    assert room.solved


def test_solve_is_as_short_as_the_published_solution():
    solution = solve(parse_room(MICROBAN_1))
    assert solution is not None and len(solution) == len(MICROBAN_1_SOLUTION) == 33


def test_solve_finds_none_for_a_box_in_a_corner():
    assert solve(parse_room(["######", "#$---#", "#--@-#", "#--.-#", "#----#", "######"])) is None


@given(st.integers(0, 10_000))
def test_each_step_back_is_undone_by_one_step_forward(seed):
    rng = random.Random(seed)
    cells = frozenset((r, c) for r in range(4) for c in range(4) if rng.random() < 0.9 or (r, c) == (1, 1))
    boxes = frozenset(rng.sample(sorted(cells - {(1, 1)}), 2))
    room = Room(cells, boxes, boxes, (1, 1))
    for _ in range(12):
        back = step_back(room, rng)
        assert back == room or room in [step_forward(back, move) for move in MOVES]
        room = back


def test_lines_and_room_are_inverse():
    for lines in (MICROBAN_1, *(p.answer for p in Sokoban(level=3).train[:20])):
        room = parse_room(lines)
        if len(lines) == len(lines[0]):
            assert room_lines(room, len(lines) - 2) == list(lines)
        assert len(room.boxes) == len(room.targets)


def test_pushing_against_a_wall_or_another_box_moves_nothing():
    room = parse_room(["######", "#@$$-#", "#$--.#", "#-#-.#", "#---.#", "######"])
    assert step_forward(room, "R") == room and step_forward(room, "U") == room
    below = step_forward(room, "D")
    assert (2, 0) in below.boxes and below.player == (1, 0)
    assert step_forward(step_forward(below, "D"), "D") == parse_room(
        ["######", "#-$$-#", "#---.#", "#@#-.#", "#$--.#", "######"]
    )


def test_the_room_is_shown_after_each_move():
    problem = Problem("1", (), ["######", "#@---#", "#-$.-#", "#----#", "#----#", "######"])
    texts = iter(["D", "R"])
    episode = play(Sokoban(), problem, lambda _: next(texts))
    assert episode.turns[1].messages[0]["content"] == "######\n#----#\n#@$.-#\n#----#\n#----#\n######"
    assert episode.reward == 1.0 and episode.turns[-1].reason == "solved in 2 moves"


def test_rooms_are_solved_within_their_turns():
    for level in (1, 2, 3):
        task = Sokoban(level=level)
        for problem in task.train[:10]:
            solution = solve(parse_room(problem.answer))
            assert solution is not None and 1 <= len(solution) <= task.max_turns
