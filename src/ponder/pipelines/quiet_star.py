"""Quiet-STaR at a small scale: a model learns to think between the tokens of given answers (see train/quiet.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ponder import event_loop, room
from ponder.errors import UsageError
from ponder.measure import mean_of
from ponder.models.load import Fresh, load_policy, pinned
from ponder.models.native import Native
from ponder.pipelines.asked import in_style
from ponder.pipelines.inputs import inputs_of
from ponder.pipelines.keeping import Keeper
from ponder.pipelines.sft import imitation
from ponder.pipelines.solve import pick
from ponder.protocols import Silent, Task, Watch
from ponder.runs import Run, read_metrics, write_json
from ponder.train import checkpoint
from ponder.train.optimiser import AdamW
from ponder.train.quiet import QuietLearner, Text, Thoughts, lay
from ponder.types import Ids, Problem, Sampling, Step, Trace, ids, prompt_trace

MEASURED = "measured.json"
SHOWN = 2  # texts of each step whose thoughts are kept


@dataclass(frozen=True)
class QuietStar:
    """The job: a task's gold answers, with `thoughts` of at most `length` tokens before each of their tokens, or once
    before the answer (0: none, for comparison). A thought that draws the end token ends there.

    `marks` are two tokens that begin and end a thought, and occur nowhere else; `like` are two that they begin as
    copies of, which is how a model that has only read texts gets into thinking. Unlike the paper, nothing is thought
    inside the question: its tokens are not learned.
    """

    READS: ClassVar = ("train", "test")

    data: Task
    model: str | Fresh
    marks: tuple[str, str] = ("[", "]")
    like: tuple[str, str] | None = None
    thoughts: int = 2
    length: int = 12
    every: bool = True  # think before each token of an answer, else once before it
    ahead: int = 4  # tokens that a thought is to foretell
    beta: float = 1.0  # of REINFORCE
    positive: bool = True  # only from thoughts that are better than the mean
    template: str | None = None
    optimiser: AdamW = AdamW(lr=1e-4)
    steps: int = 100
    batch: int = 32  # answers per step
    limit: int = 500  # held-out problems, to measure on
    save_every: int = 50
    keep: int = 1
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", in_style(self.data, template=self.template))
        if min(self.steps, self.batch, self.length, self.ahead, self.limit, self.save_every, self.keep) < 1:
            raise UsageError("steps, batch, length, ahead, limit, save_every and keep must be at least 1")
        if min(self.seed, self.thoughts) < 0 or not self.beta >= 0:
            raise UsageError("seed, thoughts and beta must be 0 or more")
        if self.thoughts == 1 and self.beta:
            raise UsageError("one thought has no others to be better than: give 2 or more, 0 for none, or beta 0")
        if self.marks[0] == self.marks[1]:
            raise UsageError(f"thoughts begin and end with {self.marks[0]!r}: the two marks must differ")

    def __call__(self, folder: str | Path, watch: Watch | None = None) -> Native:
        room.traces_fit({"batch": self.batch}, {})
        job = pinned(self, folder)
        with Run(folder, job, inputs_of(job)) as run:
            return event_loop.run(quiet_star(job, run, watch or Silent()))

    def closing(self, folder: Path) -> list[str]:
        """What came out, for people."""
        rows = [row for row in read_metrics(folder) if "test/talk" in row]
        if not rows:
            return []
        last = rows[-1]
        out = [f"steps     {int(last['step']) + 1}, {last['num_tokens']:,.0f} tokens learned from, thoughts included"]
        for name, said in (("plain", "without thoughts"), ("talk", "with thoughts")):
            if name == "plain" or self.thoughts:
                right = f"{last[f'right/{name}']:.1%} of answers wholly foretold"
                out.append(f"{said:<17} {last[f'test/{name}']:.4f} nats a token, {right}")
        return out


async def quiet_star(job: QuietStar, run: Run, watch: Watch) -> Native:
    watch.phase("load")
    policy = load_policy(job.model, template=job.template, device=job.device, dtype=checkpoint.dtype(run, job.dtype))
    marks = _token(policy, job.marks[0]), _token(policy, job.marks[1])
    if job.like is not None:
        begin_as(policy, marks, (_token(policy, job.like[0]), _token(policy, job.like[1])))
    learner = QuietLearner(
        policy.net, job.optimiser, marks, ahead=job.ahead, beta=job.beta, positive=job.positive, seed=job.seed
    )
    with Keeper(run, job, watch, policy, {"policy": learner}) as keeper:
        policy.watch = watch.tokens
        for step in keeper.steps():
            with keeper.step() as state:
                began = time.perf_counter()
                watch.phase("sample")
                problems = pick(job.data.train, job.seed, step * job.batch, job.batch)
                texts = [text(job, policy, p) for p in problems]
                policy.stream(job.seed, step)
                thoughts = await think(policy, texts, marks[0], job.thoughts, job.length)
                watch.phase("learn")
                metrics = learner.learn(texts, thoughts, watch.share)
                state.tokens += sum(lay(texts, thoughts, marks, job.ahead).lengths)
                metrics |= {"num_tokens": state.tokens}
                if (step + 1) % job.save_every == 0 or step + 1 == job.steps:
                    policy.stream(job.seed, step, 1)
                    policy.watch = lambda tokens: None  # the weights have moved: nobody may stop it before it is kept
                    metrics |= await measured(job, policy, learner, run)
                    policy.watch = watch.tokens
                shown = [told(policy, problems[i], texts[i], thoughts[i]) for i in range(min(SHOWN, job.batch))]
                keeper.record(state, metrics | {"step_time": time.perf_counter() - began}, shown)
    return policy


def begin_as(policy: Native, marks: Sequence[int], like: Sequence[int]) -> None:
    """Marks with the embeddings of tokens that the model knows; their rows in the head too, where that is not tied."""
    with torch.no_grad():
        for table in {id(t): t for t in (policy.net.embed_tokens.weight, policy.net.lm_head.weight)}.values():
            table[list(marks)] = table[list(like)]


def text(job: QuietStar, policy: Native, problem: Problem) -> Text:
    trace = imitation(policy, problem, job.data.gold(problem))
    tokens = trace.token_ids(1)
    room = policy.net.config.context - len(tokens) - job.length - 2
    if room < 0:
        raise UsageError(
            f"{problem.id} has {len(tokens)} tokens, and with a thought of {job.length} and its marks that is more "
            f"than the model's context of {policy.net.config.context}: think shorter, or take shorter answers"
        )
    return Text(tokens, len(trace.steps[0].token_ids), job.every or not job.thoughts)


async def think(policy: Native, texts: Sequence[Text], start: int, n: int, length: int) -> Thoughts:
    """So many thoughts at each place, sampled from the model as it is: prefixes are computed once."""
    if not n:
        return [[[] for _ in one.places] for one in texts]
    draw = Sampling(temperature=1.0, max_tokens=length)
    asked = [ids([*one.tokens[: j + 1], start]) for one in texts for j in one.places]
    # A prefix that two texts share is asked for twice, so each has thoughts of its own.
    drawn = iter(await asyncio.gather(*(policy.generate(prefix, draw, n) for prefix in asked)))
    return [[[c.token_ids for c in next(drawn)] for _ in one.places] for one in texts]


def told(policy: Native, problem: Problem, text: Text, thoughts: Sequence[Sequence[Ids]]) -> Trace:
    """A text and what was thought inside it, to be looked at."""
    trace = prompt_trace(problem, text.tokens[: text.first])
    here = 0
    for j, several in zip(text.places, thoughts, strict=True):
        for one in several:
            trace.add(Step(here, policy.text(one), one, aside=True))
        said = text.tokens[j + 1 : j + 2 if text.every else None]
        here = trace.add(Step(here, policy.text(said), said))
    trace.steps[here].stop = "eos"
    return trace


async def measured(job: QuietStar, policy: Native, learner: QuietLearner, run: Run) -> dict[str, float]:
    """On held-out problems: nats a token, and whether every token of an answer is the likeliest."""
    problems = job.data.test[: job.limit]
    texts = [text(job, policy, p) for p in problems]
    thoughts = await think(policy, texts, learner.marks[0], min(job.thoughts, 1), job.length)
    told: dict[str, list[float]] = {name: [] for name in ("test/plain", "test/talk", "right/plain", "right/talk")}
    with torch.no_grad():
        for one, own in zip(texts, thoughts, strict=True):
            laid = lay([one], [own], learner.marks, 1 if one.every else job.ahead)
            seen = learner.see(laid)
            told["test/plain"].append(float(-seen.plain_P.mean()))
            told["test/talk"].append(float(-seen.talk_P.mean()))
            told["right/plain"].append(float(seen.plain_hits_P.all()))
            told["right/talk"].append(float(seen.hits_P.all()))
    means = {name: mean_of(values) for name, values in told.items()}
    kept = {
        name: {"mean": m.mean, "low": m.low, "high": m.high, "problems": len(problems)} for name, m in means.items()
    }
    write_json(run.folder / MEASURED, kept)
    return {name: float(np.mean(values)) for name, values in told.items()}


def _token(policy: Native, word: str) -> int:
    found = policy.tokens(word)
    if len(found) != 1:
        raise UsageError(f"{word!r} is {len(found)} tokens to this model; a mark must be one: add it to its vocabulary")
    return int(found[0])
