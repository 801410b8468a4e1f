"""Quiet-STaR: mixing, rewards and the gradient, each against the formula written out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fakes import char_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.train.optimizer import AdamW
from ponder.train.quiet_star_learner import (
    QuietLearner,
    QuietText,
    SampledThoughts,
    mix_logits,
    pack_thoughts,
    thought_loss,
    thought_rewards,
)
from ponder.types import ids
from reference_decoder import plain_hidden, plain_logits, weights64

START, END = 7, 8  # two of the alphabet's tokens


def learner(policy: PonderPolicy, **settings: object) -> QuietLearner:
    made = QuietLearner(policy.net, AdamW(lr=1e-2), (START, END), **settings)  # type: ignore[arg-type]
    with torch.no_grad():  # a head that says something
        draw = torch.Generator().manual_seed(1)
        for p in made.mixing.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * 0.5)
    return made


def lively(seed: int = 0) -> PonderPolicy:
    policy = char_policy(seed, width=16, layers=1, heads=2)
    with torch.no_grad():
        policy.net.embed_tokens.weight.mul_(20)
    return policy


# the formulas


def test_mix_logits_interpolates() -> None:
    plain, thought = torch.randn(5, 7), torch.randn(5, 7)
    for w, alone in ((0.0, plain), (1.0, thought)):
        assert torch.allclose(mix_logits(plain, thought, torch.full((5,), w)), alone.log_softmax(-1), atol=1e-6)
    result = mix_logits(plain, thought, torch.full((5,), 0.3))
    assert torch.allclose(result.exp().sum(-1), torch.ones(5)), "a distribution"
    for p, t, m in zip(plain.tolist(), thought.tolist(), result.tolist(), strict=True):
        raised = [math.exp(0.7 * a + 0.3 * b) for a, b in zip(p, t, strict=True)]
        assert m == pytest.approx([math.log(x / sum(raised)) for x in raised], abs=1e-5)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-9, 0)), min_size=1, max_size=12))
def test_thought_rewards_are_relative_to_their_position(told: list[tuple[int, float]]) -> None:
    place = torch.tensor([p for p, _ in told])
    text = torch.tensor([s for _, s in told], dtype=torch.float64)
    result = thought_rewards(text, place).tolist()
    for (p, s), r in zip(told, result, strict=True):
        rivals = [x for q, x in told if q == p]
        assert r == pytest.approx(s - sum(rivals) / len(rivals), abs=1e-9)


def test_reinforce_against_all_thoughts() -> None:
    """Thoughts from a softmax over 3, two at a place: every pair by its probability. Without the positive part the
    mean gradient is (N - 1) / N of that of the expected log-likelihood, since the mean includes the thought itself."""
    theta = torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64, requires_grad=True)
    worth = torch.tensor([-1.0, -2.5, -0.2], dtype=torch.float64)
    p = theta.softmax(-1)
    (exact,) = torch.autograd.grad((p * worth).sum(), theta)
    for positive in (False, True):
        total = torch.zeros(3, dtype=torch.float64)
        by_hand = torch.zeros(3, dtype=torch.float64)
        for pair in product(range(3), repeat=2):
            chance = float(p.detach()[list(pair)].prod())
            logp = theta.log_softmax(-1)[list(pair)]
            each = thought_loss(worth[list(pair)], logp, torch.zeros(2, dtype=torch.long), 1.0, positive)
            total += chance * torch.autograd.grad(each.mean(), theta)[0]
            mean = float(worth[list(pair)].mean())
            for i in pair:
                r = float(worth[i]) - mean
                slope = torch.eye(3, dtype=torch.float64)[i] - p.detach()
                by_hand -= chance * (max(r, 0.0) if positive else r) * slope / 2
        assert torch.allclose(total, by_hand, atol=1e-12)
        if not positive:
            assert torch.allclose(total, -exact / 2, atol=1e-12), "(N - 1) / N with N = 2"


def test_reward_has_no_gradient_to_the_prediction() -> None:
    text = torch.tensor([-1.0, -2.0], requires_grad=True)
    each = thought_loss(text, torch.tensor([-3.0, -4.0]), torch.zeros(2, dtype=torch.long), 5.0, False)
    each.sum().backward()
    assert text.grad is not None and text.grad.tolist() == [-1.0, -1.0]
    assert each.tolist() == pytest.approx([1.0 + 5 * 0.5 * 3.0, 2.0 - 5 * 0.5 * 4.0])


# the network


def slow(
    policy: PonderPolicy, w: Mapping[str, Tensor], head: Mapping[str, Tensor], text: QuietText, j: int,
    thought: Sequence[int],
    ahead: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Log-likelihood of the next tokens, mixed, and of the thought: one sequence at a time, in float64."""
    c, tokens = policy.net.config, text.tokens.tolist()
    follow = tokens[j + 1 : j + 1 + ahead]
    with_it = [*tokens[: j + 1], START, *thought, END, *follow]
    plain_h, plain = plain_hidden(w, c, tokens), plain_logits(w, c, tokens)
    talk_h, talk = plain_hidden(w, c, with_it), plain_logits(w, c, with_it)
    at = j + 2 + len(thought)
    message = torch.zeros((), dtype=torch.float64)
    for i, t in enumerate(follow):
        both = torch.cat([talk_h[at + i], plain_h[j + i]])
        inner = (both @ head["hidden.weight"].T + head["hidden.bias"]).relu()
        weight = 1 / (1 + torch.exp(-(inner @ head["last.weight"].T + head["last.bias"])))
        logits = weight * talk[at + i] + (1 - weight) * plain[j + i]
        message = message + logits[t] - logits.logsumexp(-1)
    logp = talk[j + 1 : j + 1 + len(thought)].log_softmax(-1)
    return message, sum((logp[i, t] for i, t in enumerate(thought)), torch.zeros((), dtype=torch.float64))


def draw_world(seed: int) -> tuple[list[QuietText], list[list[list[np.ndarray]]]]:
    rng = np.random.default_rng(seed)
    shapes = ((6, 3, True), (4, 1, True), (7, 2, False), (3, 2, True))
    texts = [QuietText(ids(rng.integers(3, 12, size)), first, every) for size, first, every in shapes]
    return texts, [
        [[ids(rng.integers(2, 12, rng.integers(0, 4))) for _ in range(2)] for _ in t.thought_positions] for t in texts
    ]


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 99), st.integers(1, 4), st.booleans())
def test_packed_loss_and_gradient_equal_single_texts(seed: int, ahead: int, positive: bool) -> None:
    policy = lively(seed)
    made = learner(policy, lookahead_tokens=ahead, beta=0.7, positive_only=positive)
    texts, thoughts = draw_world(seed)
    w = weights64(policy.net)
    head = {n: p.detach().double().requires_grad_() for n, p in made.mixing.named_parameters()}
    terms = []
    for text, by_place in zip(texts, thoughts, strict=True):
        for j, here in zip(text.thought_positions, by_place, strict=True):
            output = [slow(policy, w, head, text, j, one.tolist(), ahead) for one in here]
            mean = sum(float(s.detach()) for s, _ in output) / len(output)
            for message, logp in output:
                r = float(message.detach()) - mean
                terms.append(-message - 0.7 * (max(r, 0.0) if positive else r) * logp)
    expected = sum(terms[1:], terms[0]) / len(terms)
    expected.backward()
    result = made.gradient_of_texts(texts, thoughts)
    for name, g in result.items():
        leaf = w[name.removeprefix("net.")] if name.startswith("net.") else head[name.removeprefix("mixing.")]
        assert leaf.grad is not None
        scale = max(float(leaf.grad.abs().max()), 1e-3)
        assert float((g.double() - leaf.grad).abs().max()) < 2e-4 * scale, name
    assert made.step_on_texts(texts, thoughts)["loss"] == pytest.approx(float(expected.detach()), rel=1e-5)


def test_expected_gradient_equals_enumeration_of_thoughts() -> None:
    """Thoughts of one token, two at a place: the mean over all pairs is the gradient of the expectation."""
    policy = lively(3)
    made = learner(policy, lookahead_tokens=2, positive_only=False)
    text = QuietText(ids([3, 4, 5]), 2)  # one place: after the second token
    w = weights64(policy.net)
    head = {n: p.detach().double() for n, p in made.mixing.named_parameters()}
    c = policy.net.config
    p = plain_logits(w, c, [3, 4, START])[-1].softmax(-1)
    message = torch.stack([slow(policy, w, head, text, 1, [t], 2)[0] for t in range(c.vocab)])
    nll = -(p.detach() * message).sum()
    gain = (p * message.detach()).sum()
    exact = torch.autograd.grad(nll - gain / 2, list(w.values()), allow_unused=True)  # (N - 1) / N with N = 2
    total = {name: torch.zeros_like(v) for name, v in w.items()}
    for a, b in product(range(c.vocab), repeat=2):
        chance = float(p[a].detach() * p[b].detach())
        for name, g in made.gradient_of_texts([text], [[[ids([a]), ids([b])]]]).items():
            if name.startswith("net."):
                total[name.removeprefix("net.")] += chance * g.double()
    for (name, result), g in zip(total.items(), exact, strict=True):
        assert g is not None
        assert float((result - g).abs().max()) < 1e-3 * max(float(g.abs().max()), 1e-3), name


def test_pack_thoughts_holds_a_text_once() -> None:
    text = QuietText(ids([3, 4, 5, 6]), 2)
    laid = pack_thoughts([text], [[[ids([9]), ids([])], [ids([10, 11])]]], (START, END), ahead=2)
    assert laid.ids_T.tolist() == [3, 4, START, 9, END, 5, START, END, 5, 5, START, 10, 11, END]
    assert laid.lengths == [2, 4, 3, 1, 4] and laid.parents == [-1, 0, 0, 0, 3]
    assert laid.plain_P.tolist() == [1, 9, 1, 9, 9] and laid.thought_P.tolist() == [4, 5, 7, 8, 13]
    assert laid.target_P.tolist() == [5, 6, 5, 6, 6] and laid.thought_of_P.tolist() == [0, 0, 1, 1, 2]
    assert laid.source_Q.tolist() == [2, 10, 11] and laid.target_Q.tolist() == [9, 10, 11]
    assert laid.thought_of_Q.tolist() == [0, 2, 2] and laid.position_N.tolist() == [0, 0, 1]


def test_single_thought_before_the_answer() -> None:
    text = QuietText(ids([3, 4, 5, 6, 9]), 2, at_every_token=False)
    laid = pack_thoughts([text], [[[ids([10])]]], (START, END), ahead=3)
    assert laid.ids_T.tolist() == [3, 4, START, 10, END, 5, 6, 5, 6] and laid.parents == [-1, 0, 0]
    assert laid.plain_P.tolist() == [1, 7, 8] and laid.thought_P.tolist() == [4, 5, 6]
    assert laid.target_P.tolist() == [5, 6, 9]


def test_no_thoughts_is_plain_training() -> None:
    policy = lively(5)
    made = learner(policy)
    text = QuietText(ids([3, 4, 5, 6]), 2)
    result = made.gradient_of_texts([text], [[[], []]])
    w = weights64(policy.net)
    logp = plain_logits(w, policy.net.config, [3, 4, 5]).log_softmax(-1)
    (-(logp[1, 5] + logp[2, 6]) / 2).backward()
    for name, leaf in w.items():
        assert leaf.grad is not None
        assert torch.allclose(result[f"net.{name}"].double(), leaf.grad, atol=1e-5), name
    assert not any(result[f"mixing.{n}"].any() for n, _ in made.mixing.named_parameters())


def test_predictions_know_their_text() -> None:
    texts = [QuietText(ids([1, 2, 3, 4]), 2, False), QuietText(ids([1, 5, 6]), 1), QuietText(ids([2, 3]), 1)]
    thoughts: SampledThoughts = [[[ids([9]), ids([9, 9])]], [[ids([9])], []], [[]]]
    packed = pack_thoughts(texts, thoughts, (START, END), 2)
    assert packed.text_of_N.tolist() == [0, 0, 1, 1, 2]
    assert packed.text_of_P.tolist() == [0, 0, 0, 0, 1, 1, 1, 2]
