"""What every test may use: the folder of public data, two threads, and no GPU unless there is one."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# Small matrix products on busy machines lose time to more threads. Read when torch is first imported.
THREADS = min(2, os.cpu_count() or 1)
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))

# Small networks decode in torch, a token at a time, since tests count steps, interrupt them and look inside;
# tests/engine/test_cpu_decode.py has the compiled ones. PONDER_CPU_KERNELS=1 compiles them for all tests.
os.environ.setdefault("PONDER_CPU_KERNELS", "0")

# On a CPU an engine's cache takes 2 GiB of addresses, which a fork counts though they are not memory, and a process of
# tests has many engines. Read by the programs that tests start, too.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("PONDER_CACHE_GIB", "0.25")

# Where CI is set, pytest writes the whole difference of two values that differ, which for the weights of two runs
# takes hours, and some tests here make values differ on purpose.
os.environ.pop("CI", None)

# No test asks the Hugging Face hub. Those of models by name point the client at a mirror of their own.
os.environ["HF_HUB_OFFLINE"] = "1"

# A slow machine is not a failure, and a test that fails today must fail tomorrow.
settings.register_profile(
    "ponder", deadline=None, derandomize=True, max_examples=100 if os.environ.get("PONDER_FUZZ") else 40
)
settings.load_profile("ponder")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder that PONDER_DATA names; without one the test skips and says so."""
    named = os.environ.get("PONDER_DATA")
    if not named:
        pytest.skip("PONDER_DATA is unset; it names the folder of public data sets")
    folder = Path(named)
    if not folder.is_dir():
        pytest.skip(f"PONDER_DATA names {named}, which is not a folder")
    return folder


@pytest.fixture(autouse=True)
def _torch_state() -> None:
    """What a test draws does not depend on the tests before it."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)
        if torch.get_num_threads() > THREADS:
            torch.set_num_threads(THREADS)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is imported or collected is garbage: it is not searched for any, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class RotatedDir(pytest.Dir):
    """Each process of xdist collects all files. It begins at another one, so that a file whose asserts are rewritten
    by one process is read by the others."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:  # type: ignore[override]
        found = list(super().collect())
        worker, count = os.environ["PYTEST_XDIST_WORKER"], int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = int(worker.removeprefix("gw")) * len(found) // count
        return found[first:] + found[:first]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if path == Path(__file__).parent and "PYTEST_XDIST_WORKER" in os.environ:
        return RotatedDir.from_parent(parent, path=path)
    return None


# Where the longest files are. They start first, so that no process is left alone with one of them at the end.
LONG = (
    "tests/test_docs.py", "tests/pipelines/test_training_over_ranks.py", "tests/train/test_distributed.py",
    "tests/pipelines/test_recipes.py", "tests/verify/sandbox/", "tests/tasks/", "tests/cli/", "tests/engine/",
    "tests/viewer/", "tests/pipelines/", "tests/serve/", "tests/models/",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> tuple[int, Path]:
        return next((i for i, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG)), item.path

    items.sort(key=place)  # the same order in every process
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
