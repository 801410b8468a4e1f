"""`ponder solve`: ask a model, let its answers vote."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ponder.cli import options as opt
from ponder.cli.progress import emit, printable, watching
from ponder.cli.stopping import Stop
from ponder.errors import UsageError

if TYPE_CHECKING:
    from ponder.protocols import Policy
    from ponder.types import Cost


@dataclass(frozen=True)
class Answer:
    """What the vote decided. `answer` is None where no completion gave one; `text` is then the first."""

    answer: str | None
    votes: int
    n: int
    text: str
    ballots: dict[str, int]  # every answer given, the most frequent first
    cost: Cost


def solve(
    question: Annotated[str, "what to ask"],
    /,
    *,
    model: opt.Model = "smollm2",
    n: Annotated[int, "completions that vote; 1 is one greedy chain"] = 8,
    strategy: Annotated[Literal["vote", "chain"] | None, "vote, or chain for a single completion"] = None,
    max_tokens: opt.MaxTokens = 256,
    temperature: Annotated[float | None, "0: greedy, which a chain is; a vote samples at 0.7"] = None,
    template: opt.Template = None,
    seed: int = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: opt.Json = False,
) -> int:
    """Ask a model a question; the most frequent final answer of its completions wins."""
    if not question.strip():
        raise UsageError("the question is empty")
    n = 1 if strategy == "chain" else n
    with Stop(saves=False) as stop, watching(f"solve · {model}", stop, unit="answer", json=json) as seen:
        from ponder.models.load import load_any

        seen.phase("load")
        policy = load_any(model, template=template, device=device, dtype=dtype)
        policy.watch = seen.tokens
        policy.stream(seed)
        seen.phase("sample")
        found = ask(policy, question, n, max_tokens, temperature)
    if json:
        emit({"event": "done", "question": question, **plain(found)})
    else:
        print("\n".join(lines(found)))
    return 0


def ask(policy: Policy, question: str, n: int, max_tokens: int = 256, temperature: float | None = None) -> Answer:
    """One greedy chain for n = 1, else a majority vote of n samples."""
    from ponder.pipelines.solve import solve as think
    from ponder.reason.operators import majority
    from ponder.reason.reading import read
    from ponder.reason.strategies import Chain, Ensemble
    from ponder.types import Problem, Sampling, user

    warm = (0.0 if n == 1 else 0.7) if temperature is None else temperature
    sampling = Sampling(temperature=warm, max_tokens=max_tokens)
    strategy = Chain(sampling) if n == 1 else Ensemble(n, sampling)
    trace = asyncio.run(think(Problem("question", user(question)), strategy, policy))
    steps = trace.leaves()
    winner = majority(trace, steps, read)
    ballots = Counter(a for i in steps if (a := read(trace.text(i))) is not None)
    answer = None if winner is None else read(trace.text(winner))
    text = trace.text(steps[0] if winner is None else winner)
    return Answer(answer, ballots[answer] if answer else 0, len(steps), text, dict(ballots.most_common()), trace.cost)


def plain(found: Answer) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(found)


def lines(found: Answer) -> list[str]:
    """The answer first, then how it was decided, then the completion that gave it."""
    if found.answer is None:
        head = [f"no answer: none of {found.n} completions states one" if found.n > 1 else "no answer is stated"]
    else:
        head = [printable(found.answer)]
        if found.n > 1:
            others = [f"{printable(a)} ({c})" for a, c in list(found.ballots.items())[1:5] if len(a) <= 40]
            also = f"; also {', '.join(others)}" if others else ""
            head.append(f"vote: {found.votes} of {found.n}{also}")
    text = printable(found.text.strip())
    return head if text == found.answer else [*head, "", text]
