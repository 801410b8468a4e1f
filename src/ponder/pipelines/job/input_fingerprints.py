"""Everything that a job's result depends on beyond what the job itself says, by what it is called in a message.

    the weights of model (NAME)            behind a model's name, wherever it stands: a teacher's, a judge's
    the tokenizer or chat template of ...  beside them
    the code of MODULE                     the user's own rewards, tasks, scorers and strategies (see `own_code`)
    the training problems of TASK          where a job learns from them (see `unchanged` for the others)
    the file NAME that MODULE reads        which such code names
    the file NAME (FIELD)                  a file that the job names, or one of the user's own objects in it
    the traces of RUN (FIELD)              a run directory that it names
    the folder NAME (FIELD)                any other

A run keeps a fingerprint of each (`environment.json`) and does not go on with others. The names hold no place, so that
a folder of stages can be moved. What a server runs cannot be compared; ponder itself is told apart by its version.
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
from ponder.runs.file_fingerprints import add_fingerprints, file_fingerprint, folder_fingerprint, traces_fingerprint
from ponder.runs.trust import walk
from ponder.tasks.generated.generated_task import GeneratedProblems
from ponder.types import Problem, problem_key

NUM_HASHED_PROBLEMS = 16
SPLIT_NAMES = {"train": "training", "test": "held-out"}
_OBJECT_PATTERN = re.compile(r"(?:oracle\+)?([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")  # module:object


def input_fingerprints(job: Any) -> dict[str, str]:
    """A fingerprint of each that is there, by its name."""
    marks = model_fingerprints(job)
    modules: list[str] = []
    for where, part, owner, reads in _walk_job(job):
        if isinstance(part, str):
            modules += [found[1]] if (found := _OBJECT_PATTERN.fullmatch(part)) else []
            if not (_is_task(owner) and _is_ponder_type(owner)):  # whose files are known by its problems
                add_fingerprints(marks, _path_fingerprint(where, part, not _is_ponder_type(owner)))
        else:
            modules.append(type(part).__module__)
            if _is_task(part):
                add_fingerprints(marks, _problem_fingerprints(part, reads))
    for run in getattr(job, "runs", ()):  # whose own verifiers may judge again
        modules += _modules_in_job(run)
    return marks | code_fingerprints(modules)


def _walk_job(
    value: Any, where: str = "", owner: Any = None, reads: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any, Any, tuple[str, ...]]]:
    """Every object and text in a job: where it stands, whose it is, and which problems of a task are read there."""
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
    """Asked of its kind: to ask the object would read its problems."""
    own = getattr(value, "__dict__", {})
    return all(name in own or hasattr(type(value), name) for name in ("train", "test", "verifier"))


def _is_ponder_type(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "ponder"


def _problem_fingerprints(task: Any, reads: Sequence[str]) -> dict[str, str]:
    """Of a task's problems. Those that ponder draws follow from settings and version; a mixture is its parts. Of any
    other sequence that makes problems when they are asked for, the first count."""
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
            pass  # whoever asks them says what is wrong
    return marks


def _hash_problems(problems: Sequence[Problem]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for problem in problems:
        digest.update(json.dumps(problem_key(problem)).encode())
    return digest.hexdigest()


def _path_fingerprint(where: str, text: str, folders: bool) -> dict[str, str]:
    """What lies where a text says, where it says a place. `folders`: also one that is no run directory."""
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
        if (path / "traces.jsonl").is_file():
            return {f"the traces of {path.name} ({where})": traces_fingerprint(path)}
        if not folders or (path / "job.json").is_file() or Path.home().is_relative_to(path.resolve()):
            return {}
        return {f"the folder {path.name} ({where})": folder_fingerprint(path)}
    except (PonderError, OSError, RuntimeError):  # the last: nobody's home folder
        return {}  # whoever reads it says what is wrong


def _modules_in_job(run: Any) -> Iterator[str]:
    """The modules that a run's job names."""
    try:
        job = read_job(run)
    except PonderError:
        return
    for value in walk(job):
        if isinstance(value, str) and (match := _OBJECT_PATTERN.fullmatch(value)):
            yield match[1]
