"""Every parameter that should learn gets its gradient, compiled or not, or the run stops before it spends anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, run_async
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import decoder
from ponder.nets.decoder import Block, Decoder
from ponder.nets.lora import LoRA
from ponder.pipelines.preflight import checks, passed_checks
from ponder.pipelines.preflight.checks import PreflightError
from ponder.pipelines.preflight.gradient_probe import gradient_norms
from ponder.pipelines.preflight.run_checks import run_preflight
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.rl import RL, build_learners
from ponder.pipelines.sft import FineTune
from ponder.pipelines.training import session
from ponder.protocols import NoProgress
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics
from ponder.train import optimizer
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW, MissingGradient, States
from ponder.train.policy_gradient import GRPO
from ponder.train.ppo import PPO
from ponder.types import Sampling

MODEL = ScratchModel(ALPHABET, width=32, layers=3, heads=4, context=32)
JOB = RL(
    DigitTask(), MODEL, QUESTION_TEMPLATE, Samples(4, Sampling(max_tokens=6)), GRPO(), AdamW(lr=3e-3), steps=1,
    problems_per_step=3,
    frozen_layers=1, device="cpu", dtype="float32",
)  # fmt: skip
TUNE = FineTune(DigitTask(), MODEL, QUESTION_TEMPLATE, steps=1, batch_size=2, device="cpu", dtype="float32")


@pytest.fixture
def run_compiled_block(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Learners run blocks as on a GPU, through `run_compiled_block`; layers named here get no gradient there."""
    lost: list[int] = []

    def run(block: Block, x: Tensor, turn: tuple[Tensor, Tensor], attend: Any, fp8: bool) -> Tensor:
        assert not fp8
        if block.self_attn.layer not in lost:
            return block(x, turn, attend)
        fixed = {n: p.detach() for n, p in block.named_parameters()}
        return torch.func.functional_call(block, fixed, (x, turn, attend))

    made = Learner.__init__

    def compiled(self: Learner, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.compiled = True

    monkeypatch.setattr(decoder, "run_compiled_block", run)
    monkeypatch.setattr(Learner, "__init__", compiled)
    yield lost


def test_checks_do_not_change_trainable_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    learner, _ = build_learners(JOB, policy)
    wanted, seen = [p.requires_grad for p in policy.net.parameters()], []
    forward = Decoder.forward

    def recorded(self: Decoder, *args: Any) -> Tensor:
        if self is policy.net:
            seen.append([p.requires_grad for p in self.parameters()])
        return forward(self, *args)

    monkeypatch.setattr(Decoder, "forward", recorded)
    run_async(run_preflight(JOB, policy, learner))
    assert len(seen) > 4 and all(flags == wanted for flags in seen)


def test_gradient_norms_match_gradient_and_leave_no_state() -> None:
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    learner, _ = build_learners(JOB, policy)
    traces = _credited(policy, learner)
    grads = learner.gradient(traces)
    norms = gradient_norms(learner, traces, compiled=False)
    assert norms.keys() == grads.keys() == learner.master_weights.params.keys()
    assert all(norms[n] == pytest.approx(float(g.norm()), rel=1e-5) for n, g in grads.items())
    assert all(p.grad is None for p in policy.net.parameters())


@pytest.mark.parametrize("states", ["float32", "int8", "cpu"])
def test_network_whose_gradients_are_summed_as_they_come_passes_the_checks(
    states: States, run_compiled_block: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one of more than two billion weights in bfloat16: the norms are read from the same gradients."""
    job = replace(JOB, frozen_layers=0, dtype="bfloat16", optimizer=AdamW(lr=3e-3, states=states))
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="bfloat16")
    learner, _ = build_learners(job, policy)
    traces = _credited(policy, learner)
    norms = []
    for most in (1 << 30, 0):
        monkeypatch.setattr(optimizer, "MAX_PENDING_GRADIENT_BYTES", most)
        norms.append(gradient_norms(learner, traces, compiled=True))
        assert not learner.master_weights.gradients()
    assert norms[0] == norms[1] and norms[0].keys() == learner.master_weights.params.keys()
    job(tmp_path / "run")
    (row,) = read_metrics(tmp_path / "run")
    assert row["grad_norm"] > 0


def _credited(policy: Any, learner: Learner) -> list[Any]:
    from ponder.pipelines.preflight.gradient_probe import add_ended_answers, draw_short_samples

    drawn = run_async(draw_short_samples(policy, [DigitTask().train[i] for i in range(2)], Sampling(max_tokens=6)))
    add_ended_answers(drawn, 2, "wanted")
    traces = [trace for trace, _ in drawn]
    learner.write_reference_logprobs(traces)
    JOB.algorithm.credit(traces, "wanted", {})
    return traces


JOBS = {
    "frozen layers": JOB,
    "all layers": replace(JOB, frozen_layers=0),
    "critic": replace(JOB, algorithm=PPO()),
    "fine-tuning": TUNE,
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_compiled_block_without_gradient_is_refused(
    job: RL | FineTune, run_compiled_block: list[int], tmp_path: Path
) -> None:
    job(tmp_path / "healthy")
    run_compiled_block.append(2)
    with pytest.raises(PreflightError, match=r"gradient: \d+ of \d+ parameters that should learn have no gradient"):
        job(tmp_path / "broken")
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize("changed", ["", "torch", "device", "code", "dtype", "file"])
def test_resumed_run_checks_its_gradient_again_only_with_other_code_or_hardware(
    changed: str, run_compiled_block: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = replace(JOB, frozen_layers=0)
    checked: list[int] = []
    real = session.check_gradient

    def counted(learner: Learner, traces: Any) -> checks.Check:
        checked.append(len(traces))
        return real(learner, traces)

    monkeypatch.setattr(session, "check_gradient", counted)
    job(tmp_path / "run")
    assert len(checked) == 1
    if changed == "file":
        (tmp_path / "run" / "passed_checks.json").write_text("{")
    elif changed:
        facts = session.gradient_facts
        monkeypatch.setattr(session, "gradient_facts", lambda learner: facts(learner) | {changed: "another"})
    replace(job, steps=2)(tmp_path / "run")
    assert len(checked) == (2 if changed else 1) and len(read_metrics(tmp_path / "run")) == 2


def test_facts_of_a_gradient_name_its_code_and_compiler() -> None:
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    facts = passed_checks.gradient_facts(build_learners(JOB, policy)[0])
    assert facts["torch"].partition("+")[0] == torch.__version__.partition("+")[0] and len(facts["code"]) == 64
    assert facts["dtype"] == "torch.float32" and all(facts[name] for name in ("python", "device", "fp8"))


def test_reward_model_gradient_is_checked(run_compiled_block: list[int], tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "completion": str(i), "label": i % 2 == 0} for i in range(8)]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = (str(tmp_path / "labels.jsonl"),)
    job = TrainRewardModel(
        data, MODEL, template=QUESTION_TEMPLATE, steps=1, batch_size=4, held_out_tenths=0, device="cpu", dtype="float32"
    )
    job(tmp_path / "healthy")
    run_compiled_block.append(0)
    with pytest.raises(PreflightError, match="have no gradient"):
        job(tmp_path / "broken")


def test_different_compiled_gradient_is_refused(
    run_compiled_block: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = decoder.run_compiled_block

    def larger(block: Block, x: Tensor, turn: Any, attend: Any, fp8: bool) -> Tensor:
        out = run(block, x, turn, attend, fp8)
        return out + 0.05 * (out - out.detach())  # the same numbers, another gradient

    monkeypatch.setattr(decoder, "run_compiled_block", larger)
    with pytest.raises(PreflightError, match=r"compiled it differs by \de-\d+ \(at most 0.001\)"):
        JOB(tmp_path / "run")


@pytest.mark.parametrize("whole_step", [True, False, None])
def test_whole_step_decides_where_few_traces_differ(
    run_compiled_block: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, whole_step: bool | None
) -> None:
    sizes: list[int] = []

    def check(learner: Learner, traces: Any) -> checks.Check:
        sizes.append(len(traces))
        return checks.Check("gradient", False if len(sizes) == 1 else whole_step, "it differs", "")

    monkeypatch.setattr(session, "check_gradient", check)
    job = replace(TUNE, batch_size=4)
    if whole_step is False:
        with pytest.raises(PreflightError, match="it differs"):
            job(tmp_path / "run")
    else:
        job(tmp_path / "run")
    assert sizes == [2, 4]


@pytest.mark.parametrize("sharded", [True, False])
def test_ranks_with_shards_compare_the_whole_step_together(
    sharded: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pass over shards gathers them from all ranks: where another one's rows differ, this one takes part."""
    sizes: list[int] = []

    def check(learner: Any, traces: Any) -> checks.Check:
        sizes.append(len(traces))
        return checks.Check("gradient", True, "it is the same", "")

    monkeypatch.setattr(session, "check_gradient", check)
    monkeypatch.setattr(session, "gradient_facts", lambda learner: {})
    learner: Any = SimpleNamespace(sharded=sharded)
    own: Any = SimpleNamespace(
        group=SimpleNamespace(size=2, is_main=True, any=lambda here: True), learners={"policy": learner},
        state=SimpleNamespace(step=0), run=SimpleNamespace(folder=tmp_path),
    )  # fmt: skip
    few: Any = [0, 1]
    session.TrainingSession._check_gradient(own, learner, few, few * 2)
    assert sizes == ([2, 4] if sharded else [2])


def test_all_adapters_get_a_gradient(run_compiled_block: list[int]) -> None:
    pytest.importorskip("peft")
    job = replace(JOB, frozen_layers=0, lora=LoRA(2))
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    learner, _ = build_learners(job, policy)
    check = checks.check_gradient(learner, _credited(policy, learner))
    assert check.passed and f"all {len(learner.master_weights.params)} parameters" in check.value


def test_missing_gradient_stops_step(run_compiled_block: list[int]) -> None:
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    learner, _ = build_learners(JOB, policy)
    traces, before = _credited(policy, learner), {n: p.clone() for n, p in policy.net.named_parameters()}
    run_compiled_block.append(1)
    with pytest.raises(MissingGradient, match=r"layers\.1"):
        learner.step(traces)
    assert all(torch.equal(p, before[n]) for n, p in policy.net.named_parameters())


def test_kl_term_alone_is_not_checked() -> None:
    """Where the policy is its reference, what is left of it is rounding, which differs from kernel to kernel."""
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    learner, _ = build_learners(JOB, policy)
    first, second = traces = _credited(policy, learner)
    assert session._shortest(learner, traces) == sorted(traces, key=lambda t: sum(len(s.token_ids) for s in t.steps))
    for step in first.steps[1:]:
        step.advantages = step.advantages * 0
    assert learner.objective.trains_zero_advantage and session._shortest(learner, traces) == [second]
    assert session._shortest(learner, [first]) == []


class PhaseRecorder(NoProgress):
    def __init__(self) -> None:
        self.phases: list[str] = []

    def phase(self, name: str) -> None:
        self.phases.append(name)


def test_resumed_run_with_compiled_blocks_begins_with_its_next_step(
    run_compiled_block: list[int], tmp_path: Path
) -> None:
    """No pass comes before it, and the run goes on as if it had not been resumed."""
    job, seen = replace(JOB, steps=2, save_every=1), PhaseRecorder()
    whole = job(tmp_path / "whole")
    replace(job, steps=1)(tmp_path / "parts")
    resumed = job(tmp_path / "parts", seen)
    assert seen.phases[:3] == ["load", "sample", "learn"]
    for name, weight in whole.net.state_dict().items():
        assert torch.equal(weight, resumed.net.state_dict()[name])
