"""The check that a policy which is asked about pictures sees them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ponder.models.picture_prompt import without_pictures
from ponder.pipelines.preflight.checks import Check
from ponder.pipelines.preflight.gradient_probe import PreflightData
from ponder.types import Trace

MIN_DIFFERENCE_NATS = 1e-6  # between the log-probabilities with the picture and with a grey one
PICTURES_ADVICE = (
    "The model would learn to guess: another picture must change what it thinks of an answer; look whether its chat "
    "template shows pictures, and whether the tower's weights were loaded"
)


def check_pictures(e: PreflightData) -> list[Check]:
    """The log-probabilities of an answer change when its picture does. Nothing where no problem shows one."""
    trace = next((t for t in e.traces if len(t.steps) > 1 and (t.steps[0].token_ids < 0).any()), None)
    if trace is None:
        return []
    grey = e.policy.encode(without_pictures(trace.problem.messages))
    if np.array_equal(grey, trace.steps[0].token_ids):
        return [
            Check("pictures", None, "the picture is grey, so nothing shows that the model sees it", PICTURES_ADVICE)
        ]
    seen, unseen = ([replace(s, notes={}) for s in trace.steps] for _ in range(2))
    unseen[0].token_ids = grey
    pair = [Trace(trace.problem, seen), Trace(trace.problem, unseen)]
    with e.learner.unchanged():
        e.learner.write_notes(pair, [*seen[1:], *unseen[1:]], "picture", e.learner.net)
    steps = [(a, b) for a, b in zip(seen[1:], unseen[1:], strict=True) if "picture" in a.notes]
    gap = max(float(np.abs(a.notes["picture"] - b.notes["picture"]).max()) for a, b in steps)
    summary = f"a grey picture changes log-probabilities by up to {gap:.1e} nats (at least {MIN_DIFFERENCE_NATS:g})"
    return [Check("pictures", gap >= MIN_DIFFERENCE_NATS, summary, PICTURES_ADVICE)]
