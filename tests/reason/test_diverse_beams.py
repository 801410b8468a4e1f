"""Diverse beam search: by hand, against a dense search over the whole vocabulary, on a network, and inside MCTS."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from fakes import FakePolicy, char_policy, run_async
from ponder.cli.strategy_flags import strategy_from_flags
from ponder.errors import BudgetExhausted, ModelError, UsageError
from ponder.models.ponder_policy import PonderPolicy
from ponder.reason.budget import Budget, BudgetedPolicy, BudgetLedger
from ponder.reason.operators.cut import CUTS, Cut
from ponder.reason.operators.diverse_beams import DiverseBeamSearch
from ponder.reason.operators.tree_policy import ProgressiveWidening
from ponder.reason.strategies.mcts import MCTS
from ponder.runs.job_json import decode, encode
from ponder.types import Completion, Cost, Ids, Message, Problem, Sampling, Step, Trace, ids, user_messages
from reference_decoder import plain_logits, weights64

from .scripted_policy import TableScorer, question_trace

LETTERS = "abcd\n."  # tokens 0 to 5; the full stop ends an answer
EOS = LETTERS.index(".")
LINE = Cut(stop=("\n",))


@dataclass
class TablePolicy:
    """A policy whose next-token probabilities are a table, or random numbers by what was written so far."""

    table: dict[str, dict[str, float]] = field(default_factory=dict)
    seed: int = 0
    calls: list[str] = field(default_factory=list)
    breaks_at: int = 1 << 30  # characters after which the context is full
    eos: frozenset[int] | None = frozenset([EOS])

    def logprobs(self, text: str) -> np.ndarray:
        if text in self.table:
            given = np.array([self.table[text].get(letter, 1e-9) for letter in LETTERS])
        else:
            given = np.random.default_rng([self.seed, *map(ord, text)]).dirichlet([0.7] * len(LETTERS))
        return np.log(given / given.sum())

    def encode(self, messages: Sequence[Message]) -> Ids:
        return ids([])

    def tokens(self, text: str) -> Ids:
        return ids([LETTERS.index(letter) for letter in text])

    def text(self, tokens: Ids) -> str:
        return "".join(LETTERS[t] for t in tokens)

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        assert (n, sampling.max_tokens) == (1, 1)
        await asyncio.sleep(0)
        text = self.text(prefix)
        self.calls.append(text)
        if len(text) >= self.breaks_at:
            raise ModelError("the context is full")
        logprobs = self.logprobs(text)
        order = np.argsort(-logprobs, kind="stable")[: sampling.logprobs]
        top = ids(order)[None], logprobs[order].astype(np.float32)[None]
        best = int(order[0])
        notes = {name: np.full(1, len(text), np.float32) for name in sampling.token_stats}
        return [
            Completion(
                LETTERS[best], ids([best]), top[1][0][:1], "length", 7, Cost(generated_tokens=1, flops=2.0), notes, top
            )
        ]


def empty_trace() -> Trace:
    return Trace(Problem("p", user_messages("?")), [Step(None, "?", ids([]))])


def search(
    how: DiverseBeamSearch, policy: object, beams: int, cut: Cut = LINE, sampling: Sampling | None = None
) -> list[Completion]:
    work = how.search(empty_trace(), 0, policy, sampling or Sampling(max_tokens=5), beams, cut)  # type: ignore[arg-type]
    return run_async(work)


def dense_search(policy: TablePolicy, beams: int, groups: int, penalty: float, limit: int) -> list[tuple[str, float]]:
    """The paper's Algorithm 1 over the whole vocabulary. A sequence's score is computed anew from its beginning: the
    log-probability of each letter, minus the penalty times how many beams of earlier groups chose it at that place."""
    size = beams // groups
    held: list[list[str]] = [[""] for _ in range(groups)]
    chosen: list[list[list[str]]] = []  # by place and group: the letters that its beams took there

    def score(text: str, group: int) -> float:
        total = 0.0
        for place, letter in enumerate(text):
            earlier = sum(letters.count(letter) for letters in chosen[place][:group])
            total += float(policy.logprobs(text[:place])[LETTERS.index(letter)]) - penalty * earlier
        return total

    def ended(text: str) -> bool:
        return len(text) == limit or (text != "" and text[-1] in "\n.")

    for _ in range(limit):
        chosen.append([[] for _ in range(groups)])
        for group in range(groups):
            options = [t for t in held[group] if ended(t)]
            options += [t + letter for t in held[group] if not ended(t) for letter in LETTERS]
            kept = sorted(options, key=lambda t: -score(t, group))[:size]
            chosen[-1][group] = [t[-1] for t in kept if t not in held[group]]
            held[group] = kept
    return [(text, score(text, group)) for group in range(groups) for text in held[group]]


def test_two_groups_equal_hand_count() -> None:
    # Group 1 takes a (0.6). Group 2 pays 0.5 for it: ln 0.6 - 0.5 = -1.01 < ln 0.4 = -0.92, so it takes b. After them
    # both would write a line break; group 2 pays for it: ln 0.9 - 0.5 = -0.61 > ln 0.1 = -2.30, and takes it yet.
    table = {"": {"a": 0.6, "b": 0.4}, "a": {"\n": 0.8, "c": 0.2}, "b": {"\n": 0.9, "c": 0.1}}
    first, second = search(DiverseBeamSearch(), TablePolicy(table), 2)
    assert (first.text, second.text) == ("a\n", "b\n") and first.stop == second.stop == "stop"
    assert second.logprobs == pytest.approx(np.log([0.4, 0.9]), abs=1e-6), "the model's own, without penalties"
    same = search(DiverseBeamSearch(diversity_penalty=0.3), TablePolicy(table), 2)
    assert [c.text for c in same] == ["a\n", "a\n"], "a small penalty leaves a sure model its way"


def test_one_group_is_beam_search() -> None:
    # Beams a (0.6) and b (0.4); then b\n 0.36, a\n 0.33, ac 0.27: the greedy first letter does not lead the beam.
    table = {"": {"a": 0.6, "b": 0.4}, "a": {"\n": 0.55, "c": 0.45}, "b": {"\n": 0.9, "c": 0.1}}
    found = search(DiverseBeamSearch(groups=1, diversity_penalty=9.0), TablePolicy(table), 2)
    assert [c.text for c in found] == ["b\n", "a\n"]


@pytest.mark.parametrize(("beams", "groups"), [(1, 1), (3, 1), (4, 2), (4, 4), (6, 2), (6, 3)])
def test_search_equals_a_dense_search_over_the_vocabulary(beams: int, groups: int) -> None:
    for seed in range(12):
        for penalty in (0.0, 0.4, 2.0):
            policy = TablePolicy(seed=seed)
            wanted = dense_search(policy, beams, groups, penalty, limit=5)
            found = search(DiverseBeamSearch(groups, penalty), policy, beams)
            assert [policy.text(c.token_ids) for c in found] == [text for text, _ in wanted], (seed, penalty)
            for c in found:
                text = policy.text(c.token_ids)
                own = [policy.logprobs(text[:i])[LETTERS.index(letter)] for i, letter in enumerate(text)]
                assert c.logprobs == pytest.approx(own, abs=1e-5)


def test_search_on_a_network_equals_the_whole_forward_pass() -> None:
    policy = char_policy(seed=3)
    prefix = policy.tokens("1+2=")
    trace = Trace(Problem("p", user_messages("?")), [Step(None, "?", prefix)])
    found = run_async(DiverseBeamSearch(2, 0.5).search(trace, 0, policy, Sampling(max_tokens=4), 4, CUTS["tokens"]))
    texts = dense_network_search(policy, prefix, groups=2, size=2, penalty=0.5, limit=4)
    assert [tuple(c.token_ids.tolist()) for c in found] == texts


def dense_network_search(
    policy: PonderPolicy, prefix: Ids, groups: int, size: int, penalty: float, limit: int
) -> list[tuple[int, ...]]:
    net, eos = policy.net, policy.eos
    weights = weights64(net)
    held: list[list[tuple[tuple[int, ...], float]]] = [[((), 0.0)] for _ in range(groups)]
    for place in range(limit):
        counts = torch.zeros(policy.vocab_size)
        for g in range(groups):
            options = []
            for tokens, score in held[g]:
                if len(tokens) < place or (tokens and tokens[-1] in eos):
                    options.append((tokens, score))
                    continue
                logits = plain_logits(weights, net.config, [*prefix.tolist(), *tokens])[-1].detach()
                scores = torch.log_softmax(logits, -1) - penalty * counts
                options += [((*tokens, t), score + s) for t, s in enumerate(scores.tolist())]
            held[g] = sorted(options, key=lambda o: -o[1])[:size]
            for tokens, _ in held[g]:
                if len(tokens) == place + 1:
                    counts[tokens[-1]] += 1
    return [tokens for group in held for tokens, _ in group]


def test_end_of_sequence_budget_and_full_context_end_beams() -> None:
    table = {"": {"a": 0.9, ".": 0.1}, "a": {"b": 1.0}, "ab": {"c": 1.0}}
    first, second = search(
        DiverseBeamSearch(diversity_penalty=5.0), TablePolicy(table), 2, sampling=Sampling(max_tokens=3)
    )
    assert (first.text, first.stop) == ("abc", "length")
    assert (second.text, second.stop, second.token_ids.tolist()) == ("", "eos", [EOS]), "the end token has no text"
    full = search(DiverseBeamSearch(), TablePolicy(table, breaks_at=2), 1)
    assert [(c.text, c.stop) for c in full] == [("ab", "length")], "what was found before the context was full stays"
    with pytest.raises(ModelError, match="context is full"):
        search(DiverseBeamSearch(), TablePolicy(table, breaks_at=0), 1)
    poor = BudgetedPolicy(TablePolicy(table), BudgetLedger(Budget(tokens=2)))  # type: ignore[arg-type]
    (cut,) = search(DiverseBeamSearch(), poor, 1)
    assert (cut.text, cut.stop) == ("ab", "length")
    with pytest.raises(BudgetExhausted):
        search(DiverseBeamSearch(), poor, 1)


def test_costs_are_counted_once_and_statistics_follow_the_tokens() -> None:
    policy = TablePolicy({"": {"a": 0.6, "b": 0.4}, "a": {"\n": 1.0}, "b": {"\n": 1.0}})
    sampling = Sampling(max_tokens=5, token_stats=("entropy",))
    found = search(DiverseBeamSearch(), policy, 2, sampling=sampling)
    assert sorted(policy.calls) == ["", "a", "b"], "groups share what is known of a common beginning"
    assert sum(c.cost.generated_tokens for c in found) == 3 and sum(c.cost.wasted_tokens for c in found) == 0
    assert [c.notes["entropy"].tolist() for c in found] == [[0, 1], [0, 1]] and found[0].version == 7
    # b is dropped for the two letters after a: one call in vain.
    table = {"": {"a": 0.6, "b": 0.4}, "a": {"\n": 0.5, "c": 0.5}, "b": dict.fromkeys("abcd", 0.25)}
    found = search(DiverseBeamSearch(groups=1), TablePolicy(table), 2, sampling=Sampling(max_tokens=2))
    assert {c.text for c in found} == {"a\n", "ac"} and found[0].cost.wasted_tokens == 1


def test_cuts_end_a_step_as_they_do_when_it_is_sampled() -> None:
    table = {"": {"a": 1.0}, "a": {"b": 1.0}, "ab": {"\n": 1.0}, "ab\n": {"c": 1.0}}
    for cut, text in ((Cut(tokens=2), "ab"), (Cut(stop=("b\n",)), "ab\n"), (Cut(stop_token_ids=(1,)), "ab")):
        (found,) = search(DiverseBeamSearch(), TablePolicy(table), 1, cut)
        assert (found.text, found.stop) == (text, "stop"), cut
    (fenced,) = search(DiverseBeamSearch(), TablePolicy(table), 1, Cut(stop=("\n",), fence="a"))
    assert len(fenced.text) > 3, "a cut that does not count is passed over"
    (long,) = search(DiverseBeamSearch(), TablePolicy(table), 1, Cut(stop=("d",), max_step_tokens=2))
    assert (long.text, long.stop) == ("ab", "length")


def test_mcts_with_diverse_beams_has_distinct_children() -> None:
    # A model that is sure of itself: nearly all samples of a first step would be the same.
    sure = TablePolicy({"": {"a": 0.97, "b": 0.01, "c": 0.01, "d": 0.01}, **{t: {"\n": 1.0} for t in "abcd"}})
    guide = TableScorer({"a\n": 0.1, "b\n": 0.9})
    how = MCTS(
        simulations=2, width=4, sampling=Sampling(max_tokens=8), cut=LINE, complete_answer=False,
        diverse_beams=DiverseBeamSearch(groups=1),
    )  # fmt: skip
    trace = question_trace()
    trace.steps[0].token_ids = ids([])
    run_async(how(trace, sure, guide))  # type: ignore[arg-type]
    children = [trace.steps[k] for k in trace.children(0)]
    assert sorted(c.text for c in children) == ["a\n", "b\n", "c\n", "d\n"] and not any(c.pruned for c in children)
    assert sum(c.prior for c in children) == pytest.approx(1) and children[0].prior == pytest.approx(0.97, abs=1e-4)
    assert decode(encode(how)) == how
    same = replace(how, diverse_beams=DiverseBeamSearch(diversity_penalty=0.1))
    trace = question_trace()
    trace.steps[0].token_ids = ids([])
    run_async(same(trace, sure, guide))  # type: ignore[arg-type]
    assert [bool(trace.steps[k].pruned) for k in trace.children(0)] == [False, True, True, True]


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(UsageError, match="groups must divide"):
        MCTS(width=4, diverse_beams=DiverseBeamSearch(groups=3))
    with pytest.raises(UsageError, match="leave out top_p"):
        MCTS(diverse_beams=DiverseBeamSearch(), sampling=Sampling(top_p=0.9))
    with pytest.raises(UsageError, match="leave out widening"):
        MCTS(diverse_beams=DiverseBeamSearch(), widening=ProgressiveWidening())
    for bad in ({"groups": 0}, {"diversity_penalty": -1.0}, {"diversity_penalty": float("nan")}):
        with pytest.raises(UsageError, match=next(iter(bad))):
            DiverseBeamSearch(**bad)  # type: ignore[arg-type]
    assert "the same again" in MCTS(diverse_beams=DiverseBeamSearch()).unused()["resample_rounds"]
    with pytest.raises(UsageError, match="likeliest tokens"):
        search(DiverseBeamSearch(), FakePolicy(), 1)
    with pytest.raises(UsageError, match="attribute `eos`"):
        search(DiverseBeamSearch(), TablePolicy(eos=None), 1)


def test_flags_reach_the_groups_and_the_penalty() -> None:
    settings = {"diverse_beams.groups": "2", "diverse_beams.diversity_penalty": "0.7"}
    strategy, _, _ = strategy_from_flags("mcts", settings=settings)
    assert isinstance(strategy, MCTS) and strategy.diverse_beams == DiverseBeamSearch(2, 0.7)
    with pytest.raises(UsageError, match="changes nothing: diverse_beams would find the same"):
        strategy_from_flags("mcts", settings={**settings, "resample_rounds": "2"})
