"""Compiled products with packed matrices against float64."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import torch
from torch import Tensor

from fakes import run_async, tiny_decoder
from ponder.engine import cpu_packed_weights, cpu_panels
from ponder.engine.cpu_panels import Panels
from ponder.engine.engine import Engine
from ponder.engine.request import Request
from ponder.nets import cpu_kernels
from ponder.types import Sampling, ids

SIZES = [(1, 7), (48, 16), (97, 100), (24, 1024), (53, 2500)]  # outputs, inputs


@pytest.fixture(autouse=True, params=["", "-mno-avx512f"])
def use_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this processor, and as one without AVX-512 has them."""
    monkeypatch.delenv("PONDER_CPU_KERNELS", raising=False)
    if not cpu_panels.are_fast(torch.float32):
        pytest.skip("no C compiler, no OpenMP, or another processor")
    if request.param:
        with monkeypatch.context() as patch:
            patch.setattr(cpu_kernels, "_FLAGS", (*cpu_kernels._FLAGS, request.param))
            library = cpu_kernels.compile_kernels.__wrapped__("cpu_layers.c", torch.float32)
        assert library is not None
        monkeypatch.setattr(cpu_panels, "load_kernels", lambda source, dtype: library)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("rows", [1, 3, 8, 64, 301])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("biased", [False, True])
def test_product_equals_float64(rows: int, size: tuple[int, int], biased: bool) -> None:
    outputs, inputs = size
    x, weight, bias = normal(rows, inputs), normal(outputs, inputs), normal(outputs) if biased else None
    ours = Panels(weight).multiply(x, bias)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-6 * inputs)


def test_numbers_are_float32_whatever_torchs_own_defaults_are() -> None:
    x, weight = normal(3, 16), normal(48, 16)
    exact = Panels(weight).multiply(x)
    torch.set_default_dtype(torch.bfloat16)
    try:
        panels = Panels(weight)
    finally:
        torch.set_default_dtype(torch.float32)
    assert panels._numbers.dtype == torch.float32 and torch.equal(panels.multiply(x), exact)


def test_compiled_files_call_each_other_and_nobody_else() -> None:
    """Whatever functions other libraries of the process have."""
    library = cpu_panels.load_products(torch.float32)
    if library is None or shutil.which("readelf") is None:
        pytest.skip("no readelf")
    looked_up = subprocess.run(["readelf", "-rW", library._name], capture_output=True, text=True, check=True).stdout
    assert not re.findall(r"\b(multiply|rotate|attend|add_norm|gate_and_multiply)\b", looked_up)


@pytest.mark.parametrize("size", SIZES)
def test_row_does_not_depend_on_others_or_on_threads(size: tuple[int, int]) -> None:
    outputs, inputs = size
    x, panels = normal(150, inputs), Panels(normal(outputs, inputs))
    together = panels.multiply(x)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            assert torch.equal(panels.multiply(x), together)
            for row in (0, 3, 148):
                assert torch.equal(panels.multiply(x[row : row + 1]), together[row : row + 1])
    finally:
        torch.set_num_threads(threads)


def test_product_keeps_shape_and_reads_rows_that_lie_apart() -> None:
    weight = normal(50, 20)
    panels, wide = Panels(weight), normal(2, 3, 40)
    x = wide[..., ::2]
    torch.testing.assert_close(panels.multiply(x), x @ weight.T)
    assert panels.multiply(x[:, :0]).shape == (2, 0, 50)
    torch.testing.assert_close(Panels(weight.T).multiply(normal(2, 50)), normal(2, 50) @ weight)


def test_numbers_that_are_not_finite_stay_in_their_row() -> None:
    x = normal(10, 30)
    x[4, 7] = torch.nan
    found = Panels(normal(60, 30)).multiply(x)
    assert found.isnan().all(1).tolist() == [row == 4 for row in range(10)]


def test_engine_multiplies_with_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_packed_weights, "_MIN_MATRIX_ENTRIES", 1)
    monkeypatch.setattr(cpu_packed_weights, "_TOKENS_BEFORE_PACKING", 0)
    rows, multiply = [], Panels.multiply

    def count_rows(own: Panels, x: Tensor, bias: Tensor | None = None) -> Tensor:
        rows.append(len(x))
        return multiply(own, x, bias)

    monkeypatch.setattr(Panels, "multiply", count_rows)
    engine = Engine(tiny_decoder())
    run_async(engine.generate(Request(ids([5, 6, 7]), Sampling(max_tokens=4, ignore_eos=True), 12, 0)))
    assert 12 in rows


def test_processor_without_wide_vectors_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "_FLAGS", (*cpu_kernels._FLAGS, "-mno-avx512f", "-mno-avx2"))
    library = cpu_kernels.compile_kernels.__wrapped__("cpu_layers.c", torch.float32)
    monkeypatch.setattr(cpu_panels, "load_kernels", lambda source, dtype: library)
    assert library is not None and not cpu_panels.are_fast(torch.float32)


def test_other_dtypes_are_left_to_torch() -> None:
    assert not cpu_panels.are_fast(torch.bfloat16) and not cpu_panels.are_fast(torch.float64)
