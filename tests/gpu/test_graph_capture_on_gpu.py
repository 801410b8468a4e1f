"""Graphs are captured while another thread uses every stream that torch hands out."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from ponder.engine.gpu_memory import RemappableMemory  # noqa: E402
from ponder.engine.graph_capture import capture  # noqa: E402

DEVICE = torch.device("cuda")


def test_another_thread_in_all_streams_of_the_pool():
    x, ended, failed = torch.ones(64, device=DEVICE), threading.Event(), []

    def other():
        try:
            while not ended.is_set():
                for priority in (0, -1):
                    with torch.cuda.stream(torch.cuda.Stream(DEVICE, priority=priority)) as _:
                        torch.ones(64, device=DEVICE).mul_(2)
                        torch.cuda.current_stream(DEVICE).synchronize()
        except BaseException as why:
            failed.append(why)

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    try:
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            y = x.clone()
            torch.cuda.current_stream(DEVICE).synchronize()
            with capture(graph, DEVICE):
                for _ in range(200):
                    y.add_(x)
            graph.replay()
            assert (y == 201).all()
    finally:
        ended.set()
        thread.join(10)
    assert not failed


def test_garbage_is_collected_after_the_capture():
    class Cycle:
        def __init__(self):
            self.me, self.memory = self, RemappableMemory(1 << 20, DEVICE)

    x, graph = torch.ones(64, device=DEVICE), torch.cuda.CUDAGraph()
    y = torch.zeros(64, device=DEVICE)
    torch.cuda.current_stream(DEVICE).synchronize()
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        made = Cycle()
        with capture(graph, DEVICE):
            del made
            [[] for _ in range(1000)]  # would begin a collection
            y.add_(x)
    finally:
        gc.set_threshold(*before)
    graph.replay()
    assert (y == 1).all()
    assert gc.isenabled()
