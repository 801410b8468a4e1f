"""The default run directory: the same command has the same, another setting another."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path

import pytest

from ponder.cli import flags
from ponder.cli.job_commands import sft, train
from ponder.cli.run_names import default_run_folder, path_slug, settings_digest


def folder_of(command: object, *argv: str) -> Path:
    launch = flags.run_command(command, [*argv], "ponder x")  # type: ignore[arg-type]
    return Path(launch.folder)


def test_train_names_algorithm_task_and_model() -> None:
    folder = folder_of(train, "addition", "--model", "smollm2", "--algorithm", "rloo")
    assert folder.parent == Path("runs") and folder.name.startswith("rloo-addition-smollm2-")
    assert len(folder.name) == len("rloo-addition-smollm2-") + 6


@pytest.mark.parametrize(
    "more", [["--lr", "1e-4"], ["--algorithm", "rloo"], ["--seed", "1"], ["--task.digits", "3"], ["--lora.rank", "4"]]
)
def test_another_setting_has_another_folder(more: list[str]) -> None:
    assert folder_of(train, "addition", *more) != folder_of(train, "addition")


def test_the_same_settings_have_the_same_folder() -> None:
    assert folder_of(train, "addition", "--lr", "1e-5") == folder_of(train, "addition")
    assert folder_of(train, "addition", "--steps", "7") == folder_of(train, "addition", "--steps", "900")
    assert folder_of(sft, "addition", "--steps", "7") == folder_of(sft, "addition")


def test_a_decay_to_the_last_step_has_a_folder_for_each_number_of_steps() -> None:
    one, two = (folder_of(train, "addition", "--cosine", "--steps", n) for n in ("5", "6"))
    assert one != two


@dataclass(frozen=True)
class Job:
    task: str
    seed: int = 0


def test_a_new_setting_with_its_default_keeps_the_digest() -> None:
    grown = make_dataclass("Job", [("task", str), ("seed", int, 0), ("extra", float, 1.0)], frozen=True)
    grown.__module__ = Job.__module__
    assert settings_digest(grown("a")) == settings_digest(Job("a"))  # type: ignore[call-arg]
    assert settings_digest(replace(Job("a"), seed=1)) != settings_digest(Job("a"))
    assert default_run_folder(Job("a"), "x/y", "z").name == f"x-y-z-{settings_digest(Job('a'))}"


def test_path_slug_is_a_part_of_a_file_name() -> None:
    assert [path_slug(n) for n in ("runs/a", "/m/b c/d.gguf", "..", "openai:http://h:1/v1")] == [
        "a", "b-c-d.gguf", "model", "h-1-v1",
    ]  # fmt: skip
