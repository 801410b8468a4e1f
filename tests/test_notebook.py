"""A real notebook kernel runs the main path. Needs ipykernel and nbclient, which ponder does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ponder

JOB = """
from ponder import RL, Addition, Samples, Sampling, ScratchModel, read_metrics
job = RL(
    task="addition",
    model=ScratchModel("0123456789+-=? Whatis", width=16, layers=1, heads=2, context=64),
    template="{{ messages[-1].content }}",
    strategy=Samples(2, Sampling(max_tokens=2)),
    steps=1, problems_per_step=2, preflight=False, dtype="float32", device="cpu",
)
policy = job("run")
print(len(read_metrics("run")), "step kept")
"""
ASK = """
from ponder import Problem, ask, solve, user_messages
print(ask("1+1=?", model=policy, n=2, max_tokens=2).n, "answers")
trace = await solve(Problem("q", user_messages("1+1=?")), "majority-vote", policy)
print(len(trace.answers()) > 1)
"""


def test_job_ask_and_solve_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    source = str(Path(ponder.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")])))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (JOB, ASK)])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    first, second = ("".join(o.get("text", "") for o in cell.outputs) for cell in notebook.cells)
    assert "step 1/1  reward" in first and "1 step kept" in first
    assert "2 answers" in second and "True" in second
