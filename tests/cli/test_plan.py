"""`ponder plan` tells what a run will be like and keeps nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ponder.cli import plan, plan_view
from ponder.cli.plan import PassRateScan, RunPlan, TokenSpan
from ponder.measure.diagnostics.training_health import TrainingFinding
from ponder.pipelines.preflight import dry_run
from ponder.pipelines.preflight.checks import Check
from ponder.pipelines.preflight.forecast import forecast_groups
from ponder.runs import read_job
from ponder.train import learner as learning
from ponder.train.learner import OutOfMemory
from ponder.train.pack import PackedBatch, TraceChains

from .conftest import CommandResult

Ponder = Callable[..., CommandResult]
QUICK = ("--sample-groups", "4", "--dry-run-steps", "1")


def test_plan_a_recipe(ponder: Ponder, here: Path) -> None:
    output = ponder("plan", "tiny.py", "--steps", "50", "--sample-groups", "6")
    assert output.code == 0, output.err
    for text in ("Addition(digits=1)", "17,792 parameters, all learn, ", " on cpu", "GRPO, no KL, Shao et al. 2024",
                 "50 of 4 problems x 8 completions of at most 3 tokens", "AdamW(lr=0.01)"):  # fmt: skip
        assert text in " ".join(output.out.split()), text
    for text in ("s to sample, ", "s to learn (the last of 2", "the run", "iB at most", "iB a checkpoint, 2 kept"):
        assert text in output.out, text
    assert "  prompt, 32  Question: What is " in output.out and "  trained, " in output.out and "<eos>" in output.out
    assert "in the mean of 48 samples on 6 problems" in output.out and "have no gradient at n = 8" in output.out
    assert "! " in output.out and "raise --max-tokens (now 3)" in output.out, "the setting to change, in words"
    assert "  ok  grader " in output.out and "it can run, but see what is marked !" in output.out
    assert max(map(len, output.out.splitlines())) <= 100
    assert [p.name for p in here.iterdir() if p.name != "__pycache__"] == ["tiny.py"], "nothing is kept"


def test_plan_json(ponder: Ponder, here: Path) -> None:
    output = ponder("plan", "tiny.py", "--json", *QUICK)
    (data,) = [json.loads(line) for line in output.out.splitlines()]
    assert output.code == 0 and output.err == "" and data["ready"] is True
    assert data["job"]["steps"] == 3 and data["model"]["parameters"] == 17_792
    assert (
        data["time"]["low"] <= data["time"]["expected"] <= data["time"]["high"] and data["dry_run"]["peak_bytes"] > 1e6
    )
    assert [run["kind"] for run in data["prompt"]] == ["prompt", "trained"]
    assert data["pass_rate"]["problems"] == 4 and data["pass_rate"]["groups"]["n"] == 8
    assert {f["name"] for f in data["pass_rate"]["findings"]} and len(data["checks"]) == 9


def test_without_probe_and_scan(ponder: Ponder, here: Path) -> None:
    output = ponder("plan", "tiny.py", "--sample-groups", "0", "--dry-run-steps", "0")
    assert output.code == 0 and "cost" not in output.out and "pass rate" not in output.out
    assert "checks" in output.out and output.out.endswith("ready\n")


def test_a_failed_check(ponder: Ponder, here: Path) -> None:
    (here / "mute.py").write_text((here / "tiny.py").read_text().replace('template="qa"', 'template="{{- 1 + 1 }}"'))
    output = ponder("plan", "mute.py", *QUICK)
    assert output.code == 1 and "  !!  template " in output.out and "not ready: template" in output.out
    (data,) = [json.loads(line) for line in ponder("plan", "mute.py", "--json", *QUICK).out.splitlines()]
    assert data["ready"] is False


def test_steps_that_cannot_be_taken(ponder: Ponder, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OutOfMemory("not even one sequence fits into memory")

    monkeypatch.setattr(dry_run, "dry_run", full)
    output = ponder("plan", "tiny.py", *QUICK)
    assert output.code == 1 and "the first steps cannot be taken: not even one sequence fits" in output.out
    assert "not ready: cost" in output.out and "  ok  finite" in output.out


def test_weights_that_are_not_finite(ponder: Ponder, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ponder.models.scratch_model import ScratchModel

    build = ScratchModel.build

    def damaged(self: ScratchModel, *args: Any) -> Any:
        net, tokenizer = build(self, *args)
        with torch.no_grad():
            net.norm.weight.fill_(torch.nan)
        return net, tokenizer

    monkeypatch.setattr(ScratchModel, "build", damaged)
    output = ponder("plan", "tiny.py", *QUICK)
    assert output.code == 1 and "not ready: finite, cost" in output.out


def test_plan_a_run_directory(ponder: Ponder, here: Path, trained: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in trained.rglob("*")}
    output = ponder("plan", trained, *QUICK)
    assert output.code == 0 and "Addition(digits=1)" in output.out, output.err
    assert {p: p.stat().st_mtime_ns for p in trained.rglob("*")} == before and read_job(trained)["steps"] == 3


def test_plan_the_flags_of_train(ponder: Ponder, here: Path, model: Path) -> None:
    small = (
        "--model",
        model,
        "--steps",
        "2",
        "--problems-per-step",
        "2",
        "--group-size",
        "2",
        "--task.digits",
        "1",
        "--max-tokens",
        "3",
    )
    output = ponder("plan", "train", "addition", "--algorithm", "cispo", *small, *QUICK)
    assert output.code == 0 and "CISPO, no KL, MiniMax 2025" in output.out, output.err
    kl = ponder("plan", "train", "addition", "--curriculum", "frontier", "--epochs-per-batch", "2", *small, *QUICK)
    assert "GRPO, 0.04 KL (k3) in the loss" in kl.out and "  ok  KL  " in kl.out and "epochs_per_batch 2" in kl.out


def test_plan_fine_tuning(ponder: Ponder, here: Path, model: Path) -> None:
    small = ("--model", model, "--steps", "2", "--batch-size", "2", *QUICK)
    output = ponder("plan", "sft", "addition", "--task.digits", "1", *small)
    assert output.code == 0 and "SFT, no KL, Ouyang" in output.out and "2 of 2 answers" in output.out, output.err
    assert "pass rate" not in output.out and "to sample" not in output.out and "grader" not in output.out
    assert "  trained, " in output.out and "  ok  EOS " in output.out
    Path("pairs.jsonl").write_text('{"prompt": "What is 1 + 1?", "chosen": "2", "rejected": "3"}\n' * 3)
    pairs = ponder("plan", "sft", "--algorithm", "dpo", "pairs.jsonl", *small)
    assert pairs.code == 0 and "pairs.jsonl" in pairs.out and "copied prompts" not in pairs.out, pairs.err


def test_plan_counts_the_weights_of_a_quantised_base(ponder: Ponder, here: Path, model: Path) -> None:
    small = (
        "--model",
        model,
        "--steps",
        "2",
        "--batch-size",
        "2",
        "--sample-groups",
        "0",
        "--dry-run-steps",
        "0",
        "--json",
    )
    found = []
    for base in ((), ("--lora.rank", "2"), ("--lora.rank", "2", "--lora.base", "nf4")):
        said = ponder("plan", "sft", "addition", "--task.digits", "1", *base, *small)
        assert said.code == 0, said.err
        found.append(json.loads(said.out))
    whole, adapted, quantised = (one["model"] for one in found)
    assert adapted["parameters"] == whole["parameters"] + adapted["trained"], "adapters stand beside the weights"
    assert (quantised["parameters"], quantised["trained"]) == (adapted["parameters"], adapted["trained"])
    adapter, merged = (one["checkpoint_bytes"] for one in found[1:])
    assert adapter < merged, "the base's file is referred to; a quantised base is stored, dequantised and merged"


def test_plan_the_first_stage_that_trains(ponder: Ponder, here: Path) -> None:
    more = "from ponder.pipelines.evaluate import Evaluate\nfrom ponder.pipelines.stages import Stage, Stages\n"
    more += "from tiny import recipe as first\n\n\ndef recipe(steps: int = 2) -> Stages:\n    rl = first(steps)\n"
    more += '    return Stages((Stage("rl", rl), Stage("test", Evaluate(rl.task, "stage:rl", limit=2))))\n'
    Path("several.py").write_text(more)
    output = ponder("plan", "several.py", *QUICK)
    assert (
        output.code == 0 and "stage 'rl', the first that trains; later ones begin from what it learns" in output.out
    ), output.err


def test_help(ponder: Ponder, here: Path) -> None:
    output = ponder("plan", "--help")
    assert output.code == 0 and "ponder plan train|sft" in output.out and ponder("plan").code == 2
    for argv in (("tiny.py",), ("train",), ("sft",)):
        assert "--sample-groups N" in ponder("plan", *argv, "--help").out


def test_tokens_that_are_not_trained_are_marked(ponder: Ponder, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = learning.pack

    def masked(part: Sequence[TraceChains], device: torch.device, notes: Sequence[str] = ()) -> PackedBatch:
        batch = pack(part, device, notes)
        return replace(batch, weight_N=torch.where(batch.target_N == 2, 0.0, batch.weight_N))

    monkeypatch.setattr(learning, "pack", masked)
    output = ponder("plan", "tiny.py", "--sample-groups", "0", "--dry-run-steps", "0")
    assert output.code == 1 and "  untrained, 1  <eos>" in output.out and "not ready: EOS" in output.out


def drawn(result: RunPlan, width: int = 100, colour: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=colour, color_system="standard" if colour else None).print(
        plan_view.render_plan(result), highlight=False
    )
    return out.getvalue()


def example() -> RunPlan:
    from ponder.pipelines.rl import RL
    from ponder.tasks import Addition

    shown = [
        TokenSpan("prompt", "What?\n\x1b[2J" + "a long one " * 100, 300),
        TokenSpan("trained", "7<eos>", 2),
        TokenSpan("untrained", "x", 1),
    ]
    scanned = PassRateScan(
        20,
        80,
        None,
        forecast_groups([[1.0, 0.0, 0.0, 0.0]] * 15 + [[0.0] * 4] * 25),
        0.7,
        0.5,
        0.01,
        [TrainingFinding("x", "so it is", 3)],
    )
    checks = [
        Check("one", True, "fine", "why"),
        Check("two", False, "bad", "why, and the fix"),
        Check("three", None, "no", ""),
    ]
    return RunPlan(
        RL(Addition()),
        device="cpu",
        dtype="float32",
        eos_tokens=["<eos>"],
        token_spans=shown,
        pass_rate=scanned,
        checks=checks,
    )


@pytest.mark.parametrize("width", [60, 100, 140])
def test_it_fits(width: int) -> None:
    text = drawn(example(), width)
    assert max(map(len, text.splitlines())) <= width and "\x1b" not in text
    assert "What?↵" in text and " ... " in text and "why, and the fix" in " ".join(text.split())


def test_colours() -> None:
    text = drawn(example(), colour=True)
    assert "\x1b[32m7\x1b[0m" in text, "what is trained is green"
    assert "\x1b[1;7;32m<eos>" in text, "and its end stands out"
    assert "\x1b[1;31mx" in text, "what is not is red"
    assert "\x1b[31m! so it is" in text


def test_another_group_size_is_named_where_it_would_help() -> None:
    result = example()
    assert "! --group-size 8 would leave" in drawn(result)
    assert result.pass_rate is not None
    result.pass_rate.groups = forecast_groups([[0.0] * 4] * 30)
    assert "would leave" not in drawn(result), "none would"


def test_verdicts() -> None:
    result = example()
    assert plan_view.verdict_text(result).plain == "not ready: two"
    result.checks = result.checks[:1]
    assert result.ready and plan_view.verdict_text(result).plain == "it can run, but see what is marked !"
    result.pass_rate = None
    assert plan_view.verdict_text(result).plain == "ready"
    result.ineffective_settings = ["8 samples at temperature 0 are all the same"]
    assert plan_view.verdict_text(result).plain == "it can run, but see what is marked !"
    assert "! 8 samples at temperature 0 are all the same" in drawn(result)
    assert plan_view.plan_json(result)["ineffective_settings"] == result.ineffective_settings


@pytest.mark.parametrize(
    ("value", "message"),
    [(12, "12"), (9_600, "9.6 thousand"), (6.6e6, "6.6 million"), (2e9, "2.0 billion")],
)
def test_amounts(value: float, message: str) -> None:
    assert plan_view.format_count(value) == message


def test_sizes_and_shares() -> None:
    assert [plan_view.format_memory(2**e) for e in (11, 21, 31)] == ["2 KiB", "2 MiB", "2.0 GiB"]
    assert [plan_view.format_percent(x) for x in (0.0, 0.004, 0.05, 0.5, 1.0)] == [
        "0 %",
        "0.4 %",
        "5.0 %",
        "50 %",
        "100 %",
    ]


def test_looks() -> None:
    assert plan.plan_flags()[:2] == (32, 2)
