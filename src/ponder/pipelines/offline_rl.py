"""Reinforcement learning on what was recorded: episodes of agents that a server recorded, or answers of other runs.

runs -> groups of scored episodes -> credit -> packed batch -> optimiser step, with the ratio to the model that sampled
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from ponder import memory_check
from ponder.common_settings import MODEL_HELP, IncludeHeldOut, Steps, Template
from ponder.errors import UsageError
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import lora
from ponder.pipelines.job.base_job import BaseJob, format_steps
from ponder.pipelines.job.learner_fields import ALGORITHM_HELP, LearnerFields, OptimizerField
from ponder.pipelines.job.open_run import open_run
from ponder.pipelines.problems.shuffled_order import shuffled_indices
from ponder.pipelines.training.recorded_groups import RecordedGroups, copy_group, read_recorded_groups
from ponder.pipelines.training.sample_metrics import sample_metrics
from ponder.pipelines.training.session import TrainingSession
from ponder.protocols import NoProgress, Progress
from ponder.runs import Run, read_metrics, write_json
from ponder.runs.data_files import FILTER_REPORT_FILE, filter_report_lines
from ponder.settings import Named
from ponder.train import checkpoint
from ponder.train.distributed import current_group
from ponder.train.learner import Learner
from ponder.train.objective import Objective, RolloutSettings
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.ranks import join_ranks
from ponder.types import Sampling, Trace


@dataclass(frozen=True)
class OfflineRL(LearnerFields, BaseJob):
    """The job. `data`: run directories with scored answers or episodes (`ponder serve --traces`).

    Answers to one prompt are a group. A step learns once from `groups_per_step` groups; after all groups they come
    again in another order. Ratios are to the log-probabilities that the tokens were sampled with, so the model should
    be the one that sampled them.
    """

    data: Annotated[tuple[str, ...], "run directories with scored answers, such as those of ponder serve --traces"]
    model: Annotated[str | ScratchModel, MODEL_HELP] = "smollm2"
    template: Template = None
    algorithm: Annotated[
        Objective, Named("ponder.train.algorithms:ON_POLICY", listed=True, default="grpo"), ALGORITHM_HELP
    ] = GRPO(kl=None)
    optimizer: OptimizerField = AdamW()
    scorer: Annotated[str, "whose scores are the rewards"] = "reward"
    temperature: Annotated[float | None, "that the answers were sampled at; default: as the runs say"] = None
    groups_per_step: Annotated[int, "groups of answers per step"] = 32
    include_held_out: IncludeHeldOut = False
    steps: Steps = field(default=10, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.data, str) or not self.data:
            raise UsageError("data is one or more run directories: give a tuple of paths")
        self.check_shared_fields()
        self.check_at_least_one("groups_per_step")
        algorithm, name = self.algorithm, type(self.algorithm).__name__
        if not algorithm.learns_from_samples or algorithm.needs_teacher:
            raise UsageError(f"{name} does not learn from the rewards of samples: take grpo or another of ponder train")
        if algorithm.critic is not None:
            raise UsageError(f"{name} learns a critic beside the samples it draws: take grpo, rloo or reinforce")
        for text in algorithm.check(RolloutSettings(Sampling(), None, min(2, self.steps))):
            warnings.warn(text, stacklevel=4)

    def check_memory(self) -> None:
        memory_check.require_trace_memory({"groups_per_step": self.groups_per_step}, {})

    def check_inputs(self) -> None:
        super().check_inputs()
        self.read_groups()

    def read_groups(self) -> RecordedGroups:
        """The groups to learn from. An algorithm whose baseline is the group leaves out answers that have none."""
        min_size = 2 if self.algorithm.needs_group else 1
        return read_recorded_groups(self.data, self.scorer, min_size, self.temperature, self.include_held_out)

    def __call__(self, folder: str | Path, watch: Progress | None = None) -> PonderPolicy:
        self.check_memory()
        with join_ranks(self.device):
            job, run = open_run(self, folder)
            with run:
                return train_offline(job, run, watch or NoProgress())

    def summary_lines(self, folder: Path, result: Any) -> list[str]:
        """What was learned from. Its reward says nothing of the model as it is now."""
        rows, has_report = read_metrics(folder), (folder / FILTER_REPORT_FILE).is_file()
        lines = ["data", *(f"  {line}" for line in filter_report_lines(folder))] if has_report else []
        if rows:
            lines.append(f"reward    {rows[-1]['reward']:.3f} in the data of the last of {format_steps(len(rows))}")
        return [
            *lines,
            f"run       {folder}",
            f"serve it  ponder serve {folder} --traces DIR, and let the agent play again",
        ]


def train_offline(job: OfflineRL, run: Run, watch: Progress) -> PonderPolicy:
    watch.phase("load")
    groups = job.read_groups()
    policy = load_policy(
        job.model, template=job.template, device=job.device, dtype=checkpoint.resume_dtype(run, job.dtype)
    )
    _check_tokens(groups.traces, policy)
    if job.lora is not None:
        lora.attach(policy.net, job.lora, job.seed)
    learner = Learner(
        policy.net, job.algorithm, job.optimizer.over(job.steps), temperature=groups.temperature,
        max_tokens_per_microbatch=job.max_tokens_per_microbatch, gradient_checkpointing=job.gradient_checkpointing,
        frozen_layers=job.frozen_layers, train_parts=job.train_parts, process_group=current_group(), fsdp=job.fsdp,
        shard_size=job.shard_size, sequence_parallel=job.sequence_parallel, fp8=job.fp8,
    )  # fmt: skip
    in_turns = any(step.turn for trace in groups.traces for step in trace.steps)
    with TrainingSession(run, job, watch, policy, {"policy": learner}) as session:
        if not session.state.step and session.group.is_main:
            write_json(run.folder / FILTER_REPORT_FILE, groups.report.to_json())
        for step in session.remaining_steps():
            with session.step() as state:
                began = time.perf_counter()
                watch.phase("learn")
                size = min(job.groups_per_step, len(groups.traces))
                chosen = shuffled_indices(len(groups.traces), job.seed, step * size, size)
                traces = [copy_group(groups.traces[i]) for i in dict.fromkeys(chosen)]
                if job.algorithm.credit_needs_reference:
                    learner.write_reference_logprobs(traces)
                metrics = sample_metrics(traces, job.scorer, in_turns)
                metrics |= job.algorithm.credit(traces, job.scorer, state.objective_state)
                metrics |= session.learn(learner, traces, watch.share)

                state.num_tokens += sum(len(s.token_ids) for t in traces for s in t.steps)
                metrics |= {"num_tokens": state.num_tokens, "groups": float(len(traces))}
                metrics |= {"step_time": time.perf_counter() - began}
                session.record(state, metrics, traces)
    return policy


def _check_tokens(traces: list[Trace], policy: PonderPolicy) -> None:
    """Refuse tokens that the model does not have, and episodes that its context cannot hold."""
    config = policy.net.config
    for trace in traces:
        if max(int(step.token_ids.max(initial=0)) for step in trace.steps) >= config.vocab:
            raise UsageError(
                f"{trace.problem.id} has tokens that this model does not know: train the model that sampled them"
            )
        length = max(len(trace.token_ids(i)) for i in trace.answers())
        if length > config.context:
            raise UsageError(f"{trace.problem.id} has {length} tokens, the model's context only {config.context}")
