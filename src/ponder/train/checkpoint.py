"""Checkpoints of a run: complete or absent, verified when read, written while training continues.

    checkpoints/step-000020/
        model/...            what the caller writes: a Hugging Face folder
        learner.safetensors  the tensors (large ones in several files, learner-00001-of-00013.safetensors; of a
                             sharded network each rank's rows, learner.rank-00000-of-00004.safetensors) and
        state.json           the numbers that training resumes from
        manifest.json        step, score, job, and the size and checksums of each file

A finished stage of a recipe keeps no tensors (train/model_only.py).

It is written as step-000020.new. Then the records of its steps are flushed to the disk, and it is renamed. An expired
one is renamed to step-000020.old and removed. So the plain name always means a complete checkpoint, whenever the
process stopped. Its own files are flushed after that, and only then the ones before it expire: if the machine stopped
meanwhile, the checksums say so, it is renamed to step-000020.damaged, and the run resumes from the one before. The next
save removes a damaged one. The first of a run, which has none before it, is flushed before it is renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ponder import full_disk, signals
from ponder.atomic_write import fsync_path
from ponder.errors import Interrupted, PonderError, RunError, UsageError
from ponder.runs import Run, checkpoints
from ponder.runs import manifest as manifests
from ponder.runs.cleanup import is_training_job, without_steps
from ponder.runs.manifest import MODEL_ONLY, ManifestMismatch
from ponder.train.distributed import SINGLE_PROCESS, DataParallelGroup, ShardMesh
from ponder.train.finite_checks import Diverged, check_tensors_finite, invalid_reason
from ponder.train.host_buffers import HostBuffers, HostCopy

TENSORS_FILE, STATE_FILE = "learner.safetensors", "state.json"
SHARD_BYTES = 128 << 20  # of one file of tensors: files are written and checked in parallel
_SAVE_THREADS = 8
_WRITER_NICENESS = 10
_TENSORS_PATTERN = re.compile(r"learner(-[0-9]{5}-of-[0-9]{5})?(\.rank-([0-9]{5})-of-([0-9]{5}))?\.safetensors")
DAMAGED_SUFFIX = ".damaged"
_NOT_LOADED = "?"  # what rank 0 sends in place of a checkpoint's name


@dataclass(frozen=True)
class Checkpoint:
    step: int
    folder: Path
    state: dict[str, Any]
    tensors: dict[str, Tensor]  # on the CPU
    fallback_reason: str = ""  # why a newer one is not used: it is damaged


class CheckpointWriter:
    """Keeps the last `keep` checkpoints of a run and the one with the highest score. Use as a context manager."""

    def __init__(self, run: Run, *, keep: int = 2, background: bool = True) -> None:
        if keep < 1:
            raise UsageError(f"keep is {keep}; at least the newest checkpoint must stay")
        self.folder, self.keep, self.background = run.folder / "checkpoints", keep, background
        self._run, self._job_hash = run, _job_hash(run)
        self._stop_waiting = False  # do not wait for disk space any longer
        self._writer = futures.ThreadPoolExecutor(1, "checkpoint", initializer=_give_way)
        self._pending: futures.Future[None] | None = None
        self._host = HostBuffers()
        self._copy: HostCopy | None = None

    def __enter__(self) -> CheckpointWriter:
        self._remove_partial()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop_waiting = error is not None
        self._writer.shutdown()
        try:
            self.wait()
        except (RunError, Diverged) as failed:
            if error is None or isinstance(error, Interrupted):  # which says that what was done is saved
                raise
            error.add_note(str(failed))

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Allocate the memory that copies of these tensors take, in the background: the first save then has it."""
        if self.background:
            self._pending = self._writer.submit(self._host.reserve, tensors)

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        folders: Mapping[str, Callable[[Path], None]],
        score: float | None = None,
    ) -> None:
        """Save the state after `step` steps. With a background writer the caller may change its tensors after
        `wait_until_copied`, and `folders` (writers by name) must hold copies of their own, or the caller waits. Where
        the host has no room for a copy of the tensors, this returns when they are written."""
        self.wait()
        final = self.folder / f"step-{step:06d}"
        if final.exists():
            return
        about = {"step": step, "score": score if score is not None and math.isfinite(score) else None}
        text = _state_json(state)
        check_tensors_finite(tensors, "the optimiser")
        if self.background:
            self._copy = self._host.start(tensors)
            self._pending = self._writer.submit(self._write_copy, final, about, self._copy, text, folders)
            if not self._copy.is_copy:
                self.wait()
        else:
            here = {name: t.detach().contiguous() for name, t in tensors.items()}
            self._write(final, about, here, text, folders)

    def save_shards(
        self,
        step: int,
        rows: Mapping[str, Tensor],
        state: Mapping[str, Any],
        folders: Mapping[str, Callable[[Path], None]],
        score: float | None,
        shards: ShardMesh,
    ) -> None:
        """As `save`, of a network that is sharded: all ranks call this, and each writes its rows of the tensors, unless
        an earlier copy's rank does. Rank 0 writes the rest, the manifest last. Where one fails, all raise, and nothing
        is left."""
        group = shards.group
        final = self.folder / f"step-{step:06d}"
        partial = final.with_name(final.name + ".new")
        if group.any(final.exists()):
            return
        about = {"step": step, "score": score if score is not None and math.isfinite(score) else None}

        def begin() -> None:
            self._remove_partial()
            _begin(partial, _state_json(state), folders)

        def write_rows() -> None:
            check_tensors_finite(rows, "the optimiser")
            if not shards.writes:
                return
            here = {n: t.detach().contiguous() for n, t in rows.items() if t.dim() or group.is_main}
            _save_tensors(here, partial, f".rank-{shards.rank:05d}-of-{shards.shard_size:05d}")

        try:
            _together(group, begin, final, main_only=True)
            _together(group, write_rows, final)
            _together(group, lambda: self._finish(partial, final, about), final, main_only=True)
        finally:
            if group.is_main:
                shutil.rmtree(partial, ignore_errors=True)
        if group.is_main:
            self._prune()

    def wait(self) -> None:
        """Wait until the pending save is on disk. Raises its error, once."""
        if self._pending is not None:
            done, _ = futures.wait([self._pending])  # before `_pending` is cleared: a signal may interrupt the wait
            self._pending = None
            done.pop().result()

    def wait_until_copied(self) -> None:
        """Wait until the tensors that were given to `save` may change."""
        if self._copy is not None:
            self._copy.wait()
            self._copy = None

    def _write_copy(
        self,
        final: Path,
        about: Mapping[str, Any],
        copy: HostCopy,
        state: str,
        folders: Mapping[str, Callable[[Path], None]],
    ) -> None:
        copy.wait()
        self._write(final, about, copy.tensors, state, folders)

    def _write(
        self,
        final: Path,
        about: Mapping[str, Any],
        tensors: dict[str, Tensor],
        state: str,
        folders: Mapping[str, Callable[[Path], None]],
    ) -> None:
        def write() -> None:
            self._write_once(final, about, tensors, state, folders)

        size = max(sum(t.nbytes for t in tensors.values()), self._last_size())
        try:
            full_disk.retry_while_disk_full(write, final, size, lambda: self._stop_waiting or signals.stop_requested())
        except Diverged:
            raise
        except (OSError, SafetensorError, PonderError) as why:
            failure = f"cannot save {final} ({getattr(why, 'strerror', None) or why})"
            raise RunError(f"{failure}: fix this and run again; the previous checkpoint is kept") from None
        self._prune()

    def _write_once(
        self,
        final: Path,
        about: Mapping[str, Any],
        tensors: dict[str, Tensor],
        state: str,
        folders: Mapping[str, Callable[[Path], None]],
    ) -> None:
        """Write all of it, or nothing."""
        partial = final.with_name(final.name + ".new")
        try:
            self._remove_partial()
            _begin(partial, state, folders)
            _save_tensors(tensors, partial)
            self._finish(partial, final, about)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _finish(self, partial: Path, final: Path, about: Mapping[str, Any]) -> None:
        """Write the manifest and give the checkpoint its name."""
        manifests.write(partial, **about, job=self._job_hash)
        self._run.sync()  # the records of its steps reach the disk before it has its name
        is_first = not checkpoints(self.folder.parent)
        if is_first:
            _flush(partial)
        partial.rename(final)
        try:
            if not is_first:
                _flush(final)
            for path in (self.folder, self.folder.parent):
                fsync_path(path)
        except BaseException:
            final.rename(partial)  # its bytes may not be on the disk
            raise

    def _last_size(self) -> int:
        """Bytes of the newest checkpoint: an estimate for the next."""
        try:
            newest = checkpoints(self.folder.parent)[-1]
            return sum(int(about["bytes"]) for about in manifests.read(newest)["files"].values())
        except (IndexError, ManifestMismatch):
            return 0

    def _prune(self) -> None:
        folders = checkpoints(self.folder.parent)
        scores = [(score, at) for at, folder in enumerate(folders) if (score := self._score(folder)) is not None]
        best = [folders[at] for _, at in sorted(scores)[-1:]]
        for folder in folders[: -self.keep]:
            if folder not in best:
                with contextlib.suppress(OSError):  # the new one is safe; the next save tries again
                    folder.rename(folder.with_name(folder.name + ".old"))
        self._remove_partial((".new", ".old", DAMAGED_SUFFIX))

    def _score(self, folder: Path) -> float | None:
        try:
            manifest = manifests.read(folder)
        except ManifestMismatch:
            return None
        return manifest["score"] if manifest["job"] in (self._job_hash, _hash(self._run.job)) else None

    def _remove_partial(self, kinds: tuple[str, ...] = (".new", ".old")) -> None:
        """Remove partly written and partly removed checkpoints."""
        for path in self.folder.glob("step-*"):
            if path.suffix in kinds:
                shutil.rmtree(path, ignore_errors=True)


def _give_way() -> None:
    """Lower the priority of this thread and of those it starts: checksums on every core would hold training up."""
    if sys.platform == "linux":  # elsewhere a priority is the whole process's
        os.nice(_WRITER_NICENESS)


def _begin(partial: Path, state: str, folders: Mapping[str, Callable[[Path], None]]) -> None:
    partial.mkdir(parents=True)
    for name, write_folder in folders.items():
        write_folder(partial / name)
    (partial / STATE_FILE).write_text(state, encoding="utf-8")


def _together(group: DataParallelGroup, work: Callable[[], None], final: Path, main_only: bool = False) -> None:
    """Work of every rank, or of rank 0, which the others wait for. Where it fails on one, all raise."""
    failure = ""
    try:
        if group.is_main or not main_only:
            work()
    except (OSError, SafetensorError, PonderError) as why:
        failure = getattr(why, "strerror", None) or str(why)
    for rank, text in enumerate(group.all_gather_bytes(failure.encode())):
        if text:
            raise RunError(
                f"cannot save {final} (rank {rank}: {text.decode()}): fix this and run again; the previous checkpoint"
                " is kept"
            )


def _save_tensors(tensors: Mapping[str, Tensor], folder: Path, suffix: str = "") -> None:
    """Write the tensors, several files at once. `suffix`: of the names of the files."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, t in tensors.items():
        if shards[-1] and size + t.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = t
        size += t.nbytes
    names = [f"learner-{i:05d}-of-{len(shards):05d}{suffix}.safetensors" for i in range(1, len(shards) + 1)]
    names = names if len(shards) > 1 else [f"learner{suffix}.safetensors"]
    with futures.ThreadPoolExecutor(_SAVE_THREADS, "checkpoint") as threads:
        list(threads.map(_save_shard, shards, [folder / name for name in names]))


def _save_shard(tensors: dict[str, Tensor], path: Path) -> None:
    save_file(tensors, path)
    shutil.copymode(path.parent / STATE_FILE, path)  # safetensors makes private files


def _load_tensors(folder: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """The whole tensors: of those that ranks wrote, the rows of all of them."""
    files = [match for name in names if (match := _TENSORS_PATTERN.fullmatch(name))]
    if not files:
        raise ValueError(f"it has no {TENSORS_FILE}")
    rows: dict[str, list[Tensor]] = {}
    files.sort(key=lambda match: (match[3] or "", match[0]))
    with futures.ThreadPoolExecutor(_SAVE_THREADS, "checkpoint") as threads:
        for loaded in threads.map(load_file, [folder / match[0] for match in files]):
            for name, t in loaded.items():
                rows.setdefault(name, []).append(t)
    ranks = {int(match[4] or 1) for match in files}
    if len(ranks) > 1 or any(t[0].dim() and len(t) != min(ranks) for t in rows.values()):
        raise ValueError("the rows of a rank are missing")
    return {name: torch.cat(parts) if len(parts) > 1 else parts[0] for name, parts in rows.items()}


def _flush(folder: Path) -> None:
    for path in (*sorted(folder.rglob("*")), folder):
        fsync_path(path)


def start_loading(run: Run, group: DataParallelGroup = SINGLE_PROCESS) -> futures.Future[Checkpoint | None] | None:
    """Read and verify the newest checkpoint in a thread, for `load_latest` to take: while the model is loaded. None
    where another rank does that."""
    if not group.is_main:
        return None
    thread = futures.ThreadPoolExecutor(1, "checkpoint")
    loading = thread.submit(_load_verified, run)
    thread.shutdown(wait=False)
    return loading


def load_latest(
    run: Run, group: DataParallelGroup = SINGLE_PROCESS, loading: futures.Future[Checkpoint | None] | None = None
) -> Checkpoint | None:
    """The newest complete checkpoint, with every byte verified; None in a new run. Newer damaged ones are set aside
    with a warning. A checkpoint of another job, or a renamed one, is an error. Rank 0 verifies it for the others.
    `loading`: what `start_loading` began.
    """
    if not group.is_main:
        name = group.broadcast_bytes(b"").decode()
        if name == _NOT_LOADED:
            raise RunError("rank 0 cannot load a checkpoint; it says why")
        return _load(run.folder / "checkpoints" / name) if name else None
    try:
        latest = _load_verified(run) if loading is None else loading.result()
    except BaseException:
        group.broadcast_bytes(_NOT_LOADED.encode())
        raise
    group.broadcast_bytes(b"" if latest is None else latest.folder.name.encode())
    return latest


def _load_verified(run: Run) -> Checkpoint | None:
    folders = checkpoints(run.folder)
    damaged: dict[Path, str] = {}
    for folder in reversed(folders):
        try:
            checkpoint = _read(folder, run)
        except ManifestMismatch as fault:
            damaged[folder] = str(fault)
            continue
        except _WrongCheckpoint as fault:
            if damaged:
                continue  # not usable either
            raise RunError(f"{folder} {fault}: {_recovery_hint(folders, run)}") from None
        return _set_damaged_aside(checkpoint, damaged) if damaged else checkpoint
    if damaged:
        folder, why = next(iter(damaged.items()))
        raise RunError(f"{folder} {why}: {_NO_WHOLE_CHECKPOINT}")
    return None


def _set_damaged_aside(checkpoint: Checkpoint, damaged: Mapping[Path, str]) -> Checkpoint:
    """Rename the newer, damaged ones, so that they are not read again, and warn."""
    for folder in damaged:
        aside = folder.with_name(folder.name + DAMAGED_SUFFIX)
        try:
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            fsync_path(folder.parent)
        except OSError as why:
            raise RunError(f"{folder} {damaged[folder]}, and cannot be set aside ({why.strerror}): remove it") from None
    because = "; ".join(f"{folder.name} {why}" for folder, why in damaged.items())
    warnings.warn(f"{because}: the run goes on from {checkpoint.folder.name}, which is whole", stacklevel=3)
    return replace(checkpoint, fallback_reason=because)


def _read(folder: Path, run: Run) -> Checkpoint:
    """Read and verify a checkpoint, its numbers included."""
    verified_step(folder, run)
    checkpoint = _load(folder)
    if (wrong := invalid_reason(checkpoint.tensors)) is not None:
        raise ManifestMismatch(f"is damaged ({TENSORS_FILE}: {wrong})")
    return checkpoint


def _load(folder: Path) -> Checkpoint:
    try:
        manifest = manifests.read(folder)
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"), parse_constant=_reject_constant)
        tensors = _load_tensors(folder, manifest["files"])
    except (OSError, ValueError, SafetensorError) as why:
        raise ManifestMismatch(f"is damaged ({why})") from None
    return Checkpoint(int(manifest["step"]), folder, state, tensors)


def _reject_constant(name: str) -> None:
    raise ValueError(f"{STATE_FILE}: it holds {name}")


def resume_dtype(run: Run, dtype: str) -> str:
    """The dtype to load the model in. A run that began with "auto" keeps the dtype that was chosen then."""
    if dtype != "auto":
        return dtype
    for folder in reversed(checkpoints(run.folder)):
        try:
            manifests.check(folder, [STATE_FILE], manifests.read(folder))
            return str(json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))["dtype"])
        except (ManifestMismatch, OSError, ValueError, LookupError, TypeError):
            continue  # `load_latest` reports what is wrong
    return dtype


_NO_WHOLE_CHECKPOINT = "there is no earlier one that is whole: remove the folder 'checkpoints' and the run starts again"


class _WrongCheckpoint(Exception):
    """A complete checkpoint that cannot be used, and why."""


def is_tensors_file(name: str) -> bool:
    """Whether a file of a checkpoint holds what only further steps need."""
    return _TENSORS_PATTERN.fullmatch(name) is not None


def verified_step(folder: Path, run: Run) -> int:
    """Verify a checkpoint and return its step."""
    manifest = manifests.read(folder)
    step = int(manifest["step"])
    if manifest["job"] not in (_job_hash(run), _hash(run.job)):  # the second: as earlier versions saved it
        raise _WrongCheckpoint("was saved by another job")
    if folder.name != f"step-{step:06d}":
        raise _WrongCheckpoint(f"was saved as step {step} and renamed")
    if manifest.get(MODEL_ONLY):
        raise RunError(
            f"{folder} holds its model alone, since its stage of a recipe is finished: to train on, start another --run"
            f" from the model {folder / 'model'}"
        )
    manifests.check(folder, manifest["files"], manifest)
    return step


def _recovery_hint(folders: list[Path], run: Run) -> str:
    """Advice for when the newest checkpoint cannot be used."""
    unusable = folders[-1:]
    for folder in reversed(folders[:-1]):
        try:
            verified_step(folder, run)
        except (ManifestMismatch, _WrongCheckpoint):
            unusable.append(folder)
            continue
        also = f" and {', '.join(f.name for f in unusable[1:])}, no better," if unusable[1:] else ""
        return f"remove that folder{also} and the run goes on from {folder.name}, which is whole"
    return _NO_WHOLE_CHECKPOINT


def _job_hash(run: Run) -> str:
    """Of the job without its number of steps, which may grow."""
    return _hash(without_steps(run.job) if is_training_job(run.job) else run.job)


def _hash(job: Any) -> str:
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()


def _state_json(state: Mapping[str, Any]) -> str:
    """The state as JSON that decodes to exactly the same state."""
    for key, value in state.items():
        try:
            if json.loads(json.dumps({key: value}, allow_nan=False)) == {key: value}:
                continue
            why = "it would come back different"
        except (TypeError, ValueError) as reason:
            why = str(reason)
        failure = f"a checkpoint cannot keep the state {key!r}, {value!r:.60} ({why})"
        raise RunError(f"{failure}: use finite numbers, text, lists, and dicts with text as keys")
    return json.dumps(state, indent=1) + "\n"
