"""Every command goes through the real thing, with a model small enough for seconds."""

from __future__ import annotations

import gc
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from ponder.cli import doctor
from ponder.cli.run_names import recipe_run_folder
from ponder.engine.kv_cache import KVCache
from ponder.nets.decoder import Decoder
from ponder.runs import newest_checkpoint, read_job, read_metrics, read_traces
from ponder.train.algorithms import ONLINE
from ponder.train.learner import Learner

from .conftest import CommandResult

Ponder = Callable[..., CommandResult]
ONE_DIGIT = ("--task.digits", "1", "--max-tokens", "3")


def events(text: CommandResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.out.splitlines()]


def test_run_a_recipe_then_again(ponder: Ponder, here: Path) -> None:
    output = ponder("run", "tiny.py", "--steps", "2")
    run = Path("runs/tiny")
    assert output.code == 0 and "after 2 steps" in output.out
    assert "--model runs/tiny --max-tokens 3" in output.out, "how to ask it"
    assert "\nrun       runs/tiny\n" in output.out and "\nlook      ponder view runs/tiny\n" in output.out
    assert "step 1/2  reward " in output.err and "step 2/2  reward " in output.err
    assert [row["step"] for row in read_metrics(run)] == [0, 1]
    for again in (("run", "tiny.py", "--steps", "2"), ("run", "runs/tiny")):
        stored = ponder(*again)
        assert stored.code == 0 and "all 2 steps were done before; a larger --steps goes on" in stored.out
        assert [row["step"] for row in read_metrics(run)] == [0, 1], "it was done already"
    more = ponder("run", "tiny.py", "--steps", "3")
    assert more.code == 0 and "step 3/3  reward " in more.err and "done before" not in more.out
    assert [row["step"] for row in read_metrics(run)] == [0, 1, 2]


def test_another_job_in_the_same_directory(ponder: Ponder, here: Path) -> None:
    assert ponder("run", "tiny.py", "--steps", "1").code == 0
    output = ponder("run", "tiny.py", "--steps", "2", "--lr", "1e-3")
    assert output.code == 2 and "optimizer.lr: 0.01 -> 0.001" in output.err and output.err.count("\n") == 1


def test_recipe_with_another_model_or_task_has_a_run_of_its_own() -> None:
    def recipe(model: str = "tiny", task: str | None = None, lr: float = 1e-3) -> None: ...

    def folder(**given: Any) -> str:
        return str(recipe_run_folder("star", recipe, given))

    assert folder() == folder(model="tiny", lr=1e-2) == "runs/star"
    assert folder(model="smollm2") == "runs/star-smollm2"
    assert folder(model="Qwen/Qwen2.5-0.5B", task="gsm8k") == "runs/star-Qwen-Qwen2.5-0.5B-gsm8k"
    assert folder(task="mine.py:TASK") == "runs/star-mine.py-TASK"


def test_run_json(ponder: Ponder, here: Path) -> None:
    output = ponder("run", "tiny.py", "--json", "--run", "elsewhere", "--no-easy")
    *steps, done = events(output)
    assert output.err == "" and [s["event"] for s in steps] == ["step"] * 3
    assert [(s["step"], s["total"]) for s in steps] == [(1, 3), (2, 3), (3, 3)]
    assert "reward" in steps[0] and done["event"] == "done" and done["run"] == "elsewhere"
    assert read_job("elsewhere")["task"]["digits"] == 2


def test_nothing_of_a_run_stays_in_memory(ponder: Ponder, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the garbage collector: a recipe's next stage needs the memory at once."""
    alive, made = WeakSet[object](), set[type]()

    def watch(kind: type) -> None:
        init = kind.__init__  # type: ignore[misc]

        def remember(self: object, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            alive.add(self)
            made.add(kind)

        monkeypatch.setattr(kind, "__init__", remember)

    for kind in (Decoder, Learner, KVCache):
        watch(kind)
    gc.collect()
    gc.disable()
    try:
        assert ponder("run", "tiny.py", "--steps", "1").code == 0
        assert made == {Decoder, Learner, KVCache} and not list(alive)
    finally:
        gc.enable()


def test_recipe_help(ponder: Ponder, here: Path) -> None:
    output = ponder("run", "tiny.py", "--help")
    assert output.code == 0
    for text in ("A very small model learns to add.", "One digit, one layer.", "--steps N", "(default 3)",
                 "learning rate (default 0.01)", "--no-easy", "--run PATH"):  # fmt: skip
        assert text in output.out


def test_a_recipe_may_define_its_own_task(ponder: Ponder, here: Path) -> None:
    own = (here / "tiny.py").read_text() + "\n\nfrom dataclasses import dataclass\n"
    own += "@dataclass(frozen=True)\nclass Sums(Addition):\n    pass\n"
    (here / "own.py").write_text(own.replace("task=Addition(", "task=Sums("))
    assert ponder("run", "own.py", "--steps", "1").code == 0
    assert read_job("runs/own")["task"]["is"] == "own:Sums"
    assert ponder("run", "own.py", "--steps", "1").code == 0, "the recipe is the user's own word"
    refused = ponder("run", "runs/own")
    assert refused.code == 2 and "'own:Sums'" in refused.err and "--trust" in refused.err
    assert ponder("run", "runs/own", "--trust").code == 0


def test_stages(ponder: Ponder, here: Path) -> None:
    more = "from ponder.pipelines.evaluate import Evaluate\nfrom ponder.pipelines.stages import Stage, Stages\n"
    more += "from tiny import recipe as first\n\n\ndef recipe(steps: int = 2) -> Stages:\n    rl = first(steps)\n"
    more += '    return Stages((Stage("rl", rl), Stage("test", Evaluate(rl.task, "stage:rl", limit=2))))\n'
    Path("both.py").write_text(more)
    output = ponder("run", "both.py")
    assert output.code == 0 and "== rl\nreward " in output.out and "== test\ntask " in output.out, output.err
    assert "step 2/2" in output.err and "problem 2/2" in output.err
    done = events(ponder("run", "both.py", "--json"))[-1]
    assert done["stages"]["rl"]["steps"] == 2 and done["stages"]["test"]["num_problems"] == 2


def test_shipped_recipes(ponder: Ponder) -> None:
    output = ponder("run", "--help")
    assert output.code == 0 and "  addition " in output.out
    assert ponder("run", "addition", "--help").code == 0


def test_train_from_a_model(ponder: Ponder, here: Path, model: Path) -> None:
    flags = ("--steps", "2", "--problems-per-step", "2", "--group-size", "2", "--lr", "1e-3", *ONE_DIGIT)
    output = ponder("train", "addition", "--model", model, *flags, "--run", "out")
    assert output.code == 0, output.err
    assert newest_checkpoint("out") == Path("out/checkpoints/step-000002")
    assert "ponder solve 'What is" in output.out and "--model out" in output.out
    assert read_job("out")["task"]["digits"] == 1


def test_train_settings(ponder: Ponder, here: Path, model: Path) -> None:
    small = (
        "--model",
        model,
        "--steps",
        "1",
        "--problems-per-step",
        "2",
        "--group-size",
        "2",
        *ONE_DIGIT,
        "--run",
        "out",
    )
    settings = ("--algorithm.clip_high", "0.3", "--algorithm.bessel", "true", "--beta", "0.1",
                "--algorithm.kl.estimator", "k2",
                "--curriculum", "frontier", "--dynamic-sampling-rounds", "1", "--epochs-per-batch", "2",
                "--minibatches", "2", "--optimizer-states", "int8", "--optimizer.betas", "0.8,0.9", "--teacher", model,
                "--warmup-steps", "3", "--gradient-checkpointing", "--no-preflight", "--keep-checkpoints",
                "1")  # fmt: skip
    output = ponder("train", "addition", *settings, *small)
    assert output.code == 0, output.err
    job = read_job("out")
    assert job["algorithm"]["is"].endswith(":GRPO") and job["algorithm"]["clip_high"] == 0.3
    assert job["algorithm"]["bessel"] is True
    assert {k: job["algorithm"]["kl"][k] for k in ("beta", "estimator", "where")} == {
        "beta": 0.1, "estimator": "k2", "where": "loss"}  # fmt: skip
    assert job["curriculum"]["is"].endswith(":Frontier") and job["optimizer"]["states"] == "int8"
    assert job["optimizer"]["betas"] == [0.8, 0.9]
    plain = {"dynamic_sampling_rounds": 1, "epochs_per_batch": 2, "minibatches": 2, "gradient_checkpointing": True,
             "preflight": False, "keep_checkpoints": 1}  # fmt: skip
    assert {k: job[k] for k in plain} == plain and job["teacher"] == str(model)


@pytest.mark.parametrize("algorithm", ["rloo", "gspo", "ppo", "rejection"])
def test_train_by_other_algorithms(ponder: Ponder, here: Path, model: Path, algorithm: str) -> None:
    small = ("--model", model, "--steps", "1", "--problems-per-step", "2", "--group-size", "2", *ONE_DIGIT)
    output = ponder("train", "addition", "--algorithm", algorithm, *small, "--run", "out")
    assert output.code == 0, output.err
    assert ONLINE[algorithm].__name__ in read_job("out")["algorithm"]["is"]


def test_train_adapters(ponder: Ponder, here: Path, model: Path) -> None:
    pytest.importorskip("peft")
    small = ("--model", model, "--steps", "1", "--problems-per-step", "2", "--group-size", "2", *ONE_DIGIT)
    output = ponder("train", "addition", "--lora.rank", "2", *small, "--run", "out")
    assert output.code == 0, output.err
    assert read_job("out")["lora"]["rank"] == 2 and list(Path("out").rglob("adapter_config.json"))


def test_no_resume_refuses_a_run_that_is_there(ponder: Ponder, here: Path) -> None:
    assert ponder("run", "tiny.py", "--steps", "1", "--no-resume").code == 0
    output = ponder("run", "tiny.py", "--steps", "1", "--no-resume")
    assert output.code == 2 and "runs/tiny holds a run already, which --no-resume leaves alone" in output.err


def test_a_run_that_fails_its_checks(ponder: Ponder, here: Path) -> None:
    text = (here / "tiny.py").read_text()
    (here / "mute.py").write_text(text.replace('template="qa"', 'template="{{- 1 + 1 }}"'))
    output = ponder("run", "mute.py")
    assert output.code == 2 and "error: 1 of 9 checks before the run failed, so nothing was trained:\n" in output.err
    assert "  template: the prompt lacks the user's 'What is" in output.err
    assert not Path("runs/mute").exists(), "the corrected recipe may use it"


def test_sft(ponder: Ponder, here: Path, model: Path) -> None:
    Path("said.jsonl").write_text('{"prompt": "What is 1 + 1?", "completion": "2"}\n' * 3)
    output = ponder("sft", "said.jsonl", "--model", model, "--steps", "2", "--batch-size", "2", "--run", "file")
    assert output.code == 0 and "loss " in output.out, output.err
    task = ponder("sft", "addition", "--task.digits", "1", "--model", model, "--steps", "1", "--run", "task")
    assert task.code == 0 and len(read_metrics("task")) == 1, task.err


def test_sft_by_other_algorithms(ponder: Ponder, here: Path, model: Path) -> None:
    Path("pairs.jsonl").write_text('{"prompt": "What is 1 + 1?", "chosen": "2", "rejected": "3"}\n' * 3)
    small = ("--model", model, "--steps", "1", "--batch-size", "2")
    dpo = ponder("sft", "--algorithm", "dpo", "--algorithm.beta", "0.2", "pairs.jsonl", *small)
    assert dpo.code == 0, dpo.err
    (run,) = Path("runs").iterdir()
    assert run.name.startswith("dpo-pairs-") and read_job(run)["algorithm"]["beta"] == 0.2
    taught = ("--algorithm", "distill", "--teacher", model, "--algorithm.divergence", "reverse", "addition")
    output = ponder("sft", *taught, "--task.digits", "1", *small, "--run", "taught")
    assert output.code == 0 and read_job("taught")["algorithm"]["divergence"] == "reverse", output.err


def test_eval(ponder: Ponder, here: Path, trained: Path) -> None:
    output = ponder("eval", "addition", "--model", trained, *ONE_DIGIT, "--limit", "3")
    assert output.code == 0, output.err
    assert "addition, 3 held-out problems" in output.out and "accuracy " in output.out
    assert "'Question: What is" in output.out, "the prompt as the model saw it"
    (run,) = Path("runs").iterdir()
    assert run.name.startswith("eval-addition-") and len(list(read_traces(run))) == 3


def test_eval_ensemble_json(ponder: Ponder, here: Path, model: Path) -> None:
    output = ponder("eval", "addition", "--model", model, *ONE_DIGIT, "--n", "3", "--json", "--run", "out")
    *steps, done = events(output)
    assert output.code == 0 and steps[-1]["problem"] == steps[-1]["total"] == done["num_problems"]
    assert (
        done["samples_per_problem"] == 3 and 0 <= done["accuracy"]["mean"] <= 1 and done["prompt"].endswith("Answer:")
    )


def test_solve(ponder: Ponder, here: Path, model: Path) -> None:
    output = ponder("solve", "What is 3 + 4?", "--model", model, "--max-tokens", "3")
    assert output.code == 0 and " of 8" in output.out
    (done,) = events(ponder("solve", "What is 3 + 4?", "--model", model, "--max-tokens", "3", "--n", "1", "--json"))
    assert done["n"] == 1 and done["votes"] in (0, 1) and "text" in done
    assert sorted(p.name for p in here.iterdir()) == ["tiny.py"], "asking leaves nothing behind"


def test_export_loads_again_and_overwrites_nothing(ponder: Ponder, here: Path, trained: Path) -> None:
    assert ponder("export", trained, "out/model").code == 0
    names = {p.name for p in Path("out/model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    first = ponder("solve", "What is 2 + 2?", "--model", trained, "--n", "1", "--max-tokens", "3")
    second = ponder("solve", "What is 2 + 2?", "--model", "out/model", "--n", "1", "--max-tokens", "3")
    assert first.out == second.out
    again = ponder("export", trained, "out/model")
    assert again.code == 2 and "not overwritten" in again.err
    assert [p.name for p in Path("out").iterdir()] == ["model"], "no temporary files stay"


def test_doctor(ponder: Ponder, here: Path) -> None:
    output = ponder("doctor")
    assert output.code == 0 and "float32" in output.out and "disk" in output.out
    (result,) = events(ponder("doctor", "--json"))
    assert result["ok"] is True and {"name", "value", "ok", "fix", "core"} == set(result["findings"][0])


def test_doctor_knows_what_the_project_needs() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(doctor.CORE) == {name(d) for d in project["dependencies"]} - {"typer"}
    extras = {extra: {name(d) for d in needs} for extra, needs in project["optional-dependencies"].items()}
    assert {extra: set(needs) for extra, needs in doctor.EXTRAS.items()} == {
        extra: needs for extra, needs in extras.items() if extra not in ("dev", "docs", "serve-dev")
    }


def name(requirement: str) -> str:
    return requirement.partition(">")[0].partition("=")[0].partition("[")[0]
