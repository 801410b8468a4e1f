"""Traces over the API, against what `read_traces` reads of the same files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from fake_runs import TASK, StoredJob, right_answer, write_run, wrong_answer
from ponder.runs import Run, read_traces
from ponder.runs.records import RecordWriter
from ponder.trace_json import trace_to_json
from ponder.types import Problem, Score, Step, Trace, ids, prompt_trace, user_messages
from ponder.viewer.api import Api
from ponder.viewer.errors import NotFound
from ponder.viewer.plain_json import RoundedNumbers, to_json
from ponder.viewer.query import Query
from ponder.viewer.row_database import RowDatabase
from ponder.viewer.run_listing import RunLibrary
from ponder.viewer.trace_facts import trace_row
from ponder.viewer.trace_rows import list_traces
from ponder.viewer.trace_view import MAX_STEPS_WITH_TEXT, MAX_TEXT_CHARS, token_pieces, tokens_json, trace_json
from ponder.viewer.tree_view import MAX_SNIPPETS, tree_json
from viewer.real_runs import GROUP_SIZE, STEPS, real_runs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PONDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def api() -> Iterator[Api]:
    yield Api(RunLibrary(real_runs()))


def run_id(api: Api, name: str) -> str:
    return str(next(run["id"] for run in api.get("/api/runs", {})["runs"] if run["name"] == name))


def rows(index: RowDatabase, **query: str) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = list_traces(index, Query({"size": "5000", **query}))["rows"]
    return out


def test_rows_are_of_the_traces_in_order() -> None:
    stored = list(read_traces(real_runs() / "rl"))
    index = RowDatabase(real_runs() / "rl", "accuracy")
    answer = list_traces(index, Query({"size": "10", "page": "1"}))
    assert (answer["total"], answer["complete"]) == (len(stored), True)
    assert [row["number"] for row in answer["rows"]] == list(range(11, 21))
    for row in rows(index):
        step, trace = stored[row["number"] - 1]
        scores = [trace.score(i, "accuracy") for i in trace.answers()]
        assert (row["step"], row["problem_id"], row["question"]) == (step, trace.problem.id, trace.problem.question)
        assert row["reward"] == pytest.approx(np.mean([s for s in scores if s is not None]))
        assert row["completions"] == GROUP_SIZE and row["nodes"] == 1 + GROUP_SIZE and not row["is_tree"]
        assert row["tokens"] == sum(len(s.token_ids) for s in trace.steps[1:])
        assert sum(row["stop"].values()) == GROUP_SIZE
        advantages = np.concatenate([s.advantages for s in trace.steps[1:] if s.advantages is not None])
        assert row["advantage"] == pytest.approx([advantages.min(), advantages.max()], abs=1e-6)


def test_filters_and_sorts() -> None:
    index = RowDatabase(real_runs() / "rl", "accuracy")
    every = rows(index)
    assert [r["number"] for r in rows(index, sort="-number")] == [r["number"] for r in every][::-1]
    assert [r["number"] for r in rows(index, sort="-number", size="3")] == [24, 23, 22]
    for name, key in (("reward", "reward"), ("length", "tokens"), ("ratio", "ratio")):
        assert [r[key] for r in rows(index, sort=name)] == sorted(r[key] for r in every)
        assert [r[key] for r in rows(index, sort=f"-{name}")] == sorted((r[key] for r in every), reverse=True)
    assert [r["step"] for r in rows(index, step="2")] == [2] * (len(every) // STEPS)
    some = every[7]["problem_id"]
    assert {r["problem_id"] for r in rows(index, problem=some)} == {some}
    half = [r["number"] for r in every if r["reward"] >= 0.25]
    assert [r["number"] for r in rows(index, min_reward="0.25")] == half
    assert [r["number"] for r in rows(index, max_reward="0.2")] == [r["number"] for r in every if r["reward"] <= 0.2]
    assert len(rows(index, stop="eos")) == sum("eos" in r["stop"] for r in every) and rows(index, stop="stop") == []
    stored = list(read_traces(real_runs() / "rl"))
    wanted = [n for n, (_, t) in enumerate(stored, 1) if any("18" in s.text for s in t.steps)]
    assert [r["number"] for r in rows(index, text="18")] == wanted
    with pytest.raises(Exception, match="sort is 'x'"):
        rows(index, sort="x")


def test_only_the_blocks_of_a_page_are_decoded() -> None:
    index = RowDatabase(real_runs() / "rl", "accuracy")
    assert 2 <= list_traces(index, Query({"size": "2"}))["indexed"] < len(rows(index))


def test_index_is_kept_and_extended(tmp_path: Path, cache: Path) -> None:
    folder = write_run(tmp_path / "run", [[right_answer(p), wrong_answer(p)] for p in range(3)], steps=[0, 1, 2])
    assert [r["step"] for r in rows(RowDatabase(folder, "accuracy"))] == [0, 1, 2]
    assert len(list((cache / "view").glob("*.sqlite"))) == 1 and not list(folder.glob("*.sqlite*"))
    again = RowDatabase(folder, "accuracy")
    assert again.count("1", ()) == 3, "rows of an earlier viewer"
    trace = next(read_traces(folder))[1]
    with Run(folder, StoredJob(TASK)) as run:
        run.write_traces(3, [trace, trace])
    assert [r["step"] for r in rows(again)] == [0, 1, 2, 3, 3]
    with Run(folder, StoredJob(TASK)) as run:
        run.mark_resumed(1)
        run.write_traces(1, [trace])
    assert [(r["number"], r["step"]) for r in rows(again)] == [(1, 0), (2, 1)], "what was taken back is gone"
    assert [step for step, _ in read_traces(folder)] == [0, 1]


def test_another_file_under_the_same_name_is_indexed_anew(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", [[right_answer(p)] for p in range(3)])
    other = write_run(tmp_path / "b", [[wrong_answer(p)] * 2 for p in range(5)])
    index = RowDatabase(first, "accuracy")
    assert [r["reward"] for r in rows(index)] == [1, 1, 1]
    (first / "traces.bin").write_bytes((other / "traces.bin").read_bytes())
    assert [r["reward"] for r in rows(index)] == [0] * 5
    (first / "traces.bin").unlink()
    assert rows(index) == []


def test_lines_of_an_earlier_version_are_listed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [[right_answer(p)] for p in range(4)])
    traces = [trace for _, trace in read_traces(folder)]
    (folder / "traces.bin").unlink()
    writer = RecordWriter(folder / "traces.jsonl")
    for step, trace in enumerate(traces):
        writer.append({"step": step, **trace_to_json(trace)})
    writer.append({"resumed": 3})
    writer.close()
    index = RowDatabase(folder, "accuracy")
    assert [(r["number"], r["step"], r["reward"]) for r in rows(index)] == [(1, 0, 1), (2, 1, 1), (3, 2, 1)]
    assert trace_to_json(index.read(2)[1]) == trace_to_json(traces[1])
    assert tree_json(index.read_record(2)) == tree_json(stored(traces[1]))


def test_damaged_block_is_reported_and_the_rest_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [[right_answer(p)] for p in range(3)])
    path = folder / "traces.bin"
    data = bytearray(path.read_bytes())
    data[-60] ^= 1  # in the body of the last block
    path.write_bytes(data)
    answer = list_traces(RowDatabase(folder, "accuracy"), Query({"sort": "reward"}))
    assert [row["number"] for row in answer["rows"]] == [1, 2] and "is damaged" in answer["damage"]


def test_damaged_database_is_made_again(tmp_path: Path, cache: Path) -> None:
    folder = write_run(tmp_path / "run", [[right_answer(p)] for p in range(3)])
    rows(RowDatabase(folder, "accuracy"))
    next((cache / "view").glob("*.sqlite")).write_bytes(b"no database" * 1000)
    assert len(rows(RowDatabase(folder, "accuracy"))) == 3


def test_trace_holds_steps_scores_and_completions(api: Api) -> None:
    run = run_id(api, "rl")
    stored = list(read_traces(real_runs() / "rl"))
    answer = api.get(f"/api/runs/{run}/traces/3", {})
    trace = stored[2][1]
    assert [step["text"] for step in answer["steps"]] == [step.text for step in trace.steps]
    assert answer["completions"] == [[0, i] for i in range(1, GROUP_SIZE + 1)] and answer["verifier"] == "accuracy"
    assert answer["steps"][1]["scores"]["accuracy"]["value"] == trace.score(1, "accuracy")
    assert answer["problem"]["id"] == trace.problem.id and answer["cost"]["generated_tokens"] > 0
    with pytest.raises(NotFound, match="there is no trace 25: the run has 24"):
        api.get(f"/api/runs/{run}/traces/25", {})


def test_trace_names_those_beside_it(api: Api) -> None:
    run = run_id(api, "rl")
    beside = {n: api.get(f"/api/runs/{run}/traces/{n}", {}) for n in (1, 3, 24)}
    assert {n: (answer["previous"], answer["next"]) for n, answer in beside.items()} == {
        1: (None, 2), 3: (2, 4), 24: (23, None),
    }  # fmt: skip


def test_tokens_are_columns_with_texts(api: Api) -> None:
    run = run_id(api, "rl")
    trace = list(read_traces(real_runs() / "rl"))[4][1]
    answer = api.get(f"/api/runs/{run}/traces/5/tokens", {"leaf": "2"})
    count = len(trace.steps[0].token_ids) + len(trace.steps[2].token_ids)
    assert answer["ids"] == trace.token_ids(2).tolist() and answer["path"] == [0, 2]
    assert answer["sampled"] == [False] * len(trace.steps[0].token_ids) + [True] * len(trace.steps[2].token_ids)
    assert {"logprobs", "advantages", "entropy", "reference", "ratio", "version", "texts", "step"} <= set(answer)
    assert all(len(answer[name]) == count for name in ("logprobs", "ratio", "texts", "step", "version"))
    assert answer["logprobs"][-1] == pytest.approx(float(trace.steps[2].logprobs[-1]), abs=1e-6)
    ratio = np.exp(trace.steps[2].logprobs - trace.steps[2].notes["reference"])
    assert answer["ratio"][-len(ratio) :] == pytest.approx(ratio.tolist(), abs=1e-5)
    assert "".join(answer["texts"]).startswith(trace.steps[0].text + trace.steps[2].text)


def test_ratio_is_sampled_over_reference_whatever_notes_are_called() -> None:
    trace = prompt_trace(TASK.test[0], ids([1]))
    notes = {"reference": np.float32([-2, -1]), "ratio": np.float32([7, 8]), "logprobs": np.float32([3, 4])}
    trace.add(Step(0, "ab", ids([3, 4]), np.float32([-1, -1]), "eos", notes=notes))
    answer = tokens_json(trace, None, None)
    assert answer["ratio"] == [None, pytest.approx(np.e, rel=1e-5), 1.0]
    assert answer["notes/ratio"] == [None, 7.0, 8.0] and answer["notes/logprobs"] == [None, 3.0, 4.0]
    assert answer["logprobs"] == [None, -1.0, -1.0]


def test_token_pieces_join_characters_of_several_tokens() -> None:
    texts = [b"a", "é".encode()[:1], "é".encode()[1:], b"\xff", b"<|end|>"]
    assert token_pieces([0, 1, 2, 0, 4], texts) == ["a", "", "é", "a", "<|end|>"]
    assert "".join(token_pieces([0, 3, 0, 99, -1, 1], texts)) == "a\ufffda\ufffd"


def test_tokens_without_texts_have_pieces() -> None:
    trace = prompt_trace(TASK.test[0], ids([1, 2]))
    trace.add(Step(0, "four", ids([3, 4, 5]), np.float32([-1, np.nan, -np.inf]), "eos"))
    answer = tokens_json(trace, None, None)
    assert [piece["text"] for piece in answer["pieces"]] == [trace.steps[0].text, "four"] and "texts" not in answer
    assert answer["logprobs"] == [None, None, -1.0, None, None]
    with pytest.raises(NotFound, match="there is no step 7"):
        tokens_json(trace, 7, None)


def stored(trace: Trace) -> dict[str, Any]:
    """As a run directory has it."""
    return trace_to_json(trace, lambda name, array: len(array))


def test_tree_is_columns_in_order_of_growth(api: Api) -> None:
    run = run_id(api, "mcts")
    trace = next(read_traces(real_runs() / "mcts"))[1]
    tree = api.get(f"/api/runs/{run}/traces/1/tree", {})
    assert tree["parent"] == [-1 if s.parent is None else s.parent for s in trace.steps]
    assert tree["visits"] == [s.visits for s in trace.steps] and tree["chosen"] == trace.chosen
    assert tree["depth"] == [len(trace.path(i)) - 1 for i in range(len(trace.steps))]
    assert tree["tokens"] == [len(s.token_ids) for s in trace.steps]
    for name in ("value", "prior"):
        assert tree[name] == pytest.approx([getattr(s, name) for s in trace.steps], abs=1e-6)
    scores = [next(iter(s.scores.values())).value if s.scores else None for s in trace.steps]
    assert [score is None for score in tree["score"]] == [score is None for score in scores]
    assert [score or 0 for score in tree["score"]] == pytest.approx([score or 0 for score in scores], abs=1e-6)
    assert trace.chosen is not None and tree["on_path"] == trace.path(trace.chosen)
    node = api.get(f"/api/runs/{run}/traces/1/node/{trace.chosen}", {})
    assert node["text"] == trace.steps[trace.chosen].text and node["prompt"] == trace.steps[0].text
    assert node["chosen"] and api.get(f"/api/runs/{run}/traces", {})["rows"][0]["nodes"] == len(trace.steps)


def test_reasons_of_pruned_steps_are_written_once() -> None:
    trace = prompt_trace(TASK.test[0], ids([1]))
    for i in range(6):
        trace.add(
            Step(
                0, str(i), ids([i]), np.float32([-1]), pruned="too long" if i % 2 else "", cites=(1,) if i == 5 else ()
            )
        )
    tree = tree_json(stored(trace))
    assert tree["reasons"] == ["too long"] and tree["pruned"] == [-1, -1, 0, -1, 0, -1, 0]
    assert tree["cites"] == [[6, 1]]


@pytest.mark.parametrize("parent", [1, 7, -1, 0.0, "0", True])
def test_tree_with_a_parent_that_does_not_exist_is_refused(parent: Any) -> None:
    trace = prompt_trace(TASK.test[0], ids([1]))
    trace.add(Step(0, "a", ids([2]), np.float32([-1])))
    record = stored(trace)
    record["steps"][1]["parent"] = parent
    with pytest.raises(ValueError, match="step 1 names a parent"):
        tree_json(record)


@pytest.mark.parametrize("size", [-1, 10**400, True, None])
def test_tree_with_a_token_count_that_is_none_is_refused(size: Any) -> None:
    record = stored(prompt_trace(TASK.test[0], ids([1])))
    record["steps"][0]["token_ids"] = size
    with pytest.raises((ValueError, TypeError)):
        tree_json(record)


def test_numbers_of_a_tree_that_are_none_become_null() -> None:
    """Alone, or beside numbers of other kinds: no value of one step changes another's."""
    for odd in ("many", [1], True, 10**400, 1e301, None):
        trace = prompt_trace(TASK.test[0], ids([1]))
        for value in (0.25, odd, 3):
            trace.add(Step(0, "a", ids([2]), np.float32([-1]), value=value))  # type: ignore[arg-type]
            trace.steps[-1].visits = 5
        tree = tree_json(json.loads(json.dumps(stored(trace))))
        assert tree["value"] == [0, 0.25, None, 3] and tree["visits"] == [0, 5, 5, 5]
        assert json.loads(to_json(tree)) == tree


def test_rounded_numbers_are_read_back_as_they_were() -> None:
    values = np.float64([0.1234567, -1e-9, 0, 3, -2.5, 1e9 / 7, 1e22, np.nan, np.inf, -np.inf])
    column = RoundedNumbers.of(values)
    assert column == [0.123457, 0, 0, 3, -2.5, round(1e9 / 7, 6), 1e22, None, None, None]
    value = {'a"b': column, "none": RoundedNumbers.of(np.zeros(0)), "text": "\ud800", "list": [1, None]}
    assert json.loads(to_json(value)) == value


def test_large_trace_leaves_out_texts() -> None:
    trace = prompt_trace(TASK.test[0], ids([1]))
    trace.steps[0].text = "x" * (MAX_TEXT_CHARS + 1)
    assert (
        trace_json(1, 0, trace, "")["steps"][0]["cut"]
        and len(trace_json(1, 0, trace, "")["steps"][0]["text"]) == MAX_TEXT_CHARS
    )
    assert len(trace_json(1, 0, trace, "", whole=True)["steps"][0]["text"]) == MAX_TEXT_CHARS + 1
    for i in range(MAX_STEPS_WITH_TEXT):
        trace.add(Step(i if i % 2 else 0, "t", ids([1]), np.float32([-1])))
    answer = trace_json(1, 0, trace, "")
    assert answer["is_large"] and "text" not in answer["steps"][5]
    for _ in range(MAX_SNIPPETS):
        trace.add(Step(0, "t", ids([1]), np.float32([-1])))
    assert "snippet" not in tree_json(stored(trace)) and len(tree_json(stored(trace))["parent"]) == len(trace.steps)


def test_search_finds_texts_and_goes_on(api: Api) -> None:
    run = run_id(api, "rl")
    stored = list(read_traces(real_runs() / "rl"))
    wanted = [n for n, (_, t) in enumerate(stored, 1) if any("1" in s.text for s in t.steps)]
    first = api.get("/api/search", {"run": run, "q": "1", "limit": "2"})
    assert [hit["number"] for hit in first["hits"]] == wanted[:2] and not first["complete"]
    rest = api.get("/api/search", {"run": run, "q": "1", "limit": "100", "start": str(first["next"])})
    assert [hit["number"] for hit in first["hits"] + rest["hits"]] == wanted and rest["complete"]
    assert all("1" in hit["snippet"] for hit in rest["hits"])


def test_hostile_trace_is_a_row_and_json() -> None:
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    tags = {"deep": deep, "nan": float("nan"), "big": 10**400}
    problem = replace(TASK.test[0], messages=[{**m} for m in TASK.test[0].messages], tags=tags)
    trace = Trace(problem, [Step(None, "\ud800 half", ids([1]))], chosen=99)
    step = Step(0, "<script>alert(1)</script>", ids([2]), np.float32([np.nan]), "eos", cites=(5, -1, "x"))  # type: ignore[arg-type]
    step.scores = {"s": Score(None, "r" * 100_000)}
    step.visits, step.value = "many", float("inf")  # type: ignore[assignment]
    trace.add(step)
    for value in (
        trace_row(1, 0, trace, ""),
        trace_json(1, 0, trace, ""),
        tree_json(stored(trace)),
        tokens_json(trace, 1, None),
    ):
        assert json.loads(to_json(value))
    assert tree_json(stored(trace))["cites"] == [] and tree_json(stored(trace))["chosen"] is None
    trace.problem.messages[0].pop("role")  # type: ignore[attr-defined]
    assert trace_row(1, 0, trace, "")["failed"].startswith("this trace holds something else")


def test_completion_of_an_episode_has_all_turns_also_after_a_further_prompt() -> None:
    trace = prompt_trace(Problem("p", user_messages("q")), ids([1]))
    first = trace.add(Step(0, "look", ids([2]), np.zeros(1, np.float32), stop="stop"))
    told = trace.add(Step(first, "a wall", ids([3]), turn=True))
    second = trace.add(Step(told, "left", ids([4]), np.zeros(1, np.float32), stop="stop"))
    again = trace.add(Step(None, "the door", ids([1, 5]), cites=(second,), turn=True))  # the template rewrote history
    trace.add(Step(again, "out", ids([6]), np.zeros(1, np.float32), stop="eos"))
    shown = trace_json(0, 0, trace, "reward")
    (path,) = shown["completions"]
    turns = [(shown["steps"][i]["text"], shown["steps"][i]["turn"]) for i in path[1:]]
    assert turns == [("look", False), ("a wall", True), ("left", False), ("the door", True), ("out", False)]
