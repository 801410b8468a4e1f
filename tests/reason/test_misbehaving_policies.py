"""Every strategy and preset against policies and guides that misbehave: what must hold whatever they do."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from fakes import run_async
from ponder.errors import BudgetExhausted, Interrupted, ModelError, PonderError, UsageError
from ponder.pipelines.solve import solve
from ponder.reason.budget import Budget, BudgetLedger
from ponder.reason.operators.cut import CUTS
from ponder.reason.presets import PRESETS
from ponder.reason.strategies import STRATEGIES
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import (
    Completion,
    Cost,
    Floats,
    Ids,
    Message,
    Problem,
    Sampling,
    Score,
    Trace,
    ids,
    prompt_trace,
    user_messages,
)

EOS, FIRST = 1, 10  # characters are tokens from FIRST on
PIECES = (
    "1", "2", "=", "a", ". ", "\n", "\n\n", "Answer: ", "</think>", "sure\n", "likely\n", "Part: x\n",
    "The best choice is 2", "<calc>", "</calc>", "1+1", "No mistakes", "\\boxed{4}", "\\boxed{5}",
)  # fmt: skip
PROBLEM = Problem("p", user_messages("what is 2+2"), "4")


@dataclass
class Wild:
    """What it says is drawn from the prefix and how often that was asked: never from who was first."""

    seed: int = 0
    empty: float = 0.0  # chance of a completion without tokens
    fails: float = 0.0  # of a call that breaks
    few: float = 0.0  # of fewer continuations than were asked for, or none
    late: int = 0  # seed of how long calls take
    stops: int | None = None  # calls after which `how` is raised
    how: type[PonderError] = BudgetExhausted
    calls: int = 0
    paid: Cost = Cost()
    given: dict[bytes, int] = field(default_factory=dict)

    def encode(self, messages: Sequence[Message]) -> Ids:
        return self.tokens("".join(f"{m['content']}|" for m in messages))

    def tokens(self, text: str) -> Ids:
        return ids(ord(c) + FIRST for c in text)

    def text(self, tokens: Ids) -> str:
        return "".join(chr(int(t) - FIRST) for t in tokens if t >= FIRST)

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        self.calls += 1
        key, call = prefix.tobytes(), self.calls
        before = self.given.get(key, 0)
        if self.stops is not None and call > self.stops:
            raise self.how("no more")
        self.given[key] = before + n
        for _ in range(1 + random.Random(f"{self.late} {call}").randrange(6) * bool(self.late)):
            await asyncio.sleep(0)
        draw = self._drawn(key, before, "call")
        if draw.random() < self.fails:
            raise ModelError("the context is full")
        count = draw.randrange(n) if draw.random() < self.few else n
        out = [self._completion(prefix, sampling, before + j, j == 0) for j in range(count)]
        self.paid = sum((c.cost for c in out), self.paid)
        return out

    def _drawn(self, *what: object) -> random.Random:
        return random.Random(hashlib.blake2b(repr((self.seed, *what)).encode(), digest_size=8).digest())

    def _completion(self, prefix: Ids, sampling: Sampling, number: int, first: bool) -> Completion:
        draw = self._drawn(prefix.tobytes(), number, sampling.forced_token_ids)
        kept, stop = list(sampling.forced_token_ids), "eos" if EOS in sampling.forced_token_ids else "length"
        if not kept and not sampling.min_tokens and draw.random() < self.empty:
            stop = "stop"
        while stop == "length" and len(kept) < sampling.max_tokens:
            piece = [EOS] if draw.random() < 0.2 else self.tokens(draw.choice(PIECES)).tolist()
            for token in piece[: sampling.max_tokens - len(kept)]:
                kept.append(token if token != EOS or len(kept) >= sampling.min_tokens else FIRST + ord("."))
                if kept[-1] == EOS or any(s in self.text(ids(kept)) for s in sampling.stop):
                    stop = "eos" if kept[-1] == EOS else "stop"
                    break
        size = len(kept)
        notes: dict[str, Floats] = {m: self._numbers(draw, size) for m in sampling.token_stats}
        alternatives = None
        if wide := sampling.logprobs:
            tokens = np.array([[FIRST + ord(draw.choice("12=a")) for _ in range(wide)] for _ in kept], np.int32)
            logprobs = -np.sort(self._numbers(draw, size * wide).reshape(size, wide))
            alternatives = tokens.reshape(size, wide), logprobs
        cost = Cost(len(prefix) * first, len(prefix) * (not first), size, flops=2.0 * size, seconds=0.25)
        text = self.text(ids(kept))
        return Completion(text, ids(kept), -self._numbers(draw, size), stop, 0, cost, notes, alternatives)  # type: ignore[arg-type]

    def _numbers(self, draw: random.Random, size: int) -> Floats:
        return np.array([2 * draw.random() for _ in range(size)], np.float32)


@dataclass
class Guide:
    """Scores by what was written; `breaks` says how it goes wrong."""

    breaks: str = ""
    scored: int = 0
    two_player: ClassVar[bool] = True  # for a search for two players, as a game's guide would say

    @property
    def name(self) -> str:
        return "guide"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        await asyncio.sleep(0)
        assert trace.problem.answer is None or trace.oracle
        if self.breaks == "raises":
            raise ValueError("out of memory")
        if self.breaks == "short":
            return [Score(1.0)] * (len(steps) - 1)
        self.scored += len(steps)
        return [self._score(trace.token_ids(i).tobytes()) for i in steps]

    def _score(self, tokens: bytes) -> Score:
        number = hashlib.blake2b(tokens, digest_size=1).digest()[0]
        nothing = self.breaks == "nan" or (self.breaks == "some" and number % 3 == 0)
        return Score(float("nan") if nothing else number / 256, "so", Cost(prompt_tokens=5, generated_tokens=1))


SMALL: dict[str, Any] = {"simulations": 10, "thinking": 30, "depth": 3}


def small(strategy: Any) -> Any:
    changes: dict[str, Any] = {}
    for f in fields(strategy):
        value = getattr(strategy, f.name)
        if f.name in SMALL:
            changes[f.name] = SMALL[f.name]
        elif f.name == "sampling":
            changes[f.name] = replace(value, max_tokens=min(40, value.max_tokens))
        elif f.name == "n":
            changes[f.name] = min(8, value)
        elif f.name in ("fast", "hard", "tree", "of"):
            changes[f.name] = small(value)
    return replace(strategy, **changes)


WAYS = {name: small(kind()) for name, kind in STRATEGIES.items()} | {n: small(p.strategy) for n, p in PRESETS.items()}
# What `Wild` says depends on how often a prefix was asked for, and trees with short steps come to the same prefixes.
WAYS["forest"] = replace(WAYS["forest"], strategy=replace(WAYS["forest"].strategy, cut=CUTS["paragraph"]))
TREES_OF_THOUGHTS = ("tree-of-thoughts", "tot-24")  # gives a thought where it has no answer
# A tree search may give an answer that was written on from a step which nobody could score.
ROLLOUTS = ("mcts", "marco-o1", "alphallm-style", "x1", "rstar-style", "alphazero", "forest")


def think(
    name: str,
    policy: Wild,
    guide: Guide | None,
    budget: Budget | BudgetLedger | None = None,
    trace: Trace | None = None,
) -> Trace:
    way = WAYS[name]
    return run_async(solve(PROBLEM, way, policy, guide=guide, budget=budget, oracle=name == "star", trace=trace), 10)


def check(name: str, trace: Trace, policy: Wild, guide: Guide | None = None, tokens: int | None = None) -> None:
    paid, cost = policy.paid, trace.cost
    assert tokens is None or cost.generated_tokens <= tokens
    assert (paid.prompt_tokens, paid.cached_tokens) == (cost.prompt_tokens, cost.cached_tokens)
    assert (paid.generated_tokens, paid.flops) == (cost.generated_tokens, cost.flops)
    assert cost.wasted_tokens <= cost.generated_tokens and cost.scorer_tokens == (6 * guide.scored if guide else 0)
    assert trace.problem == PROBLEM
    assert trace_to_json(trace_from_json(json.loads(json.dumps(trace_to_json(trace))))) == trace_to_json(trace)
    for step in trace.steps:
        assert step.logprobs is None or len(step.logprobs) == len(step.token_ids)
        assert all(len(values) == len(step.token_ids) for values in step.notes.values())
    if trace.chosen is None:
        assert trace.failed or trace.budget_exhausted or trace.answers(), "no answer has a reason"
        return
    step = trace.steps[trace.chosen]
    assert step.parent is not None and not step.pruned and not step.meta
    if name not in TREES_OF_THOUGHTS:
        assert step.done or trace.budget_exhausted
        assert not trace.children(trace.chosen) and any(trace.steps[i].sampled for i in trace.path(trace.chosen))
    if name not in ROLLOUTS:
        assert not any(trace.steps[i].pruned for i in trace.path(trace.chosen))


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize(
    "odd", [{}, {"empty": 0.3}, {"empty": 1.0}, {"fails": 0.3}, {"fails": 1.0}, {"few": 0.4}], ids=str
)
def test_misbehaving_policies_raise_only_ponder_errors(name: str, odd: dict[str, float]) -> None:
    for seed in range(2):
        for tokens in (None, 1, 7, 60):
            policy, guide = Wild(seed, **odd), Guide()  # type: ignore[arg-type]
            try:
                trace = think(name, policy, guide, Budget(tokens) if tokens else None)
            except PonderError:
                assert odd, "nothing went wrong"
            else:
                check(name, trace, policy, guide, tokens)


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("breaks", ["raises", "short", "nan", "some"])
def test_misbehaving_guides_raise_only_ponder_errors(name: str, breaks: str) -> None:
    policy, guide = Wild(1), Guide(breaks)
    try:
        check(name, think(name, policy, guide), policy, guide)
    except PonderError as error:
        assert any(text in str(error) for text in ("no score", "no rollout was scored", "guide"))


@pytest.mark.parametrize("name", WAYS)
def test_completion_order_and_a_second_call_change_nothing(name: str) -> None:
    first, policy = (think(name, p := Wild(3), Guide()), p)
    for late in (1, 2):
        assert trace_to_json(think(name, Wild(3, late=late), Guide())) | {"cost": 0} == trace_to_json(first) | {
            "cost": 0
        }
    before = trace_to_json(first)
    again = think(name, policy, Guide(), trace=trace_from_json(json.loads(json.dumps(before))))
    assert trace_to_json(again) == before


@pytest.mark.parametrize("name", WAYS)
def test_growing_budgets_resume_every_strategy(name: str) -> None:
    for first in (1, 9, 40):
        policy, guide = Wild(5), Guide()
        trace: Trace | None = None
        for tokens in (first, first + 1, 4 * first, None):
            trace = think(name, policy, guide, Budget(tokens) if tokens else None, trace)
            check(name, trace, policy, guide, tokens)
            trace = trace_from_json(json.loads(json.dumps(trace_to_json(trace))))


@pytest.mark.parametrize("name", WAYS)
def test_interrupted_strategies_resume(name: str) -> None:
    for stops in (0, 1, 2, 5):
        policy, ledger = Wild(7, stops=stops, how=Interrupted), BudgetLedger(Budget(1000))
        trace = prompt_trace(PROBLEM, policy.encode(PROBLEM.messages))
        with contextlib.suppress(Interrupted):
            think(name, policy, Guide(), ledger, trace)
        assert ledger.tokens_left == 1000 - ledger.spent.generated_tokens, "nothing stays reserved"
        policy.stops = None
        restored = trace_from_json(json.loads(json.dumps(trace_to_json(trace))))
        done = think(name, policy, Guide(), trace=restored)
        assert done.chosen is None or not done.steps[done.chosen].pruned


@pytest.mark.parametrize("name", WAYS)
def test_guide_is_used_or_reported_as_unused(name: str) -> None:
    """`unused()` tells the truth: who names the guide there never asks it, and all others do."""
    guides = [Guide() for _ in range(4)]
    for seed, guide in enumerate(guides):
        think(name, Wild(seed), guide)
    unused = WAYS[name].unused() if hasattr(WAYS[name], "unused") else {}
    assert ("guide" in unused) == (not any(guide.scored for guide in guides))


def test_a_search_for_two_players_refuses_prose() -> None:
    class Prose(Guide):
        two_player: ClassVar[bool] = False

    for guide in (Prose(), None):
        with pytest.raises(UsageError, match="needs a game"):
            think("alphazero", Wild(0), guide)
