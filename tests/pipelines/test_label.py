"""Labels by sampling, in a world where it is known which step is wrong: budgets, binary search, visits, the job."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, RecordingProgress, run_async
from ponder.errors import Interrupted, RunError, TaskError, UsageError
from ponder.models.load import load_policy
from ponder.models.replicas.ledger import read_ledger
from ponder.models.replicas.replica_policy import LEDGER_FILE
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf
from ponder.pipelines.label import Label
from ponder.pipelines.rewards.step_labelling import (
    CompletionCounts,
    ExactSteps,
    FirstErrorSearch,
    MathShepherd,
    StepLabeller,
    steps_to_label,
)
from ponder.pipelines.training.open_sampler import REPLICAS_FOLDER
from ponder.reason.strategies import Samples
from ponder.runs import Run, job_json, read_traces
from ponder.tasks.step_labels import LABEL_SCORE
from ponder.tasks.step_labels.step_split import split_steps
from ponder.types import Completion, Cost, Ids, Message, Problem, Sampling, Score, Step, Trace, ids, user_messages


@dataclass
class World:
    """From a prefix with an "x" in it no right answer is to be had; from another, with this chance."""

    chance: float = 1.0
    seed: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list)

    def encode(self, messages: Sequence[Message]) -> Ids:
        return self.tokens("".join(str(m["content"]) for m in messages))

    def tokens(self, text: str) -> Ids:
        return ids(ord(c) for c in text)

    def text(self, tokens: Ids) -> str:
        return "".join(chr(t) for t in tokens.tolist())

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        text = self.text(prefix)
        self.asked.append((text, n))
        draw = np.random.default_rng([self.seed, len(self.asked), *prefix.tolist()])
        words = ["wrong" if "x" in text or draw.random() >= self.chance else "right" for _ in range(n)]
        return [Completion(w, self.tokens(w), np.zeros(5, np.float32), "eos", cost=Cost(3, 0, 5)) for w in words]


class Ends:
    """1 for what ends in "right", undecided for what ends in "?"."""

    name = "gold"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        texts = [trace.text(i) for i in steps]
        return [Score(None, "odd") if t.endswith("?") else Score(float(t.endswith("right"))) for t in texts]


def chain(*steps: str, id: str = "p") -> Trace:
    trace = Trace(Problem(id, user_messages("q:"), "gold"), [Step(None, "q:", ids(map(ord, "q:")))])
    at = 0
    for i, text in enumerate(steps):
        stop: Any = "eos" if i == len(steps) - 1 else "stop"
        at = trace.add(Step(at, text, ids(map(ord, text)), np.zeros(len(text), np.float32), stop))
    return trace


def labels(trace: Trace) -> list[float | None]:
    return [trace.score(i, LABEL_SCORE) for i in range(1, len(trace.steps))]


def test_math_shepherd_hard_and_soft_labels() -> None:
    trace, world = chain("a", "b", "x", "c", "wrong"), World()
    run_async(MathShepherd(max_completions=4, kind="hard")(trace, world, Ends()))
    assert labels(trace) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert trace.steps[1].scores[LABEL_SCORE].reason == "2 of 2 completions are right"
    assert world.asked.count(("q:a", 2)) == 1 and ("q:ab", 2) in world.asked, "decided in the first round"
    assert [n for text, n in world.asked if text == "q:abx"] == [2, 2], "all four, in two rounds"
    assert trace.cost.generated_tokens == 5 * (2 + 2 + 4 + 4) and trace.cost.prompt_tokens > 0
    half, world = chain("a", "x", "wrong"), World(0.5, seed=3)
    run_async(MathShepherd(max_completions=400)(half, world, Ends()))
    share, *rest = labels(half)
    assert share == pytest.approx(0.5, abs=0.08) and rest == [0.0, 0.0]
    assert sum(n for text, n in world.asked if text == "q:a") == 400


def test_soft_labels_sample_more_if_uncertain() -> None:
    sure, unsure = chain("a", "right"), chain("a", "right")
    first, second = World(1.0), World(0.5)
    rule = MathShepherd(max_completions=256, first_round=8, max_interval_width=0.3)
    run_async(rule(sure, first, Ends()))
    run_async(rule(unsure, second, Ends()))
    drawn = [sum(n for _, n in world.asked) for world in (first, second)]
    assert drawn[0] == 16 and 32 <= drawn[1] <= 64, "16 of 16 is [.81, 1]; a half takes about 40"
    assert sure.score(1, LABEL_SCORE) == 1.0 and sure.score(2, LABEL_SCORE) == 1.0


def test_answer_is_graded_itself_and_undecided_is_not_zero() -> None:
    trace, world = chain("a?"), World()
    run_async(MathShepherd(max_completions=2)(trace, world, Ends()))
    assert labels(trace) == [None] and "1 undecided" in trace.steps[1].scores[LABEL_SCORE].reason and not world.asked


class Full(World):
    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        raise UsageError("the prompt fills the context")


def test_prefix_without_room_is_undecided() -> None:
    trace = chain("a", "wrong")
    run_async(MathShepherd(max_completions=2)(trace, Full(), Ends()))
    assert labels(trace) == [None, 0.0] and "fills the context" in trace.steps[1].scores[LABEL_SCORE].reason
    trace = chain("a", "b", "wrong")
    run_async(FirstErrorSearch(max_completions=2)(trace, Full(), Ends()))
    assert labels(trace) == [None, None, None]


@given(st.integers(1, 40), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_binary_search_finds_the_first_wrong_step(length: int, wrong: int) -> None:
    """As labelling every step would, at about log2 of the cost."""
    wrong = min(wrong, length)
    trace, world = chain(*("x" if i == wrong else "a" for i in range(length)), "wrong"), World()
    every = chain(*(s.text for s in trace.steps[1:]))
    run_async(FirstErrorSearch(max_completions=3, first_round=3)(trace, world, Ends()))
    run_async(MathShepherd(max_completions=3, kind="hard")(every, World(), Ends()))
    assert labels(trace) == labels(every) == [1.0] * wrong + [0.0] * (length + 1 - wrong)
    assert len(world.asked) <= np.ceil(np.log2(length + 1)) + 1


def test_right_answer_labels_its_steps_without_sampling() -> None:
    trace, world = chain("a", "b", "right"), World()
    run_async(FirstErrorSearch()(trace, world, Ends()))
    assert labels(trace) == [1.0, 1.0, 1.0] and not world.asked
    trace.add(Step(2, "x", ids([ord("x")]), np.zeros(1, np.float32), "stop"))
    trace.add(Step(4, "wrong", ids(map(ord, "wrong")), np.zeros(5, np.float32), "eos"))
    run_async(FirstErrorSearch()(trace, world, Ends()))
    assert labels(trace) == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert {text for text, _ in world.asked} == {"q:abx"}, "what leads to a right answer is not tried"
    assert "takes wrong steps to stay wrong" not in trace.steps[1].scores[LABEL_SCORE].reason
    mixed = chain("a", "odd?")
    run_async(FirstErrorSearch()(mixed, World(), Ends()))
    assert labels(mixed) == [None, None] and "undecided: odd" in mixed.steps[2].scores[LABEL_SCORE].reason


def test_traces_are_labelled_concurrently() -> None:
    """Nobody waits for another: all first rounds are asked for before any is answered."""
    traces, world = [chain("a", "x", "wrong", id=str(i)) for i in range(5)], World()

    async def label_all() -> None:
        await asyncio.gather(*(MathShepherd(max_completions=2)(trace, world, Ends()) for trace in traces))

    run_async(label_all())
    assert all(labels(t) == [1.0, 0.0, 0.0] for t in traces) and len(world.asked) == 10


def test_rounds_with_a_seed_differ() -> None:
    seeds: list[int | None] = []

    class Seeded(World):
        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            seeds.append(sampling.seed)
            return await super().generate(prefix, sampling, n)

    run_async(
        MathShepherd(max_completions=8, first_round=2, kind="hard", sampling=Sampling(seed=5))(
            chain("x", "wrong"), Seeded(), Ends()
        )
    )
    assert seeds == [5, 7, 9]


def test_steps_to_label_skips_meta_steps_and_prompts() -> None:
    trace = chain("a", "right")
    trace.add(Step(1, "is that good?", ids([7]), np.zeros(1, np.float32), "eos", meta=True))
    trace.add(Step(1, "a tool's", ids([9])))
    trace.add(Step(1, "dropped", ids([9]), np.zeros(1, np.float32), "stop", pruned="worse than others"))
    assert steps_to_label(trace) == [1, 2]
    given_text = chain("a", "b")
    for step in given_text.steps:
        step.logprobs = None
    assert steps_to_label(given_text) == [1, 2]


@dataclass(frozen=True, kw_only=True)
class NoX(ExactSteps):
    """A step is right without an "x", and where it is not the third."""

    def is_right(self, problem: Problem, before: Sequence[str], step: str) -> bool:
        return "x" not in step and len(before) < 3


def test_exact_labels_sample_nothing_and_stay_wrong_after_the_first_wrong_step() -> None:
    trace, world = chain("a", "x", "c", "right"), World()
    branch = trace.add(Step(1, "b", ids([98]), np.zeros(1, np.float32), "stop"))
    trace.add(Step(branch, "d", ids([100]), np.zeros(1, np.float32), "eos"))
    run_async(NoX()(trace, world, Ends()))
    assert labels(trace) == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0] and not world.asked
    assert trace.steps[3].scores[LABEL_SCORE].reason == "after a wrong step"


def test_labellers_refuse_impossible_settings() -> None:
    rules: list[tuple[type[StepLabeller], dict[str, Any]]] = [
        (MathShepherd, {"first_round": 9}),
        (FirstErrorSearch, {"first_round": 0}),
        (MathShepherd, {"kind": "firm"}),
        (MathShepherd, {"max_interval_width": 1.0}),
        (FirstErrorSearch, {"sampling": Sampling(temperature=0.0)}),
    ]
    for kind, changes in rules:
        with pytest.raises(UsageError):
            kind(**changes)
    assert CompletionCounts().share is None


# the job


def base(folder: Path) -> str:
    fresh = ScratchModel(ALPHABET + "\n", width=32, layers=1, heads=4, context=32)
    net, tokenizer = fresh.build(torch.float32, torch.device("cpu"))
    hf.save(net, folder)
    tokenizer.save(folder)
    return str(folder)


def by_problem(traces: Iterable[Trace]) -> list[Trace]:
    return sorted(traces, key=lambda trace: trace.problem.id)


@pytest.mark.nightly
def test_replicas_label_as_one_process(tmp_path: Path) -> None:
    sampling = Sampling(max_tokens=12)
    job = Label(
        DigitTask(), base(tmp_path / "base"), QUESTION_TEMPLATE, strategy=Samples(3, sampling), separator="1", limit=6,
        labeller=MathShepherd(max_completions=2, sampling=sampling), device="cpu", dtype="float32",
    )  # fmt: skip
    alone = job(tmp_path / "alone")
    spread = replace(job, replicas=1)(tmp_path / "spread")
    for one, two in zip(by_problem(alone), by_problem(spread), strict=True):
        assert [(s.text, s.scores) for s in one.steps] == [(s.text, s.scores) for s in two.steps]
    counts = read_ledger(tmp_path / "spread" / REPLICAS_FOLDER / LEDGER_FILE)
    assert counts is not None and counts.asked == counts.answered > 3


def test_label_job_resumes(tmp_path: Path) -> None:
    sampling = Sampling(max_tokens=12)
    job = Label(
        DigitTask(),
        base(tmp_path / "base"),
        QUESTION_TEMPLATE,
        strategy=Samples(3, sampling),
        labeller=MathShepherd(max_completions=2, sampling=sampling),
        separator="1",
        limit=6,
        max_concurrency=2,
        device="cpu",
        dtype="float32",
    )
    whole = job(tmp_path / "whole")
    assert len(whole) == 6
    assert all(LABEL_SCORE in s.scores and s.sampled for trace in whole for s in trace.steps[1:])
    parts = [s for trace in whole for s in trace.steps[1:] if not s.done]
    assert parts and all(s.text.endswith("1") and "of 2 completions" in s.scores[LABEL_SCORE].reason for s in parts)
    with pytest.raises(Interrupted, match="stopped after 4 of 6 problems"):
        job(tmp_path / "run", RecordingProgress("step", 2))
    with pytest.raises(Interrupted, match="stopped after 4 of 6 problems"):
        job(tmp_path / "run", RecordingProgress("tokens", 2))
    again = job(tmp_path / "run")
    # Two problems are in flight at a time and may end in either order.
    # They share a batch, which rounds logprobs.
    for one, two in zip(by_problem(again), by_problem(whole), strict=True):
        assert [s.scores for s in one.steps] == [s.scores for s in two.steps]
        assert [(s.parent, s.text, s.stop, s.visits) for s in one.steps] == [
            (s.parent, s.text, s.stop, s.visits) for s in two.steps
        ]
        for s, t in zip(one.steps, two.steps, strict=True):
            assert np.array_equal(s.token_ids, t.token_ids)
            assert s.logprobs is t.logprobs is None or np.allclose(s.logprobs, t.logprobs, atol=1e-5)  # type: ignore[arg-type]
    assert job_json.decode(json.loads((tmp_path / "run" / "job.json").read_text()), trust=True) == job
    other = replace(
        job, data=(str(tmp_path / "whole"),), labeller=FirstErrorSearch(max_completions=2, sampling=sampling)
    )
    relabelled = other(tmp_path / "two")
    assert [t.problem.id for t in by_problem(relabelled)] == [t.problem.id for t in by_problem(whole)]
    assert len(list(read_traces(tmp_path / "two"))) == 6


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("x", "no answer was ever right, so that all labels are 0, and a judge learns nothing from them: take an eas"),
        (None, "all labels are 1, and a judge learns nothing from them: take a harder task"),
        ("?", "no step got a label, and a judge learns nothing from them: `ponder traces` shows"),
    ],
)
def test_useless_labels_end_the_job_with_the_report(answer: str | None, why: str, tmp_path: Path) -> None:
    """A solver that never succeeds, or always does, or is never judged. What it wrote is kept."""
    policy = load_policy(base(tmp_path / "base"), QUESTION_TEMPLATE, "cpu", "float32")
    job = Label(
        DigitTask(),
        str(tmp_path / "base"),
        QUESTION_TEMPLATE,
        (str(tmp_path / "given"),),
        separator=None,
        labeller=MathShepherd(max_completions=1, first_round=1, sampling=Sampling(max_tokens=2)),
        device="cpu",
        dtype="float32",
    )
    with Run(tmp_path / "given", job) as run:
        for i in range(4):
            problem = replace(DigitTask().train[i], answer=answer or str(i))
            trace = Trace(problem, [Step(None, "", policy.encode(problem.messages))])
            tokens = ids([*policy.tokens(str(i)), 2])
            trace.add(Step(0, str(i), tokens, np.zeros(2, np.float32), "eos"))
            if answer == "?":
                trace.steps[1].scores["wanted"] = Score(None, "odd")
            run.write_traces(0, [trace])
    shown = {"x": "never right", None: "labelled right, wholly or partly  4", "?": "4 undecided"}[answer]
    for _ in range(2):  # it is not done again, and no better
        with pytest.raises(TaskError, match=re.escape(why)) as stopped:
            job(tmp_path / "run")
        lines = str(stopped.value).split("\n")
        assert lines[1].split() == ["problems", "4"] and any(shown in line for line in lines[2:])
    assert len(list(read_traces(tmp_path / "run"))) == 4
    assert json.loads((tmp_path / "run" / "filter_report.json").read_text())[0] == {"stage": "problems", "count": 4}


def test_label_summary_lines(tmp_path: Path) -> None:
    sampling = Sampling(max_tokens=12)
    job = Label(
        DigitTask(),
        base(tmp_path / "base"),
        QUESTION_TEMPLATE,
        strategy=Samples(3, sampling),
        labeller=MathShepherd(max_completions=2, sampling=sampling),
        separator="1",
        limit=6,
        device="cpu",
        dtype="float32",
    )
    traces = job(tmp_path / "run")
    text = job.summary_lines(tmp_path / "run", traces)
    steps = sum(LABEL_SCORE in s.scores for t in traces for s in t.steps)
    counts = {line.split("  ")[1].strip(): int(line.split("  ")[-1]) for line in text[:1]}
    assert counts == {"problems": 6} and any(line.split()[:3] == ["steps", "tried", str(steps)] for line in text)
    assert text[-2].startswith("use it") and text[-1].startswith("run")


def test_labels_use_sampled_tokens(tmp_path: Path) -> None:
    policy = load_policy(base(tmp_path / "base"), QUESTION_TEMPLATE, "cpu", "float32")
    text = "1\n2\n3"
    tokens = ids([*policy.tokens(text), 2])
    trace = Trace(DigitTask().train[3], [Step(None, "", policy.encode(DigitTask().train[3].messages))])
    trace.add(Step(0, text, tokens, np.zeros(len(tokens), np.float32), "eos"))
    cut = split_steps(trace, policy.text)
    run_async(MathShepherd(max_completions=4, sampling=Sampling(max_tokens=4))(cut, policy, DigitTask().verifier))
    assert [s.text for s in cut.steps[1:]] == ["1\n", "2\n", "3"] and labels(cut) == [0.0, 0.0, 0.0]
    assert np.array_equal(np.concatenate([s.token_ids for s in cut.steps[1:]]), tokens)
    assert cut.cost.cached_tokens > cut.cost.prompt_tokens > 0, "a prefix is computed once for its completions"


def test_answers_of_runs_need_the_same_tokenizer_and_keep_equal_ids_apart(tmp_path: Path) -> None:
    """Two runs may have other problems under one id, and a run of another model has other tokens."""
    policy = load_policy(base(tmp_path / "base"), QUESTION_TEMPLATE, "cpu", "float32")
    job = Label(
        DigitTask(),
        str(tmp_path / "base"),
        QUESTION_TEMPLATE,
        (str(tmp_path / "one"), str(tmp_path / "two")),
        separator=None,
        labeller=MathShepherd(max_completions=1, first_round=1, sampling=Sampling(max_tokens=2)),
        device="cpu",
        dtype="float32",
    )
    for name, question, gold in (("one", "1=", "1"), ("two", "2=", "2")):
        problem = Problem("p/0", user_messages(question), gold)
        trace = Trace(problem, [Step(None, "", policy.encode(problem.messages))])
        tokens = ids([*policy.tokens("12"), 2])
        trace.add(Step(0, "12", tokens, np.zeros(3, np.float32), "eos"))
        with Run(tmp_path / name, job) as run:
            run.write_traces(0, [trace, Trace(problem, trace.steps[:1], failed="gone") if name == "one" else trace])
    assert [t.problem.question for t in job(tmp_path / "run")] == ["1=", "2="]
    assert [t.problem.question for t in job(tmp_path / "run")] == ["1=", "2="], "and that is kept"
    assert len(list(read_traces(tmp_path / "run"))) == 2
    other = ScratchModel("=9876543210\n+", width=16, layers=1, heads=2)
    net, tokenizer = other.build(torch.float32, torch.device("cpu"))
    hf.save(net, tmp_path / "other")
    tokenizer.save(tmp_path / "other")
    with pytest.raises(TaskError, match="p/0, step 1 was written with another tokenizer"):
        replace(job, model=str(tmp_path / "other"))(tmp_path / "wrong")
    with pytest.raises(RunError, match="not a run directory"):
        replace(job, data=(str(tmp_path / "nothing"),))(tmp_path / "none")
