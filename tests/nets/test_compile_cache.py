"""Where compiled kernels are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ponder.nets import compile_cache

VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PONDER_CACHE", str(tmp_path / "cache"))
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what the test sets is taken back
        monkeypatch.delenv(name)


def test_kernels_are_kept_in_the_cache_folder(tmp_path: Path) -> None:
    compile_cache.keep_compiled_kernels()
    folders = [Path(os.environ[name]) for name in VARIABLES]
    assert [p.parent for p in folders] == [tmp_path / "cache" / "compiled"] * 2 and all(p.is_dir() for p in folders)


def test_folders_of_the_user_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    compile_cache.keep_compiled_kernels()
    assert os.environ["TRITON_CACHE_DIR"] == "/mine" and "TORCHINDUCTOR_CACHE_DIR" in os.environ


def test_cache_folder_that_cannot_be_written_leaves_torch_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    compile_cache.keep_compiled_kernels()
    assert not any(name in os.environ for name in VARIABLES)


@pytest.mark.nightly
def test_compiled_code_is_found_again_by_another_process(tmp_path: Path) -> None:
    """On a CPU torch's own compiler stands in for the GPU's: the second process compiles nothing."""
    program = (
        "from ponder.nets.compile_cache import keep_compiled_kernels; keep_compiled_kernels()\n"
        "import torch; from torch._dynamo.utils import counters\n"
        "f = torch.compile(lambda x: (x.sin() * 2 + 1).cos()); f(torch.ones(9))\n"
        "print(counters['inductor']['fxgraph_cache_hit'], counters['aot_autograd']['autograd_cache_hit'])"
    )
    hits = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"torch cannot compile here: {done.stderr.splitlines()[-1]:.100}")
        hits.append(sum(map(int, done.stdout.split())))
    assert hits[0] == 0 and hits[1] > 0
    assert any((tmp_path / "cache" / "compiled" / "inductor").rglob("*"))


@pytest.mark.nightly
def test_block_with_an_autograd_function_is_found_again_with_its_gradient() -> None:
    """Gathered keys are an autograd function, whose graphs torch keeps only where it is told to."""
    program = (
        "import torch; from torch._dynamo.utils import counters\n"
        "from ponder.nets.torch_compile import compile_once; from ponder.nets.varlen_attention import gather_keys\n"
        "def f(x, index): return gather_keys(x.sin(), index).cos()\n"
        "x, index = torch.linspace(0, 1, 6).view(3, 2, 1).requires_grad_(), torch.tensor([0, 1, 0, 2])\n"
        "mine, = torch.autograd.grad(compile_once(f)(x, index).sum(), x)\n"
        "true, = torch.autograd.grad(x.sin()[index].cos().sum(), x)\n"
        "torch.testing.assert_close(mine, true)\n"
        "print(*(counters['aot_autograd']['autograd_cache_' + name] for name in ('hit', 'bypass')))"
    )
    found = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        if done.returncode and "AssertionError" not in done.stderr:
            pytest.skip(f"torch cannot compile here: {done.stderr.splitlines()[-1]:.100}")
        assert not done.returncode, done.stderr
        found.append(tuple(map(int, done.stdout.split())))
    assert found == [(0, 0), (1, 0)]
