"""Supervised fine-tuning: imitate given answers, the loss on their tokens alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ponder.errors import Interrupted, ModelError, TaskError, UsageError
from ponder.models.load import Fresh, load_policy, pin
from ponder.models.native import Native
from ponder.models.tokenizer import Tokenizer
from ponder.pipelines.solve import pick
from ponder.protocols import Silent, Task, Watch
from ponder.runs import Run, read_metrics
from ponder.train import checkpoint
from ponder.train.learner import Learner
from ponder.train.objective import SFT
from ponder.train.optimiser import AdamW
from ponder.types import Problem, Step, Trace, ids, prompt_trace, user


@dataclass(frozen=True)
class FineTune:
    """The job. `data` is a task, whose own gold answers are imitated, or a JSONL file of conversations."""

    data: Task | str
    model: str | Fresh = "smollm2"
    template: str | None = None
    optimiser: AdamW = AdamW(lr=2e-5)
    steps: int = 100
    batch: int = 32  # answers per step
    micro_tokens: int = 4096
    frozen_layers: int = 0
    save_every: int = 50
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.micro_tokens, self.save_every) < 1 or self.seed < 0:
            raise UsageError("steps, batch, micro_tokens and save_every must each be at least 1, seed at least 0")

    def __call__(self, folder: str | Path, watch: Watch | None = None) -> Native:
        job = replace(self, model=pin(self.model))
        with Run(folder, job) as run:
            return fine_tune(job, run, watch or Silent())


def fine_tune(job: FineTune, run: Run, watch: Watch) -> Native:
    watch.phase("load")
    problems = read_conversations(job.data) if isinstance(job.data, str) else job.data.train
    policy = load_policy(job.model, template=job.template, device=job.device, dtype=checkpoint.dtype(run, job.dtype))
    learner = Learner(policy.net, SFT(), job.optimiser, micro_tokens=job.micro_tokens, frozen_layers=job.frozen_layers)
    first = checkpoint.restore(run, learner)
    seen = next((m["num_tokens"] for m in reversed(read_metrics(run.folder))), 0.0)

    for step in range(first, job.steps):
        began, done = time.perf_counter(), step
        try:
            watch.phase("learn")
            chosen = pick(problems, job.seed, step * job.batch, job.batch)
            traces = [imitation(policy, p, answer(job.data, p)) for p in chosen]
            for trace in traces:
                learner.objective.credit(trace, "")
            metrics = learner.step(traces, watch.share)
            done = step + 1

            seen += sum(len(s.token_ids) for t in traces for s in t.steps)
            metrics |= {"num_tokens": float(seen)}
            metrics |= {"step_time": time.perf_counter() - began}
            run.traces(step, traces)
            run.metrics(step, metrics)
            watch.step(done, job.steps, metrics, traces)
            if done % job.save_every == 0 or done == job.steps:
                watch.phase("save")
                checkpoint.save(run, done, learner, policy.tokenizer.save)
        except Interrupted:
            learner.masters.forget()
            checkpoint.save(run, done, learner, policy.tokenizer.save)
            so_far = f"stopped after {done} of {job.steps} steps"
            raise Interrupted(f"{so_far}; the same command goes on from there") from None
    return policy


def imitation(policy: Native, problem: Problem, text: str) -> Trace:
    """A trace in which the policy is taken to have written this answer; its end-of-sequence token included."""
    trace = prompt_trace(problem, policy.encode(problem.messages))
    tokens = policy.tokenizer.encode(text, special=False)
    end = end_token(policy.tokenizer)
    if not len(tokens) or tokens[-1] != end:
        tokens = np.append(tokens, ids([end])).astype(np.int32)
    room = policy.net.config.context
    if (length := len(trace.steps[0].token_ids) + len(tokens)) > room:
        raise TaskError(f"{problem.id} has {length} tokens, the model's context only {room}: shorten or remove it")
    trace.add(Step(0, text, tokens, stop="eos"))
    return trace


def end_token(tokenizer: Tokenizer) -> int:
    """The end-of-sequence token that the chat template writes after an answer, else the first there is."""
    if not tokenizer.eos:
        raise ModelError("the tokenizer names no end-of-sequence token, so answers cannot end: add eos_token to it")
    written = tokenizer.chat_template or ""
    return next((e for e in tokenizer.eos if (tokenizer.token(e) or "") in written), tokenizer.eos[0])


def answer(data: Task | str, problem: Problem) -> str:
    return str(problem.answer) if isinstance(data, str) else data.gold(problem)


def read_conversations(path: str) -> Sequence[Problem]:
    """JSONL with `messages` that end in the assistant's answer, or with `prompt` and `completion`."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")  # splitlines would cut inside a text at U+2028
    except OSError as why:
        raise TaskError(f"cannot read the conversations in {path}: {why.strerror}") from None
    except UnicodeDecodeError as why:
        raise TaskError(f"cannot read the conversations in {path}: it is not UTF-8 text ({why})") from None
    problems = [_conversation(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not problems:
        raise TaskError(f"{path} holds no conversations: one JSON object per line is expected")
    return problems


def _conversation(path: str, number: int, line: str) -> Problem:
    try:
        row: Any = json.loads(line)
        if "messages" in row:
            *asked, last = row["messages"]
            if not asked or last["role"] != "assistant":
                raise ValueError("the last message must be the assistant's, after at least one other")
            asked = [{**m, "role": str(m["role"]), "content": _said(m["content"])} for m in asked]
            return Problem(f"{path}:{number}", tuple(asked), _said(last["content"]))
        return Problem(f"{path}:{number}", user(_said(row["prompt"])), _said(row["completion"]))
    except (ValueError, KeyError, TypeError) as why:
        hint = "give 'messages', or 'prompt' and 'completion'"
        raise TaskError(f"{path}, line {number} is not a conversation ({why}): {hint}") from None


def _said(text: Any) -> str:
    if text is None:
        raise ValueError("a text is null")
    return str(text)
