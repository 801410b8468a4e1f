"""Trace-based supervision (Besta et al. 2025): which operator was applied where, read from the order of the steps.

Steps are stored in the order in which they were added, so the order of operators is known:

    generate    one or several steps after a step
    backtrack   back to a step on the path to the newest one
    select      to a step in another branch
    prompt      the question in another form
    refine      a prompt that quotes one step; aggregate: one that quotes several
    evaluate    a question about a step (a meta step)
    insert      text that no policy sampled
    prune       a step is pruned, with the reason; its time is not known, so it comes after the last step
    answer      the step chosen as the answer

The order of scores and back-ups is not stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ponder.filter_report import FilterReport
from ponder.reason.harvest.harvested_row import HarvestedRow, Provenance, prompt_messages
from ponder.reason.harvest.outcomes import outcomes_by_step
from ponder.reason.operators.auto_cut import is_cut_probe
from ponder.types import Trace, problem_key


def operator_events(trace: Trace) -> list[dict[str, Any]]:
    """Events in order: `operator`, the steps it was applied `at`, and the steps it `made` or the one it went `to`."""
    out: list[dict[str, Any]] = []
    newest = [0]  # the steps of the last operator that added any
    looks = {place for i, s in enumerate(trace.steps) if is_cut_probe(s) for place in (i, s.parent)}  # cut probes
    for i, step in enumerate(trace.steps[1:], 1):
        if i in looks:
            continue
        name = _operator_name(trace, i)
        at = list(step.cites) if step.parent is None else [step.parent]
        if out and name in ("generate", "evaluate") and (out[-1]["operator"], out[-1]["at"]) == (name, at):
            out[-1]["made"].append(i)
            continue
        if name != "evaluate":
            if step.parent is not None and step.parent not in newest:
                back = step.parent in trace.path(newest[-1])
                out.append({"operator": "backtrack" if back else "select", "at": [newest[-1]], "to": step.parent})
            newest = []
        new_steps = [i]
        out.append({"operator": name, "at": at, "made": new_steps})
        newest = newest if name == "evaluate" else new_steps
    pruned = [(i, s.pruned) for i, s in enumerate(trace.steps) if s.pruned and i not in looks]
    out += [{"operator": "prune", "at": [i], "why": why} for i, why in pruned]
    if trace.chosen is not None:
        out.append({"operator": "answer", "at": [trace.chosen]})
    return out


def operator_text(trace: Trace, events: Sequence[Mapping[str, Any]]) -> str:
    """The events as text that a model can learn to write, one paragraph each: the operator, the steps it was applied
    at, those it made or went to, and what the new steps say. Where an answer was chosen, all this is a thought in
    <think> tags, and the answer's step follows: verifiers read no answers in thoughts, and a search may hold several.
    """
    out = []
    for event in events:
        at, new_steps = " ".join(map(str, event["at"])), event.get("made", [event["to"]] if "to" in event else [])
        head = f"[{event['operator']} {at}" + (f" -> {' '.join(map(str, new_steps))}]" if new_steps else "]")
        out.append("\n".join([head, *(trace.steps[i].text.strip("\n") for i in event.get("made", ()))]))
    if trace.chosen is not None:
        return "<think>\n" + "\n\n".join(out) + "\n</think>\n" + trace.steps[trace.chosen].text.strip("\n")
    return "\n\n".join(out)


def _operator_name(trace: Trace, i: int) -> str:
    step = trace.steps[i]
    if step.meta:
        return "evaluate"
    if step.parent is None:
        return ("prompt", "refine")[len(step.cites)] if len(step.cites) < 2 else "aggregate"
    return "generate" if step.sampled else "insert"


def operator_supervision(
    trace: Trace, scorer: str, funnel: FilterReport, origin: Provenance, min_score: float = -math.inf
) -> Iterator[HarvestedRow]:
    """One row per trace: its operators and steps. `generate` events have a `gain`: the mean outcome below the new steps
    less the mean outcome below their parent; None if not judged. A search whose chosen answer was scored lower than
    `min_score` is left out."""
    events = operator_events(trace)
    if not funnel.record("with an operator", bool(events), "no steps"):
        return
    score = None if trace.chosen is None else trace.score(trace.chosen, scorer)
    if not funnel.record("with a right answer, or none graded", score is None or score >= min_score, "a wrong answer"):
        return
    mean = [outcome.mean for outcome in outcomes_by_step(trace, scorer)]
    for event in events:
        if event["operator"] == "generate":
            means = [m for i in event["made"] if (m := mean[i]) is not None]
            before = mean[event["at"][0]]
            event["gain"] = None if before is None or not means else sum(means) / len(means) - before
    thoughts = [
        {"parent": s.parent, "text": s.text, **({"cites": list(s.cites)} if s.cites else {})} for s in trace.steps
    ]
    row = {
        "prompt": prompt_messages(trace.problem),
        "thoughts": thoughts,
        "operators": events,
        "completion": operator_text(trace, events),
        "from": origin.record(trace, steps=list(range(len(trace.steps)))),
    }
    text = "\0".join(f"{s.parent} {s.text}" for s in trace.steps)
    yield HarvestedRow(
        problem_key(trace.problem).question, text, sum(len(s.token_ids) for s in trace.steps if s.sampled), row
    )
