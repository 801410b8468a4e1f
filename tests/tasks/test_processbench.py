"""ProcessBench as a task: the published labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ponder.errors import TaskError, UnknownName
from ponder.tasks.datasets.processbench import ProcessBench


def test_faithful_processbench_counts(data: Path) -> None:
    """400 and 1,000 solutions; 193 and 406 of them without an error (Zheng et al. 2024, table 1)."""
    for part, total, clean in (("gsm8k", 400, 193), ("math", 1000, 406)):
        problems = ProcessBench(parts=(part,)).test
        assert len(problems) == total
        assert sum(p.answer == "-1" for p in problems) == clean
    assert len(ProcessBench().test) == 1400
    assert len({p.id for p in ProcessBench().test}) == 1400


def test_gold_is_right_and_the_next_step_is_wrong(data: Path) -> None:
    task = ProcessBench(limit=40)
    for problem in task.test:
        assert task.verifier.grade(task.gold(problem), problem.answer).value == 1.0
        assert task.verifier.grade(f"\\boxed{{{int(problem.answer) + 1}}}", problem.answer).value == 0.0
        assert f"Step {len(problem.tags['steps']) - 1}: " in problem.question


def test_processbench_has_no_training_problems(data: Path) -> None:
    with pytest.raises(TaskError, match="is a test set"):
        ProcessBench().train  # noqa: B018
    with pytest.raises(UnknownName, match="Did you mean 'math'"):
        ProcessBench(parts=("maths",))


def test_a_label_that_names_no_step_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"id": "a", "problem": "p", "steps": ["x"], "label": 1, "final_answer_correct": True}
    (tmp_path / "processbench").mkdir()
    (tmp_path / "processbench" / "gsm8k.json").write_text(json.dumps([row]))
    monkeypatch.setenv("PONDER_DATA", str(tmp_path))
    with pytest.raises(TaskError, match="does not match the steps: 1 of 1 steps"):
        ProcessBench(parts=("gsm8k",)).test  # noqa: B018
