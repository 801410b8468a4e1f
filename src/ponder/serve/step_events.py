"""`StepFeed`: the steps of a search while it runs, for clients that draw its tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ponder.serve.events import StepsChanged
from ponder.types import Step, Trace

MAX_STEP_CHARS = 400  # of a step's text; `return_trace` has all of it


class StepFeed:
    """Emits the steps that are new, or that changed, since it was last called."""

    def __init__(self, trace: Trace, emit: Callable[[StepsChanged], None], choice: int) -> None:
        self._trace, self._emit, self._choice = trace, emit, choice
        self._sent: list[tuple[Any, ...]] = []  # what changes in a step, as it was sent

    def send(self) -> None:
        steps = []
        for i, step in enumerate(self._trace.steps):
            state = _changing_fields(step)
            if i == len(self._sent):
                self._sent.append(state)
                steps.append({**_fixed_fields(i, step), **_to_json(state)})
            elif self._sent[i] != state:
                self._sent[i] = state
                steps.append({"index": i, **_to_json(state)})
        if steps:
            self._emit(StepsChanged(tuple(steps), self._choice))

    def send_end(self) -> None:
        """The last steps, and which of them is the answer."""
        self.send()
        self._emit(StepsChanged((), self._choice, self._trace.chosen))


def _changing_fields(step: Step) -> tuple[Any, ...]:
    scores = tuple((name, score.value) for name, score in step.scores.items())
    return step.visits, step.value, step.prior, step.pruned, scores


def _to_json(state: tuple[Any, ...]) -> dict[str, Any]:
    visits, value, prior, pruned, scores = state
    return {"visits": visits, "value": value, "prior": prior, "pruned": pruned, "scores": dict(scores)}


def _fixed_fields(index: int, step: Step) -> dict[str, Any]:
    return {
        "index": index, "parent": step.parent, "text": step.text[:MAX_STEP_CHARS], "tokens": len(step.token_ids),
        "sampled": step.sampled, "stop": step.stop, "cites": list(step.cites), "meta": step.meta,
    }  # fmt: skip
