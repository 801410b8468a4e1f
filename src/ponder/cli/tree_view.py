"""A trace as a tree of lines: what was thought, how it was valued, where the answer is."""

from __future__ import annotations

from collections.abc import Iterator

from ponder.terminal import escape_controls
from ponder.types import Step, Trace

MAX_LINES = 120  # lines


def tree_lines(trace: Trace, width: int = 100) -> list[str]:
    """The path to the chosen answer is marked; steps beyond `MAX_LINES` are counted."""
    path = set(trace.path(trace.chosen)) if trace.chosen is not None else set()
    out = ["oracle: the gold answer guided this search"] if trace.oracle else []
    for root, step in enumerate(trace.steps):
        if step.parent is None and (root == 0 or trace.children(root)):
            quoted = f" (quotes {', '.join(map(str, step.cites))})" if step.cites else ""
            out.append(_truncate(f"{'●' if root in path else '○'} {_one_line(step.text)}{quoted}", width))
            out += _subtree_lines(trace, root, path, width)
    if len(out) > MAX_LINES:
        out[MAX_LINES:] = [f"… {len(out) - MAX_LINES:,} more steps"]
    return out


def _subtree_lines(trace: Trace, root: int, chosen_path: set[int], width: int) -> Iterator[str]:
    """Without recursion: a chain may be a thousand steps deep."""
    waiting = [(i, "", k == 0) for k, i in enumerate(reversed(trace.children(root)))]
    while waiting:
        i, indent, last = waiting.pop()
        step, kids = trace.steps[i], trace.children(i)
        yield _truncate(f"{indent}{'└' if last else '├'}─{'●' if i in chosen_path else '○'} {_step_text(step)}", width)
        deeper = indent + ("  " if last else "│ ")
        waiting += [(c, deeper, k == 0) for k, c in enumerate(reversed(kids))]


def _step_text(step: Step) -> str:
    labels = [f"{name} {s.value:.2f}" if s.value is not None else f"{name} ?" for name, s in step.scores.items()]
    if step.visits:
        labels.append(f"{step.value:.2f} in {step.visits} visits")
    if step.pruned:
        labels.append(f"pruned: {step.pruned}")
    if step.meta:
        labels.append("aside")
    return (f"[{', '.join(labels)}] " if labels else "") + _one_line(step.text)


def _one_line(text: str) -> str:
    return escape_controls(" ".join(text.split()))


def _truncate(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"
