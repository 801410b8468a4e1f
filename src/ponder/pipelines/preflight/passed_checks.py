"""Which learners of a run have passed the check of their compiled gradient, and with what.

A resumed run does not repeat it with the same code, compiler, GPU and type. The job is the run's own, and the check of
all parameters at every step (`MasterWeights.check_all_have_gradient`) stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import platform
from pathlib import Path

import torch

import ponder
from ponder.atomic_write import write_atomically
from ponder.runs.cleanup import PASSED_CHECKS_FILE
from ponder.train.learner import Learner

_CODE = ("nets/*.py", "train/*.py")  # what a gradient is computed by


def gradient_facts(learner: Learner) -> dict[str, str]:
    """What a compiled gradient depends on besides the job."""
    device = learner.net.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    versions = {package: "" for package in ("torch", "triton")}
    for package in versions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "python": platform.python_version(), **versions, "device": name, "code": _code_digest(),
        "dtype": str(learner.net.dtype), "fp8": str(learner.fp8),
    }  # fmt: skip


def has_passed(folder: Path, name: str, facts: dict[str, str]) -> bool:
    """Whether the learner of this name has passed with the same facts."""
    try:
        return bool(json.loads((folder / PASSED_CHECKS_FILE).read_text("utf-8"))[name] == facts)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def record_passed(folder: Path, name: str, facts: dict[str, str]) -> None:
    """Keep it. Where it cannot be written, the next process checks again."""
    passed: dict[str, dict[str, str]] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        passed |= json.loads((folder / PASSED_CHECKS_FILE).read_text("utf-8"))
    with contextlib.suppress(OSError):
        write_atomically(folder / PASSED_CHECKS_FILE, json.dumps(passed | {name: facts}, indent=1) + "\n")


def _code_digest() -> str:
    digest, home = hashlib.sha256(), Path(ponder.__file__).parent
    for file in sorted(file for pattern in _CODE for file in home.glob(pattern)):
        digest.update(f"{file.relative_to(home)} ".encode() + file.read_bytes())
    return digest.hexdigest()
