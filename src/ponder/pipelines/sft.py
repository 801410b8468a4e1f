"""Training on given answers: supervised fine-tuning, preference pairs, distillation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from ponder import memory_check
from ponder.common_settings import MODEL_HELP, SaveEvery, Template
from ponder.errors import TaskError, UsageError
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.models.text_with_vision import TextWithVision
from ponder.models.tokenizer import answer_end_token
from ponder.nets import lora
from ponder.pipelines.job.base_job import BaseJob
from ponder.pipelines.job.learner_fields import ALGORITHM_HELP, LearnerFields, OptimizerField
from ponder.pipelines.job.open_run import open_run
from ponder.pipelines.job.resolve_names import resolve_names
from ponder.pipelines.job.tool_fields import ToolFields
from ponder.pipelines.problems.conversations import HELD_OUT_TAG, TokenizedAnswer, read_conversations
from ponder.pipelines.problems.held_out import warn_held_out
from ponder.pipelines.problems.prompt_style import apply_style
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.pipelines.problems.step_tokens import mark_answer_steps, refuse_token_ids
from ponder.pipelines.training.early_import import import_compiler_early
from ponder.pipelines.training.gold_episodes import gold_traces
from ponder.pipelines.training.session import TrainingSession
from ponder.pipelines.training.teachers import load_teacher
from ponder.protocols import NoProgress, Progress, Task
from ponder.runs import Run
from ponder.settings import Named, When
from ponder.train import checkpoint
from ponder.train.distributed import current_group
from ponder.train.imitation import SFT
from ponder.train.learner import Learner
from ponder.train.objective import Objective
from ponder.train.optimizer import AdamW
from ponder.train.ranks import join_ranks
from ponder.types import Ids, Problem, Score, Step, Trace, ids, prompt_trace

if TYPE_CHECKING:
    from ponder.pipelines.preflight.run_checks import PreflightReport

_MAX_KEPT_EPISODES = 4096
PREFERENCE_SCORER = "preferred"  # the scorer's name under which a pair is marked


@dataclass(frozen=True)
class FineTune(ToolFields, LearnerFields, BaseJob):
    """The job. `data` is a task, whose gold answers are imitated, or a JSONL file of conversations. Rows with token ids
    (`ponder harvest --tokenizer`) are trained on these ids and not tokenised again.

    With `algorithm=DPO()` the rows have `chosen` and `rejected`. `Distill()` needs a `teacher` with the same
    vocabulary. A teacher with another vocabulary teaches through its texts: harvest them without token ids.
    """

    READ_SPLITS: ClassVar = ("train",)
    TASK_FIELD: ClassVar = "data"

    data: Annotated[
        Task | str,
        Named("ponder.tasks:TASKS", or_file=True),
        "a task, whose gold answers are imitated, or a JSONL file: 'messages', or 'prompt' and 'completion'; for dpo"
        " 'chosen' and 'rejected'",
    ]
    model: Annotated[str | ScratchModel | TextWithVision, MODEL_HELP] = "smollm2"
    template: Template = None
    algorithm: Annotated[
        Objective, Named("ponder.train.algorithms:OFFLINE", listed=True, default="sft"), ALGORITHM_HELP
    ] = SFT()
    optimizer: OptimizerField = AdamW(lr=2e-5)
    batch_size: Annotated[int, "answers (or pairs) per step"] = 32
    teacher: Annotated[str | None, "the model that distill learns from"] = None
    step_token: Annotated[
        str | None,
        "a token such as <step>, put after each step of the answers; a new one is added to the vocabulary",
    ] = None
    step_separator: Annotated[str, "the text at which a step ends", When("step_token")] = "\n"
    save_every: SaveEvery = field(default=50, kw_only=True)

    def __post_init__(self) -> None:
        resolve_names(self)
        if not isinstance(self.data, str):
            object.__setattr__(self, "data", apply_style(self.data, template=self.template))
            self.add_tools()
        elif self.tools:
            raise UsageError("tools are for a task, whose gold answers call them: a file has its own conversations")
        self.check_shared_fields()
        self.check_at_least_one("batch_size")
        if not self.algorithm.learns_from_given:
            raise UsageError(f"{type(self.algorithm).__name__} learns from rewards for sampled answers: use an RL job")
        if self.algorithm.needs_pairs and not isinstance(self.data, str):
            raise UsageError("a task has no rejected answers: give a JSONL file with 'prompt', 'chosen' and 'rejected'")
        if self.algorithm.needs_teacher != (self.teacher is not None):
            raise UsageError("distillation needs a teacher, and only distillation: give both or neither")

        if not self.step_separator:
            raise UsageError("step_separator is empty: give the text at which a step ends, such as a line break")
        if self.step_token is not None and (self.lora is not None or self.frozen_layers):
            raise UsageError("a step token is learned in the embeddings: leave out lora and frozen_layers")

    @property
    def added_tokens(self) -> tuple[str, ...]:
        """Tokens that the model's vocabulary gets."""
        return () if self.step_token is None else (self.step_token,)

    def target(self, problem: Problem) -> str | Sequence[str] | TokenizedAnswer:
        """What to answer to a problem, or the chosen and the rejected answer; with its steps marked, if there is a step
        token."""
        answers = problem.answer if isinstance(self.data, str) else self.data.gold(problem)
        if self.step_token is None or isinstance(answers, TokenizedAnswer):
            return answers
        return mark_answer_steps(answers, self.step_token, self.step_separator)

    def training_jobs(self) -> list[tuple[str, Any]]:
        return [("", self)]

    def preflight_report(self, policy: PonderPolicy) -> PreflightReport:
        """What the checks of given answers say."""
        from ponder.pipelines.preflight.run_checks import PreflightReport, preflight_sft

        learner = build_sft_learner(self, policy)
        return PreflightReport(learner, *preflight_sft(self, _read_problems(self), policy, learner))

    def check_inputs(self) -> None:
        super().check_inputs()
        _read_problems(self)

    def check_memory(self) -> None:
        """Refuse a step that this machine's memory cannot hold."""
        memory_check.require_trace_memory({"batch_size": self.batch_size}, {})

    def __call__(self, folder: str | Path, watch: Progress | None = None) -> PonderPolicy:
        self.check_memory()
        with join_ranks(self.device):
            job, run = open_run(self, folder)
            with run:
                return fine_tune(job, run, watch or NoProgress())


def fine_tune(job: FineTune, run: Run, watch: Progress) -> PonderPolicy:
    watch.phase("load")
    problems = _read_problems(job)
    if isinstance(job.data, str):
        warn_held_out([HELD_OUT_TAG in problem.tags for problem in problems], job.data)
    dtype, loading = checkpoint.resume_dtype(run, job.dtype), checkpoint.start_loading(run, current_group())
    import_compiler_early(job)
    policy = load_policy(
        job.model, template=job.template, device=job.device, dtype=dtype, added_tokens=job.added_tokens
    )  # fmt: skip
    for problem in problems if isinstance(job.data, str) else ():
        if isinstance(problem.answer, TokenizedAnswer):
            check_answer_tokens(policy, problem.id, problem.answer)
    learner = build_sft_learner(job, policy)
    # Of few problems, each comes again in every epoch: to play its gold episode takes longer than to learn from it.
    kept_episodes: dict[str, Trace] | None = {} if len(problems) <= _MAX_KEPT_EPISODES else None

    with TrainingSession(run, job, watch, policy, {"policy": learner}, loading) as session:
        for step in session.remaining_steps():
            with session.step() as state:
                began = time.perf_counter()
                session.watch.phase("learn")
                chosen = shuffled_problems(problems, job.seed, step * job.batch_size, job.batch_size)
                traces = target_traces(job, policy, chosen, kept_episodes=kept_episodes)
                metrics = job.algorithm.credit(traces, PREFERENCE_SCORER, state.objective_state)
                metrics |= session.learn(learner, traces, session.watch.share)

                state.num_tokens += sum(len(s.token_ids) for t in traces for s in t.steps)
                metrics |= {"num_tokens": state.num_tokens, "step_time": time.perf_counter() - began}
                session.record(state, metrics, traces)
    return policy


def build_sft_learner(job: FineTune, policy: PonderPolicy) -> Learner:
    """The learner of a fine-tuning job."""
    teacher = None if job.teacher is None else load_teacher(job.teacher, policy)
    if job.lora is not None:
        lora.attach(policy.net, job.lora, job.seed)
    return Learner(
        policy.net,
        job.algorithm,
        job.optimizer.over(job.steps),
        max_tokens_per_microbatch=job.max_tokens_per_microbatch,
        gradient_checkpointing=job.gradient_checkpointing,
        fp8=job.fp8,
        frozen_layers=job.frozen_layers,
        train_parts=job.train_parts,
        reference=teacher,
        process_group=current_group(),
        fsdp=job.fsdp,
        shard_size=job.shard_size,
        sequence_parallel=job.sequence_parallel,
    )


def _read_problems(job: FineTune) -> Sequence[Problem]:
    if not isinstance(job.data, str):
        return job.data.train
    problems = read_conversations(job.data, job.algorithm.needs_pairs)
    if job.step_token is not None:
        refuse_token_ids(problems)
    return problems


def target_traces(
    job: FineTune, policy: PonderPolicy, problems: Sequence[Problem], single_steps: bool = False,
    kept_episodes: dict[str, Trace] | None = None,
) -> list[Trace]:  # fmt: skip
    """What these problems teach: answers, pairs of them, or episodes of a task with an environment. `single_steps`: an
    answer is one step, whatever its loss mask. `kept_episodes`: see `gold_traces`."""
    if not isinstance(job.data, str) and hasattr(job.data.verifier, "open_environment"):
        traces = gold_traces(policy, problems, job.data.verifier, kept_episodes)
        for trace in traces:
            for leaf in trace.answers():
                _check_context_length(policy, trace, trace.token_ids(leaf)[len(trace.steps[0].token_ids) :])
        return traces
    targets = [as_single_step(job.target(p)) if single_steps else job.target(p) for p in problems]
    return [answer_trace(policy, p, target) for p, target in zip(problems, targets, strict=True)]


def answer_trace(policy: PonderPolicy, problem: Problem, answers: str | Sequence[str] | TokenizedAnswer) -> Trace:
    """A trace with this answer to learn from, or with a pair whose first answer is preferred."""
    if isinstance(answers, TokenizedAnswer):
        return tokenized_answer_trace(policy, problem, answers)
    if isinstance(answers, str):
        return text_answer_trace(policy, problem, answers)
    trace = text_answer_trace(policy, problem, *answers)
    for i, leaf in enumerate(trace.answers()):
        trace.steps[leaf].scores[PREFERENCE_SCORER] = Score(1.0 - i)
    return trace


def text_answer_trace(policy: PonderPolicy, problem: Problem, *texts: str) -> Trace:
    """A trace with these answers to a problem, each with its end-of-sequence token; they were not sampled."""
    trace = _prompt_only_trace(policy, problem)
    end = answer_end_token(policy.tokenizer)
    for text in texts:
        tokens = policy.tokenizer.encode(text, add_special_tokens=False)
        if not len(tokens) or tokens[-1] != end:
            tokens = np.append(tokens, ids([end])).astype(np.int32)
        _check_context_length(policy, trace, tokens)
        trace.add(Step(0, text, tokens, stop="eos"))
    return trace


def tokenized_answer_trace(policy: PonderPolicy, problem: Problem, answer: TokenizedAnswer) -> Trace:
    """A trace with this answer in its own tokens. An answer that a stop rule ended gets an end token."""
    trace = _prompt_only_trace(policy, replace(problem, answer=answer.text))
    tokens, learned = list(answer.token_ids), list(answer.loss_mask)
    if tokens and tokens[-1] in policy.eos:
        learned[-1] = True
    else:
        tokens, learned = [*tokens, answer_end_token(policy.tokenizer)], [*learned, True]
    _check_context_length(policy, trace, ids(tokens))
    at = 0
    for own, run in groupby(learned):
        part = ids(tokens[at : (at := at + len(list(run)))])
        body = part[:-1] if at == len(tokens) else part
        unknown = (
            np.full(len(part), np.nan, np.float32) if own else None
        )  # the policy wrote it; log-probabilities unknown
        trace.add(Step(len(trace.steps) - 1, policy.text(body), part, unknown))
    trace.steps[-1].stop = "eos"
    return trace


def as_single_step(answers: str | Sequence[str] | TokenizedAnswer) -> str | Sequence[str] | TokenizedAnswer:
    """The answer with all tokens trained, so that it becomes a single step."""
    return (
        replace(answers, loss_mask=(True,) * len(answers.loss_mask))
        if isinstance(answers, TokenizedAnswer)
        else answers
    )


def _prompt_only_trace(policy: PonderPolicy, problem: Problem) -> Trace:
    trace = prompt_trace(problem, policy.encode(problem.messages))
    if not len(trace.steps[0].token_ids):
        raise TaskError(f"{problem.id} has an empty prompt, after which nothing can be predicted: remove it")
    return trace


def _check_context_length(policy: PonderPolicy, trace: Trace, tokens: Ids) -> None:
    room, length = policy.net.config.context, len(trace.steps[0].token_ids) + len(tokens)
    if length > room:
        raise TaskError(
            f"{trace.problem.id} has {length} tokens, the model's context only {room}: shorten or remove it"
        )


def check_answer_tokens(policy: PonderPolicy, name: str, answer: TokenizedAnswer) -> None:
    """Refuse tokens that this model decodes to another text. Spaces are ignored: some tokenizers drop them at the start
    of a step, and an answer may have several steps."""
    body = answer.token_ids[:-1] if answer.token_ids and answer.token_ids[-1] in policy.eos else answer.token_ids
    known = max(answer.token_ids, default=0) < policy.net.config.vocab
    read = policy.text(ids(body)) if known else ""
    if not known or read.replace(" ", "") != answer.text.replace(" ", ""):
        raise TaskError(
            f"{name}: the token ids of {answer.text[:40]!r} read as {read[:40]!r} with this model's tokenizer, so"
            " another one wrote them: train a model that has it, or leave out 'token_ids' to have the text tokenised"
        )
