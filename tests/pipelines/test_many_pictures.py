"""Jobs whose pictures are more than the table keeps besides those in use."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from models.picture_policies import MODEL, TASK
from ponder.nets.picture_table import PictureTable, table_for
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.reason.strategies import Chain
from ponder.runs import read_metrics, read_traces
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

TEMPLATE = "{{- messages[-1].content }}"
COMMON: Any = {"template": TEMPLATE, "device": "cpu", "dtype": "float32"}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> PictureTable:
    """Of the model's tiles; it keeps only what is in use."""
    assert MODEL.vision is not None
    made = table_for(MODEL.vision.config().tokens)
    monkeypatch.setattr(made, "max_unused_bytes", 0)
    return made


def test_evaluation_keeps_the_pictures_of_problems_in_flight(table, tmp_path, monkeypatch):
    most = Counter()
    add = PictureTable.add

    def counted(self, *args):
        most["tiles"] = max(most["tiles"], len(self._tiles))
        return add(self, *args)

    monkeypatch.setattr(PictureTable, "add", counted)
    job = Evaluate(TASK, MODEL, strategy=Chain(Sampling(max_tokens=2)), limit=24, max_concurrency=4, **COMMON)
    report = job(tmp_path / "run")
    assert report.num_problems == 24
    assert Counter(trace.failed for _, trace in read_traces(tmp_path / "run")) == {"": 24}
    assert most["tiles"] < 12, "finished traces keep their pictures"


def test_rl_keeps_the_pictures_of_a_step(table, tmp_path):
    job = RL(
        TASK, MODEL, algorithm=GRPO(), optimizer=AdamW(lr=1e-3), sampling=Sampling(max_tokens=2), group_size=2,
        problems_per_step=4, epochs_per_batch=2, steps=2, preflight=False, **COMMON,
    )  # fmt: skip
    job(tmp_path / "run")
    assert len(read_metrics(tmp_path / "run")) == 2
