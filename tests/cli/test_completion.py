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
        (["tra"], {"train", "traces"}),
        (["run", "rej"], {"rejection"}),
        (["plan", "tr"], {"train", "trace_supervision", "tree_grpo"}),
        (["train", "countd"], {"countdown"}),
        (["eval", "addition", "--strategy", "best"], {"best-of-n"}),
        (["train", "addition", "--algorithm", "dr"], {"dr-grpo"}),
        (["train", "addition", "--steps", "3", "--task.dig"], {"--task.digits"}),
        (["train", "--lora."], {"--lora.rank", "--lora.alpha", "--lora.base", "--lora.targets"}),
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


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A program called `ponder` that writes down what it is asked, and offers two words, or none."""
    (tmp_path / "ponder").write_text(
        '#!/bin/sh\nshift 3\necho "$@" > asked\n[ "$1" = export ] || printf "train\\ntree\\n"\n'
    )
    (tmp_path / "ponder").chmod(0o755)
    (tmp_path / "some-model").mkdir()
    return tmp_path


def run_shell(shell: str, script: str, here: Path) -> str:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    plain = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    env = {"PATH": f"{here}:/usr/bin:/bin", "HOME": str(here), "TERM": "dumb"}
    done = subprocess.run(
        [program, *plain, "-c", SCRIPTS[shell] + script], cwd=here, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_bash_completes(stand_in: Path) -> None:
    """The script asks the program that is called `ponder` and offers its answers."""
    script = 'COMP_WORDS=(ponder run tr); COMP_CWORD=2; _ponder; echo "${COMPREPLY[@]}"'
    assert run_shell("bash", script, stand_in) == "train tree\n"
    assert (stand_in / "asked").read_text() == "run tr\n"


def test_zsh_completes(stand_in: Path) -> None:
    """Without a terminal there is no line to complete: the words are set, and what is added is printed."""
    script = 'compadd() { print -r -- "$@" }; _files() { print files }\n'
    script += 'words=(ponder run tr); CURRENT=3; _ponder; words=(ponder export ""); CURRENT=3; _ponder'
    assert run_shell("zsh", script, stand_in) == "-Q -- train tree\nfiles\n"
    assert (stand_in / "asked").read_text().split() == ["export"]


def test_fish_completes(stand_in: Path) -> None:
    assert run_shell("fish", "complete -C 'ponder run tr'", stand_in).splitlines() == ["train", "tree"]
    assert (stand_in / "asked").read_text() == "run tr\n"
    assert "some-model/" in run_shell("fish", "complete -C 'ponder export some'", stand_in)


def test_run_directory_is_offered_to_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "job.json").write_text("{}")
    assert set(complete(["traces", ""])) == {"runs/mine"}
