from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ponder.engine.graph_capture import shared_pool


@dataclass
class Graph:
    memory: tuple[int, int]

    def pool(self) -> tuple[int, int]:
        return self.memory


def test_a_graph_shares_memory_with_those_that_are_left() -> None:
    graphs: dict[str, Any] = {"a": Graph((0, 1)), "b": Graph((0, 1))}
    assert shared_pool(graphs.values()) == (0, 1)
    del graphs["a"]
    assert shared_pool(graphs.values()) == (0, 1)
    graphs.clear()
    assert shared_pool(graphs.values()) is None
