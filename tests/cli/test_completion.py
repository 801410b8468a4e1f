"""What the tab key offers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ponder.cli.commands import COMMANDS
from ponder.cli.completion import SCRIPTS, complete


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], {"train"}),
        (["run", "rej"], {"rejection"}),
        (["plan", "tr"], {"train", "tree_grpo"}),
        (["train", "countd"], {"countdown"}),
        (["eval", "addition", "--strategy", "best"], {"best-of-n"}),
        (["train", "addition", "--algorithm", "dr"], {"dr-grpo"}),
        (["train", "addition", "--steps", "3", "--task.dig"], {"--task.digits"}),
        (["train", "--lora."], {"--lora.rank", "--lora.alpha", "--lora.targets"}),
        (["eval", "addition", "--strategy", "beam-search", "--strategy.beam"], {"--strategy.beam_width"}),
        (["solve", "why?", "--effort", "m"], {"minimal", "medium", "max"}),
        (["plot", "par"], {"pareto"}),
        (["train", "addition", "--no-pre"], {"--no-preflight"}),
        (["run", "addition", "--dig"], {"--digits"}),
        (["sft", "addition", "--model", "smo"], {"smollm2"}),
        (["nonsense", ""], set()),
        (["run", "nonsense", "--"], set()),
    ],
)
def test_words(words: list[str], offered: set[str]) -> None:
    assert set(complete(words)) == offered


def test_every_command_completes_its_flags() -> None:
    assert set(complete([""])) == {*COMMANDS, "--help", "--version"}
    for command in COMMANDS:
        flags = list(complete([command, "addition", "--"] if command in ("run", "plan") else [command, "--"]))
        assert "--help" in flags and all(flag.startswith("--") for flag in flags), command


def test_a_run_directory_is_offered_as_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "job.json").write_text("{}")
    assert set(complete(["eval", "addition", "--model", "runs/"])) == {"runs/mine"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_valid_in_its_shell(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([program, "-n"], input=SCRIPTS[shell], text=True, check=True)


def test_bash_completes(tmp_path: Path) -> None:
    """The script asks the program that is called `ponder` and offers its answers."""
    (tmp_path / "ponder").write_text('#!/bin/sh\nshift 3\necho "$@" > asked\nprintf "train\\ntree\\n"\n')
    (tmp_path / "ponder").chmod(0o755)
    script = SCRIPTS["bash"] + 'COMP_WORDS=(ponder run tr); COMP_CWORD=2; _ponder; echo "${COMPREPLY[@]}"'
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "train tree\n" and (tmp_path / "asked").read_text() == "run tr\n"
