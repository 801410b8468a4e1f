"""Values that a run directory holds, as JSON of bounded size: a stranger's may be deep, huge, or no number at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_DEPTH, MAX_ITEMS, MAX_CHARS = 12, 1000, 1 << 16
MAX_NUMBER = 1e300
DECIMALS = 6
CUT = "…"


def plain_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """The value with nothing deeper, longer or larger than the limits; NaN and infinity become None."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return cut_text(value, MAX_CHARS)
    if isinstance(value, int | float):
        return finite(value)
    if depth <= 0:
        return CUT
    if isinstance(value, Mapping):
        items = list(value.items())[:MAX_ITEMS]
        return {cut_text(str(key), 200): plain_json(each, depth - 1) for key, each in items}
    if isinstance(value, Sequence):
        return [plain_json(each, depth - 1) for each in value[:MAX_ITEMS]]
    return cut_text(str(value), MAX_CHARS)


def cut_text(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars] + CUT


def finite(value: Any) -> float | int | None:
    """A number that JSON and JavaScript can hold; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) and abs(value) < MAX_NUMBER else None
    except OverflowError:
        return None


class RoundedNumbers(list[float | None]):
    """Numbers with `DECIMALS` decimals; None where there is none. `to_json` writes them faster than other lists."""

    @classmethod
    def of(cls, values: NDArray[Any]) -> RoundedNumbers:
        """What is not finite becomes None."""
        rounded = np.round(values.astype(np.float64), DECIMALS)
        out = cls(rounded.tolist())
        for i in np.flatnonzero(~np.isfinite(rounded)).tolist():
            out[i] = None
        return out

    def encode(self) -> str:
        """As JSON. A number is read back as the same one."""
        numbers = tuple(math.nan if value is None else value for value in self)
        return f"[{(f'%.{DECIMALS}f,' * len(numbers) % numbers)[:-1].replace('nan', 'null')}]"


def to_json(value: Any) -> bytes:
    """In ASCII, so that half a character in a model's text is no error. Long columns of numbers are written at once."""
    if not isinstance(value, dict) or not any(type(each) is RoundedNumbers for each in value.values()):
        return _dumps(value).encode()
    parts = (f"{_dumps(str(k))}:{v.encode() if type(v) is RoundedNumbers else _dumps(v)}" for k, v in value.items())
    return f"{{{','.join(parts)}}}".encode()


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
