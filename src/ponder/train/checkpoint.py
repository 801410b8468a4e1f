"""Checkpoints of a run: whole or absent, checked when they are read, written while training goes on.

    checkpoints/step-000020/
        model/...            what the caller writes: a Hugging Face folder anybody can load
        learner.safetensors  the tensors and
        state.json           the numbers that training goes on from
        manifest.json        step, score, job, and the size and SHA-256 of each file

It is written as step-000020.new, brought to the disk and renamed; one that is no longer kept is renamed to
step-000020.old and removed. So the plain name means a whole checkpoint, whenever the process or machine stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ponder.errors import Interrupted, PonderError, RunError, UsageError
from ponder.runs import Run, checkpoints, newest_checkpoint

TENSORS, STATE, MANIFEST = "learner.safetensors", "state.json", "manifest.json"
SEAL = "sha256"  # of the manifest itself, over all its other keys


@dataclass(frozen=True)
class Checkpoint:
    step: int
    folder: Path
    state: dict[str, Any]
    tensors: dict[str, Tensor]  # on the CPU


class Saver:
    """Keeps the last `keep` checkpoints of a run and the one with the highest score. Use as a context manager."""

    def __init__(self, run: Run, *, keep: int = 2, background: bool = True) -> None:
        if keep < 1:
            raise UsageError(f"keep is {keep}; at least the newest checkpoint must stay")
        self.folder, self.keep, self.background = run.folder / "checkpoints", keep, background
        self._job = _job(run)
        self._writer = futures.ThreadPoolExecutor(1, "checkpoint")
        self._begun: futures.Future[None] | None = None

    def __enter__(self) -> Saver:
        self._sweep()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._writer.shutdown()
        try:
            self.wait()
        except RunError as failed:
            if error is None or isinstance(error, Interrupted):  # which says that what was done is saved
                raise
            error.add_note(str(failed))

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        folders: Mapping[str, Callable[[Path], None]],
        score: float | None = None,
    ) -> None:
        """Keep the state after `step` steps. In the background, what is given may change as soon as this returns:
        tensors are copied here, and `folders` (writers by name) must hold copies of their own."""
        self.wait()
        final = self.folder / f"step-{step:06d}"
        if final.exists():
            return
        about = {"step": step, "score": score if score is not None and math.isfinite(score) else None}
        text = _plain(state)
        if self.background:
            copies = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
            self._begun = self._writer.submit(self._write, final, about, copies, text, folders)
        else:
            here = {name: t.detach().contiguous() for name, t in tensors.items()}
            self._write(final, about, here, text, folders)

    def wait(self) -> None:
        """Until what was begun is on the disk; raises what went wrong there, once."""
        if self._begun is not None:
            done, _ = futures.wait([self._begun])  # before it is forgotten: a signal may cut this short
            self._begun = None
            done.pop().result()

    def _write(
        self,
        final: Path,
        about: Mapping[str, Any],
        tensors: dict[str, Tensor],
        state: str,
        folders: Mapping[str, Callable[[Path], None]],
    ) -> None:
        beside = final.with_name(final.name + ".new")
        try:
            self._sweep()
            beside.mkdir(parents=True)
            for name, fill in folders.items():
                fill(beside / name)
            (beside / STATE).write_text(state, encoding="utf-8")
            save_file(tensors, beside / TENSORS)
            shutil.copymode(beside / STATE, beside / TENSORS)  # safetensors makes private files
            inside = sorted(beside.rglob("*"))
            files = {p.relative_to(beside).as_posix(): _measure(p) for p in inside if p.is_file()}
            (beside / MANIFEST).write_text(_sealed({**about, "job": self._job, "files": files}), encoding="utf-8")
            for path in (*inside, beside / MANIFEST, beside):
                _to_disk(path)
            beside.rename(final)
            for path in (self.folder, self.folder.parent):
                _to_disk(path)
        except (OSError, SafetensorError, PonderError) as why:
            what = f"cannot save {final} ({getattr(why, 'strerror', None) or why})"
            raise RunError(f"{what}: put that right and run again; the one before is kept") from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        self._prune()

    def _prune(self) -> None:
        found = checkpoints(self.folder.parent)
        scores = [(score, at) for at, folder in enumerate(found) if (score := self._score(folder)) is not None]
        best = [found[at] for _, at in sorted(scores)[-1:]]
        for folder in found[: -self.keep]:
            if folder not in best:
                with contextlib.suppress(OSError):  # the new one is safe; this one goes after the next
                    folder.rename(folder.with_name(folder.name + ".old"))
        self._sweep()

    def _score(self, folder: Path) -> float | None:
        try:
            manifest = _manifest(folder)
        except _Fault:
            return None
        return manifest["score"] if manifest["job"] == self._job else None

    def _sweep(self) -> None:
        """Remove what is half written or half removed."""
        for path in self.folder.glob("step-*"):
            if path.suffix in (".new", ".old"):
                shutil.rmtree(path, ignore_errors=True)


def load(run: Run) -> Checkpoint | None:
    """The newest checkpoint, every byte of it checked; None in a new run."""
    found = checkpoints(run.folder)
    if not found:
        return None
    try:
        step = _checked(found[-1], run)
    except _Fault as fault:
        raise RunError(f"{found[-1]} {fault}: {_way_out(found, run)}") from None
    folder = found[-1]
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    return Checkpoint(step, folder, state, load_file(folder / TENSORS))


def dtype(run: Run, asked: str) -> str:
    """The type to compute in: what the run began with, where it was left to the machine, which may decide otherwise."""
    newest = newest_checkpoint(run.folder)
    if asked != "auto" or newest is None:
        return asked
    try:
        return str(json.loads((newest / STATE).read_text(encoding="utf-8"))["dtype"])
    except (OSError, ValueError, LookupError, TypeError):
        return asked  # `load` says what is wrong


class _Fault(Exception):
    """Why a checkpoint cannot be used, said of it."""


def _checked(folder: Path, run: Run) -> int:
    """The step of a checkpoint in which nothing is wrong."""
    manifest = _manifest(folder)
    step = int(manifest["step"])
    if manifest["job"] != _job(run):
        raise _Fault("was saved by another job")
    if folder.name != f"step-{step:06d}":
        raise _Fault(f"was saved as step {step} and renamed")
    for name, kept in manifest["files"].items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise _Fault(f"is damaged ({MANIFEST}: {name!r} lies outside of it)")
        try:
            found = _measure(folder / name)
        except OSError as why:
            raise _Fault(f"is damaged ({name}: {why.strerror})") from None
        if found["bytes"] != kept["bytes"]:
            raise _Fault(f"is damaged ({name}: it has {found['bytes']} bytes, not {kept['bytes']})")
        if found != kept:
            raise _Fault(f"is damaged ({name}: its checksum differs)")
    return step


def _way_out(found: list[Path], run: Run) -> str:
    """What to do when the newest cannot be used."""
    bad = found[-1:]
    for folder in reversed(found[:-1]):
        try:
            _checked(folder, run)
        except _Fault:
            bad.append(folder)
            continue
        also = f" and {', '.join(f.name for f in bad[1:])}, no better," if bad[1:] else ""
        return f"remove that folder{also} and the run goes on from {folder.name}, which is whole"
    return "there is no earlier one that is whole: remove the folder 'checkpoints' and the run starts again"


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
        manifest: dict[str, Any] = json.loads(text)
        del manifest[SEAL]
        if _sealed(manifest) == text:
            return manifest
        reason = "its checksum differs"
    except OSError as why:
        reason = str(why.strerror)
    except (ValueError, LookupError, TypeError):
        reason = "it is no manifest"
    raise _Fault(f"is damaged ({MANIFEST}: {reason})")


def _sealed(manifest: dict[str, Any]) -> str:
    """The manifest's one spelling, so that a change of any byte shows."""
    plain = json.dumps(manifest, sort_keys=True)
    return json.dumps({**manifest, SEAL: hashlib.sha256(plain.encode()).hexdigest()}, indent=1, sort_keys=True) + "\n"


def _measure(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        # Of hashlib's, SHA-256 is the fastest where the processor helps, as most do.
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _job(run: Run) -> str:
    return hashlib.sha256(json.dumps(run.job, sort_keys=True).encode()).hexdigest()


def _plain(state: Mapping[str, Any]) -> str:
    """As JSON from which the very same comes back."""
    for key, value in state.items():
        try:
            if json.loads(json.dumps({key: value}, allow_nan=False)) == {key: value}:
                continue
            why = "it would come back different"
        except (TypeError, ValueError) as reason:
            why = str(reason)
        what = f"a checkpoint cannot keep the state {key!r}, {value!r:.60} ({why})"
        raise RunError(f"{what}: use finite numbers, text, lists, and dicts with text as keys")
    return json.dumps(state, indent=1) + "\n"


def _to_disk(path: Path) -> None:
    """A file's bytes, or a folder's names, past the cache that a power cut empties."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
