"""Convert attempts of any log to traces, so that everything that takes traces also takes the logs of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ponder.errors import UsageError
from ponder.measure.readers.attempts import LOGPROB_COLUMNS, Attempts, ProblemAttempts
from ponder.measure.readers.raw_files import load_data
from ponder.types import Problem, Score, Step, Trace, ids, user_messages

VERDICT_SCORE = "accuracy"  # the scorer's name under which a log's own verdict stands


def attempts_to_traces(attempts: Attempts) -> list[Trace]:
    """A flat tree per problem. Tokens are unknown: a step has its text and none of them."""
    if not all(g.texts is not None for g in attempts.groups if g.size):
        raise UsageError(f"{attempts.name} has no texts to judge again: it holds verdicts only")
    return [_trace(g) for g in attempts.groups]


def _trace(group: ProblemAttempts) -> Trace:
    trace = Trace(
        Problem(group.problem, user_messages(group.question), group.gold), [Step(None, group.question, ids([]))]
    )
    for i, text in enumerate(group.texts or ()):
        verdict = group.correct[i]
        scores = {n: _score(c[i]) for n, c in group.scores.items() if n not in LOGPROB_COLUMNS}
        scores[VERDICT_SCORE] = _score(verdict)
        trace.add(Step(0, text, ids([]), stop="eos", scores=scores, last=True))
    if group.cost:
        trace.add_cost(group.cost)
    if group.chosen is not None:
        trace.chosen = group.chosen + 1
    return trace


def _score(value: float | None) -> Score:
    return Score(value, "" if value is not None else "the log has none")


def is_tree_of_thoughts_search(path: str | Path) -> bool:
    """Is this a log of Tree of Thoughts that has the whole breadth-first trees?"""
    file = Path(path)
    if not file.is_file() or not file.name.removesuffix(".gz").endswith(".json"):
        return False
    data = load_data(file)
    return isinstance(data, list) and bool(data) and all(
        isinstance(r, dict) and {"idx", "ys", "infos", "steps"} <= r.keys() and _has_levels(r["steps"]) for r in data
    )  # fmt: skip


def _has_levels(steps: Any) -> bool:
    return isinstance(steps, list) and bool(steps) and isinstance(steps[0], dict) and "select_new_ys" in steps[0]


def read_tree_of_thoughts_traces(path: str | Path) -> list[Trace]:
    """The whole breadth-first trees of Tree of Thoughts' log: each proposal a step with its value, the dropped ones
    pruned, the last kept ones answers with their verdicts."""
    data = load_data(Path(path))
    if not (isinstance(data, list) and data and all(isinstance(r, dict) and r.get("steps") for r in data)):
        raise UsageError(f"{path} is no breadth-first log of Tree of Thoughts: its rows have no steps")
    return [_tree(row) for row in data]


def _tree(row: dict[str, Any]) -> Trace:
    question = str(row["steps"][0]["x"])
    trace = Trace(
        Problem(str(row["idx"]), user_messages(question), {"numbers": [int(n) for n in question.split()], "target": 24})
    )
    at = {"": trace.add(Step(None, question, ids([])))}  # the step at which each text so far ends
    for level in row["steps"]:
        selected = set(level["select_new_ys"])
        fresh: dict[str, int] = {}
        for text, value in zip(level["new_ys"], level["values"], strict=True):
            parent = _parent(text, at)
            step = Step(at[parent], text[len(parent) :], ids([]), scores={"value": Score(float(value))})
            step.value, step.visits = float(value), 1
            if text not in selected:
                step.pruned = "not among the best"
            fresh[text] = trace.add(step)
        at = {text: i for text, i in fresh.items() if text in selected}
    for text, info in zip(row["ys"], row["infos"], strict=True):
        leaf = trace.steps[at[text]]
        leaf.stop, leaf.last, leaf.scores[VERDICT_SCORE] = "eos", True, Score(float(info["r"]))
    return trace


def _parent(text: str, at: dict[str, int]) -> str:
    """The longest text that this one goes on from."""
    return max((p for p in at if text.startswith(p)), key=len, default="")
