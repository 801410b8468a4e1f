"""A run is tied to the weights that it began with: a model trained again in the same folder is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, RecordingProgress
from ponder.errors import Interrupted, RunError
from ponder.models.model_fingerprints import model_fingerprint, model_fingerprints, pin_guide
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.rewards.reward_model_task import RewardModelTask
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.reason.strategies import BestOfN, Samples
from ponder.runs import file_fingerprints, read_job, read_traces
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.reward_objectives import OutcomeReward
from ponder.types import Sampling

HERE: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
DRAW = Sampling(max_tokens=2)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, what it sampled, and a judge of that."""
    home = tmp_path_factory.mktemp("world")
    fresh = ScratchModel(ALPHABET, width=16, layers=1, heads=2, context=32)
    FineTune(DigitTask(), fresh, QUESTION_TEMPLATE, optimizer=AdamW(lr=1e-2), steps=8, batch_size=5, **HERE)(
        home / "policy"
    )
    Collect(DigitTask(), str(home / "policy"), QUESTION_TEMPLATE, Samples(8, DRAW), limit=10, **HERE)(home / "sample")
    judge(home, seed=0)(home / "judge")
    return home


def judge(home: Path, **changes: Any) -> TrainRewardModel:
    job = TrainRewardModel(
        (str(home / "sample"),),
        str(home / "policy"),
        OutcomeReward(),
        QUESTION_TEMPLATE,
        held_out_tenths=0,
        steps=2,
        batch_size=4,
        **HERE,
    )
    return replace(job, **changes)


@pytest.fixture
def home(world: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    shutil.copytree(world, tmp_path / "world")
    return tmp_path / "world"


def guided(home: Path) -> Evaluate:
    return Evaluate(
        DigitTask(),
        str(home / "policy"),
        QUESTION_TEMPLATE,
        BestOfN(2, sampling=DRAW),
        f"reward:{home / 'judge'}",
        max_concurrency=1,
        **HERE,
    )


@pytest.mark.parametrize("kind", ["evaluate", "collect"])
def test_resume_refuses_another_reward_model(kind: str, home: Path) -> None:
    job: Any = guided(home)
    if kind == "collect":
        job = Collect(
            job.task, job.model, QUESTION_TEMPLATE, job.strategy, job.guide, limit=10, max_concurrency=1, **HERE
        )
    folder = home / "run"
    with pytest.raises(Interrupted):
        job(folder, RecordingProgress("step", 3))
    kept = (folder / "traces.bin").read_bytes()
    assert read_job(folder)["guide"] == f"reward:{home / 'judge' / 'checkpoints' / 'step-000002' / 'model'}"

    shutil.move(home / "judge", home / "first")
    again = judge(home, optimizer=AdamW(lr=1e-2))
    again(home / "judge")  # in the same place, to the same step
    with pytest.raises(RunError, match=r"the weights of guide \(checkpoints/.*\) changed since .* another --run"):
        job(folder)
    replace(again, steps=3)(home / "longer")
    shutil.rmtree(home / "judge")
    shutil.move(home / "longer", home / "judge")  # in the same place, to another step
    with pytest.raises(RunError, match=r"another job \(guide: .*step-000002.*step-000003"):
        job(folder)
    assert (folder / "traces.bin").read_bytes() == kept
    shutil.rmtree(home / "judge")
    shutil.move(home / "first", home / "judge")
    job(folder)
    assert len(list(read_traces(folder))) == 10


def test_resume_refuses_another_policy_under_the_same_name(home: Path) -> None:
    job = guided(home)
    with pytest.raises(Interrupted):
        job(home / "run", RecordingProgress("step", 3))
    shutil.rmtree(home / "policy")
    fresh = ScratchModel(ALPHABET, width=16, layers=1, heads=2, context=32, seed=9)
    FineTune(DigitTask(), fresh, QUESTION_TEMPLATE, steps=8, batch_size=5, **HERE)(home / "policy")
    with pytest.raises(RunError, match=r"the weights of model \(.*\) changed since"):
        job(home / "run")


def test_resume_refuses_another_reward_model_inside_a_task(home: Path) -> None:
    job = RL(
        RewardModelTask(DigitTask(), f"reward:{home / 'judge'}"), str(home / "policy"), QUESTION_TEMPLATE,
        Samples(2, DRAW), GRPO(kl=None), steps=3, problems_per_step=2, preflight=False, save_every=1, **HERE,
    )  # fmt: skip
    with pytest.raises(Interrupted):
        job(home / "run", RecordingProgress("step", 2))
    shutil.rmtree(home / "judge")
    judge(home, optimizer=AdamW(lr=1e-2))(home / "judge")
    with pytest.raises(RunError, match=r"the weights of task\.guide \(.*\) changed since"):
        job(home / "run")


def test_a_run_without_fingerprints_is_refused(home: Path) -> None:
    """Nobody can tell whether its results are of what is there now. What it holds stays readable."""
    job = guided(home)
    with pytest.raises(Interrupted):
        job(home / "run", RecordingProgress("step", 3))
    output = home / "run" / "environment.json"
    for text in (json.dumps({k: v for k, v in json.loads(output.read_text()).items() if k != "inputs"}), "not JSON"):
        output.write_text(text)
        with pytest.raises(RunError, match=r"without fingerprints of its inputs, .* give another --run"):
            job(home / "run")
    assert len(list(read_traces(home / "run"))) == 3


def test_pin_guide_keeps_other_guides(tmp_path: Path) -> None:
    for guide in ("", "likelihood", "oracle", "reward:", "fakes:FirstCharVerifier"):
        assert pin_guide(guide, tmp_path) == guide
    assert pin_guide(f"reward:{tmp_path}", tmp_path / "run") == f"reward:{tmp_path}", "a plain folder is what it is"
    assert model_fingerprints(Evaluate(DigitTask(), str(tmp_path / "none"), guide=f"reward:{tmp_path / 'gone'}")) == {}
    assert model_fingerprints(Evaluate(DigitTask(), "openai:http://localhost:1/v1")) == {}


@pytest.mark.parametrize("whole", [1 << 20, 4096])
def test_fingerprint_changes_with_the_head(whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a file is too large to be read whole."""
    monkeypatch.setattr(file_fingerprints, "MAX_WHOLE_FILE_BYTES", whole)
    monkeypatch.setattr(file_fingerprints, "BLOCK_BYTES", 16)
    monkeypatch.setattr(file_fingerprints, "END_BYTES", 2048)
    net, _ = ScratchModel(ALPHABET, width=32, layers=2, heads=2).build(torch.float32, torch.device("cpu"))
    judge = DecoderWithHead.from_decoder(net, OutcomeReward().head, 0)
    hf.save(judge, tmp_path / "a")
    hf.save(judge, tmp_path / "b")
    assert model_fingerprint(tmp_path / "a") == model_fingerprint(tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "copied")
    assert model_fingerprint(tmp_path / "a") == model_fingerprint(tmp_path / "copied"), (
        "not a matter of when it was written"
    )
    with torch.no_grad():
        judge.score.weight.add_(1e-3)
    hf.save(judge, tmp_path / "c")
    assert model_fingerprint(tmp_path / "a") != model_fingerprint(tmp_path / "c")
