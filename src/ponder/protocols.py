"""The verbs: three async protocols, and the two things they work on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ponder.types import Completion, Ids, Message, Problem, Sampling, Score, Trace


@runtime_checkable
class Policy(Protocol):
    """Something that writes: a model in this process, behind a server, or a fake."""

    def encode(self, messages: Sequence[Message]) -> Ids:
        """A conversation as the tokens after which the policy answers."""
        ...

    def tokens(self, text: str) -> Ids:
        """Plain text to put into an answer: a word to go on with, a tool's result."""
        ...

    def text(self, tokens: Ids) -> str:
        """Tokens as text."""
        ...

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        """Go on from a token prefix, n times. Never re-tokenises what was sampled."""
        ...


class PolicyWrapper:
    """A policy that writes through another one, and reads and spells as that does."""

    __slots__ = ()
    policy: Policy

    def encode(self, messages: Sequence[Message]) -> Ids:
        return self.policy.encode(messages)

    def tokens(self, text: str) -> Ids:
        return self.policy.tokens(text)

    def text(self, tokens: Ids) -> str:
        return self.policy.text(tokens)


@runtime_checkable
class Scorer(Protocol):
    """Something that judges: a verifier, an outcome or process reward model, a value model, a judge.

    A score is of the path up to a step, as a whole. A scorer that rates each step by itself, as a process reward model
    does, has `scores_steps = True` and gives those ratings too (`Score.steps`, one for each step on the path): searches
    reduce them (`reason.operators.evaluate`). `reason.scorers.StepScoreReducer` makes such a scorer of one that looks at a
    single step.
    """

    @property
    def name(self) -> str:
        """The key its scores stand under in `Step.scores`."""
        ...

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        """One score for each of these steps."""
        ...


@runtime_checkable
class Strategy(Protocol):
    """A way to think: grows the trace in place, and goes on from what is there. The scorer is its guide; who judges
    the outcome comes later."""

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None: ...


@runtime_checkable
class Task(Protocol):
    """Problems, and the verifier that judges their answers. `train` and `test` never overlap."""

    @property
    def name(self) -> str: ...

    @property
    def train(self) -> Sequence[Problem]: ...

    @property
    def test(self) -> Sequence[Problem]: ...

    @property
    def verifier(self) -> Scorer: ...

    def gold(self, problem: Problem) -> str:
        """An answer the verifier accepts."""
        ...


class Progress(Protocol):
    """Looks on while a job works: a live panel, plain lines, a test. Any call may raise `Interrupted`."""

    def phase(self, name: str) -> None:
        """What is being done now."""
        ...

    def tokens(self, count: int) -> None:
        """So many more tokens were sampled."""
        ...

    def share(self, done: float) -> None:
        """This share (0 to 1) of the phase is done."""
        ...

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Trace]) -> None:
        """A step of the job is complete."""
        ...


class NoProgress:
    """A `Progress` that says nothing."""

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

    def summary_lines(self, folder: Path, result: Any) -> list[str]:
        """What came out, for people. `result`: what the call returned."""
        ...

    def summary_json(self, folder: Path, result: Any) -> dict[str, Any]:
        """What came out, for programs."""
        ...
