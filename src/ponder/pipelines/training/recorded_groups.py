"""Answers and episodes that are stored in run directories, as groups to learn from with the tokens that were sampled.

Answers to one prompt are a group, as are episodes whose client named a group for them. A group is one trace: each of
its members is a copy of one branch, without what else was tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ponder.errors import UsageError
from ponder.filter_report import FilterReport
from ponder.pipelines.problems.held_out import raise_if_all_held_out, training_traces
from ponder.types import Trace, problem_key

MAX_GROUP_SIZE = 64  # answers of one trace, which are computed together; larger groups become several
_Member = tuple[Trace, int]  # and the last step of its branch


@dataclass(frozen=True)
class RecordedGroups:
    traces: list[Trace]
    temperature: float  # at which all of them were sampled
    report: FilterReport


def read_recorded_groups(
    runs: Sequence[str],
    scorer: str,
    min_size: int = 2,
    temperature: float | None = None,
    include_held_out: bool = False,
) -> RecordedGroups:
    """The groups of these runs whose answers have a score. `min_size`: smaller groups are left out. `temperature`: of
    runs that do not say at which they were sampled."""
    report, members, temperatures = FilterReport(), list[_Member](), set[float]()
    for run in runs:
        traces = training_traces(run, report, include_held_out)
        report.add("traces", len(traces))
        for trace in traces:
            own = _members(trace, scorer, report)
            members += own
            temperatures |= set(trace.problem.tags.get("temperatures", ())) if own else set()
    raise_if_all_held_out(report)
    groups = [group for group in _grouped(members) if report.record("in groups", len(group) >= min_size, "alone")]
    if not groups:
        report.fail(
            f"no prompt has {min_size} answers with a score under {scorer!r}: give more episodes of the same prompt or"
            " group, or an algorithm that needs no group (--algorithm reinforce)"
            if members and min_size > 1
            else f"no answer has a score under {scorer!r}"
        )
    return RecordedGroups([group_trace(group) for group in groups], _temperature(temperatures, temperature), report)


def _temperature(recorded: set[float], given: float | None) -> float:
    if given is not None and recorded - {given}:
        raise UsageError(
            f"these answers were sampled at temperature {min(recorded - {given}):g}: leave out temperature"
        )
    if len(recorded) > 1:
        shown = ", ".join(f"{t:g}" for t in sorted(recorded))
        raise UsageError(
            f"these answers were sampled at several temperatures ({shown}): train on runs of one at a time"
        )
    if not recorded and given is None:
        raise UsageError("the runs do not say at which temperature they were sampled: give it (--temperature 1)")
    one = given if given is not None else next(iter(recorded))
    if not one > 0:
        raise UsageError("these answers were sampled at temperature 0, which has no probabilities to learn from")
    return one


def _members(trace: Trace, scorer: str, report: FilterReport) -> list[_Member]:
    """The scored answers of a trace that can be learned from."""
    out = []
    for leaf in trace.answers():
        score = trace.steps[leaf].scores.get(scorer)
        why = f"no score under {scorer!r}" if score is None else "undecided"
        if not report.record("scored answers", score is not None and score.value is not None, why):
            continue
        steps = [step for i in trace.conversation(leaf) if (step := trace.steps[i]).sampled]
        known = bool(steps) and all(np.isfinite(step.logprobs).all() for step in steps if step.logprobs is not None)
        if not report.record("with log-probabilities", known, "without log-probabilities"):
            continue
        if report.record("sampled one by one", "searched" not in trace.problem.tags, "chosen by a search"):
            out.append((trace, leaf))
    return out


def _grouped(members: Sequence[_Member]) -> list[list[_Member]]:
    groups: dict[tuple[str, str, bytes], list[_Member]] = {}
    for trace, leaf in members:
        if name := trace.problem.tags.get("group"):
            key = (str(name), "", b"")
        else:
            key = ("", problem_key(trace.problem).question, trace.steps[0].token_ids.tobytes())
        groups.setdefault(key, []).append((trace, leaf))
    out = []
    for group in groups.values():
        parts = -(-len(group) // MAX_GROUP_SIZE)
        out += [group[k::parts] for k in range(parts)]
    return out


def group_trace(members: Sequence[_Member]) -> Trace:
    """One trace with a copy of each member's branch. Equal first prompts stand in it once."""
    out = Trace(members[0][0].problem)
    prompts: dict[bytes, int] = {}
    for trace, leaf in members:
        places: dict[int, int] = {}
        for i in trace.conversation(leaf):
            step = trace.steps[i]
            prompt = step.token_ids.tobytes() if step.parent is None and not step.turn else None
            if prompt is not None and prompt in prompts:
                places[i] = prompts[prompt]
                continue
            parent = None if step.parent is None else places[step.parent]
            cites = tuple(places[cited] for cited in step.cites if cited in places)
            places[i] = out.add(replace(step, parent=parent, cites=cites, scores=dict(step.scores), notes={}))
            if prompt is not None:
                prompts[prompt] = places[i]
    return out


def copy_group(trace: Trace) -> Trace:
    """A copy to assign credit on, whose tokens have the log-probabilities that they were sampled with as `old`."""
    steps = [replace(step, advantages=None, notes={"old": step.logprobs} if step.logprobs is not None else {})
             for step in trace.steps]  # fmt: skip
    return Trace(trace.problem, steps)
