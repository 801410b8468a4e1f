"""A branch taken aside: where one part of a search grows while others grow elsewhere, and is put back in its turn.

So the steps of a trace have one order, whoever is ready first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ponder.types import Cost, Trace


@dataclass(slots=True)
class DetachedBranch:
    trace: Trace  # a copy of the way to a step, and of its children; what grows here is new
    tip: int  # where that step is in the copy
    origin: list[int]  # where each copied step is in the whole trace

    @classmethod
    def at(cls, whole: Trace, step: int) -> DetachedBranch:
        path = whole.path(step)
        origin = [*path, *whole.children(step)]
        copy = Trace(whole.problem, oracle=whole.oracle, extract_answer=whole.extract_answer)
        for place, i in enumerate(origin):
            parent = None if not place else min(place, len(path)) - 1
            copy.add(replace(whole.steps[i], parent=parent, scores=dict(whole.steps[i].scores)))
        return cls(copy, len(path) - 1, origin)

    def merge_into(self, whole: Trace) -> list[int]:
        """What grew, and what was found about the copied steps, into the whole; gives each step's place there."""
        places = list(self.origin)
        for i, place in enumerate(places):
            mine, theirs = self.trace.steps[i], whole.steps[place]
            theirs.scores |= mine.scores
            theirs.pruned = theirs.pruned or mine.pruned
            if i > self.tip:  # steps on the way here are others' to weigh
                theirs.prior = mine.prior
        for step in self.trace.steps[len(places) :]:
            assert step.parent is not None
            places.append(whole.add(replace(step, parent=places[step.parent])))
        whole.add_cost(self.trace.cost)
        self.trace.cost = Cost()
        return places
