"""The data types: Problem, Completion, Score, Cost, Step, Trace, and an environment's Turn and Action (and Sampling,
from `sampling`). No torch, no I/O.

A `Trace` is all reasoning about one problem. A chain of thought is a trace with one branch, a GRPO group is a flat
tree, beam search and MCTS are deeper trees; refining and merging add graph edges (`cites`).
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError
from ponder.pictures.message_parts import content_text
from ponder.quick_init import quick_init
from ponder.sampling import TOKEN_STATS as TOKEN_STATS
from ponder.sampling import Sampling as Sampling
from ponder.validate import MAX_INT32, short_repr

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
Message = Mapping[str, Any]  # {"role": ..., "content": ...}, the shape every chat template takes

# Why a text ended: the model's end-of-sequence token, a stop string or stop token, or max_tokens.
StopReason = Literal["eos", "stop", "length"]


def ids(values: Iterable[int]) -> Ids:
    """Token ids as an int32 array. Anything that would be rounded or wrapped raises."""
    if type(values) is list and values and type(values[0]) is int:
        try:
            return np.array(array("i", values))  # the usual case, in a fifth of the time
        except (OverflowError, TypeError):  # what follows says what is wrong
            pass
    try:
        ids_array = values if isinstance(values, np.ndarray) else np.asarray(list(values))
    except (OverflowError, TypeError, ValueError) as reason:
        raise UsageError(f"token ids are whole numbers, at most {MAX_INT32}: {reason}") from reason
    if ids_array.dtype == np.int32:
        return ids_array
    whole = ids_array.dtype.kind in "iu" or (
        ids_array.dtype.kind == "f" and bool((ids_array == np.rint(ids_array)).all())
    )
    if ids_array.size and not (whole and ids_array.min() >= -MAX_INT32 and ids_array.max() <= MAX_INT32):
        raise UsageError(
            f"token ids are whole numbers, at most {MAX_INT32}: {short_repr(ids_array.ravel()[:8].tolist())} are not"
        )
    return ids_array.astype(np.int32)


def tokens_fit(tokens: NDArray[Any], vocab: int, pictures: bool = False) -> bool:
    """Whether all token ids are of the vocabulary; with pictures, ids below 0 are fine too."""
    if tokens.dtype == np.int32 and not pictures:  # one pass in place of two: an id below 0 is a large unsigned number
        return bool(np.maximum.reduce(tokens.view(np.uint32)) < vocab)
    return bool((pictures or tokens.min() >= 0) and tokens.max() < vocab)


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, and what a verifier needs to grade an answer. Only verifiers may read `answer`."""

    id: str
    messages: tuple[Message, ...]
    answer: Any = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    style: str = ""  # of the answer that the messages ask for (`verify.answers.style`); empty: none chosen
    answer_instruction: str = ""  # the end of the last message, which says how to answer

    @property
    def question(self) -> str:
        """The text of the last user message."""
        contents = [content_text(m["content"]) for m in self.messages if m["role"] == "user"]
        return contents[-1] if contents else ""

    @property
    def bare_question(self) -> str:
        """The question without the instruction how to answer it."""
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
    question: Message = {"role": "user", "content": text}
    return ({"role": "system", "content": system}, question) if system else (question,)


@quick_init
@dataclass(frozen=True, slots=True)
class Cost:
    """What reasoning cost. Cached prompt tokens come from an earlier prefill and were not computed again."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    wasted_tokens: int = 0  # generated, then discarded (past a stop string, or a cancelled branch)
    flops: float = 0.0
    seconds: float = 0.0
    dollars: float = 0.0
    scorer_tokens: int = 0  # read and written by a scorer's model

    def __add__(self, other: Cost) -> Cost:
        return Cost(  # written out for speed: costs are added for every step
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.generated_tokens + other.generated_tokens,
            self.wasted_tokens + other.wasted_tokens,
            self.flops + other.flops,
            self.seconds + other.seconds,
            self.dollars + other.dollars,
            self.scorer_tokens + other.scorer_tokens,
        )


@quick_init
@dataclass(frozen=True, slots=True)
class Completion:
    """A policy's continuation of a prefix. `logprobs` are of the distribution that was sampled from.

    `notes` has the `Sampling.token_stats`, of the model's own distribution before any option; and `version`, per token,
    if the weights changed while it was written.
    """

    text: str
    token_ids: Ids
    logprobs: Floats
    stop: StopReason
    version: int = 0  # of the weights at its first token
    cost: Cost = Cost()
    notes: Mapping[str, Floats] = field(default_factory=dict)
    top_logprobs: tuple[Ids, Floats] | None = None  # likeliest tokens and their log-probabilities, [tokens, k] each


@dataclass(frozen=True, slots=True)
class Score:
    """A score of the path up to a step. `value=None` is undecided (crashed, timed out, refused), which is not zero."""

    value: float | None
    reason: str = ""
    cost: Cost = field(default=Cost(), compare=False)  # of scoring; added to the trace's cost
    steps: tuple[float, ...] = ()  # of a scorer that rates steps: the score of each on the path, reduced to `value`

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):  # NaN and infinity mean undecided
            object.__setattr__(self, "reason", f"the score was {self.value}; {self.reason}".rstrip("; "))
            object.__setattr__(self, "value", None)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a tool. `arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str


TURN_REWARD = "turn_reward"  # the score of a step of the policy: what its turn earned in an environment


@dataclass(frozen=True, slots=True)
class Action:
    """What the policy did in its turn. `text` is all that it wrote, `content` the text without the tool calls."""

    text: str
    content: str = ""
    tool_calls: tuple[FunctionCall, ...] = ()
    token_ids: Ids = field(default_factory=lambda: ids([]), compare=False)
    truncated: bool = False  # the turn reached its token limit


@dataclass(frozen=True, slots=True)
class Turn:
    """What an environment answers: messages for the policy to read, and what its last action earned.

    `reward=None`: this turn earned nothing of its own. An episode's reward is the sum over its turns.
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()  # on offer, as JSON schemas; of the first turn
    reward: float | None = None
    done: bool = False
    reason: str = ""  # why the episode ended, or what the reward is for


@dataclass(slots=True)
class Step:
    """A node of a trace: the tokens that it adds to its parent, and what is known about them."""

    parent: int | None  # the tree of parents is the token prefix, and so the KV-cache tree
    text: str
    token_ids: Ids
    logprobs: Floats | None = None  # None: not sampled by the policy (a prompt, tool output)
    stop: StopReason | None = None
    version: int = 0
    scores: dict[str, Score] = field(default_factory=dict)  # by scorer name; absent: never scored
    visits: int = 0
    value: float = 0.0  # the mean of the results below
    prior: float = 0.0  # the policy's probability of this step among its siblings
    advantages: Floats | None = None  # one per token; None: no credit was assigned
    notes: dict[str, Floats] = field(default_factory=dict)  # more numbers per token, by name: reference, values, ...
    cites: tuple[int, ...] = ()  # steps quoted in this one's prompt (refine, aggregate): graph edges
    pruned: str = ""  # why the search does not continue from here
    meta: bool = False  # a step about other steps (their worth, their faults): its text is not an answer
    last: bool = False  # the strategy wants nothing after this step, whatever stopped it
    # What an environment said: the policy's turn before it is over. One without a parent is the whole conversation
    # again, after the step that it cites: the chat template rewrote what was said before.
    turn: bool = False

    @property
    def sampled(self) -> bool:
        return self.logprobs is not None

    @property
    def done(self) -> bool:
        """Whether the model or its budget ended the answer here, or the strategy goes no further."""
        return self.last or self.stop in ("eos", "length")


@dataclass(slots=True, repr=False)
class Trace:
    """All reasoning about one problem. Step 0 is the prompt. Another step without a parent is a further prompt, which
    quotes the steps that it cites."""

    problem: Problem
    steps: list[Step] = field(default_factory=list)
    cost: Cost = Cost()
    chosen: int | None = None  # the step that the strategy gives as its answer
    oracle: bool = False  # the gold answer guided the search
    budget_exhausted: bool = False  # the budget ended the reasoning
    failed: str = ""  # the error that ended it
    # Extracts the answer of a text.
    extract_answer: Callable[[str], str | None] | None = field(default=None, repr=False, compare=False)
    episodes: Any = field(default=None, repr=False, compare=False)  # an environment's (`reason.episodes.Episodes`)
    _children: list[list[int]] = field(default_factory=list, repr=False, compare=False)
    _turns: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)  # by the step they answer

    def __post_init__(self) -> None:
        steps, self.steps, self._children, self._turns = self.steps, [], [], {}
        for step in steps:
            self.add(step)

    def __repr__(self) -> str:  # short: asyncio formats what tasks return
        return f"Trace({self.problem.id!r}, {len(self.steps)} steps)"

    def add(self, step: Step) -> int:
        """Append a step and return its index."""
        index = len(self.steps)
        if step.parent is not None:
            if not 0 <= step.parent < index:
                raise ValueError(f"step {index} names parent {step.parent}, which does not exist yet")
            self._children[step.parent].append(index)
        if step.turn and (step.parent is not None or step.cites):
            self._turns.setdefault(step.cites[0] if step.parent is None else step.parent, []).append(index)
        self.steps.append(step)
        self._children.append([])
        return index

    def add_cost(self, cost: Cost) -> None:
        self.cost = self.cost + cost

    def children(self, index: int) -> Sequence[int]:
        """The steps that continue this one; where it was answered, those after the answer. An environment answers a
        step once, a client of a server may do so in several ways."""
        turns = self._turns.get(index)
        if turns is None:
            return self._children[index]
        return self._children[turns[0]] if len(turns) == 1 else [i for turn in turns for i in self._children[turn]]

    def next_turn(self, index: int) -> int | None:
        """The turn in which an environment answered this step; the latest, if a client answered it in several ways."""
        turns = self._turns.get(index)
        return None if turns is None else turns[-1]

    def path(self, index: int) -> list[int]:
        """From the root down to this step."""
        path = [index]
        while (parent := self.steps[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]

    def leaves(self) -> list[int]:
        return [
            i for i, kids in enumerate(self._children) if not kids and not self.steps[i].pruned and i not in self._turns
        ]

    def answers(self) -> list[int]:
        """Leaves at which the answer ended."""
        return [i for i in self.leaves() if self.steps[i].done and not self.steps[i].meta]

    def text(self, index: int) -> str:
        """The text of the policy (and its tools) on the path to this step, without the prompt; of an episode, the
        policy's last turn."""
        path = self.path(index)
        begin = max((at for at, i in enumerate(path) if self.steps[i].turn and i != index), default=0)
        return "".join(self.steps[i].text for i in path[begin + 1 :])

    def step_before(self, index: int) -> int | None:
        """The parent; before a prompt that repeats the conversation, the step that it answers."""
        step = self.steps[index]
        return step.cites[0] if step.turn and step.parent is None and step.cites else step.parent

    def conversation(self, index: int) -> list[int]:
        """The path to this step and, where the chat template rewrote the conversation, the paths before it."""
        out = [index]
        while (before := self.step_before(out[-1])) is not None:
            out.append(before)
        return out[::-1]

    def token_ids(self, index: int) -> Ids:
        """Every token on the path to this step, with the prompt: the prefix that a policy continues."""
        return np.concatenate([self.steps[i].token_ids for i in self.path(index)])

    def score(self, index: int, name: str) -> float | None:
        """A scorer's value of this step; None if it did not score the step or could not decide."""
        score = self.steps[index].scores.get(name)
        return None if score is None else score.value

    def step_score(self, index: int, name: str) -> float | None:
        """The value of this step alone, if the scorer rates steps; else of the path up to it."""
        score = self.steps[index].scores.get(name)
        return None if score is None or score.value is None else score.steps[-1] if score.steps else score.value


def prompt_trace(problem: Problem, prompt: Ids) -> Trace:
    """A trace with a prompt only."""
    return Trace(problem, [Step(None, problem.question, prompt)])
