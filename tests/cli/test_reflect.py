"""`ponder reflect`: words of doubt, answers taken back, and what it says of a bad request."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ponder.pipelines.harvest import Harvest
from ponder.runs import Run
from ponder.types import Problem, Score, Step, Trace, ids, user_messages

SECOND = "2 + 2 = 5\nWait, that is wrong.\n#### 4"


@pytest.fixture
def doubts(tmp_path: Path) -> Path:
    with Run(tmp_path / "run", Harvest(("x",))) as run:
        for step, text in enumerate(["#### 4", SECOND, SECOND]):
            trace = Trace(Problem(f"p/{step}", user_messages("2+2"), "4"), [Step(None, "2+2", ids([1]))])
            trace.add(Step(0, text, ids([2]), np.zeros(1, np.float32), "eos", scores={"accuracy": Score(1.0)}))
            run.write_traces(step, [trace])
    return tmp_path / "run"


def test_the_first_that_take_something_back_are_shown(ponder, doubts: Path):
    output = ponder("reflect", doubts, "--show", "1")
    assert output.code == 0 and "0.0 % in the first tenth of the steps, 100.0 % in the last" in output.out
    assert (
        "1 shown below" in output.out and output.out.count("Wait, that is wrong") == 1 and "step 1, p/1" in output.out
    )
    data = json.loads(ponder("reflect", doubts, "--json", "--show", "0").out)
    assert data["corrections"] == [] and data["shares"] == {"0": 0.0, "1": 1.0, "2": 1.0}


def test_bad_requests(ponder, doubts: Path, tmp_path: Path):
    with Run(tmp_path / "stages", Harvest(("x",))):
        pass
    for argv, wanted in (
        ((tmp_path / "nowhere",), "not a run directory"),
        ((tmp_path / "stages",), "holds no traces"),
        ((doubts, "--scorer", "accurcy"), "Did you mean 'accuracy'"),
        ((doubts, "--show", "-1"), "--show is -1"),
    ):
        output = ponder("reflect", *argv)
        assert output.code == 2 and wanted in output.err, (argv, output.err)
