"""Several jobs in a row, each an ordinary run in its own folder. A resumed run does not repeat a stage that is done,
and a stage without a result may have changed (see runs/stage_changes.py).

A later stage names an earlier one anywhere in its job: `stage:NAME` is its run directory (and so its model), and
`stage:NAME/data.jsonl` a file in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder import rank_env
from ponder.errors import Interrupted, PonderError, RunError, UnknownName, UsageError
from ponder.pipelines.job.base_job import BaseJob, as_job
from ponder.pipelines.job.finished_training import finished_model
from ponder.pipelines.job.one_process import require_one_process, trains_over_ranks
from ponder.protocols import Job, NoProgress, Progress, Strategy
from ponder.runs import Run, job_json, newest_checkpoint, read_job
from ponder.runs.cleanup import is_training_job, remove_empty_run
from ponder.runs.follower_run import FollowerRun
from ponder.runs.job_json import external_code_in
from ponder.runs.run_dir import other_job_error
from ponder.runs.stage_changes import check_stage_changes
from ponder.runs.trust import trust_within

if TYPE_CHECKING:
    from ponder.pipelines.job.rank_stages import StageRanks

_REFERENCE = re.compile(r"stage:([^/\s]+)")


@dataclass(frozen=True)
class Stage:
    name: str
    job: Any  # FineTune, RL, Evaluate, Harvest ...: see `protocols.Job`


@dataclass(frozen=True)
class Stages(BaseJob):
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        names = [s.name for s in self.stages]
        if not names or len(set(names)) < len(names):
            raise UsageError(f"stages need names, each once; these are {names}")
        for i, stage in enumerate(self.stages):
            if not _is_folder_name(stage.name):
                raise UsageError(f"a stage's name is a folder's: {stage.name!r} has a space or a slash, or is none")
            if leaves_stage_folder(stage.job):
                raise UsageError(f"stage {stage.name!r} names a place above an earlier stage: leave out '..'")
            for reference in stage_references(stage.job):
                if reference not in names[:i]:
                    raise UnknownName("earlier stage", reference, names[:i])

    def training_jobs(self) -> list[tuple[str, Any]]:
        return [(stage.name, job) for stage in self.stages for _, job in as_job(stage.job).training_jobs()]

    def __call__(self, folder: str | Path, progress: Progress | None = None) -> dict[str, Any]:
        """What each stage returned, by name; of training, the folder of its model, which is not kept in memory."""
        require_one_process(self)
        if rank_env.world_size() == 1:
            return self._run_stages(folder, progress or NoProgress(), None)
        from ponder.pipelines.job.rank_stages import join_stage_ranks  # torch

        with join_stage_ranks(self.device) as ranks:
            return self._run_stages(folder, progress or NoProgress(), ranks)

    def _run_stages(self, folder: str | Path, progress: Progress, ranks: StageRanks | None) -> dict[str, Any]:
        """`ranks`: None in a single process."""
        results = {}
        known = dict.fromkeys(stage.name for stage in self.stages)
        own = trust_within(
            external_code_in(self)
        )  # code that one stage names, a later one that reads its run may import

        def continue_from(run: Run, before: Any) -> None:
            known.update(self._continue_from(run, before))

        is_first = ranks is None or ranks.group.is_main
        with own, Run(folder, self, continue_from=continue_from) if is_first else FollowerRun(folder) as run:
            for name in known if is_first else ():
                remove_empty_run(run.folder / name)
            for stage in self.stages:
                progress.phase(stage.name)
                job, place = resolve_stage_references(stage.job, run.folder.resolve()), run.folder / stage.name
                try:
                    result = _run_stage(job, place, progress, ranks)
                    if is_training_job(job):
                        del result  # later stages need the memory of what was trained, and its room on the disk
                        if is_first:
                            _keep_models_alone(place)
                        result = _model_folder(job, place)
                    results[stage.name] = result
                    del result
                except Interrupted:
                    raise
                except PonderError as why:
                    why.args = (f"stage {stage.name!r}: {why}",)  # the same error, which names the stage
                    raise
        return results

    @property
    def device(self) -> str:
        """Where ranks train."""
        return next((str(stage.job.device) for stage in self.stages if trains_over_ranks(stage.job)), "auto")

    def strategies(self) -> list[tuple[Strategy, Any]]:
        return [pair for stage in self.stages for pair in as_job(stage.job).strategies()]

    def check_memory(self) -> None:
        for stage in self.stages:
            as_job(stage.job).check_memory()

    def summary_lines(self, folder: Path, result: dict[str, Any]) -> list[str]:
        lines: list[str] = []
        for name, job, run in self.stage_runs(folder):
            lines += [f"== {name}", *job.summary_lines(run, result[name]), ""]
        return lines

    def summary_json(self, folder: Path, result: dict[str, Any]) -> dict[str, Any]:
        runs = self.stage_runs(folder)
        return {"stages": {name: job.summary_json(run, result[name]) for name, job, run in runs}}

    def stage_runs(self, folder: Path) -> list[tuple[str, Job, Path]]:
        """Name, job and run directory of each stage, as it was run."""
        trust, folders = external_code_in(self), {stage.name: folder / stage.name for stage in self.stages}
        return [(name, as_job(job_json.decode(read_job(run), trust)), run) for name, run in folders.items()]

    def _continue_from(self, run: Run, before: Any) -> dict[str, None]:
        """The names of the stages before. Raises if these stages cannot resume from them."""
        if not isinstance(before, dict) or before.get("is") != run.job["is"]:
            raise other_job_error(run.folder, before, run.job)
        old, now = _jobs_by_stage(run, before), _jobs_by_stage(run, run.job)
        jobs = {stage.name: stage.job for stage in self.stages}
        check_stage_changes(run.folder, old, now, lambda name: stage_references(jobs[name]))
        return dict.fromkeys(old)


def _keep_models_alone(place: Path) -> None:
    from ponder.train.model_only import keep_models_alone  # torch, which has trained the stage

    keep_models_alone(place)


def _model_folder(job: Any, place: Path) -> Path:
    """Where the model is that a stage has trained; another rank may still write it."""
    newest = newest_checkpoint(place)
    return (place / "checkpoints" / f"step-{job.steps:06}" if newest is None else newest) / "model"


def _run_stage(job: Any, place: Path, progress: Progress, ranks: StageRanks | None) -> Any:
    """What it returned; of training that is finished, the folder of its model."""
    if ranks is None:
        return finished_model(job, place) or job(place, progress)
    if not trains_over_ranks(job):
        return ranks.on_first(lambda: finished_model(job, place) or job(place, progress))
    finished = finished_model(job, place) if ranks.group.is_main else None
    return finished if ranks.agree(finished is not None) else job(place, progress)


def _jobs_by_stage(run: Run, encoded: Any) -> dict[str, Any]:
    try:
        jobs = {stage["name"]: stage["job"] for stage in encoded["stages"]}
    except (LookupError, TypeError):
        jobs = {}
    if not jobs or not all(_is_folder_name(name) for name in jobs):
        raise RunError(f"{run.folder / 'job.json'} is damaged: it holds no stages; give another --run")
    return jobs


def _is_folder_name(name: Any) -> bool:
    return name not in ("", ".", "..") and _REFERENCE.fullmatch(f"stage:{name}") is not None


def resolve_stage_references(job: Any, folder: Path) -> Any:
    """A job with the folders of earlier stages in place of their names."""
    return _map_strings(job, lambda text: _REFERENCE.sub(lambda match: str(folder / match[1]), text))


def stage_references(job: Any) -> list[str]:
    """Names of the stages that a job depends on."""
    names: list[str] = []

    def collect(text: str) -> str:
        names.extend(_REFERENCE.findall(text))
        return text

    _map_strings(job, collect)
    return names


def leaves_stage_folder(job: Any) -> bool:
    """Whether a job names a path in an earlier stage that leads out of it again."""
    outside: list[str] = []

    def collect(text: str) -> str:
        outside.extend(rest for rest in _REFERENCE.split(text)[2::2] if ".." in re.split(r"[/\\\s]", rest))
        return text

    _map_strings(job, collect)
    return bool(outside)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """The same value with every text that names a stage changed, at any depth."""
    if isinstance(value, str):
        return change(value) if "stage:" in value else value
    if isinstance(value, tuple):
        return tuple(_map_strings(v, change) for v in value)
    if isinstance(value, list):
        return [_map_strings(v, change) for v in value]
    if isinstance(value, dict):
        return {k: _map_strings(v, change) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        values = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        changed = {k: new for k, v in values.items() if (new := _map_strings(v, change)) is not v}
        return replace(value, **changed) if any(changed[k] != values[k] for k in changed) else value
    return value
