"""Objectives that learn to judge: against their formulas in NumPy, against a plain float64 network, and one gradient
however it is computed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fakes import mixed_groups, perturb, tiny_decoder, trace_group
from float64_losses import Grads, gap
from ponder.errors import ModelError, UsageError
from ponder.nets import hf
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead
from ponder.nets.lora import LoRA, attach
from ponder.train.learner import Learner
from ponder.train.objective import Tokens
from ponder.train.optimizer import AdamW
from ponder.train.pack import chains
from ponder.train.readouts import RewardReadout
from ponder.train.reward_learner import make_reward_learner, predict
from ponder.train.reward_objectives import (
    SHARE_NOTE,
    TARGET_NOTE,
    BradleyTerry,
    OutcomeReward,
    ProcessReward,
    RewardObjective,
    StateValue,
    two_hot,
)
from ponder.types import Problem, Score, Step, Trace, ids, user_messages
from reference_decoder import plain_hidden, weights64

RULES: dict[str, RewardObjective] = {
    "pairs": BradleyTerry(), "orm": OutcomeReward(), "orm, bias": OutcomeReward(bias=True), "prm": ProcessReward(),
    "value": StateValue(),
    "two-hot": StateValue("two-hot", bins=7), "x1": StateValue("x1", target_source="value", hidden=(5, 3)),
}  # fmt: skip


def solutions() -> list[Trace]:
    """Trees with a label at most steps: one-token steps, twins, a tool's output, a step that nobody rated."""
    rng = np.random.default_rng(3)

    def step(parent: int, size: int, label: float | None, last: bool = False) -> Step:
        tokens = ids(rng.integers(3, 64, size))
        made = Step(parent, "", tokens, np.full(size, -1.0, np.float32), "eos" if last else "stop")
        made.scores["wanted"] = Score(label)
        made.visits, made.value = (0, 0.0) if label is None else (3, 2 * label - 1)
        return made

    trees = []
    for sizes in (((3, 1, 4), (1, 1), (2,)), ((1,), (1,)), ((2, 2, 2, 1), (3, 1))):
        trace = trace_group(rng.integers(3, 64, 4), [])
        for way in sizes:
            at = 0
            for i, size in enumerate(way):
                label = None if (i, size) == (1, 1) else float(np.round(rng.random(), 2))
                at = trace.add(step(at, size, label, last=i == len(way) - 1))
        trees.append(trace)
    twin = trees[1]  # two answers that begin with the same single token
    twin.steps[2].token_ids = twin.steps[1].token_ids
    fork = trees[0]
    tool = fork.add(Step(1, "", ids([9, 8, 7])))
    fork.add(step(tool, 2, 0.25, last=True))
    assert not fork.steps[2].scores["wanted"].value
    return trees


def traces_of(rule: RewardObjective) -> list[Trace]:
    return solutions() if isinstance(rule, StateValue | ProcessReward) else mixed_groups() + solutions()


# what is read where, from nothing but the traces


def wanted(rule: RewardObjective, traces: Sequence[Trace]) -> list[list[tuple[int, float]]]:
    out = []
    for trace in traces:
        here = []
        for i, step in enumerate(trace.steps):
            score = step.scores.get("wanted", Score(None)).value
            answer = not trace.children(i) and step.stop in ("eos", "length")
            if isinstance(rule, StateValue) and rule.target_source == "value":
                score = step.value if step.visits else None
            if i and score is not None and (isinstance(rule, StateValue | ProcessReward) or answer):
                here.append((i, score))
        if isinstance(rule, BradleyTerry) and len({s for _, s in here}) < 2:
            here = []
        if here:
            out.append(here)
        else:
            out.append([])
    return out


# the formulas, in float64


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def formula(rule: RewardObjective, groups: Sequence[tuple[np.ndarray, Sequence[float]]]) -> float:
    """From the numbers [M, O] and targets of each trace."""
    if isinstance(rule, BradleyTerry):
        prompts = []
        for numbers, targets in groups:
            pairs = [(i, j) if targets[i] > targets[j] else (j, i) for i, j in combinations(range(len(targets)), 2)]
            pairs = [(i, j) for i, j in pairs if targets[i] != targets[j]]
            if pairs:
                prompts.append(np.mean([-math.log(sigmoid(numbers[i, 0] - numbers[j, 0])) for i, j in pairs]))
        return float(np.mean(prompts))
    terms = [one(rule, z, y) for numbers, targets in groups for z, y in zip(numbers, targets, strict=True)]
    return float(np.mean(terms))


def one(rule: RewardObjective, z: np.ndarray, y: float) -> float:
    if isinstance(rule, OutcomeReward):  # and PRM
        p = sigmoid(z[0])
        return -(y * math.log(p) + (1 - y) * math.log(1 - p))
    assert isinstance(rule, StateValue)
    if rule.kind == "mse":
        return 0.5 * (z[0] - y) ** 2
    if rule.kind == "x1":
        return (2 * sigmoid(z[0]) - 1 - y) ** 2
    centres = [rule.low + (rule.high - rule.low) * b / (rule.bins - 1) for b in range(rule.bins)]
    gap = centres[1] - centres[0]
    weights = [max(0.0, 1 - abs(y - c) / gap) for c in centres]
    return float(-sum(w * (z[b] - math.log(np.exp(z).sum())) for b, w in enumerate(weights)))


def slope(f: Callable[[np.ndarray], float], x: np.ndarray) -> np.ndarray:
    """By central differences."""
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += 1e-6
        down[i] -= 1e-6
        out[i] = (f(up) - f(down)) / 2e-6
    return out


@pytest.mark.parametrize("name", RULES)
def test_loss_and_gradient_of_the_numbers(name: str) -> None:
    rule, traces = RULES[name], traces_of(RULES[name])
    places = wanted(rule, traces)
    rng = np.random.default_rng(1)
    numbers = [rng.normal(size=(len(here), rule.head.bins)) * 2 for here in places]
    rule.credit(traces, "wanted", {})
    marked = [[i for i, s in enumerate(t.steps) if TARGET_NOTE in s.notes] for t in traces]
    assert marked == [[i for i, _ in here] for here in places]
    flat = np.concatenate(numbers)

    def total(x: np.ndarray) -> float:
        parts = np.split(x, np.cumsum([len(h) for h in places])[:-1])
        return formula(rule, [(z, [y for _, y in h]) for z, h in zip(parts, places, strict=True) if h])

    values = torch.tensor(flat, requires_grad=True)
    last = [
        (s.notes[TARGET_NOTE][-1], s.notes[SHARE_NOTE][-1]) for t in traces for s in t.steps if TARGET_NOTE in s.notes
    ]
    notes = {
        n: torch.tensor([x[k] for x in last], dtype=torch.float64) for k, n in enumerate((TARGET_NOTE, SHARE_NOTE))
    }
    tree = torch.tensor([number for number, h in enumerate(places) for _ in h])
    none = torch.zeros(0)
    loss, stats = rule.loss(Tokens(none, tree, tree, none, none, none, values, notes))
    loss.sum().backward()
    assert float(loss.sum().detach()) == pytest.approx(total(flat), rel=1e-6), "a target is kept in float32"
    assert values.grad is not None
    assert np.allclose(values.grad.numpy(), slope(total, flat), atol=2e-7)
    assert set(stats) == {rule.metric_name}


def test_bradley_terry_weights_prompts_equally() -> None:
    """All K (K - 1) / 2 pairs (InstructGPT); equal scores make none."""
    many = trace_group([5], [[4, 2], [6, 2], [7, 2], [8, 2]], [4.0, 3.0, 2.0, 1.0])
    two = trace_group([5], [[4, 2], [6, 2]], [1.0, 0.0])
    equal = trace_group([5], [[4, 2], [6, 2]], [1.0, 1.0])
    assert BradleyTerry().credit([many, two, equal], "wanted", {}) == {"labels": 6.0}
    shares = [
        [float(s.notes[SHARE_NOTE][-1]) for s in t.steps[1:] if SHARE_NOTE in s.notes] for t in (many, two, equal)
    ]
    assert shares == [[0.125] * 4, [0.25] * 2, []]


@pytest.mark.parametrize("scores", [(0.1 + 0.2, 0.3), (1.0, 1.0 + 1e-9)])
def test_bradley_terry_makes_no_pair_of_scores_that_differ_by_rounding(scores: tuple[float, float]) -> None:
    """By that of their sum, or of the float32 in which a target is kept: a mean over no pair would be NaN."""
    assert BradleyTerry().targets(trace_group([5], [[4, 2], [6, 2]], list(scores)), "wanted") == []
    targets = BradleyTerry().targets(trace_group([5], [[4, 2], [6, 2], [7, 2]], [*scores, 2.0]), "wanted")
    assert len({np.float32(target) for _, target in targets}) == 2


# the network


def learner_of(name: str, micro: int = 10**9, **more: Any) -> Learner:
    rule = RULES[name]
    net = perturb(DecoderWithHead.from_decoder(tiny_decoder(scale=0.1), rule.head, seed=2), 0.05, seed=4)
    return make_reward_learner(net, rule, AdamW(lr=1e-9), max_tokens_per_microbatch=micro, **more)  # type: ignore[arg-type]


def plain_step(learner: Learner, traces: Sequence[Trace]) -> tuple[float, Grads]:
    """One path at a time in float64, each number read at the last token of its step."""
    rule, w, net = learner.objective, weights64(learner.net), learner.net
    groups: list[tuple[list[Tensor], list[float]]] = []
    for trace, here in zip(traces, wanted(rule, traces), strict=True):
        numbers = []
        for i, _ in here:
            x = plain_hidden(w, net.config, trace.token_ids(i).tolist())[-1]
            layers = sorted({n.rpartition(".")[0] for n in w if n.startswith("score.")})
            for k, layer in enumerate(layers):
                x = w[f"{layer}.weight"] @ x + w.get(f"{layer}.bias", torch.zeros(()))
                x = x.relu() if k < len(layers) - 1 else x
            numbers.append(x)
        if here:
            groups.append((numbers, [y for _, y in here]))
    if isinstance(rule, BradleyTerry):
        prompts = []
        for numbers, y in groups:
            pairs = [(i, j) for i in range(len(y)) for j in range(len(y)) if y[i] > y[j]]
            prompts.append(torch.stack([torch.log1p(torch.exp(numbers[j] - numbers[i]))[0] for i, j in pairs]).mean())
        total = torch.stack(prompts).mean()
    else:
        both = [(z, t) for numbers, y in groups for z, t in zip(numbers, y, strict=True)]
        total = torch.stack([_one(rule, z, t) for z, t in both]).mean()
    total.backward()
    return float(total.detach()), {n: x.grad for n, x in w.items() if x.grad is not None}


def _one(rule: RewardObjective, z: Tensor, y: float) -> Tensor:
    if isinstance(rule, OutcomeReward):
        return torch.log1p(torch.exp(z[0])) - y * z[0]
    assert isinstance(rule, StateValue)
    if rule.kind == "mse":
        return (z[0] - y) ** 2 / 2
    if rule.kind == "x1":
        return (2 / (1 + torch.exp(-z[0])) - 1 - y) ** 2
    place = (y - rule.low) / (rule.high - rule.low) * (rule.bins - 1)
    low = min(int(place), rule.bins - 2)
    logp = z - z.logsumexp(0)
    return -((1 - place + low) * logp[low] + (place - low) * logp[low + 1])


def unshared(trace: Trace) -> Trace:
    """Every run of trained steps after its own copy of all that stands before it; they stay one trace."""
    out = Trace(trace.problem, [Step(None, "", ids([]))])
    for chain in chains(trace, lambda s: s.advantages is not None):
        at = 0
        for i in trace.path(chain.steps[-1]):
            own = i in chain.steps
            at = out.add(replace(trace.steps[i], parent=at) if own else Step(at, "", trace.steps[i].token_ids))
    return out


@pytest.mark.parametrize("name", RULES)
def test_reward_gradient_is_independent_of_microbatches(name: str) -> None:
    """Cut into micro-batches, with prefixes shared and each with its own copy."""
    traces = traces_of(RULES[name])
    whole = learner_of(name)
    RULES[name].credit(traces, "wanted", {})
    loss, expected = plain_step(whole, traces)
    result: list[Grads] = []
    for layout in (traces, [unshared(t) for t in traces]):
        for micro in (1, 30, 10**9):
            result.append(learner_of(name, micro).gradient(layout))
            assert gap(result[-1], expected) < 1e-5, (layout is traces, micro)
    flat = torch.stack([torch.cat([g[n].double().flatten() for n in expected]) for g in result])
    size = torch.cat([g.flatten() for g in expected.values()]).norm()
    assert float(torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").max() / size) < 1e-6
    output = whole.step(traces)
    assert output["loss"] == pytest.approx(loss, rel=1e-5)
    assert "lm_head.weight" not in expected


class Before(RewardReadout):
    """Reads a number before its token, as a critic does."""

    def read(self, learner: Learner, net: Any, batch: Any) -> Tensor:
        return net.raw_scores(learner.hidden_states(net, batch))


class ByPair(BradleyTerry):
    """Lets a prompt weigh as many times as it has answers."""

    pairwise = False


class Sums(ProcessReward):
    """The mean over a trace's steps first."""

    pairwise = True


@pytest.mark.parametrize(("name", "broken"), [("prm", Before), ("pairs", Before), ("pairs", ByPair()), ("prm", Sums())])
def test_reference_detects_wrong_objectives(name: str, broken: Any) -> None:
    traces, plain = traces_of(RULES[name]), learner_of(name)
    RULES[name].credit(traces, "wanted", {})
    _, expected = plain_step(plain, traces)
    assert gap(plain.gradient(traces), expected) < 1e-5
    rule = RULES[name] if broken is Before else broken
    rule.credit(traces, "wanted", {})
    readout = Before() if broken is Before else RewardReadout()
    assert gap(Learner(plain.net, rule, AdamW(lr=1e-9), readout=readout).gradient(traces), expected) > 1e-2


@pytest.mark.parametrize("name", ["pairs", "prm", "two-hot"])
def test_predict_matches_plain_forward_pass(name: str) -> None:
    learner, traces = learner_of(name, micro=30), traces_of(RULES[name])
    RULES[name].credit(traces, "wanted", {})
    w = {n: p.detach() for n, p in weights64(learner.net).items()}
    seen = []
    for trace, places, numbers in predict(learner, traces):
        for (i, target), z in zip(places, numbers, strict=True):
            hidden = plain_hidden(w, learner.net.config, trace.token_ids(i).tolist())[-1]
            expected = hidden @ w["score.weight"].T + w.get("score.bias", 0)
            assert np.allclose(z, expected, atol=1e-5)
            seen.append(target)
    assert sorted(seen) == pytest.approx(sorted(y for h in wanted(RULES[name], traces) for _, y in h))


def test_head_only_trains_the_head() -> None:
    traces = solutions()
    ProcessReward().credit(traces, "wanted", {})
    assert set(learner_of("prm", head_only=True).gradient(traces)) == {"score.weight", "score.bias"}
    plain = learner_of("prm").gradient(traces)
    assert (
        gap(learner_of("prm", head_only=True).gradient(traces), {n: plain[n] for n in ("score.weight", "score.bias")})
        < 1e-5
    )


def test_adapters_and_the_head_learn_together() -> None:
    pytest.importorskip("peft")
    traces = solutions()
    ProcessReward().credit(traces, "wanted", {})
    net = perturb(DecoderWithHead.from_decoder(tiny_decoder(), ProcessReward().head), 0.05)
    attach(net, LoRA(2, targets=("q_proj",)), 0)
    result = make_reward_learner(net, ProcessReward()).gradient(traces)
    assert all(".lora_" in n or n.startswith("score.") for n in result) and {"score.weight", "score.bias"} < set(result)


def test_signed_outcomes_map_a_verifiers_scores_to_minus_one_and_one() -> None:
    trace = Trace(Problem("p", user_messages("?")), [Step(None, "?", ids([1]))])
    for label in (0.0, 1.0, 0.25):
        step = Step(0, "", ids([5]), np.zeros(1, np.float32), "eos")
        step.scores["wanted"] = Score(label)
        trace.add(step)
    rule = StateValue("x1", hidden=(4,), signed_outcomes=True)
    assert rule.targets(trace, "wanted") == [(1, -1.0), (2, 1.0), (3, -0.5)]
    assert StateValue("x1", hidden=(4,)).targets(trace, "wanted") == [(1, 0.0), (2, 1.0), (3, 0.25)]
    assert "signed_outcomes" in replace(rule, target_source="value").unused()
    trace.steps[1].scores["wanted"] = Score(-1.0)
    with pytest.raises(UsageError, match=r"does not lie in \[0, 1\]"):
        rule.targets(trace, "wanted")


def test_unscored_answers_get_no_target() -> None:
    traces = solutions()
    assert ProcessReward().credit(traces, "nobody", {}) == {"labels": 0.0}
    output = learner_of("prm").step(traces)
    assert output["loss"] == 0 and output["grad_norm"] == 0


def test_credit_is_idempotent() -> None:
    one_time, two_times = solutions(), solutions()
    ProcessReward().credit(one_time, "wanted", {})
    OutcomeReward().credit(two_times, "wanted", {})
    ProcessReward().credit(two_times, "wanted", {})
    for a, b in zip(one_time, two_times, strict=True):
        for s, t in zip(a.steps, b.steps, strict=True):
            assert s.notes.keys() == t.notes.keys()
            assert all(np.array_equal(s.notes[n], t.notes[n], equal_nan=True) for n in s.notes)


@given(st.lists(st.floats(-1, 2), min_size=1, max_size=9), st.integers(2, 60))
def test_two_hot_keeps_the_mean(values: list[float], bins: int) -> None:
    target = torch.tensor(values, dtype=torch.float64)
    spread = two_hot(target, bins, -1.0, 2.0)
    assert torch.allclose(spread.sum(1), torch.ones(len(values), dtype=torch.float64))
    assert bool((spread >= -1e-9).all()) and int((spread > 1e-9).sum(1).max()) <= 2
    assert torch.allclose(spread @ torch.linspace(-1, 2, bins, dtype=torch.float64), target, atol=1e-9)


def test_head_interprets_its_form() -> None:
    z = torch.tensor([[0.0, 1.0, -2.0], [3.0, 3.0, 3.0]], dtype=torch.float64)
    p = np.exp(z.numpy() / 2) / np.exp(z.numpy() / 2).sum(1, keepdims=True)
    head = ScoreHead("value", "two-hot", bins=3, low=-1, high=3, temperature=2.0)
    assert np.allclose(head.interpret(z), p @ [-1, 1, 3])
    one = z[:, 1:2]
    assert np.allclose(ScoreHead("process", "logit", temperature=2.0).interpret(one), [sigmoid(0.5), sigmoid(1.5)])
    assert np.allclose(ScoreHead("value", "squashed", low=-1).interpret(one), np.tanh(one[:, 0].numpy() / 2))
    assert np.allclose(ScoreHead("reward", temperature=4.0).interpret(one), [0.25, 0.75])
    assert np.allclose(ScoreHead("value").interpret(one), [1, 3])


@pytest.mark.parametrize("name", RULES)
def test_head_is_saved_with_model(name: str, tmp_path: Path) -> None:
    net = learner_of(name).net
    net.head = replace(net.head, temperature=1.5)
    hf.save(net, tmp_path / "judge")
    again = hf.load_with_head(tmp_path / "judge", torch.float32)
    assert again.head == net.head and hf.is_score_model(tmp_path / "judge")
    hidden = torch.randn(5, net.config.width)
    assert torch.equal(again.raw_scores(hidden), net.raw_scores(hidden))
    head, stored = hf.load_head(tmp_path / "judge")
    assert head == net.head and stored.keys() == {f"score.{n}" for n, _ in net.score.named_parameters()}
    data = json.loads((tmp_path / "judge" / "config.json").read_text())
    assert data["num_labels"] == len(data["id2label"]) == net.head.bins
    for broken in ({"form": "two-hot"}, {"colour": 1}, {"temperature": 0}):
        (tmp_path / "judge" / "config.json").write_text(json.dumps(data | {"score_head": broken}))
        with pytest.raises(ModelError, match="score_head that makes no sense"):
            hf.load_with_head(tmp_path / "judge", torch.float32)


def test_hf_classifier_loads_as_reward_model_and_critic(tmp_path: Path) -> None:
    hf.save(perturb(DecoderWithHead.from_decoder(tiny_decoder()), 0.1), tmp_path / "judge")
    data = json.loads((tmp_path / "judge" / "config.json").read_text())
    del data["score_head"]
    (tmp_path / "judge" / "config.json").write_text(json.dumps(data))
    net = hf.load_with_head(tmp_path / "judge", torch.float32)
    hidden = torch.randn(5, net.config.width)
    assert net.head == ScoreHead("reward") and torch.allclose(
        net.values(hidden), net.raw_scores(hidden)[:, 0], atol=1e-6
    )
    with pytest.raises(UsageError, match="a critic's are plain numbers"):
        DecoderWithHead.from_decoder(tiny_decoder(), ProcessReward().head).values(hidden)


def test_invalid_settings_and_labels_are_refused() -> None:
    with pytest.raises(UsageError, match=r"the label 1.5 does not lie in \[0, 1\]"):
        OutcomeReward().credit([trace_group([5], [[4, 2]], [1.5], "p")], "wanted", {})
    with pytest.raises(UsageError, match="two-hot"):
        StateValue("two-hot", bins=1)
    with pytest.raises(UsageError, match="mse, two-hot or x1"):
        StateValue("huber")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="between -1 and 1"):
        StateValue("x1", low=0.0, high=3.0)
    assert StateValue.x1().head == ScoreHead("value", "squashed", True, (1024, 256), low=-1.0)
