"""The nouns: Problem, Sampling, Completion, Score, Cost, Step, Trace. No torch, no I/O.

A `Trace` is everything thought about one problem. A chain of thought is a trace with one branch, a GRPO
group is a flat tree, beam search and MCTS are deeper trees; refining and merging add graph edges (`cites`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UnknownName, UsageError
from ponder.validate import check_int, check_number, check_pairs, check_text, check_tuple, short_repr

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
Message = Mapping[str, Any]  # {"role": ..., "content": ...}, the shape every chat template takes

# Why a piece of text ended: the model said so, a stop string or token was met, or the budget ran out.
StopReason = Literal["eos", "stop", "length"]

MAX_STOP_CHARS = 1000  # characters of a stop string
MAX_STOP_STRINGS = 1000  # stop strings of one request: each is looked for after each token
MAX_LOGPROBS = 1 << 18  # a whole vocabulary
MAX_GRAMMAR_CHARS = 1_000_000  # of a pattern or schema; what compiles one has a limit of its own
_MAX_INT32, _MIN_DIVISOR = (
    2**31 - 1,
    1e-30,
)  # the largest token id or number of them; the least number to divide by in float32
# Of a distribution p: -sum p log p; the variance of -log p; 1 - sum p^2.
TOKEN_STATS = ("entropy", "varentropy", "gini")


def ids(values: Iterable[int]) -> Ids:
    try:
        given = values if isinstance(values, np.ndarray) else np.asarray(list(values))
    except (OverflowError, TypeError, ValueError) as why:
        raise UsageError(f"token ids are whole numbers, at most {_MAX_INT32}: {why}") from why
    if given.dtype == np.int32:
        return given
    sound = given.dtype.kind in "iu" or (given.dtype.kind == "f" and bool((given == np.rint(given)).all()))
    if given.size and not (sound and given.min() >= -_MAX_INT32 and given.max() <= _MAX_INT32):
        raise UsageError(
            f"token ids are whole numbers, at most {_MAX_INT32}: {short_repr(given.ravel()[:8].tolist())} are not"
        )
    return given.astype(np.int32)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is asked, and what a verifier needs to judge an answer. Only verifiers may read `answer`."""

    id: str
    messages: tuple[Message, ...]
    answer: Any = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    style: str = ""  # in which the messages ask for an answer (`verify.style`); empty: nobody chose one
    answer_instruction: str = ""  # the end of the last message, which says how to answer

    @property
    def question(self) -> str:
        """The last thing a user said, for people to read."""
        said = [str(m["content"]) for m in self.messages if m["role"] == "user"]
        return said[-1] if said else ""

    @property
    def bare_question(self) -> str:
        """The question without how to answer it: for whoever asks something about it."""
        return self.question.removesuffix(self.answer_instruction)


class ProblemKey(NamedTuple):
    """What makes a problem that problem, as JSON texts that can be compared. `question`: all of its messages."""

    id: str
    question: str
    answer: str
    tags: str


def problem_key(problem: Problem) -> ProblemKey:
    """The identity of a problem. Its id is not enough: a file may hold another question under it now."""
    messages = [dict(message) for message in problem.messages]
    return ProblemKey(problem.id, *map(_canonical_json, (messages, problem.answer, dict(problem.tags))))


def _canonical_json(value: object) -> str:
    """As a run directory keeps it: a tuple comes back as a list."""
    return json.dumps(value, sort_keys=True, default=str)


def user_messages(text: str, system: str | None = None) -> tuple[Message, ...]:
    """One question as messages."""
    asked: Message = {"role": "user", "content": text}
    return ({"role": "system", "content": system}, asked) if system else (asked,)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens. `temperature=0` is greedy. `seed=None` draws from the policy's own stream.

    A distribution is made in this order: penalties, `logit_bias`, what is banned or not allowed, temperature, top-k, top-p,
    min-p. The log-probabilities of a completion are those of the result.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    min_tokens: int = 0  # before so many, no end and no stop
    repetition_penalty: float = (
        1.0  # divides the positive logits of tokens seen, prompt included, multiplies the others (CTRL)
    )
    presence_penalty: float = 0.0  # taken from the logit of each token written before
    frequency_penalty: float = 0.0  # the same, for each time it was written
    no_repeat_ngram_size: int = 0  # no run of so many tokens is written twice; 0: no such rule
    logit_bias: tuple[tuple[int, float], ...] = ()  # token and what is added to its logit
    allowed_token_ids: tuple[int, ...] = ()  # the only tokens that may be drawn; empty: all
    regex: str = ""  # a regular expression that the whole text must match
    json_schema: str = ""  # a JSON schema, as text, that it must fit
    forced_token_ids: tuple[int, ...] = ()  # tokens that a completion begins with, whatever their probability
    logprobs: int = 0  # also return so many likeliest tokens at each place, with log-probabilities
    token_stats: tuple[str, ...] = ()  # also return, per token, of TOKEN_STATS

    def __post_init__(self) -> None:
        for name, read in _FIELD_CHECKS.items():
            value = getattr(self, name)
            if (plain := read(name, value)) is not value:
                object.__setattr__(self, name, plain)
        if not 0 <= self.temperature <= 1 / _MIN_DIVISOR or 0 < self.temperature < _MIN_DIVISOR:
            raise UsageError(
                f"temperature is {short_repr(self.temperature)}; it must be 0 (greedy) or at least {_MIN_DIVISOR}, and finite"
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
            raise UsageError(f"a stop string has {len(long[0])} characters; at most {MAX_STOP_CHARS} are looked for")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise UsageError(f"{len(self.stop):,} stop strings are given; at most {MAX_STOP_STRINGS:,} are looked for")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise UsageError(f"min_tokens is {self.min_tokens}; it must lie between 0 and max_tokens {self.max_tokens}")
        if not _MIN_DIVISOR <= self.repetition_penalty <= 1 / _MIN_DIVISOR:
            raise UsageError(
                f"repetition_penalty is {short_repr(self.repetition_penalty)}; it must be positive, and 1 changes nothing"
            )
        if not all(
            abs(x) <= 1 / _MIN_DIVISOR
            for x in (self.presence_penalty, self.frequency_penalty, *(b for _, b in self.logit_bias))
        ):
            raise UsageError(
                "presence_penalty, frequency_penalty and logit_bias must be finite numbers; to ban a token, give it a logit_bias"
                " of -1e9"
            )
        if self.no_repeat_ngram_size < 0 or self.logprobs < 0:
            raise UsageError("no_repeat_ngram_size and logprobs must be 0 or positive")
        if self.logprobs > MAX_LOGPROBS:
            raise UsageError(f"logprobs is {self.logprobs}; at most {MAX_LOGPROBS} are kept for a token")
        if min(self.named_token_ids, default=0) < 0:
            raise UsageError("a token id is negative")
        if self.regex and self.json_schema:
            raise UsageError("give a regex or a json_schema, not both: one text has one form")
        if (self.regex or self.json_schema) and (
            self.allowed_token_ids or self.forced_token_ids or self.min_tokens or self.no_repeat_ngram_size
        ):
            raise UsageError("a regex or json_schema decides by itself which tokens may follow: leave out other rules")
        if len(self.forced_token_ids) > self.max_tokens:
            raise UsageError(f"{len(self.forced_token_ids)} tokens are forced, but max_tokens is {self.max_tokens}")
        if unknown := set(self.token_stats) - set(TOKEN_STATS):
            raise UnknownName("token statistic", min(unknown), TOKEN_STATS)

    @property
    def named_token_ids(self) -> tuple[int, ...]:
        """Tokens that some rule is about."""
        return (
            *self.allowed_token_ids,
            *self.forced_token_ids,
            *self.stop_token_ids,
            *(token for token, _ in self.logit_bias),
        )

    @property
    def deterministic(self) -> bool:
        """True where every draw from one prefix is the same."""
        return self.temperature == 0 or self.top_k == 1 or len(self.allowed_token_ids) == 1

    @property
    def renormalises(self) -> bool:
        """True where the sampler renormalises, so that the learner's full softmax gives another probability."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.edits_logits or bool(self.forced_token_ids)

    @property
    def edits_logits(self) -> bool:
        """True where logits are changed before the softmax."""
        return bool(
            self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty or self.no_repeat_ngram_size or self.logit_bias or self.allowed_token_ids
            or self.regex or self.json_schema or self.min_tokens
        )  # fmt: skip


def _int32(name: str, value: Any) -> int:
    return check_int(name, value, _MAX_INT32)


def _token_id_tuple(name: str, value: Any) -> tuple[int, ...]:
    return tuple(check_int(name, token, _MAX_INT32) for token in check_tuple(name, value, "token ids"))


def _string_tuple(name: str, value: Any) -> tuple[str, ...]:
    return tuple(check_text(f"{name}, a tuple of texts,", one) for one in check_tuple(name, value, "texts"))


def _grammar_text(name: str, value: Any) -> str:
    if len(found := check_text(name, value)) > MAX_GRAMMAR_CHARS:
        raise UsageError(f"the {name} has {len(found):,} characters; at most {MAX_GRAMMAR_CHARS:,} are taken")
    return found


def _seed(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 0 <= value < 1 << 128:
        raise UsageError(
            f"seed is {short_repr(value)}; it must be 0 or positive, below 2^128, or None for the policy's own stream"
        )
    return int(value)


# Of each of `Sampling`'s settings: what makes it plain data of its type, or says what is wrong.
_FIELD_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"), check_number
    ),
    **dict.fromkeys(("top_k", "max_tokens", "min_tokens", "no_repeat_ngram_size", "logprobs"), _int32),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids", "forced_token_ids"), _token_id_tuple),
    **dict.fromkeys(("stop", "token_stats"), _string_tuple),
    **dict.fromkeys(("regex", "json_schema"), _grammar_text),
    "logit_bias": lambda name, value: check_pairs(name, value, _MAX_INT32),
    "seed": _seed,
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What thinking used. Cached prompt tokens were read from an earlier prefill, not computed again."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    wasted_tokens: int = 0  # generated, then thrown away (past a stop string, or a cancelled branch)
    flops: float = 0.0
    seconds: float = 0.0
    dollars: float = 0.0
    scorer_tokens: int = 0  # read and written to judge, by a model

    def __add__(self, other: Cost) -> Cost:
        return Cost(  # written out: it is added up for every step
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.generated_tokens + other.generated_tokens,
            self.wasted_tokens + other.wasted_tokens,
            self.flops + other.flops,
            self.seconds + other.seconds,
            self.dollars + other.dollars,
            self.scorer_tokens + other.scorer_tokens,
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """What a policy wrote after a prefix. `logprobs` are those of the distribution that was sampled from.

    `notes` has what `Sampling.token_stats` asked for, of the model's own distribution before any option; and `version`,
    per token, where new weights came while it was written.
    """

    text: str
    token_ids: Ids
    logprobs: Floats
    stop: StopReason
    version: int = 0  # of the weights that began it
    cost: Cost = Cost()
    notes: Mapping[str, Floats] = field(default_factory=dict)
    top_logprobs: tuple[Ids, Floats] | None = None  # likeliest tokens and their log-probabilities, [tokens, k] each


@dataclass(frozen=True, slots=True)
class Score:
    """A judgement of the path up to a step. `value=None` means undecided (crashed, timed out, refused), which is not
    zero."""

    value: float | None
    reason: str = ""
    cost: Cost = field(default=Cost(), compare=False)  # of judging; goes on the trace's bill
    steps: tuple[float, ...] = ()  # where the scorer rates steps: the score of each on the path, `value` made of them

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):  # no number decides nothing
            object.__setattr__(self, "reason", f"the score was {self.value}; {self.reason}".rstrip("; "))
            object.__setattr__(self, "value", None)


@dataclass(slots=True)
class Step:
    """One node of thought: the tokens it adds to its parent, and what was learned about them."""

    parent: int | None  # the tree of parents is the token prefix, and so the KV-cache tree
    text: str
    token_ids: Ids
    logprobs: Floats | None = None  # None: not written by the policy (a prompt, tool output)
    stop: StopReason | None = None
    version: int = 0
    scores: dict[str, Score] = field(default_factory=dict)  # by scorer name; absent = never scored
    visits: int = 0
    value: float = 0.0  # the mean of what was found below
    prior: float = 0.0  # how likely the policy finds this step among its siblings
    advantages: Floats | None = None  # one per token; None = no credit was given
    notes: dict[str, Floats] = field(default_factory=dict)  # more numbers per token, by name: reference, values, ...
    cites: tuple[int, ...] = ()  # steps quoted in this one's prompt (refine, aggregate): graph edges
    pruned: str = ""  # why nobody goes on from here
    meta: bool = False  # a question about a thought (its worth, its faults): its text is no answer
    last: bool = False  # whoever asked for this step wants no more after it, whatever stopped it

    @property
    def sampled(self) -> bool:
        return self.logprobs is not None

    @property
    def done(self) -> bool:
        """The model ended its answer here, or its budget did, or the strategy goes no further."""
        return self.last or self.stop in ("eos", "length")


def _score(kept: Sequence[Any]) -> Score:
    """As a trace's record keeps it: value, reason and, where there are any, the scores of steps."""
    value, reason, *steps = kept
    return Score(value, reason, steps=tuple(*steps))


@dataclass(slots=True, repr=False)
class Trace:
    """Everything thought about one problem: step 0 is the prompt. Another step without a parent is a further prompt,
    which quotes the steps that it cites."""

    problem: Problem
    steps: list[Step] = field(default_factory=list)
    cost: Cost = Cost()
    chosen: int | None = None  # the step that whoever thought gives as the answer
    oracle: bool = False  # the gold answer guided the search
    budget_exhausted: bool = False  # its budget ended the thinking
    failed: str = ""  # an error that ended it
    extract_answer: Callable[[str], str | None] | None = field(
        default=None, repr=False, compare=False
    )  # finds a text's answer
    _children: list[list[int]] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        steps, self.steps, self._children = self.steps, [], []
        for step in steps:
            self.add(step)

    def __repr__(self) -> str:  # asyncio writes down what tasks return: that must cost nothing
        return f"Trace({self.problem.id!r}, {len(self.steps)} steps)"

    def add(self, step: Step) -> int:
        """Append a step and return its index."""
        index = len(self.steps)
        if step.parent is not None:
            if not 0 <= step.parent < index:
                raise ValueError(f"step {index} names parent {step.parent}, which does not exist yet")
            self._children[step.parent].append(index)
        self.steps.append(step)
        self._children.append([])
        return index

    def add_cost(self, cost: Cost) -> None:
        self.cost = self.cost + cost

    def children(self, index: int) -> Sequence[int]:
        return self._children[index]

    def path(self, index: int) -> list[int]:
        """From the root down to this step."""
        path = [index]
        while (parent := self.steps[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]

    def leaves(self) -> list[int]:
        return [i for i, kids in enumerate(self._children) if not kids and not self.steps[i].pruned]

    def answers(self) -> list[int]:
        """Leaves in which the model came to an end."""
        return [i for i in self.leaves() if self.steps[i].done and not self.steps[i].meta]

    def text(self, index: int) -> str:
        """What the policy (and its tools) wrote on the way to this step, without the prompt."""
        return "".join(self.steps[i].text for i in self.path(index)[1:])

    def token_ids(self, index: int) -> Ids:
        """Every token on the way to this step, the prompt's included: the prefix a policy goes on from."""
        return np.concatenate([self.steps[i].token_ids for i in self.path(index)])

    def score(self, index: int, name: str) -> float | None:
        """The value a scorer gave this step; None where it gave none or could not decide."""
        found = self.steps[index].scores.get(name)
        return None if found is None else found.value

    def step_score(self, index: int, name: str) -> float | None:
        """The same of this step alone, where the scorer rates steps; else of the path up to it."""
        found = self.steps[index].scores.get(name)
        return None if found is None or found.value is None else found.steps[-1] if found.steps else found.value

    def to_json(self) -> dict[str, Any]:
        """Plain data for a run directory; `from_json` gives the same trace back."""
        problem = {
            "id": self.problem.id,
            "messages": [dict(m) for m in self.problem.messages],
            "answer": self.problem.answer,
            "tags": dict(self.problem.tags),
            **{k: v for k in ("style", "answer_instruction") if (v := getattr(self.problem, k))},
        }
        said: dict[str, Any] = {} if self.chosen is None else {"chosen": self.chosen}
        said |= {
            k: v
            for k, v in (("oracle", self.oracle), ("budget_exhausted", self.budget_exhausted), ("failed", self.failed))
            if v
        }
        return {
            "problem": problem,
            "cost": _without_defaults(self.cost),
            **said,
            "steps": [_without_defaults(s) for s in self.steps],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        p = data["problem"]
        problem = Problem(
            p["id"], tuple(p["messages"]), p["answer"], p["tags"], p.get("style", ""), p.get("answer_instruction", "")
        )
        ending = {k: data[k] for k in ("chosen", "oracle", "budget_exhausted", "failed") if k in data}
        return cls(problem, [_step(s) for s in data["steps"]], Cost(**data["cost"]), **ending)


def _without_defaults(record: Step | Cost) -> dict[str, Any]:
    """Fields that differ from their defaults, arrays as lists (floats short: float32 has 9 digits)."""
    out: dict[str, Any] = {}
    for name, value in _changed_fields(record):
        if isinstance(value, np.ndarray):
            value = _json_list(value)
        elif name == "scores":
            value = {k: [s.value, s.reason, *([s.steps] if s.steps else [])] for k, s in value.items()}
        elif name == "notes":
            value = {k: _json_list(v) for k, v in value.items()}
        out[name] = value
    return out


def _json_list(array: NDArray[Any]) -> list[Any]:
    """Floats short: float32 has 9 digits; what is not finite as text, since JSON has no such number."""
    if array.dtype.kind == "i":
        return array.tolist()
    return [float(f"{x:.9g}") if math.isfinite(x) else str(x) for x in array.tolist()]


def _changed_fields(record: Step | Cost) -> Iterator[tuple[str, Any]]:
    blank: Step | Cost = Cost() if isinstance(record, Cost) else Step(None, "", ids([]))
    for f in fields(record):
        value, default = getattr(record, f.name), getattr(blank, f.name)
        if isinstance(value, np.ndarray) or f.name == "parent" or value != default:
            yield f.name, value


def _step(data: Mapping[str, Any]) -> Step:
    given = dict(data)
    for name, kind in (("token_ids", np.int32), ("logprobs", np.float32), ("advantages", np.float32)):
        if given.get(name) is not None:
            given[name] = np.asarray(given[name], dtype=kind)
    given["scores"] = {k: _score(v) for k, v in given.get("scores", {}).items()}
    given["notes"] = {k: np.asarray(v, dtype=np.float32) for k, v in given.get("notes", {}).items()}
    given["cites"] = tuple(given.get("cites", ()))
    return Step(**{"text": "", **given})


def prompt_trace(problem: Problem, prompt: Ids) -> Trace:
    """A trace in which nothing has been thought yet."""
    return Trace(problem, [Step(None, problem.question, prompt)])
