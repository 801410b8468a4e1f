"""The protocols: `Policy`, `Scorer`, `Strategy`, `Environment`, `Task` and `Progress`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ponder.types import Action, Completion, Ids, Message, Problem, Sampling, Score, Trace, Turn


@runtime_checkable
class Policy(Protocol):
    """Generates text: a model in this process, behind a server, or a fake."""

    def encode(self, messages: Sequence[Message]) -> Ids:
        """The tokens of a conversation, up to where the policy's answer begins."""
        ...

    def tokens(self, text: str) -> Ids:
        """The tokens of plain text to put into an answer: a word to continue with, a tool's result."""
        ...

    def text(self, tokens: Ids) -> str:
        """The text of tokens."""
        ...

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        """Continue a token prefix, n times. Never re-tokenises what was sampled."""
        ...


GenerateCall = tuple[Ids, Sampling, int]  # what `Policy.generate` takes
# Some policies take several calls at once, for less of the host's time: `generate_many`. If one fails, all do.
GenerateMany = Callable[[Sequence[GenerateCall]], Awaitable[list[list[Completion]]]]


class PolicyWrapper:
    """A policy around another one, whose encoding and decoding it uses."""

    __slots__ = ()
    policy: Policy

    @property
    def eos(self) -> frozenset[int] | None:
        """The tokens that end an answer, where the policy names them."""
        ends: frozenset[int] | None = getattr(self.policy, "eos", None)
        return ends

    def encode(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Ids:
        return self.policy.encode(messages, tools=tools) if tools else self.policy.encode(messages)  # type: ignore[call-arg]

    @property
    def bridge(self) -> Any:
        """The tokens between two turns, where the policy knows them."""
        return getattr(self.policy, "bridge", None)

    def turn_content(self, text: str) -> str:
        return str(self.policy.turn_content(text))  # type: ignore[attr-defined]

    def tokens(self, text: str) -> Ids:
        return self.policy.tokens(text)

    def text(self, tokens: Ids) -> str:
        return self.policy.text(tokens)


@runtime_checkable
class Scorer(Protocol):
    """Rates steps: a verifier, an outcome or process reward model, a value model, an LLM judge.

    A score is of the whole path up to a step. A scorer that rates each step by itself, as a process reward model does,
    has `scores_steps = True` and also returns those ratings (`Score.steps`, one for each step on the path), which
    searches reduce (`reason.operators.evaluate`). `reason.scorers.StepScoreReducer` turns a scorer of single steps into
    one of these.
    """

    @property
    def name(self) -> str:
        """The key of its scores in `Step.scores`."""
        ...

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        """One score for each of these steps."""
        ...


@runtime_checkable
class Strategy(Protocol):
    """A search or sampling strategy: extends the trace in place, from what it has already. The scorer guides it; the
    verifier grades the result later."""

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None: ...


class Environment(Protocol):
    """A world that a policy talks to, over several turns: one object for one episode.

    The methods may also be coroutines. What an environment does is a function of the problem, the seed and the actions,
    so that an episode can be played again up to any turn. Three more methods are used where there are any: `copy()`, an
    independent environment in the same state; `gold()`, the text of a good next action; and `truncate()`, called in
    place of `act` when a limit ends the episode: a turn with the reward that is due at the end, or None.
    """

    def reset(self, problem: Problem, seed: int) -> Turn | Awaitable[Turn]:
        """Begin. The policy reads the problem's messages, then those of this turn."""
        ...

    def act(self, action: Action) -> Turn | Awaitable[Turn]:
        """Take the policy's turn, and answer it."""
        ...

    def close(self) -> Awaitable[None] | None:
        """The episode is over: free what it holds."""
        ...


@runtime_checkable
class Task(Protocol):
    """Problems, and the verifier that grades their answers. `train` and `test` never overlap."""

    @property
    def name(self) -> str: ...

    @property
    def train(self) -> Sequence[Problem]: ...

    @property
    def test(self) -> Sequence[Problem]: ...

    @property
    def verifier(self) -> Scorer: ...

    def gold(self, problem: Problem) -> str:
        """An answer that the verifier accepts."""
        ...


class Progress(Protocol):
    """Observes a running job: a live panel, plain lines, a test. Any call may raise `Interrupted`."""

    def phase(self, name: str) -> None:
        """A phase begins."""
        ...

    def tokens(self, count: int) -> None:
        """`count` more tokens were sampled."""
        ...

    def share(self, done: float) -> None:
        """A fraction (0 to 1) of the phase is done."""
        ...

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Trace]) -> None:
        """A step of the job is complete."""
        ...


class NoProgress:
    """A `Progress` that shows nothing."""

    def phase(self, name: str) -> None:
        pass

    def tokens(self, count: int) -> None:
        pass

    def share(self, done: float) -> None:
        pass

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Trace]) -> None:
        pass


class Job(Protocol):
    """A piece of work with its settings: a frozen dataclass that runs in a run directory and resumes there.

    Whoever runs or plans a job asks it these questions, and never what kind it is. `pipelines.job.BaseJob` answers them
    for a job that has the usual fields.
    """

    def __call__(self, folder: str | Path, progress: Progress | None = None, /) -> Any:
        """Do the work in this run directory, or what is left of it."""
        ...

    @property
    def title(self) -> str:
        """What is done to what, with which model: `RL · addition · smollm2`."""
        ...

    @property
    def unit(self) -> str:
        """What progress counts: steps or problems."""
        ...

    @property
    def total(self) -> int:
        """How many of them there are; 0: the job says it when it knows."""
        ...

    def check_memory(self) -> None:
        """Raise where this machine's memory cannot hold the work."""
        ...

    def strategies(self) -> list[tuple[Strategy, Any]]:
        """Each strategy that the job runs, with its budget or None."""
        ...

    def training_jobs(self) -> list[tuple[str, Any]]:
        """The jobs in it that can be planned, each with the name of its stage; "" if it is the job itself. Such a job
        has a `preflight_report`."""
        ...

    def summary_lines(self, folder: Path, result: Any) -> list[str]:
        """What came out, for people. `result`: what the call returned."""
        ...

    def summary_json(self, folder: Path, result: Any) -> dict[str, Any]:
        """What came out, for programs."""
        ...
