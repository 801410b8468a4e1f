"""Metrics by byte offset, previews, and what the list says of a run, against `read_metrics` of the same file."""

from __future__ import annotations

import http.client
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from fake_runs import TASK, StoredJob
from ponder.runs import Run, read_metrics
from ponder.runs.run_summary import read_headline, summarize_run
from ponder.viewer import run_listing
from ponder.viewer.api import Api
from ponder.viewer.errors import NotFound
from ponder.viewer.metric_lines import MAX_METRICS
from ponder.viewer.metric_scan import MetricScan
from ponder.viewer.metric_slices import MAX_EXACT_BYTES, MetricSlices, preview, previews
from ponder.viewer.run_listing import RunLibrary
from viewer.live_viewer import live_viewer
from viewer.real_runs import STEPS, copy_runs, real_runs


def write_steps(folder: Path, steps: range, resumed: int | None = None, **more: float) -> None:
    with Run(folder, StoredJob(TASK)) as run:
        if resumed is not None:
            run.mark_resumed(resumed, "the disk was full")
        for step in steps:
            run.write_metrics(step, {"reward": step / 100, "num_tokens": 10.0 * step, "step_time": 0.5, **more})


def rows_of(answer: dict[str, Any]) -> list[dict[str, float]]:
    """Columns as rows, as `read_metrics` gives them."""
    names = [name for name in answer["columns"] if not name.startswith("x/")]
    return [
        {"step": step} | {name: v for name in names if (v := answer["columns"][name][i]) is not None}
        for i, step in enumerate(answer["steps"])
    ]


def test_slice_holds_what_read_metrics_reads() -> None:
    folder = real_runs() / "rl"
    answer = MetricSlices().slice(folder)
    stored = [{k: v for k, v in row.items() if not math.isnan(v)} for row in read_metrics(folder)]
    assert rows_of(answer) == stored and not answer["reset"] and answer["complete"]
    assert answer["offset"] == (folder / "metrics.jsonl").stat().st_size
    assert answer["columns"]["x/tokens"] == [row["num_tokens"] for row in stored]
    assert answer["columns"]["x/flops"] == [row["flops"] for row in stored] == sorted(row["flops"] for row in stored)
    seconds = [sum(row["step_time"] for row in stored[: i + 1]) for i in range(STEPS)]
    assert answer["columns"]["x/seconds"] == pytest.approx(seconds)


def test_slice_after_offset_holds_only_new_rows(tmp_path: Path) -> None:
    write_steps(tmp_path / "run", range(5))
    slices = MetricSlices()
    first = slices.slice(tmp_path / "run")
    assert slices.slice(tmp_path / "run", first["offset"])["steps"] == []
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":5,"rew')  # a line that is being written
    assert slices.slice(tmp_path / "run", first["offset"])["steps"] == []
    write_steps(tmp_path / "run", range(5, 7))
    more = slices.slice(tmp_path / "run", first["offset"])
    assert (more["steps"], more["reset"]) == ([5, 6], False)
    assert more["columns"]["x/seconds"] == [3.0, 3.5], "seconds go on where the first slice ended"
    assert MetricSlices().slice(tmp_path / "run", first["offset"])["steps"] == list(range(7)), "unknown offset: anew"


def test_slice_after_resumption_is_everything_anew(tmp_path: Path) -> None:
    write_steps(tmp_path / "run", range(6))
    slices = MetricSlices()
    offset = slices.slice(tmp_path / "run")["offset"]
    write_steps(tmp_path / "run", range(3, 5), resumed=3, extra=1.0)
    again = slices.slice(tmp_path / "run", offset)
    assert again["reset"] and again["steps"] == [0, 1, 2, 3, 4]
    assert again["columns"]["extra"] == [None, None, None, 1.0, 1.0]
    assert again["columns"]["x/seconds"] == [0.5, 1.0, 1.5, 2.0, 2.5], "rows that were taken back do not count"
    assert rows_of(again) == read_metrics(tmp_path / "run")
    assert slices.slice(tmp_path / "run", offset + 10**6)["reset"], "a file that shrank"


def test_small_preview_is_exact_and_large_one_sampled(tmp_path: Path) -> None:
    write_steps(tmp_path / "run", range(300))
    path = tmp_path / "run" / "metrics.jsonl"
    small = preview(tmp_path / "run", ("reward",), 20)
    assert not small["sampled"] and len(small["steps"]) == 20 == len(small["columns"]["reward"])
    assert (small["steps"][0], small["steps"][-1]) == (0, 299)
    assert min(small["columns"]["reward"]) == 0 and max(small["columns"]["reward"]) == pytest.approx(2.99)
    spike = path.read_bytes().replace(b'"reward":1.5,', b'"reward":77.5,')
    path.write_bytes(spike)
    assert max(preview(tmp_path / "run", ("reward",), 20)["columns"]["reward"]) == 77.5, "no peak is lost"
    line = b'{"step":%d,"time":1.0,"reward":%d,"filler":"' + b"x" * 300 + b'"}\n'
    path.write_bytes(b"".join(line % (i, i) for i in range(MAX_EXACT_BYTES // 300)))
    large = preview(tmp_path / "run", ("reward",), 50)
    assert large["sampled"] and 40 <= len(large["steps"]) <= 50
    assert large["steps"] == sorted(set(large["steps"])) == [int(v) for v in large["columns"]["reward"]]
    assert large["steps"][0] == 0 and large["steps"][-1] == MAX_EXACT_BYTES // 300 - 1
    assert preview(tmp_path / "run", (), 50)["columns"]["reward"] == large["columns"]["reward"], "parsed and searched"


def test_previews_of_many_runs_share_their_points() -> None:
    folder = real_runs()
    both = previews({"a": folder / "rl", "b": folder / "sft", "c": folder / "mcts"}, ("reward", "loss"), 10)
    assert set(both["a"]["columns"]) == {"reward", "loss", "x/tokens", "x/flops", "x/seconds"}
    assert "loss" in both["b"]["columns"] and both["c"]["steps"] == []


def test_preview_of_runs_of_which_one_is_gone_has_the_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_steps(tmp_path / name, range(3))
    api = Api(RunLibrary(tmp_path))
    known = {run["name"]: run["id"] for run in api.get("/api/runs", {})["runs"]}
    shutil.rmtree(tmp_path / "a")
    runs = api.get("/api/metrics/preview", {"runs": f"{known['a']},{known['b']}", "names": "reward"})["runs"]
    assert runs[known["b"]]["steps"] == [0, 1, 2]
    assert runs[known["a"]]["steps"] == [] and "there is no such run" in runs[known["a"]]["error"]
    with pytest.raises(NotFound, match="there is no such run"):
        api.get("/api/metrics/preview", {"runs": known["a"], "names": "reward"})


def test_hostile_lines_become_numbers_or_nothing(tmp_path: Path) -> None:
    write_steps(tmp_path / "run", range(2))
    lines = [
        b'{"step":2,"reward":NaN,"a":Infinity,"b":1e999,"c":"text","d":[1],"e":true,"f":' + b"9" * 400 + b"}",
        b'{"step":3,"reward":' + b"9" * 5000 + b"}", b"[" * 100_000, b"\xff\xfe\x00", b'"step"', b"null",
        b'{"step":-1,"reward":1}', b'{"step":1e3,"reward":1}', b'{"step":true}', b'{"step":99999999999999999999}',
        b'{"step":4,' + b",".join(b'"n%d":1' % i for i in range(3 * MAX_METRICS)) + b"}",
        b'{"step":5,"' + b"k" * 100_000 + b'":1,"reward":5}',
    ]  # fmt: skip
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b"\n".join(lines) + b"\n")
    answer = MetricSlices().slice(tmp_path / "run")
    assert answer["steps"] == [0, 1, 2, 4, 5] and answer["damaged"] == 9
    assert answer["columns"]["reward"] == [0.0, 0.01, None, None, 5.0]
    assert len(answer["columns"]) == MAX_METRICS and "c" not in answer["columns"]
    assert all(len(column) == 5 for column in answer["columns"].values())
    json.dumps(answer, allow_nan=False)
    json.dumps(preview(tmp_path / "run"), allow_nan=False)


def test_scan_reads_the_headline_that_the_summary_reads(tmp_path: Path) -> None:
    for name in ("rl", "sft"):
        scan = MetricScan()
        assert scan.extend(real_runs() / name)
        assert scan.headline() == read_headline(real_runs() / name / "metrics.jsonl")
    write_steps(tmp_path / "run", range(6))
    scan = MetricScan()
    assert not scan.extend(tmp_path / "run", -1.0) and scan.offset == 0, "out of time"
    assert scan.extend(tmp_path / "run") and len(scan.steps) == 6 and scan.best_step() == 5
    write_steps(tmp_path / "run", range(3, 5), resumed=3)
    assert scan.extend(tmp_path / "run") and scan.resumed == [(3, "the disk was full")]
    assert scan.headline() == read_headline(tmp_path / "run" / "metrics.jsonl")


def test_list_without_time_to_scan_has_last_values_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_listing, "SCAN_SECONDS", -1.0)
    library = RunLibrary(real_runs())
    row = next(row for row in library.rows() if row["name"] == "rl")
    monkeypatch.setattr(run_listing, "SCAN_SECONDS", 10.0)
    whole = next(row for row in library.rows() if row["name"] == "rl")
    expected = summarize_run(real_runs() / "rl")
    assert (row["complete"], row["best"], whole["complete"]) == (False, None, True)
    assert (whole["best"], whole["last"], whole["steps"]) == (expected.best, expected.last, expected.steps)
    assert row["steps"] == STEPS and whole["x"] == ["step", "tokens", "flops", "seconds"]
    assert {"name", "text", "severity"} == set(whole["findings"][0]) if whole["findings"] else True


def test_details_have_config_marks_and_files() -> None:
    library = RunLibrary(real_runs())
    run = next(row["id"] for row in library.rows() if row["name"] == "rl")
    details = library.details(run)
    assert details["config"]["steps"] == STEPS and details["environment"]
    kinds = {mark["kind"] for mark in details["marks"]}
    assert kinds == {"checkpoint", "eval", "best"}
    assert [m["step"] for m in details["marks"] if m["kind"] == "checkpoint"] == [3, 6]
    assert {"metrics.jsonl", "job.json"} <= {file["name"] for file in details["files"]}


def test_metrics_over_http_and_growth_events(tmp_path: Path) -> None:
    folder = copy_runs(tmp_path / "runs")
    with live_viewer(folder) as viewer:
        run = viewer.run_id("rl")
        first = viewer.get(f"/api/runs/{run}/metrics?names=reward")
        assert first["steps"] == list(range(STEPS))
        assert set(first["columns"]) == {"reward", "x/tokens", "x/flops", "x/seconds"}
        assert viewer.get(f"/api/runs/{run}/metrics?after={first['offset']}")["steps"] == []
        assert "after is 'x'" in viewer.error(f"/api/runs/{run}/metrics?after=x")
        both = viewer.get(f"/api/metrics/preview?runs={run},{viewer.run_id('sft')}&names=loss&points=100")
        assert set(both["runs"]) == {run, viewer.run_id("sft")}
        connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=30)
        connection.request("GET", f"/api/events?run={run}")
        stream = connection.getresponse()
        assert stream.readline() == b"event: grew\n"
        assert json.loads(stream.readline()[6:])["metrics"] == first["offset"]
        stream.readline()
        with (folder / "rl" / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step":6,"reward":1}\n')
        assert stream.readline() == b"event: grew\n"
        assert json.loads(stream.readline()[6:])["metrics"] == first["offset"] + 22
        connection.close()
