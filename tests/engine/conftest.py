from __future__ import annotations

import pytest

from ponder.engine import runner_factory


@pytest.fixture
def torch_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks decode in torch, step by step, as where there is no C compiler."""
    monkeypatch.setattr(runner_factory, "load_library", lambda: None)
