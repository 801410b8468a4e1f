"""Learning from given answers: fine-tuning, preferences between two, a teacher's distribution over them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ponder.errors import ModelError, TaskError, UsageError
from ponder.models.load import Fresh, load_policy, pinned
from ponder.models.native import Native
from ponder.models.tokenizer import Tokenizer
from ponder.nets import lora
from ponder.nets.lora import LoRA
from ponder.pipelines.keeping import Keeper, same_kind
from ponder.pipelines.solve import pick
from ponder.protocols import Silent, Task, Watch
from ponder.runs import Run
from ponder.train import checkpoint
from ponder.train.algorithms import ONLINE
from ponder.train.imitation import DPO, SFT, Distill
from ponder.train.learner import Learner
from ponder.train.objective import Objective
from ponder.train.optimiser import AdamW
from ponder.types import Message, Problem, Score, Step, Trace, ids, prompt_trace, user

PREFERRED = "preferred"  # the scorer's name under which a pair is marked


@dataclass(frozen=True)
class FineTune:
    """The job. `data` is a task, whose own gold answers are imitated, or a JSONL file of conversations.

    With `objective=DPO()` the file's rows have `chosen` and `rejected`; with `Distill()` a `teacher` is named.
    """

    data: Task | str
    model: str | Fresh = "smollm2"
    template: str | None = None
    objective: Objective = SFT()
    optimiser: AdamW = AdamW(lr=2e-5)
    steps: int = 100
    batch: int = 32  # answers (or pairs) per step
    teacher: str | None = None
    lora: LoRA | None = None
    micro_tokens: int = 0
    recompute: bool = False
    frozen_layers: int = 0
    save_every: int = 50
    keep: int = 2
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.save_every, self.keep) < 1 or min(self.seed, self.micro_tokens) < 0:
            raise UsageError("steps, batch, save_every and keep must be at least 1, seed and micro_tokens at least 0")
        if type(self.objective) in ONLINE.values():
            raise UsageError(f"{type(self.objective).__name__} learns from rewards for sampled answers: use an RL job")
        if self.lora is not None and self.frozen_layers:
            raise UsageError("adapters leave all weights as they are: give either lora or frozen_layers")
        if isinstance(self.objective, DPO) and not isinstance(self.data, str):
            raise UsageError("a task has no rejected answers: give a JSONL file with 'prompt', 'chosen' and 'rejected'")
        if isinstance(self.objective, Distill) != (self.teacher is not None):
            raise UsageError("distillation needs a teacher, and only distillation: give both or neither")

    def __call__(self, folder: str | Path, watch: Watch | None = None) -> Native:
        job = pinned(self, folder)
        with Run(folder, job) as run:
            return fine_tune(job, run, watch or Silent())


def fine_tune(job: FineTune, run: Run, watch: Watch) -> Native:
    watch.phase("load")
    pairs = isinstance(job.objective, DPO)
    problems = read_conversations(job.data, pairs) if isinstance(job.data, str) else job.data.train
    policy = load_policy(job.model, template=job.template, device=job.device, dtype=checkpoint.dtype(run, job.dtype))
    if job.lora is not None:
        lora.attach(policy.net, job.lora, job.seed)
    learner = Learner(
        policy.net, job.objective, job.optimiser, micro_tokens=job.micro_tokens, recompute=job.recompute,
        frozen_layers=job.frozen_layers, reference=None if job.teacher is None else same_kind(job.teacher, policy.net),
    )  # fmt: skip

    with Keeper(run, job, watch, policy, {"policy": learner}) as keeper:
        for step in keeper.steps():
            with keeper.step() as state:
                began = time.perf_counter()
                watch.phase("learn")
                chosen = pick(problems, job.seed, step * job.batch, job.batch)
                traces = [given(policy, p, answer(job.data, p)) for p in chosen]
                metrics = job.objective.credit(traces, PREFERRED, state.memory)
                metrics |= keeper.learn(learner, traces, watch.share)

                state.tokens += sum(len(s.token_ids) for t in traces for s in t.steps)
                metrics |= {"num_tokens": state.tokens, "step_time": time.perf_counter() - began}
                keeper.record(state, metrics, traces)
    return policy


def given(policy: Native, problem: Problem, answers: str | Sequence[str]) -> Trace:
    """A trace in which the policy is taken to have written this answer, or of a pair the first and not the second."""
    if isinstance(answers, str):
        return imitation(policy, problem, answers)
    trace = imitation(policy, problem, *answers)
    for i, leaf in enumerate(trace.answers()):
        trace.steps[leaf].scores[PREFERRED] = Score(1.0 - i)
    return trace


def imitation(policy: Native, problem: Problem, *texts: str) -> Trace:
    """A trace with these answers to a problem, each with its end-of-sequence token; nobody sampled them."""
    trace = prompt_trace(problem, policy.encode(problem.messages))
    if not len(trace.steps[0].token_ids):
        raise TaskError(f"{problem.id} has an empty prompt, after which nothing can be predicted: remove it")
    end, room = end_token(policy.tokenizer), policy.net.config.context
    for text in texts:
        tokens = policy.tokenizer.encode(text, special=False)
        if not len(tokens) or tokens[-1] != end:
            tokens = np.append(tokens, ids([end])).astype(np.int32)
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


def answer(data: Task | str, problem: Problem) -> str | Sequence[str]:
    return problem.answer if isinstance(data, str) else data.gold(problem)


def read_conversations(path: str, pairs: bool = False) -> Sequence[Problem]:
    """JSONL with `messages` that end in the assistant's answer, or with `prompt` and `completion`.

    Pairs have `prompt` (a text, or messages), `chosen` and `rejected`.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")  # splitlines would cut inside a text at U+2028
    except OSError as why:
        raise TaskError(f"cannot read the conversations in {path}: {why.strerror}") from None
    except UnicodeDecodeError as why:
        raise TaskError(f"cannot read the conversations in {path}: it is not UTF-8 text ({why})") from None
    read = _pair if pairs else _conversation
    problems = [_row(read, path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not problems:
        raise TaskError(f"{path} holds no conversations: one JSON object per line is expected")
    return problems


def _row(read: Callable[[Any, str], Problem], path: str, number: int, line: str) -> Problem:
    try:
        return read(json.loads(line), f"{path}:{number}")
    except (ValueError, KeyError, TypeError, IndexError) as why:
        wanted = "'prompt', 'chosen' and 'rejected'" if read is _pair else "'messages', or 'prompt' and 'completion'"
        raise TaskError(f"{path}, line {number} is not a conversation ({why}): give {wanted}") from None


def _conversation(row: Any, name: str) -> Problem:
    if "messages" in row:
        *asked, last = row["messages"]
        if not asked or last["role"] != "assistant":
            raise ValueError("the last message must be the assistant's, after at least one other")
        return Problem(name, _asked(asked), _said(last["content"]))
    return Problem(name, _asked(row["prompt"]), _said(row["completion"]))


def _pair(row: Any, name: str) -> Problem:
    chosen, rejected = (
        _said(row[k][-1]["content"] if isinstance(row[k], list) else row[k]) for k in ("chosen", "rejected")
    )
    if chosen == rejected:
        raise ValueError("the chosen answer is the rejected one")
    return Problem(name, _asked(row["prompt"]), (chosen, rejected))


def _asked(prompt: Any) -> tuple[Message, ...]:
    if isinstance(prompt, list):
        return tuple({**m, "role": str(m["role"]), "content": _said(m["content"])} for m in prompt)
    return user(_said(prompt))


def _said(text: Any) -> str:
    if not isinstance(text, str | int | float) or isinstance(text, bool):
        raise ValueError(f"a text is {'null' if text is None else type(text).__name__}")
    return str(text)
