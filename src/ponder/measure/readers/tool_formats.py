"""Readers for the log formats of known tools. Each is recognised by its keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ponder.errors import UnknownName
from ponder.measure.readers.attempts import Attempts, ProblemAttempts
from ponder.measure.readers.cell_values import all_cells_parse, parse_cell_number
from ponder.measure.readers.column_aliases import ALL_ALIASES, ColumnMap
from ponder.measure.readers.row_layout import LogRow, to_rows
from ponder.measure.readers.rows_to_attempts import rows_to_attempts
from ponder.types import Cost

LogRows = list[dict[str, Any]]


class LogFormat(NamedTuple):
    name: str
    matches: Callable[[Mapping[str, Any]], bool]  # at the first row
    read: Callable[[str, LogRows, ColumnMap], list[Attempts]]


def read_lm_eval(label: str, data: LogRows, columns: ColumnMap) -> list[Attempts]:
    """`samples_TASK_DATE.jsonl` of lm-evaluation-harness, and of s1's fork of it, with one verdict per sample.

    A filter (strict-match, flexible-extract) is a system of its own: each judges every problem.
    """
    metric = columns.correct or _metric(data)
    tidy: list[LogRow] = []
    for row in data:
        filtered = row.get("filtered_resps")
        one = filtered[0] if isinstance(filtered, list) and filtered else filtered
        fresh: LogRow = {"doc_id": row["doc_id"], "target": row.get("target"), "filter": row.get("filter")}
        fresh["question"] = _question(row)
        if isinstance(each := row.get("exact_matches"), list) and not columns.correct:  # s1: one per sample
            fresh |= {"correct": each, "pred": row.get("extracted_answers"), "texts": _flat(row.get("resps"))}
        else:
            fresh |= {"correct": row.get(metric), "pred": one if isinstance(one, str) else None}
            fresh["texts"] = _first_text(row.get("resps"))
        tidy.append({k: v for k, v in fresh.items() if v is not None})
    known = ColumnMap(id="doc_id", correct="correct", right=columns.right, duplicates=columns.duplicates)
    return _with_note(rows_to_attempts(label, tidy, known), f"lm-eval samples, judged by {metric}")


def _metric(data: LogRows) -> str:
    named = [m for m in data[0].get("metrics") or [] if isinstance(m, str)]
    usual = ("exact_match", "acc", "prompt_level_strict_acc", "pass@1", "exact_matches")
    return next((m for m in (*usual, *named) if m in data[0]), "exact_match")


def _question(row: Mapping[str, Any]) -> str:
    doc = row.get("doc")
    metric = (
        [doc[k] for k in ("question", "problem", "query", "prompt", "text") if k in doc]
        if isinstance(doc, Mapping)
        else []
    )
    return str(metric[0]) if metric else ""


def _flat(nested: Any) -> list[str]:
    return [t for part in nested or [] for t in (part if isinstance(part, list) else [part])]


def _first_text(nested: Any) -> str | None:
    texts = _flat(nested)
    return texts[0] if texts and isinstance(texts[0], str) else None


def read_trl(label: str, data: LogRows, columns: ColumnMap) -> list[Attempts]:
    """Completions that TRL's trainers keep: step, prompt, completion, one column per reward function, advantage.

    A group is a prompt within a step. All rewards are kept as scores; the verdict is the one of them that is right or
    wrong, where there is one.
    """
    apart = {"step", "prompt", "completion", "advantage", "advantages"}
    rewards = [k for k in data[0] if k not in apart and all_cells_parse((r.get(k) for r in data), parse_cell_number)]
    plain = [k for k in rewards if {parse_cell_number(r.get(k)) for r in data} <= {0.0, 1.0, None}]
    accuracy = [k for k in plain if re.search(r"acc|correct", k)] or plain
    verdict = columns.correct or (accuracy[0] if accuracy else "")
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for row in to_rows(data, ALL_ALIASES):
        parts.setdefault(f"step {row['step']}: {row['prompt']}", []).append(row)
    groups = tuple(
        ProblemAttempts(
            problem,
            correct=tuple(parse_cell_number(r.get(verdict)) if verdict else None for r in part),
            scores={k: tuple(parse_cell_number(r.get(k)) for r in part) for k in rewards},
            texts=tuple(str(r["completion"]) for r in part),
            question=str(part[0]["prompt"]),
        )
        for problem, part in parts.items()
    )
    who = f"judged by {verdict}" if verdict else "no reward is right or wrong: name one with --column correct=NAME"
    return [Attempts(label, groups, (f"TRL completions, {who}; rewards: {', '.join(rewards) or 'none'}",))]


_LEVEL = re.compile(r"pred_(naive|weighted|maj)@(\d+)")


def read_search_and_learn(label: str, data: LogRows, columns: ColumnMap) -> list[Attempts]:
    """search-and-learn's outputs: completions with step scores, and what each rule chose among the first n.

    Nothing in them says what is right: completions and choices are compared with the gold answer. Step scores count by
    the last one, as there, unless a column of joined ones is there.
    """
    levels = [k for k in data[0] if _LEVEL.fullmatch(k)]
    rows = [{k: v for k, v in row.items() if not k.startswith("pred")} for row in data]
    scoring = replace(columns, step_score_reduction="last") if columns.step_score_reduction == "min" else columns
    main = rows_to_attempts(
        label, to_rows(rows, ALL_ALIASES), replace(scoring, text="completions", gold=columns.gold or "answer")
    )
    about = [k for k in ("unique_id", "problem", "answer") if k in data[0]]
    chosen = [
        replace(a, derived=True)
        for level in levels
        for a in rows_to_attempts(
            f"{label}: {level}",
            [{**{k: row[k] for k in about}, "chosen": row[level]} for row in data],
            ColumnMap(answer="chosen", gold="answer"),
        )
    ]
    return _with_note(main, "search-and-learn outputs") + chosen


def read_tree_of_thoughts(label: str, data: LogRows, columns: ColumnMap) -> list[Attempts]:
    """Tree of Thoughts' logs: answers `ys`, their verdicts, and what all problems so far cost."""
    tidy = [{k: v for k, v in row.items() if k not in ("steps", "usage_so_far")} for row in data]
    read = rows_to_attempts(label, to_rows(tidy, ALL_ALIASES), columns)
    before, costs, again = dict[str, float](), dict[str, Cost](), list[str]()
    for row in data:
        now = {k: float(v) for k, v in row["usage_so_far"].items()}
        if any(v < before.get(k, 0.0) for k, v in now.items()):  # another process went on, and counts from 0
            before, again = {}, [*again, str(row["idx"])]
        spent = {k: v - before.get(k, 0.0) for k, v in now.items()}
        costs[str(row["idx"])] = Cost(
            prompt_tokens=round(spent.get("prompt_tokens", 0)),
            generated_tokens=round(spent.get("completion_tokens", 0)),
            dollars=spent.get("cost", 0.0),
        )
        before = now
    note = "Tree of Thoughts' log" + (f"; its cost counts anew from problem {', '.join(again)}" if again else "")
    return [a.map_problems(lambda g: replace(g, cost=costs[g.problem])) for a in _with_note(read, note)]


INSPECT_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}  # Inspect's letters: correct, incorrect, partial, no answer


def read_inspect(label: str, data: LogRows, columns: ColumnMap) -> list[Attempts]:
    """Logs of Inspect, written as JSON: samples with an epoch, and what each scorer gave them.

    `columns.correct` names the scorer; else it is the first. A sample that ended in an error has no verdict.
    """
    scorers = list(dict.fromkeys(name for row in data for name in row.get("scores") or {}))
    scorer = columns.correct or next(iter(scorers), "")
    if scorer not in scorers:
        raise UnknownName("scorer", scorer, scorers)
    tidy: list[LogRow] = []
    for row in data:
        score, output = (row.get("scores") or {}).get(scorer) or {}, row.get("output") or {}
        value, usage = score.get("value"), output.get("usage") or {}
        grade = INSPECT_GRADES.get(value, value) if isinstance(value, str) else value
        tidy.append({
            "id": row["id"], "epoch": row["epoch"], "correct": grade, "task_version": row.get("task_version"),
            "pred": score.get("answer"), "target": _first(row.get("target")), "question": _question_text(row["input"]),
            "text": output.get("completion"), "tokens": usage.get("output_tokens"),
        })  # fmt: skip
    known = ColumnMap(id="id", correct="correct", attempt="epoch", right=columns.right, duplicates=columns.duplicates)
    others = [s for s in scorers if s != scorer]
    more = f" (it also has {', '.join(others)}: --column correct=NAME chooses)" if others else ""
    return _with_note(rows_to_attempts(label, tidy, known), f"Inspect's log, judged by {scorer}{more}")


def _first(target: Any) -> Any:
    return target[0] if isinstance(target, list) and target else target


def _question_text(given: Any) -> str:
    """A question, or the last message of a conversation that asks it."""
    return given if isinstance(given, str) else str(given[-1].get("content", "")) if given else ""


def _with_note(attempts: list[Attempts], note: str) -> list[Attempts]:
    return [replace(a, reading_notes=(note, *a.reading_notes)) for a in attempts]


def _has_keys(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: all(k in row for k in keys)


LOG_FORMATS: Sequence[LogFormat] = (
    LogFormat("lm-eval samples", _has_keys("doc_id", "doc", "target", "resps"), read_lm_eval),
    LogFormat("TRL completions", _has_keys("step", "prompt", "completion", "advantage"), read_trl),
    LogFormat("search-and-learn", _has_keys("completions", "scores", "pred", "answer"), read_search_and_learn),
    LogFormat("Tree of Thoughts", _has_keys("idx", "ys", "usage_so_far"), read_tree_of_thoughts),
    LogFormat("Inspect", _has_keys("id", "epoch", "input", "target", "scores"), read_inspect),
)


def inspect_samples(data: Any) -> Any:
    """A log that has its samples under that name, beside what was run; its other tables tell of the run itself."""
    samples = data.get("samples") if isinstance(data, dict) and isinstance(data.get("eval"), dict) else None
    if not (isinstance(samples, list) and samples and all(isinstance(row, dict) for row in samples)):
        return data
    version = data["eval"].get("task_version")
    return samples if version is None else [{**row, "task_version": version} for row in samples]


def detect_log_format(data: Any) -> LogFormat | None:
    if not (isinstance(data, list) and data and all(isinstance(r, dict) for r in data)):
        return None
    return next((f for f in LOG_FORMATS if f.matches(data[0])), None)
