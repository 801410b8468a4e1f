"""The best assignment of N things to M others, one to one: the Hungarian method."""

from __future__ import annotations

import numpy as np

from ponder.verify.vision.geometry import Array


def best_assignment(values_NM: Array) -> list[tuple[int, int]]:
    """The pairs (n, m), min(N, M) of them, whose values have the largest sum. Work grows as N * N * M for N <= M."""
    count, others = values_NM.shape
    if count > others:
        return sorted((n, m) for m, n in best_assignment(values_NM.T))
    if not count:
        return []
    costs = values_NM.max() - values_NM
    row_price, column_price = np.zeros(count + 1), np.zeros(others + 1)
    row_of = np.zeros(others + 1, int)  # the row that a column is given to; rows and columns count from 1, 0 is nobody
    for row in range(1, count + 1):
        row_of[0], column = row, 0
        slack, came_from, visited = np.full(others + 1, np.inf), np.zeros(others + 1, int), np.zeros(others + 1, bool)
        while row_of[column]:
            visited[column] = True
            here = row_of[column]
            reduced = costs[here - 1] - row_price[here] - column_price[1:]
            shorter = ~visited[1:] & (reduced < slack[1:])
            slack[1:][shorter], came_from[1:][shorter] = reduced[shorter], column
            column = 1 + int(np.argmin(np.where(visited[1:], np.inf, slack[1:])))
            step = slack[column]
            row_price[row_of[visited]] += step
            column_price[visited] -= step
            slack[~visited] -= step
        while column:  # along the path, each column takes the row of the one before
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    return sorted((int(row_of[m]) - 1, m - 1) for m in range(1, others + 1) if row_of[m])
