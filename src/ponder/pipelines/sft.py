"""Learning from given answers: fine-tuning, preferences between two, a teacher's distribution over them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ponder.errors import ModelError, RunError, TaskError, UsageError
from ponder.models.load import Fresh, load_policy, pinned, tokenizer_of
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
from ponder.types import Ids, Message, Problem, Score, Step, Trace, ids, prompt_trace, user

PREFERRED = "preferred"  # the scorer's name under which a pair is marked


@dataclass(frozen=True)
class FineTune:
    """The job. `data` is a task, whose own gold answers are imitated, or a JSONL file of conversations; those with
    token ids (`ponder harvest --tokens`) are learned in these, and not tokenised again.

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
    for problem in problems if isinstance(job.data, str) else ():
        if isinstance(problem.answer, Written):
            check_tokens(policy, problem.id, problem.answer)
    if job.teacher is not None:
        check_teacher(job.teacher, policy.tokenizer)
    if job.lora is not None:
        lora.attach(policy.net, job.lora, job.seed)
    learner = Learner(
        policy.net, job.objective, job.optimiser, micro_tokens=job.micro_tokens, recompute=job.recompute,
        frozen_layers=job.frozen_layers, reference=None if job.teacher is None else same_kind(job.teacher, policy.net),
    )  # fmt: skip

    with Keeper(run, job, watch, policy, {"policy": learner}) as keeper:
        if isinstance(job.data, str):
            known = fingerprint(problems)
            if keeper.state.memory.setdefault("data", known) != known:
                raise RunError(f"the data in {job.data} changed since this run began: give another --run")
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


@dataclass(frozen=True, slots=True)
class Written:
    """An answer in the tokens that it was written with, and for each whether it is to be learned. A tool's are not."""

    text: str
    token_ids: tuple[int, ...]
    learned: tuple[bool, ...]


def given(policy: Native, problem: Problem, answers: str | Sequence[str] | Written) -> Trace:
    """A trace in which the policy is taken to have written this answer, or of a pair the first and not the second."""
    if isinstance(answers, Written):
        return as_written(policy, problem, answers)
    if isinstance(answers, str):
        return imitation(policy, problem, answers)
    trace = imitation(policy, problem, *answers)
    for i, leaf in enumerate(trace.answers()):
        trace.steps[leaf].scores[PREFERRED] = Score(1.0 - i)
    return trace


def imitation(policy: Native, problem: Problem, *texts: str) -> Trace:
    """A trace with these answers to a problem, each with its end-of-sequence token; nobody sampled them."""
    trace = _asked_of(policy, problem)
    end = end_token(policy.tokenizer)
    for text in texts:
        tokens = policy.tokenizer.encode(text, special=False)
        if not len(tokens) or tokens[-1] != end:
            tokens = np.append(tokens, ids([end])).astype(np.int32)
        _has_room(policy, trace, tokens)
        trace.add(Step(0, text, tokens, stop="eos"))
    return trace


def as_written(policy: Native, problem: Problem, answer: Written) -> Trace:
    """A trace with this answer in its own tokens. It ends as it did, or with the end token where a rule ended it."""
    trace = _asked_of(policy, replace(problem, answer=answer.text))
    tokens, learned = list(answer.token_ids), list(answer.learned)
    if tokens and tokens[-1] in policy.eos:
        learned[-1] = True
    else:
        tokens, learned = [*tokens, end_token(policy.tokenizer)], [*learned, True]
    _has_room(policy, trace, ids(tokens))
    at = 0
    for own, run in groupby(learned):
        part = ids(tokens[at : (at := at + len(list(run)))])
        body = part[:-1] if at == len(tokens) else part
        unknown = np.full(len(part), np.nan, np.float32) if own else None  # written, and nobody kept how likely
        trace.add(Step(len(trace.steps) - 1, policy.text(body), part, unknown))
    trace.steps[-1].stop = "eos"
    return trace


def in_one(answers: str | Sequence[str] | Written) -> str | Sequence[str] | Written:
    """As if all of an answer were to be learned, so that it is one step."""
    return replace(answers, learned=(True,) * len(answers.learned)) if isinstance(answers, Written) else answers


def _asked_of(policy: Native, problem: Problem) -> Trace:
    trace = prompt_trace(problem, policy.encode(problem.messages))
    if not len(trace.steps[0].token_ids):
        raise TaskError(f"{problem.id} has an empty prompt, after which nothing can be predicted: remove it")
    return trace


def _has_room(policy: Native, trace: Trace, tokens: Ids) -> None:
    room, length = policy.net.config.context, len(trace.steps[0].token_ids) + len(tokens)
    if length > room:
        raise TaskError(
            f"{trace.problem.id} has {length} tokens, the model's context only {room}: shorten or remove it"
        )


def check_tokens(policy: Native, name: str, answer: Written) -> None:
    """Refuse tokens that this model reads as another text. Spaces aside: some tokenizers drop those at a step's
    beginning, and an answer may have several steps."""
    body = answer.token_ids[:-1] if answer.token_ids and answer.token_ids[-1] in policy.eos else answer.token_ids
    known = max(answer.token_ids, default=0) < policy.net.config.vocab
    read = policy.text(ids(body)) if known else ""
    if not known or read.replace(" ", "") != answer.text.replace(" ", ""):
        raise TaskError(
            f"{name}: the token ids of {answer.text[:40]!r} read as {read[:40]!r} with this model's tokenizer, so"
            " another one wrote them: train a model that has it, or leave out 'token_ids' to have the text tokenised"
        )


def check_teacher(teacher: str, tokenizer: Tokenizer) -> None:
    """Refuse a teacher that means other texts by the same ids: what it finds likely would teach nonsense."""
    vocabularies = (t.inner.get_vocab() for t in (tokenizer, tokenizer_of(teacher)))
    ours, theirs = ({index: word for word, index in words.items()} for words in vocabularies)
    other = sorted(index for index in ours.keys() & theirs.keys() if ours[index] != theirs[index])
    if other:
        one = f"{other[0]} is {theirs[other[0]]!r} to it and {ours[other[0]]!r} to the model that learns"
        raise UsageError(
            f"the teacher {teacher} has another vocabulary ({len(other)} tokens differ: {one}); take one with the same,"
            " or learn from its answers as text: collect, harvest, and fine-tune with SFT"
        )


def fingerprint(problems: Sequence[Problem]) -> float:
    """A number that other conversations would hardly have; whole, and small enough for a float."""
    name = hashlib.blake2b(digest_size=6)
    for problem in problems:
        name.update(repr((problem.messages, problem.answer)).encode())
    return float(int.from_bytes(name.digest()))


def end_token(tokenizer: Tokenizer) -> int:
    """The end-of-sequence token that the chat template writes after an answer, else the first there is."""
    if not tokenizer.eos:
        raise ModelError("the tokenizer names no end-of-sequence token, so answers cannot end: add eos_token to it")
    written = tokenizer.chat_template or ""
    return next((e for e in tokenizer.eos if (tokenizer.token(e) or "") in written), tokenizer.eos[0])


def answer(data: Task | str, problem: Problem) -> str | Sequence[str] | Written:
    return problem.answer if isinstance(data, str) else data.gold(problem)


def read_conversations(path: str, pairs: bool = False) -> Sequence[Problem]:
    """JSONL with `messages` that end in the assistant's answer, or with `prompt` and `completion`; `token_ids` are the
    answer's, and `learned` (else `sampled`) says which of them to learn.

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
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError("not a JSON object")
        needed = ("prompt", "chosen", "rejected") if read is _pair else ("prompt", "completion")
        if ("messages" not in row or read is _pair) and (missing := [name for name in needed if name not in row]):
            has = ", ".join(row) or "none"
            raise ValueError(f"it has no column {' or '.join(map(repr, missing))}; its columns: {has}")
        return read(row, f"{path}:{number}")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as why:
        wanted = "'prompt', 'chosen' and 'rejected'" if read is _pair else "'messages', or 'prompt' and 'completion'"
        raise TaskError(f"{path}, line {number} is not a conversation ({why}): give {wanted}") from None


def _conversation(row: Any, name: str) -> Problem:
    if "messages" in row:
        *asked, last = row["messages"]
        if not asked or last["role"] != "assistant":
            raise ValueError("the last message must be the assistant's, after at least one other")
        return Problem(name, _asked(asked), _answered(row, _said(last["content"])))
    return Problem(name, _asked(row["prompt"]), _answered(row, _said(row["completion"])))


def _answered(row: Any, text: str) -> str | Written:
    tokens = row.get("token_ids")
    if tokens is None:
        return text
    learned = row.get("learned", row.get("sampled", [1] * len(tokens)))
    if not all(type(t) is int and 0 <= t < 2**31 for t in tokens):
        raise ValueError("'token_ids' must be whole numbers, 0 or more")
    if len(learned) != len(tokens) or not all(flag in (0, 1) for flag in learned):
        raise ValueError(f"'learned' or 'sampled' must be 0 or 1 for each of the {len(tokens)} token ids")
    if tokens and not any(learned):
        raise ValueError("no token is to be learned: 'learned' or 'sampled' is 0 for all")
    return Written(text, tuple(tokens), tuple(map(bool, learned)))


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
