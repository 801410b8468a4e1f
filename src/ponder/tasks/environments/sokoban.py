"""Sokoban: push every box onto a target; the room is shown after each move.

Rooms are drawn from their end: the boxes stand on the targets, and the player walks and pulls at random. Each step back
is one step forward, so a room can be solved in as many moves as it was drawn by.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ponder.protocols import Environment
from ponder.tasks.environments.answer_text import answer_text
from ponder.tasks.environments.environment_task import EnvironmentTask
from ponder.tasks.environments.grid_moves import MOVES, MOVES_TEXT, Cell, next_cell, read_move
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.types import Action, Problem, Turn, user_messages

PULL_RATE = 0.7  # of the steps back at which a box could be pulled


class Room(NamedTuple):
    """A position. `floor` has every cell that is no wall."""

    floor: frozenset[Cell]
    targets: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @property
    def solved(self) -> bool:
        return self.boxes == self.targets


@dataclass(frozen=True, kw_only=True)
class Sokoban(EnvironmentTask[tuple[str, ...]]):
    """A room of `side` x `side` cells with so many `boxes` and inner `walls`. The reward is 1 when all boxes are on
    targets within `max_turns` moves."""

    LEVELS = (
        {"side": 4, "boxes": 1, "walls": 0, "max_turns": 10},
        {"side": 5, "boxes": 1, "walls": 3, "max_turns": 16},
        {"side": 5, "boxes": 2, "walls": 2, "max_turns": 24},
        {"side": 6, "boxes": 2, "walls": 5, "max_turns": 32},
    )

    side: int = 5
    boxes: int = 1
    walls: int = 3
    max_turns: int = 16
    show_rules: bool = True  # in the first message; a model that was trained on the task needs none
    max_turn_tokens: int | None = 32

    def check(self) -> None:
        require_at_least(4, side=self.side)
        require_at_most(7, side=self.side)
        require_at_least(1, boxes=self.boxes)
        require_at_most(3, boxes=self.boxes)
        require_at_least(0, walls=self.walls)
        require_at_most(self.side**2 // 4, walls=self.walls)
        require_at_least(8 * self.boxes, max_turns=self.max_turns)  # or hardly any walk back moves every box

    @property
    def name(self) -> str:
        return "sokoban"

    def draw(self, rng: random.Random) -> tuple[str, ...]:
        cells = [(r, c) for r in range(self.side) for c in range(self.side)]
        while True:
            walls = set(rng.sample(cells, self.walls))
            floor = [cell for cell in cells if cell not in walls]
            player, *targets = rng.sample(floor, self.boxes + 1)
            room = Room(frozenset(floor), frozenset(targets), frozenset(targets), player)
            for _ in range(self.max_turns):
                room = step_back(room, rng)
            if not room.boxes & room.targets:
                return tuple(room_lines(room, self.side))

    def key(self, item: tuple[str, ...]) -> str:
        return "/".join(item)

    def problem(self, item: tuple[str, ...], id: str) -> Problem:
        rules = (
            "Push each box ($) onto a target (.). You are @, or + on a target; * is a box on a target, # a wall, - a"
            " free cell. Moving against a box pushes it, if the cell behind it is free. You have"
            f" {self.max_turns} moves. Answer with one move and nothing else: {MOVES_TEXT}. I show the room after each"
            " move.\n"
        )
        text = (rules if self.show_rules else "") + "\n".join(item)
        tags = {"side": self.side, "boxes": self.boxes}
        return Problem(id, user_messages(text, self.system), list(item), tags)

    def environment(self) -> Environment:
        return SokobanEpisode(self.max_turns)


@dataclass
class SokobanEpisode:
    """One room. The problem's answer is its lines."""

    max_turns: int
    room: Room = field(default_factory=lambda: Room(frozenset(), frozenset(), frozenset(), (0, 0)))
    side: int = 0
    turns: int = 0
    plan: tuple[str, ...] = ()  # the rest of a solution that the moves have followed so far

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.room, self.side = parse_room(problem.answer), len(problem.answer) - 2
        self.turns, self.plan = 0, ()
        return Turn()

    def act(self, action: Action) -> Turn:
        self.turns += 1
        move = read_move(answer_text(action))
        if move is None:
            return self._reply(f"Not a move: write {MOVES_TEXT}.")
        self.plan = self.plan[1:] if self.plan[:1] == (move,) else ()
        self.room = step_forward(self.room, move)
        if self.room.solved:
            return Turn(reward=1.0, done=True, reason=f"solved in {self.turns} moves")
        return self._reply("\n".join(room_lines(self.room, self.side)))

    def _reply(self, text: str) -> Turn:
        if self.turns >= self.max_turns:
            return Turn(reward=0.0, done=True, reason=f"not solved after {self.turns} moves")
        return Turn(({"role": "user", "content": text},))

    def gold(self) -> str:
        """The next move of a shortest solution; any move where there is none."""
        self.plan = self.plan or tuple(solve(self.room) or "U")
        return self.plan[0]

    def random_action(self, rng: random.Random) -> str:
        return rng.choice("UDLR")

    def copy(self) -> SokobanEpisode:
        return replace(self)

    def close(self) -> None:
        pass


def step_forward(room: Room, move: str) -> Room:
    """The room after a move; a wall, or a box that cannot be pushed, stops it."""
    ahead = next_cell(room.player, move)
    if ahead not in room.floor:
        return room
    if ahead not in room.boxes:
        return room._replace(player=ahead)
    behind = next_cell(ahead, move)
    if behind not in room.floor or behind in room.boxes:
        return room
    return room._replace(player=ahead, boxes=room.boxes - {ahead} | {behind})


def step_back(room: Room, rng: random.Random) -> Room:
    """A random step that a move forward undoes: the player steps back, and often pulls a box along."""
    free = [m for m in MOVES if (to := next_cell(room.player, m)) in room.floor and to not in room.boxes]
    if not free:
        return room
    opposite = {"U": "D", "D": "U", "L": "R", "R": "L"}
    pulls = [m for m in free if next_cell(room.player, opposite[m]) in room.boxes]
    if pulls and rng.random() < PULL_RATE:
        move = rng.choice(pulls)
        box = next_cell(room.player, opposite[move])
        return room._replace(player=next_cell(room.player, move), boxes=room.boxes - {box} | {room.player})
    return room._replace(player=next_cell(room.player, rng.choice(free)))


def solve(room: Room) -> str | None:
    """A shortest solution by breadth-first search; None where there is none."""
    before: dict[tuple[Cell, frozenset[Cell]], str] = {(room.player, room.boxes): ""}
    queue = deque([room])
    while queue:
        here = queue.popleft()
        moves = before[here.player, here.boxes]
        if here.solved:
            return moves
        for move in MOVES:
            after = step_forward(here, move)
            if (after.player, after.boxes) not in before:
                before[after.player, after.boxes] = moves + move
                queue.append(after)
    return None


def room_lines(room: Room, side: int) -> list[str]:
    """The room with a wall around it: # wall, - floor, . target, $ box, * box on a target, @ player, + on a target."""

    def sign(cell: Cell) -> str:
        if cell not in room.floor:
            return "#"
        on_target = cell in room.targets
        if cell == room.player:
            return "+" if on_target else "@"
        if cell in room.boxes:
            return "*" if on_target else "$"
        return "." if on_target else "-"

    return ["".join(sign((r, c)) for c in range(-1, side + 1)) for r in range(-1, side + 1)]


def parse_room(lines: Sequence[str]) -> Room:
    """The room of such lines."""
    signs = {(r - 1, c - 1): sign for r, line in enumerate(lines) for c, sign in enumerate(line) if sign != "#"}
    return Room(
        frozenset(signs),
        frozenset(cell for cell, sign in signs.items() if sign in ".*+"),
        frozenset(cell for cell, sign in signs.items() if sign in "$*"),
        next(cell for cell, sign in signs.items() if sign in "@+"),
    )
