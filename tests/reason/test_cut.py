"""Steps end where the rule says, on the tokens that were drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import QUESTION_TEMPLATE, DigitTask
from ponder.errors import BudgetExhausted, ModelError, PonderError, UnknownName, UsageError
from ponder.models import chat_templates
from ponder.models.scratch_model import ScratchModel
from ponder.protocols import Policy
from ponder.reason.operators import expand, generate, insert_text
from ponder.reason.operators.cut import CUTS, Cut, parse_cut
from ponder.types import Completion, Cost, Ids, Message, Sampling, Trace, ids, prompt_trace

from .scripted_policy import ScriptedPolicy, question_trace

END = 256


@dataclass
class Letters:
    """A `Policy` that has a text in mind, and writes it byte by byte from where the prefix ends."""

    mind: str
    bad: int | None = None  # the call that fails
    calls: list[Sampling] = field(default_factory=list)

    def encode(self, messages: Sequence[Message]) -> Ids:
        return ids([0])

    def tokens(self, text: str) -> Ids:
        return ids(text.encode())

    def text(self, tokens: Ids) -> str:
        return bytes(t for t in tokens.tolist() if t != END).decode(errors="replace")

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        self.calls.append(sampling)
        if self.bad == len(self.calls):
            raise ModelError("the server is tired")
        await asyncio.sleep(0)
        left = [*self.mind.encode(), END][len(prefix) - 1 :]
        result, stop = ids([]), "length"
        for token in left[: sampling.max_tokens]:
            result = ids([*result, token])
            if token == END or any(self.text(result).endswith(s) for s in sampling.stop):
                stop = "eos" if token == END else "stop"
                break
        cost = Cost(len(prefix), 0, len(result))
        floats = np.arange(len(result), dtype=np.float32)
        return [Completion(self.text(result), result, floats, stop, 0, cost)] * n  # type: ignore[arg-type]


def begun() -> Trace:
    return prompt_trace(DigitTask().test[0], ids([0]))


def steps_of(mind: str, cut: Cut, most: int = 10_000) -> tuple[list[str], Trace]:
    """The steps that a text falls into."""

    async def walk() -> Trace:
        trace, at, policy = begun(), 0, Letters(mind)
        while not trace.steps[at].done and not trace.steps[at].pruned:
            (at,) = await generate(trace, at, policy, Sampling(max_tokens=most), cut=cut)
        return trace

    trace = asyncio.run(walk())
    return [s.text for s in trace.steps[1:]], trace


@pytest.mark.parametrize(
    ("name", "text", "steps"),
    [
        ("line", "a\nbc\n\nd", ["a\n", "bc\n", "\n", "d"]),
        ("paragraph", "a\nb\n\nc", ["a\nb\n\n", "c"]),
        ("sentence", "One. Two? Yes! End", ["One. ", "Two? ", "Yes! ", "End"]),
        ("sentence", "1. Add 3.5 to Dr. No. Then e.g. stop. ", ["1. Add 3.5 to Dr. No. Then e.g. stop. ", ""]),
        ("sentence", "It is so. 2. Go.\nOn", ["It is so. ", "2. Go.\n", "On"]),
        ("code", "So:\n```py\nx = 1\n```\nthen ```y```", ["So:\n```py\nx = 1\n```", "\nthen ```y```", ""]),
        ("tokens:2", "abcde", ["ab", "cd", "e"]),
        ("token", "ab", ["a", "b", ""]),
        ("mark:<s>", "a<b<s>c", ["a<b<s>", "c"]),
    ],
)
def test_cut_ends_steps_at_their_separators(name: str, text: str, steps: list[str]) -> None:
    result, trace = steps_of(text, parse_cut(name))
    assert result == steps and trace.steps[-1].stop == "eos"
    drawn = trace.token_ids(len(trace.steps) - 1)[1:].tolist()
    assert drawn == [*text.encode(), END] and trace.cost.generated_tokens == len(drawn)


@given(st.text(alphabet="ab. \n`é🙂1", max_size=40).filter(bool), st.sampled_from([*CUTS, "tokens:3"]))
def test_steps_concatenate_to_the_text(text: str, name: str) -> None:
    result, trace = steps_of(text, parse_cut(name))
    assert "".join(result) == text and trace.steps[-1].done
    assert "\ufffd" not in "".join(result), "no step ends inside a character"
    assert all(s.logprobs is not None and len(s.logprobs) == len(s.token_ids) for s in trace.steps[1:])


@given(st.text(alphabet="ab\n", min_size=1, max_size=30), st.integers(1, 20))
def test_max_tokens_bounds_the_whole_answer(text: str, most: int) -> None:
    result, trace = steps_of(text, CUTS["line"], most)
    assert len("".join(result)) <= most and trace.steps[-1].done
    assert trace.steps[-1].stop == ("eos" if len(text) < most else "length")
    with pytest.raises(UsageError, match="reached its"):
        asyncio.run(
            generate(
                trace, len(trace.steps) - 1, Letters(text), Sampling(max_tokens=len(text[:most])), cut=CUTS["line"]
            )
        )


def test_step_without_end_is_pruned() -> None:
    result, trace = steps_of("a" * 50, Cut(stop=("\n",), max_step_tokens=8))
    assert result == ["a" * 8] and trace.steps[1].pruned == "no step ended within 8 tokens"
    assert trace.answers() == []


def test_unknown_cut_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'line'"):
        parse_cut("lines")
    with pytest.raises(UsageError, match="tokens:32"):
        parse_cut("tokens:x")
    with pytest.raises(UsageError, match="never fire"):
        Cut()


def test_failed_branch_does_not_stop_others() -> None:
    trace = begun()
    first = asyncio.run(generate(trace, 0, Letters("a\nb\nc"), Sampling(), 3, cut=CUTS["line"]))
    policy = Letters("a\nb\nc", bad=2)
    assert [len(x) for x in asyncio.run(expand(trace, first, policy, Sampling(), 2, cut=CUTS["line"]))] == [2, 0, 2]
    assert trace.steps[first[1]].pruned == "the server is tired"
    assert [s.parent for s in trace.steps[4:]] == [first[0]] * 2 + [first[2]] * 2
    with pytest.raises(ModelError):
        asyncio.run(expand(trace, [first[0]], Letters("a", bad=1), Sampling(), cut=CUTS["line"]))


def test_sampled_steps_are_kept_when_the_budget_ends() -> None:
    class Poor(Letters):
        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            if len(self.calls) == 1:
                self.calls.append(sampling)
                raise BudgetExhausted("nothing is left")
            return await super().generate(prefix, sampling, n)

    trace = begun()
    first = asyncio.run(generate(trace, 0, Letters("a\nb\nc"), Sampling(), 3, cut=CUTS["line"]))
    with pytest.raises(BudgetExhausted):
        asyncio.run(expand(trace, first, Poor("a\nb\nc"), Sampling(), cut=CUTS["line"]))
    assert [trace.children(i) for i in first] == [[4], [], [5]]


def test_repeated_expansion_uses_new_seeds() -> None:
    trace, policy = begun(), Letters("a\nb")
    for _ in range(3):
        asyncio.run(generate(trace, 0, policy, Sampling(seed=5), cut=CUTS["line"]))
    assert policy.calls[0].seed == 5 and len({s.seed for s in policy.calls}) == 3


def test_inserted_text_has_no_logprobs() -> None:
    trace = begun()
    at = insert_text(trace, 0, "Wait", Letters(""))
    assert trace.text(at) == "Wait" and not trace.steps[at].sampled and trace.token_ids(at).tolist() == [0, *b"Wait"]


def test_cuts_work_on_a_real_network() -> None:
    """Steps of two tokens are the tokens that one call would have drawn."""
    import torch

    from ponder.models.ponder_policy import PonderPolicy

    net, tokenizer = ScratchModel("abcdef", width=32, layers=2, heads=4, context=64).build(
        torch.float32, torch.device("cpu")
    )
    policy: Policy = PonderPolicy(net, chat_templates.with_chat_template(tokenizer, QUESTION_TEMPLATE))
    greedy = Sampling(temperature=0, max_tokens=9)

    async def both() -> tuple[list[int], list[int]]:
        prompt = policy.encode(({"role": "user", "content": "ab"},))
        (whole,) = await policy.generate(prompt, greedy)
        trace, at = prompt_trace(DigitTask().test[0], prompt), 0
        while not trace.steps[at].done:
            (at,) = await generate(trace, at, policy, greedy, cut=Cut(tokens=2))
        return whole.token_ids.tolist(), trace.token_ids(at)[len(prompt) :].tolist()

    one, two = asyncio.run(both())
    assert one == two


def test_budget_exhausted_is_a_ponder_error() -> None:
    assert issubclass(BudgetExhausted, PonderError)


def test_partial_step_is_kept_when_its_rest_fails() -> None:
    """A step that stopped after "Dr. " goes on, and there is no room for more: it ends there, and is paid for."""

    class Narrow(ScriptedPolicy):
        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            if len(self.asked):
                raise ModelError("the context is full")
            return await super().generate(prefix, sampling, n)

    sentence = CUTS["sentence"]
    policy = Narrow({"": ["Dr. \n"]})
    trace = question_trace()
    (step,) = asyncio.run(generate(trace, 0, policy, Sampling(), cut=sentence))
    assert trace.steps[step].text == "Dr. \n" and trace.steps[step].stop == "length"
    assert trace.cost.generated_tokens == 5 and not trace.steps[step].pruned
