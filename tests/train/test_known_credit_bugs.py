"""Mistakes of credit that other trainers have shipped, by their numbers: 3, 4, 15 and 16. See test_mistakes.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fakes import fails_if, mixed_groups, perturb, tiny_decoder, trace_group
from ponder.errors import UsageError
from ponder.train import credit
from ponder.train.critic import make_critic_learner, write_values
from ponder.train.objective import Critic, Objective, ObjectiveState
from ponder.train.policy_gradient import CISPO, DAPO, GRPO, GSPO, REINFORCE, RLOO, DrGRPO, ReinforcePlusPlus
from ponder.train.ppo import PPO
from ponder.types import Score, Step, Trace, ids

Patch = pytest.MonkeyPatch
GROUPED = (GRPO(), RLOO(None), DrGRPO(), DAPO(), GSPO(), CISPO())
both = pytest.mark.parametrize("broken", [False, True], ids=["right", "mistake"])


@both
def test_3_equal_rewards_give_exactly_zero(broken: bool, monkeypatch: Patch) -> None:
    def epsilon(rewards: Sequence[float], divide_by_std: bool = True, bessel: bool = False) -> np.ndarray:
        r = np.asarray(rewards, np.float32)
        return (r - r.mean()) / (r.std() + np.float32(1e-9))

    if broken:
        for name in ("group_relative", "leave_one_out"):
            monkeypatch.setattr(credit, name, epsilon)
        monkeypatch.setattr(credit, "whiten", lambda parts: list(epsilon(np.stack(parts)[:, 0])[:, None]))  # type: ignore[arg-type]
    for rule in (*GROUPED, REINFORCE(), ReinforcePlusPlus(kl=None)):
        if broken and isinstance(rule, REINFORCE):
            continue  # has none of these
        with fails_if(broken):
            traces = [trace_group([5, 6], [[7]] * 7, [0.1] * 7)]
            rule.credit(traces, "wanted", {})
            assert all(s.advantages is not None and not s.advantages.any() for s in traces[0].steps[1:]), rule


@pytest.mark.parametrize("rule", GROUPED, ids=lambda r: type(r).__name__)
@both
def test_4_a_group_of_one_is_refused(broken: bool, rule: Objective, monkeypatch: Patch) -> None:
    if broken:  # the raw reward as advantage
        for name in ("group_relative", "leave_one_out"):
            monkeypatch.setattr(credit, name, lambda rewards, **settings: np.asarray(rewards))
    with fails_if(broken), pytest.raises(UsageError, match="a group of one has no baseline"):
        rule.credit([trace_group([5], [[7]], [1.0])], "wanted", {})


@both
def test_15_groups_follow_the_prompt_s_instance(broken: bool, monkeypatch: Patch) -> None:
    """The same question twice is two groups, each with its own baseline. So it is in a run: tests/pipelines."""
    if broken:

        def by_text(self: GRPO, traces: Sequence[Trace], scorer: str, memory: ObjectiveState) -> dict[str, float]:
            steps = [s for t in traces for s in t.steps[1:]]
            earned = credit.group_relative([s.scores[scorer].value or 0.0 for s in steps])
            for step, a in zip(steps, earned, strict=True):
                step.advantages = np.full(len(step.token_ids), a, np.float32)
            return {}

        monkeypatch.setattr(GRPO, "credit", by_text)
    twins = [trace_group([5, 6], [[1], [2]], [1.0, 0.0], "same"), trace_group([5, 6], [[1], [2]], [1.0, 1.0], "same")]
    GRPO().credit(twins, "wanted", {})
    with fails_if(broken):
        assert [[float(s.advantages[0]) for s in t.steps[1:]] for t in twins] == [[1.0, -1.0], [0.0, 0.0]]


@both
def test_16_gae_skips_what_the_policy_did_not_write(broken: bool, monkeypatch: Patch) -> None:
    def all_steps(trace: Trace, scorer: str, include_truncated: bool = True) -> list[credit.ScoredAnswer]:
        return [replace(w, steps=tuple(trace.path(w.leaf)[1:])) for w in real(trace, scorer)]

    real = credit.scored_answers
    if broken:
        monkeypatch.setattr(credit, "scored_answers", all_steps)
    trace = trace_group([5, 6], [[7, 8]], [None])
    trace.steps[0].stop = trace.steps[1].stop = "stop"
    trace.add(Step(1, "", ids([9, 9, 9])))
    trace.add(Step(2, "", ids([10, 2]), np.zeros(2, np.float32), "eos", scores={"wanted": Score(1.0)}))
    for step, values in zip(trace.steps[1:], ([0.1, 0.2], [0.7, 0.7, 0.7], [0.3, 0.4]), strict=True):
        step.notes["values"] = np.array(values, np.float32)
    PPO(kl=None, gamma=0.9, lam=0.8, whiten_advantages=False).credit([trace], "wanted", {})
    expected = credit.gae(np.array([0, 0, 0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4]), 0.9, 0.8)
    with fails_if(broken):
        assert trace.steps[2].advantages is None and "returns" not in trace.steps[2].notes
        assert np.allclose(np.concatenate([trace.steps[i].advantages for i in (1, 3)]), expected)


@both
def test_16_whitening_is_over_the_global_batch(broken: bool, monkeypatch: Patch) -> None:
    real = credit.whiten
    if broken:  # by completion
        monkeypatch.setattr(credit, "whiten", lambda parts: [real([p])[0] for p in parts])
    for rule in (PPO(kl=None), ReinforcePlusPlus(kl=None)):
        traces = mixed_groups()
        critic = make_critic_learner(tiny_decoder(), Critic())
        perturb(critic.net, 0.1)
        write_values(critic, traces)
        rule.credit(traces, "wanted", {})
        every = np.concatenate([s.advantages for t in traces for s in t.steps if s.advantages is not None])
        means = [abs(float(s.advantages.mean())) for t in traces for s in t.steps if s.advantages is not None]
        with fails_if(broken):
            assert abs(every.mean()) < 1e-6 and abs(every.std() - 1) < 1e-6 and max(means) > 0.5
