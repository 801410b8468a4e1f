"""`Sampling`: how a policy draws tokens, with checks of every setting. The field names are vLLM's where it has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Annotated, Any

import numpy as np

from ponder.errors import UnknownName, UsageError
from ponder.validate import MAX_INT32, check_int, check_number, check_pairs, check_text, check_tuple, short_repr

MAX_STOP_CHARS = 1000  # of a stop string
MAX_STOP_STRINGS = 1000  # of one request: each is searched for after each token
MAX_LOGPROBS = 1 << 18  # a whole vocabulary
MAX_GRAMMAR_CHARS = 1_000_000  # of a regex, JSON schema or structural tag; the grammar compiler has a limit of its own
_MIN_DIVISOR = 1e-30  # the smallest divisor that is safe in float32
# Of a distribution p: -sum p log p; the variance of -log p; 1 - sum p^2.
TOKEN_STATS = ("entropy", "varentropy", "gini")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens. `temperature=0` is greedy. `seed=None` draws from the policy's own random stream.

    The order is: penalties, `logit_bias`, banned and allowed tokens, temperature, top-k, top-p, min-p. A completion's
    log-probabilities are of the resulting distribution.
    """

    temperature: Annotated[float, "0: greedy"] = 1.0
    top_p: Annotated[float, "the smallest set of tokens with this probability"] = 1.0
    top_k: Annotated[int, "the k likeliest tokens; 0: no limit"] = 0
    min_p: Annotated[float, "tokens with this share of the likeliest one's probability"] = 0.0
    max_tokens: Annotated[int, "longest completion"] = 256
    stop: Annotated[tuple[str, ...], "texts that end a completion"] = ()
    stop_token_ids: Annotated[tuple[int, ...], "tokens that end a completion"] = ()
    seed: Annotated[int | None, "of this request; default: the policy's own random stream"] = None
    min_tokens: Annotated[int, "no end of sequence and no stop before so many tokens"] = 0
    # Divides the positive logits of tokens in the prompt or the text so far, and multiplies the negative ones (CTRL).
    repetition_penalty: Annotated[float, "CTRL's: above 1 makes tokens of prompt and text less likely"] = 1.0
    presence_penalty: Annotated[float, "subtracted from the logit of each token in the text so far"] = 0.0
    frequency_penalty: Annotated[float, "the same, for each of its occurrences"] = 0.0
    no_repeat_ngram_size: Annotated[int, "no n-gram of this size occurs twice; 0: no such rule"] = 0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, what is added to its logit)
    allowed_token_ids: Annotated[tuple[int, ...], "the only tokens that may be drawn; none: all"] = ()
    regex: Annotated[str, "a regular expression for the whole text"] = ""
    json_schema: Annotated[str, "a JSON schema for the whole text, as JSON"] = ""
    structural_tag: Annotated[str, "JSON schemas for marked parts of the text, as vLLM's structural tag in JSON"] = ""
    forced_token_ids: Annotated[tuple[int, ...], "the first tokens, whatever their probability"] = ()
    ignore_eos: Annotated[bool, "the end of sequence is a token like others, and ends nothing"] = False
    logprobs: Annotated[int, "also return the k likeliest tokens at each position"] = 0
    token_stats: Annotated[tuple[str, ...], "also return these of TOKEN_STATS for each token"] = ()

    def __post_init__(self) -> None:
        """Check all fields. A search makes many alike, and each is checked by the policy and again by the engine, so
        settings that passed are remembered."""
        try:
            if _settings_key(self) in _passed:
                if self.seed is not None:
                    object.__setattr__(self, "seed", _seed("seed", self.seed))
                return
        except TypeError:  # a list where a tuple should be
            pass
        self._check_fields()
        if not (self.named_token_ids or self.stop or self.token_stats):  # (1,) and (True,) would be one key
            if len(_passed) >= _MAX_PASSED:
                _passed.clear()
            _passed.add(_settings_key(self))

    def _check_fields(self) -> None:
        for value, (name, default, check) in zip(_field_values(self), _FIELDS, strict=True):
            if value is default:  # most of them, and a server makes several of these for each request
                continue
            if (plain := check(name, value)) is not value:
                object.__setattr__(self, name, plain)
        if not 0 <= self.temperature <= 1 / _MIN_DIVISOR or 0 < self.temperature < _MIN_DIVISOR:
            raise UsageError(
                f"temperature is {short_repr(self.temperature)}; it must be 0 (greedy) or at least {_MIN_DIVISOR}, and"
                " finite"
            )
        if not _MIN_DIVISOR <= self.top_p <= 1:
            raise UsageError(f"top_p is {short_repr(self.top_p)}; it must lie in (0, 1]")
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}; it must be 0 (no limit) or positive")
        if not 0 <= self.min_p < 1:
            raise UsageError(f"min_p is {short_repr(self.min_p)}; it must lie in [0, 1)")
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens is {self.max_tokens}; a budget must be at least 1 token")
        if any(not s for s in self.stop):
            raise UsageError("an empty stop string would stop at once; remove it")
        if long := [s for s in self.stop if len(s) > MAX_STOP_CHARS]:
            raise UsageError(f"a stop string has {len(long[0])} characters; at most {MAX_STOP_CHARS} are allowed")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise UsageError(f"{len(self.stop):,} stop strings are given; at most {MAX_STOP_STRINGS:,} are allowed")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise UsageError(f"min_tokens is {self.min_tokens}; it must lie between 0 and max_tokens {self.max_tokens}")
        if not _MIN_DIVISOR <= self.repetition_penalty <= 1 / _MIN_DIVISOR:
            raise UsageError(
                f"repetition_penalty is {short_repr(self.repetition_penalty)}; it must be positive, and 1 changes"
                " nothing"
            )
        if not all(
            abs(x) <= 1 / _MIN_DIVISOR
            for x in (self.presence_penalty, self.frequency_penalty, *(b for _, b in self.logit_bias))
        ):
            raise UsageError(
                "presence_penalty, frequency_penalty and logit_bias must be finite numbers; to ban a token, give it a"
                " logit_bias of -1e9"
            )
        if self.no_repeat_ngram_size < 0 or self.logprobs < 0:
            raise UsageError("no_repeat_ngram_size and logprobs must be 0 or positive")
        if self.logprobs > MAX_LOGPROBS:
            raise UsageError(f"logprobs is {self.logprobs}; at most {MAX_LOGPROBS} are returned for a token")
        if min(self.named_token_ids, default=0) < 0:
            raise UsageError("a token id is negative")
        if sum(map(bool, (self.regex, self.json_schema, self.structural_tag))) > 1:
            raise UsageError("give a regex, a json_schema or a structural_tag, not several of them")
        if self.has_grammar and (
            self.allowed_token_ids or self.forced_token_ids or self.min_tokens or self.no_repeat_ngram_size
        ):
            raise UsageError(
                "a regex, json_schema or structural_tag decides which tokens may follow: leave out allowed_token_ids,"
                " forced_token_ids, min_tokens and no_repeat_ngram_size"
            )
        if len(self.forced_token_ids) > self.max_tokens:
            raise UsageError(f"{len(self.forced_token_ids)} tokens are forced, but max_tokens is {self.max_tokens}")
        if unknown := set(self.token_stats) - set(TOKEN_STATS):
            raise UnknownName("token statistic", min(unknown), TOKEN_STATS)

    def with_seed(self, seed: int) -> Sampling:
        """The same with this seed. As `dataclasses.replace`, in a third of the time: nothing else is checked again."""
        return self._copy_with("seed", _seed("seed", seed))

    def with_max_tokens(self, max_tokens: int) -> Sampling:
        """The same with this bound, likewise."""
        if type(max_tokens) is int and max(1, self.min_tokens, len(self.forced_token_ids)) <= max_tokens <= MAX_INT32:
            return self._copy_with("max_tokens", max_tokens)
        return replace(self, max_tokens=max_tokens)  # says what is wrong with it

    def _copy_with(self, name: str, value: Any) -> Sampling:
        copy = object.__new__(Sampling)
        for slot, own in zip(_SLOTS, _field_values(self), strict=True):
            slot.__set__(copy, own)
        object.__setattr__(copy, name, value)
        return copy

    @property
    def named_token_ids(self) -> tuple[int, ...]:
        """All token ids in these settings."""
        if not (self.allowed_token_ids or self.forced_token_ids or self.stop_token_ids or self.logit_bias):
            return ()
        return (
            *self.allowed_token_ids,
            *self.forced_token_ids,
            *self.stop_token_ids,
            *(token for token, _ in self.logit_bias),
        )

    @property
    def has_grammar(self) -> bool:
        """Whether a grammar decides which tokens may follow."""
        return bool(self.regex or self.json_schema or self.structural_tag)

    @property
    def deterministic(self) -> bool:
        """Whether every draw from one prefix is the same."""
        return self.temperature == 0 or self.top_k == 1 or len(self.allowed_token_ids) == 1

    @property
    def renormalises(self) -> bool:
        """Whether the sampler renormalises, so that the learner's full softmax gives another probability."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.edits_logits or bool(self.forced_token_ids)

    @property
    def edits_logits(self) -> bool:
        """Whether logits are changed before the softmax."""
        return bool(
            self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty or self.no_repeat_ngram_size
            or self.logit_bias or self.allowed_token_ids or self.has_grammar or self.min_tokens
        )  # fmt: skip


def _int32(name: str, value: Any) -> int:
    return check_int(name, value, MAX_INT32)


def _token_id_tuple(name: str, value: Any) -> tuple[int, ...]:
    return tuple(check_int(name, token, MAX_INT32) for token in check_tuple(name, value, "token ids"))


def _string_tuple(name: str, value: Any) -> tuple[str, ...]:
    return tuple(check_text(f"{name}, a tuple of strings,", one) for one in check_tuple(name, value, "strings"))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} is {short_repr(value)}; it must be true or false")
    return bool(value)


def _grammar_text(name: str, value: Any) -> str:
    if len(text := check_text(name, value)) > MAX_GRAMMAR_CHARS:
        raise UsageError(f"the {name} has {len(text):,} characters; at most {MAX_GRAMMAR_CHARS:,} are allowed")
    return text


def _seed(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 0 <= value < 1 << 128:
        raise UsageError(
            f"seed is {short_repr(value)}; it must be 0 or positive, below 2^128, or None for the policy's own stream"
        )
    return int(value)


# For each field: converts the value to plain data of its type, or raises.
_FIELD_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"), check_number
    ),
    **dict.fromkeys(("top_k", "max_tokens", "min_tokens", "no_repeat_ngram_size", "logprobs"), _int32),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids", "forced_token_ids"), _token_id_tuple),
    **dict.fromkeys(("stop", "token_stats"), _string_tuple),
    **dict.fromkeys(("regex", "json_schema", "structural_tag"), _grammar_text),
    "logit_bias": lambda name, value: check_pairs(name, value, MAX_INT32),
    "seed": _seed,
    "ignore_eos": _flag,
}
_FIELDS = tuple((field.name, field.default, _FIELD_CHECKS[field.name]) for field in fields(Sampling))
_SLOTS: tuple[Any, ...] = tuple(getattr(Sampling, name) for name, _, _ in _FIELDS)
_field_values = attrgetter(*(name for name, _, _ in _FIELDS))
_values_without_seed = attrgetter(*(name for name, _, _ in _FIELDS if name != "seed"))
_passed: set[tuple[Any, ...]] = set()  # keys of settings that passed all checks
_MAX_PASSED = 1024


def _settings_key(sampling: Sampling) -> tuple[Any, ...]:
    """All values except the seed, with their types: 1 and True are equal."""
    values = _values_without_seed(sampling)
    return (*values, *map(type, values))
