"""`ponder doctor`: what is installed, what the machine can do, and the command that fixes what is missing."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from ponder.cli.progress import print_json

# What pyproject.toml names, and the name each is imported by where that differs.
CORE = (
    "torch", "numpy", "safetensors", "tokenizers", "jinja2", "rich", "scipy", "matplotlib", "gguf", "math-verify",
    "huggingface_hub", "pyyaml",
)  # fmt: skip
EXTRAS = {
    "hf": ("transformers", "peft", "datasets"),
    "tasks": ("reasoning-gym",),
    "constraints": ("google-re2", "jsonschema"),
    "grammar": ("llguidance",),
    "data": ("datasketch",),
    "pictures": ("pillow",),
    "proofs": ("z3-solver",),
    "ray": ("ray",),
    "serve": ("starlette", "uvicorn", "httptools", "uvloop"),
    "textarena": ("textarena",),
    "track": ("tensorboard", "trackio", "wandb"),
    "vllm": ("vllm",),
}
MODULE_NAMES = {"pillow": "PIL", "pyyaml": "yaml"}  # where a package is imported by another name
MIN_DISK_BYTES = 3e9  # bytes: the demo's model, its checkpoints and its optimiser's state


@dataclass(frozen=True)
class DoctorCheck:
    """One thing that was looked at. `fix`: the command that would put it right; `core`: nothing works without it."""

    name: str
    value: str
    ok: bool = True
    fix: str = ""
    core: bool = False


def doctor(*, json: Annotated[bool, "the findings as one JSON object"] = False) -> int:
    """What is installed, what this machine can do, and what to do about the rest."""
    findings = [
        *software_checks(),
        *machine_checks(),
        *sandbox_check(),
        *disk_checks(),
        *model_checks(),
        *data_checks(),
    ]
    healthy = all(f.ok for f in findings if f.core)
    if json:
        print_json({"ok": healthy, "findings": [asdict(f) for f in findings]})
    else:
        print("\n".join(doctor_lines(findings)))
    return 0 if healthy else 2


def doctor_lines(findings: list[DoctorCheck]) -> list[str]:
    width = max(len(f.name) for f in findings)
    out = [f"{'ok' if f.ok else '!!' if f.core else '--'}  {f.name:<{width}}  {f.value}" for f in findings]
    missing = [f for f in findings if f.fix]
    if missing:
        out += ["", "to fix:" if any(f.core for f in missing) else "optional:"]
        out += [f"    {f.fix:<58} # {f.name}" for f in sorted(missing, key=lambda f: not f.core)]
    return out


def software_checks() -> Iterator[DoctorCheck]:
    from ponder import __version__

    new = sys.version_info >= (3, 11)
    fix = "" if new else "make PYTHON=/path/to/python3.11"
    yield DoctorCheck("python", f"{platform.python_version()}, {platform.platform()}", new, fix, core=True)
    yield DoctorCheck("ponder", f"{__version__}, {Path(__file__).parents[1]}")
    for name in CORE:
        installed = version(name)
        works = installed is not None and importable(name)
        value = (
            installed if works else "not installed" if installed is None else f"{installed}, but it cannot be imported"
        )
        yield DoctorCheck(name, value or "", works, "" if works else f"pip install --force-reinstall {name}", core=True)
    for extra, names in EXTRAS.items():
        have = {name: installed for name in names if (installed := version(name))}
        whole = len(have) == len(names)
        value = ", ".join(f"{name} {have.get(name, 'not installed')}" for name in names)
        yield DoctorCheck(f"[{extra}]", value, whole, "" if whole else f"pip install 'ponder[{extra}]'")


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def importable(package: str) -> bool:
    try:
        importlib.import_module(MODULE_NAMES.get(package, package.replace("-", "_")))
    except Exception:  # whatever a broken installation raises
        return False
    return True


def machine_checks() -> Iterator[DoctorCheck]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield DoctorCheck("cores", f"{cores} of {os.cpu_count()}, {platform.machine()}")
    if (size := memory_bytes()) is not None:
        roomy = size > 6e9
        yield DoctorCheck("memory", f"{size / 2**30:.1f} GiB" + ("" if roomy else "; the demo needs about 6"), roomy)
    if not importable("torch"):
        return
    import torch

    from ponder.nets import hardware

    threads = hardware.set_threads()
    source = "OMP_NUM_THREADS" if "OMP_NUM_THREADS" in os.environ else "the fastest that was tried"
    yield DoctorCheck("threads", f"{threads} ({source})")
    plain = hardware.matmul_rate(torch.float32, 0.2)
    yield DoctorCheck("float32", f"{plain / 1e9:.0f} GFLOP/s")
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        brain = hardware.matmul_rate(torch.bfloat16, 0.2)
        yield DoctorCheck("bfloat16", f"{brain / 1e9:.0f} GFLOP/s, {brain / plain:.1f} times float32")
    else:
        yield DoctorCheck("bfloat16", "this processor only emulates it, slowly; float32 is used")
    yield accelerator_check(torch)


def accelerator_check(torch: Any) -> DoctorCheck:
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        brain = "" if torch.cuda.is_bf16_supported() else ", no bfloat16"
        return DoctorCheck(
            "gpu", f"{torch.cuda.device_count()} x {card.name}, {card.total_memory / 2**30:.0f} GiB{brain}"
        )
    if torch.backends.mps.is_available():
        return DoctorCheck("gpu", "Apple MPS, used where --device mps asks for it")
    if shutil.which("nvidia-smi"):
        fix = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"
        return DoctorCheck("gpu", "an NVIDIA driver is here, but this torch was built without CUDA", False, fix)
    return DoctorCheck("gpu", "none; everything runs on the processor")


def sandbox_check() -> Iterator[DoctorCheck]:
    from ponder.verify.sandbox import detect_isolation

    isolation = detect_isolation()
    yield DoctorCheck("sandbox", str(isolation), isolation.isolation is not None)


def memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # Windows has no sysconf
        return None


def disk_checks() -> Iterator[DoctorCheck]:
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    writable = os.access(here, os.W_OK)
    value = f"{free / 1e9:.1f} GB free in {here}" + ("" if writable else ", which cannot be written")
    fix = "" if writable else "cd ~  # or give --run"
    if writable and free < MIN_DISK_BYTES:
        fix = "rm -r runs/...  # runs that are no longer needed"
    yield DoctorCheck("disk", value, writable and free >= MIN_DISK_BYTES, fix, core=not writable)
    if not importable("torch"):
        return
    from ponder.cache_folder import cache_folder

    folder = cache_folder()
    nearest = next((p for p in (folder, *folder.parents) if p.exists()), Path("/"))
    writable = nearest.is_dir() and os.access(nearest, os.W_OK)
    fix = "" if writable else "export PONDER_CACHE=/some/folder"
    yield DoctorCheck("cache", f"{folder}" + ("" if writable else ", which cannot be written"), writable, fix)


def model_checks() -> Iterator[DoctorCheck]:
    if not importable("torch"):
        return
    from ponder.errors import ModelError
    from ponder.models import smollm2

    if (smollm2.converted_folder() / "config.json").is_file():
        yield DoctorCheck("smollm2", "ready")
        return
    try:
        smollm2.packaged_gguf()
    except ModelError as why:
        problem, _, fix = str(why).partition(": ")
        yield DoctorCheck("smollm2", problem, False, fix)
    else:
        yield DoctorCheck("smollm2", "installed; converted when it is first used, in about ten seconds")


def data_checks() -> Iterator[DoctorCheck]:
    from ponder.errors import TaskError
    from ponder.tasks import GSM8K, MAWPS, SVAMP

    folder = os.environ.get("PONDER_DATA")
    if not folder:
        fix = "export PONDER_DATA=/folder/with/gsm8k/and/others"
        yield DoctorCheck("PONDER_DATA", "not set: gsm8k, svamp and mawps need it", False, fix)
        return
    yield DoctorCheck("PONDER_DATA", folder, Path(folder).is_dir())
    for task in (GSM8K(), SVAMP(), MAWPS()):
        try:
            yield DoctorCheck(task.name, f"{len(task.train):,} training and {len(task.test):,} test problems")
        except TaskError as why:
            yield DoctorCheck(task.name, str(why), False)
