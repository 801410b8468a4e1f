"""Logs of known tools: what they publish comes out of what they wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_runs import right_answer, write_run, wrong_answer
from ponder.errors import UnknownName, UsageError
from ponder.measure.readers import LOGPROB_COLUMN, ColumnMap, attempts_to_traces, read_log, read_logs
from ponder.measure.readers.attempts_to_traces import read_tree_of_thoughts_traces
from ponder.measure.statistics.decision_rules import apply_rule
from ponder.measure.statistics.passk import pass_at_k
from ponder.pipelines.replay import StoredAttempts
from ponder.pipelines.replay_search import replay_search
from ponder.reason.operators.cut import CUTS
from ponder.reason.strategies import BeamSearch
from ponder.types import Cost, Sampling

LOGS = "logs"


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


# Published logs


@pytest.mark.parametrize(("part", "one", "five"), [("input", 35.95, 44.99), ("output", 34.21, 40.29)])
def test_faithful_cruxeval(data: Path, part: str, one: float, five: float) -> None:
    (log,) = read_log(data / LOGS / "cruxeval" / f"scored_codellama7b_t0.2_{part}.json")
    n, c = log.counts
    assert len(n) == 800 and set(n) == {10}
    assert 100 * pass_at_k(n, c, 1).mean() == pytest.approx(one, abs=0.005)
    assert 100 * pass_at_k(n, c, 5).mean() == pytest.approx(five, abs=0.005)
    written = json.loads((data / LOGS / "cruxeval" / f"scored_codellama7b_t0.2_{part}.json").read_text())
    assert 100 * pass_at_k(n, c, 5).mean() == pytest.approx(written["pass_at_5"], abs=1e-9)
    assert log.groups[0].texts == tuple(written["raw_generations"][log.groups[0].problem])


def test_faithful_cruxeval_without_verdicts_is_refused(data: Path) -> None:
    with pytest.raises(UsageError, match="no column says which attempts are right"):
        read_log(data / LOGS / "cruxeval" / "gen_codellama7b_t0.2_input.json")


def test_faithful_gsm8k_verifier(data: Path) -> None:
    log = read_log(data / LOGS / "gsm8k_verifier" / "example_model_solutions.jsonl")
    means = [100 * np.mean([m for m in s.means if m is not None]) for s in log]
    assert [s.name.rpartition(": ")[2] for s in log] == [
        "6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"
    ]  # fmt: skip
    assert means == pytest.approx([21.68, 39.04, 34.72, 56.25], abs=0.005)
    assert {len(s.groups) for s in log} == {1319}


def test_faithful_qwen_math_rm(data: Path) -> None:
    (log,) = read_log(data / LOGS / "qwen_math_rm" / "math_cot_100.jsonl")
    first = [log.map_problems(lambda g, k=k: g.first_k(k)) for k in (1, 2, 4, 8)]  # type: ignore[misc]

    def right(method: Any) -> list[float]:
        return [sum(w or 0 for w in apply_rule(a, method)) for a in first]

    assert right("majority") == [90, 90, 93, 93]
    assert right("best") == [90, 93, 93, 94]
    assert right("any") == [90, 94, 95, 96]


def test_faithful_tree_of_thoughts_samples(data: Path) -> None:
    folder = data / LOGS / "tree_of_thoughts_game24"
    for part, mean, some in (("standard", 7.34, 33), ("cot", 4.03, 49)):
        (log,) = read_log(folder / f"gpt-4_0.7_naive_{part}_sample_100_start900_end1000.json")
        assert 100 * np.mean([m for m in log.means if m is not None]) == pytest.approx(mean, abs=0.005)
        assert sum(w or 0 for w in apply_rule(log, "any")) == some


def test_faithful_tree_of_thoughts_trees(data: Path) -> None:
    path = data / LOGS / "tree_of_thoughts_game24" / "gpt-4_0.7_propose1_value3_greedy5_start900_end1000.json"
    (log,) = read_log(path)
    assert sum(w or 0 for w in apply_rule(log, "any")) == 69
    assert log.cost is not None
    assert log.cost.dollars == pytest.approx(74.50962, abs=1e-6), "what the log says at its end"
    rows = json.loads(path.read_text())
    levels = [level for row in rows for level in row["steps"]]
    assert len(levels) == 400
    assert all(kept(level, 5) == level["select_new_ys"] for level in levels)


def test_faithful_tree_of_thoughts_as_traces(data: Path) -> None:
    path = data / LOGS / "tree_of_thoughts_game24" / "gpt-4_0.7_propose1_value3_greedy5_start900_end1000.json"
    rows, traces = json.loads(path.read_text()), read_tree_of_thoughts_traces(path)
    assert len(traces) == 100
    for row, trace in zip(rows, traces, strict=True):
        answers = trace.answers()
        assert sorted(trace.text(i) for i in answers) == sorted(set(row["ys"]))
        assert {trace.text(i): trace.score(i, "accuracy") for i in answers} == {
            y: float(info["r"]) for y, info in zip(row["ys"], row["infos"], strict=True)
        }
        proposed = sum(len(level["new_ys"]) for level in row["steps"])
        assert len(trace.steps) == 1 + proposed
    solved = [any(t.score(i, "accuracy") == 1 for i in t.answers()) for t in traces]
    assert sum(solved) == 69


def kept(level: dict[str, Any], count: int) -> list[str]:
    """What breadth-first search keeps by its values: the highest, first seen first among equals."""
    ranked = sorted(range(len(level["values"])), key=lambda i: -level["values"][i])
    return [level["new_ys"][i] for i in ranked[:count]]


# Formats


def lm_eval_rows(filter: str, flags: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {
            "doc_id": i, "doc": {"question": f"q{i}", "answer": f"#### {i}"}, "target": f"#### {i}",
            "arguments": {"gen_args_0": {"arg_0": f"q{i}", "arg_1": {"until": ["Q:"]}}}, "resps": [[f"so {i}"]],
            "filtered_resps": [str(i)], "filter": filter, "metrics": ["exact_match"], "doc_hash": "d",
            "prompt_hash": "p", "target_hash": "t", "exact_match": flag,
        }
        for i, flag in enumerate(flags)
    ]  # fmt: skip


def test_lm_eval_filters_are_systems(tmp_path: Path) -> None:
    rows = lm_eval_rows("strict-match", [1.0, 0.0, 0.0]) + lm_eval_rows("flexible-extract", [1.0, 1.0, 0.0])
    strict, flexible = read_log(write_lines(tmp_path / "samples_gsm8k_2025-01-01.jsonl", rows))
    assert strict.name.endswith("strict-match") and flexible.name.endswith("flexible-extract")
    assert strict.counts[1].tolist() == [1, 0, 0]
    assert flexible.counts[1].tolist() == [1, 1, 0]
    assert strict.groups[0].answers == ("0",)
    assert strict.groups[1].texts == ("so 1",)
    assert strict.groups[1].question == "q1"
    assert "lm-eval samples" in strict.reading_notes[0]


def test_lm_eval_by_log_likelihood(tmp_path: Path) -> None:
    rows = [
        {
            "doc_id": i, "doc": {"query": "q"}, "target": 1, "arguments": [["q", " a"], ["q", " b"]],
            "resps": [[[-1.0, False]], [[-2.0, False]]], "filtered_resps": [[-1.0, False], [-2.0, False]],
            "acc": float(i % 2), "acc_norm": 1.0,
        }
        for i in range(4)
    ]  # fmt: skip
    (log,) = read_log(write_lines(tmp_path / "samples_arc.jsonl", rows))
    assert log.counts[1].tolist() == [0, 1, 0, 1]
    (other,) = read_log(tmp_path / "samples_arc.jsonl", ColumnMap(correct="acc_norm"))
    assert other.counts[1].sum() == 4


def test_s1_samples_have_a_verdict_each(tmp_path: Path) -> None:
    rows = [
        {
            "doc_id": i, "doc": {"problem": "p"}, "target": "7", "resps": [["a", "b", "c"]],
            "filtered_resps": [["a", "b", "c"]], "exact_match": 1, "exact_matches": [1, 0, i],
            "extracted_answers": ["7", "8", "7"], "cov@3": 1, "maj@3": 1,
        }
        for i in range(2)
    ]  # fmt: skip
    (log,) = read_log(write_lines(tmp_path / "samples_aime.jsonl", rows))
    assert log.counts[0].tolist() == [3, 3]
    assert log.counts[1].tolist() == [1, 2]
    assert log.groups[0].answers == ("7", "8", "7")
    assert log.groups[0].texts == ("a", "b", "c")


def test_trl_completions_by_step_and_prompt(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {
            "step": step, "prompt": [{"role": "user", "content": p}],
            "completion": [{"role": "assistant", "content": "x"}],
            "accuracy_reward": float(i), "length_reward": -0.5 * i, "advantage": 0.1,
        }
        for step in (1, 2) for p in ("a", "b") for i in range(2)
    ]  # fmt: skip
    for step in (1, 2):
        table = pyarrow.Table.from_pylist([r for r in rows if r["step"] == step])
        parquet.write_table(table, tmp_path / f"completions_{step:05d}.parquet")
    (log,) = read_log(tmp_path)
    assert log.problems == ["step 1: a", "step 1: b", "step 2: a", "step 2: b"]
    assert log.counts[1].tolist() == [1, 1, 1, 1]
    assert log.groups[0].scores == {"accuracy_reward": (0.0, 1.0), "length_reward": (0.0, -0.5)}
    assert log.groups[0].texts == ("x", "x")


def test_search_and_learn_is_judged_and_its_choices_are_systems(tmp_path: Path) -> None:
    rows = [
        {
            "unique_id": f"u{i}", "problem": f"q{i}", "answer": "12",
            "completions": [r"\boxed{12}", r"\boxed{3}", "?", r"\boxed{3}"],
            "scores": [[0.9, 0.2], [0.1, 0.8], [0.5], [0.4]], "pred": r"\boxed{3}", "completion_tokens": [5, 6, 7, 8],
            "pred_naive@2": r"\boxed{3}", "pred_maj@1": r"\boxed{12}", "pred_maj@4": r"\boxed{3}",
        }
        for i in range(3)
    ]  # fmt: skip
    path = write_lines(tmp_path / "best_of_n_completions.jsonl", rows)
    main, *chosen = read_log(path)
    assert main.groups[0].correct == (1.0, 0.0, 0.0, 0.0)
    assert main.groups[0].scores["score"] == (0.2, 0.8, 0.5, 0.4), "by the last step, as the tool does"
    assert main.groups[0].tokens == (5, 6, 7, 8)
    assert main.groups[0].answers == ("12", "3", None, "3")
    assert [s.name.rpartition(": ")[2] for s in chosen] == ["pred_naive@2", "pred_maj@1", "pred_maj@4"]
    assert [s.counts[1].tolist() for s in chosen] == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]
    assert [s.name for s in read_logs([path])] == [main.name], "what was chosen is shown where it is asked for"
    (level,) = read_logs([f"{path}::pred_maj@1"])
    assert level.counts[1].tolist() == [1, 1, 1]


# Runs


def test_a_run_is_read_as_it_was_judged(tmp_path: Path) -> None:
    answers = [
        [right_answer(0), wrong_answer(0)],
        [wrong_answer(1), wrong_answer(1, 2)],
        [right_answer(2), right_answer(2)],
    ]
    path = write_run(tmp_path / "run", answers, scores=[[0.1, 0.9]] * 3, logprobs=[[-0.1, -0.2]] * 3, chosen=[1, 0, 1])
    (log,) = read_log(path)
    assert [g.correct for g in log.groups] == [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0)]
    assert log.groups[0].answers is not None and log.groups[0].answers[0] != log.groups[0].answers[1]
    assert log.groups[0].scores["rm"] == (0.1, 0.9)
    assert log.groups[0].scores[LOGPROB_COLUMN] == pytest.approx((-0.1, -0.2))
    assert log.groups[0].tokens == (3, 4)
    assert [g.chosen for g in log.groups] == [1, 0, 1]
    assert log.cost == Cost(prompt_tokens=12, generated_tokens=90, flops=6e12, seconds=1.5)
    (other,) = read_log(path, ColumnMap(correct="rm"))
    assert other.groups[0].correct == (0.1, 0.9)
    with pytest.raises(UsageError, match="no scores of 'prm'"):
        read_log(path, ColumnMap(correct="prm"))


def test_a_training_runs_groups_are_by_step(tmp_path: Path) -> None:
    (log,) = read_log(
        write_run(
            tmp_path / "run",
            [[right_answer(0)], [wrong_answer(0)], [right_answer(0)]][:2] * 3,
            steps=[0, 0, 1, 1, 1, 1],
        )
    )
    assert len(log.groups) == 6 and len(set(log.problems)) == 6
    assert log.problems[0].startswith("step 1: ")


def test_attempts_of_any_log_become_traces(tmp_path: Path) -> None:
    rows = [
        {
            "id": 1,
            "question": "2+2?",
            "gold": "4",
            "correct": [True, False],
            "response": ["4", "5"],
            "reward": [0.9, 0.1],
        }
    ]
    (trace,) = attempts_to_traces(read_log(write_lines(tmp_path / "a.jsonl", rows))[0])
    assert trace.problem.question == "2+2?" and trace.problem.answer == "4"
    assert [trace.text(i) for i in trace.answers()] == ["4", "5"]
    assert [trace.score(i, "accuracy") for i in trace.answers()] == [1.0, 0.0]
    assert [trace.score(i, "score") for i in trace.answers()] == [0.9, 0.1]
    (bare,) = read_log(write_lines(tmp_path / "b.jsonl", [{"id": 1, "correct": [True, False]}]))
    with pytest.raises(UsageError, match="no texts"):
        attempts_to_traces(bare)


def test_inspect_logs_are_judged_by_their_scorer(tmp_path: Path) -> None:
    def sample(i: int, epoch: int, value: str, **more: Any) -> dict[str, Any]:
        scores = {"match": {"value": value, "answer": "3"}, "model_graded": {"value": "I", "answer": "3"}}
        asked = {"id": i, "epoch": epoch, "input": [{"role": "user", "content": f"q{i}"}], "target": "3"}
        output = {"completion": "so 3", "usage": {"output_tokens": 10 + epoch}}
        return {**asked, "output": output, "scores": scores, **more}

    rows = [sample(1, 1, "C"), sample(1, 2, "I"), sample(2, 1, "N"), sample(2, 2, "C", scores=None, error={"m": "x"})]
    log = {"version": 2, "status": "success", "eval": {"task_version": 3}, "stats": {"x": [{"a": 1}]}, "samples": rows}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log))
    (attempts,) = read_log(path)
    assert [g.correct for g in attempts.groups] == [(1.0, 0.0), (0.0, None)]
    assert attempts.groups[0].tokens == (11, 12) and attempts.groups[0].question == "q1"
    assert attempts.task == "task_version 3"
    assert "judged by match (it also has model_graded" in attempts.reading_notes[0]
    (other,) = read_log(path, ColumnMap(correct="model_graded"))
    assert other.means == [0.0, 0.0]
    with pytest.raises(UnknownName, match="model_graded"):
        read_log(path, ColumnMap(correct="model_grade"))


def test_replay_searches_the_trees_of_a_tree_of_thoughts_log(tmp_path: Path) -> None:
    """Two proposals, of which the higher value is kept and continued; a beam goes the same way by the stored values."""
    rows = []
    for i, solved in enumerate((1, 0, 1)):
        levels = [
            {"x": "1 2 3 4", "ys": [""], "new_ys": ["a\n", "b\n"], "values": [1.0, 9.0], "select_new_ys": ["b\n"]},
            {"x": "1 2 3 4", "ys": ["b\n"], "new_ys": ["b\nc\n", "b\nd\n"], "values": [8.0, 2.0],
             "select_new_ys": ["b\nc\n", "b\nd\n"]},
        ]  # fmt: skip
        rows.append({"idx": i, "ys": ["b\nc\n", "b\nd\n"], "infos": [{"r": solved}, {"r": 0}], "steps": levels,
                     "usage_so_far": {"completion_tokens": 5 * (i + 1), "prompt_tokens": 1, "cost": 0.0}})  # fmt: skip
    path = tmp_path / "tot.json"
    path.write_text(json.dumps(rows))
    stored = StoredAttempts.read(str(path))
    assert [len(t.steps) for t in stored.trees] == [5, 5, 5] and len(stored.traces[0].steps) == 3
    assert stored.trees[0].cost.generated_tokens == 5
    beam = BeamSearch(n=2, beam_width=2, cut=CUTS["line"], choose="best", sampling=Sampling(max_tokens=100))
    report = replay_search(stored, beam, "beam-search", "value")
    assert report.problems == 3 and not report.not_replayable
    assert report.after.mean == pytest.approx(2 / 3)
