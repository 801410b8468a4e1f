"""Positions of three components (Qwen2-VL's M-RoPE): of time, row and column.

A text token has three equal numbers. A picture begins where the text before it ends; its tokens keep that time and add
their row and column, and the text after it goes on after the larger of its sides. All of this is a function of the
tokens on a path: each token has three numbers relative to its place in the sequence, and a shift by the pictures that
ended before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ponder.nets.picture_table import PictureTable
from ponder.types import Ids

Integers = NDArray[np.int64]


class PositionShifts(NamedTuple):
    """Of a run of tokens: what to add to their places in the sequence, and by how much the run shifts what follows."""

    own_3T: Integers
    total: int


def position_shifts(local: Ids, table: PictureTable, before: int = 0) -> PositionShifts:
    """Of local ids that follow each other. `before`: the shift by the tokens before them."""
    own_3T, steps_T = np.zeros((3, len(local)), np.int64), np.zeros(len(local), np.int64)
    shown = np.flatnonzero(local < 0)
    if len(shown):
        index, place = table.locate(-1 - local[shown].astype(np.int64))
        rows, columns = table.sides(index)
        own_3T[:, shown] = np.stack([-place, place // columns - place, place % columns - place])
        steps_T[shown] = np.where(place == rows * columns - 1, np.maximum(rows, columns) - rows * columns, 0)
    after_T = before + np.cumsum(steps_T)
    total = int(after_T[-1]) if len(local) else before
    return PositionShifts(own_3T + (after_T - steps_T), total)


def tree_positions(
    local_T: Ids, positions_T: Integers, lengths: Sequence[int], parents: Sequence[int], table: PictureTable
) -> Integers:
    """Positions [3, T] of packed segments, each after its parent."""
    totals: list[int] = []
    out = np.empty((3, len(local_T)), np.int64)
    first = 0
    for length, parent in zip(lengths, parents, strict=True):
        run = slice(first, first + length)
        shifts = position_shifts(local_T[run], table, 0 if parent < 0 else totals[parent])
        out[:, run] = positions_T[run] + shifts.own_3T
        totals.append(shifts.total)
        first += length
    return out
