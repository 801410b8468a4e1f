"""Check the inputs of estimators: numbers that may be missing, whole numbers, choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ponder.errors import UnknownName, UsageError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Numbers = Sequence[float] | FloatArray


def to_floats(values: Sequence[float | None] | FloatArray) -> FloatArray:
    """None and NaN are both unknown."""
    try:
        return np.array([math.nan if v is None else float(v) for v in values], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a score or an outcome is no number ({error}); what is unknown is None") from None


def check_choice(kind: str, word: str, words: Any) -> None:
    """Raise unless the setting is one of its choices."""
    if word not in get_args(words):
        raise UnknownName(kind, str(word), get_args(words))


def to_ints(values: ArrayLike, name: str) -> IntArray:
    given = np.asarray(values)
    if given.dtype.kind not in "iub":
        try:
            given = given.astype(np.float64)
        except (TypeError, ValueError):
            given = np.array(np.nan)
        if not np.all(np.isfinite(given) & (given == np.rint(given))):
            raise UsageError(f"{name} must be whole numbers (of samples); for graded scores use mean_of")
    return given.astype(np.int64)
