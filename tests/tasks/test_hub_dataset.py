"""Data sets of the Hugging Face hub, with the real client against a mirror on the loopback interface."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_mirror import HubMirror, MirrorRepo, serve_mirror, use_hub
from ponder import tasks
from ponder.cli import main
from ponder.errors import TaskError, UnknownName, UsageError
from ponder.tasks import GSM8K, HubDataset
from ponder.tasks.datasets import dataset_sources
from ponder.tasks.datasets.dataset_sources import SOURCES, DatasetSource, fetch_dataset, is_here

ROWS = [{"question": f"What is {i} + {i}?", "answer": f"Add them.\n#### {2 * i}"} for i in range(6)]


def parquet(rows: list[dict[str, object]], place: Path) -> bytes:
    table = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(table.Table.from_pylist(rows), place)
    return place.read_bytes()


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubMirror]:
    monkeypatch.setenv("PONDER_CACHE", str(tmp_path / "ponder"))
    monkeypatch.delenv("PONDER_DATA", raising=False)
    with serve_mirror() as served:
        use_hub(monkeypatch, served.url, tmp_path / "cache")
        yield served


def publish(mirror: HubMirror, repo_id: str, files: dict[str, bytes]) -> None:
    mirror.repos["datasets", repo_id] = repo = MirrorRepo()
    repo.commit(files)


@pytest.fixture
def gsm8k(mirror: HubMirror, tmp_path: Path) -> HubMirror:
    halves = [parquet(part, tmp_path / "part.parquet") for part in (ROWS[:4], ROWS[4:])]
    files = {f"main/{n}-00000-of-00001.parquet": h for n, h in zip(("train", "test"), halves, strict=True)}
    publish(mirror, "openai/gsm8k", {**files, "socratic/train-00000-of-00001.parquet": b"other", "README.md": b"card"})
    return mirror


def test_data_get_fetches_what_the_task_reads(gsm8k: HubMirror, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TaskError, match="fetch it with `ponder data get gsm8k`"):
        _ = GSM8K().train
    assert not is_here("gsm8k") and main(["data", "get", "gsm8k"]) == 0 and is_here("gsm8k")
    task, settings = tasks.find("openai/gsm8k")
    assert task is GSM8K and settings == {}
    assert [p.answer for p in GSM8K().train] == ["0", "2", "4", "6"] and [p.answer for p in GSM8K().test] == ["8", "10"]
    assert "socratic" not in " ".join(gsm8k.requests)
    assert main(["data", "get", "gsm8k"]) == 2, "what is there is not overwritten"
    assert "exists already: remove it" in capsys.readouterr().err


def test_data_lists_where_sets_come_from(mirror: HubMirror, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["data"] for row in rows} == set(SOURCES) and not any(row["here"] for row in rows)
    assert main(["data"]) == 0 and "openai/gsm8k" in capsys.readouterr().out
    assert not mirror.requests


def test_failed_get_leaves_nothing(mirror: HubMirror, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no public repository openai/gsm8k"):
        fetch_dataset("gsm8k")
    assert not (tmp_path / "ponder" / "data" / "gsm8k").exists()
    with pytest.raises(UnknownName, match=r"no data set named 'gsm9k'\. Did you mean 'gsm8k'"):
        fetch_dataset("gsm9k")


def test_files_of_a_web_address_are_stored_as_they_are(
    mirror: HubMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(mirror, "a/files", {"in/24.csv": b"Rank,Puzzles\n1,1 1 4 6\n"})
    commit = mirror.repos["datasets", "a/files"].refs["main"]
    address = f"{mirror.url}/datasets/a/files/resolve/{commit}/in/"
    monkeypatch.setitem(SOURCES, "game24", DatasetSource(address, "MIT", 1, {"24.csv": "24.csv"}))
    assert (fetch_dataset("game24") / "24.csv").read_bytes() == b"Rank,Puzzles\n1,1 1 4 6\n"
    monkeypatch.setitem(SOURCES, "svamp", DatasetSource(address, "MIT", 1, {"SVAMP.json": "SVAMP.json"}))
    with pytest.raises(TaskError, match=r"SVAMP.json could not be downloaded \(HTTP Error 404"):
        fetch_dataset("svamp")


@pytest.mark.skipif(not os.environ.get("PONDER_DATA"), reason="PONDER_DATA names no folder of public sets")
@pytest.mark.parametrize("name", SOURCES)
def test_sources_name_the_files_that_tasks_read(name: str) -> None:
    folder = Path(os.environ["PONDER_DATA"]) / name
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    assert all((folder / file).is_file() for file in SOURCES[name].files)
    task = tasks.TASKS[name]()
    assert len(task.test) > 0


def test_unknown_hub_dataset_is_questions_and_answers(mirror: HubMirror) -> None:
    lines = [json.dumps({"text": f"Find {i}.", "gold": str(i), "id": f"q{i}"}) for i in range(5)]
    files = {"train.jsonl": "\n".join(lines[:3]).encode(), "validation.jsonl": "\n".join(lines[3:]).encode()}
    publish(mirror, "my-org/my-set", files)
    kind, settings = tasks.find("my-org/my-set", {"test_split": "validation"})
    task = kind(**settings, prompt_column="text", gold_column="gold", answer_type="number")
    assert isinstance(task, HubDataset) and task.name == "my-org/my-set"
    assert [p.answer for p in task.train] == ["0", "1", "2"] and [p.answer for p in task.test] == ["3", "4"]
    assert task.test[0].id == "my-org/my-set/test/q3" and "Find 3." in task.test[0].question
    assert "4" in task.gold(task.test[1])


def test_shards_of_a_split_are_joined_in_order(mirror: HubMirror, tmp_path: Path) -> None:
    parts = [parquet(part, tmp_path / "part.parquet") for part in (ROWS[:2], ROWS[2:4], ROWS[4:])]
    files = {f"data/train-0000{i}-of-00002.parquet": parts[i] for i in range(2)}
    publish(mirror, "my-org/shards", {**files, "data/test-00000-of-00001.parquet": parts[2]})
    task = HubDataset(repo="my-org/shards", answer_type="text")
    assert [p.question.partition("?")[0] for p in task.train] == [f"What is {i} + {i}" for i in range(4)]
    assert len(task.test) == 2


def test_folder_is_asked_for_where_there_are_several(mirror: HubMirror) -> None:
    row = b'{"question": "1?", "answer": "1"}\n'
    publish(mirror, "my-org/two", {"easy/test.jsonl": row, "hard/test.jsonl": row.replace(b"1", b"2")})
    with pytest.raises(TaskError, match=r"in several folders: give --task.config easy or hard"):
        _ = HubDataset(repo="my-org/two").test
    assert [p.answer for p in HubDataset(repo="my-org/two", config="hard").test] == ["2"]


def test_missing_split_and_repository_are_one_sentence(mirror: HubMirror) -> None:
    publish(mirror, "my-org/none", {"README.md": b"card"})
    with pytest.raises(TaskError, match=r"has no file of a split 'test' .*--task.test_split"):
        _ = HubDataset(repo="my-org/none").test
    with pytest.raises(UnknownName, match=r"Known: addition.*no public repository my-org/nothing"):
        _ = HubDataset(repo="my-org/nothing").test


def test_settings_are_checked_without_a_connection(mirror: HubMirror) -> None:
    with pytest.raises(UsageError, match="give two different splits"):
        HubDataset(repo="a/b", train_split="test")
    with pytest.raises(UsageError, match="is no repository"):
        HubDataset(repo="a")
    with pytest.raises(UnknownName, match="answer_type"):
        HubDataset(repo="a/b", answer_type="maths")  # type: ignore[arg-type]
    assert not mirror.requests


def test_hub_tasks_are_tasks() -> None:
    assert set(dataset_sources.HUB_TASKS.values()) <= set(tasks.TASKS)
