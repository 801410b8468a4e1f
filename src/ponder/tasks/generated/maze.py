"""Find the way through a maze."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ponder import verify
from ponder.errors import TaskError
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import QuestionTask
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec

Lines = tuple[str, ...]

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


@dataclass(frozen=True, kw_only=True)
class Maze(QuestionTask[Lines]):
    """`side` x `side` rooms; so many more walls than needed are `extra_openings`, which makes several ways."""

    ANSWER_SPEC = AnswerSpec(
        "the moves", ("tag", "boxed"), " as letters: U (up), D (down), L (left), R (right)", allow_bare=False
    )
    LEVELS: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"side": 2, "extra_openings": 0, "shortest": False},
        {"side": 3, "extra_openings": 0, "shortest": False},
        {"side": 5, "extra_openings": 0, "shortest": False},
        {"side": 7, "extra_openings": 4, "shortest": True},
        {"side": 10, "extra_openings": 8, "shortest": True},
        {"side": 15, "extra_openings": 15, "shortest": True},
    )

    side: int = 4
    extra_openings: int = 0
    shortest: bool = False

    def check(self) -> None:
        require_at_least(2, side=self.side)
        require_at_most(40, side=self.side)
        require_at_least(0, extra_openings=self.extra_openings)
        require_at_most(2 * self.side**2, extra_openings=self.extra_openings)  # there are no more walls

    @property
    def name(self) -> str:
        return "maze"

    @property
    def verifier(self) -> verify.MazeVerifier:
        return verify.MazeVerifier(self.shortest)

    def draw(self, rng: random.Random) -> Lines:
        return _carve(rng, self.side, self.extra_openings)

    def key(self, item: Lines) -> str:
        return "\n".join(item)

    def question(self, item: Lines) -> str:
        way = "a shortest way" if self.shortest else "a way"
        return f"Find {way} from S to G in this maze. Each sign is one cell, # is a wall.\n" + "\n".join(item)

    def answer(self, item: Lines) -> list[str]:
        return list(item)

    def tags(self, item: Lines) -> dict[str, Any]:
        return {"side": self.side, "extra_openings": self.extra_openings}

    def solution(self, problem: Problem) -> str:
        return solve(problem.answer)


def solve(lines: Sequence[str]) -> str:
    """A shortest way, by breadth-first search from S."""
    cells = {(r, c): sign for r, line in enumerate(lines) for c, sign in enumerate(line)}
    start = next(at for at, sign in cells.items() if sign == "S")
    came: dict[tuple[int, int], str] = {start: ""}
    edge = deque([start])
    while edge:
        at = edge.popleft()
        if cells[at] == "G":
            return came[at]
        for move, (down, across) in MOVES.items():
            step = at[0] + down, at[1] + across
            if cells.get(step, "#") != "#" and step not in came:
                came[step] = came[at] + move
                edge.append(step)
    raise TaskError("no way leads from S to G; leave this maze out")


def _carve(rng: random.Random, side: int, opened: int) -> Lines:
    """A tree of rooms by depth-first carving, then some more openings; S and G in two rooms."""
    size = 2 * side + 1
    signs = [["#"] * size for _ in range(size)]
    rooms = [(2 * r + 1, 2 * c + 1) for r in range(side) for c in range(side)]
    trail = [rng.choice(rooms)]
    signs[trail[0][0]][trail[0][1]] = "."
    while trail:
        r, c = trail[-1]
        closed = [
            (down, across)
            for down, across in MOVES.values()
            if 0 < r + 2 * down < size and 0 < c + 2 * across < size and signs[r + 2 * down][c + 2 * across] == "#"
        ]
        if not closed:
            trail.pop()
            continue
        down, across = rng.choice(closed)
        signs[r + down][c + across] = signs[r + 2 * down][c + 2 * across] = "."
        trail.append((r + 2 * down, c + 2 * across))
    walls = [
        (r, c) for r in range(1, size - 1) for c in range(1, size - 1) if (r + c) % 2 and signs[r][c] == "#"
    ]  # those between two rooms
    for r, c in rng.sample(walls, min(opened, len(walls))):
        signs[r][c] = "."
    (r, c), (goal_r, goal_c) = rng.sample(rooms, 2)
    signs[r][c], signs[goal_r][goal_c] = "S", "G"
    return tuple("".join(line) for line in signs)
