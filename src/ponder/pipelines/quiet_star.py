"""Quiet-STaR at a small scale: a model learns to think between the tokens of given answers.

The loss is in train/quiet_star_learner.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ponder import event_loop, memory_check
from ponder.common_settings import KeepCheckpoints, SaveEvery
from ponder.errors import UsageError
from ponder.measure import bootstrap_mean
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.job.base_job import BaseJob
from ponder.pipelines.job.open_run import open_run
from ponder.pipelines.job.shared_fields import TrainingFields
from ponder.pipelines.problems.prompt_style import apply_style
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.pipelines.sft import text_answer_trace
from ponder.pipelines.training.session import TrainingSession
from ponder.protocols import NoProgress, Progress, Task
from ponder.runs import Run, read_metrics, write_json
from ponder.train import checkpoint
from ponder.train.optimizer import AdamW
from ponder.train.quiet_star_learner import QuietLearner, QuietText, SampledThoughts, pack_thoughts
from ponder.types import Ids, Problem, Sampling, Step, Trace, ids, prompt_trace

MEASUREMENTS_FILE = "measured.json"
MAX_SHOWN_TEXTS = 2  # texts of each step whose thoughts are recorded


@dataclass(frozen=True)
class QuietStar(TrainingFields, BaseJob):
    """The job: train on a task's gold answers, with `num_thoughts` of at most `max_thought_tokens` tokens before each
    of their tokens, or once before the answer (0: none, for comparison). A sampled end token ends a thought.

    `thought_tokens` are two tokens that begin and end a thought and occur nowhere else. `thought_tokens_like` are two
    tokens whose embeddings they are initialised with, so that a model which has only read texts starts to think.
    Unlike in the paper, there are no thoughts inside the question: its tokens are not trained.
    """

    READ_SPLITS: ClassVar = ("train", "test")

    data: Task
    model: str | ScratchModel
    thought_tokens: tuple[str, str] = ("[", "]")
    thought_tokens_like: tuple[str, str] | None = None
    num_thoughts: int = 2
    max_thought_tokens: int = 12
    at_every_token: bool = True  # think before each token of an answer, else once before it
    lookahead_tokens: int = 4  # next tokens that a thought should help to predict
    beta: float = 1.0  # of REINFORCE
    positive_only: bool = True  # learn only from thoughts that are better than the mean
    template: str | None = None
    optimizer: AdamW = AdamW(lr=1e-4)
    batch_size: int = 32  # answers per step
    eval_limit: int = 500  # held-out problems to evaluate on
    save_every: SaveEvery = field(default=50, kw_only=True)
    keep_checkpoints: KeepCheckpoints = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", apply_style(self.data, template=self.template))
        self.check_shared_fields()
        self.check_at_least_one("batch_size", "max_thought_tokens", "lookahead_tokens", "eval_limit")
        if self.num_thoughts < 0 or not self.beta >= 0:
            raise UsageError("num_thoughts and beta must be 0 or more")
        if self.num_thoughts == 1 and self.beta:
            raise UsageError("one thought has no others to be better than: give 2 or more, 0 for none, or beta 0")
        if self.thought_tokens[0] == self.thought_tokens[1]:
            raise UsageError(f"thoughts begin and end with {self.thought_tokens[0]!r}: the two marks must differ")

    def check_memory(self) -> None:
        memory_check.require_trace_memory({"batch_size": self.batch_size}, {})

    def __call__(self, folder: str | Path, watch: Progress | None = None) -> PonderPolicy:
        self.check_memory()
        job, run = open_run(self, folder)
        with run:
            return event_loop.run(quiet_star(job, run, watch or NoProgress()))

    def summary_lines(self, folder: Path, result: Any) -> list[str]:
        return [*self._metric_lines(folder), f"run       {folder}"]

    def _metric_lines(self, folder: Path) -> list[str]:
        rows = [row for row in read_metrics(folder) if "test/talk" in row]
        if not rows:
            return []
        last = rows[-1]
        out = [f"steps     {int(last['step']) + 1}, {last['num_tokens']:,.0f} tokens learned from, thoughts included"]
        for name, label in (("plain", "without thoughts"), ("talk", "with thoughts")):
            if name == "plain" or self.num_thoughts:
                right = f"{last[f'right/{name}']:.1%} of answers fully predicted"
                out.append(f"{label:<17} {last[f'test/{name}']:.4f} nats a token, {right}")
        return out


async def quiet_star(job: QuietStar, run: Run, watch: Progress) -> PonderPolicy:
    watch.phase("load")
    policy = load_policy(
        job.model, template=job.template, device=job.device, dtype=checkpoint.resume_dtype(run, job.dtype)
    )
    marks = _single_token(policy, job.thought_tokens[0]), _single_token(policy, job.thought_tokens[1])
    if job.thought_tokens_like is not None:
        copy_embeddings(
            policy,
            marks,
            (_single_token(policy, job.thought_tokens_like[0]), _single_token(policy, job.thought_tokens_like[1])),
        )
    learner = QuietLearner(
        policy.net,
        job.optimizer.over(job.steps),
        marks,
        lookahead_tokens=job.lookahead_tokens,
        beta=job.beta,
        positive_only=job.positive_only,
        seed=job.seed,
    )
    with TrainingSession(run, job, watch, policy, {"policy": learner}) as session:
        policy.on_tokens = watch.tokens
        for step in session.remaining_steps():
            with session.step() as state:
                began = time.perf_counter()
                watch.phase("sample")
                problems = shuffled_problems(job.data.train, job.seed, step * job.batch_size, job.batch_size)
                texts = [answer_text(job, policy, p) for p in problems]
                policy.reseed(job.seed, step)
                thoughts, sampling_flops = await sample_thoughts(
                    policy, texts, marks[0], job.num_thoughts, job.max_thought_tokens
                )
                watch.phase("learn")
                session.wait_for_copies()
                metrics = learner.step_on_texts(texts, thoughts, watch.share)
                state.num_tokens += sum(pack_thoughts(texts, thoughts, marks, job.lookahead_tokens).lengths)
                metrics |= {"num_tokens": state.num_tokens}
                if (step + 1) % job.save_every == 0 or step + 1 == job.steps:
                    policy.reseed(job.seed, step, 1)
                    policy.on_tokens = lambda tokens: None  # no interrupt between the weight update and `record`
                    metrics |= await evaluate_held_out(job, policy, learner, run)
                    policy.on_tokens = watch.tokens
                shown = [
                    thoughts_trace(policy, problems[i], texts[i], thoughts[i])
                    for i in range(min(MAX_SHOWN_TEXTS, job.batch_size))
                ]
                session.record(state, metrics | {"step_time": time.perf_counter() - began}, shown, sampling_flops)
    return policy


def copy_embeddings(policy: PonderPolicy, marks: Sequence[int], like: Sequence[int]) -> None:
    """Initialise the thought tokens with the embeddings (and untied head rows) of tokens that the model knows."""
    with torch.no_grad():
        for table in {id(t): t for t in (policy.net.embed_tokens.weight, policy.net.lm_head.weight)}.values():
            table[list(marks)] = table[list(like)]


def answer_text(job: QuietStar, policy: PonderPolicy, problem: Problem) -> QuietText:
    trace = text_answer_trace(policy, problem, job.data.gold(problem))
    tokens = trace.token_ids(1)
    room = policy.net.config.context - len(tokens) - job.max_thought_tokens - 2
    if room < 0:
        raise UsageError(
            f"{problem.id} has {len(tokens)} tokens. With a thought of {job.max_thought_tokens} and its marks that is "
            f"more than the model's context of {policy.net.config.context}: think shorter, or take shorter answers"
        )
    return QuietText(tokens, len(trace.steps[0].token_ids), job.at_every_token or not job.num_thoughts)


async def sample_thoughts(
    policy: PonderPolicy, texts: Sequence[QuietText], start: int, n: int, length: int
) -> tuple[SampledThoughts, float]:
    """Sample n thoughts at each thought position; the engine computes shared prefixes once. Also their FLOPs."""
    if not n:
        return [[[] for _ in one.thought_positions] for one in texts], 0.0
    draw = Sampling(temperature=1.0, max_tokens=length)
    prefixes = [ids([*one.tokens[: j + 1], start]) for one in texts for j in one.thought_positions]
    # A prefix that two texts share is requested twice, so that each text has thoughts of its own.
    groups = await asyncio.gather(*(policy.generate(prefix, draw, n) for prefix in prefixes))
    flops, completions = sum(c.cost.flops for group in groups for c in group), iter(groups)
    return [[[c.token_ids for c in next(completions)] for _ in one.thought_positions] for one in texts], flops


def thoughts_trace(policy: PonderPolicy, problem: Problem, text: QuietText, thoughts: Sequence[Sequence[Ids]]) -> Trace:
    """A text and its thoughts as a trace, for inspection."""
    trace = prompt_trace(problem, text.tokens[: text.first_target])
    here = 0
    for j, several in zip(text.thought_positions, thoughts, strict=True):
        for one in several:
            trace.add(Step(here, policy.text(one), one, meta=True))
        tokens = text.tokens[j + 1 : j + 2 if text.at_every_token else None]
        here = trace.add(Step(here, policy.text(tokens), tokens))
    trace.steps[here].stop = "eos"
    return trace


async def evaluate_held_out(job: QuietStar, policy: PonderPolicy, learner: QuietLearner, run: Run) -> dict[str, float]:
    """On held-out problems: nats per token, and whether every token of an answer is the most likely one."""
    problems = job.data.test[: job.eval_limit]
    texts = [answer_text(job, policy, p) for p in problems]
    thoughts, _ = await sample_thoughts(
        policy, texts, learner.thought_tokens[0], min(job.num_thoughts, 1), job.max_thought_tokens
    )
    results: dict[str, list[float]] = {name: [] for name in ("test/plain", "test/talk", "right/plain", "right/talk")}
    with torch.no_grad():
        for begin in range(0, len(texts), job.batch_size):
            part = slice(begin, begin + job.batch_size)
            ahead = 1 if texts[begin].at_every_token else job.lookahead_tokens
            packed = pack_thoughts(texts[part], thoughts[part], learner.thought_tokens, ahead)
            outputs = learner.forward(packed)
            read = {
                "test/plain": -outputs.plain_P,
                "test/talk": -outputs.talk_P,
                "right/plain": outputs.plain_hits_P,
                "right/talk": outputs.hits_P,
            }
            counts = np.bincount(packed.text_of_P)
            for name, values_P in read.items():
                sums = np.bincount(packed.text_of_P, values_P.cpu().double().numpy())
                each = sums == counts if name.startswith("right/") else sums / counts
                results[name] += each.astype(float).tolist()
    means = {name: bootstrap_mean(values) for name, values in results.items()}
    summary = {
        name: {"mean": m.mean, "low": m.low, "high": m.high, "problems": len(problems)} for name, m in means.items()
    }
    write_json(run.folder / MEASUREMENTS_FILE, summary)
    return {name: float(np.mean(values)) for name, values in results.items()}


def _single_token(policy: PonderPolicy, word: str) -> int:
    token_ids = policy.tokens(word)
    if len(token_ids) != 1:
        raise UsageError(
            f"{word!r} is {len(token_ids)} tokens of this model; a mark must be one: add it to the vocabulary"
        )
    return int(token_ids[0])
