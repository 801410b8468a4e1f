"""Budget forcing: its chains by hand, and its bounds over random policies."""

from __future__ import annotations

import asyncio
import os
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.errors import UnknownName, UsageError
from ponder.pipelines.solve import solve
from ponder.reason.budget import Budget
from ponder.reason.strategies.budget_forcing import BudgetForcing
from ponder.runs.job_json import decode, encode
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Problem, Sampling, Trace, user_messages

from .text_policy import EOS, TextPolicy, tree_rows

PROBLEM = Problem("p", user_messages("?"))
SHORT = Sampling(temperature=0.0, max_tokens=20)


def force(policy: TextPolicy, tokens: int | None = None, trace: Trace | None = None, **how: object) -> Trace:
    strategy = BudgetForcing(**{"sampling": SHORT, **how})  # type: ignore[arg-type]
    assert decode(encode(strategy)) == strategy
    return asyncio.run(solve(PROBLEM, strategy, policy, budget=Budget(tokens) if tokens else None, trace=trace))


def test_ended_thought_is_extended_once() -> None:
    trace = force(TextPolicy(["abc</think>", "de</think>", " 42"]), waits=1)
    assert tree_rows(trace) == [
        (None, "?", False), (0, "abc", True), (1, "Wait", False), (2, "de</think>", True), (3, " 42", True),
    ]  # fmt: skip
    assert trace.chosen == 4 and trace.answers() == [4] and trace.text(4) == "abcWaitde</think> 42"
    assert len(trace.steps[1].token_ids) == 3, "the end is not appended"
    assert trace.cost.wasted_tokens == len("</think>")
    assert trace.cost.generated_tokens == len("abc</think>de</think> 42") + 1


def test_unfinished_thought_is_closed() -> None:
    trace = force(TextPolicy(["abcdefghij", "7"]), max_thinking_tokens=6, waits=0)
    assert tree_rows(trace)[1:] == [(0, "abcdef", True), (1, "</think>\n\nFinal Answer:", False), (2, "7", True)]
    marked = force(
        TextPolicy(["abcdefghij", "7"]),
        max_thinking_tokens=6,
        waits=0,
        think_start="<t>",
        think_end="</t>",
        answer_prefix="",
    )
    assert tree_rows(marked)[1:] == [(0, "<t>", False), (1, "abcdef", True), (2, "</t>", False), (3, "7", True)]


def test_round_budget_is_the_remaining_or_the_full_one() -> None:
    says = ["abcd</think>", "x" * 50, "1"]
    left = force(TextPolicy(says), max_thinking_tokens=12, round_budget="left")
    assert [s.text for s in left.steps[1:4]] == ["abcd", "Wait", "xxxx"]  # 4 + 4 + 4
    full = force(TextPolicy(says), max_thinking_tokens=12, round_budget="full")
    assert [s.text for s in full.steps[1:4]] == ["abcd", "Wait", "x" * 12]


def test_min_tokens_holds_for_any_number_of_waits() -> None:
    trace = force(
        TextPolicy(["a</think>"] * 9 + ["!"]), max_thinking_tokens=40, min_thinking_tokens=12, waits=0, wait_word="Hm"
    )
    thought = "".join(s.text for s in trace.steps[1:-1])
    assert thought == "aHm" * 4 + "a</think>"  # 12 tokens are there at the fifth end


def test_eos_ends_the_thought() -> None:
    trace = force(TextPolicy(["ab", "cd", "5"]), waits=1)
    assert [s.text for s in trace.steps[1:]] == ["ab", "Wait", "cd", "</think>\n\nFinal Answer:", "5"]
    assert EOS not in trace.token_ids(4), "the text goes on, so nothing ends inside it"
    assert EOS in trace.token_ids(5)


def test_text_before_the_mark_in_the_same_token_is_kept() -> None:
    trace = force(TextPolicy(["abcde</think>", "fg</think>", "1"], width=3), waits=1, max_thinking_tokens=60)
    assert tree_rows(trace)[1:3] == [(0, "abc", True), (1, "deWait", False)]
    assert trace.text(3) == "abcdeWaitfg</think>"


def test_empty_thought_is_closed() -> None:
    trace = force(TextPolicy(["", "9"]), waits=3)
    assert [s.text for s in trace.steps[1:]] == ["</think>\n\nFinal Answer:", "9"] and trace.chosen == 2

    class Mute(TextPolicy):
        def _completion(self, text, prefix, sampling):  # type: ignore[no-untyped-def]
            from dataclasses import replace

            c = super()._completion(text, prefix, sampling)
            return replace(c, text="", token_ids=c.token_ids[:0], logprobs=c.logprobs[:0], stop="stop")

    silent = force(Mute(lambda *_: ""), waits=3)
    assert silent.steps[-1].pruned == "nothing was written"


def test_without_a_word_the_first_token_of_the_end_is_suppressed() -> None:
    policy = TextPolicy(["abc</think>", "d", "ef</think>", "g", "</think>", " 42"])
    trace = force(policy, waits=2, wait_word="")
    assert tree_rows(trace)[1:] == [
        (0, "abc", True), (1, "", False), (2, "d", True), (3, "ef", True), (4, "", False), (5, "g", True),
        (6, "</think>", True), (7, " 42", True),
    ]  # fmt: skip
    assert trace.text(8) == "abcdefg</think> 42" and trace.chosen == 8
    end = int(policy.tokens("<")[0])
    asked = [(before, how.max_tokens, how.min_tokens, dict(how.logit_bias)) for before, how, _ in policy.asked]
    assert asked[1] == ("?abc", 1, 1, {end: -1e9}) and asked[3] == ("?abcdef", 1, 1, {end: -1e9})
    assert all(end not in bias for _, _, _, bias in (*asked[:1], asked[2], *asked[4:])), "only that one token"
    again = trace_to_json(trace)
    assert trace_to_json(trace_from_json(again)) == again
    assert trace_to_json(force(policy, trace=trace, waits=2, wait_word="")) == again, "nothing is left to do"
    for most, last in ((14, ["abcd", "", "e", "fghijklmn"]), (13, ["abcd", "", "e", "fghijklm"])):
        full = force(TextPolicy(["abcd</think>", "e", "fghijklmnopq", "42"]), max_thinking_tokens=most, wait_word="")
        assert [s.text for s in full.steps[1:]] == [*last, "</think>\n\nFinal Answer:", "42"]
    short = force(TextPolicy(["abc>", "42"]), max_thinking_tokens=4, wait_word="", think_end=">")
    assert [s.text for s in short.steps[1:]] == ["abc>", "42"], "no token would be left after the one that is no end"


def test_random_thoughts_never_exceed_the_bound() -> None:
    rng = random.Random(6)

    async def all_of_them() -> None:
        for _ in range(2000 if os.environ.get("PONDER_FUZZ") else 300):
            lengths = [(rng.randrange(31), rng.choice(["</think>", "", "</th"])) for _ in range(60)]
            await holds(
                lengths, rng.randint(1, 40), rng.randrange(5), rng.randrange(41), rng.choice(["left", "full"]),
                rng.randint(1, 3), rng.choice(["Wait", "W", "Hmm, let me see"]), rng.random() < 0.5,
            )  # fmt: skip

    asyncio.run(all_of_them())


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["</think>", "", "</th"])), min_size=1, max_size=12),
    st.tuples(
        st.integers(1, 40), st.integers(0, 4), st.integers(0, 40), st.sampled_from(["left", "full"]), st.integers(1, 3),
        st.sampled_from(["Wait", "W"]), st.booleans(),
    ),
)  # fmt: skip
def test_thought_never_exceeds_the_bound(lengths: list[tuple[int, str]], case: tuple[Any, ...]) -> None:
    asyncio.run(holds((lengths * 60)[:60], *case))


async def holds(
    lengths: list[tuple[int, str]], thinking: int, waits: int, minimum: int, rounds: str, width: int, word: str,
    begun: bool,
) -> None:  # fmt: skip
    most = thinking * (1 + waits if rounds == "full" else 1)
    minimum = min(minimum, most)
    policy = TextPolicy(["x" * n + mark for n, mark in lengths], width)
    begin = "<think>" if begun else ""
    strategy = BudgetForcing(thinking, minimum, waits, word, rounds, begin, sampling=Sampling(max_tokens=5))  # type: ignore[arg-type]
    trace = await solve(PROBLEM, strategy, policy)
    path = trace.path(len(trace.steps) - 1)
    assert path == list(range(len(trace.steps))), "one chain"
    close = next(i for i in path[1:] if "</think>" in trace.steps[i].text)
    thought = [i for i in path[1 + begun : close + trace.steps[close].sampled]]
    assert sum(len(trace.steps[i].token_ids) for i in thought) <= most
    assert sum(not trace.steps[i].sampled for i in thought) <= max(waits, minimum)
    assert len(trace.steps[-1].token_ids) <= 5 and trace.chosen == len(trace.steps) - 1
    assert not any(EOS in trace.steps[i].token_ids for i in path[:-1])
    for i, j in pairwise(thought):
        assert trace.steps[i].sampled or trace.steps[j].sampled, "a word is followed by thought"
    kept = sum(len(s.token_ids) for s in trace.steps if s.sampled)
    assert trace.cost.generated_tokens == kept + trace.cost.wasted_tokens
    again = trace_to_json(trace)
    await strategy(trace, policy)
    assert trace_to_json(trace) == again, "nothing is left to do"
    assert trace_to_json(trace_from_json(again)) == again


@pytest.mark.parametrize("tokens", range(1, 40))
def test_resume_after_any_budget_gives_the_same_trace(tokens: int) -> None:
    parts = "abcdefgh</think>", "ijklm</think>", "42"

    def next_part(before: str, _: int) -> str:
        thought, closed, answer = before[1:].partition("</think>")
        rounds = thought.split("Wait")
        return parts[2][len(answer) :] if closed else parts[len(rounds) - 1][len(rounds[-1]) :]

    once = force(TextPolicy(parts), max_thinking_tokens=40)
    policy = TextPolicy(next_part)
    trace = force(policy, tokens, max_thinking_tokens=40)
    assert trace.cost.generated_tokens <= tokens
    done = force(policy, trace=trace, max_thinking_tokens=40)
    text = done.text(len(done.steps) - 1)
    assert text == once.text(4) or (tokens in (30, 31) and text == once.text(4)[:-1]), "an answer cut off stays so"


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"max_thinking_tokens": 0}, "at least 1"),
        ({"min_thinking_tokens": 99, "max_thinking_tokens": 9}, "between 0 and the 9"),
        ({"think_end": ""}, "ends the thinking"),
        ({"wait_word": " wait\n", "think_end": "\n####"}, "would not be found"), ({"waits": -1}, "at least 1 and 0"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(bad: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        BudgetForcing(**bad)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="left"):
        BudgetForcing(round_budget="lft")  # type: ignore[arg-type]


def test_word_that_is_not_inserted_is_not_encoded() -> None:
    """A tokenizer of digits cannot encode it."""

    class Digits(TextPolicy):
        def tokens(self, text):  # type: ignore[no-untyped-def]
            assert "W" not in text
            return super().tokens(text)

    assert force(Digits(["12</think>", "3"]), waits=0).text(2) == "12</think>3"
