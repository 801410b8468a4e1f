"""Reinforcement learning with a verifiable reward, top to bottom.

problems -> traces -> verifier's scores -> credit -> packed batch -> optimiser step -> new weights -> policy
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ponder import event_loop, memory_check
from ponder.errors import UsageError, VerifierError
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import lora
from ponder.nets.lora import LoRA
from ponder.pipelines.job.base_job import BaseJob
from ponder.pipelines.job.open_run import open_run
from ponder.pipelines.job.resolve_names import resolve_names
from ponder.pipelines.preflight.run_checks import run_preflight
from ponder.pipelines.problems.curriculum import Curriculum, PassRateHistory, Uniform
from ponder.pipelines.problems.prompt_style import apply_style
from ponder.pipelines.solve import solve_all
from ponder.pipelines.training import flat_rewards
from ponder.pipelines.training.sample_metrics import has_reward_spread, sample_metrics
from ponder.pipelines.training.session import TrainingSession, TrainingState
from ponder.pipelines.training.teachers import load_teacher, load_value_model
from ponder.protocols import NoProgress, Progress, Strategy, Task
from ponder.reason.strategies import Samples
from ponder.runs import Run
from ponder.train import checkpoint
from ponder.train.critic import critic_metrics, make_critic_learner, write_values
from ponder.train.learner import Learner
from ponder.train.objective import Objective, RolloutSettings
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling, Trace
from ponder.verify.undecided import VerdictCounts, count_verdicts, too_many_undecided


@dataclass(frozen=True)
class RL(BaseJob):
    """The job. Calling it with a run directory trains, or resumes that run."""

    READ_SPLITS: ClassVar = ("train",)  # the splits of the task that the result depends on

    task: Task
    model: str | ScratchModel = "smollm2"
    template: str | None = None  # None: the model's own chat template
    strategy: Strategy = field(default_factory=lambda: Samples(n=8, sampling=Sampling(max_tokens=256)))
    algorithm: Objective = GRPO(kl=None)
    optimizer: AdamW = AdamW()
    steps: int = 100
    problems_per_step: int = 32
    temperature: float = 1.0  # of sampling and of every log-probability
    epochs_per_batch: int = 1  # over the samples of a step
    minibatches: int = 1  # optimiser steps per epoch
    curriculum: Curriculum = Uniform()
    dynamic_sampling_rounds: int | None = None  # to replace groups of equal rewards; None: the algorithm's own
    teacher: str | None = None  # a model to distil from, or the KL term's reference; None: the model at the start
    lora: LoRA | None = None  # train adapters instead of the weights
    frozen_layers: int = 0  # the lowest layers, which do not learn; nor do embeddings and head then
    max_tokens_per_microbatch: int = 0  # changes memory, not the gradient; 0: what suits the device
    gradient_checkpointing: bool = False  # recompute activations: less memory, a third more time
    max_steps_without_signal: int = 8  # stop if rewards have not differed in so many steps from the start; 0: never
    preflight: bool = True  # run the checks before the first step
    save_every: int = 20
    keep_checkpoints: int = 2  # the newest, besides the best
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        resolve_names(self)
        object.__setattr__(self, "task", apply_style(self.task, self.strategy, self.template))
        counted = ("steps", "problems_per_step", "epochs_per_batch", "minibatches", "save_every", "keep_checkpoints")
        if (
            min(getattr(self, name) for name in counted) < 1
            or min(self.seed, self.max_tokens_per_microbatch, self.max_steps_without_signal) < 0
        ):
            raise UsageError(
                f"{', '.join(counted)} must each be at least 1, seed, max_tokens_per_microbatch and "
                "max_steps_without_signal at least 0"
            )
        if self.dynamic_sampling_rounds is not None and self.dynamic_sampling_rounds < 0:
            given = self.dynamic_sampling_rounds
            raise UsageError(f"dynamic_sampling_rounds is {given}; it is a number of rounds, 0 or more")
        if self.lora is not None and self.frozen_layers:
            raise UsageError("adapters leave all weights as they are: give either lora or frozen_layers")
        self._check_sampling()
        self._check_algorithm()

    def _check_sampling(self) -> None:
        sampling = self.sampling
        if sampling.temperature != self.temperature or not self.temperature:
            both = f"the strategy samples at temperature {sampling.temperature}, the learner at {self.temperature}"
            raise UsageError(f"{both}: they must be equal and positive")
        if sampling.seed is not None:
            raise UsageError("a sampling seed would draw the same numbers at every step: set the job's seed instead")
        if sampling.renormalises:
            warnings.warn(
                "top_p, top_k and min_p renormalise: the learner's ratio to the sampler is not 1", stacklevel=4
            )

    def _check_algorithm(self) -> None:
        algorithm, name = self.algorithm, type(self.algorithm).__name__
        group_size: int | None = getattr(self.strategy, "n", None)
        if algorithm.needs_group and group_size is not None and group_size < 2:
            raise UsageError(
                "a group of one has no baseline: sample at least 2 completions per problem (--group-size 8)"
            )
        if algorithm.needs_group and self.sampling.deterministic:
            raise UsageError("with top_k 1 all answers of a group are the same, so nothing is learned: leave it out")
        if algorithm.needs_teacher and self.teacher is None:
            raise UsageError("distillation needs a teacher: name a model that reads the same tokens (--teacher)")
        if self.teacher is not None and algorithm.kl is None and not algorithm.needs_reference:
            raise UsageError(
                f"{name} reads no teacher without a KL term: give it one (--beta), or leave out the teacher"
            )
        rollouts = RolloutSettings(
            self.sampling, group_size, self.epochs_per_batch * self.minibatches, self.teacher is not None
        )
        for text in algorithm.check(rollouts):
            warnings.warn(text, stacklevel=4)

    @property
    def sampling(self) -> Sampling:
        """How the strategy samples."""
        sampling: Sampling = getattr(self.strategy, "sampling", Sampling(temperature=self.temperature))
        return sampling

    def check_memory(self) -> None:
        """Refuse a step that this machine's memory cannot hold."""
        memory_check.require_trace_memory(
            {"problems_per_step": self.problems_per_step}, {"n": getattr(self.strategy, "n", 1)}
        )

    def __call__(self, folder: str | Path, watch: Progress | None = None) -> PonderPolicy:
        self.check_memory()
        job, run = open_run(self, folder)
        with run:
            return event_loop.run(train(job, run, watch or NoProgress()))


async def train(job: RL, run: Run, watch: Progress) -> PonderPolicy:
    watch.phase("load")
    policy = load_policy(
        job.model, template=job.template, device=job.device, dtype=checkpoint.resume_dtype(run, job.dtype)
    )
    learner, critic = build_learners(job, policy)
    verifier = job.task.verifier
    verdicts: list[VerdictCounts] = []

    with TrainingSession(
        run, job, watch, policy, {"policy": learner} | ({"critic": critic} if critic else {})
    ) as session:
        if job.preflight and not session.state.step:
            watch.phase("check")
            await run_preflight(job, policy, learner, critic)
        policy.on_tokens = watch.tokens
        for step in session.remaining_steps():
            with session.step() as state:
                began = time.perf_counter()
                watch.phase("sample")
                rollouts, traces = await collect_rollouts(job, policy, step, state)
                sampled = time.perf_counter()

                watch.phase("learn")
                policy.sleep()  # frees its memory for the learner
                if job.algorithm.credit_needs_reference:
                    learner.write_reference_logprobs(traces)
                if critic:
                    write_values(critic, traces)
                metrics = sample_metrics(rollouts, verifier.name)
                flat_rewards.update_flat_rewards(
                    state.objective_state, step, rollouts, verifier.name, not job.algorithm.needs_group
                )
                metrics |= job.algorithm.credit(traces, verifier.name, state.objective_state)
                if job.algorithm.critic is None or step >= job.algorithm.critic.warmup_steps:
                    metrics |= session.learn(learner, traces, watch.share)
                if critic:
                    metrics |= critic_metrics(session.learn(critic, traces, lambda share: None))
                ended = time.perf_counter()

                state.num_tokens += metrics["num_tokens"]
                metrics |= {"num_tokens": state.num_tokens, "groups": float(len(traces))}
                metrics |= {"time/sample": sampled - began, "time/learn": ended - sampled, "step_time": ended - began}
                session.record(state, metrics, rollouts)
            scores = (t.steps[i].scores.get(verifier.name) for t in rollouts for i in t.answers())
            verdicts.append(count_verdicts(s for s in scores if s is not None))
            if why := too_many_undecided(verdicts, is_final=step + 1 == job.steps):
                raise VerifierError(why)
            if job.algorithm.needs_reward:
                flat_rewards.stop_if_flat(session, job.max_steps_without_signal)
    return policy


async def collect_rollouts(
    job: RL, policy: PonderPolicy, step: int, state: TrainingState
) -> tuple[list[Trace], list[Trace]]:
    """All traces of a step, and those to learn from: with dynamic sampling only groups whose rewards differ."""
    problems, verifier = job.task.train, job.task.verifier
    history = PassRateHistory.from_json(state.curriculum_state) if state.curriculum_state else PassRateHistory()
    more = job.dynamic_sampling_rounds
    rounds = 1 + (job.algorithm.dynamic_sampling_rounds if more is None else more)
    rollouts: list[Trace] = []
    useful: list[Trace] = []
    for turn in range(rounds):
        policy.reseed(job.seed, step, *([turn] if turn else []))
        chosen = job.curriculum.choose(problems, job.seed, state.cursor, job.problems_per_step - len(useful), history)
        traces = await solve_all([problems[i] for i in chosen], job.strategy, policy, verifier)
        for i, trace in zip(chosen, traces, strict=True):
            history.add(i, [trace.score(leaf, verifier.name) for leaf in trace.answers()])
        state.cursor += len(chosen)
        rollouts += traces
        useful += [t for t in traces if has_reward_spread(t, verifier.name)] if rounds > 1 else traces
        if len(useful) >= job.problems_per_step:
            break
    if not isinstance(job.curriculum, Uniform):  # which does not read it
        state.curriculum_state = history.to_json()
    return rollouts, useful


def build_learners(job: RL, policy: PonderPolicy) -> tuple[Learner, Learner | None]:
    """The policy's learner, and the critic's if the algorithm has one."""
    net, critic = policy.net, None
    sizes: Any = {
        "max_tokens_per_microbatch": job.max_tokens_per_microbatch,
        "epochs_per_batch": job.epochs_per_batch,
        "minibatches": job.minibatches,
    }
    if job.algorithm.critic is not None:
        start = job.algorithm.critic.model
        critic = make_critic_learner(
            net if start is None else load_value_model(start, policy),
            job.algorithm.critic,
            frozen_layers=job.frozen_layers,
            gradient_checkpointing=job.gradient_checkpointing,
            **sizes,
        )
    if job.lora is not None:
        lora.attach(net, job.lora, job.seed)
    learner = Learner(
        net, job.algorithm, job.optimizer, temperature=job.temperature, frozen_layers=job.frozen_layers,
        gradient_checkpointing=job.gradient_checkpointing,
        reference=None if job.teacher is None else load_teacher(job.teacher, policy), **sizes,
    )  # fmt: skip
    return learner, critic
