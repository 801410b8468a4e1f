"""Metrics to TensorBoard, W&B and trackio, by the real packages, offline."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, RecordingProgress
from ponder.errors import Interrupted, MissingExtra, UnknownName
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import NoProgress
from ponder.runs import metric_logging, read_metrics, read_traces
from ponder.runs.cleanup import has_result
from ponder.runs.metric_logging import MetricLog, log_metrics_to
from ponder.train.optimizer import AdamW

JOB = FineTune(
    DigitTask(), ScratchModel(ALPHABET, width=16, layers=1, heads=2, context=32), QUESTION_TEMPLATE,
    optimizer=AdamW(lr=1e-2), steps=4, batch_size=2, save_every=2, device="cpu", dtype="float32",
)  # fmt: skip


def needs(package: str) -> pytest.MarkDecorator:
    spec = importlib.util.find_spec(package)
    absent = spec is None or spec.origin is None
    return pytest.mark.skipif(absent, reason=f"{package} is not installed: pip install 'ponder[track]'")


def tensorboard_rows(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def wandb_rows(folder: Path) -> list[dict[str, float]]:
    """Of W&B's offline files, in the order of the starts. They are LevelDB logs, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        data, at = path.read_bytes(), 7
        assert data.startswith(b":W&B") and len(data) < 1 << 15, "one block, so that every record is whole"
        while at < len(data):
            _, size, kind = struct.unpack_from("<IHB", data, at)
            assert kind == 1
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data[at + 7 : at + 7 + size])
            at += 7 + size
            if record.HasField("history"):
                items = record.history.item
                rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    return rows


def trackio_rows(folder: Path) -> list[dict[str, Any]]:
    """By trackio's own reader, in a process that is told where the files are."""
    code = (
        "import json, trackio; from trackio.sqlite_storage import SQLiteStorage as s; "
        f"print('rows ' + json.dumps(s.get_logs('ponder', {folder.name!r})))"
    )
    environment = os.environ | {"TRACKIO_DIR": str(folder / "trackio")}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return json.loads(result.stdout.rpartition("rows ")[2])


def train_twice(folder: Path, name: str) -> list[dict[str, float]]:
    """A training that is stopped in its fourth step, and goes on from the second."""
    with log_metrics_to(name):
        with pytest.raises(Interrupted):
            JOB(folder, RecordingProgress("step", 3))
        shutil.rmtree(folder / "checkpoints" / "step-000003")  # as if it had been killed: step 2 comes again
        JOB(folder, NoProgress())
    rows = read_metrics(folder)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert len(list(read_traces(folder))) > 0, "no link, and nothing else that a run directory may not hold"
    return rows


@needs("tensorboard")
def test_tensorboard_has_the_metrics_and_a_resumed_run_appends(tmp_path: Path) -> None:
    rows = train_twice(tmp_path / "run", "tensorboard")
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 2
    stored = tensorboard_rows(tmp_path / "run")
    assert [step for step, _ in stored["loss"]] == [0, 1, 2, 3]
    assert [value for _, value in stored["loss"]] == pytest.approx([row["loss"] for row in rows], rel=1e-6)
    assert stored.keys() == set(rows[0]) - {"step", "time"}


@needs("wandb")
def test_wandb_has_the_metrics_offline_and_a_resumed_run_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(variable)
    rows = train_twice(tmp_path / "run", "wandb")
    stored = wandb_rows(tmp_path / "run")
    assert [row["_step"] for row in stored] == [0, 1, 2, 2, 3]
    last = {row["_step"]: row["loss"] for row in stored}
    assert [last[i] for i in range(4)] == pytest.approx([row["loss"] for row in rows])
    names = {path.name.rpartition("-")[2] for path in (tmp_path / "run" / "wandb").glob("offline-run-*")}
    assert names == {(tmp_path / "run" / "wandb" / "run_id").read_text()}, "one run in two parts"


@needs("trackio")
def test_trackio_has_the_metrics_and_a_resumed_run_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("TRACKIO_")]:
        monkeypatch.delenv(variable)
    rows = train_twice(tmp_path / "run", "trackio")
    stored = trackio_rows(tmp_path / "run")
    assert [row["step"] for row in stored] == [0, 1, 2, 2, 3]
    last = {row["step"]: row["loss"] for row in stored}
    assert [last[i] for i in range(4)] == pytest.approx([row["loss"] for row in rows])


@needs("tensorboard")
def test_each_stage_writes_into_its_own_run_directory(tmp_path: Path) -> None:
    short = replace(JOB, steps=1, save_every=1)
    with log_metrics_to("tensorboard"):
        Stages((Stage("a", short), Stage("b", replace(short, seed=1))))(tmp_path / "run", NoProgress())
    assert "loss" in tensorboard_rows(tmp_path / "run" / "a") and "loss" in tensorboard_rows(tmp_path / "run" / "b")


def test_unknown_writer_is_named() -> None:
    with pytest.raises(UnknownName, match="mlflow"), log_metrics_to("mlflow"):
        pass


def test_missing_package_is_one_sentence_that_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb").mkdir()  # W&B leaves a folder of that name where it ran: no package
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *(p for p in sys.path if not (Path(p) / "wandb").is_dir())])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(MissingExtra, match=r"pip install 'ponder\[track\]'"), log_metrics_to("wandb"):
        pass


def test_failing_writer_is_one_warning_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken" / "tensorboard"
    (broken / "compat").mkdir(parents=True)
    for module in (broken / "__init__.py", broken / "compat" / "__init__.py"):
        module.write_text("")
    (broken / "compat" / "proto.py").write_text("raise OSError('the disk is full')")
    monkeypatch.setattr(sys, "path", [str(broken.parent), *sys.path])
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    importlib.invalidate_caches()
    with warnings.catch_warnings(record=True) as caught, log_metrics_to("tensorboard"):
        warnings.simplefilter("always")
        JOB(tmp_path / "run", NoProgress())
    said = [str(w.message) for w in caught if "no more metrics" in str(w.message)]
    assert len(said) == 1 and "tensorboard" in said[0] and "the disk is full" in said[0]
    assert len(read_metrics(tmp_path / "run")) == 4


@pytest.mark.parametrize("program", ["import time; time.sleep(60)", "raise SystemExit(3)", "print('{'); 1 / 0"])
def test_writer_that_hangs_or_dies_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(metric_logging, "_START", program)
    monkeypatch.setattr(metric_logging, "_CLOSE_SECONDS", 2.0)
    monkeypatch.setattr(metric_logging, "_MAX_WAITING_ROWS", 50)
    log = MetricLog(("tensorboard",), tmp_path)
    with pytest.warns(UserWarning, match="metrics") as said:
        for step in range(20_000):
            log.write(step, {"loss": 1.0, "none": None}, {}, None)
        log.close()
    assert len(said) == 1


def test_folders_of_writers_are_no_result(tmp_path: Path) -> None:
    for name in ("tensorboard", "wandb", "trackio"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    fields = {"is": "ponder.pipelines.sft:FineTune", "steps": 1, "save_every": 1, "keep_checkpoints": 1}
    (tmp_path / "job.json").write_text(json.dumps(fields))
    assert not has_result(tmp_path)
