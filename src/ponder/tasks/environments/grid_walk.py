"""Walk over a grid to the goal and past the holes, as in FrozenLake; the grid is shown after each move."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from ponder.errors import UsageError
from ponder.protocols import Environment
from ponder.tasks.environments.answer_text import answer_text
from ponder.tasks.environments.environment_task import EnvironmentTask
from ponder.tasks.environments.grid_moves import MOVES, MOVES_TEXT, Cell, next_cell, read_move
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.types import Action, Problem, Turn, user_messages

Rows = tuple[str, ...]
Shown = Literal["grid", "around"]

MIN_DISTANCE = 2  # moves from the start to the goal
# On slippery ice a third of the moves goes where it was aimed, and a third to each side of it.
SLIPS = {"U": "LUR", "D": "RDL", "L": "DLU", "R": "URD"}


@dataclass(frozen=True, kw_only=True)
class GridWalk(EnvironmentTask[Rows]):
    """Walk over a grid to the goal and past the holes, as in FrozenLake, a move in each turn.

    There are `side` x `side` cells with so many `holes`. The reward is 1 for the goal within `max_turns` moves. A hole
    ends the episode. With `slippery`, as in FrozenLake, two moves in three go to one side of where they were aimed,
    drawn from the episode's seed. `shown_as="around"` says how far the goal is and which moves end in a hole, in place
    of the drawn grid, in which a small model takes long to find its place; holes further away are not seen.
    """

    LEVELS = (
        {"side": 3, "holes": 2, "max_turns": 8},
        {"side": 4, "holes": 4, "max_turns": 12},
        {"side": 5, "holes": 7, "max_turns": 16},
        {"side": 6, "holes": 11, "max_turns": 20},
        {"side": 8, "holes": 20, "max_turns": 30},
    )

    side: int = 4
    holes: int = 4
    max_turns: int = 12
    slippery: bool = False
    shown_as: Shown = "grid"
    show_rules: bool = True  # in the first message; a model that was trained on the task needs none
    max_turn_tokens: int | None = 32

    def check(self) -> None:
        require_at_least(3, side=self.side)
        require_at_most(16, side=self.side)
        require_at_least(0, holes=self.holes)
        require_at_most(2 * self.side**2 // 5, holes=self.holes)  # of more, hardly any leaves a way
        if self.max_turns < MIN_DISTANCE:
            raise UsageError(f"max_turns is {self.max_turns}; the goal is at least {MIN_DISTANCE} moves away")

    @property
    def name(self) -> str:
        return "grid-walk"

    def draw(self, rng: random.Random) -> Rows:
        cells = [(r, c) for r in range(self.side) for c in range(self.side)]
        while True:
            start, goal, *holes = rng.sample(cells, self.holes + 2)
            signs = {start: "S", goal: "G", **dict.fromkeys(holes, "H")}
            rows = tuple("".join(signs.get((r, c), ".") for c in range(self.side)) for r in range(self.side))
            distance = distances_to_goal(rows).get(start)
            if distance is not None and MIN_DISTANCE <= distance <= self.max_turns:
                return rows

    def key(self, item: Rows) -> str:
        return "/".join(item)

    def problem(self, item: Rows, id: str) -> Problem:
        slips = " The ice is slippery: a move may go to one side of where you aim." if self.slippery else ""
        sight = "I show the grid after each move."
        if self.shown_as == "around":
            sight = "I show how far G is, such as D2 R1, and in small letters the moves into a hole, after each move."
        rules = (
            "You are P on a grid. Reach G in at most"
            f" {self.max_turns} moves; H is a hole, which ends the walk.{slips} Answer with one move and"
            f" nothing else: {MOVES_TEXT}. {sight}\n"
        )
        text = (rules if self.show_rules else "") + shown_text(item, find_sign(item, "S"), self.shown_as)
        tags = {"side": self.side, "holes": self.holes}
        return Problem(id, user_messages(text, self.system), list(item), tags)

    def environment(self) -> Environment:
        return GridWalkEpisode(self.max_turns, self.slippery, self.shown_as)


@dataclass
class GridWalkEpisode:
    """One walk. The problem's answer is the rows of the grid: S the start, G the goal, H a hole."""

    max_turns: int
    slippery: bool = False
    shown_as: Shown = "grid"
    rows: Rows = ()
    place: Cell = (0, 0)
    seed: int = 0
    turns: int = 0

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.rows, self.seed, self.turns = tuple(problem.answer), seed, 0
        self.place = find_sign(self.rows, "S")
        return Turn()

    def act(self, action: Action) -> Turn:
        self.turns += 1
        move = read_move(answer_text(action))
        if move is None:
            return self._reply(f"Not a move: write {MOVES_TEXT}.")
        if self.slippery:
            move = random.Random(f"slip {self.seed} {self.turns}").choice(SLIPS[move])
        self.place = step_on_grid(self.rows, self.place, move)
        sign = self.rows[self.place[0]][self.place[1]]
        if sign == "G":
            return Turn(reward=1.0, done=True, reason=f"reached the goal in {self.turns} moves")
        if sign == "H":
            return Turn(reward=0.0, done=True, reason="fell into a hole")
        return self._reply(shown_text(self.rows, self.place, self.shown_as))

    def _reply(self, text: str) -> Turn:
        if self.turns >= self.max_turns:
            return Turn(reward=0.0, done=True, reason=f"not at the goal after {self.turns} moves")
        return Turn(({"role": "user", "content": text},))

    def gold(self) -> str:
        """A move of a shortest way; on slippery ice, the one that most often reaches the goal in the turns left."""
        if self.slippery:
            values = success_values(self.rows, self.max_turns - self.turns - 1)
            return max(MOVES, key=lambda move: slippery_value(self.rows, values, self.place, move))
        far = len(self.rows) ** 2
        distances = distances_to_goal(self.rows)
        return min(MOVES, key=lambda move: distances.get(step_on_grid(self.rows, self.place, move), far))

    def random_action(self, rng: random.Random) -> str:
        return rng.choice("UDLR")

    def copy(self) -> GridWalkEpisode:
        return replace(self)

    def close(self) -> None:
        pass


def shown_text(rows: Rows, place: Cell, shown_as: Shown) -> str:
    return grid_text(rows, place) if shown_as == "grid" else around_text(rows, place)


def around_text(rows: Rows, place: Cell) -> str:
    """How far the goal is, and the moves into a hole in small letters, such as `D2 R1 u l`."""
    down, right = (to - at for to, at in zip(find_sign(rows, "G"), place, strict=True))
    far = [f"{sign}{abs(n)}" for n, sign in ((down, "D" if down > 0 else "U"), (right, "R" if right > 0 else "L")) if n]
    ends = {move: step_on_grid(rows, place, move) for move in MOVES}
    return " ".join([*far, *(move.lower() for move, (r, c) in ends.items() if rows[r][c] == "H")])


def grid_text(rows: Rows, place: Cell) -> str:
    """The grid as it is shown: P is the player; the start is a cell as any other."""
    lines = [row.replace("S", ".") for row in rows]
    lines[place[0]] = f"{lines[place[0]][: place[1]]}P{lines[place[0]][place[1] + 1 :]}"
    return "\n".join(lines)


def find_sign(rows: Sequence[str], sign: str) -> Cell:
    return next((r, row.index(sign)) for r, row in enumerate(rows) if sign in row)


def step_on_grid(rows: Rows, cell: Cell, move: str) -> Cell:
    """The cell after a move; the edge of the grid stops it."""
    r, c = next_cell(cell, move)
    return (r, c) if 0 <= r < len(rows) and 0 <= c < len(rows[r]) else cell


@lru_cache(maxsize=1024)
def distances_to_goal(rows: Rows) -> dict[Cell, int]:
    """Moves from each cell to the goal, past the holes, by breadth-first search."""
    distances = {find_sign(rows, "G"): 0}
    queue = deque(distances)
    while queue:
        cell = queue.popleft()
        for move in MOVES:
            near = step_on_grid(rows, cell, move)
            if near not in distances and rows[near[0]][near[1]] != "H":
                distances[near] = distances[cell] + 1
                queue.append(near)
    return distances


@lru_cache(maxsize=1024)
def success_values(rows: Rows, turns: int) -> dict[Cell, float]:
    """The probability of reaching the goal on slippery ice within so many turns from each cell, by best play."""
    cells = [(r, c) for r, row in enumerate(rows) for c in range(len(row))]
    values = {(r, c): float(rows[r][c] == "G") for r, c in cells}
    open_cells = [(r, c) for r, c in cells if rows[r][c] not in "GH"]
    for _ in range(turns):
        values = values | {cell: max(slippery_value(rows, values, cell, move) for move in MOVES) for cell in open_cells}
    return values


def slippery_value(rows: Rows, values: dict[Cell, float], cell: Cell, move: str) -> float:
    """The mean value over where a move may go."""
    return sum(values[step_on_grid(rows, cell, way)] for way in SLIPS[move]) / len(SLIPS[move])
