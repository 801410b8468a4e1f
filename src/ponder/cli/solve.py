"""`ponder solve`: ask a model, think by a strategy, print the answer and its cost."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from ponder import event_loop
from ponder.cli import shared_flags as opt
from ponder.cli.graceful_stop import GracefulStop
from ponder.cli.progress import ProgressTracker, print_json, progress_display
from ponder.cli.questions import STDIN, read_questions
from ponder.cli.text_stream import TextStream
from ponder.common_settings import MAX_TURNS_HELP, TOOLS_HELP
from ponder.errors import UsageError
from ponder.reason.tools.function_tool import tool_code
from ponder.runs.trust import names_code
from ponder.settings import When
from ponder.terminal import escape_controls
from ponder.validate import check_question

if TYPE_CHECKING:
    from ponder.pipelines.ask import Answer
    from ponder.pipelines.tool_dialogue import DialogueTurn
    from ponder.protocols import Policy, Scorer, Strategy
    from ponder.reason.budget import Budget
    from ponder.runs.prior_results import PriorResults
    from ponder.types import Trace


@dataclass(frozen=True)
class QuestionJob:
    """What a run directory of one question is of. Its budget is not part of it: more may be spent later."""

    question: str
    model: str
    template: str | None
    strategy: str
    guide: str
    seed: int
    tools: tuple[str, ...] = field(default=(), metadata=names_code(tool_code))
    max_turns: int = 8


def solve(
    question: Annotated[str, "what to ask; -, or nothing with a pipe: one question per line, or JSON lines"] = STDIN,
    /,
    *,
    model: opt.Model = "smollm2",
    strategy: opt.Strategy = None,
    effort: opt.Effort = None,
    n: Annotated[int | None, "answers, beams or simulations; 1 is one greedy chain (8)"] = None,
    max_tokens: Annotated[int | None, "longest answer (256)"] = None,
    temperature: Annotated[float | None, "0: greedy, which a chain is; a vote samples at 0.7"] = None,
    guide: opt.Guide = "",
    tools: Annotated[tuple[str, ...], TOOLS_HELP] = (),
    max_turns: Annotated[int, MAX_TURNS_HELP, When("tools")] = 8,
    prices: opt.Prices = None,
    show: Annotated[Literal["answer", "thought", "tree"], "how much of it"] = "thought",
    template: opt.Template = None,
    seed: int = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    run: Annotated[Path | None, "write the trace here; the same question continues from it, say with more --n"] = None,
    json: opt.Json = False,
    strategy_settings: opt.StrategySettings = {},  # noqa: B006 (never changed)
    budget_settings: opt.BudgetSettings = {},  # noqa: B006
) -> int:
    """Ask a model a question, and think about it by a strategy. One chain is shown while it is written."""
    questions = read_questions(sys.stdin) if question == STDIN else [question]
    for each in questions:
        check_question(each)
    if run is not None and len(questions) > 1:
        raise UsageError(f"--run keeps the trace of one question, and here are {len(questions)}: leave it out")
    from ponder.cli.launch import warn_ineffective_strategy
    from ponder.cli.remote_model import resolve_remote_model
    from ponder.cli.strategy_flags import budget_from_flags, refuse_unused_guide, strategy_from_flags
    from ponder.models.chat_templates import check_template_name
    from ponder.models.guides import default_guide
    from ponder.pipelines.job.check_inputs import check_strategy_guide
    from ponder.reason.ineffective_settings import check_budget
    from ponder.reason.tools.function_tool import check_tools

    if strategy is None and effort is None and n == 1:
        strategy = "chain"
    usual = {"max_tokens": 256.0}
    if strategy in (None, "majority-vote", "samples") and effort not in ("none", "minimal", "low"):
        usual["temperature"] = 0.7
    thinking, own, level = strategy_from_flags(
        strategy,
        effort,
        n=n,
        max_tokens=max_tokens,
        temperature=temperature,
        settings=strategy_settings,
        default_name="majority-vote",
        sampling_defaults=usual,
    )
    refuse_unused_guide(thinking, guide)
    allowed = budget_from_flags(level, budget_settings, prices, model)
    model = resolve_remote_model(model, effort, template, device, dtype, guide)
    chosen_guide = guide or own
    guide = chosen_guide or default_guide(thinking)
    check_strategy_guide(thinking, guide)
    if template is not None:
        check_template_name(template)
    check_budget(thinking, allowed)
    warn_ineffective_strategy(thinking, allowed)
    name = strategy or effort or "majority-vote"
    if tools:
        check_tools(tools)
    jobs = [QuestionJob(each, model, template, name, guide, seed, tuple(tools), max_turns) for each in questions]
    _solve_all(jobs, thinking, allowed, _Output(show, json, run, device, dtype, bool(chosen_guide)))
    return 0


class _Output(NamedTuple):
    """How the questions of a command are answered and shown: its flags."""

    show: str
    json: bool
    run: Path | None
    device: str
    dtype: str
    guide_was_given: bool


def _solve_all(jobs: Sequence[QuestionJob], strategy: Strategy, budget: Budget | None, how: _Output) -> None:
    """Each question with the same model, and its answer as soon as it is there."""
    from ponder.runs.prior_results import PriorResults

    before = None if how.run is None else PriorResults.read(how.run)
    streams = can_stream(strategy, how) and not any(job.tools for job in jobs)
    policy = judge = None
    with GracefulStop(resumable=how.run is not None) as stop:
        for job in jobs:
            several = len(jobs) > 1 and how.show != "answer" and not how.json
            if several:
                print(f"{'' if job is jobs[0] else chr(10)}> {job.question}", flush=True)
            stream = None
            with _display(f"solve · {job.model}", stop, streams, how.json) as progress:
                from ponder.models.guides import load_guide
                from ponder.models.load import load_inference_policy

                if policy is None:
                    progress.phase("load")
                    policy = load_inference_policy(job.model, template=job.template, device=how.device, dtype=how.dtype)
                    judge = load_guide(job.guide, policy, None, how.device, how.dtype)
                policy.on_tokens = progress.tokens
                policy.reseed(job.seed)
                if streams:
                    stream = stream_tokens(policy)
                progress.phase("sample")
                trace = solve_question(job, strategy, policy, judge, budget, how.run)
            _print_answer(job, trace, how, before, stream)


def _display(title: str, stop: GracefulStop, streams: bool, json: bool) -> ProgressTracker:
    """No live panel beside a text that grows: they would write over each other."""
    return ProgressTracker(title, stop) if streams else progress_display(title, stop, unit="answer", json=json)


def can_stream(strategy: Strategy, how: _Output) -> bool:
    """Whether the answer can be shown while it is written: one chain, for a person at a terminal."""
    from ponder.reason.strategies import Chain

    return isinstance(strategy, Chain) and how.show == "thought" and not how.json and sys.stdout.isatty()


def stream_tokens(policy: Any) -> TextStream | None:
    """Show each token as it is sampled; None where the policy returns whole answers only."""
    if not hasattr(policy, "on_token"):
        return None
    write = partial(print, end="", flush=True)
    stream = TextStream(lambda tokens: policy.tokenizer.decode(tokens, keep_special=True), write, policy.eos)
    policy.on_token = lambda event: stream(event[1])
    return stream


def _print_answer(
    job: QuestionJob, trace: Trace, how: _Output, before: PriorResults | None, stream: TextStream | None
) -> None:
    from ponder.pipelines.ask import decide
    from ponder.trace_json import trace_to_json

    answer = decide(trace)
    if how.json:
        trees = {"trace": trace_to_json(trace)} if how.show == "tree" else {}
        fields = answer_json(answer, job.tools)
        if how.show == "answer":
            fields = {k: v for k, v in fields.items() if k not in ("text", "ballots", "turns")}
        print_json({"event": "done", **asdict(job), **fields, **trees, **(before.to_json() if before else {})})
        return
    if stream is not None:
        stream.finish()
    if stream is not None and stream.started:
        print("\n")
        print("\n".join(answer_lines(answer, how.show, text_shown=True)))
    else:
        print("\n".join(answer_lines(answer, how.show, tools=job.tools)))
    if before is not None:
        for line in before.lines():
            print(line, file=sys.stderr if how.show == "answer" else sys.stdout)
    if job.guide and not how.guide_was_given and how.show != "answer":
        print(f"guide: {job.guide}, since none was given; --guide takes a reward model or a scorer of yours")


def solve_question(
    job: QuestionJob,
    strategy: Strategy,
    policy: Policy,
    guide: Scorer | None,
    budget: Budget | None,
    folder: Path | None,
) -> Trace:
    """A trace about the question: a new one, or the one in the folder, continued."""
    from ponder.models.base_policy import BasePolicy
    from ponder.pipelines.job.input_fingerprints import input_fingerprints
    from ponder.pipelines.job.record_tokens import record_tokens
    from ponder.pipelines.problems.prompt_style import styled_question
    from ponder.pipelines.solve import solve
    from ponder.pipelines.tool_dialogue import solve_with_tools
    from ponder.runs import Run, read_traces
    from ponder.trace_json import trace_to_json
    from ponder.types import prompt_trace

    problem = styled_question(job.question, strategy, job.template)
    how: dict[str, Any] = {"guide": guide, "budget": budget}

    def work(trace: Trace | None) -> Coroutine[Any, Any, Trace]:
        if job.tools:
            return solve_with_tools(problem, strategy, policy, job.tools, job.max_turns, trace, **how)
        return solve(problem, strategy, policy, trace=trace, **how)

    if folder is None:
        return event_loop.run(work(None))
    with Run(folder, job, input_fingerprints(job)) as run:
        if isinstance(policy, BasePolicy):
            record_tokens(run, policy)
        stored = list(read_traces(folder))
        trace = stored[-1][1] if stored else prompt_trace(problem, policy.encode(problem.messages))
        stored_json = trace_to_json(trace) if stored else {}
        try:
            event_loop.run(work(trace))
        except BaseException:  # what was thought is paid for
            if len(trace.steps) > 1:
                run.write_traces(len(stored), [trace])
            raise
        if trace_to_json(trace) != stored_json:
            run.write_traces(len(stored), [trace])
    return trace


def answer_json(answer: Answer, tools: Sequence[str] = ()) -> dict[str, Any]:
    """For programs."""
    trace = answer.trace
    fields = {k: getattr(answer, k) for k in ("answer", "votes", "n", "text", "ballots")}
    turns = {"turns": [asdict(turn) for turn in _dialogue(answer, tools)]} if tools else {}
    return {**fields, **turns, "cost": asdict(trace.cost), "spent": trace.budget_exhausted, "failed": trace.failed}


def answer_lines(
    answer: Answer, show: str = "thought", text_shown: bool = False, tools: Sequence[str] = ()
) -> list[str]:
    """The answer first, then how it was decided, then the thought that gave it, or the tree; then the bill.
    `text_shown`: the thought was shown while it was written. `tools`: it is a dialogue with these."""
    from ponder.types import TURN_REWARD, Score

    trace = answer.trace
    if answer.answer is None:
        why = (
            f"; {escape_controls(trace.failed)}"
            if trace.failed
            else "; its budget is used up"
            if trace.budget_exhausted
            else ""
        )
        head = [f"no answer: none of {answer.n} completions states one" if answer.n != 1 else "no answer is stated"]
        head[0] += why
    else:
        head = [escape_controls(answer.answer)]
        if answer.n > 1:
            others = [
                f"{escape_controls(a)} ({c})" for a, c in answer.ballots.items() if a != answer.answer and len(a) <= 40
            ]
            also = f"; also {', '.join(others[:4])}" if others else ""
            head.append(f"{answer.votes} of {answer.n} answers say so{also}")
    turns = _dialogue(answer, tools) if tools else []
    if turns and turns[-1].calls:
        why = trace.steps[answer.step or 0].scores.get(TURN_REWARD, Score(None)).reason
        head = [f"no answer: the last turn calls a tool{f'; {escape_controls(why)}' if why else ''}"]
    if show == "answer":
        return head[:1]
    text = escape_controls(answer.text.strip())
    out = head if text == answer.answer or not text or text_shown else [*head, "", text]
    if tools:
        out = [*head, "", *dialogue_lines(turns)]
    if show == "tree":
        from ponder.cli.tree_view import tree_lines

        out = [*out, "", *tree_lines(trace)]
    if trace.failed and answer.answer is not None:
        out = [*out, "", f"it did not come to its end: {escape_controls(trace.failed)}"]
    return [*out, "", cost_line(trace)]


def _dialogue(answer: Answer, tools: Sequence[str]) -> list[DialogueTurn]:
    """The turns that led to the answer."""
    from ponder.pipelines.tool_dialogue import dialogue

    return [] if answer.step is None else dialogue(answer.trace, answer.step, tools)


def dialogue_lines(turns: Sequence[DialogueTurn]) -> list[str]:
    """A conversation with tools: what was said, each call, and its result under it."""
    out: list[str] = []
    for turn in turns:
        out += [escape_controls(turn.content.strip())] if turn.content.strip() else []
        out += [escape_controls(f"-> {call.name} {call.arguments}") for call in turn.calls]
        out += [escape_controls("<- " + result.replace("\n", "\n   ")) for result in turn.results]
    return out


def cost_line(trace: Trace) -> str:
    """What it cost."""
    c = trace.cost
    parts = [f"{c.generated_tokens:,} tokens written", f"{c.prompt_tokens:,} read, {c.cached_tokens:,} from the cache"]
    parts += [f"{c.wasted_tokens:,} wasted"] if c.wasted_tokens else []
    parts += [f"{c.scorer_tokens:,} to judge"] if c.scorer_tokens else []
    parts += [f"{c.flops / 1e9:,.0f} GFLOP"] if c.flops else []
    return f"cost: {', '.join(parts)}" + (f", ${c.dollars:.4f}" if c.dollars else "")
