"""Checkpoints of a run: a Hugging Face folder anybody can load, the optimiser beside it, and where the run was.

    checkpoints/step-000020/model/...  optimiser.safetensors  state.json

Written beside and renamed, so a checkpoint is whole or absent; only the newest is kept.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ponder.errors import PonderError, RunError
from ponder.nets import hf
from ponder.runs import Run, checkpoints, write_json
from ponder.train.learner import Learner


def save(run: Run, step: int, learner: Learner, tokenizer: Callable[[Path], None]) -> Path:
    """Keep the state after `step` steps; `tokenizer` writes its files into the model's folder."""
    final = run.folder / "checkpoints" / f"step-{step:06d}"
    if final.exists():
        return final
    beside = final.with_name(final.name + ".new")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        hf.save(learner.net, beside / "model")
        tokenizer(beside / "model")
        save_file(learner.masters.state(), beside / "optimiser.safetensors")
        state: dict[str, int | str] = {"step": step, "updates": learner.masters.steps, "skipped": learner.skipped}
        state |= {"threads": torch.get_num_threads(), "dtype": str(learner.net.dtype).removeprefix("torch.")}
        write_json(beside / "state.json", state)
        beside.rename(final)
    except (OSError, SafetensorError) as why:
        shutil.rmtree(beside, ignore_errors=True)
        raise RunError(
            f"cannot save the checkpoint of step {step} in {run.folder}: {why}; the one before is kept"
        ) from None
    for older in checkpoints(run.folder):
        if older != final:
            shutil.rmtree(older, ignore_errors=True)
    return final


def dtype(run: Run, asked: str) -> str:
    """The type to compute in: what the run began with, where it was left to the machine, which may decide otherwise."""
    found = checkpoints(run.folder)
    if asked != "auto" or not found:
        return asked
    try:
        return str(json.loads((found[-1] / "state.json").read_text())["dtype"])
    except (OSError, ValueError, LookupError, TypeError):
        return asked  # `restore` says what is wrong


def restore(run: Run, learner: Learner) -> int:
    """Load the newest checkpoint into the learner; returns how many steps are done (0: a new run)."""
    found = checkpoints(run.folder)
    if not found:
        run.resumed(0)
        return 0
    newest = found[-1]
    try:
        state = json.loads((newest / "state.json").read_text())
        step, threads, learner.skipped = (int(state[key]) for key in ("step", "threads", "skipped"))
        saved = hf.load(newest / "model", learner.net.dtype, learner.net.device)
        learner.net.load_state_dict(saved.state_dict())
        learner.masters.restore(load_file(newest / "optimiser.safetensors"), int(state["updates"]))
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, SafetensorError, PonderError) as why:
        raise RunError(f"the checkpoint {newest} is damaged ({why}): delete it to start again without it") from None
    if learner.net.device.type == "cpu":
        torch.set_num_threads(threads)  # sums in another order would give other bits
    run.resumed(step)
    return step
