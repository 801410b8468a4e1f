"""Kinds of runs: a critic, adapters, several updates per step, dynamic sampling; and runs in trouble."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, RecordingProgress, run_async
from ponder.errors import Interrupted
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.nets.lora import LoRA
from ponder.pipelines import rl
from ponder.pipelines.rl import RL
from ponder.reason.strategies import Samples
from ponder.runs import newest_checkpoint, read_metrics, read_traces
from ponder.train.finite_checks import Diverged
from ponder.train.learner import Learner
from ponder.train.objective import KL, Critic, Stats, Tokens
from ponder.train.optimizer import AdamW
from ponder.train.pack import PackedBatch
from ponder.train.policy_gradient import DAPO, GRPO, REINFORCE, ReinforcePlusPlus
from ponder.train.ppo import PPO, AdaptiveKLController
from ponder.train.readouts import LogprobReadout
from ponder.types import Sampling

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
JOB = RL(
    DigitTask(answer="7"), MODEL, QUESTION_TEMPLATE, Samples(4, Sampling(max_tokens=2)), GRPO(), AdamW(lr=3e-3),
    steps=4, problems_per_step=3,
    max_tokens_per_microbatch=20, preflight=False, save_every=3, device="cpu", dtype="float32",
)  # fmt: skip
CRITIC = Critic(optimizer=AdamW(lr=1e-2), warmup_steps=1)
KINDS: dict[str, RL] = {
    "ppo": replace(
        JOB,
        algorithm=PPO(critic=CRITIC, adaptive_kl=AdaptiveKLController(), normalize_rewards=True),
        epochs_per_batch=2,
    ),
    "lora": replace(JOB, lora=LoRA(rank=2), optimizer=AdamW(lr=0.02)),
    "frozen": replace(JOB, frozen_layers=1),
    "passes": replace(JOB, epochs_per_batch=2, minibatches=2),
    "int8": replace(JOB, optimizer=AdamW(lr=3e-3, states="int8")),
    "running": replace(JOB, algorithm=REINFORCE(baseline="running", kl=KL(0.1, "k1", "reward"))),
    "dapo": replace(JOB, algorithm=DAPO(overlong_buffer=0), dynamic_sampling_rounds=2),
}


def told(folder: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in m.items() if "time" not in k} for m in read_metrics(folder)]


def same_run(folder: Path, policy: PonderPolicy, whole: Path, expected: PonderPolicy) -> None:
    assert told(folder) == told(whole)
    assert all(torch.equal(w, policy.net.state_dict()[n]) for n, w in expected.net.state_dict().items())
    last, theirs = newest_checkpoint(folder), newest_checkpoint(whole)
    assert last is not None and theirs is not None and last.name == theirs.name
    for name in ("model/model.safetensors", "learner.safetensors", "state.json"):
        assert (last / name).read_bytes() == (theirs / name).read_bytes(), name


@pytest.mark.parametrize("kind", KINDS)
def test_every_algorithm_learns_and_resumes_exactly(kind: str, tmp_path: Path) -> None:
    job = KINDS[kind]
    expected = job(tmp_path / "whole")
    start = MODEL.build(torch.float32, torch.device("cpu"))[0].state_dict()
    last = load_policy(str(tmp_path / "whole"), device="cpu", dtype="float32").net.state_dict()
    assert any(not torch.equal(start[n], w) for n, w in last.items())
    with pytest.raises(Interrupted):
        job(tmp_path / "run", RecordingProgress("tokens", 4))
    same_run(tmp_path / "run", job(tmp_path / "run"), tmp_path / "whole", expected)


# a critic


def test_critic_warmup_trains_critic_alone(tmp_path: Path) -> None:
    job = replace(KINDS["ppo"], steps=3, algorithm=PPO(critic=replace(CRITIC, warmup_steps=2)))
    job(tmp_path / "run")
    rows = told(tmp_path / "run")
    assert ["grad_norm" in m for m in rows] == [False, False, True], "the policy waits"
    assert all(m["critic/grad_norm"] > 0 for m in rows) and rows[0]["value/mean"] == 0 != rows[1]["value/mean"]
    assert {"kl_beta", "value/explained_variance", "critic/lr"} <= rows[0].keys()
    for _, trace in read_traces(tmp_path / "run"):
        for i in trace.answers():
            judged = {"returns"} if trace.score(i, "wanted") is not None else set()
            assert trace.steps[i].notes.keys() == {"values", "reference"} | judged, "and none of the old ones"


def test_adaptive_kl_coefficient_is_restored(tmp_path: Path) -> None:
    KINDS["ppo"](tmp_path / "run")
    betas = [m["kl_beta"] for m in told(tmp_path / "run")]
    assert betas[0] == 0.02 and len(set(betas)) == len(betas), "it moves with each step"


# adapters


def test_adapters_are_saved_beside_the_whole_model(tmp_path: Path) -> None:
    policy = KINDS["lora"](tmp_path / "run")
    newest = newest_checkpoint(tmp_path / "run")
    assert newest is not None and (newest / "adapter" / "adapter_config.json").exists()
    loaded = load_policy(str(tmp_path / "run"), device="cpu", dtype="float32")
    prompt = policy.encode(DigitTask().train[3].messages)
    one, two = (run_async(p.generate(prompt, Sampling(max_tokens=6, seed=1), 4)) for p in (policy, loaded))
    for a, b in zip(one, two, strict=True):
        assert a.text == b.text and np.allclose(a.logprobs, b.logprobs, atol=1e-5)


# dynamic sampling


def test_dynamic_sampling_replaces_groups_of_equal_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[int] = []
    real = Learner.step

    def step(self: Learner, traces: Any, *args: Any) -> dict[str, float]:
        learned.append(len(traces))
        assert all(len({t.score(i, "wanted") for i in t.answers()} - {None}) > 1 for t in traces)
        return real(self, traces, *args)

    monkeypatch.setattr(Learner, "step", step)
    job = replace(JOB, algorithm=DAPO(overlong_buffer=0), strategy=Samples(16, Sampling(max_tokens=1)), steps=2)
    job(tmp_path / "run")
    asked = [sum(s == step for s, _ in read_traces(tmp_path / "run")) for step in range(2)]
    assert learned == [3, 3] == [m["groups"] for m in told(tmp_path / "run")] and max(asked) > 3
    ids = [t.problem.id for _, t in read_traces(tmp_path / "run")]
    assert len(set(ids)) == min(10, len(ids)), "the stream goes on: no problem twice before all once"


def test_no_mixed_group_takes_no_step(tmp_path: Path) -> None:
    """The words are never written: ten rounds, then the run goes on all the same."""
    job = replace(
        JOB, task=DigitTask(answer="never"), algorithm=DAPO(overlong_buffer=0), steps=1, dynamic_sampling_rounds=2
    )
    job(tmp_path / "run")
    (row,) = told(tmp_path / "run")
    assert row["groups"] == 0 and row["grad_norm"] == 0 and len(list(read_traces(tmp_path / "run"))) == 9


# several updates


def test_interrupt_between_optimizer_steps_finishes_step(tmp_path: Path) -> None:
    job = replace(KINDS["passes"], max_tokens_per_microbatch=4096)
    expected = job(tmp_path / "whole")
    watcher = RecordingProgress("share", 6)  # four updates in a step: the second of the second step
    with pytest.raises(Interrupted, match="stopped after 2 of 4"):
        job(tmp_path / "run", watcher)
    assert sum(s[0] == "share" for s in watcher.calls) == 8 and len(told(tmp_path / "run")) == 2
    saved = newest_checkpoint(tmp_path / "run")
    assert saved is not None and saved.name == "step-000002"
    same_run(tmp_path / "run", job(tmp_path / "run"), tmp_path / "whole", expected)


def test_interrupt_before_first_gradient_discards_step(tmp_path: Path) -> None:
    """Once that of the first update is there, the step finishes."""
    job, watcher = replace(KINDS["passes"], max_tokens_per_microbatch=8), RecordingProgress()
    expected = job(tmp_path / "whole", watcher)
    shares = [share for kind, share in (call[:2] for call in watcher.calls) if kind == "share"]
    first = shares.index(1.0) + 1  # of the second step
    assert shares[first] < 1 / 4, "more micro-batches than updates"
    with pytest.raises(Interrupted, match="stopped after 1 of 4"):
        job(tmp_path / "run", RecordingProgress("share", first + 1))
    same_run(tmp_path / "run", job(tmp_path / "run"), tmp_path / "whole", expected)


# trouble


class Broken(GRPO):
    """A loss that is not a number from its second step on."""

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        loss_N, stats = super().loss(tokens)
        moved = bool((tokens.notes["reference"] - tokens.old_N).abs().max() > 1e-6)
        return loss_N * (torch.nan if moved else 1.0), stats


def test_diverged_run_writes_its_traces(tmp_path: Path) -> None:
    job = replace(JOB, algorithm=Broken(), steps=6, strategy=Samples(16, Sampling(max_tokens=1)))
    with pytest.raises(Diverged, match="of the last traces in the run directory"):
        job(tmp_path / "run")
    rows = told(tmp_path / "run")
    assert [m.get("skipped_steps") for m in rows] == [None, 1.0, 2.0], "recorded, then given up"
    assert np.isnan(rows[1]["loss"]) and rows[0]["grad_norm"] > 0
    kept = list(read_traces(tmp_path / "run"))
    assert [s for s, _ in kept] == [s for s in range(4) for _ in range(3)], "those of the step that was not taken too"
    assert all(t.steps[1].advantages is not None for s, t in kept if s == 3)


def test_oom_run_continues_with_smaller_microbatches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = LogprobReadout.loss_inputs

    def tokens(self: LogprobReadout, learner: Learner, batch: PackedBatch) -> Tokens:
        if len(batch.ids_T) > 70:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(self, learner, batch)

    job = replace(JOB, strategy=Samples(16, Sampling(max_tokens=2)), max_tokens_per_microbatch=4096)
    expected = job(tmp_path / "whole")
    monkeypatch.setattr(LogprobReadout, "loss_inputs", tokens)
    policy = job(tmp_path / "run")
    rows = told(tmp_path / "run")
    assert all(m["max_tokens_per_microbatch"] == 64 and m["oom_retries"] == 6 for m in rows), "found once, and it stays"
    off = max(float((w - policy.net.state_dict()[n]).abs().max()) for n, w in expected.net.state_dict().items())
    assert off < 1e-3, "nothing but memory depends on it"


def test_reference_is_a_copy_of_the_start_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Built before a run goes on from its checkpoint, so it is the model as the job names it, not as it resumed."""
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    before = copy.deepcopy(policy.net.state_dict())
    learner, critic = rl.build_learners(JOB, policy)
    assert critic is None and learner.reference is not None and learner.reference is not policy.net
    with torch.no_grad():
        policy.net.norm.weight.add_(1)
    assert all(torch.equal(before[n], w) for n, w in learner.reference.state_dict().items())
    assert rl.build_learners(replace(JOB, algorithm=GRPO(kl=None)), policy)[0].reference is None


@pytest.mark.filterwarnings("ignore:after step")
@pytest.mark.parametrize(
    "algorithm", [ReinforcePlusPlus(), PPO(), GRPO(kl=KL(0.05, "k3", "reward"))], ids=lambda a: type(a).__name__
)
def test_first_step_without_rewards_learns_nothing_from_rounding(algorithm: Any, tmp_path: Path) -> None:
    """The policy is its reference, up to the rounding of sampler and learner, which the KL in the reward would see."""
    run = tmp_path / "run"
    replace(JOB, task=DigitTask(answer="!"), algorithm=algorithm, steps=1)(run)
    steps = [s for _, t in read_traces(run) for s in t.steps if s.sampled]
    assert any((s.logprobs != s.notes["reference"]).any() for s in steps if s.logprobs is not None), "they are rounded"
    assert not any(s.advantages.any() for s in steps if s.advantages is not None)
    assert read_metrics(run)[0]["grad_norm"] == 0
