"""A reward model whose head reads the log-probabilities that answers were sampled with, beside its hidden states."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from fakes import ALPHABET, QUESTION_TEMPLATE, run_async
from ponder.errors import ModelError, UsageError
from ponder.measure.statistics.logistic_fit import fit_logistic
from ponder.models.load import load_policy
from ponder.models.load_scorer import load_policy_with_head, load_scorer
from ponder.models.scratch_model import ScratchModel
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead
from ponder.pipelines.reward_model import TrainRewardModel, fit_logprob_weights
from ponder.reason.operators.logprob_features import features_at, logprob_features
from ponder.runs import newest_checkpoint, read_metrics
from ponder.trace_json import trace_to_json
from ponder.train.equal_answers import merge_equal_answers
from ponder.train.optimizer import AdamW
from ponder.train.packed_reading import answer_scores
from ponder.train.reward_objectives import OutcomeReward, ProcessReward, TokenOutcomeReward
from ponder.types import Problem, Score, Step, Trace, ids, user_messages

MODEL = ScratchModel(ALPHABET + "\n", width=32, layers=1, heads=4, context=64)
JOB = TrainRewardModel(
    ("?",), MODEL, OutcomeReward(reads_logprobs=True), QUESTION_TEMPLATE, optimizer=AdamW(lr=1e-3), steps=4,
    batch_size=16, save_every=4, held_out_tenths=3, device="cpu", dtype="float32",
)  # fmt: skip


def sampled_traces(problems: int = 60, answers: int = 4) -> list[Trace]:
    """Answers of random digits, right the more often the likelier they were sampled: the text says nothing."""
    policy, rng = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32"), np.random.default_rng(3)
    out = []
    for i in range(problems):
        question = user_messages(f"{i}=")
        trace = Trace(Problem(f"p/{i}", question), [Step(None, "", policy.encode(question))])
        for _ in range(answers):
            text = "".join(str(d) for d in rng.integers(0, 10, int(rng.integers(1, 4))))
            tokens = ids([*policy.tokens(text), 2])
            logprobs = -rng.exponential(1.0, len(tokens)).astype(np.float32)
            step = Step(0, text, tokens, logprobs, "eos")
            chance = 1 / (1 + math.exp(-3 - 2 * float(logprobs.sum())))
            step.scores["gold"] = Score(float(rng.random() < chance))
            trace.add(step)
        out.append(trace)
    return out


def written(path: Path, traces: list[Trace]) -> str:
    path.write_text("".join(json.dumps(trace_to_json(t)) + "\n" for t in traces))
    return str(path)


def test_features_are_those_of_the_sampled_tokens_so_far() -> None:
    trace = Trace(Problem("p", user_messages("1")), [Step(None, "", ids([5, 6]))])
    first = trace.add(Step(0, "ab", ids([1, 2]), np.array([-1.0, -0.5], np.float32), "stop"))
    tool = trace.add(Step(first, "t", ids([9])))
    last = trace.add(Step(tool, "c", ids([3]), np.array([-3.0], np.float32), "eos"))
    wanted: Any = [
        [math.nan] * 3, [math.nan] * 3, [-1, -1, -1], [-1.5, -0.75, -1], [-1.5, -0.75, -1], [-4.5, -1.5, -3],
    ]  # fmt: skip
    np.testing.assert_allclose(logprob_features(trace, last), wanted)
    assert features_at(trace, last, [1]) is None
    unknown = trace.add(Step(tool, "c", ids([3]), np.array([math.nan], np.float32), "eos"))
    assert features_at(trace, unknown, [4]) is not None and features_at(trace, unknown, [-1]) is None


@pytest.mark.parametrize("soft", [False, True])
def test_logistic_fit_is_the_minimum_that_another_method_finds(soft: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)) * [20.0, 1.0, 0.1] + [-50.0, 3.0, 0.0]
    p = 1 / (1 + np.exp(-(0.1 * (x[:, 0] + 50) - x[:, 1] + 2)))
    y = p if soft else (rng.random(400) < p).astype(float)
    z = (x - x.mean(0)) / x.std(0)

    def loss(w: Any) -> float:
        logit = z @ w[:3] + w[3]
        return float(np.mean(np.logaddexp(0, logit) - y * logit) + 0.01 / 2 * np.sum(w[:3] ** 2))

    other = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-9}).x
    own = fit_logistic(x, y, ridge=0.01)
    np.testing.assert_allclose(x @ own[:3] + own[3], z @ other[:3] + other[3], atol=1e-5)


def test_logistic_fit_is_finite_where_labels_are_told_apart_or_a_feature_never_changes() -> None:
    x = np.column_stack([np.linspace(-1, 1, 50), np.full(50, 7.0)])
    weights = fit_logistic(x, x[:, 0] > 0)
    assert np.isfinite(weights).all() and weights[0] > 0 and weights[1] == 0
    assert ((x @ weights[:2] + weights[2] > 0) == (x[:, 0] > 0)).all()


@pytest.mark.parametrize("objective", [OutcomeReward, TokenOutcomeReward, ProcessReward])
def test_it_begins_as_the_regression_and_every_reader_says_the_same(objective: Any, tmp_path: Path) -> None:
    traces = sampled_traces()
    data = (written(tmp_path / "d.jsonl", traces),)
    job = replace(JOB, data=data, algorithm=objective(reads_logprobs=True), optimizer=AdamW(lr=1e-12), scorer="gold")
    job(tmp_path / "run")
    last = read_metrics(tmp_path / "run")[-1]
    assert last["test/auroc"] > 0.8  # the text says nothing, so a head alone could not know
    folder = str(tmp_path / "run")
    net = load_policy_with_head(folder, None, device="cpu", dtype="float32").net
    assert isinstance(net, DecoderWithHead)
    *weights, constant = net.head.logprob_weights
    scorer = load_scorer(folder, "cpu", "float32")
    packed = answer_scores(net, traces) if objective is not ProcessReward else None
    for n, trace in enumerate(traces[:5]):
        for k, (i, score) in enumerate(zip(trace.answers(), run_async(scorer(trace, trace.answers())), strict=True)):
            lp = trace.steps[i].logprobs
            assert lp is not None
            z = float(np.dot(weights, [lp.sum(), lp.mean(), lp.min()]) + constant) / net.head.temperature
            assert score.value == pytest.approx(1 / (1 + math.exp(-z)), abs=1e-5)
            if packed is not None:
                assert packed[n][k] == pytest.approx(score.value, abs=1e-5)


def test_the_network_learns_what_the_regression_leaves_open(tmp_path: Path) -> None:
    """Right is what is both likely and ends with an even digit."""
    traces = sampled_traces(120)
    for trace in traces:
        for i in trace.answers():
            step = trace.steps[i]
            step.scores["gold"] = Score(float(step.scores["gold"].value == 1 and int(step.text[-1]) % 2 == 0))
    data = (written(tmp_path / "d.jsonl", traces),)
    found = {}
    for reads in (False, True):
        job = replace(JOB, data=data, algorithm=OutcomeReward(reads_logprobs=reads), steps=60, save_every=60)
        replace(job, optimizer=AdamW(lr=1e-2))(tmp_path / f"run-{reads}")
        found[reads] = read_metrics(tmp_path / f"run-{reads}")[-1]["test/auroc"]
    only = replace(JOB, data=data, optimizer=AdamW(lr=1e-12))
    only(tmp_path / "run-only")
    assert found[True] > found[False] + 0.05
    assert found[True] > read_metrics(tmp_path / "run-only")[-1]["test/auroc"] + 0.05


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    data = (written(tmp_path / "d.jsonl", sampled_traces()),)
    job = replace(JOB, data=data, steps=8)
    job(tmp_path / "whole")
    replace(job, steps=4)(tmp_path / "halves")
    job(tmp_path / "halves")
    saved = [newest_checkpoint(tmp_path / name) for name in ("whole", "halves")]
    assert saved[0] is not None and saved[1] is not None
    one, other = ((path / "model" / "config.json").read_text() for path in saved)  # type: ignore[operator]
    assert one == other and json.loads(one)["score_head"]["logprob_weights"][0] != 0


def test_answers_without_log_probabilities_are_refused(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}=", "completion": str(i % 10), "label": i % 2 == 0} for i in range(40)]
    (tmp_path / "given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match="leave out reads_logprobs"):
        replace(JOB, data=(str(tmp_path / "given.jsonl"),))(tmp_path / "refused")
    traces = sampled_traces()
    data = (written(tmp_path / "d.jsonl", traces),)
    job = replace(JOB, data=data, algorithm=ProcessReward(reads_logprobs=True))
    policy = job(tmp_path / "run")
    scorer = load_scorer(str(tmp_path / "run"), "cpu", "float32")
    given = Trace(traces[0].problem, [traces[0].steps[0], Step(0, "1", policy.tokens("1"), stop="eos")])
    (score,) = run_async(scorer(given, [1]))
    assert score.value is None and "no log-probabilities" in score.reason
    assert isinstance(policy.net, DecoderWithHead)
    given.steps[1] = replace(given.steps[1], logprobs=np.full(1, math.nan, np.float32))
    with pytest.raises(ModelError, match="no log-probabilities"):
        answer_scores(policy.net, [given])
    with pytest.raises(ModelError, match=r"\(logit, reads log-probabilities\), not 'process' \(logit\)"):
        replace(job, model=str(tmp_path / "run"), algorithm=ProcessReward())(tmp_path / "other")


def test_a_head_with_invalid_weights_is_refused() -> None:
    for wrong in ({"logprob_weights": (math.inf,)}, {"form": "number", "logprob_weights": (1.0, 0.0)}):
        with pytest.raises(UsageError, match="log-probabilities"):
            ScoreHead(**{"predicts": "outcome", "form": "logit", **wrong})  # type: ignore[arg-type]


def test_fitted_weights_count_equal_answers() -> None:
    traces = []
    for trace in sampled_traces(20):
        for i, step in enumerate(trace.steps[1:]):
            for _ in range(5 * (i % 2)):  # equal counts would fit the same weights
                trace.add(replace(step, scores=dict(step.scores)))
        traces.append(trace)
    rule = OutcomeReward(reads_logprobs=True)
    merged = [merge_equal_answers(t, dict(rule.targets(t, "gold")), same_logprobs=True) for t in traces]
    assert sum(len(t.steps) for t in merged) < sum(len(t.steps) for t in traces) / 2
    wanted = fit_logprob_weights(traces, rule, "gold")
    np.testing.assert_allclose(fit_logprob_weights(merged, rule, "gold"), wanted, rtol=1e-6)
