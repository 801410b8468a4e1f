"""Episodes: a policy and an environment in one trace, in every strategy that grows traces."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from ponder.errors import UsageError
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.models.tokenizer import Tokenizer
from ponder.models.turn_bridge import TurnBridge
from ponder.pipelines.solve import solve, solve_all
from ponder.reason.budget import Budget
from ponder.reason.episodes import EpisodeLimits
from ponder.reason.scorers import FunctionScorer
from ponder.reason.strategies import (
    MCTS,
    BeamSearch,
    BestOfN,
    BudgetForcing,
    Chain,
    Forest,
    GraphOfThoughts,
    LlamaBerry,
    MajorityVote,
    Samples,
    SelfRefine,
    TreeOfThoughts,
)
from ponder.reason.strategies.forest import split_forest
from ponder.tasks.environments.episode_reward import EpisodeAnswer, EpisodeReward
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import TURN_REWARD, Action, Completion, Cost, Ids, Message, Problem, Sampling, Trace, Turn
from ponder.types import user_messages as question

PROBLEM = Problem("count/1", question("Begin at 2."), 5)
OPENED: list[Counter] = []


@dataclass
class Counter:
    """Say a number; the sum must come to the problem's answer. Each turn says what the sum is."""

    total: int = 0
    target: int = 0
    closed: bool = False
    seen: list[str] = field(default_factory=list)

    def reset(self, problem: Problem, seed: int) -> Turn:
        OPENED.append(self)
        self.total, self.target = 2, problem.answer
        return Turn(({"role": "user", "content": "Sum 2."},))

    def act(self, action: Action) -> Turn:
        self.seen.append(action.text)
        try:
            self.total += int(action.text)
        except ValueError:
            return Turn(({"role": "user", "content": "A number, please."},), reward=-0.25)
        if self.total == self.target:
            return Turn(reward=1.0, done=True, reason="there")
        if self.total > self.target:
            return Turn(reward=0.0, done=True, reason="too far")
        return Turn(({"role": "user", "content": f"Sum {self.total}."},))

    def close(self) -> None:
        self.closed = True


class CopyingCounter(Counter):
    def copy(self) -> CopyingCounter:
        return CopyingCounter(self.total, self.target, seen=list(self.seen))


STRIPS = (
    "{%- for m in messages %}{{ m.role[0] + ':' + (m.content if loop.last or m.role != 'assistant' else '*') + ';' }}"
    "{%- endfor %}{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)
KEEPS = (
    "{%- for m in messages %}{{ m.role[0] + ':' + m.content + ';' }}{%- endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)


@dataclass
class TalkPolicy:
    """Says what `replies` has for the number of turns so far, over a real tokenizer and chat template."""

    replies: Sequence[Sequence[str]]  # by turn, then by continuation
    template: str = KEEPS
    calls: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer = replace(Tokenizer.from_alphabet(string.printable), chat_template=self.template)
        self.bridge = TurnBridge(self.tokenizer)

    def encode(self, messages: Sequence[Message], tools: Any = ()) -> Ids:
        return self.tokenizer.encode(self.bridge.render(messages, tools), add_special_tokens=False)

    def tokens(self, text: str) -> Ids:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def text(self, tokens: Ids) -> str:
        return self.tokenizer.decode(tokens, keep_special=True)

    def turn_content(self, text: str) -> str:
        return self.bridge.content(text)

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        await asyncio.sleep(0)
        text = self.text(prefix)
        self.calls.append((text, n))
        turn = text.count("a:") - 1
        options = self.replies[min(turn, len(self.replies) - 1)]
        return [self._completion(options[k % len(options)], sampling) for k in range(n)]

    def _completion(self, text: str, sampling: Sampling) -> Completion:
        tokens = np.append(self.tokens(text), self.tokenizer.eos[0]).astype(np.int32)
        stop: Any = "eos"
        if len(tokens) > sampling.max_tokens:
            tokens, stop = tokens[: sampling.max_tokens], "length"
            text = self.text(tokens)
        return Completion(
            text, tokens, np.full(len(tokens), -1.0, np.float32), stop, cost=Cost(generated_tokens=len(tokens))
        )


def reward(kind: Callable[[], Any] = Counter, **limits: Any) -> EpisodeReward:
    return EpisodeReward(kind, EpisodeLimits(**limits))


def play(policy: Any, strategy: Any = Samples(2, Sampling(max_tokens=64)), verifier: Any = None, **more: Any) -> Trace:
    OPENED.clear()
    return asyncio.run(solve(PROBLEM, strategy, policy, verifier or reward(), **more))


def lines(trace: Trace, leaf: int) -> list[str]:
    return [("> " if trace.steps[i].sampled else "< ") + trace.steps[i].text for i in trace.conversation(leaf)]


def test_group_of_episodes_is_one_trace():
    trace = play(TalkPolicy([["1", "3"], ["2"]]))
    second, first = trace.answers()  # in the order in which they ended
    assert lines(trace, first) == ["< Begin at 2.\nSum 2.", "> 1", "< Sum 3.", "> 2"]
    assert [trace.score(i, "reward") for i in (first, second)] == [1.0, 1.0]
    assert trace.text(first) == "2" and trace.steps[0].text == "Begin at 2.\nSum 2."
    assert all(game.closed for game in OPENED) and len(OPENED) == 2


def test_tokens_are_those_of_the_whole_conversation():
    policy = TalkPolicy([["x"], ["1"], ["2"]])
    trace = play(policy, Chain(Sampling(max_tokens=64)))
    (leaf,) = trace.answers()
    eos = policy.tokenizer.token(policy.tokenizer.eos[0])
    talk = f"u:Begin at 2.\nSum 2.;a:x{eos};u:A number, please.;a:1{eos};u:Sum 3.;a:2{eos}"
    assert policy.text(trace.token_ids(leaf)) == talk
    assert [text for text, _ in policy.calls][-1] == talk[: talk.rindex("a:") + 2]  # and what the policy read


def test_rewards_of_turns_add_up():
    trace = play(TalkPolicy([["x"], ["3"]]), Chain(Sampling(max_tokens=64)))
    (leaf,) = trace.answers()
    assert trace.score(leaf, "reward") == pytest.approx(0.75)
    turns = [trace.score(i, TURN_REWARD) for i in trace.conversation(leaf) if trace.steps[i].sampled]
    assert turns == [-0.25, 1.0]


def test_equal_prefixes_are_one_request():
    policy = TalkPolicy([["1", "1", "3"], ["2", "2"]])
    play(policy, Samples(3, Sampling(max_tokens=64)))
    assert [n for _, n in policy.calls] == [3, 2]


def test_template_that_rewrites_history_starts_a_further_prompt():
    policy = TalkPolicy([["1"], ["1"], ["1"]], STRIPS)
    trace = play(policy, Chain(Sampling(max_tokens=64)))
    (leaf,) = trace.answers()
    assert lines(trace, leaf) == ["< Begin at 2.\nSum 2.", "> 1", "< Sum 3.", "> 1", "< Sum 4.", "> 1"]
    roots = [s for s in trace.steps if s.parent is None]
    assert len(roots) == 3 and all(r.turn for r in roots[1:])
    assert policy.calls[-1][0] == "u:Begin at 2.\nSum 2.;a:*;u:Sum 3.;a:*;u:Sum 4.;a:"
    assert trace.score(leaf, "reward") == 1.0
    again = trace_from_json(trace_to_json(trace))
    assert again.answers() == trace.answers() and again.conversation(leaf) == trace.conversation(leaf)


LIMITS = {
    "max_turns": (reward(max_turns=2), Sampling(max_tokens=64), "cut after its 2 turns"),
    "max_tokens": (reward(), Sampling(max_tokens=4), "cut after its 4 sampled tokens"),
    "max_read_tokens": (reward(max_read_tokens=20), Sampling(max_tokens=64), "wrote more than 20 tokens"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limit_ends_the_episode(name: str):
    verifier, sampling, why = LIMITS[name]
    trace = play(TalkPolicy([["0"]]), Chain(sampling), verifier)
    (leaf,) = trace.answers()
    score = trace.steps[leaf].scores["reward"]
    assert score.value == 0 and why in score.reason, score
    assert trace.steps[leaf].sampled and OPENED[0].closed


@dataclass
class PaidAtTheEnd(Counter):
    """Its reward is only due at the end of the episode."""

    due: Any = 0.5

    def truncate(self) -> Turn | None:
        if isinstance(self.due, Exception):
            raise self.due
        return self.due if self.due is None else Turn(reward=None if self.due == "unknown" else self.due, done=True)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize(
    ("due", "value"), [(0.5, 0.5), (None, 0.0), ("unknown", None), (RuntimeError("broken on purpose"), None)], ids=str
)
def test_environment_says_what_a_cut_episode_earned(name: str, due: Any, value: float | None):
    verifier, sampling, why = LIMITS[name]
    verifier = replace(verifier, open_environment=lambda: PaidAtTheEnd(due=due))
    trace = play(TalkPolicy([["0"]]), Chain(sampling), verifier)
    (leaf,) = trace.answers()
    score = trace.steps[leaf].scores["reward"]
    assert score.value == value and ("broken on purpose" if isinstance(due, Exception) else why) in score.reason
    assert all(game.closed for game in OPENED)


def test_what_is_due_is_added_to_what_the_turns_earned():
    trace = play(TalkPolicy([["x"]]), Chain(Sampling(max_tokens=64)), reward(PaidAtTheEnd, max_turns=1))
    (leaf,) = trace.answers()
    assert trace.score(leaf, "reward") == pytest.approx(0.5 - 0.25)


def test_turn_cut_by_length_is_closed():
    policy = TalkPolicy([["0000000000"], ["3"]])
    trace = play(policy, Chain(Sampling(max_tokens=64)), reward(max_turn_tokens=3))
    (leaf,) = trace.answers()
    assert policy.text(trace.token_ids(leaf)).endswith("a:000;u:Sum 2.;a:3<eos>") and trace.score(leaf, "reward") == 1


@dataclass
class Faulty:
    fault: str

    def reset(self, problem: Problem, seed: int) -> Turn:
        if self.fault == "reset":
            raise RuntimeError("no reset")
        return Turn()

    def act(self, action: Action) -> Any:
        if self.fault == "raises":
            raise RuntimeError("no act")
        if self.fault == "exits":
            raise SystemExit(3)
        if self.fault == "hangs":
            return asyncio.sleep(60)
        if self.fault == "no turn":
            return "hello"
        if self.fault == "no messages":
            return Turn(({"text": "x"},))
        if self.fault == "huge":
            return Turn(({"role": "user", "content": "x" * 10_000_000},))
        return Turn(({"role": "user", "content": "go on"},))  # never done

    def close(self) -> None:
        if self.fault == "close":
            raise RuntimeError("no close")


FAULTS = {
    "reset": "reset raised RuntimeError: no reset", "raises": "act raised RuntimeError: no act",
    "exits": "act raised SystemExit: 3",
    "hangs": "act did not return within the", "no turn": "answered with 'hello'", "no messages": "another form",
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_environment_is_undecided(fault: str):
    trace = play(TalkPolicy([["1"]]), verifier=reward(lambda: Faulty(fault), max_seconds=1))
    scores = [trace.steps[i].scores["reward"] for i in trace.answers()]
    assert scores and all(s.value is None and FAULTS[fault] in s.reason for s in scores), scores


@pytest.mark.parametrize("fault", ["huge", "never done", "close"])
def test_episode_ends_whatever_the_environment_says(fault: str):
    trace = play(TalkPolicy([["1"]]), verifier=reward(lambda: Faulty(fault), max_turns=3))
    assert [trace.score(i, "reward") for i in trace.answers()] == [0.0, 0.0]


def test_others_go_on_beside_a_faulty_one():
    verifier = EpisodeReward(lambda: Faulty("raises") if len(OPENED) % 2 else Counter())
    problems = [replace(PROBLEM, id=str(i)) for i in range(20)]
    OPENED.clear()
    traces = asyncio.run(solve_all(problems, Samples(2, Sampling(max_tokens=9)), TalkPolicy([["3"]]), verifier))
    values = [t.score(i, "reward") for t in traces for i in t.answers()]
    assert len(values) == 40 and set(values) <= {None, 1.0} and {None, 1.0} == set(values)


def test_environment_that_is_no_function_of_its_seed_is_undecided():
    begun: list[int] = []

    class Fickle(Counter):
        def reset(self, problem: Problem, seed: int) -> Turn:
            begun.append(seed)
            return Turn(({"role": "user", "content": f"Sum {len(begun)}."},))

    trace = play(TalkPolicy([["1", "2"]]), verifier=reward(Fickle))
    reasons = [s.reason for i in trace.answers() if (s := trace.steps[i].scores["reward"]).value is None]
    assert reasons and "two first turns for one problem and seed" in reasons[0]
    assert len(set(begun)) == 1


def test_votes_and_choices_take_the_last_turn():
    def right(text: str) -> float:
        return float(text == "3")

    verifier = EpisodeAnswer(FunctionScorer(right), Counter)
    policy = TalkPolicy([["1", "3", "1"], ["2"]])
    trace = play(policy, MajorityVote(3, sampling=Sampling(max_tokens=64)), verifier)
    assert trace.chosen is not None and trace.text(trace.chosen) == "2"
    assert sorted(trace.score(i, "right") or 0 for i in trace.answers()) == [0.0, 0.0, 1.0]
    by_guide = play(policy, BestOfN(3, sampling=Sampling(max_tokens=64)), verifier, guide=LENGTH)
    assert by_guide.chosen is not None and by_guide.text(by_guide.chosen) == "3"


LENGTH = FunctionScorer(float)


@pytest.mark.parametrize("kind", [Counter, CopyingCounter])
@pytest.mark.parametrize("template", [KEEPS, STRIPS])
def test_searches_grow_turn_by_turn(kind: Any, template: str):
    policy = TalkPolicy([["0", "1"], ["1", "0"], ["2", "1"]], template)
    beam = BeamSearch(beam_width=2, sampling=Sampling(max_tokens=64))
    trace = play(policy, beam, reward(kind), guide=LENGTH)
    assert trace.chosen is not None and trace.score(trace.chosen, "reward") is not None
    mcts = MCTS(simulations=12, width=2, parallel_simulations=3, sampling=Sampling(max_tokens=64))
    searched = play(policy, mcts, reward(kind), guide=LENGTH)
    assert max(searched.score(i, "reward") or 0 for i in searched.answers()) == 1.0
    for i in searched.answers():  # every branch has met its own environment
        talk = [searched.steps[j] for j in searched.conversation(i)]
        total = 2
        for step in talk:
            if step.sampled:
                total += int(step.text)
            elif step.turn:
                assert step.text == f"Sum {total}."
    assert all(game.closed for game in OPENED)


@pytest.mark.parametrize(
    "kind", [BudgetForcing, SelfRefine, TreeOfThoughts, GraphOfThoughts, LlamaBerry], ids=lambda kind: kind.__name__
)
def test_strategy_inside_one_answer_is_refused(kind: Any):
    with pytest.raises(UsageError, match="answers in turns"):
        play(TalkPolicy([["1"]]), kind(sampling=Sampling(max_tokens=64)))


@pytest.mark.parametrize("template", [KEEPS, STRIPS])
def test_forest_plays_episodes_in_every_tree(template: str):
    policy = TalkPolicy([["0", "1"], ["1", "0"], ["2", "1"]], template)
    trees = Forest(BeamSearch(n=2, beam_width=2, sampling=Sampling(max_tokens=64)), trees=3)
    trace = play(policy, trees, reward(CopyingCounter), guide=LENGTH)
    assert trace.chosen is not None and not trace.failed
    assert len(split_forest(trace)) == 3 and all(trace.score(i, "reward") is not None for i in trace.answers())
    assert all(game.closed for game in OPENED)


def test_budget_ends_episodes():
    trace = play(TalkPolicy([["0"]]), Samples(2, Sampling(max_tokens=64)), budget=Budget(tokens=9))
    assert trace.budget_exhausted and trace.cost.generated_tokens <= 9 and all(game.closed for game in OPENED)


@lru_cache
def tiny_policy() -> PonderPolicy:
    model = ScratchModel(string.printable, width=16, layers=1, heads=1, context=400)
    net, tokenizer = model.build(torch.float32, torch.device("cpu"))
    return PonderPolicy(net, replace(tokenizer, chat_template=KEEPS))


def test_trained_tokens_are_the_sampled_ones():
    policy = tiny_policy()
    sampled: list[Ids] = []
    generate = policy.generate

    async def recording(prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        out = await generate(prefix, sampling, n)
        sampled.extend(c.token_ids for c in out)
        return out

    policy.generate = recording  # type: ignore[method-assign]
    try:
        policy.reseed(1)
        trace = play(policy, Samples(4, Sampling(max_tokens=40)), reward(max_turn_tokens=6, max_turns=5))
        again = [s.token_ids for s in trace.steps if s.sampled]
        assert sorted(a.tobytes() for a in sampled) == sorted(a.tobytes() for a in again) and len(again) > 4
        for i in trace.answers():
            prefix = trace.token_ids(i)
            assert sum(len(trace.steps[j].token_ids) for j in trace.path(i)) == len(prefix)
        policy.reseed(1)
        same = play(policy, Samples(4, Sampling(max_tokens=40)), reward(max_turn_tokens=6, max_turns=5))
        assert [s.token_ids.tolist() for s in same.steps] == [s.token_ids.tolist() for s in trace.steps]
    finally:
        del policy.generate


def test_failed_environment_is_closed():
    closed: list[str] = []

    class Closing(Faulty):
        def close(self) -> None:
            closed.append(self.fault)

    for fault in ("reset", "raises", "no turn"):
        play(TalkPolicy([["1"]]), Chain(Sampling(max_tokens=9)), reward(lambda fault=fault: Closing(fault)))
    assert closed == ["reset", "raises", "no turn"]


def test_replayed_actions_are_those_that_were_given():
    """A turn that was cut stays cut when another branch plays it again."""
    seen: list[list[bool]] = []

    class Cuts(Counter):
        def act(self, action: Action) -> Turn:
            if not self.seen:
                seen.append([])
            seen[-1].append(action.truncated)
            return super().act(action)

    mcts = MCTS(simulations=8, width=2, sampling=Sampling(max_tokens=64))
    play(TalkPolicy([["000"], ["1"], ["1"]]), mcts, reward(Cuts, max_turn_tokens=2), guide=LENGTH)
    assert len(seen) > 1 and all(turns[0] and not any(turns[1:]) for turns in seen), seen


def test_seed_gives_other_children_of_a_step_each_time():
    policy = tiny_policy()
    trace = play(
        policy, MCTS(simulations=6, width=2, sampling=Sampling(max_tokens=12, seed=3)),
        reward(max_turn_tokens=4, max_turns=3), guide=FunctionScorer(len),
    )  # fmt: skip
    children = [trace.steps[i].token_ids.tolist() for i in trace.children(0)]
    assert len(children) == 2 and children[0] != children[1]
