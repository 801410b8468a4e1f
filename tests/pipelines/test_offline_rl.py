"""Reinforcement learning on recorded episodes: the groups, the ids, and the ratio to the model that sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from float64_losses import gap
from ponder.errors import TaskError, UsageError
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.offline_rl import OfflineRL
from ponder.pipelines.training.recorded_groups import copy_group, read_recorded_groups
from ponder.runs import Run, read_metrics, read_traces
from ponder.serve.trace_log import ServeJob
from ponder.train.imitation import RejectionSampling
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO, REINFORCE
from ponder.train.ppo import PPO
from ponder.types import Problem, Score, Step, Trace, ids, user_messages
from reference_decoder import plain_logprobs, weights64

MODEL = ScratchModel("0123456789?.", width=16, layers=2, heads=2, context=64, seed=3)
PLAIN = GRPO(kl=None)


def episode(
    name: str, reward: float | None, tokens: int, prompt: str = "?", rewritten: bool = False, **tags: Any
) -> Trace:
    """Two turns of the policy, with a turn of the client between them."""
    rng = np.random.default_rng(tokens)

    def sampled(parent: int, count: int) -> Step:
        return Step(parent, "x", ids(rng.integers(3, 12, count)), np.log(rng.uniform(0.05, 0.2, count)), "eos")

    trace = Trace(Problem(name, user_messages(prompt), tags={"temperatures": [1.0], **tags}))
    trace.add(Step(None, prompt, ids([4, 5, 6 + len(prompt)])))
    trace.add(sampled(0, 2))
    trace.steps[1].stop = "stop"
    added = Step(None, "no", ids([4, 5, 7, 8]), cites=(1,), turn=True) if rewritten else Step(1, "no", ids([9, 8]), turn=True)  # fmt: skip  # noqa: E501
    trace.add(added)
    end = trace.add(sampled(2, 3))
    if reward is not None:
        trace.steps[end].scores["reward"] = Score(reward)
    return trace


def save(folder: Path, traces: list[Trace]) -> str:
    with Run(folder, ServeJob(("m",))) as run:
        for at, trace in enumerate(traces):
            run.write_traces(at, [trace])
    return str(folder)


def job(data: str, **more: Any) -> OfflineRL:
    settings: dict[str, Any] = {"model": MODEL, "steps": 1, "dtype": "float32", "optimizer": AdamW(lr=1e-2)}
    return OfflineRL((data,), **{**settings, **more})


def test_answers_to_one_prompt_are_a_group(tmp_path: Path) -> None:
    traces = [episode("a", 1.0, 1), episode("b", 0.0, 2), episode("c", 1.0, 3, "other"), episode("d", 0.5, 4)]
    groups = read_recorded_groups([save(tmp_path / "r", traces)], "reward")
    (group,) = groups.traces
    assert [group.score(i, "reward") for i in group.answers()] == [1.0, 0.0, 0.5]
    assert sum(step.parent is None for step in group.steps) == 1  # they share the prompt
    assert groups.report.dropped["in groups"] == {"alone": 1}


def test_named_group_joins_different_prompts(tmp_path: Path) -> None:
    traces = [episode("a", 1.0, 1, group="g"), episode("b", 0.0, 2, "later", group="g")]
    (group,) = read_recorded_groups([save(tmp_path / "r", traces)], "reward").traces
    assert sum(step.parent is None for step in group.steps) == 2 and len(group.answers()) == 2


def test_undecided_searched_and_unscored_episodes_are_counted_and_left_out(tmp_path: Path) -> None:
    undecided, without = episode("u", None, 3), episode("n", 1.0, 5)
    undecided.steps[-1].scores["reward"] = Score(None, "the judge crashed")
    without.steps[-1].logprobs = np.full(3, np.nan, np.float32)
    traces = [episode("a", 1.0, 1), episode("b", 0.0, 2), undecided, episode("o", None, 4), without]
    traces.append(episode("s", 1.0, 6, searched=True))
    groups = read_recorded_groups([save(tmp_path / "r", traces)], "reward")
    assert len(groups.traces[0].answers()) == 2
    assert groups.report.dropped["scored answers"] == {"undecided": 1, "no score under 'reward'": 1}
    assert groups.report.dropped["with log-probabilities"].total() == 1
    assert groups.report.dropped["sampled one by one"].total() == 1


@pytest.mark.parametrize("rewritten", [False, True])
def test_gradient_is_that_of_the_plain_formula_on_the_recorded_ids(tmp_path: Path, rewritten: bool) -> None:
    """GRPO by hand in float64: each turn's tokens after all tokens before them, ratios to the recorded numbers."""
    recorded = [episode(str(i), reward, i, rewritten=rewritten) for i, reward in enumerate((1.0, 0.0, 0.5))]
    (group,) = read_recorded_groups([save(tmp_path / "r", recorded)], "reward").traces
    net = load_policy(MODEL, dtype="float32").net
    trace = copy_group(group)
    PLAIN.credit([trace], "reward", {})
    result = Learner(net, PLAIN).gradient([trace])

    w, loss = weights64(net), torch.zeros((), dtype=torch.float64)
    rewards = np.array([1.0, 0.0, 0.5])
    for one, advantage in zip(recorded, (rewards - rewards.mean()) / rewards.std(), strict=True):
        ratios = []
        for i in (1, 3):
            step = one.steps[i]
            new = plain_logprobs(net, w, one.token_ids(i).tolist(), len(step.token_ids))
            ratios.append((new - torch.as_tensor(step.logprobs).double()).exp())
        ratio = torch.cat(ratios)
        loss = loss - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean() / 3
    loss.backward()
    expected = {name: p.grad for name, p in w.items()}
    assert gap(result, expected) < 1e-5  # type: ignore[arg-type]


def test_run_trains_on_exactly_the_recorded_ids_and_resumes(tmp_path: Path) -> None:
    recorded = [episode(str(i), float(i % 2), i) for i in range(4)]
    data = save(tmp_path / "r", recorded)
    policy = job(data, steps=3)(tmp_path / "whole")
    job(data, steps=1)(tmp_path / "parts")
    again = job(data, steps=3)(tmp_path / "parts")
    for ours, theirs in zip(policy.net.parameters(), again.net.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    rows = list(read_metrics(tmp_path / "whole"))
    assert [row["reward"] for row in rows] == [0.5] * 3 and rows[0]["num_trained_tokens"] == 4 * 5
    trained = next(iter(read_traces(tmp_path / "whole")))[1]
    of_policy = sorted(s.token_ids.tolist() for s in trained.steps if s.advantages is not None)
    assert of_policy == sorted(s.token_ids.tolist() for t in recorded for s in t.steps if s.sampled)
    assert all(s.advantages is None for s in trained.steps if s.turn)


def test_summary_says_what_was_learned_from(tmp_path: Path) -> None:
    offline = job(save(tmp_path / "r", [episode("a", 1.0, 1), episode("b", 0.0, 2), episode("c", 1.0, 3, "alone")]))
    lines = offline.summary_lines(tmp_path / "a", offline(tmp_path / "a"))
    assert any("1 alone" in line for line in lines) and "reward    0.500 in the data" in "\n".join(lines)


def test_rejection_sampling_imitates_the_episodes_that_earned_enough(tmp_path: Path) -> None:
    recorded = [episode(str(i), float(i % 2), i) for i in range(4)]
    job(save(tmp_path / "r", recorded), algorithm=RejectionSampling())(tmp_path / "a")
    trained = [
        s.token_ids.tolist() for _, t in read_traces(tmp_path / "a") for s in t.steps if s.advantages is not None
    ]
    assert sorted(trained) == sorted(s.token_ids.tolist() for t in recorded[1::2] for s in t.steps if s.sampled)


def test_harvest_leaves_out_episodes_of_several_turns(tmp_path: Path) -> None:
    data = save(tmp_path / "r", [episode(str(i), 1.0, i) for i in range(2)])
    with pytest.raises(TaskError, match="in several turns: ponder offline"):
        Harvest((data,), scorer="reward")(tmp_path / "h")


def test_algorithm_without_group_takes_single_episodes(tmp_path: Path) -> None:
    data = save(tmp_path / "r", [episode("a", 1.0, 1), episode("b", 0.0, 2, "other")])
    with pytest.raises(TaskError, match="no prompt has 2 answers"):
        job(data)(tmp_path / "a")
    job(data, algorithm=REINFORCE())(tmp_path / "b")
    assert next(iter(read_metrics(tmp_path / "b")))["num_trained_tokens"] == 10


@pytest.mark.parametrize(
    ("tags", "temperature", "reason"),
    [
        ({"temperatures": [0.0]}, None, "temperature 0"),
        ({"temperatures": [0.5, 1.0]}, None, "several temperatures"),
        ({"temperatures": []}, None, "do not say"),
        ({"temperatures": [0.5]}, 1.0, "sampled at temperature 0.5"),
    ],
)
def test_temperature_that_cannot_be_learned_at_is_refused(
    tmp_path: Path, tags: dict[str, Any], temperature: float | None, reason: str
) -> None:
    data = save(tmp_path / "r", [episode(str(i), float(i), i, **tags) for i in range(2)])
    with pytest.raises(UsageError, match=reason):
        read_recorded_groups([data], "reward", temperature=temperature)


def test_recorded_temperature_is_the_learners(tmp_path: Path) -> None:
    data = save(tmp_path / "r", [episode(str(i), float(i), i, temperatures=[0.5]) for i in range(2)])
    assert read_recorded_groups([data], "reward").temperature == 0.5


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="critic"):
        job("runs", algorithm=PPO())
    with pytest.raises(UsageError, match="tuple"):
        OfflineRL("runs")  # type: ignore[arg-type]
    strange = episode("a", 1.0, 1)
    strange.steps[1].token_ids = ids([500, 4])
    with pytest.raises(UsageError, match="does not know"):
        job(save(tmp_path / "r", [strange, episode("b", 0.0, 2)]))(tmp_path / "a")
