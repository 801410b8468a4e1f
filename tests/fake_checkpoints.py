"""Checkpoints with made-up content that follows from their step, so that all of it can be checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ponder.runs import Run, newest_checkpoint
from ponder.train.checkpoint import CheckpointWriter, load_latest

FILES = ("learner.safetensors", "manifest.json", "model/config.json", "model/model.safetensors", "state.json")


@dataclass(frozen=True)
class Job:
    rate: float = 0.1


def tensors(step: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return {
        "moment": torch.randn(5, 7, generator=draw),
        "half": torch.randn(9, generator=draw).bfloat16(),
        "across": torch.randn(4, 6, generator=draw).T,
        "count": torch.tensor(step),
        "random": draw.get_state(),
        "none": torch.zeros(0, 3),
    }


def state(step: int) -> dict[str, Any]:
    return {"dtype": "float32", "threads": 1, "reward": 0.1 + step, "big": 2**80 + step, "order": [3, [], {"é": None}]}


def model(step: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"step": step}))
        save_file({"weight": tensors(step)["moment"]}, folder / "model.safetensors")

    return write


def write_checkpoints(
    run: Run, *steps: int, scores: Mapping[int, float] | None = None, last: int = 2, background: bool = False
) -> None:
    with CheckpointWriter(run, keep=last, background=background) as saver:
        for step in steps:
            saver.save(step, tensors(step), state(step), {"model": model(step)}, (scores or {}).get(step))


def checkpoint_names(run: Run) -> list[str]:
    return sorted(p.name for p in (run.folder / "checkpoints").iterdir())


def verify_newest(run: Run) -> int:
    """The newest step, after every bit of it was checked."""
    result = load_latest(run)
    if result is None:
        return 0
    assert result.folder == newest_checkpoint(run.folder)
    assert result.state == state(result.step) and result.tensors.keys() == tensors(result.step).keys()
    for name, tensor in tensors(result.step).items():
        assert result.tensors[name].dtype == tensor.dtype and torch.equal(result.tensors[name], tensor), name
    assert json.loads((result.folder / "model" / "config.json").read_text()) == {"step": result.step}
    assert torch.equal(
        load_file(result.folder / "model" / "model.safetensors")["weight"], tensors(result.step)["moment"]
    )
    return result.step
