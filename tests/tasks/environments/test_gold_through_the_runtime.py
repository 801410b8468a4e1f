"""Gold play by a model's tokens: every environment in a trace, as fine-tuning and the preflight play it."""

from __future__ import annotations

import asyncio
import string
from dataclasses import replace
from functools import cache

import pytest
import torch

from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.solve import solve
from ponder.pipelines.training.gold_episodes import episode_score, play_episode
from ponder.reason.scorers import FunctionScorer
from ponder.reason.strategies import MCTS, Samples
from ponder.tasks import TASKS, EnvironmentTask
from ponder.types import Sampling

TEMPLATE = (
    "{%- for m in messages %}{{ m.role[0] + ':' + m.content + ';' }}{%- endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)
NAMES = [name for name, kind in TASKS.items() if issubclass(kind, EnvironmentTask)]


@cache
def tiny_policy() -> PonderPolicy:
    model = ScratchModel(string.printable, width=16, layers=1, heads=1, context=6000)
    net, tokenizer = model.build(torch.float32, torch.device("cpu"))
    return PonderPolicy(net, replace(tokenizer, chat_template=TEMPLATE))


def len_share(text: str) -> float:
    return min(len(text) / 100, 1.0)


@pytest.mark.parametrize("name", [*NAMES, "check-answer"])
def test_gold_earns_its_reward_in_a_trace(name):
    task = TASKS[name](level=2)
    for problem in task.train[:2]:
        trace = asyncio.run(play_episode(tiny_policy(), problem, task.verifier))
        score = episode_score(trace, task.verifier.name)
        assert score.value is not None and score.value >= (0.5 if "opponent" in problem.tags else 1.0), score
        wrong = asyncio.run(play_episode(tiny_policy(), problem, task.verifier, "no idea"))
        assert episode_score(wrong, task.verifier.name).value == 0.0


@pytest.mark.parametrize("name", ["mastermind", "grid-walk", "tic-tac-toe-game", "sql", "check-answer"])
@pytest.mark.parametrize("strategy", [Samples(3), MCTS(simulations=6, width=2)], ids=["samples", "mcts"])
def test_an_untrained_model_plays_to_an_end(name, strategy):
    """Branches fork into copies of the environment; all of them are graded."""
    task = TASKS[name](level=2)
    strategy = replace(strategy, sampling=Sampling(max_tokens=48))
    guide = FunctionScorer(len_share) if isinstance(strategy, MCTS) else None
    trace = asyncio.run(solve(task.train[0], strategy, tiny_policy(), task.verifier, guide=guide))
    scores = [trace.steps[i].scores["reward"] for i in trace.answers()]
    assert scores and all(score.value is not None for score in scores), (trace.failed, scores)
