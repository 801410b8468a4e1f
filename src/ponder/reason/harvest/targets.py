"""What a reward or value model learns from: labels of steps, and the value of each prefix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ponder.funnel import Funnel
from ponder.reason.harvest.found import Found, Origin, asked, key, size
from ponder.reason.harvest.outcomes import direct, ends, outcomes
from ponder.types import Trace


def step_labels(trace: Trace, scorer: str, funnel: Funnel, origin: Origin, bar: float = 1.0) -> Iterator[Found]:
    """Each way through the tree as its steps, labelled by what came of them (Math-Shepherd, Wang et al. 2023).

    `labels` are soft: the mean outcome of the answers below a step. `hard`: is any of them right? A way ends with
    the last step that has a label, as a judged answer is below every step before it.
    """
    found = outcomes(trace, scorer)
    for end in _ways(trace, funnel):
        known = [i for i in trace.path(end)[1:] if found[i].best is not None]
        if not funnel.passes("labelled", bool(known), "no answer below them was judged"):
            continue
        steps, marks = _steps(trace, known)
        if not funnel.passes("with a step of the policy's", bool(steps), "nothing sampled"):
            continue
        row = {
            "prompt": asked(trace.problem),
            "completions": steps,
            "labels": [found[i].mean for i in marks],
            "hard": [bool((found[i].best or 0.0) >= bar) for i in marks],
            "answers": [int(found[i].weight) for i in marks],
            "from": origin.of(trace, steps=marks),
        }
        yield Found(key(trace.problem), "\n".join(steps), size(trace, end), row)


def values(trace: Trace, scorer: str, funnel: Funnel, origin: Origin, least: int = 1) -> Iterator[Found]:
    """The value of every prefix that ends in a thought: the visit-weighted mean of the outcomes below it, from so many
    visits on. An answer's value is its own verdict. `q` is what the search itself backed up, by its guide."""
    found = outcomes(trace, scorer, visits=True)
    for i, step in enumerate(trace.steps):
        if step.aside or not step.sampled or not direct(trace, i):
            continue
        mean = found[i].mean
        if not funnel.passes("prefixes with an outcome", mean is not None, "no answer below them was judged"):
            continue
        visits = step.visits or max(1, round(found[i].weight))
        if not funnel.passes("visited enough", visits >= least, f"fewer than {least} visits"):
            continue
        steps, _ = _steps(trace, trace.path(i)[1:])
        row = {
            "prompt": asked(trace.problem),
            "completions": steps,
            "value": mean,
            "visits": visits,
            **({"q": step.value} if step.visits else {}),
            "from": origin.of(trace, steps=trace.path(i)),
        }
        yield Found(key(trace.problem), _prefix(steps), size(trace, i), row)


def merged(found: Iterable[Found], funnel: Funnel) -> list[Found]:
    """Estimates of one prefix, from several traces, as one: their mean by visits."""
    by_prefix: dict[tuple[str, str], Found] = {}
    for one in found:
        first = by_prefix.setdefault((one.problem, one.text), one)
        if funnel.passes("distinct prefixes", first is one, "joined with an earlier estimate"):
            continue
        a, b = first.row, one.row
        visits = a["visits"] + b["visits"]
        for name in ("value", "q"):
            if name in a and name in b:
                a[name] = (a[name] * a["visits"] + b[name] * b["visits"]) / visits
        a["visits"] = visits
    return list(by_prefix.values())


def woven(found: Sequence[Found]) -> list[Found]:
    """Values of prefixes as ways through the tree: a row for each longest prefix, with the values of all that it begins
    with as `labels`. Each stands once: in later rows it is None, as one that nobody knows."""
    table = {(one.problem, one.text): one.row for one in found}
    shorter = {(one.problem, _prefix(one.row["completions"][:-1])) for one in found}
    out: list[Found] = []
    for one in found:
        if (one.problem, one.text) in shorter:
            continue
        steps = one.row["completions"]
        rows = [table.pop((one.problem, _prefix(steps[: n + 1])), {}) for n in range(len(steps))]
        row = {
            "prompt": one.row["prompt"],
            "completions": steps,
            "labels": [r.get("value") for r in rows],
            "visits": [r.get("visits", 0) for r in rows],
            **({"q": [r.get("q") for r in rows]} if any("q" in r for r in rows) else {}),
            "from": one.row["from"],
        }
        out.append(Found(one.problem, one.text, one.size, row))
    return out


def _steps(trace: Trace, path: Sequence[int]) -> tuple[list[str], list[int]]:
    """Texts of the thoughts on a path, as TRL's stepwise rows have them, and which steps they are. What no policy wrote
    (a tool's output) stands at the beginning of the thought after it."""
    texts: list[str] = []
    marks: list[int] = []
    said = ""
    for i in path:
        said += trace.steps[i].text
        if trace.steps[i].sampled:
            texts.append(said.removesuffix("\n"))
            marks.append(i)
            said = ""
    return texts, marks


def _prefix(steps: Sequence[str]) -> str:
    """Each closed, so that a thought without a text is still one."""
    return "".join(f"{step}\0" for step in steps)


def _ways(trace: Trace, funnel: Funnel) -> list[int]:
    """Ends of the ways through the tree: answers, and thoughts that were given up."""
    stopped = [
        i
        for i, step in enumerate(trace.steps)
        if i and not step.aside and not trace.children(i) and step.parent is not None
    ]
    ways = [i for i in sorted({*ends(trace), *stopped}) if direct(trace, i)]
    funnel.add("ways through the tree", len(ways))
    return ways
