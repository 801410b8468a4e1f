"""What the user can put right is one sentence on stderr and exit code 2; nothing is written or overwritten."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from ponder import cli
from ponder.cli import main
from ponder.errors import UsageError

from .conftest import SUBPROCESS_ENV, CommandResult

Ponder = Callable[..., CommandResult]

BAD = [
    (("trian",), "Did you mean 'train'"),
    (("run", "aditon"), "no recipe named 'aditon'. Did you mean 'addition'"),
    (("run", "nowhere.py"), "no recipe named 'nowhere.py'"),
    (("run", "--steps", "3"), "give the recipe first"),
    (("run", "tiny.py", "--stepz", "3"), "no flag --stepz, did you mean --steps?"),
    (("run", "tiny.py", "--steps", "three"), "--steps: 'three' is not a whole number"),
    (("run", "tiny.py", "--steps", "0"), "steps is 0; it must be at least 1"),
    (("run", "tiny.py", "--lr", "-1"), "a learning rate must be positive"),
    (("run", "tiny.py", "--run", "tiny.py"), "cannot write the run directory tiny.py"),
    (("run", "tiny.py", "--run", "."), "is not a run directory and not empty"),
    (("run", "torn.py"), "torn.py, line 1"),
    (("run", "empty.py"), "has no function recipe"),
    (("run", "lost.py"), "No module named 'no_such_module'"),
    (("run", "number.py"), "must return a job"),
    (("run", "latin.py"), "'utf-8' codec can't decode byte 0xe9"),
    (("run", "nul.py"), "nul.py: source code string cannot contain null bytes"),
    (("run", "raises.py"), "raises.py cannot be loaded: ValueError: bad row (raises.py, line 2)"),
    (("plan", "raises.py"), "raises.py cannot be loaded: ValueError: bad row (raises.py, line 2)"),
    (("run", "leaves.py"), "leaves.py cannot be loaded: SystemExit: 3 (leaves.py, line 1)"),
    (("run", "missing.py"), "the recipe cannot make its job: KeyError: 'x' (missing.py, line 2)"),
    (("train", "addition", "--config", "deep.json"), "cannot read deep.json: it is nested too deeply"),
    (("solve", "q", "--prices", "deep.json", "--budget.dollars", "1"), "the price table deep.json cannot be read"),
    (("plan", "eval", "--width", "1e-300"), "a width of 1e-300"),
    (("plan", "eval", "--difference", "1e-200"), "cannot be told apart"),
    (("run", "taken.py"), "'json'"),
    (("run", "random.py"), "would hide the module 'random'"),
    (("run", "x" * 300), "File name too long"),
    (("train",), "required: TASK"),
    (("train", "adition"), "no task named 'adition'. Did you mean 'addition'"),
    (("train", "json:dumps"), "is no task"),
    (("train", "no.such:thing"), "cannot load 'no.such:thing'"),
    (("train", "addition", "--task.digit", "3"), "Did you mean 'digits'"),
    (("train", "addition", "--task.digits", "x"), "--task.digits: 'x' is not a whole number"),
    (("train", "addition", "--task.digits"), "--task.digits: expected one argument"),
    (("train", "addition", "--set", "digits=3"), "no flag --set"),
    (("train", "addition", "--group-size", "0"), "group_size is 0; it must be at least 1"),
    (("train", "addition", "--problems-per-step", "1000000000", "--run", "r"), "lower problems_per_step or group_size"),
    (("train", "addition", "--group-size", "1"), "a group of one has no baseline"),
    (("train", "addition", "--algorithm", "grop"), "no algorithm named 'grop'. Did you mean 'grpo'"),
    (("train", "addition", "--algorithm.clipp", "1"), "no algorithm setting named 'clipp'. Did you mean 'clip'"),
    (("train", "addition", "--algorithm.clip", "wide"), "--algorithm.clip: 'wide' is not a number"),
    (("train", "addition", "--algorithm.clip", "-1"), "GRPO needs positive clip ranges"),
    (("train", "addition", "--algorithm.kl.estimator", "k9"), "'k9' is not one of k1, k2, k3"),
    (("train", "addition", "--algorithm.kl.estimator", "k1"), "k1 in the loss has no gradient"),
    (("train", "addition", "--beta", "-1"), "a KL coefficient must be positive"),
    (("train", "addition", "--algorithm", "rejection", "--beta", "1"), "rejection has no KL term"),
    (
        ("train", "addition", "--curriculum", "random"),
        "no curriculum named 'random'. Known: easy-to-hard, frontier, uniform",
    ),
    (("train", "addition", "--lora.rank", "-1"), "LoRA has rank -1"),
    (("train", "addition", "--optimizer-states", "int4"), "'int4' is not one of float32, int8, cpu"),
    (("train", "addition", "--epochs-per-batch", "0"), "epochs_per_batch is 0; it must be at least 1"),
    (("train", "addition", "--teacher", "nobody", "--run", "r"), "no model named 'nobody'"),
    (("train", "addition", "--temperature", "0"), "the temperature is 0, so all samples are equal"),
    (("train", "addition", "--device", "tpu", "--run", "r"), "no device named 'tpu'"),
    (("sft",), "required: DATA"),
    (("sft", "absent.jsonl", "--run", "r"), "cannot read the conversations"),
    (("sft", "addition", "--algorithm", "grpo"), "no algorithm named 'grpo'"),
    (("sft", "addition", "--algorithm", "dpo"), "a task has no rejected answers"),
    (("sft", "addition", "--algorithm", "distill"), "distillation needs a teacher"),
    (("sft", "addition", "--teacher", "smollm2"), "distillation needs a teacher, and only distillation"),
    (("sft", "x.jsonl", "--algorithm", "dpo", "--algorithm.loss_type", "kto"), "'kto' is not one of sigmoid, ipo"),
    (("plan", "--sample-groups", "3"), "no flag --sample-groups"),
    (("plan", "aditon"), "no recipe named 'aditon'. Did you mean 'addition'"),
    (("plan", "tiny.py", "--sample-group", "3"), "no flag --sample-group, did you mean --sample-groups?"),
    (("plan", "tiny.py", "--sample-groups", "-1"), "each is 0 or more"),
    (("plan", "train"), "required: TASK"),
    (("plan", "measure.py"), "only training can be planned, and Evaluate does not train"),
    (("eval",), "required: TASK"),
    (("eval", "addition", "--strategy", "chain", "--n", "4"), "--strategy samples"),
    (("eval", "addition", "--strategy", "baem-search"), "no strategy named 'baem-search'. Did you mean 'beam-search'"),
    (("eval", "addition", "--effort", "hihg"), "'hihg' is not one of none, minimal, low"),
    (
        ("eval", "addition", "--strategy", "majority-vote", "--strategy.chains_per_rounds", "2"),
        "Did you mean 'chains_per_round'",
    ),
    (("eval", "addition", "--budget.tokens", "0"), "a budget of 0 tokens buys nothing"),
    (("solve", "q", "--strategy", "cot", "--n", "5"), "cot takes no --n"),
    (("solve", "q", "--strategy", "json:dumps"), "is no strategy"),
    (("eval", "addition", "--model", "smolm2", "--run", "r"), "Did you mean 'smollm2'"),
    (("eval", "addition", "--limit", "0"), "limit is 0; it must be at least 1"),
    (("collect", "addition", "--limit", "0"), "limit is 0; it must be at least 1"),
    (("label", "addition", "--limit", "0"), "limit is 0; it must be at least 1"),
    (("eval", "addition", "--max-tokens", "0"), "max_tokens is 0"),
    (("solve",), "holds no question"),
    (("solve", " "), "the question is empty"),
    (("solve", "\udcff\udcfe"), "the question is not valid UTF-8"),
    (("solve", "q", "--model", ""), "the model's name is empty"),
    (("chat", "smollm2", "--max-tokens", "0", "--say", "hi"), "max_tokens is 0"),
    (("run", "frozen.py"), "frozen_layers is 1000"),
    (("problems", "filter", "nope.jsonl", "--out", "p.jsonl"), "there is no file nope.jsonl"),
    (("contamination", "tiny.py", "addition:side"), "a side is train or test, not 'side'"),
    (("train", "custom", "--task.data", "x.jsonl", "--task.rewards", "tiny.py"), "of the file: tiny.py:NAME"),
    (("book", "--on", "nope"), "name the figure to make"),
    (("book", "votes", "--runs", "tiny.py"), "cannot write the run directory tiny.py"),
    (("solve", "q", "--model", "nowhere"), "no model named 'nowhere'"),
    (("solve", "q", "--model", "tiny.py"), "is a file but not a .gguf"),
    (("solve", "q", "--model", "."), "has no config.json"),
    (("solve", "q", "extra"), "'extra' is one argument too many"),
    (("export", "nowhere", "out"), "no model named 'nowhere'"),
    (("export", "nowhere", "tiny.py"), "tiny.py exists and is not overwritten"),
    (("export", "nowhere", "out", "--gguf", "F16"), "ends in .gguf"),
    (("book", "bandits", "--seed", "-1"), "--seed is -1; it must be 0 or more"),
    (("book", "step-labels", "--task.digits", "3"), "has a task of its own: leave out --task.digits"),
    (("book", "judge-answers"), "on the tiny model this is the figure judge-scale: make that, or give --on"),
    (("book", "bandits", "--seed", str(2**63)), "it must be below 2^63"),
    (("run", "addition", "--seed", str(2**63)), "it must be below 2^63"),
    (("cluster", "up", "--port", "99999999"), "--port is 99999999; it must be from 1 to 65535"),
    (("plot", "training", "nowhere"), "there is no run directory nowhere"),
    (("plot", "tiny.py"), "KIND: 'tiny.py' is a path, and KIND comes before it: one of coverage, "),
    (("demo", "--stepz", "1"), "did you mean --steps?"),
    (("doctor", "--jsn"), "did you mean --json?"),
]


@pytest.mark.parametrize(("argv", "message"), BAD, ids=[" ".join(argv)[:40] for argv, _ in BAD])
def test_bad_input(ponder: Ponder, here: Path, argv: tuple[str, ...], message: str) -> None:
    (here / "torn.py").write_text("def recipe(:\n")
    (here / "empty.py").write_text("")
    (here / "lost.py").write_text("import no_such_module\n")
    (here / "number.py").write_text("def recipe():\n    return 3\n")
    (here / "latin.py").write_bytes(b'NAME = "caf\xe9"\n')
    (here / "nul.py").write_bytes(b"x = 1\0")
    (here / "raises.py").write_text("import ponder\nraise ValueError('bad row')\n")
    (here / "leaves.py").write_text("raise SystemExit(3)\n")
    (here / "missing.py").write_text("def recipe():\n    return {}['x']\n")
    (here / "frozen.py").write_text(
        "from dataclasses import replace\n\nfrom tiny import recipe as tiny\n\n\n"
        "def recipe():\n    return replace(tiny(), frozen_layers=1000)\n"
    )
    (here / "deep.json").write_text("[" * 100_000)
    (here / "taken.py").write_text("def recipe(json: int = 1):\n    return 3\n")
    (here / "random.py").write_text("def recipe():\n    return 3\n")
    (here / "measure.py").write_text(
        "from ponder.pipelines.evaluate import Evaluate\nfrom ponder.tasks import Addition\n\n\n"
        "def recipe() -> Evaluate:\n    return Evaluate(Addition())\n"
    )
    before = {p.name: p.read_bytes() for p in here.iterdir()}
    output = ponder(*argv)
    assert output.code == 2 and output.out == ""
    *progress, error = output.err.splitlines()
    assert error.startswith("error: ") and message in error
    assert all("loading the model" in line for line in progress)
    left = [p for p in here.iterdir() if p.name != "__pycache__"]
    assert {p.name: p.read_bytes() if p.is_file() else "a folder" for p in left} == before
    assert not list(here.rglob("job.json")), "the corrected command may use the same directory"


def test_with_json_the_error_is_an_event_too(ponder: Ponder, here: Path) -> None:
    output = ponder("solve", "q", "--model", "nowhere", "--json")
    assert output.code == 2 and '"event": "error"' in output.out and output.err.startswith("error: no model named")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written() -> None:
    command = [sys.executable, "-m", "ponder", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=SUBPROCESS_ENV, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr == "error: cannot write: No space left on device\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), "error: runs/x: No space left on device\n"),
        (
            SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
            "error: cannot write: No space left on device\n",
        ),
        (OSError(errno.EROFS, "Read-only file system"), "error: cannot write: Read-only file system\n"),
        (ExceptionGroup("several", [ValueError("x"), ExceptionGroup("in", [UsageError("no")])]), "error: no\n"),
        (
            MemoryError(),
            "error: out of memory: lower --max-tokens-per-microbatch, --problems-per-step, --group-size or",
        ),
    ],
)
def test_errors_from_below(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert main(["solve"]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(argv: list[str]) -> int:
        raise ExceptionGroup("several", [ZeroDivisionError()])

    monkeypatch.setattr(cli, "_dispatch", fail)
    with pytest.raises(ExceptionGroup):
        main(["solve"])
