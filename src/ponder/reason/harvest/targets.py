"""Training targets of reward and value models: step labels, and the value of each prefix.

Each prefix gets its own estimate. Estimates of equal prefixes are merged, and rows hold them along paths of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ponder.filter_report import FilterReport
from ponder.reason.harvest.harvested_row import HarvestedRow, Provenance, answer_tokens, prompt_messages
from ponder.reason.harvest.outcomes import AnswerOutcomes, follows_original_prompt, outcomes_by_step
from ponder.types import Score, Step, Trace, ids, problem_key

_NO_JUDGED_ANSWER = "no answer below them was judged"
COUNT_COLUMNS = ("answers", "labelled", "visits")  # the weights of estimates when they are merged
PATH_COLUMNS = {  # column of a path row: column of a prefix row
    "labels": "value",
    "hard": "hard",
    **{name: name for name in COUNT_COLUMNS},
    "q": "q",
}


def step_labels(
    trace: Trace, scorer: str, funnel: FilterReport, origin: Provenance, min_score: float = 1.0, own: bool = False
) -> Iterator[HarvestedRow]:
    """Label every prefix that ends in a sampled step by the outcomes below it (Math-Shepherd, Wang et al. 2023).

    A label is soft: the mean outcome of the answers below the step. `hard`: is any of them right? `own`: the scorer
    labelled the steps directly, each as the share of right answers from there.
    """
    outcomes = labels_from_scores(trace, scorer) if own else outcomes_by_step(trace, scorer)
    for i in _labelled_steps(trace, outcomes, funnel, "undecided or not labelled" if own else _NO_JUDGED_ANSWER):
        steps, marks = _thought_texts(trace, trace.path(i)[1:])
        row = {
            "prompt": prompt_messages(trace.problem),
            "completions": steps,
            "value": outcomes[i].mean,
            "hard": bool((outcomes[i].best or 0.0) >= min_score),
            "labelled" if own else "answers": int(outcomes[i].weight),
            "from": origin.record(trace, steps=marks),
        }
        yield HarvestedRow(problem_key(trace.problem).question, _prefix_key(steps), answer_tokens(trace, i), row)


def labels_from_scores(trace: Trace, scorer: str) -> list[AnswerOutcomes]:
    """Scores of the steps themselves as outcomes: above 0 means that some answer was right."""
    scores = (trace.score(i, scorer) for i in range(len(trace.steps)))
    return [AnswerOutcomes() if label is None else AnswerOutcomes(label, 1.0, float(label > 0)) for label in scores]


def labelled_tree(trace: Trace, outcomes: Sequence[AnswerOutcomes], name: str) -> Trace:
    """The labelled steps, with their labels as scores called `name`, and the steps on the paths to them, as a tree.

    Text that no policy sampled, and a step without text, becomes the start of the step after it.
    """
    has_label = [one.mean is not None for one in outcomes]
    for i in reversed(range(1, len(trace.steps))):
        parent = trace.steps[i].parent
        if parent is not None and has_label[i]:
            has_label[parent] = True
    out = Trace(trace.problem, [Step(None, trace.problem.question, ids([]), scores=_label_score(outcomes[0], name))])
    place: dict[int, tuple[int, str]] = {}  # index in the new tree, and text to put before the next step
    for i, step in enumerate(trace.steps):
        if step.parent is None:
            if follows_original_prompt(trace, i):
                place[i] = (0, "")
        elif step.parent in place and has_label[i] and not step.meta:
            at, before = place[step.parent]
            if _is_thought(trace, i) and step.text.strip():
                copy = Step(at, before + step.text, ids([]), scores=_label_score(outcomes[i], name), last=step.done)
                place[i] = (out.add(copy), "")
            else:
                place[i] = (at, before + step.text)
                out.steps[at].last = out.steps[at].last or bool(at and step.done)
    return out


def _label_score(outcomes: AnswerOutcomes, name: str) -> dict[str, Score]:
    return {} if outcomes.mean is None else {name: Score(outcomes.mean)}


def prefix_values(
    trace: Trace, scorer: str, funnel: FilterReport, origin: Provenance, min_visits: int = 1
) -> Iterator[HarvestedRow]:
    """The value of every prefix that ends in a sampled step and has `min_visits`: the visit-weighted mean of the
    outcomes below it. An answer's value is its own verdict. `q` is the value that the search backed up from its
    guide."""
    outcomes = outcomes_by_step(trace, scorer, visits=True)
    for i in _labelled_steps(trace, outcomes, funnel, _NO_JUDGED_ANSWER):
        step = trace.steps[i]
        visits = step.visits or max(1, round(outcomes[i].weight))
        if not funnel.record("visited enough", visits >= min_visits, f"fewer than {min_visits} visits"):
            continue
        steps, _ = _thought_texts(trace, trace.path(i)[1:])
        row = {
            "prompt": prompt_messages(trace.problem),
            "completions": steps,
            "value": outcomes[i].mean,
            "visits": visits,
            **({"q": step.value} if step.visits else {}),
            "from": origin.record(trace, steps=trace.path(i)),
        }
        yield HarvestedRow(problem_key(trace.problem).question, _prefix_key(steps), answer_tokens(trace, i), row)


def merge_estimates(rows: Iterable[HarvestedRow], funnel: FilterReport) -> list[HarvestedRow]:
    """Merge estimates of one prefix from several traces into their weighted mean."""
    by_prefix: dict[tuple[str, str], HarvestedRow] = {}
    for one in rows:
        first = by_prefix.setdefault((one.problem, one.text), one)
        if funnel.record("distinct prefixes", first is one, "merged with an earlier estimate"):
            continue
        a, b = first.row, one.row
        count, other = (next(name for name in COUNT_COLUMNS if name in row) for row in (a, b))
        total = a[count] + b[other]
        for name in ("value", "q"):
            if name in a and name in b:
                a[name] = (a[name] * a[count] + b[name] * b[other]) / total
        if "hard" in a:
            a["hard"] = a["hard"] or b["hard"]
        a[count] = total
    return list(by_prefix.values())


def merge_shared_prefixes(harvested: Sequence[HarvestedRow]) -> list[HarvestedRow]:
    """One row for each longest prefix, with the estimates of all prefixes that it starts with."""
    table = {(one.problem, one.text): one.row for one in harvested}
    shorter: set[tuple[str, str]] = set()
    for one in harvested:
        steps = one.row["completions"]
        prefixes = ((one.problem, _prefix_key(steps[:n])) for n in reversed(range(1, len(steps))))
        shorter.update(next(([prefix] for prefix in prefixes if prefix in table), []))
    out: list[HarvestedRow] = []
    for one in harvested:
        if (one.problem, one.text) in shorter:
            continue
        steps = one.row["completions"]
        rows = [table.get((one.problem, _prefix_key(steps[: n + 1])), {}) for n in range(len(steps))]
        columns = {name: of for name, of in PATH_COLUMNS.items() if any(of in row for row in rows)}
        row = {
            "prompt": one.row["prompt"],
            "completions": steps,
            **{name: [row.get(of, _missing_value(name)) for row in rows] for name, of in columns.items()},
            "from": one.row["from"],
        }
        out.append(HarvestedRow(one.problem, one.text, one.size, row))
    return out


def without_repeated_prefixes(rows: Sequence[HarvestedRow]) -> list[HarvestedRow]:
    """Keep the estimate of a prefix in the first row that starts with it and blank it in later rows, or shared prefixes
    would count many times."""
    seen: set[tuple[str, str]] = set()
    out = []
    for path in rows:
        prefixes = [
            (path.problem, _prefix_key(path.row["completions"][: n + 1])) for n in range(len(path.row["completions"]))
        ]
        columns = {
            name: [
                _missing_value(name) if prefix in seen else one for prefix, one in zip(prefixes, column, strict=True)
            ]
            for name, column in path.row.items()
            if name in PATH_COLUMNS
        }
        seen.update(prefixes)
        out.append(HarvestedRow(path.problem, path.text, path.size, path.row | columns))
    return out


def _missing_value(column: str) -> int | None:
    return 0 if column in COUNT_COLUMNS else None


def _labelled_steps(
    trace: Trace, outcomes: Sequence[AnswerOutcomes], funnel: FilterReport, unknown: str
) -> Iterator[int]:
    """The sampled steps with a known outcome and a text."""
    for i, step in enumerate(trace.steps):
        if step.meta or not _is_thought(trace, i) or not follows_original_prompt(trace, i):
            continue
        why = unknown if outcomes[i].mean is None else "" if step.text.strip() else "nothing was written"
        if funnel.record("prefixes with an outcome", not why, why):
            yield i


def _is_thought(trace: Trace, step: int) -> bool:
    """Sampled by the policy. If no step was sampled, the texts come from a log, and each is a thought."""
    one = trace.steps[step]
    return one.sampled or (one.parent is not None and not any(s.sampled for s in trace.steps))


def _thought_texts(trace: Trace, path: Sequence[int]) -> tuple[list[str], list[int]]:
    """The texts of the thoughts on a path, as in TRL's stepwise rows, and their steps. Text that no policy sampled (a
    tool's output), and a step without text, becomes the start of the thought after it."""
    texts: list[str] = []
    marks: list[int] = []
    text = ""
    for i in path:
        text += trace.steps[i].text
        if _is_thought(trace, i) and trace.steps[i].text.strip():
            texts.append(text.removesuffix("\n"))
            marks.append(i)
            text = ""
    return texts, marks


def _prefix_key(steps: Sequence[str]) -> str:
    """A key in which two steps differ from one step with the joined text."""
    return "".join(f"{step}\0" for step in steps)
