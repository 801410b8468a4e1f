"""The viewer over HTTP: its files, its list of runs, and whom it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from viewer.live_viewer import LiveViewer, live_viewer
from viewer.real_runs import RUN_NAMES, STEPS, real_runs


@pytest.fixture(scope="module")
def viewer() -> Iterator[LiveViewer]:
    with live_viewer(real_runs()) as viewer:
        yield viewer


def test_page_is_served_with_its_policy(viewer: LiveViewer) -> None:
    reply = viewer.send("GET", "/")
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/html")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"


def test_runs_lists_every_run(viewer: LiveViewer) -> None:
    runs = viewer.get("/api/runs")["runs"]
    assert tuple(run["name"] for run in runs) == RUN_NAMES
    rl = runs[RUN_NAMES.index("rl")]
    assert (rl["state"], rl["steps"], rl["total_steps"], rl["metric"]) == ("finished", STEPS, STEPS, "reward")
    assert viewer.get(f"/api/runs/{rl['id']}")["name"] == "rl"


def test_unknown_run_is_one_sentence(viewer: LiveViewer) -> None:
    assert viewer.error("/api/runs/0123456789ab").startswith("there is no such run")
    assert viewer.error("/api/nothing") == "there is nothing at /api/nothing"
