"""PPO-ptx: conversations that are imitated beside the samples (Ouyang et al. 2022, equation 2)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from ponder.errors import UsageError
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.problems.conversations import read_conversations
from ponder.pipelines.rl import RL, build_learners, pretraining_term
from ponder.pipelines.sft import text_answer_trace
from ponder.runs import read_metrics
from ponder.train.credit import assign_imitation
from ponder.train.learner import Learner
from ponder.train.ppo import PPO
from ponder.types import Sampling
from reference_decoder import plain_logits, weights64

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
ROWS = [{"prompt": f"{i}=", "completion": str(9 - i) * (1 + i % 3)} for i in range(8)]


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def job(data: str | None, coef: float, **more: object) -> RL:
    return RL(
        DigitTask(), MODEL, QUESTION_TEMPLATE, algorithm=PPO(pretraining_coef=coef), group_size=4,
        sampling=Sampling(max_tokens=2), steps=2, problems_per_step=3, pretraining_data=data, preflight=False,
        device="cpu", dtype="float32", **more,  # type: ignore[arg-type]
    )  # fmt: skip


def credited(learner: Learner, policy: object) -> list:
    traces = [text_answer_trace(policy, p, "7") for p in DigitTask().train[:3]]  # type: ignore[arg-type]
    for trace in traces:
        assign_imitation(trace)
    return traces


@pytest.mark.parametrize("microbatch", [4, 4096])
def test_gradient_is_the_samples_plus_coef_times_the_mean_log_probability(data: str, microbatch: int) -> None:
    torch.manual_seed(0)
    ptx = replace(job(data, 2.5, pretraining_batch_size=8), max_tokens_per_microbatch=microbatch)
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    learner, _ = build_learners(ptx, policy)
    traces = credited(learner, policy)
    alone = learner.gradient(traces)
    learner.imitation = pretraining_term(ptx, policy, read_conversations(data), 0)
    together = learner.gradient(traces)

    weights = {name: w.requires_grad_() for name, w in weights64(policy.net).items()}
    problems = {p.question: p for p in read_conversations(data)}
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row in ROWS:  # by hand: one text at a time through a plain network in float64
        trace = text_answer_trace(policy, problems[row["prompt"]], row["completion"])
        tokens = [int(t) for step in trace.steps for t in step.token_ids]
        given = len(trace.steps[0].token_ids)
        logp = torch.log_softmax(plain_logits(weights, policy.net.config, tokens), -1)
        total = total - torch.stack([logp[i - 1, tokens[i]] for i in range(given, len(tokens))]).sum()
        count += len(tokens) - given
    by_hand = torch.autograd.grad(2.5 * total / count, list(weights.values()), allow_unused=True)
    expected = dict(zip(weights, by_hand, strict=True))
    compared = 0
    for name, grad in together.items():
        if expected.get(name) is not None:
            torch.testing.assert_close((grad - alone[name]).double(), expected[name], rtol=1e-3, atol=1e-5)
            compared += 1
    assert compared > 10


def test_a_run_imitates_the_texts_and_records_the_term(data: str, tmp_path: Path) -> None:
    job(data, 1.0, pretraining_batch_size=4)(tmp_path / "run")
    rows = read_metrics(tmp_path / "run")
    assert all(row["loss/pretraining"] > 0 for row in rows)
    assert rows[1]["loss/pretraining"] != rows[0]["loss/pretraining"]


@pytest.mark.parametrize(("with_data", "coef"), [(True, 0.0), (False, 1.0)])
def test_data_and_coefficient_go_together(with_data: bool, coef: float, data: str) -> None:
    with pytest.raises(UsageError, match="PPO-ptx needs both"):
        job(data if with_data else None, coef)


def test_bad_settings_are_refused(data: str) -> None:
    with pytest.raises(UsageError, match="pretraining_coef is -1"):
        PPO(pretraining_coef=-1.0)
    with pytest.raises(UsageError, match="pretraining_batch_size"):
        job(data, 1.0, pretraining_batch_size=0)
