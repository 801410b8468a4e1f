"""What a run began with: versions, machine, commit, and fingerprints of everything that its result depends on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ponder.errors import RunError
from ponder.runs.symlinks import refuse_symlinks

INPUTS_KEY = "inputs"  # in environment.json: fingerprints by name
MISSING_KEY = "missing"  # in environment.json: inputs that were not found the last time
CODE_PREFIX = "the code of "  # begins the name of an input that is a module
MAX_LISTED_DIFFERENCES = 4  # differences that a message names
_LIBRARIES = ("ponder", "torch", "numpy", "safetensors", "tokenizers", "transformers")


def check_inputs_unchanged(folder: Path, now: Mapping[str, str], job_changed: bool) -> list[str]:
    """Raise if an input of a run is not what it began with. Returns inputs that are missing now: an error of the job
    that reads one will say so.

    A new module is a change, unless the job itself changed. Other inputs may be new: a text happens to name a file.
    """
    environment = read_environment(folder)
    began = environment.get(INPUTS_KEY)
    if not isinstance(began, dict):
        raise RunError(
            f"{folder} was written by an earlier version, without fingerprints of its inputs, so it cannot be checked "
            "whether they changed: give another --run"
        )
    new = [name for name in now if name not in began and name.startswith(CODE_PREFIX) and not job_changed]
    changed = [name for name, mark in now.items() if began.get(name, mark) != mark] + new
    if changed:
        time_text = environment.get("time")
        when = f" ({time_text[:16].replace('T', ' ')})" if isinstance(time_text, str) else ""
        more = f" and {len(changed) - MAX_LISTED_DIFFERENCES} more" if len(changed) > MAX_LISTED_DIFFERENCES else ""
        raise RunError(
            f"{', '.join(changed[:MAX_LISTED_DIFFERENCES])}{more} changed since {folder} began{when}, "
            "and its results are "
            "of the old state: give another --run, or restore the old state"
        )
    return [name for name in began if name not in now]


def read_environment(folder: str | Path) -> dict[str, Any]:
    """What a run began with; empty if the file cannot be read."""
    refuse_symlinks(folder)
    try:
        environment = json.loads((Path(folder) / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return environment if isinstance(environment, dict) else {}


def describe_environment() -> dict[str, Any]:
    """What a reader needs to run this again: versions, machine, commit."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": {name: v for name in _LIBRARIES if (v := _version(name))},
        "commit": git_commit(Path(__file__).parent),
    }


@cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def git_commit(folder: Path) -> str | None:
    """The commit of the checkout that holds this code, with + if it was changed; None outside a checkout. Asked once in
    a process: the code was loaded then.
    """
    try:
        out = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return out.stdout.strip() or None
