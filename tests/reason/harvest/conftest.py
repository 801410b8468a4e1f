"""Traces written as nested tuples: (text, verdict or children, options)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ponder.types import Ids, Problem, Score, Step, Trace, ids, user_messages

EOS = 3  # no character of a test's


def letters(text: str) -> Ids:
    return ids(ord(c) for c in text)


def _add(trace: Trace, parent: int, spec: tuple[Any, ...]) -> None:
    text, what, more = (*spec, {})[:3]
    inner = isinstance(what, list)
    tokens = letters(text) if inner else ids([*letters(text), EOS])
    step = Step(parent, text, tokens, np.full(len(tokens), -1.0, np.float32), "stop" if inner else "eos")
    if not inner and what != "unscored":
        step.scores["accuracy"] = Score(what, "" if what is not None else "timed out")
    for name, value in more.items():
        setattr(step, name, value)
    index = trace.add(step)
    for child in what if inner else ():
        _add(trace, index, child)


@pytest.fixture
def grow() -> Callable[..., Trace]:
    def make(*specs: tuple[Any, ...], question: str = "What is 2 + 2?", id: str = "p/0") -> Trace:
        trace = Trace(Problem(id, user_messages(question), "4"), [Step(None, question, letters(question))])
        for spec in specs:
            _add(trace, 0, spec)
        return trace

    return make
