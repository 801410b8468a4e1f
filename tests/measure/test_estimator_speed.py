"""What was promised about time, and that the bench compares two sides that compute the same."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import estimators
import harness
from ponder.measure import selection_curve


def test_a_hundred_subsets_of_64_sizes_of_a_thousand_problems() -> None:
    rng = np.random.default_rng(0)
    answers = rng.integers(0, 12, size=(1000, 64)).tolist()
    right = [[float(a == 3) for a in group] for group in answers]
    start = time.thread_time()
    curve = selection_curve("majority", answers, right, list(range(1, 65)))
    assert time.thread_time() - start < 10  # one or two
    assert curve.mean[0] == pytest.approx(1 / 12, abs=0.01) and curve.sd is not None and curve.sd.max() < 0.02


def test_the_bench_compares_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(estimators, "report", partial(harness.report, results=tmp_path))
    sizes = {"problems": 12, "samples": 40, "k": 20, "votes": 6, "subsets": 60, "loop-problems": 12}
    monkeypatch.setattr(sys, "argv", ["bench", *(word for k, v in sizes.items() for word in (f"--{k}", str(v)))])
    estimators.main()
    kept = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [k["name"] for k in kept] == ["estimators_coverage", "estimators_votes"]
    assert all(k["ours"] > 0 and None not in k["peers"].values() for k in kept)
