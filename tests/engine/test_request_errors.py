"""One bad request beside twenty good ones: it ends with its own error, and the others are what they are without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from fakes import char_policy, run_async, tiny_decoder
from ponder.engine import rng, sampler, sampling_step
from ponder.engine.engine import Engine
from ponder.engine.request import Request, SequenceState
from ponder.errors import ModelError, UsageError
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.types import Completion, Sampling, ids

N_GOOD_REQUESTS = 20
HOSTILE_VALUES: tuple[Any, ...] = (
    True, False, None, float("nan"), float("inf"), -float("inf"), -1, -0.5, 1.5, 0, 2**31, 2**70, 10**400, "x", "",
    "\ud800", "\x00", b"x", [], [""], ("",), ("\ud800",), ("a\udfffb",), ("\x00",), ("x" * 10_000,), ("x",) * 5_000,
    (True,), (None,), (1.5,), (-1,), (2**40,), ((1,),), ((1, 2, 3),), ((1, float("nan")),), ((1, True),), (("a", 1),),
    ((10**9, 1.0),), {}, {1: 2}, {1}, object(), np.float64("nan"), np.array(3), np.array([[1]]), range(1 << 21),
    "[" * 30_000, "(" * 30_000, "a{9999}" * 4_000, "(a|b|c){1000}{1000}", "(?=x)", '{"type": 3}', "[" * 100_000,
    '{"$ref": "#"}', "\\", "x" * 2_000_000, ("entropy",) * 9, "entropy", (["a"],),
)  # fmt: skip


def good(policy: PonderPolicy) -> list[Any]:
    """Calls with many kinds of options, each with a seed of its own."""
    kinds: list[dict[str, Any]] = [
        {}, {"temperature": 0.0}, {"top_k": 3}, {"stop": ("1", "ab")},
        {"repetition_penalty": 1.2, "presence_penalty": 0.3}, {"logprobs": 3, "token_stats": ("entropy",)},
        {"logit_bias": ((4, 1.0),)}, {"forced_token_ids": (5, 6)}, {"no_repeat_ngram_size": 2},
        {"allowed_token_ids": (3, 4, 5, 6)},
    ]  # fmt: skip
    rules = [Sampling(**{"max_tokens": 8, "seed": i, **kinds[i % len(kinds)]}) for i in range(N_GOOD_REQUESTS)]
    return [policy.generate(ids([3 + i % 5, 4, 5 + i % 3]), rule) for i, rule in enumerate(rules)]


def same(ours: list[Any], theirs: list[Any]) -> None:
    for (a,), (b,) in zip(ours, theirs, strict=True):
        assert isinstance(a, Completion) and isinstance(b, Completion)
        assert (a.text, a.stop) == (b.text, b.stop)
        assert a.token_ids.tobytes() == b.token_ids.tobytes() and a.logprobs.tobytes() == b.logprobs.tobytes()
        assert {k: v.tobytes() for k, v in a.notes.items()} == {k: v.tobytes() for k, v in b.notes.items()}
        assert (a.top_logprobs is None) == (b.top_logprobs is None)
        if a.top_logprobs is not None and b.top_logprobs is not None:
            assert [x.tobytes() for x in a.top_logprobs] == [x.tobytes() for x in b.top_logprobs]


def nearly_same(ours: list[Any], theirs: list[Any]) -> None:
    """The same tokens, with log-probabilities that may be rounded otherwise."""
    for (a,), (b,) in zip(ours, theirs, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist() and a.text == b.text
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


async def run_with_bad_request(policy: PonderPolicy, bad: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """What a bad call and the good ones beside it come to."""
    policy.reseed(0)

    async def hostile() -> Any:
        return await bad()

    result = await asyncio.gather(hostile(), *good(policy), return_exceptions=True)
    return result[0], result[1:]


@pytest.fixture(scope="module")
def policy() -> PonderPolicy:
    return char_policy()


@pytest.fixture(scope="module")
def alone(policy: PonderPolicy) -> list[Any]:
    """The good calls beside one that is good too."""
    fine, others = run_async(
        run_with_bad_request(policy, lambda: policy.generate(ids([3, 4]), Sampling(seed=9, max_tokens=1)))
    )
    assert len(fine) == 1
    return others


@pytest.mark.parametrize("name", [f.name for f in fields(Sampling)])
def test_bad_option_fails_only_its_request(policy: PonderPolicy, alone: list[Any], name: str) -> None:
    """A value that some option may have is served; any other is refused with one sentence, at the caller alone."""

    def ask(value: Any) -> Any:
        given = {"max_tokens": 4, "seed": 1, name: value}
        return policy.generate(ids([3, 4]), Sampling(**given))

    async def all_of_them() -> tuple[list[Any], list[Any]]:
        policy.reseed(0)

        async def hostile(value: Any) -> Any:
            return await ask(value)

        result = await asyncio.gather(*(hostile(v) for v in HOSTILE_VALUES), *good(policy), return_exceptions=True)
        return result[: len(HOSTILE_VALUES)], result[len(HOSTILE_VALUES) :]

    bad, others = run_async(all_of_them(), 60)
    for value, came in zip(HOSTILE_VALUES, bad, strict=True):
        assert isinstance(came, list | UsageError | ModelError), f"{name}={value!r:.60}: {came!r:.300}"
        assert isinstance(came, list) or "\n" not in str(came)
    nearly_same(others, alone)


class Panic(BaseException):
    """As a library in Rust panics: no Exception."""


RAISED_ERRORS = (ValueError("odd"), StopIteration("odd"), SystemExit("odd"), KeyboardInterrupt("odd"), Panic("odd"),
          MemoryError("odd"), RecursionError("odd"), asyncio.CancelledError("odd"), RuntimeError("odd"))  # fmt: skip


def raising(real: Callable[..., Any], guilty: Callable[..., bool], error: BaseException) -> Callable[..., Any]:
    def now(*given: Any, **named: Any) -> Any:
        if guilty(*given, **named):
            raise error
        return real(*given, **named)

    return now


BAD_SEED = 23  # a seed that only the bad call has
KEY = rng.stream_keys(BAD_SEED, 1)[0]

# Where host code handles a row: what is replaced, and how to know the bad call there.
PLACES: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "penalties": (sampler, "process_logits", lambda logits, row, eos: row.request.seed == BAD_SEED),
    "forced tokens": (sampling_step, "_forced_token", lambda sampling, at: sampling.seed == BAD_SEED),
    "finish_reason": (sampling_step, "finish_reason", lambda row, eos, stopped: row.request.seed == BAD_SEED),
    "token_stats": (
        sampling_step,
        "_record_measures",
        lambda logits, sampling: any(s.seed == BAD_SEED for s in sampling),
    ),
    "random numbers": (rng, "uniforms", lambda keys, places: KEY in keys),
    "warp": (sampler, "warp", lambda logits, rules: any(s.seed == BAD_SEED for s in rules)),
    "detokenisation": (Tokenizer, "decode", lambda self, ids, keep_special=False: list(ids)[:3] == [0] * 3),
}


@pytest.mark.parametrize("error", RAISED_ERRORS[:1] + RAISED_ERRORS[4:6], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("place", PLACES)
def test_host_error_fails_only_its_sequence(
    policy: PonderPolicy, alone: list[Any], place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, guilty = PLACES[place]
    monkeypatch.setattr(owner, name, raising(getattr(owner, name), guilty, error))
    rule = Sampling(
        max_tokens=4, seed=BAD_SEED, min_tokens=1, stop=("zz",), logit_bias=((0, 1e9),), forced_token_ids=(0,)
    )
    bad, others = run_async(run_with_bad_request(policy, lambda: policy.generate(ids([3, 4]), rule)))
    assert isinstance(bad, BaseException) and "odd" in str(bad)
    same(others, alone)


class Guide:
    """Raises where it is told to, or answers nonsense."""

    def __init__(self, error: BaseException | None, answer: Any = None, at: str = "allowed_mask") -> None:
        self.error, self.answer, self.at = error, answer, at

    def allowed_mask(self) -> Any:
        if self.error is not None and self.at == "allowed_mask":
            raise self.error
        return self.answer

    def accept_token(self, token: int) -> None:
        if self.error is not None and self.at == "accept_token":
            raise self.error


GUIDES: dict[str, Callable[[], Guide]] = {
    **{f"allowed {type(e).__name__}": (lambda e=e: Guide(e)) for e in RAISED_ERRORS},
    "accept_token": lambda: Guide(ValueError("odd"), np.ones(23, bool), "accept_token"),
    "wrong size": lambda: Guide(None, np.ones(7, bool)),
    "wrong type": lambda: Guide(None, np.ones(23, np.float32)),
    "nothing": lambda: Guide(None, None),
    "no token": lambda: Guide(None, np.zeros(23, bool)),
}


@pytest.mark.parametrize("kind", GUIDES)
def test_grammar_error_fails_only_its_sequence(policy: PonderPolicy, alone: list[Any], kind: str) -> None:
    def ask() -> Any:
        return policy.engine.generate(Request(ids([3, 4]), Sampling(max_tokens=4), 1, 0, grammar=GUIDES[kind]))

    assert policy.net.config.vocab == 23
    bad, others = run_async(run_with_bad_request(policy, ask))
    assert isinstance(bad, Exception) and not isinstance(bad, asyncio.CancelledError)
    same(others, alone)


REQUESTS: dict[str, Request] = {
    "prefix beyond the vocabulary": Request(ids([10**6]), Sampling(max_tokens=4), 1, 0),
    "negative prefix": Request(ids([-1]), Sampling(max_tokens=4), 1, 0),
    "empty prefix": Request(ids([]), Sampling(max_tokens=4), 1, 0),
    "prefix of floats": Request(np.asarray([1.5]), Sampling(max_tokens=4), 1, 0),  # type: ignore[arg-type]
    "prefix of two dimensions": Request(ids([[1, 2]]), Sampling(max_tokens=4), 1, 0),  # type: ignore[list-item]
    "forced beyond the vocabulary": Request(ids([3]), Sampling(max_tokens=4, forced_token_ids=(10**6,)), 1, 0),
    "bias beyond the vocabulary": Request(ids([3]), Sampling(max_tokens=4, logit_bias=((10**6, 1.0),)), 1, 0),
    "allowed beyond the vocabulary": Request(ids([3]), Sampling(max_tokens=4, allowed_token_ids=(10**6,)), 1, 0),
    "no sampling": Request(ids([3]), None, 1, 0),  # type: ignore[arg-type]
    "n": Request(ids([3]), Sampling(max_tokens=4), 0, 0),
    "n is a bool": Request(ids([3]), Sampling(max_tokens=4), True, 0),
    "seed": Request(ids([3]), Sampling(max_tokens=4), 1, "x"),  # type: ignore[arg-type]
    "unknown adapter": Request(ids([3]), Sampling(max_tokens=4), 1, 0, adapter="nobody"),
    "adapter is no text": Request(ids([3]), Sampling(max_tokens=4), 1, 0, adapter=7),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_engine_refuses_invalid_requests(policy: PonderPolicy, alone: list[Any], kind: str) -> None:
    bad, others = run_async(run_with_bad_request(policy, lambda: policy.engine.generate(REQUESTS[kind])))
    assert isinstance(bad, UsageError)
    same(others, alone)


@pytest.mark.parametrize(
    ("name", "value"),
    [("logprobs", True), ("stop", ("\ud800",)), ("temperature", "1"), ("top_k", 1.5), ("logit_bias", ((3, "x"),)),
     ("stop_token_ids", ("a",)), ("max_tokens", None), ("token_stats", (3,)), ("forced_token_ids", ("a",)),
     ("seed", -1)],
)  # fmt: skip
def test_unvalidated_sampling_is_checked_again(policy: PonderPolicy, alone: list[Any], name: str, value: Any) -> None:
    rule = Sampling(max_tokens=4)
    object.__setattr__(rule, name, value)
    bad, others = run_async(
        run_with_bad_request(policy, lambda: policy.engine.generate(Request(ids([3, 4]), rule, 1, 0)))
    )
    assert isinstance(bad, UsageError)
    same(others, alone)


def test_adapter_load_error_fails_only_its_requests(
    policy: PonderPolicy, alone: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = policy.engine.adapters
    monkeypatch.setattr(adapters, "_loaded", {"odd": {"layers.0": (torch.ones(1, 1), None)}})
    bad, others = run_async(run_with_bad_request(policy, lambda: _adapted(policy)))
    assert isinstance(bad, Exception)
    nearly_same(others, alone)  # an engine with adapters merges no layers, which rounds otherwise


async def _adapted(policy: PonderPolicy) -> list[SequenceState]:
    return await policy.engine.generate(Request(ids([3, 4]), Sampling(max_tokens=4), 1, 0, adapter="odd"))


def test_read_request_with_invalid_tokens_is_refused_alone(policy: PonderPolicy, alone: list[Any]) -> None:
    for tokens, begin in ((ids([10**6]), 0), (ids([3]), 1), (ids([3]), -1), (ids([]), 0), (None, 0), (ids([3]), "a")):
        bad, others = run_async(
            run_with_bad_request(policy, lambda t=tokens, b=begin: policy.engine.read_hidden_states(t, b))
        )
        assert isinstance(bad, UsageError)
    same(others, alone)


def test_device_sampled_errors_fail_single_sequences() -> None:
    """`append_sampled`, which a GPU's passes are handed to, with a stop test that raises for one of three rows."""
    rows = [
        SequenceState.from_request(Request(ids([3]), Sampling(max_tokens=9, stop=("x",)), 1, i))[0] for i in range(3)
    ]

    def stopped(row: SequenceState) -> bool:
        if row is rows[1]:
            raise Panic("odd")
        return False

    tokens, text = np.full((3, 4), 5, np.int32), np.full((3, 4), -0.5, np.float32)
    failed = sampling_step.append_sampled(tokens, text, rows, frozenset({2}), stopped)
    assert list(failed) == [rows[1]] and isinstance(failed[rows[1]], RuntimeError) and "Panic" in str(failed[rows[1]])
    assert [len(r.token_ids) for r in (rows[0], rows[2])] == [4, 4]


def test_device_error_fails_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    engine = Engine(tiny_decoder(), frozenset({2}))
    rule = Sampling(max_tokens=4, repetition_penalty=1.1)
    with monkeypatch.context() as patch:
        patch.setattr(sampler, "process_logits", broken)

        async def two() -> list[Any]:
            calls = (engine.generate(Request(ids([5]), s, 1, 0)) for s in (rule, Sampling(max_tokens=4)))
            return await asyncio.gather(*calls, return_exceptions=True)

        assert all("CUDA error" in str(e) for e in run_async(two()))
    assert len(run_async(engine.generate(Request(ids([5]), rule, 1, 0)))) == 1


def test_batch_only_sampling_error_fails_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sampler.sample_tokens
    engine = Engine(tiny_decoder(), frozenset({2}))

    def together(logits: torch.Tensor, *rest: Any) -> Any:
        if len(logits) > 1:
            raise ValueError("together")
        return real(logits, *rest)

    monkeypatch.setattr(sampler, "sample_tokens", together)

    async def two() -> list[Any]:
        calls = (engine.generate(Request(ids([5 + i]), Sampling(max_tokens=4), 1, 0)) for i in range(2))
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [str(e) for e in run_async(two())] == ["together", "together"]
