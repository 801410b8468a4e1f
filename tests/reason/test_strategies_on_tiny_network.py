"""The strategies on a real sampler: a tiny network, whose tokens, stops and distributions are its own."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from fakes import QUESTION_TEMPLATE
from ponder.models import chat_templates
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.solve import solve
from ponder.reason.budget import Budget
from ponder.reason.operators.self_evaluate import PTrue
from ponder.reason.operators.uncertainty import UncertaintyTrigger
from ponder.reason.prompts import Prompt
from ponder.reason.strategies import (
    BudgetForcing,
    EntropyFork,
    GraphOfThoughts,
    LengthRejection,
    SelfRefine,
    StepControl,
    ToolUse,
    TreeOfThoughts,
)
from ponder.reason.strategies.graph_of_thoughts import Improve, Merge, Solve, Split
from ponder.reason.tools import CalculatorTool
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Problem, Sampling, Trace, user_messages

WARM = Sampling(max_tokens=6)
GRAPH = (Split(2, part_prefix="a"), Solve(2), Merge(2), Improve())
CALC = CalculatorTool("a", "b", "={result}=", "")
KINDS: dict[str, Any] = {
    "forcing": BudgetForcing(12, 4, 2, "e", "left", "", "=", "?", WARM),
    "full": BudgetForcing(5, 0, 3, "e", "full", "c", "=", "?", WARM),
    "steps": StepControl(3, 4, countdown="+{left}+", step_separator=" ", think_end="=", sampling=WARM),
    "rejection": LengthRejection(6, 3, 4, 2, WARM),
    "fork": EntropyFork(
        "entropy",
        UncertaintyTrigger(threshold=1.0),
        UncertaintyTrigger(quantile=0.9, min_seen_tokens=4),
        3,
        4,
        3,
        2,
        0,
        WARM,
    ),
    "margin": EntropyFork("margin", UncertaintyTrigger(threshold=0.02), None, 2, 3, 3, 4, 0, WARM),
    "variance": EntropyFork("variance", UncertaintyTrigger(threshold=0.001), None, 2, 3, 2, 2, 99, WARM),
    "propose": TreeOfThoughts(depth=2, beam_width=2, thoughts_per_step=2, evaluations_per_thought=1, sampling=WARM),
    "sample": TreeOfThoughts("dfs", "sample", depth=2, thoughts_per_step=2, threshold=-1.0, sampling=WARM),
    "refine": SelfRefine(2, sampling=WARM),
    "graph": GraphOfThoughts(GRAPH, WARM),
    "tools": ToolUse((CALC,), 2, 20, False, Sampling(max_tokens=20)),
}


@lru_cache
def letters() -> PonderPolicy:
    """Reads and writes every character of a plain text."""
    fresh = ScratchModel("\n" + "".join(map(chr, range(32, 127))), width=32, layers=2, heads=4, context=2048, seed=5)
    net, tokenizer = fresh.build(torch.float32, torch.device("cpu"))
    return PonderPolicy(net, chat_templates.with_chat_template(tokenizer, QUESTION_TEMPLATE), 5)


def think(strategy: Any, tokens: int | None = None, seed: int = 3) -> Trace:
    policy = letters()
    policy.reseed(seed)
    problem = Problem("p", user_messages("7+8"))
    return asyncio.run(solve(problem, strategy, policy, budget=Budget(tokens) if tokens else None))


@pytest.mark.parametrize("name", KINDS)
def test_a_seed_gives_the_same_trace_and_a_budget_holds(name: str) -> None:
    trace = think(KINDS[name])
    plain = trace_to_json(trace)
    assert len(trace.steps) > 1 and trace_to_json(trace_from_json(plain)) == plain

    def tokens_of(t: Trace) -> list[tuple[int | None, list[int], bool]]:
        return [(s.parent, s.token_ids.tolist(), s.sampled) for s in t.steps]

    assert tokens_of(think(KINDS[name])) == tokens_of(trace)
    drawn = [s for s in trace.steps if s.sampled]
    assert all(s.logprobs is not None and np.isfinite(s.logprobs).all() for s in drawn)
    for tokens in (1, 9):
        assert think(KINDS[name], tokens).cost.generated_tokens <= tokens


def test_discarded_fork_tokens_are_counted() -> None:
    for name in ("fork", "margin", "variance"):
        trace = think(KINDS[name])
        kept = sum(len(s.token_ids) for s in trace.steps if s.sampled)
        assert kept + trace.cost.wasted_tokens == trace.cost.generated_tokens
        assert any(len(trace.children(i)) > 1 for i in range(len(trace.steps))), "it forked"
        ways = next(c for i in range(len(trace.steps)) if len(c := trace.children(i)) > 1)
        priors = [trace.steps[i].prior for i in ways]
        assert priors == sorted(priors, reverse=True) and 0 < sum(priors) <= 1.0001


def test_p_true_reads_the_networks_own_probabilities() -> None:
    policy = letters()
    trace = think(KINDS["rejection"])
    scorer = PTrue(policy, true_word="a", false_word="b", logprobs=99)
    (score,) = asyncio.run(scorer(trace, [1]))
    assert score.value is not None and 0 < score.value < 1 and score.cost.scorer_tokens > 0


def test_strategy_prompt_is_added_once() -> None:
    policy = letters()
    how = BudgetForcing(5, 0, 1, "e", "left", "", "=", "?", WARM, Prompt("?"))
    trace = asyncio.run(solve(Problem("p", user_messages("7+8")), how, policy))
    asyncio.run(how(trace, policy))
    assert sum(s.parent is None for s in trace.steps) == 2
