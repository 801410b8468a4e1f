"""Any task with tools: the same problems, in turns, graded by the task's own verifier."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest

from fakes import run_async
from ponder.errors import NoGoldAnswer, UntrustedCode, UsageError
from ponder.measure.statistics.episode_summary import EpisodeSummary
from ponder.measure.statistics.evaluation_report import evaluation_report
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.solve import solve
from ponder.pipelines.tool_dialogue import DialogueTurn, dialogue, solve_with_tools
from ponder.pipelines.training.gold_episodes import gold_traces
from ponder.pipelines.training.sample_metrics import sample_metrics
from ponder.reason.strategies import Chain, Samples
from ponder.reason.tools.function_tool import calculator
from ponder.reason.tools.tool_counts import EpisodeCounts, episode_counts
from ponder.runs import job_json, read_metrics
from ponder.runs.trust import check_trusted
from ponder.tasks import GSM8K, SVAMP, Addition, Arithmetic
from ponder.tasks.environments.mastermind import Mastermind
from ponder.tasks.environments.tool_task import ToolTask, with_tools
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Action, FunctionCall, Problem, Sampling, Trace, user_messages
from turn_policy import TurnPolicy, call

TASK = ToolTask(Addition(digits=2), ("calculator",))


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def solved(*script: str, task: ToolTask = TASK, rewrites: bool = False, n: int = 1) -> Trace:
    policy = TurnPolicy(script, rewrites=rewrites)
    strategy = Chain(Sampling(max_tokens=400)) if n == 1 else Samples(n, Sampling(max_tokens=400))
    return run_async(solve(task.train[0], strategy, policy, task.verifier))


def tiny_policy() -> PonderPolicy:
    model = ScratchModel(string.printable[:95] + "\n", width=16, layers=1, heads=1, context=2048)
    return load_policy(model, template="qa", dtype="float32")


def gold(task: ToolTask = TASK) -> str:
    return task.gold(task.train[0])


CALL = call("calculator", '{"expression": "1 + 2"}')


def test_tool_task_grades_last_turn_with_task_verifier() -> None:
    trace = solved(CALL, gold())
    (answer,) = trace.answers()
    assert trace.score(answer, TASK.verifier.name) == 1.0
    assert [s.sampled for s in trace.steps] == [False, True, False, True] and trace.steps[2].turn
    assert "<tool_response>\n3\n</tool_response>" in TurnPolicy().text(trace.steps[2].token_ids)
    assert "[calculator]" in TurnPolicy().text(trace.steps[0].token_ids)


def test_tool_task_ignores_answer_of_earlier_turn() -> None:
    trace = solved(gold() + CALL, "no idea")
    assert trace.score(trace.answers()[0], TASK.verifier.name) == 0.0


def test_calculator_task_has_gold_turns() -> None:
    """A call of the calculator with the expression, whose result is the gold answer."""
    task = ToolTask(Arithmetic(terms=3, largest=99), ("calculator",))
    problem = task.train[0]
    first, last = task.gold_turns(problem)
    assert (
        first == call("calculator", json.dumps({"expression": problem.tags["expression"]})) and last == problem.answer
    )
    (trace,) = gold_traces(tiny_policy(), [problem], task.verifier)
    (answer,) = trace.answers()
    assert [s.text.strip() for s in trace.steps if s.sampled] == [first, last] and trace.steps[2].text == problem.answer
    assert trace.score(answer, task.verifier.name) == 1.0


@pytest.fixture
def word_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in the form of GSM8K's and SVAMP's files."""
    monkeypatch.setenv("PONDER_DATA", str(tmp_path))
    worked = "There are 3*4=<<3*4=12>>12.\nThen 12+1,000 = <<12+1,000=1012>>1012, so 12/5=<<12/5=2.4>>2.4.\n#### 2.4"
    rows = [{"question": "How many?", "answer": worked}, {"question": "How much?", "answer": "It is plain.\n#### 7"}]
    for name, given in {"train": rows, "test": [{"question": "And here?", "answer": "#### 1"}]}.items():
        file = tmp_path / "gsm8k" / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(map(json.dumps, given)))
    body = {"Body": "Ann has 8 pens. She gives away 3 and 1", "Question": "How many are left?", "Type": "Subtraction"}
    equation = {"Equation": "( ( 8.0 - 3.0 ) - 10.5 )", "Answer": -5.5}
    file = tmp_path / "svamp" / "SVAMP.json"
    file.parent.mkdir()
    file.write_text(
        json.dumps([{"ID": f"chal-{i}", **body, **equation, "Body": f"{i} {body['Body']}"} for i in range(9)])
    )


@pytest.mark.usefixtures("word_problems")
def test_word_problems_have_gold_turns_from_their_notes() -> None:
    task = ToolTask(GSM8K(), ("calculator", "python"))
    problem, plain = task.train
    first, second, last = task.gold_turns(problem)
    assert first == call("calculator", '{"expression": "3*4"}') and "12/5" in second  # 12+1,000 is no expression
    assert last == task.gold(problem) and task.gold_turns(plain) == (task.gold(plain),)
    for trace in gold_traces(tiny_policy(), [problem, plain], task.verifier):
        assert trace.score(trace.answers()[0], task.verifier.name) == 1.0
    both, _ = ToolTask(GSM8K(), ("python",), max_turns=2).gold_turns(problem)
    assert both == call("python", '{"code": "print(3*4)"}') + "\n" + call("python", '{"code": "print(12/5)"}')
    svamp = ToolTask(SVAMP(), ("calculator",))
    assert svamp.gold_turns(svamp.train[0])[0] == call("calculator", '{"expression": "( 8 - 3 ) - 10.5"}')


@pytest.mark.usefixtures("word_problems")
def test_fine_tuning_imitates_calls_of_tools(tmp_path: Path) -> None:
    model = ScratchModel(string.printable[:95] + "\n", width=16, layers=1, heads=1, context=2048)
    job = FineTune("gsm8k", model, "qa", tools=("calculator",), steps=1, batch_size=2, dtype="float32", device="cpu")
    assert isinstance(job.data, ToolTask) and job_json.decode(job_json.encode(job)) == job
    assert job.summary_lines(tmp_path / "run", job(tmp_path / "run"))[-1].endswith(" --tools calculator")
    answers = FineTune("gsm8k", model, "qa", steps=1, batch_size=2, dtype="float32", device="cpu")
    answers(tmp_path / "answers")
    with_calls, without = (read_metrics(tmp_path / name)[0]["num_trained_tokens"] for name in ("run", "answers"))
    assert with_calls > without + 80  # the calls are learned, and the results are not
    with pytest.raises(UsageError, match="tools are for a task"):
        FineTune(str(tmp_path / "rows.jsonl"), model, "qa", tools=("calculator",))


def test_tools_without_gold_turns_are_refused_by_fine_tuning() -> None:
    for task in (TASK, ToolTask(Arithmetic(), (add,))):
        with pytest.raises(NoGoldAnswer, match="with the calculator"):
            gold_traces(tiny_policy(), [task.train[0]], task.verifier)


def test_tool_environment_copy_goes_on_with_the_next_gold_turn() -> None:
    task = ToolTask(Arithmetic(), ("calculator",))
    environment = task.verifier.open_environment()
    environment.reset(task.train[0], 0)
    turns = task.gold_turns(task.train[0])
    assert environment.gold() == turns[0]
    run_async(environment.act(Action(turns[0], "", (FunctionCall("calculator", '{"expression": "1"}'),))))
    assert environment.copy().gold() == environment.gold() == turns[1]


def test_tool_task_passes_problems_and_gold_through() -> None:
    inner = Addition(digits=2)
    assert TASK.name == "addition" and TASK.train[0] == inner.train[0] and TASK.test[0] == inner.test[0]
    assert TASK.restyle("cot").task == inner.restyle("cot")


def test_tool_task_ends_after_max_turns() -> None:
    trace = solved(*[CALL] * 5, task=ToolTask(Addition(digits=2), ("calculator",), max_turns=3))
    counts = episode_counts(trace, trace.answers()[0])
    assert counts == EpisodeCounts(turns=3, tool_calls=3, failed_calls=0, extra_prompts=0)


@pytest.mark.parametrize("rewrites", [False, True])
def test_episode_counts_survive_storage(rewrites: bool) -> None:
    bad = call("calculator", "{}")
    trace = solved(CALL + bad, "<tool_call>oh</tool_call>", gold(), rewrites=rewrites)
    trace = trace_from_json(json.loads(json.dumps(trace_to_json(trace))))
    expected = EpisodeCounts(turns=3, tool_calls=3, failed_calls=2, extra_prompts=2 if rewrites else 0)
    assert episode_counts(trace, trace.answers()[0]) == expected


def test_sample_metrics_count_tools_as_trl_does() -> None:
    bad = call("calculator", "{}")
    trace = solved(CALL + CALL, bad, gold(), "5", n=3)  # the turns of three samples, in the order they are asked for
    metrics = sample_metrics([trace], TASK.verifier.name, episodes=True)
    answers = [episode_counts(trace, i) for i in trace.answers()]
    calls, failed = sum(c.tool_calls for c in answers), sum(c.failed_calls for c in answers)
    assert calls == 3 and failed == 1
    assert metrics["tools/call_frequency"] == calls / 3 and metrics["tools/failure_frequency"] == 1 / 3
    assert metrics["num_turns/max"] == max(c.turns for c in answers)
    sampled = sum(len(s.token_ids) for s in trace.steps if s.sampled)
    assert metrics["completions/mean_length"] * 3 == sampled  # tool results are no tokens of the policy
    assert "tools/call_frequency" not in sample_metrics([trace], TASK.verifier.name)


def test_evaluation_report_says_turns_and_calls() -> None:
    traces = [solved(CALL, gold()), solved(call("calculator", "{}"), "5")]
    report = evaluation_report(traces, TASK.verifier.name, None, in_turns=True)
    assert report.episodes == EpisodeSummary(2, 2.0, 2, 2, 1, 0)
    lines = "\n".join(report.lines())
    assert "2.0 per episode, at most 2" in lines and "1.00 per episode, 1 of 2 failed" in lines
    assert "turns" not in "\n".join(evaluation_report(traces, TASK.verifier.name, None).lines())


def test_solve_with_tools_needs_no_verifier() -> None:
    problem = Problem("q", user_messages("What is 1 + 2?"))
    policy = TurnPolicy([f"I compute.{CALL}", "It is 3."])
    trace = run_async(solve_with_tools(problem, Chain(Sampling(max_tokens=400)), policy, [calculator]))
    assert dialogue(trace, trace.answers()[0], [calculator]) == [
        DialogueTurn("I compute.", (FunctionCall("calculator", '{"expression": "1 + 2"}'),), ("3",)),
        DialogueTurn("It is 3.", (), ()),
    ]


def test_rl_takes_tools_and_saves_them_by_name() -> None:
    job = RL(task="addition", tools=[calculator, add], max_turns=5)
    assert isinstance(job.task, ToolTask) and job.task.max_turns == 5
    assert job.tools == job.task.tools and job.tools[0] == "calculator"
    assert isinstance(job.tools[1], str) and job.tools[1].endswith(":add")
    encoded = job_json.encode(job)
    with pytest.raises(UntrustedCode, match="add"):
        check_trusted(encoded)
    assert job_json.decode(encoded, trust=True) == job  # the tools are not given twice
    check_trusted(job_json.encode(RL(task="addition", tools=("calculator", "python"))))


def test_with_tools_replaces_tools_and_leaves_task_without() -> None:
    assert with_tools(TASK, ("python",)) == ToolTask(TASK.task, ("python",))
    assert with_tools(TASK.task, ()) is TASK.task


def test_tool_task_refuses_what_cannot_work(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def search(query):\n    '''Search.'''\n    return query\n")
    for tools, message in [
        ((), "at least one tool"),
        ((f"{file}:search",), "has no type hint"),
        ((f"{file}:lookup",), "cannot load"),
        (("calculator", "calculator"), "two tools are named"),
    ]:
        with pytest.raises(UsageError, match=message):
            ToolTask(Arithmetic(), tools)
    with pytest.raises(UsageError, match="environment of its own"):
        ToolTask(Mastermind(), ("calculator",))
    with pytest.raises(UsageError, match="max_turns is 0"):
        ToolTask(Arithmetic(), ("calculator",), 0)
