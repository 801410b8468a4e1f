"""`ask`: one question to one model, synchronously, with a decided answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ponder import event_loop
from ponder.errors import UsageError, VerifierError
from ponder.models.base_policy import BasePolicy
from ponder.models.guides import default_guide, load_guide
from ponder.models.load import load_inference_policy
from ponder.pipelines.problems.prompt_style import styled_question
from ponder.pipelines.solve import solve
from ponder.pipelines.tool_dialogue import solve_with_tools
from ponder.protocols import Policy, Scorer, Strategy
from ponder.reason.answer_extraction import extract_answer
from ponder.reason.budget import Budget
from ponder.reason.named_strategies import find_strategy
from ponder.reason.operators import majority_step
from ponder.reason.scorers import as_scorer
from ponder.reason.strategies import Chain, MajorityVote
from ponder.reason.tools.function_tool import ToolFunction
from ponder.tasks.environments.tool_task import DEFAULT_MAX_TURNS
from ponder.types import TURN_REWARD, Sampling, Trace
from ponder.validate import check_question

DEFAULT_N = 8  # samples of a vote


@dataclass(frozen=True)
class Answer:
    """The chosen answer. `answer` is None if no completion states one; `text` is then the first completion."""

    answer: str | None
    votes: int  # completions that give this answer
    n: int  # completions in all
    text: str
    ballots: dict[str, int]  # votes by answer, most frequent first
    trace: Trace
    step: int | None = None  # at which the text ends

    def __str__(self) -> str:
        return self.text if self.answer is None else self.answer


def ask(
    question: str,
    model: str | Policy = "smollm2",
    *,
    n: int | None = None,
    strategy: Strategy | str | None = None,
    scorer: Scorer | Callable[[str], float] | None = None,
    budget: Budget | None = None,
    max_tokens: int = 256,
    temperature: float = 0.7,
    template: str | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    tools: Sequence[str | ToolFunction] = (),
    max_turns: int = DEFAULT_MAX_TURNS,
) -> Answer:
    """Ask a model a question and wait for the answer. Works in a script and in a notebook.

    By default the answer is the majority of `n` samples (8); with `n=1` it is one greedy chain. `strategy` may be the
    name of a strategy or preset (`ponder strategies` lists them) or a strategy object, which has its own `n` and
    sampling. `scorer` guides a search: a scorer, or a function of the text written so far. `tools` are functions that
    the model may call, or their names (`calculator`, `python`, `file.py:name`), in at most `max_turns` turns. `model`
    may be a model's name or a loaded policy; the last model loaded by name is kept.
    """
    check_question(question)
    chosen, guide = _strategy(strategy, n, Sampling(max_tokens=max_tokens, temperature=temperature))
    policy = _load(model, template, device, dtype) if isinstance(model, str) else model
    if scorer is None:
        guiding = load_guide(guide, policy, None, device, dtype)
    else:
        guiding = as_scorer(scorer, "scorer")
    if isinstance(policy, BasePolicy):
        policy.reseed(seed)
    problem = styled_question(question, chosen, template)
    if tools:
        work = solve_with_tools(problem, chosen, policy, tools, max_turns, guide=guiding, budget=budget)
    else:
        work = solve(problem, chosen, policy, guide=guiding, budget=budget)
    return decide(event_loop.run(work))


def decide(trace: Trace) -> Answer:
    """The answer that the strategy chose, or the majority's where it chose none. Raises if it chose none because its
    scorer could score nothing."""
    scores = [score for step in trace.steps for name, score in step.scores.items() if name != TURN_REWARD]
    undecided = trace.chosen is None and not trace.budget_exhausted
    if undecided and scores and all(score.value is None for score in scores):
        raise VerifierError(f"the scorer could score no step: {scores[0].reason or 'it gives no reason'}")
    steps = trace.answers()
    winner = trace.chosen if trace.chosen is not None else majority_step(trace, steps, extract_answer)
    ballots = Counter(a for i in steps if (a := extract_answer(trace.text(i))) is not None)
    answer = None if winner is None else extract_answer(trace.text(winner))
    first = winner if winner is not None else steps[0] if steps else None
    text = "" if first is None else trace.text(first)
    return Answer(answer, ballots[answer] if answer else 0, len(steps), text, dict(ballots.most_common()), trace, first)


def _strategy(strategy: Strategy | str | None, n: int | None, sampling: Sampling) -> tuple[Strategy, str]:
    """The strategy, and the name of its guide."""
    if n is not None and not (strategy is None or isinstance(strategy, str)):
        raise UsageError("a strategy object has its own n: leave out n, or set it on the strategy")
    n = DEFAULT_N if n is None else n
    if strategy is None:
        greedy = replace(sampling, temperature=0.0)
        return MajorityVote(n=n, sampling=sampling) if n != 1 else Chain(sampling=greedy), ""
    if not isinstance(strategy, str):
        return strategy, default_guide(strategy)
    built: Any
    built, guide = find_strategy(strategy)
    changes: dict[str, Any] = {k: v for k, v in (("n", n), ("sampling", sampling)) if hasattr(built, k)}
    built = replace(built, **changes)
    return built, guide or default_guide(built)


@lru_cache(maxsize=1)
def _load(model: str, template: str | None, device: str, dtype: str) -> BasePolicy:
    return load_inference_policy(model, template=template, device=device, dtype=dtype)
