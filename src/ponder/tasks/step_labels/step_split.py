"""Split a sampled text into steps, in tokens. Nothing is tokenised again: a step ends after the token that completes a
separator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ponder.errors import UsageError
from ponder.types import Ids, Step, Trace

Detokenize = Callable[[Ids], str]  # a policy's `text`, or a tokenizer's `decode`


def step_ends(tokens: Ids, text: Detokenize, separator: str = "\n", ended: bool = False) -> list[int]:
    """How many tokens there are up to the end of each piece; the last is all of them.

    Blank pieces are none: blanks before a piece are its own, and what is blank after the last one is the last one's.
    So is the end-of-sequence token, if the text `ended` with one.
    """
    if not separator:
        raise UsageError("a separator of no characters would cut everywhere: give a text, such as a line break")
    if not len(tokens):
        return []
    reach = len(separator.encode())  # tokens that a separator can lie in, at a byte each
    ends: list[int] = []
    body = len(tokens) - ended
    for i in range(body):
        begin = max(0, i - reach)
        now = text(tokens[begin : i + 1])
        if separator not in now:
            continue
        before = text(tokens[begin:i]).rstrip("\ufffd") if i > begin else ""
        new = now.rfind(separator) + len(separator) > len(before)
        if new and text(tokens[ends[-1] if ends else 0 : i + 1]).strip():
            ends.append(i + 1)
    if not ends:
        return [len(tokens)]
    if ends[-1] < body and text(tokens[ends[-1] : body]).strip():
        return [*ends, len(tokens)]
    return [*ends[:-1], len(tokens)]


def split_steps(trace: Trace, text: Detokenize, separator: str = "\n") -> Trace:
    """The same thoughts with a step for each piece: tokens, log-probabilities and notes go with theirs.

    What was known of a whole step (scores, visits, value, how it ended) stands on its last piece.
    """
    out = replace(trace, steps=[], chosen=None, _children=[])
    place: dict[int, int] = {}
    for i, step in enumerate(trace.steps):
        parent = None if step.parent is None else place[step.parent]
        cuts = step_ends(step.token_ids, text, separator, step.stop == "eos") if step.sampled else []
        if len(cuts) < 2:
            place[i] = out.add(replace(step, parent=parent, cites=tuple(place[c] for c in step.cites)))
            continue
        begin = 0
        for end in cuts:
            parent = out.add(_piece(step, parent, begin, end, text, last=end == cuts[-1]))
            begin = end
        assert parent is not None
        out.steps[parent].cites = tuple(place[c] for c in step.cites)
        place[i] = parent
    out.chosen = None if trace.chosen is None else place[trace.chosen]
    return out


def _piece(step: Step, parent: int | None, begin: int, end: int, text: Detokenize, last: bool) -> Step:
    """Its text is what its tokens add to those before, so that the pieces read as the whole."""
    before = len(text(step.token_ids[:begin])) if begin else 0
    piece_text = step.text[before:] if last else text(step.token_ids[:end])[before:]
    part = slice(begin, end)
    floats = {
        name: None if (values := getattr(step, name)) is None else values[part] for name in ("logprobs", "advantages")
    }
    piece = Step(parent, piece_text, step.token_ids[part], floats["logprobs"], "stop", step.version)
    piece.advantages = floats["advantages"]
    piece.notes = {name: np.asarray(values[part]) for name, values in step.notes.items()}
    piece.meta = step.meta
    if last:
        piece.stop, piece.last, piece.pruned = step.stop, step.last, step.pruned
        piece.scores, piece.visits, piece.value, piece.prior = dict(step.scores), step.visits, step.value, step.prior
    return piece
