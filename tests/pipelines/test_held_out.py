"""Problems that a model is measured on do not become data to train it on, by any way from a run to a file."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import QUESTION_TEMPLATE, DigitTask
from ponder.errors import TaskError, UsageError
from ponder.filter_report import FilterReport
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.harvest import HARVEST_FILE, Harvest
from ponder.pipelines.label import Label
from ponder.pipelines.make_problems import MakeProblems
from ponder.pipelines.problems.conversations import HELD_OUT_TAG, read_conversations
from ponder.pipelines.problems.filters import Filters
from ponder.pipelines.problems.held_out import HELD_OUT_REASON, TRAINING_ONLY_STAGE, is_held_out
from ponder.pipelines.rewards.labelled_traces import read_labelled_traces
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.harvest.kinds import HARVEST_KINDS
from ponder.runs import Run
from ponder.runs.data_files import write_jsonl
from ponder.tasks import Addition, Algebra
from ponder.trace_json import trace_to_json
from ponder.types import Problem, Score, Step, Trace, ids, user_messages

SIDES = {"test": "digits/test/0", "train": "digits/train/0", "other": "mine-17", "mixed": "digits:digits/test/0"}


def thought(id: str, question: str = "3=") -> Trace:
    made = Trace(Problem(id, user_messages(question), "3"), [Step(None, question, ids(map(ord, question)))])
    for text, score in {"3": 1.0, "4": 0.0, "so 3": 1.0}.items():
        likely = np.full(len(text), -1.0, np.float32)
        made.add(Step(0, text, ids(map(ord, text)), likely, "eos", scores={"wanted": Score(score)}))
    return made


def run(folder: Path, job: Any, *traces: Trace) -> str:
    with Run(folder, job) as opened:
        opened.write_traces(0, traces)
    return str(folder)


@pytest.mark.parametrize("what", HARVEST_KINDS)
def test_harvest_refuses_an_evaluation(what: str, tmp_path: Path) -> None:
    """Whatever its ids say: the job is enough."""
    job = Evaluate(Algebra(test_size=2))  # whose verifier has another name, and so judges no journey again
    measured = run(tmp_path / "eval", job, thought("digits/test/3"), thought("mine-4", "4="))
    funnel = FilterReport()
    with pytest.raises(TaskError, match=r"all 2 traces are of problems that are held out .*--include-held-out"):
        Harvest((measured,), what, scorer="wanted").rows(funnel)
    assert funnel.stages[TRAINING_ONLY_STAGE] == 0 and funnel.dropped[TRAINING_ONLY_STAGE] == {HELD_OUT_REASON: 2}
    rows = Harvest((measured,), what, scorer="wanted", include_held_out=True).rows(FilterReport())
    assert rows and all(row["from"]["held_out"] is True for row in rows)


def test_harvest_drops_test_problems_wherever_they_were_solved(tmp_path: Path) -> None:
    mixed = run(tmp_path / "run", Collect(DigitTask()), *(thought(id, f"{i}=") for i, id in enumerate(SIDES.values())))
    rows = Harvest((mixed,), "chains", max_per_problem=1).rows(funnel := FilterReport())
    assert [row["from"]["problem"] for row in rows] == [SIDES["train"], SIDES["other"]]
    assert (
        funnel.stages["traces"] == 4
        and funnel.stages[TRAINING_ONLY_STAGE] == 2
        and funnel.dropped[TRAINING_ONLY_STAGE] == {HELD_OUT_REASON: 2}
    )
    assert all("held_out" not in row["from"] for row in rows)


def test_harvest_stage_refuses_an_evaluation(tmp_path: Path) -> None:
    job = Stages((Stage("data", Harvest((run(tmp_path / "eval", Evaluate(DigitTask()), thought("x")),))),))
    with pytest.raises(TaskError, match="stage 'data': all 1 traces are of problems that are held out"):
        job(tmp_path / "stages")
    assert not (tmp_path / "stages" / "data" / HARVEST_FILE).exists()


def test_what_was_made_from_a_test_problem_is_held_out() -> None:
    made = Problem("evolve/0/1", user_messages("?"), "1", {"parents": ["gsm8k/test/7"]})
    assert is_held_out(made) and not is_held_out(
        Problem("evolve/0/2", user_messages("?"), "1", {"parents": ["gsm8k/train/7"]})
    )
    assert not is_held_out(Problem("math/train/test/7", user_messages("?"), "1"))


def test_reward_models_do_not_learn_from_an_evaluation(tmp_path: Path) -> None:
    measured = run(tmp_path / "eval", Evaluate(DigitTask()), thought("a"))
    with pytest.raises(TaskError, match=r"held out .*--include-held-out"):
        read_labelled_traces((measured,))
    assert len(read_labelled_traces((measured,), include_held_out=True)[0]) == 1
    mixed = run(tmp_path / "run", Collect(DigitTask()), *map(thought, SIDES.values()))
    assert len(read_labelled_traces((mixed,), report=(funnel := FilterReport()))[0]) == 2 and funnel.dropped[
        TRAINING_ONLY_STAGE
    ] == {HELD_OUT_REASON: 2}
    file = tmp_path / "traces.jsonl"
    file.write_text("".join(json.dumps(trace_to_json(thought(id))) + "\n" for id in SIDES.values()))
    assert len(read_labelled_traces((str(file),))[0]) == 2
    labels = tmp_path / "labels.jsonl"
    write_jsonl(labels, Harvest((measured,), "labels", include_held_out=True).rows(FilterReport()))
    with pytest.warns(UserWarning, match=r"rows of .*labels\.jsonl came from problems that are held out"):
        read_labelled_traces((str(labels),))


def test_label_refuses_an_evaluation(tmp_path: Path, fresh: str) -> None:
    measured = run(tmp_path / "eval", Evaluate(DigitTask()), thought("a"))
    job = Label(DigitTask(), fresh, QUESTION_TEMPLATE, data=(measured,), device="cpu", dtype="float32")
    with pytest.raises(TaskError, match=r"held out .*--include-held-out"):
        job(tmp_path / "labels")
    output = Label(
        DigitTask(), fresh, QUESTION_TEMPLATE, data=(measured,), include_held_out=True, device="cpu", dtype="float32"
    )
    labelled = run(tmp_path / "told", output, thought("a"))
    with pytest.raises(TaskError, match="held out"):  # what was labelled so stays known, though no id says it
        Harvest((labelled,), scorer="wanted").rows(FilterReport())
    with pytest.raises(UsageError, match="include_held_out is for `data`"):
        Label(DigitTask(), include_held_out=True)


@pytest.fixture
def fresh(tmp_path: Path) -> str:
    from ponder.models.load import load_policy
    from ponder.nets.hf import save

    policy = load_policy(ScratchModel("0123456789= so", width=16, layers=1, heads=2, context=32), device="cpu")
    save(policy.net, tmp_path / "model")
    policy.tokenizer.save(tmp_path / "model")
    return str(tmp_path / "model")


def test_fine_tuning_warns_about_held_out_rows(tmp_path: Path) -> None:
    measured = run(tmp_path / "eval", Evaluate(DigitTask()), thought("digits/test/3"))
    clean = run(tmp_path / "clean", Collect(DigitTask()), thought("digits/train/3"))
    file = tmp_path / "chains.jsonl"
    rows = Harvest((measured, clean), max_per_problem=1, include_held_out=True).rows(FilterReport())
    write_jsonl(file, rows)
    assert [HELD_OUT_TAG in p.tags for p in read_conversations(str(file))] == [True]  # one question, kept once
    model = ScratchModel("0123456789= so", width=16, layers=1, heads=2, context=32)
    job = FineTune(str(file), model, QUESTION_TEMPLATE, steps=1, batch_size=1, device="cpu", dtype="float32")
    with pytest.warns(UserWarning, match=r"1 of 1 rows of .*chains\.jsonl came from problems that are held out"):
        job(tmp_path / "sft")
    write_jsonl(file, Harvest((clean,), max_per_problem=1).rows(FilterReport()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FineTune(str(file), model, QUESTION_TEMPLATE, steps=1, batch_size=1, device="cpu", dtype="float32")(
            tmp_path / "quiet"
        )


def test_problems_do_not_start_from_test_problems(tmp_path: Path) -> None:
    task = Algebra(test_size=4)
    file = tmp_path / "p.jsonl"
    rows = [{"prompt": p.question, "answer": str(p.answer), "id": p.id} for p in (*task.train[:3], *task.test)]
    write_jsonl(file, rows)
    job = MakeProblems("filter", file=str(file), filters=Filters(dedup_threshold=0))
    made = job(tmp_path / "some")
    assert [row["id"] for row in made.rows] == [p.id for p in task.train[:3]]
    assert made.filter_report.stages[TRAINING_ONLY_STAGE] == 3 and made.filter_report.dropped[TRAINING_ONLY_STAGE] == {
        HELD_OUT_REASON: 4
    }
    write_jsonl(file, rows[3:])
    with pytest.raises(TaskError, match="all problems to start from are held out"):
        job(tmp_path / "none")


def test_mutation_equal_to_a_test_problem_is_dropped(tmp_path: Path) -> None:
    """In a space this small, numbers that are drawn anew make the task's own test problems."""
    task = Addition(digits=1)
    tests = {p.question for p in task.test}
    asked = [
        Problem(f"made/{i}", user_messages(p.question), p.answer) for i, p in enumerate((task.test[0], task.train[0]))
    ]
    left = Filters(min_chars=0, dedup_threshold=0)(asked, funnel := FilterReport(), task)
    assert [p.id for p in left] == ["made/1"] and asked[1].question not in tests
    assert funnel.dropped["not a test problem"] == {"a test problem of addition": 1}
