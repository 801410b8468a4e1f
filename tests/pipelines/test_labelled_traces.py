"""Labels are gathered: rows that cannot be used are refused together, or counted where the others are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE
from ponder.errors import TaskError
from ponder.filter_report import FilterReport
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rewards.labelled_traces import prepare_labels, read_labelled_traces, read_training_labels
from ponder.train.reward_objectives import ProcessReward

GOOD = json.dumps({"prompt": "1+1=", "completions": ["1+1=2", "2"], "labels": [True, True]})


def test_bad_rows_are_a_line_of_the_funnel(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text("\n".join(["\ufeffoops", "[]", GOOD, GOOD.replace("1+1=2", ""), GOOD]), "utf-8")
    with pytest.raises(TaskError, match=r"line 1 is not JSON .*line 2 is not .*line 4: .*: skip_bad") as error:
        read_labelled_traces((str(file),))
    assert "--skip-bad" in str(error.value)
    policy = load_policy(
        ScratchModel(ALPHABET + "\n", width=32, layers=1, heads=4, context=64), QUESTION_TEMPLATE, "cpu", "float32"
    )
    result = prepare_labels(read_training_labels((str(file),), skip_bad=True), policy, ProcessReward().targets, 0)
    lines = result.filter_report.lines()
    assert len(result.train) == 2 and lines[0].split()[:6] == ["rows", "that", "can", "be", "used", "2"]
    assert "1 is not JSON" in lines[0] and "1 is not a JSON object" in lines[0] and "and no text" in lines[0]
    assert lines[1].split() == ["traces", "2"] and not list(recwarn)


def test_traces_may_be_skipped_too(tmp_path: Path) -> None:
    trace = {"problem": {"id": "p", "messages": [{"role": "user", "content": "1"}], "answer": None, "tags": {}},
             "cost": {}, "steps": [{"parent": None, "token_ids": [3]}]}  # fmt: skip
    file = tmp_path / "traces.jsonl"
    file.write_text("\n".join([json.dumps(trace), "oops", json.dumps({"problem": {}})]), "utf-8")
    with pytest.raises(TaskError, match=r"line 2 is not JSON .*line 3 is no trace: it has no 'steps'"):
        read_labelled_traces((str(file),), needs_scores=False)
    funnel = FilterReport()
    (result,), _ = read_labelled_traces((str(file),), needs_scores=False, skip_bad=True, report=funnel)
    assert result.problem.id == "p" and funnel.stages == {"rows that can be used": 1, "of training problems": 1}
