"""How to answer is said once, by the style; what is shown is what is sent; and the grader reads what was asked for."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, run_async
from ponder.cli import main
from ponder.cli.strategy_flags import strategy_from_flags
from ponder.errors import PonderError, UsageError
from ponder.models.chat_templates import render_chat
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.pictures.message_parts import content_text
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.label import Label
from ponder.pipelines.preflight.run_checks import _gather_samples
from ponder.pipelines.problems.filters import without_instruction
from ponder.pipelines.problems.prompt_style import apply_style, strategy_style, styled_question
from ponder.pipelines.replay import StoredAttempts, find_scorer
from ponder.pipelines.rl import RL, build_learners
from ponder.pipelines.sft import FineTune
from ponder.pipelines.solve import solve, try_solve
from ponder.reason.budget import Budget
from ponder.reason.first_prompt import first_messages, first_prompt
from ponder.reason.presets import PRESETS
from ponder.reason.prompts import DIRECT, STEP_BY_STEP, Prompt
from ponder.reason.strategies import Cascade, Chain, MajorityVote, Samples
from ponder.reason.strategies.length_control import TokenControl
from ponder.runs import job_json
from ponder.tasks import BBH, GSM8K, MATH500, TASKS, Addition, Arithmetic, Countdown, Sorting, Suite, Sums
from ponder.tasks.answer_style import StyledTask, StyleWrapper, with_style
from ponder.tasks.mixture import TaskMixture, WeightedRewardTask
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Completion, Cost, Ids, Message, Problem, Sampling, Score, Step, Trace, ids, prompt_trace
from ponder.verify.answers.style import ANSWER_STYLES, answer_instruction, find_style

needs_data = pytest.mark.skipif(not os.environ.get("PONDER_DATA"), reason="PONDER_DATA names no folder of data sets")
LOADED = ("arc", "bbh", "cruxeval", "game24", "gsm8k", "humaneval", "math500", "mawps", "mbpp", "processbench", "svamp")
PLAYED = [name for name, kind in TASKS.items() if kind.__module__.startswith("ponder.tasks.environments.")]
DRAWN = [
    name for name in TASKS if name not in (*LOADED, *PLAYED, "questions", "custom", "coco", "refcoco", "reasoning-gym")
]
WAYS = (
    "chain", "direct", "cot", "cot-sc", "majority-vote", "best-of-n", "beam-search", "mcts", "self-refine",
    "tree-of-thoughts", "graph-of-thoughts", "llama-berry", "rstar-style", "budget-forcing", "token-control",
    "step-control", "class-control", "length-rejection", "entropy-fork", "tool-use",
)  # fmt: skip
PLACES = ("\\boxed", "<answer>", "begins with ####", 'begins with "Answer:"', "in a ```python block")


@pytest.fixture(autouse=True, scope="module")
def few_rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The first rows of each data set, since every style reads them again."""
    if "PONDER_DATA" not in os.environ:
        yield
        return
    here, there = Path(os.environ["PONDER_DATA"]), tmp_path_factory.mktemp("data")
    kept = {"24.csv": range(880, 940), "mbpp.jsonl": (*range(10, 30), *range(600, 606))}
    for path in (p for name in LOADED for p in (here / name).rglob("*") if p.is_file()):
        to = there / path.relative_to(here)
        to.parent.mkdir(parents=True, exist_ok=True)
        rows = kept.get(path.name, range(40))
        if path.suffix == ".json":
            data = json.loads(path.read_text())
            few = {**data, "examples": data["examples"][:4]} if isinstance(data, dict) else data[:60]
            to.write_text(json.dumps(few))
        elif path.suffix in (".jsonl", ".csv", ".gz"):
            opens: Any = gzip.open if path.suffix == ".gz" else open
            with opens(path, "rt") as source, opens(to, "wt") as out:
                lines = list(source)
                out.writelines(lines[i] for i in (*([0] if path.suffix == ".csv" else []), *rows) if i < len(lines))
        else:
            shutil.copy(path, to)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PONDER_DATA", str(there))
        yield


@lru_cache(maxsize=64)
def made(name: str) -> Any:
    small = {"limit": 20} if name in LOADED else {} if name == "suite" else {"test_size": 12}
    return TASKS[name](**small)


@lru_cache(maxsize=64)
def problems(name: str, style: str | None = None) -> tuple[Problem, ...]:
    task = made(name) if style is None else with_style(made(name), style)
    return tuple(task.test[:12])


def every_task() -> list[Any]:
    data = Path(os.environ.get("PONDER_DATA", "/nowhere"))
    lacks = {
        name: pytest.mark.skipif(not (data / name).is_dir(), reason=f"PONDER_DATA has no {name}") for name in LOADED
    }
    return [*DRAWN, *(pytest.param(name, marks=mark) for name, mark in lacks.items())]


@dataclass
class Scribe:
    """A policy that keeps what it is sent, and writes one text."""

    says: str = "So it is 3.\n\nThe answer is 3."

    def __post_init__(self) -> None:
        self.sent: list[str] = []

    def encode(self, messages: Sequence[Message]) -> Ids:
        texts = [{**message, "content": content_text(message["content"])} for message in messages]
        return self.tokens(render_chat("plain", texts))

    def tokens(self, text: str) -> Ids:
        return ids(text.encode())

    def text(self, tokens: Ids) -> str:
        return bytes(int(t) for t in tokens).decode(errors="replace")

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        self.sent.append(self.text(prefix))
        tokens = self.tokens(self.says)[: sampling.max_tokens]
        cost = Cost(generated_tokens=len(tokens))
        logprobs = np.full(len(tokens), -0.1, np.float32)
        return [Completion(self.text(tokens), tokens, logprobs, "eos", cost=cost)] * n


@dataclass(frozen=True)
class Halfway:
    name: str = "guide"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(0.5)] * len(steps)


def sent_by(way: str, task: Any, problem: Problem) -> list[str]:
    """Every prompt that reaches the policy."""
    scribe = Scribe()
    strategy, _, _ = strategy_from_flags(way)
    run_async(try_solve(problem, strategy, scribe, task.verifier, guide=Halfway(), budget=Budget(300)))
    return scribe.sent


def faults(prompt: str, problem: Problem) -> list[str]:
    """What is said twice, or against itself, around the question and what was written before."""
    text = prompt.replace(problem.bare_question, "")
    result = ["to think is said twice"] if text.count("tep by step") > 1 else []
    if "without explanation" in text and ("tep by step" in text or text.count("without explanation") > 1):
        result.append("to think and not to, or not to twice")
    places = [place for place in PLACES if place in text]
    if len(places) > 1:
        result.append(f"the answer belongs in several places: {places}")
    twice = [place for place in places if text.count(place) > 1]
    return result + [f"{place} is said twice" for place in twice]


@pytest.mark.parametrize("name", every_task())
def test_no_prompt_says_twice_or_against_itself_how_to_answer(name: str) -> None:
    for way in WAYS:
        job = Evaluate(made(name), strategy=strategy_from_flags(way)[0])
        problem = job.task.test[0]
        sent = sent_by(way, job.task, problem)
        assert sent, f"{way} sent nothing"
        assert (way, {prompt: wrong for prompt in sent if (wrong := faults(prompt, problem))}) == (way, {})


@needs_data
@pytest.mark.parametrize("name", ["gsm8k", "svamp", "mawps", "math500"])
def test_direct_and_cot_differ_in_the_instruction_alone(name: str) -> None:
    asked = {way: Evaluate(made(name), strategy=PRESETS[way].strategy).task.test[0] for way in ("direct", "cot")}
    direct, cot = asked["direct"].question, asked["cot"].question
    assert asked["direct"].bare_question == asked["cot"].bare_question == made(name).test[0].bare_question
    assert "only" in direct and "step" not in direct and "boxed" not in direct
    assert cot.endswith("in \\boxed{}.") and cot == made(name).test[0].question
    job = Evaluate(made(name), strategy=PRESETS["direct"].strategy)
    assert judged(job.task, asked["direct"], str(asked["direct"].answer)) == 1.0
    assert judged(made(name), asked["cot"], str(asked["cot"].answer)) == 0.0  # a box was asked for


def judged(task: Any, problem: Problem, text: str) -> float | None:
    trace = prompt_trace(problem, ids([]))
    (score,) = run_async(task.verifier(trace, [trace.add(Step(0, text, ids([]), stop="eos"))]))
    return score.value  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", every_task())
@pytest.mark.parametrize("style", ANSWER_STYLES)
def test_gold_in_each_style_is_right_and_anothers_gold_is_wrong(style: str, name: str) -> None:
    task = with_style(made(name), style)
    given = problems(name, style)
    first = given[0]
    assert judged(task, first, task.gold(first)) == 1.0
    others = [task.gold(p) for p in given[1:] if p.answer != first.answer and task.gold(p) != task.gold(first)]
    assert 0.0 in [judged(task, first, other) for other in others[:4]]
    assert judged(task, first, "") == 0.0


@pytest.mark.parametrize(
    ("style", "text", "value"),
    [
        ("direct", "85", 1.0), ("direct", "85.", 1.0), ("direct", "The answer is 85.", 1.0),
        ("direct", "\\boxed{85}", 1.0), ("direct", "84", 0.0), ("direct", "It may be 85 or so.", 0.0),
        ("direct", "First 27 + 50 = 77, so it comes to 85", 0.0), ("cot", "27 + 58: \\boxed{85}", 1.0),
        ("cot", "85", 0.0), ("cot", "We add 27 and 58, which gives 85", 1.0), ("answer", "85", 0.0),
        ("answer", "\\boxed{85}", 1.0), ("r1", " 27 + 58 </think> <answer>85</answer>", 1.0),
        ("r1", " 27 + 58 is 85 </think> 85", 0.0), ("plain", "85", 1.0), ("plain", "\\boxed{85}", 1.0),
    ],
)  # fmt: skip
def test_an_answer_is_read_in_the_form_that_was_asked_for(style: str, text: str, value: float) -> None:
    assert Addition(style=style).verifier.grade(text, "85").value == value


def test_the_tasks_own_prompts_are_as_they_were() -> None:
    """What recipes and the demo were measured with."""
    assert Addition(seed=3).train[0].question.startswith("What is ") and Addition().train[0].question.endswith("?")
    assert (
        Addition().train[0].answer_instruction == ""
        and Arithmetic().train[0].answer_instruction == " Answer with the number only."
    )
    assert Sums().train[0].question.endswith("? Add one number at a time, and write the sum after #### at the end.")
    assert Sums(prompt="{sum}=", forms=("hash",)).train[0].question.endswith("=")
    assert Countdown().train[0].question.endswith(". Give the expression in <answer> </answer>.")
    assert Sorting().train[0].question.endswith(".\nGive the sorted list in <answer> </answer>, separated by commas.")
    own = Countdown(prompt="{numbers}>{target}", forms=("hash",)).train[0]
    assert own.answer_instruction == "" and ">" in own.question


def test_a_prompt_of_ones_own_says_itself_how_to_answer_unless_a_style_is_named() -> None:
    assert Sums(prompt="Add {sum}.").train[0].question.endswith(".")
    styled = Sums(prompt="Add {sum}.", style="direct").train[0]
    assert styled.question.endswith(". Give only the final number, without explanation.")
    with pytest.raises(UsageError, match="no style of answers named 'dirct'"):
        Addition(style="dirct")


def test_forms_narrow_what_is_asked_for() -> None:
    assert (
        Addition(forms=("tag",), style="cot").train[0].question.endswith("give the final number in <answer> </answer>.")
    )
    assert Addition(forms=("hash",), style="answer").train[0].question.endswith("on a last line that begins with ####.")
    with pytest.raises(UsageError, match="asks for more than a bare answer"):
        _ = Addition(forms=("bare",), style="cot").train[0]
    assert Addition(forms=("bare",)).restyle("cot").answer_forms[0] == "boxed"


@needs_data
def test_forms_of_a_task_that_asks_by_itself() -> None:
    assert GSM8K(forms=("bare",), limit=5).test[0].question.endswith("Give only the final number, without explanation.")
    assert GSM8K(forms=("tag",), limit=5).test[0].question.endswith("give the final number in <answer> </answer>.")
    old = GSM8K(prompt="{question}\nThink, then \\boxed{{}}.", forms=("boxed", "tag", "hash", "line"), limit=5)
    assert old.test[0].question.endswith("Think, then \\boxed{}.") and old.test[0].style == "plain"
    assert without_instruction(GSM8K(limit=5)).test[0].question == GSM8K(limit=5).test[0].bare_question


@needs_data
def test_worked_examples_are_a_style_of_their_own() -> None:
    task = BBH(part="navigate", cot=True, limit=3)
    asked = apply_style(task, PRESETS["cot"].strategy).test[0].question
    assert (
        asked == task.test[0].question
        and asked.count("step by step") == task.test[0].bare_question.count("step by step") + 1
    )
    with pytest.raises(UsageError, match="worked examples"):
        apply_style(task, PRESETS["direct"].strategy)


@needs_data
def test_solutions_stand_only_where_the_style_has_room_for_them() -> None:
    problem = MATH500(limit=3).test[0]
    assert "\\boxed" in MATH500(limit=3).gold(problem)
    assert MATH500(limit=3, style="direct").gold(problem) == problem.answer


def test_every_job_asks_in_its_strategys_style() -> None:
    direct, task = PRESETS["direct"].strategy, Addition()
    several = Samples(2, Sampling(max_tokens=8), DIRECT)
    for job in (Evaluate(task, strategy=direct), Collect(task, strategy=direct), Label(task, strategy=direct)):
        assert job.task == Addition(style="direct") and job_json.decode(job_json.encode(job)) == job
        assert replace(job, seed=5).task == job.task
    assert RL(task, strategy=several).task == Addition(style="direct")
    assert Evaluate(task, strategy=Chain()).task is task and RL(task).task is task
    mixed = Evaluate(TaskMixture((Addition(), WeightedRewardTask(Sums(), (("accuracy", 1.0),)))), strategy=direct).task
    assert [p.style for p in mixed.test[:2]] == ["direct", "direct"]


def test_a_template_that_says_how_to_answer_is_not_contradicted() -> None:
    job = Evaluate(Sorting(), template="r1")
    assert job.task.resolved_style == "r1" and "<answer>" not in job.task.test[0].question
    assert render_chat("r1", job.task.test[0].messages).count("<answer> ") == 2  # in the template's own words
    assert Evaluate(Sorting(), template="r1", strategy=PRESETS["cot"].strategy).task.resolved_style == "r1"
    with pytest.raises(UsageError, match="template r1 tells the model to think"):
        Evaluate(Sorting(), template="r1", strategy=PRESETS["direct"].strategy)
    tune = FineTune(Sums(), template="r1")
    assert not isinstance(tune.data, str)
    gold = tune.data.gold(tune.data.train[0])
    assert gold.endswith("</answer>") and gold.count("</think>") == 1 and "<think>" not in gold
    assert FineTune(Addition(style="cot")).data.gold(Addition().train[0]).startswith("\\boxed")  # type: ignore[union-attr]


def test_strategies_in_one_trace_have_one_style() -> None:
    fast = Chain(prompt=DIRECT)
    assert strategy_style(Cascade(fast, MajorityVote(prompt=DIRECT))) == "direct" and strategy_style(Cascade()) == ""
    with pytest.raises(UsageError, match="different styles \\(direct and the task's own\\)"):
        strategy_style(Cascade(fast, MajorityVote()))


def test_a_task_without_styles_takes_one() -> None:
    task = Evaluate(DigitTask(), strategy=PRESETS["direct"].strategy).task
    assert isinstance(task, StyleWrapper) and not isinstance(DigitTask(), StyledTask)
    assert task.test[0].question.endswith("\nGive only the final answer, without explanation.")
    assert task.test[0].bare_question == DigitTask().test[0].question and len(task.train) == len(DigitTask().train)
    again = apply_style(task, PRESETS["cot"].strategy)
    assert again.test[0].question.count("\n") == 1 and "step by step" in again.test[0].question
    read = StyleWrapper(Solver(), "direct").verifier
    assert read.grade("5", "5").value == 1.0 and read.grade("\\boxed{5}", "5").value == 1.0  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Solver:
    """Somebody's task, which knows boxes only."""

    name = "solver"
    train = test = (Problem("a", ({"role": "user", "content": "2 + 3"},), "5"),)

    @property
    def verifier(self) -> Any:
        from ponder.verify import FinalNumber

        return FinalNumber(("boxed",))

    def gold(self, problem: Problem) -> str:
        return f"\\boxed{{{problem.answer}}}"


def test_a_problem_that_comes_without_a_style_is_asked_in_the_strategys() -> None:
    scribe = Scribe()
    problem = Problem("q", ({"role": "user", "content": "2 + 3?"},))
    run_async(solve(problem, Chain(prompt=STEP_BY_STEP), scribe))
    run_async(solve(styled_question("2 + 3?", Chain(prompt=STEP_BY_STEP)), Chain(prompt=STEP_BY_STEP), scribe))
    assert scribe.sent[0] == scribe.sent[1] and scribe.sent[0].count("step by step") == 1
    assert styled_question("2 + 3?").question == "2 + 3?"
    with pytest.raises(UsageError, match="in style direct, and the strategy in style cot"):
        run_async(solve(Addition(style="direct").test[0], Chain(prompt=STEP_BY_STEP), scribe))


def test_a_strategy_that_thinks_adds_nothing_to_a_template_that_does() -> None:
    job = Evaluate(Addition(), template="r1", strategy=PRESETS["cot"].strategy)
    (sent,) = sent_by("cot", job.task, job.task.test[0])
    assert "step by step" not in sent and "boxed" not in sent


@pytest.mark.parametrize(
    "way", ["chain", "direct", "cot", "token-control", "tool-use", "tree-of-thoughts", "self-refine"]
)
@pytest.mark.parametrize("name", ["addition", "sorting", "countdown"])
def test_tasks_shows_the_prompt_that_is_sent(way: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", name, "--strategy", way, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    task = Evaluate(TASKS[name](), strategy=strategy_from_flags(way)[0]).task
    assert sent_by(way, task, task.train[0])[0] == render_chat("plain", shown["messages"])
    assert shown["problem"] == shown["messages"][-1]["content"] and shown["verdict"]["value"] == 1.0
    assert main(["tasks", name, "--strategy", way]) == 0
    lines = capsys.readouterr().out
    assert all(f"  {line}" in lines for line in shown["problem"].splitlines())


def test_no_effort_is_an_effort(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "addition", "--effort", "none", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["style"] == "direct" and "without explanation" in shown["problem"]
    assert main(["tasks", "addition", "--effort", "low", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["style"] == "plain"


def test_the_checks_before_a_run_sample_after_the_prompt_that_the_run_sends() -> None:
    few_shot = Prompt(instruction="b", examples=(("1", "2"),), system="s", style="plain")
    job = RL(DigitTask(), ScratchModel(ALPHABET + "\nbs", width=32, layers=1, heads=2, context=64), QUESTION_TEMPLATE,
             Samples(2, Sampling(max_tokens=4), few_shot), device="cpu", dtype="float32")  # fmt: skip
    policy = load_policy(job.model, template=job.template, device="cpu", dtype="float32")
    evidence = run_async(_gather_samples(job, policy, build_learners(job, policy)[0], job.strategy.sampling))  # type: ignore[attr-defined]
    problem = evidence.problems[0]
    sent = run_async(first_prompt(job.strategy, problem, policy))
    trace, _ = evidence.credited()[0]
    assert trace.steps[0].token_ids.tolist() == sent.tolist() != policy.encode(problem.messages).tolist()


def test_a_first_prompt_needs_no_model() -> None:
    problem = Addition().train[0]
    output = run_async(first_messages(TokenControl(8), problem))
    assert output[-1]["content"] == f"{problem.question}\nThink for at most 8 tokens before you give the final answer."
    assert run_async(first_messages(Chain(), problem)) == [dict(m) for m in problem.messages]


def test_a_run_is_judged_again_in_the_style_that_it_asked_in(tmp_path: Path) -> None:
    task = Addition(style="direct")
    trace = prompt_trace(task.test[0], ids([]))
    trace.add(Step(0, str(task.test[0].answer), ids([1]), stop="eos"))
    assert trace_from_json(trace_to_json(trace)).problem == task.test[0]
    stored = StoredAttempts(None, (trace,))  # type: ignore[arg-type]
    again, _ = find_scorer("svamp" if os.environ.get("PONDER_DATA") else "counting", stored, lambda name: TASKS[name]())
    assert again.grade("85", "85").value == 1.0  # type: ignore[attr-defined]
    chosen, _ = find_scorer("counting", stored, lambda name: TASKS[name](style="cot"))
    assert chosen.grade("85", "85").value == 0.0  # type: ignore[attr-defined]


def test_what_is_asked_about_an_answer_quotes_the_bare_question() -> None:
    problem = Suite(categories=("arithmetic",)).test[0]
    asked = sent_by("self-refine", Suite(), problem)
    assert (
        problem.answer_instruction.strip() in asked[0] and problem.answer_instruction.strip() not in asked[1]
    )  # the critique
    assert (
        asked[2].rstrip().removesuffix("Assistant:").rstrip().endswith(problem.answer_instruction.strip())
    )  # answers again


@pytest.mark.parametrize("style", ANSWER_STYLES)
def test_a_style_says_one_thing(style: str) -> None:
    text = answer_instruction(find_style(style))
    assert ("step by step" in text) == (style == "cot") and ("without" in text) == (style == "direct")


def test_errors_are_ponders() -> None:
    with pytest.raises(PonderError):
        asyncio.run(solve(Problem("q", ()), Chain(prompt=Prompt(style="cott")), Scribe()))
