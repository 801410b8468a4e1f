"""Random traces as hypothesis draws them, and what makes two of them equal to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ponder.trace_json import trace_to_json
from ponder.types import Cost, Problem, Score, Step, Trace, ids, user_messages

TEXTS = st.text(st.characters(codec=None), max_size=8)  # half characters (surrogates) too
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
BITS = st.integers(0, 2**32 - 1)  # of any float32: every NaN, infinities, both zeros


def floats(length: int) -> st.SearchStrategy[Any]:
    return arrays.arrays(np.uint32, length, elements=BITS).map(lambda bits: bits.view(np.float32))


@st.composite
def steps(draw: st.DrawFn, index: int) -> Step:
    tokens = draw(st.lists(st.integers(-(2**31) + 1, 2**31 - 1) | st.integers(0, 60_000), max_size=6))
    count = len(tokens)
    return Step(
        draw(st.none() | st.integers(0, index - 1)) if index else None,
        draw(TEXTS),
        ids(tokens),
        draw(st.none() | floats(count)),
        draw(st.sampled_from([None, "eos", "stop", "length"])),
        version=draw(st.integers(0, 3)),
        scores=draw(
            st.dictionaries(
                TEXTS, st.builds(Score, st.none() | NUMBERS, TEXTS, steps=st.tuples() | st.tuples(NUMBERS)), max_size=2
            )
        ),
        visits=draw(st.integers(0, 9)),
        value=draw(NUMBERS),
        prior=draw(NUMBERS),
        advantages=draw(st.none() | floats(count)),
        notes=draw(st.dictionaries(TEXTS, floats(count), max_size=2)),
        cites=tuple(draw(st.lists(st.integers(0, max(0, index - 1)), max_size=2))),
        pruned=draw(TEXTS),
        meta=draw(st.booleans()),
        last=draw(st.booleans()),
    )


@st.composite
def random_traces(draw: st.DrawFn) -> Trace:
    problem = Problem(draw(TEXTS), user_messages(draw(TEXTS)), draw(TEXTS | st.none()), {"kind": draw(TEXTS)})
    made = [draw(steps(i)) for i in range(draw(st.integers(1, 4)))]
    cost = Cost(draw(st.integers(0, 9)), seconds=draw(st.floats(0, 1e9)))
    chosen = draw(st.none() | st.integers(0, len(made) - 1))
    return Trace(problem, made, cost, chosen, draw(st.booleans()), draw(st.booleans()), draw(TEXTS))


def bits(trace: Trace) -> Any:
    """Plain data that differs where two traces differ in a single bit."""
    return trace_to_json(trace, lambda name, array: (name, str(array.dtype), array.tobytes()))
