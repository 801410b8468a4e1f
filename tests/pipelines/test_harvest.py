"""Runs become files: what fine-tuning reads back, the funnel, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes import DigitTask, trace_group
from ponder.errors import RunError, TaskError, UnknownName, UsageError
from ponder.filter_report import FilterReport
from ponder.models.genrm import verdict_prompt as judge_prompt
from ponder.pipelines import harvest as pipeline
from ponder.pipelines.collect import Collect
from ponder.pipelines.harvest import Harvest, choose_scorer
from ponder.pipelines.problems.conversations import read_conversations
from ponder.runs import Run, job_json
from ponder.runs.data_files import write_jsonl
from ponder.tasks import Addition, Algebra
from ponder.types import Problem, Score, Step, Trace, ids, user_messages


def trace(question: str, answers: dict[str, float | None], id: str = "p/0", scorer: str = "wanted") -> Trace:
    made = Trace(Problem(id, user_messages(question), "7"), [Step(None, question, ids(map(ord, question)))])
    for text, score in answers.items():
        tokens = ids(map(ord, text))
        step = Step(0, text, tokens, np.full(len(tokens), -1.0, np.float32), "eos")
        step.scores[scorer] = Score(score)
        made.add(step)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two problems; one under an id that another problem of another step has too."""
    with Run(tmp_path / "run", Harvest(("x",))) as opened:
        opened.write_traces(0, [trace("3+4", {"7": 1.0, " 7": 1.0, "seven 7": 1.0, "8": 0.0, "9": 0.0})])
        opened.write_traces(1, [trace("5+2", {"7": 1.0, "x": None, "77": 0.0})])
    return tmp_path / "run"


def test_chains_are_read_back_by_fine_tuning(run: Path, tmp_path: Path):
    funnel = FilterReport()
    rows = Harvest((str(run),), keep="first").rows(funnel)
    write_jsonl(tmp_path / "chains.jsonl", rows)
    read = read_conversations(str(tmp_path / "chains.jsonl"))
    assert [(p.question, p.answer) for p in read] == [("3+4", "7"), ("3+4", "seven 7"), ("5+2", "7")]
    assert [(r["from"]["at"], r["from"]["steps"]) for r in rows] == [(0, [0, 1]), (0, [0, 3]), (1, [0, 1])]
    assert funnel.stages == {
        "traces": 2, "of training problems": 2, "answers": 8, "to the question itself": 8, "ended by themselves": 8,
        "judged": 7, "right": 4, "unique": 3, "kept": 3,
    }  # fmt: skip


def test_rows_do_not_depend_on_the_order_in_which_traces_were_finished(tmp_path: Path):
    traces = [trace(f"{i}+0", {str(i): 1.0}) for i in range(12)]
    for i, one in enumerate(traces):
        one.problem = replace(one.problem, id=f"sums/train/{i}")
    rows = []
    for name, order in (("a", traces), ("b", traces[::-1])):
        with Run(tmp_path / name, Harvest(("x",))) as opened:
            opened.write_traces(0, order)
        rows.append([row["messages"] for row in Harvest((str(tmp_path / name),)).rows(FilterReport())])
    assert rows[0] == rows[1] and rows[0][9][0]["content"] == "9+0"


def test_pairs_are_read_back_by_dpo(run: Path, tmp_path: Path):
    for what in ("pairs", "siblings"):
        write_jsonl(tmp_path / f"{what}.jsonl", Harvest((str(run),), kind=what, max_per_problem=1).rows(FilterReport()))
        read = read_conversations(str(tmp_path / f"{what}.jsonl"), pairs=True)
        assert [(p.question, p.answer) for p in read] == [("3+4", ("7", "8")), ("5+2", ("7", "77"))]


@pytest.mark.parametrize("what", ["labels", "values", "operators", "journeys"])
def test_every_kind_is_plain_json_with_its_lineage(run: Path, tmp_path: Path, what: str):
    rows = Harvest((str(run),), kind=what).rows(FilterReport())
    write_jsonl(tmp_path / "out.jsonl", rows)
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == rows
    assert all(set(row["from"]) >= {"run", "at", "problem", "steps"} for row in rows) and rows


def test_labels_are_read_back_by_reward_models(run: Path, tmp_path: Path):
    from ponder.tasks import step_labels

    for what, wanted in (("labels", "stepwise"), ("values", "stepwise"), ("pairs", "pairs")):
        write_jsonl(tmp_path / f"{what}.jsonl", Harvest((str(run),), kind=what).rows(FilterReport()))
        first = json.loads((tmp_path / f"{what}.jsonl").read_text().partition("\n")[0])
        assert step_labels.detect_format(first, "x") == wanted
        read = step_labels.read_labels(tmp_path / f"{what}.jsonl")
        assert read[0].problem.question == "3+4" and read[0].score(1, step_labels.LABEL_SCORE) == 1.0


def tree(labels: bool = False) -> Trace:
    """Two ways from one step, of which one is right; and an answer that begins with another."""
    made = Trace(Problem("p/0", user_messages("3+4"), "7"), [Step(None, "3+4", ids([1]))])
    verdicts = [(0, "3 and 4\n", None), (1, "is 7", 1.0), (1, "is 8", 0.0), (0, "7", 1.0), (0, "77", 0.0)]
    for parent, text, verdict in verdicts:
        tokens = ids(map(ord, text))
        step = Step(parent, text, tokens, np.full(len(tokens), -1.0, np.float32), "stop" if verdict is None else "eos")
        if verdict is not None:
            step.scores["wanted"] = Score(verdict)
        made.add(step)
    if labels:
        for step, label in zip(made.steps[1:], (0.75, 1.0, 0.25, None, 0.0), strict=True):
            step.scores["label"] = Score(label, "3 of 4 completions are right")
    return made


def prefixes(path: Path) -> list[tuple[str, float, bool]]:
    """Every label of a file: what it is of, and whether an answer ends there."""
    from ponder.tasks import step_labels

    return sorted(
        (t.text(i).strip(), label, t.steps[i].last)
        for t in step_labels.read_labels(path)
        for i in range(1, len(t.steps))
        if (label := t.score(i, step_labels.LABEL_SCORE)) is not None
    )


OUTCOMES = [("3 and 4", 0.5, False), ("3 and 4\nis 7", 1.0, True), ("3 and 4\nis 8", 0.0, True), ("7", 1.0, True),
            ("77", 0.0, True)]  # fmt: skip
LABELS = [("3 and 4", 0.75, False), ("3 and 4\nis 7", 1.0, True), ("3 and 4\nis 8", 0.25, True), ("77", 0.0, True)]


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("format", ["stepwise", "omega", "prm800k", "shepherd"])
def test_labels_of_a_tree_stand_once_in_every_format(tmp_path: Path, format: str, labels: bool):
    """Math-Shepherd's rows have a sign at every step, so that there shared steps stand in every row."""
    with Run(tmp_path / "run", Harvest(("x",))) as opened:
        opened.write_traces(0, [tree(labels)])
    rows = Harvest((str(tmp_path / "run"),), kind="labels", format=format).rows(funnel := FilterReport())
    write_jsonl(tmp_path / "out.jsonl", rows)
    result, wanted = prefixes(tmp_path / "out.jsonl"), LABELS if labels else OUTCOMES
    if format == "prm800k":
        wanted = [(text, float(label >= 0.5), last) for text, label, last in wanted]
    if format == "shepherd":
        result = [(text.replace("Step 1: ", "").replace("Step 2: ", ""), *rest) for text, *rest in result]
        assert len(result) == len(wanted) + 1
        wanted = [(text, float(label > 0), last) for text, label, last in wanted]
        result = list(dict.fromkeys(result))
    assert result == wanted and all(row["from"]["problem"] == "p/0" for row in rows)
    assert funnel.stages["traces"] == 1 and funnel.stages["kept"] == len(rows)


def test_labels_on_the_steps_come_first_and_may_be_led_by_the_gold_answer(tmp_path: Path):
    made = tree(labels=True)
    made.oracle = True
    with Run(tmp_path / "run", Harvest(("x",))) as opened:
        opened.write_traces(0, [made])
    runs = (str(tmp_path / "run"),)
    rows = Harvest(runs, kind="labels").rows(FilterReport())
    assert [row["labels"] for row in rows] == [[0.75, 1.0], [None, 0.25], [0.0]]
    assert rows[0]["hard"] == [True, True] and rows[0]["labelled"] == [1, 1]
    rows = Harvest(runs, kind="labels", scorer="wanted", include_oracle=True).rows(FilterReport())
    assert [row["labels"] for row in rows] == [[0.5, 1.0], [None, 0.0], [1.0], [0.0]]
    with pytest.raises(TaskError, match="1 led by it"):
        Harvest(runs, kind="labels", scorer="wanted").rows(FilterReport())


@pytest.mark.parametrize("what", ["labels", "values"])
def test_shared_prefixes_are_kept_once(tmp_path: Path, what: str):
    made = tree()
    made.steps[2].text = "is 7, I am quite sure"
    made.steps[2].token_ids = ids(range(30))
    made.steps[2].logprobs = np.zeros(30, np.float32)
    with Run(tmp_path / "run", Harvest(("x",))) as opened:
        opened.write_traces(0, [made])
    rows = Harvest((str(tmp_path / "run"),), kind=what, max_per_problem=3).rows(FilterReport())
    output = {tuple(row["completions"]): row["labels"] for row in rows}
    assert output == {("7",): [1.0], ("77",): [0.0], ("3 and 4", "is 8"): [0.5, 0.0]}


def test_journeys_are_graded_again(run: Path, tmp_path: Path):
    """`Wanted` reads the first character: a journey that begins with "<think>" is wrong by it."""
    rows = Harvest((str(run),), kind="journeys").rows(FilterReport())
    assert len(rows) == 4 and not any(row["verified"] for row in rows)  # the run's job names no judge
    with pytest.raises(TaskError, match="no journeys are left") as error:
        Harvest((str(run),), kind="journeys", task=DigitTask()).rows(FilterReport())
    (line,) = [line for line in str(error.value).splitlines() if "still right" in line]
    assert line.split() == ["still", "right", "as", "one", "answer", "0", "-", "4", "compared"]


def test_journeys_use_the_verifier_of_the_run(tmp_path: Path):
    task = Algebra(test_size=2)
    problem = task.train[0]
    right, wrong = task.gold(problem), "\\boxed{123456}"
    made = trace(
        problem.question, {f"So {right}": 1.0, f"So {wrong}": 0.0, f"Or {right} or {wrong}": 1.0}, scorer="accuracy"
    )
    made.problem = problem
    with Run(tmp_path / "run", Collect(task)) as opened:
        opened.write_traces(0, [made])
    (row,) = Harvest((str(tmp_path / "run"),), kind="journeys").rows(funnel := FilterReport())
    assert row["verified"] and row["messages"][-1]["content"].endswith(f"So {right}")
    assert funnel.dropped["still right as one answer"] == {"several answers": 1}  # which the scores had let through


def test_harvest_stage_runs_once(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    job = Harvest((str(run),), keep="diverse")
    assert job_json.decode(job_json.encode(job)) == job
    out = job(tmp_path / "stage")
    rows = out.read_text()
    assert (
        len(rows.splitlines()) == 3
        and json.loads((tmp_path / "stage" / "filter_report.json").read_text())[0]["count"] == 2
    )
    monkeypatch.setattr(pipeline, "read_traces", lambda folder: pytest.fail("it was done"))
    assert job(tmp_path / "stage").read_text() == rows
    with pytest.raises(RunError, match="another job"):
        Harvest((str(run),), max_per_problem=1)(tmp_path / "stage")


def test_harvest_without_right_answers_fails_with_the_report(tmp_path: Path):
    with Run(tmp_path / "run", Harvest(("x",))) as opened:
        opened.write_traces(0, [trace("3+4", {"8": 0.0, "?": None})])
    with pytest.raises(TaskError, match="hold no chains by the scorer 'wanted'") as error:
        Harvest((str(tmp_path / "run"),))(tmp_path / "out")
    assert "judged                  1   - 1 undecided:" in str(error.value)
    assert "right                   0   - 1 wrong" in str(error.value)
    assert "sample more answers" in str(error.value).splitlines()[0]
    assert not (tmp_path / "out").exists(), "nothing was done, and the message has the whole report"
    with pytest.raises(TaskError, match=r"by the scorer 'accuracy' \(the answers were scored by: wanted\)"):
        Harvest((str(tmp_path / "run"),), scorer="accuracy").rows(FilterReport())


def test_oracle_searches_give_no_estimates(tmp_path: Path):
    led = trace("3+4", {"7": 1.0, "8": 0.0})
    led.oracle = True
    with Run(tmp_path / "run", Harvest(("x",))) as opened:
        opened.write_traces(0, [led])
    runs = (str(tmp_path / "run"),)
    for what in ("labels", "values"):
        with pytest.raises(TaskError, match="1 led by it"):
            Harvest(runs, kind=what).rows(FilterReport())
        assert Harvest(runs, kind=what, include_oracle=True).rows(FilterReport())[0]["from"]["oracle"] is True
    assert Harvest(runs).rows(FilterReport())[0]["from"]["oracle"] is True  # what is right is right


def test_ambiguous_scorer_is_refused(tmp_path: Path):
    both = trace("3+4", {"7": 1.0})
    both.steps[1].scores["format"] = Score(0.5)
    with Run(tmp_path / "two", Harvest(("x",))) as opened:
        opened.write_traces(0, [both])
    with pytest.raises(UsageError, match=r"--scorer with one of wanted \(1\), format \(1\)"):
        Harvest((str(tmp_path / "two"),)).rows(FilterReport())
    judged = trace("3+4", {"7": 1.0, "8": 0.0}, scorer="accuracy")
    judged.steps[2].scores["value"] = Score(1.0)
    with Run(tmp_path / "own", Collect(Algebra(test_size=2))) as opened:  # whose verifier is named "accuracy"
        opened.write_traces(0, [judged])
    with Run(tmp_path / "one", Harvest(("x",))) as opened:
        opened.write_traces(0, [trace("5+2", {"7": 1.0})])  # by "wanted"
    rows = Harvest((str(tmp_path / "own"), str(tmp_path / "one"))).rows(FilterReport())
    assert [row["messages"][-1]["content"] for row in rows] == ["7", "7"] and choose_scorer(
        [str(tmp_path / "own")]
    ) == "accuracy"
    with Run(tmp_path / "none", Harvest(("x",))) as opened:
        opened.write_traces(0, [trace_group([1], [[2]])])
    with pytest.raises(TaskError, match="no answer in these runs was scored"):
        choose_scorer([str(tmp_path / "none")])
    for run in ("none", "one"):  # which operators there were is known without any score
        (row,) = Harvest((str(tmp_path / run),), kind="operators").rows(FilterReport())
        assert [event["operator"] for event in row["operators"]] == ["generate"]


def test_harvest_refuses_folders_that_are_no_run(tmp_path: Path):
    with pytest.raises(RunError, match="not a run directory"):
        Harvest((str(tmp_path / "nowhere"),)).rows(FilterReport())
    with Run(tmp_path / "stages", Harvest(("x",))):
        pass
    with pytest.raises(RunError, match="holds no traces: let it work first"):
        Harvest((str(tmp_path / "stages"),)).rows(FilterReport())
    with Run(tmp_path / "stages" / "rl", Harvest(("x",))) as inner:
        inner.write_traces(0, [trace("3+4", {"7": 1.0})])
    with pytest.raises(RunError, match=r"give its stages: .*stages/rl"):
        Harvest((str(tmp_path / "stages"),)).rows(FilterReport())


@pytest.mark.parametrize(
    "settings",
    [
        {"runs": ()},
        {"kind": "chain"},
        {"keep": "best"},
        {"max_per_problem": 0},
        {"max_tokens": 0},
        {"max_wrong_turns": 0},
        {"min_margin": 0.0},
        {"kind": "pairs", "tokenizer": "smollm2"},
        {"kind": "labels", "max_tokens": 9},
        {"kind": "values", "min_score": 0.5},
        {"min_margin": 0.2},
        {"max_wrong_turns": 1},
        {"kind": "pairs", "max_wrong_turn_steps": 1},
        {"min_visits": 2},
        {"include_oracle": True},
        {"task": Addition(digits=1)},
        {"format": "omega"},
        {"kind": "labels", "format": "pairs"},
        {"kind": "labels", "keep": "first"},
    ],
)
def test_harvest_refuses_impossible_settings(settings):
    with pytest.raises((UsageError, UnknownName)):
        Harvest(**{"runs": ("r",), **settings})


def test_tokens_are_checked_by_the_tokenizer_that_is_named(run: Path, tmp_path: Path):
    from ponder.models.tokenizer import Tokenizer

    alphabet = "0123456789+-=x seven"
    characters = Tokenizer.from_alphabet(alphabet)
    characters.save(tmp_path / "model")
    with Run(tmp_path / "own", Harvest(("x",))) as opened:
        made = trace("3+4", {"7": 1.0})
        made.steps[1].token_ids = ids([*characters.encode("7", add_special_tokens=False), characters.eos[0]])
        opened.write_traces(0, [made])
    (row,) = Harvest((str(tmp_path / "own"),), tokenizer=str(tmp_path / "model")).rows(FilterReport())
    assert row["token_ids"] == made.steps[1].token_ids.tolist() and row["sampled"] == [1, 1]
    with pytest.raises(TaskError, match="another one wrote the"):
        Harvest((str(run),), tokenizer=str(tmp_path / "model")).rows(FilterReport())


def test_tokens_must_be_all_of_the_text_s(tmp_path: Path):
    """More tokens than the text has are another text's; an end has none."""
    from ponder.models.tokenizer import Tokenizer

    characters = Tokenizer.from_alphabet("0123456789+-=x seven")
    characters.save(tmp_path / "model")
    made = trace("3+4", {"7": 1.0})
    made.steps[1].token_ids = ids([*characters.encode("78", add_special_tokens=False), characters.eos[0]])
    with Run(tmp_path / "own", Harvest(("x",))) as opened:
        opened.write_traces(0, [made])
    with pytest.raises(TaskError, match="another one wrote the"):
        Harvest((str(tmp_path / "own"),), tokenizer=str(tmp_path / "model")).rows(FilterReport())


def test_a_journey_s_own_words_are_learned_too(tmp_path: Path):
    """Sampled thoughts and connecting words, as tokens, from a run through a file into a model's lessons."""
    from dataclasses import replace

    from fakes import QUESTION_TEMPLATE, char_policy
    from ponder.models.scratch_model import ScratchModel
    from ponder.pipelines.sft import answer_trace
    from ponder.reason.harvest.journeys import RESTART_PHRASES
    from ponder.train.imitation import SFT

    alphabet = "".join(sorted({*"".join(RESTART_PHRASES), *"<think>/3+45278abcdef\n"}))
    fresh = ScratchModel(alphabet, width=16, layers=1, heads=2, context=512)
    made = trace("3+4", {"52": 0.0, "7": 1.0})
    policy = char_policy()
    net, tokenizer = fresh.build(next(policy.net.parameters()).dtype, policy.net.device)
    policy = type(policy)(net, replace(tokenizer, chat_template=QUESTION_TEMPLATE))
    for step in made.steps[1:]:
        step.token_ids = ids([*policy.tokens(step.text), 2])
        step.logprobs = np.full(len(step.token_ids), -1.0, np.float32)
    with Run(tmp_path / "own", Harvest(("x",))) as opened:
        opened.write_traces(0, [made])
    tokenizer.save(tmp_path / "model")
    job = Harvest((str(tmp_path / "own"),), kind="journeys", tokenizer=str(tmp_path / "model"))
    (row,) = job.rows(FilterReport())
    assert sum(row["sampled"]) == 2 + 2 and all(row["learned"])
    write_jsonl(tmp_path / "data.jsonl", [row])
    (problem,) = read_conversations(str(tmp_path / "data.jsonl"))
    alone = answer_trace(policy, problem, problem.answer)
    SFT().credit([alone], "", {})
    learned = [t for s in alone.steps if s.advantages is not None for t in s.token_ids.tolist()]
    assert policy.text(ids(learned[:-1])) == row["messages"][-1]["content"] and learned == row["token_ids"]


def test_a_task_with_its_own_settings_is_part_of_the_job():
    job = Harvest(("r",), kind="journeys", task=Addition(digits=1))
    assert job_json.decode(job_json.encode(job)) == job


def test_rows_are_written_whole_or_not_at_all(tmp_path: Path):
    with pytest.raises(RunError, match="cannot write"):
        write_jsonl(tmp_path / "nowhere" / "x.jsonl", [{}])
    with pytest.raises(ValueError):
        write_jsonl(tmp_path / "x.jsonl", [{"a": 1}, {"a": float("nan")}])
    assert not (tmp_path / "x.jsonl").exists()


def test_verdicts_are_lessons_for_a_generative_judge(run: Path, tmp_path: Path):
    """Each judged answer once, in the very form in which a judge is asked."""
    funnel = FilterReport()
    rows = Harvest((str(run),), kind="verdicts").rows(funnel)
    output = [(r["messages"][0]["content"], r["messages"][1]["content"], r["from"]["steps"][-1]) for r in rows]
    asked = [
        ("3+4", "7", 1),
        ("3+4", "seven 7", 3),
        ("3+4", "8", 4),
        ("3+4", "9", 5),
        ("5+2", "7", 1),
        ("5+2", "77", 3),
    ]
    for (prompt, word, step), (question, answer, at) in zip(output, asked, strict=True):
        assert prompt == judge_prompt(question, answer, False)[0]["content"]
        assert word == ("Yes" if "7" in answer and answer != "77" else "No") and step == at
    assert funnel.stages["judged"] == 7 and funnel.stages["unique"] == 6
    write_jsonl(tmp_path / "verdicts.jsonl", rows)
    assert [p.answer for p in read_conversations(str(tmp_path / "verdicts.jsonl"))] == [word for _, word, _ in output]


def test_a_verdict_may_come_after_another_right_answer(tmp_path: Path):
    with Run(tmp_path / "run", Harvest(("x",))) as opened:
        opened.write_traces(0, [trace("3+4", {"7": 1.0, "is 7": 1.0, "8": 0.0}), trace("1+1", {"3": 0.0}, "p/1")])
        opened.write_traces(0, [trace("2+5", {"7": 1.0}, "p/2")])
    funnel = FilterReport()
    rows = Harvest((str(tmp_path / "run"),), kind="rationales").rows(funnel)
    text = [row["messages"][1]["content"] for row in rows]
    assert text == ["is 7\nVerdict: Yes", "7\nVerdict: Yes", "7\nVerdict: No", "7\nVerdict: Yes"]
    assert rows[0]["messages"][0] == judge_prompt("3+4", "7", True)[0]
    assert funnel.dropped["with a rationale"] == {"no right answer to check it by": 1}
