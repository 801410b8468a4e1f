"""Simulations of one tree search that run at the same time, each on a detached copy of its branch.

The search merges the copies back in the order in which the simulations started, so the steps of the trace have the same
order whichever simulation finishes first.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from ponder.types import Cost, Trace


@dataclass(slots=True)
class DetachedBranch:
    """A copy of the path to a step and of the step's children. A simulation grows the copy."""

    trace: Trace
    tip: int  # the index of that step in the copy
    origin: list[int]  # the index in the whole trace of each copied step

    @classmethod
    def at(cls, whole: Trace, step: int) -> DetachedBranch:
        path = whole.conversation(step)
        if (turn := whole.next_turn(step)) is not None:
            path.append(turn)
        origin = [*path, *whole.children(step)]
        places = {i: place for place, i in enumerate(origin)}
        copy = Trace(whole.problem, oracle=whole.oracle, extract_answer=whole.extract_answer, episodes=whole.episodes)
        for i in origin:
            parent, cites = whole.steps[i].parent, tuple(places[c] for c in whole.steps[i].cites if c in places)
            at = None if parent is None else places[parent]
            copy.add(replace(whole.steps[i], parent=at, cites=cites, scores=dict(whole.steps[i].scores)))
        return cls(copy, places[step], origin)

    def merge_into(self, whole: Trace) -> list[int]:
        """Add new steps, and new scores of copied steps, to the whole trace. Returns each step's index there."""
        places = list(self.origin)
        for i, place in enumerate(places):
            mine, theirs = self.trace.steps[i], whole.steps[place]
            theirs.scores |= mine.scores
            theirs.pruned = theirs.pruned or mine.pruned
            if i > self.tip and not mine.turn:  # other simulations set the priors of the steps above
                theirs.prior = mine.prior
        for step in self.trace.steps[len(places) :]:
            parent = None if step.parent is None else places[step.parent]
            places.append(whole.add(replace(step, parent=parent, cites=tuple(places[c] for c in step.cites))))
        whole.add_cost(self.trace.cost)
        self.trace.cost = Cost()
        return places


@dataclass(slots=True)
class Simulation:
    """One simulation in flight."""

    path: list[int]
    branch: DetachedBranch | None
    work: Coroutine[Any, Any, list[int]] | asyncio.Task[list[int]]


@dataclass(slots=True)
class SimulationsInFlight:
    """All simulations in flight, oldest first; visits in flight by step; and the steps that they are expanding."""

    window: deque[Simulation] = field(default_factory=deque)
    visits: Counter[int] = field(default_factory=Counter)
    busy: set[int] = field(default_factory=set)
