"""`--config` and `--print-config`: a file stands for the flags it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ponder.cli import flags, job_commands
from ponder.errors import UsageError
from ponder.runs import job_json


def parse(*argv: str) -> dict[str, Any]:
    return flags.Parser("ponder train").add_parameters_of(job_commands.train).parse_given(argv)


def encoded(*argv: str) -> Any:
    return job_json.encode(flags.call_with_flags(job_commands.train, parse(*argv)).job)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


LINE = (
    "addition", "--task.digits", "3", "--steps", "7", "--lr", "3e-5", "--no-preflight", "--cosine", "--optimizer.betas",
    "0.8,0.9", "--epochs-per-batch", "2", "--algorithm", "dapo", "--algorithm.clip_high", "0.3", "--beta", "0.1",
    "--algorithm.kl.estimator", "k2", "--lora.rank", "4", "--sampling.stop", "END,\n",
)  # fmt: skip


def test_printed_config_makes_the_same_job(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(*LINE, "--print-config")
    assert end.value.code in (0, None)
    Path("job.yaml").write_text(capsys.readouterr().out)
    assert encoded("--config", "job.yaml") == encoded(*LINE)


def test_flags_override_the_file() -> None:
    Path("job.json").write_text(
        json.dumps({"task": "addition", "steps": 5, "preflight": False, "optimizer": {"eps": 1e-6}})
    )
    given = parse("--config=job.json", "--steps", "9", "--preflight")
    assert given["steps"] == 9 and given["preflight"] is True
    assert given["task"] == "addition" and given["optimizer_settings"] == {"eps": "1e-06"}
    assert parse("countdown", "--config", "job.json")["task"] == "countdown"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stepz: 3", "no flag --stepz"),
        ("- 1", "must hold flags by name"),
        ("a: [", "neither YAML nor JSON"),
        ("steps: many", "'many' is not a whole number"),
        ("optimizer.nope: 3", "nope"),
    ],
)
def test_bad_files_are_refused(text: str, words: str) -> None:
    Path("job.yaml").write_text(text)
    with pytest.raises(UsageError, match=words):
        encoded("addition", "--config", "job.yaml")


def test_parser_gives_neither_flag_to_the_command() -> None:
    assert set(parse("addition")) == {"task"}


def test_missing_file_is_refused() -> None:
    with pytest.raises(UsageError, match=r"there is no file nowhere\.yaml"):
        parse("addition", "--config", "nowhere.yaml")
    with pytest.raises(UsageError, match="expected one argument"):
        parse("addition", "--config")
