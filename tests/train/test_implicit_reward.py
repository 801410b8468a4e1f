"""The implicit reward model: loss and gradient against float64, scores against slow sums, its folder, its use."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, mixed_groups, perturb, run_async, tiny_decoder, trace_group
from float64_losses import Grads, gap
from ponder.errors import ModelError, UsageError
from ponder.models.guides import load_guide, parse_reward_model
from ponder.models.load import load_policy
from ponder.models.load_scorer import load_implicit_scorer, load_or_share_scorer, load_scorer, make_head_reader
from ponder.models.model_fingerprints import model_fingerprint
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.reward_models import ImplicitRewardModel, make_scorer
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_reference import DecoderWithReference
from ponder.nets.lora import LoRA
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.rewards.labelled_traces import separate_answers
from ponder.pipelines.solve import solve
from ponder.reason.operators.cut import Cut
from ponder.reason.strategies import MCTS, BeamSearch, BestOfN
from ponder.runs import newest_checkpoint, read_metrics
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.reward_learner import make_reward_learner, predict
from ponder.train.reward_objectives import ImplicitProcessReward, ImplicitReward
from ponder.types import Problem, Sampling, Score, Step, Trace, ids, user_messages
from reference_decoder import plain_logprobs, weights64

BETA = 0.3


def learner_of(micro: int = 10**9, rule: ImplicitReward = ImplicitReward(BETA)) -> Learner:
    base = tiny_decoder(scale=0.1)
    net = perturb(DecoderWithReference.from_decoder(base, rule.head), 0.05, seed=4)
    assert isinstance(net, DecoderWithReference)
    return make_reward_learner(net, rule, AdamW(lr=1e-9), max_tokens_per_microbatch=micro)


def several_steps() -> Trace:
    """An answer of three steps, a tool's output among them, and one of a single step."""
    trace = trace_group([5, 9], [[7, 8, 2]], [1.0])
    likely = np.full(2, -1.0, np.float32)
    at = trace.add(Step(0, "", ids([11, 12]), likely, "stop"))
    at = trace.add(Step(at, "", ids([30, 31, 32])))  # not sampled
    last = Step(at, "", ids([13, 2]), likely, "eos")
    last.scores["wanted"] = Score(0.25)
    trace.add(last)
    return trace


def labelled() -> list[Trace]:
    return [*mixed_groups(tool=False), several_steps()]


def own_tokens(trace: Trace, leaf: int) -> list[tuple[list[int], list[int]]]:
    """What stands before each sampled step on the path, and its tokens."""
    return [
        (trace.token_ids(i)[: -len(trace.steps[i].token_ids)].tolist(), trace.steps[i].token_ids.tolist())
        for i in trace.path(leaf)[1:]
        if trace.steps[i].sampled
    ]


def plain_sum(net: Decoder, w: Any, trace: Trace, leaf: int) -> torch.Tensor:
    parts = [plain_logprobs(net, w, [*before, *own], len(own)).sum() for before, own in own_tokens(trace, leaf)]
    return torch.stack(parts).sum()


def plain_step(learner: Learner, traces: Sequence[Trace]) -> tuple[float, Grads, list[float]]:
    """Cross-entropy of sigmoid(beta (log pi - log pi_ref)), one answer at a time in float64."""
    net = learner.net
    assert isinstance(net, DecoderWithReference)
    w, fixed = weights64(net), weights64(net.reference)
    terms, numbers = [], []
    for trace in traces:
        for i in trace.answers():
            y = trace.score(i, "wanted")
            if y is not None:
                ratio = plain_sum(net, w, trace, i) - plain_sum(net.reference, fixed, trace, i).detach()
                z = BETA * ratio
                numbers.append(float(z.detach()))
                terms.append(torch.log1p(torch.exp(-z)) * y + torch.log1p(torch.exp(z)) * (1 - y))
    total = torch.stack(terms).mean()
    total.backward()
    return float(total.detach()), {n: x.grad for n, x in w.items() if x.grad is not None}, numbers


def test_loss_and_gradient_match_the_formula_in_any_microbatches() -> None:
    traces = labelled()
    loss, expected, numbers = plain_step(learner_of(), traces)
    ImplicitReward(BETA).credit(traces, "wanted", {})
    for micro in (1, 30, 10**9):
        assert gap(learner_of(micro).gradient(traces), expected) < 1e-5, micro
    learner = learner_of(30)
    read = [float(z[0]) for _, places, found in predict(learner, traces) for _, z in zip(places, found, strict=True)]
    assert sorted(read) == pytest.approx(sorted(numbers), abs=1e-5)
    assert learner.step(traces)["loss"] == pytest.approx(loss, rel=1e-5)
    assert abs(loss - math.log(2)) > 1e-4, "the perturbed model is not its reference"


def test_loss_and_gradient_of_step_labels_match_the_formula_in_any_microbatches() -> None:
    rule, traces = ImplicitProcessReward(BETA), labelled()
    first = next(i for i, step in enumerate(traces[-1].steps) if step.token_ids.tolist() == [11, 12])
    traces[-1].steps[first].scores["wanted"] = Score(1.0)
    net = learner_of().net
    assert isinstance(net, DecoderWithReference)
    w, fixed = weights64(net), weights64(net.reference)
    terms, numbers = [], []
    for trace in traces:
        for i in range(1, len(trace.steps)):
            if (y := trace.score(i, "wanted")) is not None:  # of everything sampled up to the end of the step
                z = BETA * (plain_sum(net, w, trace, i) - plain_sum(net.reference, fixed, trace, i).detach())
                numbers.append(float(z.detach()))
                terms.append(torch.log1p(torch.exp(-z)) * y + torch.log1p(torch.exp(z)) * (1 - y))
    total = torch.stack(terms).mean()
    total.backward()
    expected = {n: x.grad for n, x in w.items() if x.grad is not None}
    assert rule.credit(traces, "wanted", {}) == {"labels": len(terms)}
    for micro in (1, 30, 10**9):
        assert gap(learner_of(micro, rule).gradient(traces), expected) < 1e-5, micro
    learner = learner_of(30, rule)
    read = [float(z[0]) for _, places, found in predict(learner, traces) for _, z in zip(places, found, strict=True)]
    assert sorted(read) == pytest.approx(sorted(numbers), abs=1e-5)
    assert learner.step(traces)["loss"] == pytest.approx(float(total.detach()), rel=1e-5)


def test_reference_is_not_trained_and_starts_equal() -> None:
    rule, traces = ImplicitReward(BETA), labelled()
    net = DecoderWithReference.from_decoder(tiny_decoder(), rule.head)
    before = {n: p.clone() for n, p in net.reference.state_dict().items()}
    learner = make_reward_learner(net, rule, AdamW(lr=1e-2))
    rule.credit(traces, "wanted", {})
    assert learner.step(traces)["loss"] == pytest.approx(math.log(2), rel=1e-5), "every ratio is 1 at first"
    assert all(torch.equal(p, before[n]) for n, p in net.reference.state_dict().items())
    assert not torch.equal(net.lm_head.weight, net.reference.lm_head.weight)
    assert {n for n, _ in net.named_parameters()} == {n for n, _ in tiny_decoder().named_parameters()}


def test_shared_steps_are_refused_until_answers_are_separate() -> None:
    trace = several_steps()
    fork = Step(2, "", ids([14, 2]), np.full(2, -1.0, np.float32), "eos")
    fork.scores["wanted"] = Score(0.0)
    trace.add(fork)
    with pytest.raises(UsageError, match="answers share steps"):
        ImplicitReward().credit([trace], "wanted", {})
    alone = separate_answers(trace)
    assert ImplicitReward().credit([alone], "wanted", {}) == {"labels": 3.0}
    texts = sorted(tuple(alone.token_ids(i).tolist()) for i in alone.answers())
    assert texts == sorted(tuple(trace.token_ids(i).tolist()) for i in trace.answers())


def test_settings_are_checked() -> None:
    for beta in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UsageError, match="positive and finite"):
            ImplicitReward(beta)
    with pytest.raises(UsageError, match="ratio, logprob or likelihood"):
        ImplicitReward(reading="sum")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no head to train alone"):
        TrainRewardModel(("x",), algorithm=ImplicitReward(), head_only=True)


# a whole job

MODEL = ScratchModel(ALPHABET + "\n", width=32, layers=1, heads=4, context=64)
JOB = TrainRewardModel(
    ("?",), MODEL, ImplicitReward(0.2), QUESTION_TEMPLATE, optimizer=AdamW(lr=1e-2), steps=30, batch_size=16,
    save_every=30, held_out_tenths=3, device="cpu", dtype="float32",
)  # fmt: skip


def labels(path: Path, rows: int = 150) -> str:
    """An answer is right where its first digit is even."""
    rng = np.random.default_rng(0)
    texts = [f"{rng.integers(10)}\n{rng.integers(10)}" for _ in range(rows)]
    made = [{"prompt": f"{i}=", "completion": t, "label": int(t[0]) % 2 == 0} for i, t in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return str(path)


def group(policy: PonderPolicy, question: str = "500=") -> Trace:
    prompt = policy.encode(user_messages(question))
    trace = Trace(Problem("new", user_messages(question)), [Step(None, "", prompt)])
    for text in ("4\n1", "3\n2", "8\n8", "7\n0", "1\n4"):
        tokens = ids([*policy.tokens(text), 2])
        trace.add(Step(0, text, tokens, np.full(len(tokens), -1.0, np.float32), "eos"))
    return trace


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PonderPolicy]:
    home = tmp_path_factory.mktemp("implicit")
    job = replace(JOB, data=(labels(home / "d.jsonl"),))
    return home / "run", job(home / "run")


def test_job_learns_and_its_judge_prefers_right_answers(trained: tuple[Path, PonderPolicy]) -> None:
    folder, policy = trained
    last = read_metrics(folder)[-1]
    assert last["test/accuracy"] > 0.9 and last["test/auroc"] > 0.95 and last["test/labels"] > 15
    judge = make_scorer(make_head_reader(policy))
    assert isinstance(judge, ImplicitRewardModel) and judge.name == "implicit" and judge.gameable
    trace = group(policy)
    scores = run_async(judge(trace, trace.answers()))
    assert all(s.value is not None and s.cost.scorer_tokens > 0 and s.cost.flops > 0 for s in scores)
    right = [int(trace.steps[i].text[0]) % 2 == 0 for i in trace.answers()]
    values = [s.value or 0.0 for s in scores]
    assert min(v for v, r in zip(values, right, strict=True) if r) > max(
        v for v, r in zip(values, right, strict=True) if not r
    )


def test_scores_are_the_sums_of_both_networks(trained: tuple[Path, PonderPolicy]) -> None:
    folder, policy = trained
    net, trace = policy.net, group(trained[1])
    assert isinstance(net, DecoderWithReference)
    w, fixed = weights64(net), weights64(net.reference)
    beta = 1 / net.head.temperature
    leaf = trace.answers()[0]
    log_pi, log_ref = (float(plain_sum(n, v, trace, leaf).detach()) for n, v in ((net, w), (net.reference, fixed)))
    count = len(trace.steps[leaf].token_ids)
    expected = {
        "ratio": 1 / (1 + math.exp(-beta * (log_pi - log_ref))),
        "logprob": math.exp(log_pi),
        "likelihood": math.exp(log_pi / count),
    }
    for reading, value in expected.items():
        judge = load_scorer(str(folder), "cpu", "float32", reading=reading)
        (score,) = run_async(judge(trace, [leaf]))
        assert score.value == pytest.approx(value, rel=2e-4) and not score.steps, reading
        again = run_async(judge(trace, [leaf]))[0]
        assert again.value == score.value and again.cost.scorer_tokens == 0, "cached"


def test_steps_multiply_to_the_whole_and_reduce(trained: tuple[Path, PonderPolicy]) -> None:
    """Of log pi, the steps' probabilities multiply to the answer's; of the ratio, their logits add up."""
    folder, policy = trained
    trace = group(policy)
    leaf = trace.answers()[2]
    judge = load_scorer(str(folder), "cpu", "float32", reading="logprob")
    assert isinstance(judge, ImplicitRewardModel)
    steps, _ = run_async(judge.step_scores(trace, leaf))
    assert len(steps) == 2, "two lines"
    assert math.prod(steps) == pytest.approx(run_async(judge(trace, [leaf]))[0].value)
    ratio = load_scorer(str(folder), "cpu", "float32", reduce="min")
    assert isinstance(ratio, ImplicitRewardModel) and ratio.scores_steps
    (score,) = run_async(ratio(trace, [leaf]))
    assert score.value == min(score.steps)
    whole = run_async(load_scorer(str(folder), "cpu", "float32")(trace, [leaf]))[0].value
    assert whole is not None
    assert sum(math.log(p / (1 - p)) for p in score.steps) == pytest.approx(math.log(whole / (1 - whole)), abs=1e-4)
    cut = Trace(trace.problem, [trace.steps[0]])
    first = cut.add(Step(0, "8\n", policy.tokens("8\n"), np.full(2, -1.0, np.float32), "stop"))
    cut.add(Step(first, "8", ids([*policy.tokens("8"), 2]), np.full(2, -1.0, np.float32), "eos"))
    assert run_async(ratio(cut, [2]))[0].steps == pytest.approx(score.steps, rel=1e-5), "a cut path is read alike"


def test_folder_is_a_language_model_with_its_reference(trained: tuple[Path, PonderPolicy], tmp_path: Path) -> None:
    folder, policy = trained
    newest = newest_checkpoint(folder)
    assert newest is not None
    model = newest / "model"
    assert hf.is_score_model(model) and hf.load_implicit_head(model) == policy.net.head  # type: ignore[union-attr]
    reference = load_policy(str(model / "reference"), device="cpu", dtype="float32")
    assert torch.equal(reference.net.lm_head.weight, policy.net.reference.lm_head.weight)  # type: ignore[union-attr]
    mark = model_fingerprint(model)
    shared = load_or_share_scorer(reference, str(folder), "cpu", "float32")
    assert shared.reader.reference is reference, "the reference runs in the policy's engine"  # type: ignore[attr-defined]
    trace = group(policy)
    apart = load_scorer(str(folder), "cpu", "float32")
    one, two = (run_async(judge(trace, trace.answers())) for judge in (shared, apart))
    assert [s.value for s in one] == [s.value for s in two]
    weights = next((model / "reference").glob("*.safetensors"))
    kept = weights.read_bytes()
    try:
        weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        assert model_fingerprint(model) != mark, "the reference is a part of the model"
    finally:
        weights.write_bytes(kept)


def test_guides_by_name(trained: tuple[Path, PonderPolicy]) -> None:
    folder, policy = trained
    trace = group(policy)

    def values(name: str) -> list[float | None]:
        guide = load_guide(name, None, device="cpu", dtype="float32")
        assert guide is not None
        return [s.value for s in run_async(guide(trace, trace.answers()))]

    assert parse_reward_model(f"reward+logprob:{folder}") == ("reward+logprob", str(folder))
    assert parse_reward_model(f"logprob:{folder}") == ("logprob", str(folder))
    assert values(f"reward+logprob:{folder}") == values(f"logprob:{folder}") != values(f"reward:{folder}")
    assert values(f"reward+ratio+min:{folder}") != values(f"reward:{folder}") == values(f"reward+ratio:{folder}")
    newest = newest_checkpoint(folder)
    assert newest is not None
    plain = str(newest / "model" / "reference")
    assert values(f"likelihood:{plain}") != values(f"logprob:{plain}"), "any language model is a judge"
    with pytest.raises(ModelError, match="no reference to compare with"):
        load_implicit_scorer(plain, "cpu", "float32")
    with pytest.raises(UsageError, match="no setting 'unit'"):
        load_scorer(str(folder), "cpu", "float32", unit=1)


@pytest.mark.parametrize("strategy", [
    BestOfN(3, sampling=Sampling(max_tokens=4)), BestOfN(3, sampling=Sampling(max_tokens=4), choose="weighted"),
    BeamSearch(2, 2, sampling=Sampling(max_tokens=4), cut=Cut(stop=("\n",))),
    MCTS(simulations=3, width=2, sampling=Sampling(max_tokens=4), cut=Cut(stop=("\n",))),
], ids=lambda s: type(s).__name__)  # fmt: skip
def test_strategies_are_led_by_it(strategy: Any, trained: tuple[Path, PonderPolicy]) -> None:
    folder, _ = trained
    newest = newest_checkpoint(folder)
    assert newest is not None
    policy = load_policy(str(newest / "model" / "reference"), device="cpu", dtype="float32")
    judge = load_or_share_scorer(policy, str(folder), "cpu", "float32")
    trace = run_async(solve(Problem("p", user_messages("501=")), strategy, policy, guide=judge))
    scored = [s.scores["implicit"].value for s in trace.steps if "implicit" in s.scores]
    assert scored and all(v is not None and 0 < v < 1 for v in scored)


def test_training_goes_on_from_the_folder_with_its_reference(
    trained: tuple[Path, PonderPolicy], tmp_path: Path
) -> None:
    folder, policy = trained
    job = replace(JOB, data=(labels(tmp_path / "d.jsonl"),), model=str(folder), steps=1, save_every=1)
    more = job(tmp_path / "more")
    assert isinstance(more.net, DecoderWithReference) and isinstance(policy.net, DecoderWithReference)
    assert torch.equal(more.net.reference.lm_head.weight, policy.net.reference.lm_head.weight)
    assert not torch.equal(more.net.lm_head.weight, policy.net.lm_head.weight)
    from ponder.train.reward_objectives import OutcomeReward

    with pytest.raises(ModelError, match="was trained for 'implicit'"):
        replace(job, algorithm=OutcomeReward())(tmp_path / "orm")


@pytest.mark.nightly
def test_lora_and_resume(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    net, tokenizer = MODEL.build(torch.float32, torch.device("cpu"))
    hf.save(net, tmp_path / "base")
    tokenizer.save(tmp_path / "base")
    data = (labels(tmp_path / "d.jsonl"),)
    job = replace(JOB, data=data, model=str(tmp_path / "base"), steps=4, save_every=2, lora=LoRA(4))
    expected = job(tmp_path / "whole")
    job_of_half = replace(job, steps=2)
    job_of_half(tmp_path / "run")
    result = job(tmp_path / "run")
    for name, weight in expected.net.state_dict().items():
        assert torch.equal(weight, result.net.state_dict()[name]), name
    trace = group(result)
    here = make_scorer(make_head_reader(result))
    stored = load_scorer(str(tmp_path / "run"), "cpu", "float32")
    one, two = ([s.value for s in run_async(j(trace, trace.answers()))] for j in (here, stored))
    assert one == pytest.approx(two, rel=1e-5)
