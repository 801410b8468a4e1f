"""`ponder traces`: what the model wrote in a run, with verdicts, rewards and advantages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ponder.cli.progress import print_json
from ponder.errors import RunError, UnknownName, UsageError
from ponder.sampling import TOKEN_STATS
from ponder.settings import When
from ponder.terminal import escape_controls

if TYPE_CHECKING:
    from ponder.runs.trace_store import TraceEntry
    from ponder.types import Score, Step, Trace

MARKS = {"right": "✓", "wrong": "✗", "undecided": "?", "ungraded": "·"}
INDENT = "    "
STAT_BARS = 48  # bars of a statistic, at most


def traces(
    run: Annotated[Path, "a run directory with traces; it may be running"],
    /,
    *,
    problem: Annotated[str | None, "only this problem: its id, or the number of a trace"] = None,
    step: Annotated[int | None, "only this training step, from 0 on; -1 is the last"] = None,
    right: Annotated[bool, "only right answers"] = False,
    wrong: Annotated[bool, "only wrong answers"] = False,
    scorer: Annotated[str, "whose score is the verdict; empty: the first of each answer"] = "",
    limit: Annotated[int, "so many traces at most; 0: all"] = 5,
    json: Annotated[bool, "one JSON object per trace and line"] = False,
    full: Annotated[bool, "the whole trace: each step with its token ids and log-probabilities", When("json")] = False,
    repair: Annotated[bool, "mark damaged blocks as lost, so that the rest can be read, and exit"] = False,
) -> int:
    """What the model wrote: the question, the gold answer, and each answer with its verdict, reward and advantage."""
    from ponder.runs.trace_store import index_traces, read_indexed
    from ponder.trace_json import trace_to_json

    if repair:
        return _repair(run)
    if right and wrong:
        raise UsageError("--right and --wrong leave no answer: give one of them")
    if limit < 0:
        raise UsageError(f"--limit is {limit}; it is a number of traces, or 0 for all")
    entries = select_entries(index_traces(run), problem, step, run)
    verdict_wanted = "right" if right else "wrong" if wrong else ""
    shown = 0
    names: set[str] = set()
    for entry, trace in read_indexed(run, entries):
        names |= {name for node in trace.steps for name in node.scores}
        answers = [
            i for i in trace.answers() if not verdict_wanted or verdict(trace.steps[i], scorer) == verdict_wanted
        ]
        if verdict_wanted and not answers:
            continue
        if full:
            print_json({"trace": entry.number, "step": entry.step, **trace_to_json(trace)})
        elif json:
            print_json(trace_json(entry, trace, answers, scorer))
        else:
            print("\n".join([*([""] if shown else []), *trace_lines(entry, trace, answers, scorer)]))
        shown += 1
        if shown == limit:
            break
    if scorer and names and scorer not in names:
        raise UnknownName("scorer of these answers", scorer, sorted(names))
    if not json:
        _print_summary(shown, len(entries), verdict_wanted, limit)
    return 0


def _repair(run: Path) -> int:
    from ponder.runs.run_dir import lock_run, read_job
    from ponder.runs.trace_store import repair_store

    read_job(run)  # raises if that is no run directory
    with lock_run(run):
        faults = repair_store(run)
    for fault in faults:
        print(f"{fault}: marked as lost")
    if not faults:
        print("nothing is damaged")
    return 0


def _print_summary(shown: int, selected: int, verdict_wanted: str, limit: int) -> None:
    if not shown:
        print(f"no trace among {selected} has a {verdict_wanted} answer")
    elif shown == limit < selected:
        among = f" with a {verdict_wanted} answer, among" if verdict_wanted else ", of"
        print(f"\n{shown} shown{among} {selected}; --limit 0 shows all, --step and --problem choose")


def select_entries(entries: Sequence[TraceEntry], problem: str | None, step: int | None, run: Path) -> list[TraceEntry]:
    """The entries of a step and a problem. An empty choice is an error that says what there is."""
    if not entries:
        raise RunError(f"{run} holds no traces yet")
    chosen = list(entries)
    if step is not None:
        steps = sorted({entry.step for entry in entries})
        chosen_step = steps[step] if -len(steps) <= step < 0 else step
        chosen = [entry for entry in chosen if entry.step == chosen_step]
        if not chosen:
            raise UsageError(f"{run} has no traces of step {step}: it has steps {steps[0]} to {steps[-1]}")
    if problem is not None:
        of_id = [entry for entry in chosen if entry.problem_id == problem]
        number = int(problem) if problem.isdecimal() else 0
        chosen = of_id or [entry for entry in chosen if entry.number == number]
        if not chosen:
            raise UsageError(
                f"{run} has no problem {problem!r} there: give an id such as {entries[0].problem_id!r}, or a trace's "
                f"number from 1 to {len(entries)}"
            )
    return chosen


def answer_score(step: Step, scorer: str) -> Score | None:
    """The score that is the verdict: of the named scorer, or the first."""
    return step.scores.get(scorer) if scorer else next(iter(step.scores.values()), None)


def verdict(step: Step, scorer: str = "") -> str:
    """right (a score of at least 1), wrong, undecided or ungraded."""
    score = answer_score(step, scorer)
    if score is None:
        return "ungraded"
    return "undecided" if score.value is None else "right" if score.value >= 1 else "wrong"


def trace_json(entry: TraceEntry, trace: Trace, answers: Sequence[int], scorer: str) -> dict[str, Any]:
    """For programs."""
    outcome = {name: value for name in ("oracle", "budget_exhausted", "failed") if (value := getattr(trace, name))}
    return {
        "trace": entry.number,
        "step": entry.step,
        "problem": trace.problem.id,
        "question": trace.problem.question,
        "gold": trace.problem.answer,
        **outcome,
        "answers": [answer_json(trace, i, scorer) for i in answers],
    }


def answer_json(trace: Trace, leaf: int, scorer: str) -> dict[str, Any]:
    step = trace.steps[leaf]
    score = answer_score(step, scorer)
    low_high = advantage_range(trace, leaf)
    return {
        "node": leaf,
        "chosen": trace.chosen == leaf,
        "verdict": verdict(step, scorer),
        "reward": None if score is None else score.value,
        "reason": "" if score is None else score.reason,
        "scores": {name: each.value for name, each in step.scores.items()},
        "advantage": None if low_high is None else list(low_high),
        "tokens": sampled_tokens(trace, leaf),
        **({"token_stats": stats} if (stats := token_stats(trace, leaf)) else {}),
        "stop": step.stop,
        "text": trace.text(leaf),
    }


def trace_lines(entry: TraceEntry, trace: Trace, answers: Sequence[int], scorer: str) -> list[str]:
    """For people: the question and the gold answer, then each answer, or the tree and the chosen answer."""
    head = [f"step {entry.step} · trace {entry.number} · {trace.problem.id}"]
    head += _labelled("question", trace.problem.question)
    head += _labelled("gold", "none" if trace.problem.answer is None else str(trace.problem.answer))
    head += _labelled("failed", trace.failed) if trace.failed else []
    if is_tree(trace):
        from ponder.cli.tree_view import tree_lines

        head += ["", *tree_lines(trace)]
        answers = [i for i in answers if i == trace.chosen] or answers[:1]
    lines = [*head, *(line for number, leaf in enumerate(answers, 1) for line in _answer(trace, leaf, number, scorer))]
    return [escape_controls(line) for line in (lines if answers else [*lines, "no answer came to its end"])]


def is_tree(trace: Trace) -> bool:
    """Whether steps after the prompt branch, or quote each other."""
    return any(step.cites or (i and len(trace.children(i)) > 1) for i, step in enumerate(trace.steps))


def _answer(trace: Trace, leaf: int, number: int, scorer: str) -> Iterator[str]:
    step = trace.steps[leaf]
    word, score = verdict(step, scorer), answer_score(step, scorer)
    parts = [f"{MARKS[word]} {number}", "chosen" if trace.chosen == leaf else "", word]
    if score is not None:
        parts.append(f"reward {score.value:g}" if score.value is not None else "no reward")
        parts.append(f"({score.reason})" if score.reason not in ("", word) else "")
    if (low_high := advantage_range(trace, leaf)) is not None:
        low, high = low_high
        parts.append(f"advantage {low:+.3f}" + (f" to {high:+.3f}" if high - low > 5e-4 else ""))
    parts += [f"{sampled_tokens(trace, leaf):,} tokens", f"ended by {step.stop}" if step.stop else ""]
    yield ""
    yield "  ".join(part for part in parts if part)
    yield from _token_stat_lines(trace, leaf)
    yield from _text_lines(trace, leaf)


def _text_lines(trace: Trace, leaf: int) -> Iterator[str]:
    """The answer; of an episode, each turn of the policy and of its environment."""
    from ponder.types import TURN_REWARD

    steps = [trace.steps[i] for i in trace.conversation(leaf)[1:]]
    if not any(step.turn for step in steps):
        yield from (INDENT + line for line in trace.text(leaf).strip().splitlines() or ["(nothing)"])
        return
    for step in steps:
        lines = step.text.strip().splitlines() or ["(nothing)"]
        yield from (f"{INDENT}{'>' if step.sampled else '<'} {line}" for line in lines)
        if (earned := step.scores.get(TURN_REWARD)) is not None and earned.value:
            yield f"{INDENT}  reward {earned.value:g}"


def _token_stat_lines(trace: Trace, leaf: int) -> Iterator[str]:
    """Each statistic of the path's tokens: its mean, its highest value, and its course in a line."""
    from ponder.measure.figures.sparkline import sparkline

    for name, values in token_stats(trace, leaf).items():
        mean, high = sum(values) / len(values), max(values)
        yield f"{INDENT}{name:<10} mean {mean:.3f}, highest {high:.3f}  {sparkline(values, STAT_BARS, low=0.0)}"


def token_stats(trace: Trace, leaf: int) -> dict[str, list[float]]:
    """Per token of the path: entropy, varentropy and Gini's measure of the distribution it was sampled from, where
    `Sampling.token_stats` asked for them."""
    notes = [trace.steps[i].notes for i in trace.path(leaf)]
    stats = {name: [float(v) for n in notes if name in n for v in n[name]] for name in TOKEN_STATS}
    return {name: values for name, values in stats.items() if values}


def advantage_range(trace: Trace, leaf: int) -> tuple[float, float] | None:
    """The smallest and the largest advantage of a token on the path; None: no credit was assigned."""
    advantages = [trace.steps[i].advantages for i in trace.path(leaf)]
    each = [a for a in advantages if a is not None and len(a)]
    return (min(float(a.min()) for a in each), max(float(a.max()) for a in each)) if each else None


def sampled_tokens(trace: Trace, leaf: int) -> int:
    """Tokens that the policy wrote on the path."""
    return sum(len(trace.steps[i].token_ids) for i in trace.conversation(leaf) if trace.steps[i].sampled)


def _labelled(label: str, text: str) -> list[str]:
    first, *rest = text.strip().splitlines() or [""]
    return [f"{label:<9} {first}", *(f"{'':<9} {line}" for line in rest)]
