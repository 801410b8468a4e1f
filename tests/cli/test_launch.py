"""Jobs in their run directories: what is left after a failure, and what goes on after a correction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PIPELINE = '''
"""Learn a little, then more from a file, then measure."""

from dataclasses import replace

from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Chain
from ponder.tasks import Addition
from ponder.types import Sampling

TASK = Addition(digits=1, test_size=4)
FRESH = ScratchModel(alphabet="0123456789+? Whatis", width=16, layers=1, heads=2, context=64)


def recipe(start: str = "", steps: int = 2, data: str = "data.jsonl", tokens: int = 3) -> Stages:
    learn = FineTune(TASK, start or FRESH, "{{ messages[-1].content }}", steps=2, batch_size=2)
    return Stages((
        Stage("learn", learn),
        Stage("more", replace(learn, model="stage:learn", data=data, steps=steps)),
        Stage("measure", Evaluate(TASK, "stage:more", strategy=Chain(Sampling(max_tokens=tokens)))),
    ))
'''


@pytest.fixture
def pipeline(here: Path) -> Path:
    (here / "many.py").write_text(PIPELINE)
    (here / "data.jsonl").write_text('{"prompt": "What is 1+1?", "completion": "2"}\n')
    return here


def test_stages_of_which_none_has_begun_leave_nothing(ponder, pipeline: Path):
    output = ponder("run", "many.py", "--start", "runs/typo")
    assert output.code == 2 and "stage 'learn': there is no run directory runs/typo" in output.err
    assert not Path("runs/many").exists()
    (pipeline / "tiny.py").rename(pipeline / "many.py")  # another job altogether
    assert ponder("run", "many.py", "--steps", "1").code == 0


def test_a_stopped_pipeline_goes_on_after_a_correction(ponder, pipeline: Path):
    output = ponder("run", "many.py", "--data", "typo.jsonl")
    assert output.code == 2 and "stage 'more': cannot read the conversations in typo.jsonl" in output.err
    learned = Path("runs/many/learn/job.json").stat().st_mtime_ns
    output = ponder("run", "many.py", "--steps", "1", "--tokens", "2", "--json")
    assert output.code == 0, output.err
    assert list(json.loads(output.out.splitlines()[-1])["stages"]) == ["learn", "more", "measure"]
    assert Path("runs/many/learn/job.json").stat().st_mtime_ns == learned
    output = ponder("run", "many.py", "--steps", "3", "--tokens", "2")
    assert output.code == 2 and output.err.count("\n") == 1 and len(output.err) < 400
    assert "stage 'more' of runs/many began with other settings (steps: 1 -> 3)" in output.err
    assert "remove runs/many/more runs/many/measure" in output.err
    assert ponder("run", "runs/many").code == 0, "the stages as they were accepted"


def test_training_that_is_done_is_told_without_its_data(ponder, pipeline: Path):
    Path("one.py").write_text(
        PIPELINE.replace("FineTune(TASK, start", "return FineTune(data, start").replace("learn = ", "")
    )
    assert ponder("run", "one.py").code == 0
    Path("data.jsonl").unlink()
    output = ponder("run", "one.py")
    assert output.code == 0 and "after 2 steps" in output.out, output.err
    output = ponder("run", "one.py", "--run", "runs/new")
    assert output.code == 2 and "cannot read the conversations" in output.err
