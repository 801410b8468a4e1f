"""Problems made and filtered, with scripted policies in place of models."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import RecordingProgress
from ponder.errors import Interrupted, MissingExtra, ModelError, RunError, TaskError, UnknownName, UsageError
from ponder.filter_report import FilterReport
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.make_problems import MakeProblems, MakeProblemsResult, make_problems
from ponder.pipelines.problems.filters import Filters, without_instruction
from ponder.pipelines.problems.reapply_filters import FILTER_NAMES, apply_filters, read_made_problems
from ponder.pipelines.problems.solve_rate import SolveRate
from ponder.pipelines.problems.sources import check_parents
from ponder.protocols import NoProgress, Progress
from ponder.runs import Run, job_json, read_job, read_traces
from ponder.tasks import Addition, Algebra, CustomTask
from ponder.tasks.synthetic.problem_rows import synthetic_problem
from ponder.types import (
    Completion,
    Cost,
    Ids,
    Message,
    Problem,
    Sampling,
    Score,
    Step,
    ids,
    prompt_trace,
    user_messages,
)

SUMS = {
    "name": "sums",
    "domain": "adding",
    "question": "{who} has {a} marbles and finds {b} more. How many marbles are there?",
    "variables": {"who": ["Anna", "Tom"], "a": [10, 60], "b": [10, 60]},
    "answer": "a + b",
}
GROUPS = {
    "name": "groups",
    "domain": "sharing",
    "question": "A baker puts {n} buns in boxes of {b}. How many boxes are full?",
    "variables": {"n": [20, 90], "b": [3, 9]},
    "answer": "floor(n / b)",
}
PLAIN = Filters(dedup_threshold=0)


class Speaks:
    """A policy that answers by a function of the question and the number of the sample."""

    def __init__(self, answer: Callable[[str, int], str]) -> None:
        self.answer, self.asked = answer, list[str]()

    def encode(self, messages: Sequence[Message]) -> Ids:
        return ids(ord(c) for c in str(messages[-1]["content"]))

    def tokens(self, text: str) -> Ids:
        return ids(ord(c) for c in text)

    def text(self, tokens: Ids) -> str:
        return "".join(map(chr, tokens))

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        await asyncio.sleep(0)
        question = self.text(prefix)
        self.asked.append(question)
        texts = [self.answer(question, i) for i in range(n)]
        return [
            Completion(t, self.tokens(t), np.full(len(t), -1.0, np.float32), "eos", cost=Cost(1, 0, len(t)))
            for t in texts
        ]


def figures(question: str) -> list[int]:
    return [int(n) for n in re.findall(r"[0-9]+", question)]


def adds(question: str, sample: int) -> str:
    """Right in every second sample, and wrong in two different ways."""
    wrong = sample % 4 - 1 if sample % 2 else 0
    return f"I add: \\boxed{{{sum(figures(question)) + 7 * wrong + (sample % 2)}}}"


def ran(job: MakeProblems, folder: Path, policy: Any, watch: Progress | None = None) -> MakeProblemsResult:
    find = policy if callable(policy) else lambda name: policy
    with Run(folder, job, continue_from=job.continue_from) as run:
        return asyncio.run(make_problems(job, find, run, watch or NoProgress()))


@pytest.fixture
def templates(tmp_path: Path) -> str:
    path = tmp_path / "templates.json"
    path.write_text(json.dumps([SUMS, GROUPS]))
    return str(path)


def test_from_templates_to_a_task(templates: str, tmp_path: Path):
    """Templates, a solver that can add but not share, the filters, and the columns task that reads what is left."""
    job = MakeProblems("templates", file=templates, count=80, model="m", samples_per_solver=4, filters=PLAIN)
    solver = Speaks(adds)
    result = ran(job, tmp_path / "run", solver)
    assert all(row["tags"]["parents"] == ["sums"] for row in result.rows) and len(result.rows) == 40
    assert all(row["pass_rate"] == 0.5 and row["attempts"] == 4 for row in result.rows)
    assert all(row["answer"] == str(sum(figures(row["tags"]["question"]))) for row in result.rows)
    assert result.filter_report.stages["drawn"] == 80 and result.filter_report.stages["of fitting difficulty"] == 40
    assert result.filter_report.dropped["of fitting difficulty"] == {"below 1%: too hard": 40}
    assert len(solver.asked) == 80 and "boxed" in solver.asked[0]
    path = tmp_path / "run" / "problems.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == result.rows
    task = CustomTask(data=str(path), rewards=("ponder.tasks.synthetic.problem_rows:accuracy",), gold_column="gold")
    trace = prompt_trace(task.train[0], ids([1]))
    trace.add(Step(0, task.gold(task.train[0]), ids([1]), stop="eos"))
    (score,) = asyncio.run(task.verifier(trace, [1]))
    assert score.value == 1.0
    assert json.loads((tmp_path / "run" / "filter_report.json").read_text()) == result.filter_report.to_json()
    # The solutions are an ordinary run's, and can be harvested.
    assert len(Harvest((str(tmp_path / "run"),), keep="first", max_per_problem=1).rows(FilterReport())) == 40


def test_templates_need_no_solver(templates: str, tmp_path: Path):
    job = MakeProblems("templates", file=templates, count=10, filters=PLAIN)
    result = ran(job, tmp_path / "run", lambda name: pytest.fail("no model is needed"))
    assert len(result.rows) == 10 and "pass_rate" not in result.rows[0]
    assert job_json.decode(job_json.encode(job)) == job
    bare = MakeProblems("templates", file=templates, count=2, filters=PLAIN, prompt="Q: {question} {{}}")
    (first, _) = ran(bare, tmp_path / "bare", None).rows
    assert first["prompt"] == f"Q: {first['tags']['question']} {{}}"


def test_too_easy_problems_are_dropped(templates: str, tmp_path: Path):
    job = MakeProblems("templates", file=templates, count=8, model="m", samples_per_solver=4, filters=PLAIN)
    always = Speaks(lambda q, i: f"\\boxed{{{sum(figures(q))}}}")
    with pytest.raises(TaskError, match="none is agreed on and of fitting difficulty") as error:
        ran(job, tmp_path / "run", always)
    assert "4 above 95%: too easy" in str(error.value) and "4 below 1%: too hard" in str(error.value)
    easy = MakeProblems(
        "templates", file=templates, count=8, model="m", samples_per_solver=4, filters=PLAIN, max_pass_rate=1.0
    )
    assert len(ran(easy, tmp_path / "easy", always).rows) == 4


def test_a_solver_that_never_succeeds(templates: str, tmp_path: Path):
    job = MakeProblems("templates", file=templates, count=6, model="m", samples_per_solver=2, filters=PLAIN)
    with pytest.raises(TaskError, match="m found none of the answers: name a stronger solver") as error:
        ran(job, tmp_path / "run", Speaks(lambda q, i: "I do not know"))
    assert "drawn" in str(error.value) and "6 by no sample" in str(error.value)
    assert len(list(read_traces(tmp_path / "run"))) == 6  # all that was tried is kept
    assert json.loads((tmp_path / "run" / "filter_report.json").read_text())[-1]["count"] == 0


def test_another_solver_solves_again_what_was_written(parents: str, tmp_path: Path):
    """What a model wrote is kept, what an old solver answered is set aside and said, and no file mixes the two."""
    writer.written = []  # type: ignore[attr-defined]
    job = MakeProblems(
        "write",
        file=parents,
        question_column="question",
        model="m",
        count=12,
        samples_per_solver=4,
        filters=PLAIN,
        seed=3,
    )
    policies = {"m": Speaks(writer), "weak": Speaks(lambda q, i: "I do not know"), "a": Speaks(adds), "b": Speaks(adds)}
    folder = tmp_path / "run"

    def now(**settings: Any) -> tuple[MakeProblemsResult, dict[str, int]]:
        for policy in policies.values():
            policy.asked.clear()
        made = ran(replace(job, **settings), folder, policies.__getitem__)
        return made, {name: len(policy.asked) for name, policy in policies.items() if policy.asked}

    with pytest.raises(TaskError, match="weak found none of the answers: name a stronger solver"):
        now(solvers=("weak",))
    with pytest.warns(UserWarning, match="8 attempts .* are set aside: the problems are solved again by a$"):
        first, asked = now(solvers=("a",))
    assert asked == {"a": 8} and len(first.rows) == 4, "nothing is written twice"
    whole = ran(replace(job, solvers=("a",)), tmp_path / "whole", policies.__getitem__)
    assert first.rows == whole.rows
    steps = [(step, t.problem.id) for step, t in read_traces(folder)]
    assert sorted(steps) == sorted((step, t.problem.id) for step, t in read_traces(tmp_path / "whole"))
    assert job_json.decode(read_job(folder)).solvers == ("a",)
    _, asked = now(solvers=("a", "b"))
    assert asked == {"b": 8}, "a's attempts are still a's"
    with pytest.warns(UserWarning, match="8 attempts"):
        again, asked = now(solvers=("a",))
    assert asked == {} and again.rows == first.rows and {step for step, _ in read_traces(folder)} == {0, 1}
    with pytest.warns(UserWarning, match="8 attempts"):
        assert now(solvers=("a",), samples_per_solver=6)[1] == {"a": 8}
    with pytest.warns(UserWarning, match="8 attempts"):
        assert now(solvers=("a",), solver_sampling=Sampling(max_tokens=9))[1] == {"a": 8}
    before = (folder / "traces.bin").read_bytes()
    for filters in ({"min_votes": 1}, {"max_pass_rate": 1.0, "min_pass_rate": 0.0}, {"max_kept": 2}):
        assert now(solvers=("a",), solver_sampling=Sampling(max_tokens=9), **filters)[1] == {}
    assert (folder / "traces.bin").read_bytes() == before
    with pytest.raises(RunError, match=r"another job \(seed: 3 -> 4; count: 12 -> 13\).*only solvers and filters"):
        now(count=13, seed=4)
    with pytest.raises(RunError, match=r"writer_sampling.max_tokens: 1024 -> 7"):
        now(writer_sampling=Sampling(max_tokens=7))
    with pytest.warns(UserWarning), pytest.raises(TaskError, match="none of the answers"):
        now(solvers=("weak",))
    assert not (folder / "problems.jsonl").exists(), "not the old solver's"


def test_templates_can_get_another_model(templates: str, tmp_path: Path):
    job = MakeProblems("templates", file=templates, count=6, model="m", samples_per_solver=2, filters=PLAIN)
    with pytest.raises(TaskError, match="found none"):
        ran(job, tmp_path / "run", Speaks(lambda q, i: "I do not know"))
    with pytest.warns(UserWarning, match="6 attempts"):
        assert ran(replace(job, model="n", writer_sampling=Sampling()), tmp_path / "run", Speaks(adds)).rows
    with pytest.raises(RunError, match=r"another job \(count: 6 -> 7\)"):
        ran(replace(job, count=7), tmp_path / "run", Speaks(adds))
    with Run(tmp_path / "other", Filters()):
        pass
    with pytest.raises(RunError, match=r"another job \(job: Filters\(...\) -> MakeProblems"):
        ran(job, tmp_path / "other", Speaks(adds))


# A model that writes


WRITTEN = "<problem>{q}</problem><answer>{a}</answer>"


def writer(question: str, sample: int) -> str:
    """Asked for a problem, it writes one of its own number; asked to solve one, it adds."""
    if "<problem>" not in question:
        return adds(question, sample)
    seen: list[str] = writer.written  # type: ignore[attr-defined]
    if question not in seen:
        seen.append(question)
    own = seen.index(question)
    kinds = [
        WRITTEN.format(q=f"Add {own} and {own + 100} in your head.", a=2 * own + 100),
        WRITTEN.format(q=f"Now add {own} to {own + 500} instead.", a=3),  # a wrong answer
        "Here is a problem: what is 2 + 2?",
    ]
    return kinds[own % 3]


@pytest.fixture
def parents(tmp_path: Path) -> str:
    path = tmp_path / "parents.jsonl"
    rows = [{"question": f"What is {n} + {n + 1}?", "answer": 2 * n + 1, "id": f"q{n}"} for n in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_written_problems_must_be_agreed_on(parents: str, tmp_path: Path):
    writer.written = []  # type: ignore[attr-defined]
    job = MakeProblems(
        "write",
        file=parents,
        question_column="question",
        model="m",
        count=12,
        samples_per_solver=4,
        filters=PLAIN,
        seed=3,
    )
    result = ran(job, tmp_path / "run", Speaks(writer))
    assert result.filter_report.stages["asked for"] == 12 and result.filter_report.stages["made"] == 8
    assert result.filter_report.dropped["with a problem and an answer"] == {"no <problem>": 4}
    assert result.filter_report.dropped["agreed on"] == {"fewer than 2 samples give its answer": 4}
    assert len(result.rows) == 4
    for row in result.rows:
        tags = row["tags"]
        assert (tags["source"], tags["operator"], tags["seed"], tags["model"]) == ("write", "write", 3, "m")
        assert len(tags["parents"]) == 3 and all(p.startswith("q") for p in tags["parents"])
        assert int(row["answer"]) == sum(figures(tags["question"]))
    shown = writer.written[0]  # type: ignore[attr-defined]
    assert shown.count("What is") == 3


@pytest.mark.parametrize("source, operator", [("evolve", "constraint"), ("evolve", "combine"), ("backward", "")])
def test_harder_ones_and_ones_for_an_answer(parents: str, tmp_path: Path, source: Any, operator: str):
    def speak(question: str, sample: int) -> str:
        if "<problem>" not in question:
            return adds(question, sample)
        if source == "backward":
            target = int(re.findall(r"answer is ([0-9]+)", question)[0])
            return WRITTEN.format(q=f"What do {target - 1} and 1 make together?", a=target if target % 4 == 1 else 99)
        a = sum(figures(question.partition("Rewrite")[0].partition("Make one")[0]))
        return WRITTEN.format(q=f"Take {a} and add 5, then tell what you have.", a=a + 5)

    job = MakeProblems(
        source, file=parents, question_column="question", model="m", count=8, samples_per_solver=4, filters=PLAIN,
        operators=(operator,) if operator else (),
    )  # fmt: skip
    result = ran(job, tmp_path / "run", Speaks(speak))
    assert result.rows and all(int(r["answer"]) == sum(figures(r["tags"]["question"])) for r in result.rows)
    assert {len(r["tags"]["parents"]) for r in result.rows} == {2 if operator == "combine" else 1}
    assert {r["tags"]["operator"] for r in result.rows} == {operator or "backward"}
    if source == "backward":
        assert result.filter_report.dropped["with the answer asked for"]["for another answer"] > 0


def test_several_solvers_must_agree(parents: str, tmp_path: Path):
    def other(question: str, sample: int) -> str:
        """Agrees on small numbers only; on others it always says the same other thing."""
        total = sum(figures(question))
        return f"\\boxed{{{total if total < 106 else 5}}}"

    def find(name: str) -> Speaks:
        writer.written = getattr(writer, "written", [])  # type: ignore[attr-defined]
        return {"m": Speaks(writer), "a": Speaks(adds), "b": Speaks(other), "c": Speaks(other)}[name]

    writer.written = []  # type: ignore[attr-defined]
    job = MakeProblems(
        "write",
        file=parents,
        question_column="question",
        model="m",
        solvers=("a", "b", "c"),
        count=18,
        samples_per_solver=4,
        filters=PLAIN,
    )
    result = ran(job, tmp_path / "run", find)
    assert {int(r["answer"]) for r in result.rows} == {100}  # two of three solvers outvote one
    assert result.filter_report.dropped["agreed on"]["another answer is as frequent"] == 5
    assert {step for step, _ in read_traces(tmp_path / "run")} == {0, 1, 2, 3}


def test_agreement_by_hand():
    problem = synthetic_problem("x", "1 + 1?", "2", source="s", operator="o")

    def trace(*answers: str):
        out = prompt_trace(problem, ids([1]))
        for a in answers:
            step = Step(0, f"\\boxed{{{a}}}" if a else "?", ids([1, 1]), np.zeros(2, np.float32), "eos")
            step.scores["accuracy"] = Score(None if a == "u" else float(a == "2"))
            out.add(step)
        return out

    tried = SolveRate(problem)
    tried.add_trace(trace("2", "2", "3", "u", ""))
    assert (tried.correct_by_solver, tried.runner_up_by_solver, tried.num_judged, tried.pass_rate) == (
        [2],
        [1],
        4,
        0.5,
    ) and tried.majority_agrees
    tried.add_trace(trace("3", "3", "2"))
    assert not tried.majority_agrees  # one of two solvers is no majority
    tried.add_trace(trace("2"))
    assert tried.majority_agrees and tried.correct_lengths == [2, 2, 2, 2]
    even = SolveRate(problem)
    even.add_trace(trace("2", "3"))
    assert not even.majority_agrees and even.pass_rate == 0.5
    none = SolveRate(problem)
    none.add_trace(trace("u"))
    assert none.pass_rate is None


def test_mutations_need_solvers(tmp_path: Path):
    path = tmp_path / "p.jsonl"
    rows = [
        {"prompt": f"Tom has {n} marbles and gets {n + 30} more. How many marbles?", "answer": 2 * n + 30}
        for n in (5, 9)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = MakeProblems("mutate", file=str(path), model="m", count=12, samples_per_solver=4, filters=PLAIN)
    result = ran(job, tmp_path / "run", Speaks(adds))
    assert {r["tags"]["operator"] for r in result.rows} == {"numbers", "names", "units"}
    assert all(int(r["answer"]) == sum(figures(r["tags"]["question"])) for r in result.rows)
    assert all(r["tags"]["parents"][0] in ("p/1", "p/2") for r in result.rows)
    with pytest.raises(UsageError, match=r"solvers must check what .* gives"):
        MakeProblems("mutate", file=str(path))


def knows(question: str) -> list[int]:
    """An exact solver: it finds two answers where a number is odd."""
    first, second = figures(question)
    return [first + second] if first % 2 == 0 else [first + second, 0]


def test_a_program_can_say_what_is_unique(templates: str, tmp_path: Path):
    Path(templates).write_text(json.dumps(SUMS))
    job = MakeProblems("templates", file=templates, count=30, filters=PLAIN, exact_solver=f"{__name__}:knows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ponder.registry.import_object", lambda path: knows)
        result = ran(job, tmp_path / "run", Speaks(adds))
    assert result.rows and all(figures(r["tags"]["question"])[0] % 2 == 0 for r in result.rows)
    assert result.filter_report.dropped["solved by program"] == {"several answers": 30 - len(result.rows)}
    for name, kind in (("number", int), ("text", str)):  # a program may also give its one answer as it is
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "ponder.registry.import_object", lambda path, kind=kind: lambda asked: kind(sum(figures(asked)))
            )
            result = ran(job, tmp_path / name, Speaks(adds))
        assert len(result.rows) == 30 and "solved by program" not in result.filter_report.dropped


def test_max_kept_limits_the_selection(templates: str, tmp_path: Path):
    job = MakeProblems("templates", file=templates, count=40, max_kept=10, filters=PLAIN)
    result = ran(job, tmp_path / "run", Speaks(adds))
    assert len(result.rows) == 10 and {r["tags"]["domain"] for r in result.rows} == {"adding", "sharing"}
    assert result.filter_report.dropped["chosen"] == {"beyond 10": 30}


# The sieve


def ask(*questions: str) -> list[Problem]:
    return [synthetic_problem(f"q{i}", q, "1", source="s", operator="o") for i, q in enumerate(questions)]


def test_believed_answers_and_duplicates_are_kept_and_can_be_filtered_later(parents: str, tmp_path: Path):
    def repeats(question: str, sample: int) -> str:
        """Writes one of three problems, the first with a wrong answer."""
        if "<problem>" not in question:
            return adds(question, sample)
        kind = sum(figures(question)) % 3
        return WRITTEN.format(q=f"Add {kind} and 100 in your head.", a=kind + 100 if kind else 3)

    everything = Filters(dedup_threshold=0, keep_duplicates=True)
    job = MakeProblems("write", file=parents, question_column="question", count=12, model="m", samples_per_solver=4,
                       min_votes=0, min_pass_rate=0.0, max_pass_rate=1.0, filters=everything)  # fmt: skip
    result = ran(job, tmp_path / "run", Speaks(repeats))
    made = read_made_problems(tmp_path / "run")
    assert [one.problem.id for one in made] == [row["id"] for row in result.rows]
    assert [one.rate.pass_rate for one in made] == [row["pass_rate"] for row in result.rows]
    assert all(bool(one.solutions) == bool(one.rate.pass_rate) for one in made)
    assert apply_filters(made, (), ()) == made
    report = FilterReport()
    kept = apply_filters(made, ("duplicates",), (), report)
    assert len(kept) == len({one.question for one in made}) == report.stages["duplicates"] < len(made)
    assert not apply_filters(made, ("contamination",), [one.problem for one in made])
    strict = replace(job, min_votes=2, min_pass_rate=0.01, max_pass_rate=0.95, filters=PLAIN)
    left = ran(strict, tmp_path / "strict", Speaks(repeats)).rows
    assert [one.problem.id for one in apply_filters(made, FILTER_NAMES, ())] == [row["id"] for row in left]


def test_filters_by_hand():
    funnel = FilterReport()
    sieve = Filters(min_chars=12, max_chars=90, language="en", dedup_threshold=0)
    left = sieve(
        ask(
            "Too short",
            "x" * 91,
            "What is the sum of two and three and of what they are?",
            "what is the sum of two  and three and of what they are",
            "我们有三个苹果和两个梨，一共有多少个水果呢？",
            "How many of the apples are in the box that she has?",
        ),
        funnel,
    )
    assert [p.id for p in left] == ["q2", "q5"]
    assert funnel.dropped["of fitting length"] == {"too short": 1, "too long": 1}
    assert funnel.dropped["in one language"].total() == 1 and funnel.dropped["not a repetition"] == {"word for word": 1}
    with pytest.raises(TaskError, match="nothing is left at the stage 'passed the text filters'"):
        Filters(dedup_threshold=0)(ask("short"), FilterReport())


def test_near_duplicates_and_held_out_problems_go():
    pytest.importorskip("datasketch")
    held = Addition(test_size=5)
    story = "A farmer has many cows and twice as many sheep, and she counts all of their legs in the evening to be sure"
    questions = [story + " of it.", story + " of that.", held.test[0].question + " Please say it in words for me now."]
    funnel = FilterReport()
    left = Filters(dedup_threshold=0.7, decontaminate_against=(held,), ngram=4)(ask(*questions), funnel)
    assert [p.id for p in left] == ["q0"]
    assert funnel.dropped["not nearly one"] == {"70% alike": 1}
    assert funnel.dropped["not held out"] == {"shares 4 words with a held-out problem": 1}


def test_embeddings_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ponder.registry.import_object", lambda path: lambda texts: [[len(t), 1.0] for t in texts])
    funnel = FilterReport()
    left = Filters(dedup_threshold=0.999, embedder="x:y")(ask("one question", "two question"), funnel)
    assert len(left) == 1 and funnel.dropped["not nearly one"].total() == 1


# Going on, and what is refused


def test_make_problems_resumes(parents: str, tmp_path: Path):
    job = MakeProblems(
        "write",
        file=parents,
        question_column="question",
        model="m",
        count=12,
        samples_per_solver=4,
        filters=PLAIN,
        max_concurrency=2,
    )
    writer.written = []  # type: ignore[attr-defined]
    whole = ran(job, tmp_path / "whole", Speaks(writer))
    writer.written = []  # type: ignore[attr-defined]
    for at in (5, 11):  # in the writing, then in the solving
        with pytest.raises(Interrupted, match="the same command goes on"):
            ran(job, tmp_path / "parts", Speaks(writer), RecordingProgress("step", at))
    policy = Speaks(writer)
    again = ran(job, tmp_path / "parts", policy)
    assert sorted(r["prompt"] for r in again.rows) == sorted(r["prompt"] for r in whole.rows)
    assert 0 < len(policy.asked) < 8  # the rest was there
    done = Speaks(writer)
    assert ran(job, tmp_path / "parts", done).rows == again.rows and done.asked == []
    with pytest.raises(RunError, match="another job"):
        ran(MakeProblems("write", model="m", count=3), tmp_path / "parts", done)


def test_a_changed_question_is_asked_anew(tmp_path: Path):
    """The file has the same ids, but other questions under them: attempts at the old ones say nothing."""
    file = tmp_path / "p.jsonl"
    job = MakeProblems("filter", file=str(file), solvers=("m",), samples_per_solver=4, filters=PLAIN)
    rows = [{"id": str(i), "prompt": f"What is {i} + {i} in all?", "answer": 2 * i} for i in range(3)]
    for number, wanted in ((1, 3), (50, 1), (50, 0)):
        rows[1] |= {"prompt": f"What is {number} + {number} in all?", "answer": 2 * number}
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        policy = Speaks(adds)
        made = ran(job, tmp_path / "run", policy)
        assert [row["answer"] for row in made.rows] == ["0", str(2 * number), "4"] and len(policy.asked) == wanted


def test_missing_settings_are_reported_before_any_work(parents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    policy = Speaks(writer)
    with pytest.raises(MissingExtra, match=r"near=0 does without"):
        ran(MakeProblems("write", file=parents, question_column="question", model="m"), tmp_path / "a", policy)
    for settings in ({"exact_solver": "no:where"}, {"filters": Filters(dedup_threshold=0.5, embedder="no:where")}):
        with pytest.raises(UsageError, match="cannot load 'no:where'"):
            ran(
                MakeProblems("write", model="m", **{"filters": PLAIN, **settings}),
                tmp_path / str(len(settings)),
                policy,
            )
        (tmp_path / str(len(settings)) / "job.json").unlink()
    assert policy.asked == []


def test_without_examples_a_topic_is_given(tmp_path: Path):
    policy = Speaks(lambda q, i: WRITTEN.format(q=q[:60], a=1) if "<problem>" in q else "\\boxed{1}")
    result = ran(MakeProblems("write", model="m", count=30, filters=PLAIN, max_pass_rate=1.0), tmp_path / "run", policy)
    assert len({row["tags"]["domain"] for row in result.rows}) > 8
    assert all(f"about {row['tags']['domain']}"[:20] in row["prompt"] for row in result.rows)


def test_a_policy_that_always_fails_ends_it(parents: str, tmp_path: Path):
    class Fails(Speaks):
        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            raise UsageError("the prompt is too long")

    job = MakeProblems("write", file=parents, question_column="question", model="m", count=40)
    with pytest.raises(ModelError, match="every attempt to write fails, the last one because: the prompt is too long"):
        ran(job, tmp_path / "run", Fails(adds))
    assert json.loads((tmp_path / "run" / "filter_report.json").read_text())[0]["stage"] == "asked for"


def test_replies_without_problems_fail_with_the_report(parents: str, tmp_path: Path):
    job = MakeProblems("write", file=parents, question_column="question", model="m", count=5)
    with pytest.raises(TaskError, match="nothing is left at the stage 'made'") as error:
        ran(job, tmp_path / "run", Speaks(lambda q, i: "no"))
    assert "5 no <problem>" in str(error.value)
    assert len(list(read_traces(tmp_path / "run"))) == 5


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"source": "magic"}, UnknownName),
        ({"source": "templates"}, UsageError),
        ({"source": "evolve", "model": "m"}, UsageError),
        ({"source": "filter"}, UsageError),
        ({"source": "write"}, UsageError),
        ({"source": "write", "model": "m", "samples_per_solver": 0}, UsageError),
        ({"source": "write", "model": "m", "samples_per_solver": 1}, UsageError),
        ({"source": "evolve", "model": "m", "file": "f", "operators": ("numbers",)}, UnknownName),
        ({"source": "write", "model": "m", "file": "f", "task": Addition()}, UsageError),
        ({"source": "write", "model": "m", "count": 0}, UsageError),
        ({"source": "write", "model": "m", "min_pass_rate": 0.9, "max_pass_rate": 0.5}, UsageError),
        ({"source": "write", "model": "m", "max_kept": 0}, UsageError),
        ({"source": "write", "model": "m", "prompt": "no field"}, UsageError),
        ({"source": "write", "model": "m", "prompt": "{question} {more}"}, UsageError),
    ],
)
def test_make_problems_refuses_impossible_settings(settings: dict[str, Any], error: type[Exception]):
    with pytest.raises(error):
        MakeProblems(**settings)


@pytest.mark.parametrize(
    "settings", [{"language": "xx"}, {"dedup_threshold": 2.0}, {"min_chars": 9, "max_chars": 8}, {"ngram": 0}]
)
def test_filters_refuse_impossible_settings(settings: dict[str, Any]):
    with pytest.raises(UsageError):
        Filters(**settings)


def test_parents_that_do_not_fit(tmp_path: Path):
    one = tmp_path / "one.jsonl"
    one.write_text('{"prompt": "What is 1 + 1?", "answer": 2}')
    job = MakeProblems("evolve", file=str(one), model="m", operators=("combine",))
    with pytest.raises(TaskError, match="starts from 2 problems or more, not 1"):
        ran(job, tmp_path / "a", Speaks(adds))
    one.write_text('{"question": "What is 1 + 1?", "answer": 2}')
    with pytest.raises(TaskError, match="lacks the column 'prompt'; it has: question, answer"):
        ran(MakeProblems("filter", file=str(one)), tmp_path / "b", Speaks(adds))
    one.write_text('{"prompt": [{"content": "What is 1 + 1?"}], "answer": 2}')
    with pytest.raises(TaskError, match="line 1 is no problem: 'prompt' is neither a text nor messages"):
        ran(MakeProblems("filter", file=str(one)), tmp_path / "c", Speaks(adds))
    one.write_text('{"prompt": "What is 1 + \\ud800?", "answer": 2}')
    with pytest.raises(TaskError, match=r"line 1 is no problem: .*surrogates"):
        ran(MakeProblems("filter", file=str(one)), tmp_path / "d", Speaks(adds))

    with pytest.raises(TaskError, match="'odd/1' has no answer in plain text, which mutate needs: its answer is dict"):
        check_parents("mutate", (), [Problem("odd/1", user_messages("?"), {"columns": {}})])


def test_how_to_answer_is_no_part_of_a_tasks_question():
    asked = Algebra(test_size=2)
    assert "Put the final number" in asked.test[0].question and "Put" not in without_instruction(asked).test[0].question
    funnel = FilterReport()
    left = Filters(dedup_threshold=0, decontaminate_against=(asked,))(
        ask("Why? Put the final number in \\boxed{}, and say it twice for me"), funnel
    )
    assert len(left) == 1  # words that every prompt of the task has give nothing away
    assert without_instruction(Addition()) == Addition()


def test_a_task_can_be_started_from(tmp_path: Path):
    job = MakeProblems("filter", task=Addition(digits=2), count=20, filters=Filters(dedup_threshold=0, min_chars=1))
    result = ran(job, tmp_path / "run", Speaks(adds))
    assert result.rows and result.filter_report.stages["given"] == 20
    assert "boxed" in result.rows[0]["prompt"] and result.rows[0]["tags"]["parents"] == [result.rows[0]["id"]]
    again = MakeProblems(
        "filter", file=str(tmp_path / "run" / "problems.jsonl"), filters=Filters(dedup_threshold=0, min_chars=1)
    )
    assert ran(again, tmp_path / "again", Speaks(adds)).rows == result.rows
