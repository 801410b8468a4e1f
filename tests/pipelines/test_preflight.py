"""Each broken world fails the one check that is about it, a healthy one passes all, and the run is none the wiser."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, FirstCharVerifier, run_async
from ponder.models.chat_templates import ChatTemplateError
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import fp8_linear
from ponder.nets.lora import LoRA
from ponder.pipelines.preflight.checks import Check, PreflightError
from ponder.pipelines.preflight.run_checks import preflight_sft, run_preflight
from ponder.pipelines.problems.conversations import read_conversations
from ponder.pipelines.rl import RL, build_learners
from ponder.pipelines.sft import FineTune
from ponder.protocols import Scorer
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics
from ponder.train import learner as learning
from ponder.train import losses
from ponder.train.algorithms import ONLINE
from ponder.train.imitation import SFT
from ponder.train.learner import Learner
from ponder.train.objective import KL, Stats, Tokens
from ponder.train.optimizer import AdamW
from ponder.train.pack import PackedBatch, TraceChains
from ponder.train.policy_gradient import GRPO, ClippedSurrogate
from ponder.train.readouts import LogprobReadout
from ponder.types import Problem, Sampling, Score, Trace

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
JOB = RL(
    DigitTask(), MODEL, QUESTION_TEMPLATE, Samples(4, Sampling(max_tokens=6)), GRPO(), AdamW(lr=3e-3), steps=2,
    problems_per_step=3,
    save_every=1, device="cpu", dtype="float32",
)  # fmt: skip
PLAIN = replace(JOB, algorithm=GRPO(kl=None))
NAMES = ["log-probabilities", "invariance", "KL", "prompt", "EOS", "template", "grader", "finite", "gradient"]


def made(job: RL) -> tuple[PonderPolicy, Learner]:
    policy = load_policy(job.model, template=job.template, device="cpu", dtype=job.dtype)
    return policy, build_learners(job, policy)[0]


def checked(job: RL, change: Callable[[PonderPolicy, Learner], None] = lambda policy, learner: None) -> list[Check]:
    policy, learner = made(job)
    change(policy, learner)
    return run_async(run_preflight(job, policy, learner))


def failed(job: RL, change: Callable[[PonderPolicy, Learner], None] = lambda policy, learner: None) -> dict[str, Check]:
    with pytest.raises(PreflightError) as why:
        checked(job, change)
    result = {c.name: c for c in why.value.checks if c.passed is False}
    for check in result.values():  # the error names what was measured, why it matters and what to do
        assert f"  {check.name}: {check.value}. {check.advice}" in str(why.value)
    return result


# Healthy


@pytest.mark.parametrize("name", ONLINE)
def test_every_algorithm_passes(name: str) -> None:
    result = checked(replace(JOB, algorithm=ONLINE[name]()))
    assert [c.name for c in result] == NAMES
    skipped = [c.name for c in result if c.passed is None]
    assert skipped == ([] if result[2].passed else ["KL"]) and bool(result[2].passed) == (ONLINE[name]().kl is not None)


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, dtype="bfloat16"),
        replace(JOB, algorithm=GRPO(kl=KL(0.1, "k2"), entropy_coef=0.01)),
        replace(JOB, strategy=Samples(4, Sampling(temperature=0.7, max_tokens=6))),
        replace(JOB, frozen_layers=1, gradient_checkpointing=True),
        replace(JOB, strategy=Samples(4, Sampling(max_tokens=1))),
        replace(JOB, task=DigitTask(size=1, answer="7")),
    ],
    ids=["bfloat16", "k2 and entropy", "temperature", "frozen", "one token", "one problem"],
)
def test_other_settings_pass(job: RL) -> None:
    assert all(c.passed for c in checked(job))


def test_lora_passes() -> None:
    pytest.importorskip("peft")
    assert all(c.passed for c in checked(replace(JOB, lora=LoRA(2))))


def test_fp8_passes_with_its_own_tolerances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_linear, "check_supported", lambda *_: None)  # a CPU multiplies in FP8 slowly
    result = {c.name: c for c in checked(replace(JOB, fp8=True))}
    assert all(c.passed for c in result.values())
    assert "at most 0.3 in the mean" in result["log-probabilities"].value
    assert "at most 0.5 of its norm" in result["invariance"].value


def test_deterministic_model_passes() -> None:
    def sharpen(policy: PonderPolicy, learner: Learner) -> None:
        with torch.no_grad():
            policy.net.norm.weight.mul_(1e4)

    assert all(c.passed is not False for c in checked(PLAIN, sharpen))


def test_truncated_sampling_is_expected_to_differ() -> None:
    with pytest.warns(UserWarning, match="renormalise"):
        job = replace(JOB, strategy=Samples(4, Sampling(max_tokens=6, top_k=2)))
    first = checked(job)[0]
    assert first.passed is None and "top_p, top_k and min_p renormalise" in first.value


def test_a_teacher_may_differ(tmp_path: Path) -> None:
    replace(PLAIN, steps=1)(tmp_path / "run")
    result = checked(replace(JOB, teacher=str(tmp_path / "run")))
    assert all(c.passed for c in result) and "begins" not in result[2].value


def test_preflight_does_not_change_the_run(tmp_path: Path) -> None:
    runs = [replace(JOB, preflight=wanted)(tmp_path / str(wanted)) for wanted in (True, False)]
    for name, weight in runs[0].net.state_dict().items():
        assert torch.equal(weight, runs[1].net.state_dict()[name])
    output = [
        [{k: v for k, v in m.items() if "time" not in k} for m in read_metrics(tmp_path / r)] for r in ("True", "False")
    ]
    assert output[0] == output[1]
    saved = [
        {p.relative_to(tmp_path / r): p for p in (tmp_path / r).glob("checkpoints/*/**/*.*")} for r in ("True", "False")
    ]
    assert saved[0].keys() == saved[1].keys() and any(p.suffix == ".safetensors" for p in saved[0])
    for name in saved[0].keys() - {p for p in saved[0] if p.name == "manifest.json"}:  # which names the job
        assert saved[0][name].read_bytes() == saved[1][name].read_bytes(), name


def test_preflight_does_not_change_the_learner() -> None:
    policy, learner = made(JOB)
    before = {n: t.clone() for n, t in {**learner.tensors(), **policy.net.state_dict()}.items()}
    flags, facts = [p.requires_grad for p in policy.net.parameters()], learner.counters()
    run_async(run_preflight(JOB, policy, learner))
    after = {**learner.tensors(), **policy.net.state_dict()}
    assert all(torch.equal(t, after[n]) for n, t in before.items())
    assert [p.requires_grad for p in policy.net.parameters()] == flags and learner.counters() == facts
    assert all(p.grad is None for p in policy.net.parameters()) and learner.objective is JOB.algorithm


# Broken


def test_different_temperatures_are_detected() -> None:
    def cool(policy: PonderPolicy, learner: Learner) -> None:
        learner.readout = LogprobReadout(0.5)

    result = failed(JOB, cool)
    assert list(result) == ["log-probabilities"] and "at most 0.001" in result["log-probabilities"].value


def packs(monkeypatch: pytest.MonkeyPatch, change: Callable[[PackedBatch], PackedBatch]) -> None:
    """The learner packs otherwise."""
    pack = learning.pack

    def broken(part: Sequence[TraceChains], device: torch.device, notes: Sequence[str] = ()) -> PackedBatch:
        return change(pack(part, device, notes))

    monkeypatch.setattr(learning, "pack", broken)


def per_token(batch: PackedBatch, change: Callable[[Tensor], Tensor]) -> PackedBatch:
    """Every [N] of a batch changed alike."""
    named = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name.endswith("_N")}
    notes = {name: change(t) for name, t in batch.notes.items()}
    return replace(batch, **{name: change(t) for name, t in named.items()}, notes=notes)


def test_microbatch_denominators_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    packs(monkeypatch, lambda b: replace(b, weight_N=b.weight_N / b.weight_N.sum()))
    assert list(failed(JOB)) == ["invariance"]


def test_loss_that_reads_whole_batch_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = ClippedSurrogate.loss

    def crowded(self: ClippedSurrogate, tokens: Tokens) -> tuple[Tensor, Stats]:
        loss_N, stats = loss(self, tokens)
        return loss_N * (1 + 0.01 * float(tokens.tree_N.max() > 1)), stats  # more than two trees: copied prompts

    monkeypatch.setattr(ClippedSurrogate, "loss", crowded)
    assert list(failed(PLAIN)) == ["invariance"]


@pytest.mark.parametrize(
    "broken",
    [
        lambda logprobs, reference: losses.k3(logprobs.detach(), reference) + 0 * logprobs,
        lambda logprobs, reference: -losses.k3(logprobs, reference),
        lambda logprobs, reference: losses.k3(logprobs, reference) / 2,
    ],
    ids=["detached", "wrong sign", "half of it"],
)
def test_kl_term_without_gradient_is_detected(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.KL_ESTIMATORS, "k3", broken)
    result = failed(JOB)
    assert list(result) == ["KL"] and "by its formula 0.0417" in result["KL"].value


def test_wrong_reference_is_detected() -> None:
    def spoil(policy: PonderPolicy, learner: Learner) -> None:
        assert learner.reference is not None
        with torch.no_grad():
            learner.reference.norm.weight.mul_(2)

    result = failed(JOB, spoil)
    assert list(result) == ["KL"] and "the reference begins" in result["KL"].value


def last_of_each(batch: PackedBatch) -> Tensor:
    return torch.cat([batch.sequence_N[1:] != batch.sequence_N[:-1], torch.tensor([True])])


def test_dropped_last_token_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    packs(monkeypatch, lambda b: per_token(b, lambda t: t[~last_of_each(b)]))
    result = failed(PLAIN)
    assert list(result) == ["EOS"] and "<eos> is a target once in 0 of 4" in result["EOS"].value


def test_masked_eos_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    packs(monkeypatch, lambda b: replace(b, weight_N=torch.where(b.target_N == 2, 0.0, b.weight_N)))
    assert list(failed(JOB)) == ["EOS"]


def test_missing_eos_is_detected() -> None:
    def endless(policy: PonderPolicy, learner: Learner) -> None:
        policy.tokenizer, policy.eos = replace(policy.tokenizer, eos=()), frozenset()

    result = failed(PLAIN, endless)
    assert list(result) == ["EOS"] and "names no EOS" in result["EOS"].value
    stops = replace(PLAIN, strategy=Samples(4, Sampling(max_tokens=6, stop=("=",))))
    assert checked(stops, endless)[4].passed is None


def test_trained_prompt_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def longer(batch: PackedBatch) -> PackedBatch:
        """Each sequence begins with the prompt's last token."""
        twice = torch.cat([torch.tensor([True]), batch.sequence_N[1:] != batch.sequence_N[:-1]]) + 1
        out = per_token(batch, lambda t: t.repeat_interleave(twice))
        first = torch.cat([torch.tensor([True]), out.sequence_N[1:] != out.sequence_N[:-1]])
        at = torch.where(first, (out.source_N - 1).clamp(min=0), out.source_N)
        return replace(
            out, source_N=at, target_N=torch.where(first, batch.ids_T[out.source_N], out.target_N),
            sampled_N=torch.where(first, torch.nan, out.sampled_N),
        )  # fmt: skip

    packs(monkeypatch, longer)
    result = failed(PLAIN)
    assert list(result) == ["prompt"] and "and 4 of the 4 before them" in result["prompt"].value


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{- '7=' }}", "the prompt lacks the user's"),
        ("{{- bos_token + bos_token + messages[-1].content }}", "<bos> twice"),
        ("{{- messages[-1].content[:1] }}", "the prompt lacks the user's"),
    ],
)
def test_templates(template: str, message: str) -> None:
    result = failed(replace(JOB, template=template))
    assert list(result) == ["template"] and message in result["template"].value


def test_template_that_cannot_be_rendered_is_not_taken_for_damaged_weights() -> None:
    with pytest.raises(ChatTemplateError, match="the chat template cannot render these messages"):
        failed(replace(JOB, template="{{"))


@dataclass(frozen=True)
class Says(FirstCharVerifier):
    """Gives every answer the same score."""

    value: float | None = 0.0
    fails: bool = False

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        if self.fails:
            raise RuntimeError("no sandbox")
        return [Score(self.value, "always so")] * len(steps)


@dataclass(frozen=True)
class Judged(DigitTask):
    by: Scorer = Says()
    lost: bool = False

    @property
    def verifier(self) -> Any:
        return self.by

    def gold(self, problem: Problem) -> str:
        return {}["answer"] if self.lost else super().gold(problem)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Judged(by=Says(0.0)), "gold 0, wrong 0, empty 0 for '"),
        (Judged(by=Says(1.0)), "gold 1, wrong 1, empty 1 for '"),
        (Judged(by=Says(None)), "is undecided: always so"),
        (Judged(by=Says(float("nan"))), "is undecided: the score was nan; always so"),
        (Judged(by=Says(fails=True)), "the verifier raised RuntimeError: no sandbox"),
        (Judged(by=FirstCharVerifier(), lost=True), "failed: KeyError: 'answer'"),
    ],
)
def test_graders(task: Judged, message: str) -> None:
    result = failed(replace(JOB, task=task))
    assert list(result) == ["grader"] and message in result["grader"].value


def test_nonfinite_loss_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClippedSurrogate, "loss", lambda self, tokens: (tokens.logprobs_N * torch.nan, {}))
    assert list(failed(JOB)) == ["finite"]


def test_nonfinite_weights_are_detected() -> None:
    def damage(policy: PonderPolicy, learner: Learner) -> None:
        with torch.no_grad():
            policy.net.layers[0].mlp.up_proj.weight[0, 0] = torch.nan

    result = failed(JOB, damage)
    assert list(result) == ["finite"] and "weights are damaged" in result["finite"].value


def test_missing_credit_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GRPO, "credit", lambda self, traces, scorer, memory: {})
    assert list(failed(JOB)) == ["credit"]


def test_failed_preflight_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        PreflightError, match="1 of 9 checks before the run failed, so nothing was trained:\n  grader: "
    ):
        replace(JOB, task=Judged())(tmp_path / "run")
    assert not (tmp_path / "run").exists() and not list(tmp_path.rglob("step-*"))
    replace(JOB, task=Judged(), preflight=False, steps=1)(tmp_path / "unchecked")


# Given answers

TUNE = FineTune(DigitTask(), MODEL, QUESTION_TEMPLATE, steps=1, batch_size=2, device="cpu", dtype="float32")


def given(objective: SFT) -> dict[str, Check]:
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    result, evidence = preflight_sft(TUNE, DigitTask().train, policy, Learner(policy.net, objective))
    assert len(evidence.credited()) == 2
    return {c.name: c for c in result}


def test_sft_passes() -> None:
    result = given(SFT())
    assert list(result) == ["invariance", "prompt", "EOS", "template", "finite", "gradient"]
    assert all(c.passed for c in result.values()) and "in 2 of 2" in result["EOS"].value


def test_sft_masked_eos_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    packs(monkeypatch, lambda b: replace(b, weight_N=torch.where(b.target_N == 2, 0.0, b.weight_N)))
    assert [c.name for c in given(SFT()).values() if not c.passed] == ["EOS"]


@pytest.mark.parametrize("sampled", [[1] * 21, [1] * 14 + [0] * 3 + [1] * 4])
def test_sft_with_token_ids_passes(sampled: list[int], tmp_path: Path) -> None:
    """Long ones, in one piece or with a tool's output between two."""
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    tokens = [*policy.tokens("7" * 20).tolist(), 2]
    row = {"prompt": "1+", "completion": "7" * 20, "token_ids": tokens, "sampled": sampled}
    (tmp_path / "c.jsonl").write_text(json.dumps(row))
    job = replace(TUNE, data=str(tmp_path / "c.jsonl"))
    result, _ = preflight_sft(job, read_conversations(job.data), policy, Learner(policy.net, SFT()))
    assert [c.name for c in result if not c.passed] == []


def test_long_answers_keep_their_end() -> None:
    @dataclass(frozen=True)
    class Long(DigitTask):
        def gold(self, problem: Problem) -> str:
            return "7" * 20

    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    job = replace(TUNE, data=Long())
    result, evidence = preflight_sft(job, Long().train, policy, Learner(policy.net, SFT()))
    assert all(c.passed for c in result)
    assert all(np.array_equal(s.token_ids[-2:], [policy.tokenizer.encode("7")[0], 2]) for _, s in evidence.credited())
