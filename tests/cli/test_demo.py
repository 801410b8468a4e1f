"""The demo, from a very small model: measured, trained, measured again, exported, asked; and again without work."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ponder.cli import demo, recipe_files
from ponder.cli.graceful_stop import GracefulStop
from ponder.models.load import load_policy
from ponder.models.tokenizer import Tokenizer
from ponder.pipelines.rl import RL
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics
from ponder.types import Sampling


def job(here: Path, model: Path) -> RL:
    made = recipe_files.build_job(recipe_files.load_recipe(here / "tiny.py"), {"steps": 2})
    assert isinstance(made, RL)
    return replace(made, model=str(model), strategy=Samples(8, Sampling(max_tokens=3, stop=("\n", "is"))))


def test_the_trained_model_is_asked_as_it_was_trained(here: Path, model: Path) -> None:
    made = recipe_files.load_recipe(recipe_files.find_recipe("addition"))()
    assert demo._question(made, 27, 58) == "Addition: 27 + 58 ="
    assert demo._question(job(here, model), 27, 58) == "What is 27 + 58?"


def test_demo(here: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.run_demo(job(here, model), Path("out"), GracefulStop())
    output = capsys.readouterr().out
    for text in ("before training", "after training", "change ", "paired", "reward ", "asked     What is 27 + 58?"):
        assert text in output
    for text in ("answered ", "whole ", "GiB at most", "ponder solve 'What is 31 + 46?' --model out/model"):
        assert text in output
    assert Path("out/curve.png").read_bytes().startswith(b"\x89PNG")
    assert {p.name for p in Path("out").iterdir()} == {"before", "train", "after", "model", "curve.png"}
    weights = Path("out/model/model.safetensors").stat()
    for part in ("before", "after"):
        assert '"stop": ["\\n", "is"]' in json.dumps(json.loads(Path("out", part, "job.json").read_text()))
    old, new = Tokenizer.from_folder(model), Tokenizer.from_folder("out/model")
    newline = int(old.encode("\n", add_special_tokens=False)[0])
    assert newline not in old.eos and new.eos == (*old.eos, newline), "'is' has two tokens: no end token"
    assert load_policy("out/model").engine.eos == {*old.eos, newline}

    demo.run_demo(job(here, model), Path("out"), GracefulStop(), json=True)
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert done["event"] == "done" and len(done["rewards"]) == 2 and done["answer"]["n"] == 8
    assert set(done["seconds"]) == {"load", "before", "train", "after", "whole"}
    assert len(read_metrics("out/train")) == 2, "nothing was trained again"
    assert Path("out/model/model.safetensors").stat().st_mtime_ns == weights.st_mtime_ns
    assert set(done["stored_stages"]) == {"before", "train", "after"} and "stored" in done["stored_stages"]["train"]

    os.utime("out/model/config.json", (0, 0))  # as after another training in the same place
    demo.run_demo(job(here, model), Path("out"), GracefulStop())
    assert capsys.readouterr().out.count("stored    result of ") == 3
    assert Path("out/model/model.safetensors").stat().st_mtime_ns > weights.st_mtime_ns
