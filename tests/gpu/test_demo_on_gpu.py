"""What `ponder demo` runs, on a GPU: a green suite on a processor once hid that most of its layers did not learn."""

from __future__ import annotations

import importlib.util

import pytest

from audit import gradients, preflight_faults
from ponder.errors import ModelError
from ponder.models import smollm2

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _model() -> None:
    try:
        smollm2.ensure_converted()
    except ModelError as why:
        pytest.skip(str(why))


def test_the_gradient_of_the_demos_recipe_is_the_cpus() -> None:
    if importlib.util.find_spec("peft") is None:
        pytest.skip("adapters need peft")
    result = list(gradients.check())
    assert len(result) == 8 and [f for f in result if f.passed is not True] == []


def test_checks_before_a_run_have_no_false_alarms_and_find_every_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_faults, "RUNS", {"bfloat16": 24, "float32": 12})
    assert [f for f in preflight_faults.check() if f.passed is not True] == []
