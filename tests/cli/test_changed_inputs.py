"""The same command again: what is stored says so, and is refused where anything has changed that it depends on."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes import FakePolicy
from ponder.runs import checkpoints, read_metrics
from ponder.runs.trace_writer import TraceWriter
from ponder.types import Completion, Ids

from .conftest import CommandResult

Ponder = Callable[..., CommandResult]
CPU = ("--device", "cpu", "--dtype", "float32")
ROWS = [{"prompt": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)]
REWARD = (
    "from helper import PAY\n\n\ndef pays(completions, **columns):\n    return [PAY * len(c) for c in completions]\n"
)
GUIDE = """
from ponder.types import Score

class Guide:
    name = "own"
    async def __call__(self, trace, steps):
        return [Score(float(i)) for i in steps]
"""
STORED = "nothing that it depends on has changed; another --run does it again"


@pytest.fixture
def place(here: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with rows, a reward that imports a helper, a guide and a model."""
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    write(here / "rows.jsonl", ROWS)
    (here / "reward_of_mine.py").write_text(REWARD)
    (here / "helper.py").write_text("PAY = 1.0\n")
    (here / "guide_of_mine.py").write_text(GUIDE)
    shutil.copytree(model, here / "model")
    yield here
    clear_caches()


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def clear_caches() -> None:
    """As in a new process: no module of ours is loaded."""
    for name in ("reward_of_mine", "helper", "guide_of_mine", "own"):
        sys.modules.pop(name, None)


COLUMNS = ("--task.data", "rows.jsonl", "--task.rewards", "reward_of_mine:pays")
EVAL = ("eval", "custom", *COLUMNS, "--model", "model", "--max-tokens", "3", "--n", "2", "--strategy", "best-of-n",
        "--guide", "guide_of_mine:Guide", *CPU, "--run", "out")  # fmt: skip
TRAIN = ("train", "custom", *COLUMNS, "--model", "model", "--steps", "3", "--problems-per-step", "2", "--group-size",
         "2",
         "--max-tokens", "3", "--save-every", "1", "--keep-checkpoints", "9", "--no-preflight", *CPU, "--run",
         "out")  # fmt: skip


def retrain(model: Path) -> None:
    """Other weights in the same place, of the same size."""
    import torch
    from safetensors.torch import load_file, save_file

    (model / "manifest.json").unlink(missing_ok=True)  # or it would be damage
    held = load_file(model / "model.safetensors")
    name = next(n for n, w in held.items() if w.dim() == 1)
    save_file({**held, name: held[name] + 2**-8 * torch.ones_like(held[name])}, model / "model.safetensors")


def retemplate(model: Path) -> None:
    path = model / "chat_template.jinja"
    (model / "manifest.json").unlink(missing_ok=True)  # or it would be damage
    path.write_text(path.read_text() + "\n" if path.exists() else "{{ messages[-1].content }}")


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "reward": (lambda p: (p / "reward_of_mine.py").write_text(REWARD.replace("PAY *", "100 * PAY *")),
               "the code of reward_of_mine changed"),
    "helper": (lambda p: (p / "helper.py").write_text("PAY = 100.0\n"), "the code of helper changed"),
    "weights": (lambda p: retrain(p / "model"), "the weights of model (model) changed"),
    "template": (lambda p: retemplate(p / "model"), "the tokenizer or chat template of model (model) changed"),
}  # fmt: skip
OTHER = [{**row, "answer": "7"} for row in ROWS]
ANSWERS = (lambda p: write(p / "rows.jsonl", OTHER), "the training problems of custom changed")
GUIDES = (lambda p: (p / "guide_of_mine.py").write_text(GUIDE.replace("(i)", "(-i)")), "the code of guide_of_mine")
ASKED = (ANSWERS[0], "has another answer")


@pytest.mark.parametrize("kind", [*CHANGES, "data", "guide"])
def test_an_evaluation_of_changed_inputs_is_refused(kind: str, ponder: Ponder, place: Path) -> None:
    change, named = {**CHANGES, "data": ASKED, "guide": GUIDES}[kind]
    first = ponder(*EVAL)
    assert first.code == 0 and "stored" not in first.out, first.err
    clear_caches()
    change(place)
    output = ponder(*EVAL)
    assert output.code == 2 and named in output.err and "another --run" in output.err, output.out + output.err
    assert "reward" not in output.out and output.err.count("error: ") == 1, "no figure, one sentence"
    clear_caches()
    new = ponder(*EVAL[:-1], "anew")
    assert new.code == 0 and "stored" not in new.out, new.err


def test_an_unchanged_evaluation_says_that_it_is_stored(ponder: Ponder, place: Path) -> None:
    first = ponder(*EVAL)
    (place / "reward_of_mine.py").write_text("# a remark\n" + REWARD.replace("\n\n\n", "\n\n"))
    clear_caches()
    again = ponder(*EVAL)
    assert again.code == 0 and STORED in again.out and again.out.endswith(first.out), again.err
    assert again.out.startswith("stored    result of 20") and again.out.count("stored") == 1
    done = json.loads(ponder(*EVAL, "--json").out.splitlines()[-1])
    assert done["stored"].startswith("20") and "resumed" not in done
    fresh = json.loads(ponder(*EVAL[:-1], "anew", "--json").out.splitlines()[-1])
    assert "stored" not in fresh and "resumed" not in fresh


@pytest.mark.parametrize("kind", [*CHANGES, "data"])
@pytest.mark.parametrize("done", [True, False])
def test_training_does_not_go_on_with_changed_inputs(kind: str, done: bool, ponder: Ponder, place: Path) -> None:
    change, named = {**CHANGES, "data": ANSWERS}[kind]
    first = ponder(*TRAIN)
    assert first.code == 0 and "stored" not in first.out and "resumed" not in first.out, first.err
    if not done:  # as a kill leaves it
        shutil.rmtree(checkpoints("out")[-1])
    clear_caches()
    change(place)
    before = Path("out/metrics.jsonl").read_bytes()
    output = ponder(*TRAIN)
    assert output.code == 2 and named in output.err and "another --run" in output.err, output.out + output.err
    assert output.out == "" and Path("out/metrics.jsonl").read_bytes() == before


def test_unchanged_training_says_what_was_stored(ponder: Ponder, place: Path) -> None:
    first = ponder(*TRAIN)
    again = ponder(*TRAIN)
    assert again.code == 0 and STORED in again.out and again.out.endswith(first.out), again.err
    shutil.rmtree(checkpoints("out")[-1])
    resumed = ponder(*TRAIN)
    assert resumed.code == 0 and resumed.out.startswith("resumed   out, which held results of 20"), resumed.err
    assert len(read_metrics("out")) == 3 and "stored" not in resumed.out


def test_a_run_that_trained_on_is_another_model(ponder: Ponder, place: Path) -> None:
    assert ponder(*TRAIN).code == 0
    shutil.move("out", "trained")
    shutil.move("trained/checkpoints/step-000003", "later")
    flags = [*EVAL]
    flags[flags.index("model")] = "trained"
    assert ponder(*flags).code == 0
    shutil.move("later", "trained/checkpoints/step-000003")
    output = ponder(*flags)
    assert output.code == 2 and "step-000002" in output.err and "step-000003" in output.err and output.out == ""


def test_a_teacher_in_another_state(ponder: Ponder, place: Path) -> None:
    shutil.copytree("model", "teacher")
    held = (*TRAIN, "--teacher", "teacher", "--beta", "0.1")
    assert ponder(*held).code == 0 and STORED in ponder(*held).out
    retrain(place / "teacher")
    output = ponder(*held)
    assert (
        output.code == 2
        and "the weights of teacher (teacher) changed since out began" in output.err
        and output.out == ""
    )


def test_a_public_set_in_another_state(ponder: Ponder, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(home: str, gold: int) -> None:
        (place / home / "gsm8k").mkdir(parents=True, exist_ok=True)
        for split, first in (("train", 0), ("test", 50)):
            rows = [{"question": f"{n} + 1?", "answer": f"so #### {n + gold}"} for n in range(first, first + 8)]
            write(place / home / "gsm8k" / f"{split}.jsonl", rows)
        monkeypatch.setenv("PONDER_DATA", str(place / home))

    put("old", 1)
    small = ("--model", "model", "--task.style", "plain", "--max-tokens", "3", *CPU)
    measured = ("eval", "gsm8k", *small, "--run", "a")
    trained = ("train", "gsm8k", *small, "--steps", "1", "--problems-per-step", "2", "--group-size", "2",
               "--no-preflight",
               "--run", "b")  # fmt: skip
    for argv in (measured, trained):
        output = ponder(*argv)
        assert output.code == 0, output.err
    put("moved", 1)
    for argv in (measured, trained):
        assert STORED in ponder(*argv).out, "the same set in another place"
    put("new", 2)
    output = ponder(*measured)
    assert output.code == 2 and "8 of its problems are not what was asked then" in output.err and output.out == ""
    output = ponder(*trained)
    assert (
        output.code == 2 and "the training problems of gsm8k changed since b began" in output.err and output.out == ""
    )


def test_fine_tuning(ponder: Ponder, place: Path) -> None:
    talks = [{"prompt": "What is 1?", "completion": "1"}, {"prompt": "What is 2?", "completion": "2"}]
    write(place / "talks.jsonl", talks)
    small = ("--model", "model", "--steps", "2", "--batch-size", "2", *CPU)
    by_file = ("sft", "talks.jsonl", *small, "--run", "a")
    by_task = ("sft", "custom", *COLUMNS, "--task.gold_column", "answer", *small, "--run", "b")
    for argv in (by_file, by_task):
        assert ponder(*argv).code == 0
        assert STORED in ponder(*argv).out
    write(place / "talks.jsonl", talks[::-1])
    output = ponder(*by_file)
    assert output.code == 2 and "the file talks.jsonl (data) changed since a began" in output.err and output.out == ""
    (place / "talks.jsonl").unlink()
    gone = ponder(*by_file)
    assert gone.code == 0 and "the file talks.jsonl (data) is gone; nothing else" in gone.out
    ANSWERS[0](place)
    output = ponder(*by_task)
    assert (
        output.code == 2 and "the training problems of custom changed since b began" in output.err and output.out == ""
    )


def test_a_judge_and_its_labels(ponder: Ponder, place: Path) -> None:
    made = ("label", "custom", *COLUMNS, "--model", "model", "--limit", "6", "--answers-per-problem", "2",
            "--max-completions", "2",
            "--max-tokens", "3", "--separator", "none", *CPU, "--run", "labels")  # fmt: skip
    assert ponder(*made).code == 0 and STORED in ponder(*made).out
    learned = ("reward", "labels", "--algorithm", "value", "--model", "model", "--steps", "2", "--batch-size", "2",
               "--held-out-tenths", "0", "--scorer", "label", *CPU, "--run", "judge")  # fmt: skip
    output = ponder(*learned)
    assert output.code == 0, output.err
    assert STORED in ponder(*learned).out
    traces = Path("labels/traces.bin")
    kept = traces.read_bytes()
    mark = TraceWriter(traces)
    mark.mark_resumed(5)
    mark.close()
    assert STORED in ponder(*learned).out, "a marker that takes nothing back is no change"
    traces.write_bytes(kept[:-1])  # its last block is torn
    output = ponder(*learned)
    assert (
        output.code == 2 and "the traces of labels (data) changed since judge began" in output.err and output.out == ""
    )
    traces.write_bytes(kept)
    clear_caches()
    CHANGES["helper"][0](place)
    output = ponder(*made)
    assert output.code == 2 and "the code of helper changed since labels began" in output.err and output.out == ""


class AddingPolicy(FakePolicy):
    """Right in the first sample of each problem."""

    def _completion(self, prefix: Ids, first: bool) -> Completion:
        total = sum(int(figure) for figure in re.findall("[0-9]+", self.text(prefix)))
        self.script, self.written = [f"\\boxed{{{total + (not first)}}}"], 0
        return super()._completion(prefix, first)

    def reseed(self, *seeds: int) -> None:
        """What it writes is no matter of chance."""


def test_problems(ponder: Ponder, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponder.models.load.load_inference_policy", lambda *a, **k: AddingPolicy())
    made = ("problems", "filter", "rows.jsonl", "--dedup-threshold", "0", "--min-chars", "1", "--model", "model",
            "--samples-per-solver", "2", "--prompt", "{question}", "--out", "made.jsonl",
            "--run", "out")  # fmt: skip

    def again() -> CommandResult:
        Path("made.jsonl").unlink(missing_ok=True)
        return ponder(*made)

    first = again()
    assert first.code == 0 and "40 problems in made.jsonl" in first.out and "stored" not in first.out, first.err
    assert STORED in again().out
    ANSWERS[0](place)
    output = again()
    assert output.code == 2 and "the file rows.jsonl (file) changed since out began" in output.err and output.out == ""
    write(place / "rows.jsonl", ROWS)
    retrain(place / "model")
    output = again()
    assert (
        output.code == 2 and "the weights of model (model) changed since out began" in output.err and output.out == ""
    )


def test_a_question(ponder: Ponder, place: Path) -> None:
    asked = ("solve", "What is 3 + 4?", "--model", "model", "--n", "2", "--max-tokens", "3", *CPU, "--run", "out")
    first = ponder(*asked)
    assert first.code == 0 and "stored" not in first.out and "resumed" not in first.out
    again = ponder(*asked)
    assert STORED in again.out and again.out.startswith(first.out), "nothing more was thought"
    more = ponder(*asked[:5], "4", *asked[6:])
    assert "resumed   out, which held results" in more.out
    bare = ponder(*asked[:5], "4", *asked[6:], "--show", "answer")
    assert STORED in bare.err and "stored" not in bare.out
    retrain(place / "model")
    output = ponder(*asked)
    assert (
        output.code == 2 and "the weights of model (model) changed since out began" in output.err and output.out == ""
    )


OWN = """
from dataclasses import dataclass
from ponder.pipelines.collect import Collect
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.tasks import Addition
from ponder.types import Sampling, Score


class Verifier:
    name = "own"
    async def __call__(self, trace, steps):
        return [Score(1.0) for _ in steps]


@dataclass(frozen=True)
class Sums(Addition):
    @property
    def verifier(self):
        return Verifier()


def recipe(each: int = 1) -> Stages:
    return Stages((
        Stage("collect", Collect(Sums(digits=1), "model", strategy=Samples(8, Sampling(max_tokens=60)), limit=4)),
        Stage("harvest", Harvest(("stage:collect",), max_per_problem=each)),
    ))
"""


def test_stages_of_a_recipe_with_its_own_task(ponder: Ponder, place: Path) -> None:
    own = place / "own.py"
    own.write_text(OWN)
    first = ponder("run", "own.py")
    assert first.code == 0 and "stored" not in first.out, first.err
    own.write_text(OWN.replace("each: int = 1", 'each: int = 1, note: str = ""'))
    again = ponder("run", "own.py")
    assert again.code == 0 and again.out.count(STORED) == 2, again.err
    assert "in runs/own/collect: " in again.out and "in runs/own/harvest: " in again.out
    done = json.loads(ponder("run", "own.py", "--json").out.splitlines()[-1])
    assert set(done["stored_stages"]) == {"collect", "harvest"}
    own.write_text(OWN.replace("Score(1.0)", "Score(0.5)"))
    for argv in (("run", "own.py"), ("run", "runs/own", "--trust")):
        output = ponder(*argv)
        assert output.code == 2 and "stage 'collect': the code of own changed since" in output.err and output.out == ""


def test_a_harvest_of_other_traces(ponder: Ponder, place: Path) -> None:
    own = place / "own.py"
    own.write_text(OWN)
    assert ponder("run", "own.py").code == 0
    one = "from own import Harvest\n\ndef recipe() -> Harvest:\n    return Harvest(('runs/own/collect',))\n"
    (place / "reap.py").write_text(one)
    assert ponder("run", "reap.py").code == 0
    assert STORED in ponder("run", "reap.py").out
    traces = Path("runs/own/collect/traces.bin")
    traces.write_bytes(traces.read_bytes()[:-1])  # its last block is torn
    output = ponder("run", "reap.py")
    assert output.code == 2 and "the traces of collect (runs) changed since runs/reap began" in output.err
    assert output.out == ""


def test_another_version_of_ponder_is_told(ponder: Ponder, place: Path) -> None:
    assert ponder(*EVAL).code == 0
    output = Path("out/environment.json")
    then = json.loads(output.read_text())
    output.write_text(json.dumps({**then, "versions": {**then["versions"], "ponder": "0.0.1"}}))
    printed = ponder(*EVAL)
    assert printed.code == 0 and "it is of ponder 0.0.1, and this is " in printed.out, printed.err
    assert "nothing else that it depends on has changed" in printed.out
    output.write_text(json.dumps({k: v for k, v in then.items() if k != "inputs"}))
    printed = ponder(*EVAL)
    assert printed.code == 2 and "without fingerprints of its inputs" in printed.err and printed.out == ""
