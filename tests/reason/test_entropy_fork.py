"""Forks at uncertain tokens, on a policy whose distributions are written down."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.errors import ModelError, PonderError, UsageError
from ponder.pipelines.solve import solve
from ponder.reason.budget import Budget
from ponder.reason.operators.uncertainty import UncertaintyTrigger, token_uncertainty
from ponder.reason.strategies.entropy_fork import EntropyFork
from ponder.runs.job_json import decode, encode
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Completion, Cost, Ids, Message, Problem, Sampling, Score, Trace, ids, user_messages

from .text_policy import tree_rows

END = "$"


@dataclass
class Torn:
    """A policy of characters with a distribution after every text; `$` ends it. Greedy unless a token is forced."""

    after: Callable[[str], Mapping[str, float]]
    fails: Callable[[str], bool] = lambda text: False
    drawn: list[str] = field(default_factory=list)

    def encode(self, messages: Sequence[Message]) -> Ids:
        return self.tokens("".join(str(m["content"]) for m in messages))

    def tokens(self, text: str) -> Ids:
        return ids(map(ord, text))

    def text(self, tokens: Ids) -> str:
        return "".join(map(chr, tokens)).replace(END, "")

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        text = "".join(map(chr, prefix))
        if self.fails(text):
            raise ModelError("the context is full")
        await asyncio.sleep(0)
        written, rows = "", []
        while len(written) < sampling.max_tokens and not written.endswith(END):
            p = self.after(text + written)
            ranked = sorted(p, key=lambda c: -p[c])
            rows.append((p, ranked))
            forced = sampling.forced_token_ids[len(written) : len(written) + 1]
            written += chr(forced[0]) if forced else ranked[0]
        self.drawn.append(written)
        k = sampling.logprobs
        top = [(r + ["\0"] * k)[:k] for _, r in rows]
        logs = [[math.log(p.get(c, 1e-9)) for c in t] for (p, _), t in zip(rows, top, strict=True)]
        notes = {
            name: np.array([by_hand(list(p.values()))[name] for p, _ in rows], np.float32)
            for name in sampling.token_stats
        }
        alternatives = (ids(np.array([[ord(c) for c in t] for t in top])), np.array(logs, np.float32)) if k else None
        logprobs = np.array([math.log(p.get(c, 1e-9)) for (p, _), c in zip(rows, written, strict=True)], np.float32)
        cost = Cost(generated_tokens=len(written))
        stop = "eos" if written.endswith(END) else "length"
        out = written.replace(END, "")
        return [Completion(out, self.tokens(written), logprobs, stop, 0, cost, notes, alternatives)]  # type: ignore[arg-type]


def by_hand(p: Sequence[float]) -> dict[str, float]:
    """The definitions, written out."""
    entropy = sum(-x * math.log(x) for x in p if x)
    mean = 1 / len(p)
    first, second = sorted([*p, 0.0], reverse=True)[:2]
    return {
        "entropy": entropy,
        "varentropy": sum(x * (-math.log(x) - entropy) ** 2 for x in p if x),
        "gini": sum(x * (1 - x) for x in p),
        "variance": sum((x - mean) ** 2 for x in p) / len(p),
        "margin": first - second,
        "two_way": 1 - (first - second) - (1 - first - second),
    }


SURE = 0.98


def sure(char: str, other: str = "z") -> dict[str, float]:
    return {char: SURE, other: 1 - SURE}


def crossroads(text: str) -> Mapping[str, float]:
    """Q, then `ab`; there `c` or `d`; after `c` all is unclear, after `d` it is 7."""
    message = text[1:]
    if message == "ab":
        return {"c": 0.6, "d": 0.4}
    if message.startswith("abc"):
        return dict.fromkeys("efgh", 0.25) if message == "abcx" else sure({"abc": "x", "abcxe": "8"}.get(message, END))
    return sure({"": "a", "a": "b", "abd": "7"}.get(message, END))


BY = EntropyFork(
    fork_trigger=UncertaintyTrigger(threshold=0.6),
    backtrack_trigger=UncertaintyTrigger(threshold=1.2),
    answers=1,
    chunk_tokens=8,
)


def think(strategy: EntropyFork, policy: Torn, tokens: int | None = None, **more: Any) -> Trace:
    assert decode(encode(strategy)) == strategy
    budget = Budget(tokens) if tokens else None
    return asyncio.run(solve(Problem("p", user_messages("Q")), strategy, policy, budget=budget, **more))


def test_fork_and_backup_equal_hand_count() -> None:
    trace = think(BY, Torn(crossroads))
    assert tree_rows(trace) == [
        (None, "Q", False), (0, "ab", True), (1, "c", True), (1, "d", True), (2, "x", True), (3, "7", True),
    ]  # fmt: skip
    assert trace.steps[4].pruned == "too uncertain: entropy 1.39"
    assert trace.chosen == 5 and trace.answers() == [5] and trace.text(5) == "abd7"
    assert [round(trace.steps[i].prior, 3) for i in (2, 3)] == [0.6, 0.4]
    # drawn: abcxe8$ (5 wasted), c, d, xe8$ (3 wasted), 7$
    assert trace.cost == Cost(generated_tokens=7 + 2 + 4 + 2, wasted_tokens=5 + 3)
    kept = sum(len(s.token_ids) for s in trace.steps[1:])
    assert kept + trace.cost.wasted_tokens == trace.cost.generated_tokens
    assert trace_to_json(trace_from_json(trace_to_json(trace))) == trace_to_json(trace)


def test_search_continues_when_nothing_else_is_open() -> None:
    trace = think(replace(BY, max_forks=0), Torn(crossroads))
    assert tree_rows(trace)[1:] == [(0, "abcxe8", True)] and trace.chosen == 1


def test_several_answers_vote() -> None:
    trace = think(replace(BY, backtrack_trigger=None, answers=2, max_forks=1), Torn(crossroads))
    assert sorted(trace.text(i) for i in trace.answers()) == ["abcxe8", "abd7"]
    assert trace.chosen is not None and trace.text(trace.chosen) == "abcxe8", "the first of equals"

    class Seven:
        name = "seven"

        async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
            return [Score(float("7" in trace.text(i))) for i in steps]

    guided = think(replace(BY, backtrack_trigger=None, answers=2, max_forks=1), Torn(crossroads), guide=Seven())
    assert guided.text(guided.chosen or 0) == "abd7"


@pytest.mark.parametrize(
    ("measure", "bar"),
    [("entropy", 0.6), ("gini", 0.4), ("varentropy", 0.02), ("margin", 0.5), ("two_way", 0.7), ("variance", 0.007)],
)
def test_each_measure_can_fork(measure: str, bar: float) -> None:
    def once(text: str) -> Mapping[str, float]:
        return {"c": 0.6, "d": 0.4} if text == "Qab" else {{"Q": "a", "Qa": "b"}.get(text, END): 1.0}

    how = EntropyFork(measure, UncertaintyTrigger(threshold=bar), branches=2, answers=2, vocab_size=100)
    trace = think(how, Torn(once))
    assert [trace.text(i) for i in trace.answers()] == ["abc", "abd"], measure
    assert measure in trace.steps[1].notes


def test_variance_is_over_the_whole_vocabulary() -> None:
    p = [0.6, 0.4]
    c = Completion("c", ids([1]), np.zeros(1, np.float32), "eos", notes={"gini": np.array([0.48], np.float32)})
    whole = by_hand([*p, *[0.0] * 98])
    assert token_uncertainty(c, "variance", 100)[0] == pytest.approx(whole["variance"], rel=1e-5)
    with pytest.raises(UsageError, match="does not return the entropy"):
        token_uncertainty(c, "entropy")
    with pytest.raises(UsageError, match="two likeliest"):
        token_uncertainty(c, "margin")


@pytest.mark.parametrize("p", [[0.5, 0.5], [0.6, 0.4], [0.4, 0.4, 0.2], [0.98, 0.02], [0.1] * 10])
def test_two_way_is_large_where_two_are_close_and_the_rest_is_low(p: list[float]) -> None:
    top = (np.arange(2, dtype=np.int32)[None], np.log(np.array(p[:2], np.float32))[None])
    c = Completion("c", ids([0]), np.zeros(1, np.float32), "eos", top_logprobs=top)
    assert token_uncertainty(c, "two_way")[0] == pytest.approx(by_hand(p)["two_way"], abs=1e-6)
    assert (token_uncertainty(c, "two_way")[0] > 0.75) == (p in ([0.5, 0.5], [0.6, 0.4], [0.4, 0.4, 0.2]))


def test_quantiles_are_over_seen_tokens() -> None:
    seen = [float(i) for i in range(101)]
    assert UncertaintyTrigger(quantile=0.9).cutoff(seen) == 90.0 and UncertaintyTrigger(quantile=0.9).cutoff(
        seen, small=True
    ) == pytest.approx(10.0)
    assert UncertaintyTrigger(quantile=0.9, min_seen_tokens=102).cutoff(seen) is None
    text = "Q" + "a" * 40

    def after(said: str) -> Mapping[str, float]:
        if said == text:
            return {"b": 0.5, "c": 0.5}
        return sure("a") if len(said) < len(text) else sure(END)

    how = EntropyFork(fork_trigger=UncertaintyTrigger(quantile=0.9, min_seen_tokens=32), answers=2, chunk_tokens=8)
    trace = think(how, Torn(after))
    assert [trace.text(i) for i in trace.answers()] == ["a" * 40 + "b", "a" * 40 + "c"]
    early = think(replace(how, fork_trigger=UncertaintyTrigger(quantile=0.9, min_seen_tokens=41)), Torn(after))
    assert [early.text(i) for i in early.answers()] == ["a" * 40 + "b"], "too little was seen"


@pytest.mark.parametrize("tokens", range(1, 16))
def test_resume_after_any_budget_reaches_the_answer(tokens: int) -> None:
    how = replace(BY, chunk_tokens=3)
    part = think(how, Torn(crossroads), tokens)
    assert part.cost.generated_tokens <= tokens
    policy = Torn(crossroads)
    stopped = any(s.stop == "length" for s in part.steps)
    asyncio.run(how(part, policy))
    assert stopped or part.text(part.chosen or 0) == "abd7"
    before = trace_to_json(part)
    asyncio.run(how(part, policy))
    assert trace_to_json(part) == before, "nothing is left to do"


def test_failed_branch_is_pruned() -> None:
    how = replace(BY, backtrack_trigger=None, answers=2)
    trace = think(how, Torn(crossroads, fails=lambda text: text == "Qabc"))
    assert trace.steps[2].pruned == "the context is full" and trace.text(trace.chosen or 0) == "abd7"
    with pytest.raises(PonderError, match="full"):
        think(how, Torn(crossroads, fails=lambda text: True))


def test_answer_ends_at_max_tokens() -> None:
    how = EntropyFork(
        fork_trigger=UncertaintyTrigger(threshold=9.0),
        answers=1,
        chunk_tokens=4,
        sampling=Sampling(temperature=0.0, max_tokens=12),
    )
    trace = think(how, Torn(lambda text: sure("a")))
    assert trace.text(trace.chosen or 0) == "a" * 12 and trace.steps[-1].stop == "length"


def test_user_stop_string_ends_the_answer() -> None:
    class Stopping(Torn):
        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            (c,) = await super().generate(prefix, sampling, n)
            place = c.text.find(";")
            cut = slice(0, place + 1 if place >= 0 else None)
            notes = {k: v[cut] for k, v in c.notes.items()}
            assert c.top_logprobs is not None
            alternatives = (c.top_logprobs[0][cut], c.top_logprobs[1][cut])
            stop: Any = "stop" if place >= 0 else c.stop
            return [replace(c, text=c.text[cut], token_ids=c.token_ids[cut], logprobs=c.logprobs[cut], stop=stop,
                            notes=notes, top_logprobs=alternatives)]  # fmt: skip

    how = EntropyFork(
        fork_trigger=UncertaintyTrigger(threshold=9.0),
        answers=1,
        chunk_tokens=3,
        sampling=Sampling(temperature=0.0, stop=(";",)),
    )
    trace = think(how, Stopping(lambda text: sure({1: "a", 2: "b", 3: "c", 4: "d"}.get(len(text), ";"))))
    assert trace.text(trace.chosen or 0) == "abcd;" and trace.steps[-1].done


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.floats(0.01, 0.99), st.booleans())
def test_threshold_is_numpys_quantile(seen: list[float], share: float, small: bool) -> None:
    expected = np.quantile(seen, 1 - share if small else share)
    assert UncertaintyTrigger(quantile=share, min_seen_tokens=1).cutoff(sorted(seen), small) == pytest.approx(
        expected, abs=1e-9
    )


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 3), st.integers(0, 5), st.integers(1, 4), st.integers(1, 6))
def test_random_trees_keep_their_invariants(seed: int, ways: int, forks: int, answers: int, piece: int) -> None:
    def after(text: str) -> Mapping[str, float]:
        rng = np.random.default_rng([seed, *map(ord, text)])
        letters = ["a", "b", "c", END if len(text) > 3 else "d"]
        return dict(zip(letters, rng.dirichlet(np.ones(4) * rng.choice([0.2, 2.0])).tolist(), strict=True))

    sampling = Sampling(temperature=0.0, max_tokens=20)
    how = EntropyFork(
        "entropy",
        UncertaintyTrigger(threshold=0.7),
        UncertaintyTrigger(threshold=1.2),
        ways,
        forks,
        answers,
        piece,
        0,
        sampling,
    )
    trace = think(how, Torn(after))
    assert sum(len(trace.children(i)) > 1 for i in range(len(trace.steps))) <= forks
    kept = sum(len(s.token_ids) for s in trace.steps[1:])
    assert kept + trace.cost.wasted_tokens == trace.cost.generated_tokens
    assert trace.chosen is not None and len(trace.answers()) <= answers + ways
    for i in trace.answers():
        assert len(trace.token_ids(i)) - 1 <= 20
    for i, step in enumerate(trace.steps[1:], 1):
        assert step.logprobs is not None and len(step.notes["entropy"]) == len(step.token_ids)
        for place, token in enumerate(step.token_ids):
            prefix = "".join(map(chr, trace.token_ids(i)[: len(trace.token_ids(i)) - len(step.token_ids) + place]))
            assert chr(token) in after(prefix)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: EntropyFork("entropi"), "Did you mean 'entropy'"),
        (lambda: EntropyFork("variance"), "give vocab_size"),
        (lambda: EntropyFork(branches=1), "branches of 2 or more"),
        (lambda: UncertaintyTrigger(), "one of the two"),
        (lambda: UncertaintyTrigger(1.0, 0.5), "one of the two"),
        (lambda: UncertaintyTrigger(quantile=1.5), "between 0 and 1"),
        (lambda: UncertaintyTrigger(quantile=0.5, min_seen_tokens=0), "at least one"),
    ],
)
def test_invalid_settings_are_refused(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()
