"""Fingerprints of everything that a job's result depends on besides the job itself, by the name that messages use.

    the weights of model (NAME)            of every model that the job names: also a teacher, a reward model
    the tokenizer or chat template of ...  of the same models
    the code of MODULE                     the user's own rewards, tasks, scorers and strategies (code_fingerprints)
    the training problems of TASK          if the job learns from them (for other problems see problem_changes)
    the file NAME that MODULE reads        a data file that such code names
    the file NAME (FIELD)                  a file that the job names, or one of the user's own objects in it
    the traces of RUN (FIELD)              a run directory that it names
    the folder NAME (FIELD)                any other folder

A run stores a fingerprint of each (`environment.json`) and refuses to resume with others. The names hold no paths, so
that a folder of stages can be moved. Models behind a server cannot be compared; ponder is compared by its version.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ponder.errors import PonderError
from ponder.models.guides import parse_reward_model
from ponder.models.model_fingerprints import MODEL_FIELDS, model_fingerprints
from ponder.runs import read_job
from ponder.runs.code_fingerprints import MAX_PATH_CHARS, code_fingerprints
from ponder.runs.encoded_walk import strings
from ponder.runs.file_fingerprints import add_fingerprints, file_fingerprint, folder_fingerprint
from ponder.runs.trace_store import has_traces, traces_fingerprint
from ponder.tasks.generated.generated_task import GeneratedProblems
from ponder.types import Problem, problem_key
from ponder.user_modules import module_of

NUM_HASHED_PROBLEMS = 16
SPLIT_NAMES = {"train": "training", "test": "held-out"}
# module:name or file.py:name
_OBJECT_PATTERN = re.compile(r"(?:oracle\+)?([A-Za-z_][\w.]*|.{1,1024}\.py):[A-Za-z_][\w.]*")


def input_fingerprints(job: Any) -> dict[str, str]:
    """The fingerprint of each input that exists, by name."""
    marks = model_fingerprints(job)
    modules: list[str] = []
    for where, part, owner, reads in _walk_job(job):
        if isinstance(part, str):
            modules += [match[1]] if (match := _OBJECT_PATTERN.fullmatch(part)) else []
            if not (_is_task(owner) and _is_ponder_type(owner)):  # its problems stand for its files
                add_fingerprints(marks, _path_fingerprint(where, part, not _is_ponder_type(owner)))
        else:
            modules.append(module_of(type(part)))
            if _is_task(part):
                add_fingerprints(marks, _problem_fingerprints(part, reads))
    for run in getattr(job, "runs", ()):  # their verifiers may grade again
        modules += _modules_in_job(run)
    return marks | code_fingerprints(modules)


def _walk_job(
    value: Any, where: str = "", owner: Any = None, reads: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any, Any, tuple[str, ...]]]:
    """Every object and text in a job: its path, the object that holds it, and which splits of a task it reads."""
    if isinstance(value, str):
        yield where, value, owner, reads
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _walk_job(one, where, owner, reads)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _walk_job(one, f"{where}.{key}", owner, reads)
    elif is_dataclass(value) and not isinstance(value, type):
        reads = getattr(value, "READ_SPLITS", reads)
        yield where, value, owner, reads
        for field in fields(value):
            if field.init:
                inner = f"{where}.{field.name}" if where else field.name
                yield from _walk_job(getattr(value, field.name), inner, value, reads)


def _is_task(value: Any) -> bool:
    """Whether this is a task. Looks at the class, since the attributes of the object read its problems."""
    own = getattr(value, "__dict__", {})
    return all(name in own or hasattr(type(value), name) for name in ("train", "test", "verifier"))


def _is_ponder_type(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "ponder"


def _problem_fingerprints(task: Any, reads: Sequence[str]) -> dict[str, str]:
    """Fingerprints of a task's problems. Generated ones follow from settings and version; a mixture counts by its
    parts. Of any other lazy sequence, the first problems count."""
    inner = any(_is_task(part) for _, part, _, _ in _walk_job(task) if part is not task and not isinstance(part, str))
    if _is_ponder_type(task) and inner:
        return {}
    marks = {}
    for side in reads:
        try:
            problems = getattr(task, side)
            listed = isinstance(problems, list | tuple)
            if listed or not (isinstance(problems, GeneratedProblems) and _is_ponder_type(task)):
                marks[f"the {SPLIT_NAMES[side]} problems of {task.name}"] = _hash_problems(
                    problems if listed else problems[:NUM_HASHED_PROBLEMS]
                )
        except PonderError:
            pass  # the job that reads them reports the error
    return marks


def _hash_problems(problems: Sequence[Problem]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for problem in problems:
        digest.update(json.dumps(problem_key(problem)).encode())
    return digest.hexdigest()


def _path_fingerprint(where: str, text: str, folders: bool) -> dict[str, str]:
    """The fingerprint of what a text names, if it is a path. `folders`: also of a folder that is no run directory."""
    if not text.strip() or len(text) > MAX_PATH_CHARS or "\0" in text or "\n" in text:
        return {}
    if where.rpartition(".")[2] in MODEL_FIELDS or parse_reward_model(text)[0]:
        return {}
    try:
        path = Path(text).expanduser()
        if path.is_file():
            return {f"the file {path.name} ({where})": file_fingerprint(path)}
        if not path.is_dir() or Path.cwd().is_relative_to(path.resolve()):  # not ".", "/" or the like
            return {}
        if has_traces(path):
            return {f"the traces of {path.name} ({where})": traces_fingerprint(path)}
        if not folders or (path / "job.json").is_file() or Path.home().is_relative_to(path.resolve()):
            return {}
        return {f"the folder {path.name} ({where})": folder_fingerprint(path)}
    except (PonderError, OSError, RuntimeError):  # RuntimeError: no home folder
        return {}  # the job that reads it reports the error


def _modules_in_job(run: Any) -> Iterator[str]:
    """The modules that the job of a run names."""
    try:
        job = read_job(run)
    except PonderError:
        return
    for text in strings(job):
        if match := _OBJECT_PATTERN.fullmatch(text):
            yield match[1]
