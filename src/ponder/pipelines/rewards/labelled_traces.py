"""Training and test data of a reward model: labelled traces from files and run directories, in a model's tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ponder.errors import TaskError, UsageError
from ponder.filter_report import FilterReport
from ponder.models.base_policy import BasePolicy
from ponder.models.tokenizer import answer_end_token
from ponder.pipelines.problems.held_out import (
    is_held_out,
    keep_for_training,
    raise_if_all_held_out,
    row_is_held_out,
    training_traces,
    warn_held_out,
)
from ponder.pipelines.rewards.negatives import Negatives, choose_negatives
from ponder.tasks.split import hashes_to_test
from ponder.tasks.step_labels import LABEL_SCORE
from ponder.tasks.step_labels.label_files import parse_label_file, row_reader, rows_to_traces
from ponder.tasks.step_labels.step_split import split_steps
from ponder.trace_json import trace_from_json
from ponder.train.equal_answers import merge_equal_answers
from ponder.types import Cost, Trace, ids, problem_key

MAX_ANSWERS_PER_TRACE = 64  # answers to one prompt that become one trace
_NO_LABELS = (
    "no trace has labels under {!r} that this objective can learn from (pairs need answers with different scores, "
    "outcomes need answers that came to an end, steps need labels on steps)"
)


def read_labelled_traces(
    data: Sequence[str],
    format: str | None = None,
    scorer: str | None = None,
    skip_bad: bool = False,
    needs_scores: bool = True,
    report: FilterReport | None = None,
    include_held_out: bool = False,
) -> tuple[list[Trace], str]:
    """The traces of all these places, and the name of the score that is their label.

    A place is a file of labels, a file of traces (one JSON object a line), or a run directory. The labels of a run are
    the scores of `scorer`; without one, those called "label", or of the only scorer. `needs_scores=False`: no scores
    are needed. The report counts rows that `skip_bad` leaves out, and traces of held-out problems.
    """
    if scorer is not None and not needs_scores:
        raise UsageError(f"values of a search are no scorer's scores: leave out --scorer {scorer}")
    if (format is not None or skip_bad) and all(Path(place).is_dir() for place in data):
        given = f"--format {format}" if format is not None else "--skip-bad"
        raise UsageError(f"{given} is for files, and run directories are read as they are: leave it out")
    splits = FilterReport() if report is None else report
    traces: list[Trace] = []
    scores: dict[str, set[str]] = {}
    for place in data:
        if Path(place).is_dir():
            labelled = _traces_of_run(place, splits, include_held_out)
        else:
            labelled = _traces_of_file(place, format, skip_bad, report, splits, include_held_out)
        if not labelled:
            raise_if_all_held_out(splits)
            raise TaskError(f"{place} holds no traces: let it think first, or give another")
        traces += labelled
        scores[place] = {name for t in labelled for s in t.steps for name in s.scores}
    names = set().union(*scores.values())
    chosen = scorer or (LABEL_SCORE if LABEL_SCORE in names else next(iter(names)) if len(names) == 1 else None)
    without = [place for place, known in scores.items() if chosen not in known]
    if needs_scores and without:
        listed = "; ".join(f"{place}: {', '.join(sorted(scores[place])) or 'none'}" for place in without)
        problem = f"no step has a score named {chosen!r}" if chosen else "say which scores are the labels"
        apart = ". One name must hold for all places: else learn from them apart" if len(data) > 1 else ""
        raise UsageError(f"{problem}: --scorer NAME; scores in {listed}{apart}")
    return traces, chosen or LABEL_SCORE


def _traces_of_run(place: str, splits: FilterReport, include_held_out: bool) -> list[Trace]:
    if not (Path(place) / "job.json").is_file():
        raise TaskError(f"{place} is a folder but no run directory: give one, or a JSONL file")
    return training_traces(place, splits, include_held_out)


def _traces_of_file(
    place: str,
    format: str | None,
    skip_bad: bool,
    report: FilterReport | None,
    splits: FilterReport,
    include_held_out: bool,
) -> list[Trace]:
    rows = parse_label_file(place)
    has_traces = bool(rows.valid) and {"problem", "steps"} <= (first := rows.valid[0][1]).keys()
    if format == "traces" or (format is None and has_traces and isinstance(first["problem"], dict)):
        traces = rows_to_traces(rows, _parse_trace, skip_bad, report)
        return [trace for trace in traces if keep_for_training(is_held_out(trace.problem), splits, include_held_out)]
    warn_held_out([row_is_held_out(row) for _, row in rows.valid], place)
    return rows_to_traces(rows, row_reader(rows, format), skip_bad, report)


def _parse_trace(row: Mapping[str, Any], where: str) -> Trace:
    if missing := [name for name in ("problem", "steps") if name not in row]:
        raise TaskError(f"is no trace: it has no {' and no '.join(map(repr, missing))}")
    try:
        return _validate_trace(trace_from_json(row))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, UsageError) as why:
        raise TaskError(f"is no trace ({why!r})") from None


def _validate_trace(trace: Trace) -> Trace:
    """Check a trace of a file that anybody may have written."""
    messages = [m for m in trace.problem.messages if isinstance(m, Mapping) and {"role", "content"} <= m.keys()]
    if not trace.steps or not messages or len(messages) < len(trace.problem.messages):
        raise ValueError("there is no prompt, or one of its messages has no role or content")
    for i, step in enumerate(trace.steps):
        tokens, likely = step.token_ids, step.logprobs
        if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or (len(tokens) and tokens.min() < 0):
            raise ValueError(f"the token ids of step {i} are no list of whole numbers, 0 or more")
        if not isinstance(step.text, str) or (likely is not None and likely.shape != tokens.shape):
            raise ValueError(f"text, token ids and log-probabilities of step {i} do not match")
    return trace


def tokenize_trace(trace: Trace, policy: BasePolicy, separator: str | None = None) -> Trace:
    """The trace in the policy's tokens: texts without tokens are tokenized, sampled tokens stay as they are.

    `separator`: where to split steps that the policy wrote. An answer that was not sampled ends with the end token.
    """
    if any(len(step.token_ids) for step in trace.steps[1:]):
        check_same_tokens(trace, policy)
        out = split_steps(trace, policy.text, separator) if separator else trace
    else:
        out = _tokenize_texts(trace, policy)
    room, longest = policy.context_length, max(len(out.token_ids(i)) for i in out.leaves())
    if longest > room:
        raise TaskError(f"{trace.problem.id} has {longest} tokens, the model's context only {room}: remove it")
    return out


def _tokenize_texts(trace: Trace, policy: BasePolicy) -> Trace:
    prompt = policy.encode(trace.problem.messages)
    if not len(prompt):
        raise TaskError(f"{trace.problem.id} has an empty prompt: remove it")
    out = Trace(trace.problem, [replace(trace.steps[0], token_ids=prompt)], trace.cost)
    for step in trace.steps[1:]:
        tokens = policy.tokens(step.text)
        if step.done and (not len(tokens) or tokens[-1] not in policy.eos):
            tokens = np.append(tokens, ids([answer_end_token(policy.tokenizer)])).astype(np.int32)
        out.add(replace(step, token_ids=tokens, stop="eos" if step.done else "stop"))
    return out


def check_same_tokens(trace: Trace, policy: BasePolicy) -> None:
    """Raise if sampled tokens (or, if there are none, any tokens) do not decode to the text of their step."""
    anyone = not any(step.sampled for step in trace.steps)
    for i, step in enumerate(trace.steps):
        body = step.token_ids[:-1] if step.stop == "eos" else step.token_ids
        if step.parent is None or not len(body) or not (step.sampled or anyone):
            continue
        if int(step.token_ids.max()) >= policy.vocab_size or policy.text(body) != step.text:
            raise TaskError(
                f"{trace.problem.id}, step {i} was written with another tokenizer: its tokens do not read as its text "
                "with this model's; take traces of a model with the same tokenizer, or a file of texts"
            )


def split_by_question(traces: Iterable[Trace], tenths: int) -> tuple[list[Trace], list[Trace]]:
    """Training and test traces, by a hash of the question: no question is in both."""
    sides: tuple[list[Trace], list[Trace]] = [], []
    for trace in traces:
        sides[hashes_to_test(problem_key(trace.problem).question, tenths)].append(trace)
    return sides


@dataclass(frozen=True, slots=True)
class RawLabels:
    """Traces with labels as they were read, in no model's tokens, and the name of the score that is their label."""

    traces: list[Trace]
    scorer: str
    filter_report: FilterReport


@dataclass(frozen=True, slots=True)
class LabelledTraces:
    """The training and test data of a reward model."""

    train: list[Trace]
    test: list[Trace]
    scorer: str
    filter_report: FilterReport = field(default_factory=FilterReport)  # how they were chosen


def read_training_labels(
    data: Sequence[str],
    format: str | None = None,
    scorer: str | None = None,
    skip_bad: bool = False,
    needs_scores: bool = True,
    include_held_out: bool = False,
) -> RawLabels:
    """The traces with decided labels. Needs no model, so that a wrong file is reported before one is loaded."""
    report = FilterReport()
    traces, name = read_labelled_traces(data, format, scorer, skip_bad, needs_scores, report, include_held_out)
    report.add("traces", len(traces))
    left = []
    for trace in traces:
        known = [step.scores[name] for step in trace.steps if name in step.scores]
        decided = any(score.value is not None for score in known)
        why = "all undecided" if known else "no score"
        if not needs_scores or report.record(f"with a score by {name!r}", decided, why):
            left.append(trace)
    if not left:
        report.fail(_NO_LABELS.format(name))
    return RawLabels(left, name, report)


def prepare_labels(
    labels: RawLabels,
    policy: BasePolicy,
    places: Callable[[Trace, str], list[tuple[int, float]]],
    held_out_tenths: int,
    separator: str | None = None,
    pairwise: bool = False,
    must_differ: bool = False,
    whole_answers: bool = False,
    train_tenths: int = 10,
    merge_equal: bool = False,
    same_logprobs: bool = False,
    negatives: Negatives = "all",
    seed: int = 0,
) -> LabelledTraces:
    """The traces in the policy's tokens, split into training and test data.

    `places`: the labelled positions of a trace. `pairwise`: answers are compared, so those to one prompt become one
    trace. `must_differ`: raise if all labels are equal. `whole_answers`: no two answers share a step, and no step has
    another reference's log-probabilities beside it. `train_tenths`: of the questions that are not held out, so many
    tenths are learned from. `merge_equal`: of a training problem's answers with the same tokens and label one is kept,
    with their number; with `same_logprobs` only of those that were sampled with the same log-probabilities.
    `negatives`: the wrong answers that are learned from; held-out questions keep all.
    """
    report, name = labels.filter_report, labels.scorer
    ready = [tokenize_trace(trace, policy, separator) for trace in labels.traces]
    if whole_answers:
        ready = [separate_answers(trace) for trace in ready]
    if pairwise:
        ready = merge_by_prompt(ready)
        report.add("prompts", len(ready))
    stage = "with something to learn"
    labelled = [t for t in ready if report.record(stage, bool(places(t, name)), "nothing for this objective")]
    if not labelled:
        report.fail(_NO_LABELS.format(name))
    train, test = split_by_question(labelled, held_out_tenths)
    if train_tenths < 10:
        stage = f"in {train_tenths} tenths of the training questions"
        train = [t for t in train if report.record(stage, _is_chosen(t, train_tenths), "in the others")]
    if not train:
        raise TaskError(f"all {len(labelled)} labelled traces are held out: give more, or --held-out-tenths 0")
    train = choose_negatives(train, name, negatives, seed, report)
    if not train:
        report.fail(
            f"no problem has right and wrong answers, as negatives {negatives!r} need: give more answers to each"
            " problem, or leave out negatives"
        )
    if must_differ:
        _check_labels_differ([target for trace in train for _, target in places(trace, name)], report, name)
    if merge_equal:
        train = [merge_equal_answers(trace, dict(places(trace, name)), same_logprobs) for trace in train]
    return LabelledTraces(train, test, name, report)


def _is_chosen(trace: Trace, tenths: int) -> bool:
    return hashes_to_test(f"learned from {problem_key(trace.problem).question}", tenths)


def _check_labels_differ(targets: Sequence[float], report: FilterReport, name: str) -> None:
    """Raise if all labels are equal: a model would learn to give the same score to everything."""
    if len(set(targets)) > 1:
        return
    report.add("labels to learn from", len(targets))
    value = targets[0]
    cure = {0.0: "an easier task or a better solver, with some right answers", 1.0: "answers that are wrong, too"}
    report.fail(
        f"all {len(targets):,} labels under {name!r} are {value:g}, and a judge would learn to say just that: give "
        + cure.get(value, "labels that tell answers apart")
    )


def merge_by_prompt(traces: Iterable[Trace], max_answers: int = MAX_ANSWERS_PER_TRACE) -> list[Trace]:
    """One trace for each prompt, in order of appearance: files often have a row for each answer.

    Prompts are equal if their messages and tokens are. A prompt with more than `max_answers` answers becomes several
    traces, each with rows from all over the file: the answers of a trace are computed together.
    """
    rows: dict[tuple[str, bytes], list[Trace]] = {}
    for trace in traces:
        rows.setdefault((problem_key(trace.problem).question, trace.steps[0].token_ids.tobytes()), []).append(trace)
    out = []
    for same in rows.values():
        parts = min(len(same), -(-sum(len(t.answers()) or 1 for t in same) // max_answers))
        out += [_merge_traces(same[k::parts]) for k in range(parts)]
    return out


def separate_answers(trace: Trace) -> Trace:
    """The answers of a trace, each on a path of its own below the prompt, without notes of another training."""
    out = Trace(trace.problem, [replace(trace.steps[0])], trace.cost)
    out.oracle = trace.oracle
    for leaf in trace.answers():
        at = 0
        for i in trace.path(leaf)[1:]:
            at = out.add(replace(trace.steps[i], parent=at, cites=(), notes={}, advantages=None))
    return out


def _merge_traces(traces: Sequence[Trace]) -> Trace:
    """One trace with the steps of all of these under the first one's prompt."""
    if len(traces) == 1:
        return traces[0]
    first = traces[0]
    out = Trace(first.problem, [replace(first.steps[0])], sum((t.cost for t in traces), Cost()))
    out.oracle = any(t.oracle for t in traces)
    for trace in traces:
        before = len(out.steps) - 1
        for step in trace.steps[1:]:
            parent = step.parent and step.parent + before
            cites = tuple(i and i + before for i in step.cites)
            out.add(replace(step, parent=parent, cites=cites, notes=dict(step.notes)))
    return out
