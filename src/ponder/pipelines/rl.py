"""Reinforcement learning with a verifiable reward, top to bottom.

problems -> traces -> verifier's scores -> credit -> packed batch -> optimiser step -> new weights -> policy
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ponder import event_loop, memory_check
from ponder.common_settings import MODEL_HELP, TASK_HELP, Template
from ponder.errors import UsageError, VerifierError
from ponder.models.base_policy import BasePolicy
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import lora
from ponder.pipelines.job.base_job import BaseJob
from ponder.pipelines.job.check_inputs import require_problems
from ponder.pipelines.job.learner_fields import ALGORITHM_HELP, LearnerFields, OptimizerField
from ponder.pipelines.job.named_fields import OptionalStrategyOrName, TaskOrName, required
from ponder.pipelines.job.open_run import open_run
from ponder.pipelines.job.resolve_names import resolve_names
from ponder.pipelines.job.tool_fields import ToolFields
from ponder.pipelines.preflight.run_checks import PreflightReport, preflight_rl, run_preflight
from ponder.pipelines.problems.conversations import read_conversations
from ponder.pipelines.problems.curriculum import Curriculum, PassRateHistory, Uniform
from ponder.pipelines.problems.prompt_style import apply_style
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.pipelines.rewards.verifier_workers import VerifierWorkerCount, check_shared_workers, over_verifier_workers
from ponder.pipelines.sft import answer_trace
from ponder.pipelines.training import flat_rewards
from ponder.pipelines.training.cluster_metrics import cluster_metrics
from ponder.pipelines.training.early_import import import_compiler_early
from ponder.pipelines.training.held_out_accuracy import ACCURACY, START_ACCURACY, held_out_accuracy
from ponder.pipelines.training.open_sampler import (
    ReplicaEngineName,
    TensorParallel,
    WeightTransportName,
    check_replicas,
    check_sampler,
    open_sampler,
)
from ponder.pipelines.training.sample_metrics import has_reward_spread, sample_metrics
from ponder.pipelines.training.sampling_ahead import SamplingAhead, age_metrics
from ponder.pipelines.training.session import TrainingSession, TrainingState
from ponder.pipelines.training.shared_rollouts import own_part, solve_over_ranks
from ponder.pipelines.training.teachers import load_teacher, load_value_model
from ponder.protocols import NoProgress, Progress, Scorer, Strategy
from ponder.reason.strategies import Samples
from ponder.runs import Run
from ponder.settings import Named, SettingsOf, When
from ponder.train import checkpoint
from ponder.train.credit import assign_imitation
from ponder.train.critic import critic_metrics, make_critic_learner, write_values
from ponder.train.distributed import current_group
from ponder.train.learner import ImitationTerm, Learner
from ponder.train.objective import Objective, RolloutSettings
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.ranks import join_ranks
from ponder.train.rollout_correction import IcePop, RolloutCorrection, TruncatedIS
from ponder.types import Problem, Sampling, Trace
from ponder.verify.undecided import VerdictCounts, count_verdicts, too_many_undecided


@dataclass(frozen=True)
class RL(ToolFields, LearnerFields, BaseJob):
    """The job. Calling it with a run directory trains, or resumes that run."""

    task: Annotated[TaskOrName, Named("ponder.tasks:TASKS"), TASK_HELP] = required()
    model: Annotated[str | ScratchModel, MODEL_HELP] = "smollm2"
    template: Template = None
    strategy: OptionalStrategyOrName = None  # type: ignore[assignment]  # in place of `group_size` independent completions
    algorithm: Annotated[
        Objective, Named("ponder.train.algorithms:ON_POLICY", listed=True, default="grpo"), ALGORITHM_HELP
    ] = GRPO(kl=None)
    optimizer: OptimizerField = AdamW()
    group_size: Annotated[int, "completions per problem"] = 8
    # The learner takes every log-probability at this temperature, too.
    sampling: Annotated[Sampling, SettingsOf("sampling", "ponder.sampling:Sampling"), "how completions are sampled"] = (
        Sampling(max_tokens=256)
    )
    problems_per_step: Annotated[int, "problems per step"] = 32
    epochs_per_batch: Annotated[int, "passes over the samples of a step"] = 1
    minibatches: Annotated[int, "optimizer steps per pass"] = 1
    curriculum: Annotated[
        Curriculum,
        Named("ponder.pipelines.problems.curriculum:CURRICULA", listed=True, default="uniform"),
        "which problems come next",
    ] = Uniform()
    dynamic_sampling_rounds: Annotated[
        int | None, "rounds that may replace groups of equal rewards; default: the paper's"
    ] = None
    teacher: Annotated[
        str | None, "a model to distil from, or to hold the KL against; default: the model as it begins"
    ] = None
    pretraining_data: Annotated[
        str | None,
        "PPO-ptx: a JSONL file of conversations that every step imitates, too (--algorithm.pretraining_coef)",
    ] = None
    pretraining_batch_size: Annotated[int, "conversations of it in a step", When("pretraining_data")] = 32
    rollout_correction: Annotated[
        RolloutCorrection | None,
        Named("ponder.train.rollout_correction:ROLLOUT_CORRECTIONS", listed=True),
        "weigh tokens by the learner's probability over the sampler's; default: not, and with staleness icepop",
    ] = None
    staleness: Annotated[
        int, "sample while learning, with weights that are at most so many steps behind; 0: sample and learn in turn"
    ] = 0
    batches_ahead: Annotated[
        int | None,
        "batches that begin before it is their turn; default: as few as keep the learner busy",
        When("staleness"),
    ] = None
    replicas: Annotated[int, "sampler processes beside the learner's; 0: sample in the learner's own"] = 0
    replica_engine: ReplicaEngineName = "ponder"
    tensor_parallel: TensorParallel = 1
    weight_transport: WeightTransportName = "auto"
    verifier_workers: VerifierWorkerCount = 0
    max_steps_without_signal: Annotated[
        int, "stop if rewards have not differed in so many steps from the start; 0: never"
    ] = 8
    preflight: Annotated[bool, "skip the checks before the first step"] = True
    eval_every: Annotated[int, "steps between evaluations on held-out problems; 0: none"] = 0
    eval_limit: Annotated[int, "held-out problems to evaluate on, at most", When("eval_every")] = 128
    eval_samples: Annotated[
        int, "samples of each, for pass@1 and the majority's accuracy; 0: greedy alone", When("eval_every")
    ] = 0

    def __post_init__(self) -> None:
        resolve_names(self)
        self.check_at_least_one(
            "problems_per_step", "group_size", "epochs_per_batch", "minibatches", "eval_limit", "pretraining_batch_size"
        )
        object.__setattr__(self, "task", apply_style(self.task, self.rollout_strategy, self.template))
        self.add_tools()
        self.check_shared_fields()
        for name in (
            "max_steps_without_signal",
            "eval_every",
            "eval_samples",
            "staleness",
            "replicas",
            "verifier_workers",
        ):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        check_replicas(self.replicas, self.tensor_parallel)
        if self.dynamic_sampling_rounds is not None and self.dynamic_sampling_rounds < 0:
            given = self.dynamic_sampling_rounds
            raise UsageError(f"dynamic_sampling_rounds is {given}; it is a number of rounds, 0 or more")
        self._check_sampling()
        self._check_algorithm()
        self._check_staleness()

    def _check_sampling(self) -> None:
        for own, name in (("n", "group_size"), ("sampling", "sampling")):
            if hasattr(self.strategy, own) and getattr(self, name) != getattr(RL, name):
                raise UsageError(f"{type(self.strategy).__name__} has its own {own}: leave out the job's {name}")
        sampling = self.rollout_sampling
        if not sampling.temperature:
            raise UsageError("the temperature is 0, so all samples are equal: give a positive one")
        if sampling.seed is not None:
            raise UsageError("a sampling seed would draw the same numbers at every step: set the job's seed instead")
        if sampling.renormalises:
            warnings.warn(
                "top_p, top_k and min_p renormalise: the learner's ratio to the sampler is not 1", stacklevel=4
            )

    def _check_algorithm(self) -> None:
        algorithm, name = self.algorithm, type(self.algorithm).__name__
        group_size: int | None = getattr(self.rollout_strategy, "n", None)
        if algorithm.needs_group and group_size is not None and group_size < 2:
            raise UsageError(
                "a group of one has no baseline: sample at least 2 completions per problem (--group-size 8)"
            )
        if algorithm.needs_group and self.rollout_sampling.deterministic:
            raise UsageError("with top_k 1 all answers of a group are the same, so nothing is learned: leave it out")
        if algorithm.needs_teacher and self.teacher is None:
            raise UsageError("distillation needs a teacher: name a model that reads the same tokens (--teacher)")
        if self.teacher is not None and algorithm.kl is None and not algorithm.needs_reference:
            raise UsageError(
                f"{name} reads no teacher without a KL term: give it one (--beta), or leave out the teacher"
            )
        if (self.pretraining_data is not None) != bool(getattr(algorithm, "pretraining_coef", 0.0)):
            raise UsageError(
                "PPO-ptx needs both pretraining_data and an algorithm with a pretraining_coef, such as PPO with 27.8"
            )
        if self.rollout_correction is not None and algorithm.learns_from_given:
            raise UsageError(f"{name} has no policy gradient to weigh: leave out rollout_correction")
        rollouts = RolloutSettings(self.rollout_sampling, group_size, self.epochs_per_batch * self.minibatches)
        for text in algorithm.check(rollouts):
            warnings.warn(text, stacklevel=4)

    def _check_staleness(self) -> None:
        if not self.staleness:
            return
        if self.batches_ahead is not None and not 1 <= self.batches_ahead <= self.staleness:
            raise UsageError(
                f"batches_ahead is {self.batches_ahead}; it is at least 1, and at most the staleness, {self.staleness}"
            )
        name = type(self.algorithm).__name__
        if self.algorithm.learns_from_given:
            raise UsageError(f"{name} has no policy gradient to correct for older samples: leave out staleness")
        if self.sampling_rounds > 1:
            raise UsageError(
                f"{name} replaces groups of equal rewards, which sampling ahead cannot: give dynamic_sampling_rounds 0 "
                "(--dynamic-sampling-rounds 0), or staleness 0"
            )

    @property
    def sampling_rounds(self) -> int:
        """Rounds in which a step may sample: dynamic sampling needs more than one."""
        more = self.dynamic_sampling_rounds
        return 1 + (self.algorithm.dynamic_sampling_rounds if more is None else more)

    @property
    def used_correction(self) -> RolloutCorrection | None:
        """The rollout correction. Unless one is given: IcePop where samples may be old, since the low cap of truncated
        importance sampling costs accuracy there, and the latter where another engine computed their probabilities."""
        if self.rollout_correction is not None:
            return self.rollout_correction
        if self.staleness:
            return IcePop()
        return TruncatedIS() if self.replica_engine != "ponder" else None

    @property
    def rollout_strategy(self) -> Strategy:
        """What answers a problem: the strategy, or `group_size` independent completions."""
        return self.strategy if self.strategy is not None else Samples(self.group_size, self.sampling)

    @property
    def rollout_sampling(self) -> Sampling:
        """How that samples, and so at which temperature the learner takes log-probabilities."""
        sampling: Sampling = getattr(self.strategy, "sampling", self.sampling)
        return sampling

    @property
    def optimizer_steps(self) -> int:
        return self.steps * self.epochs_per_batch * self.minibatches

    def strategies(self) -> list[tuple[Strategy, Any]]:
        return [(self.rollout_strategy, None)]

    def unused(self) -> dict[str, str]:
        """Settings that change nothing as the others stand, and why (see settings.py)."""
        if self.epochs_per_batch * self.minibatches > 1:
            return {}
        once = "a step's samples are learned from once, so that every ratio is 1; give epochs_per_batch or minibatches"
        return {"algorithm.clip": once, "algorithm.clip_high": once}

    @property
    def READ_SPLITS(self) -> tuple[str, ...]:
        """The splits of the task that the result depends on."""
        return ("train", "test") if self.eval_every else ("train",)

    def training_jobs(self) -> list[tuple[str, Any]]:
        return [("", self)]

    def preflight_report(self, policy: PonderPolicy) -> PreflightReport:
        """What the checks before the first step say."""
        learner, critic = build_learners(self, policy)
        return PreflightReport(learner, *event_loop.run(preflight_rl(self, policy, learner, critic)))

    def check_memory(self) -> None:
        """Refuse a step that this machine's memory cannot hold."""
        samples = "group_size" if self.strategy is None else "n"
        memory_check.require_trace_memory(
            {"problems_per_step": self.problems_per_step}, {samples: getattr(self.rollout_strategy, "n", 1)}
        )

    def check_inputs(self) -> None:
        super().check_inputs()
        for split in self.READ_SPLITS:
            require_problems(self.task, split)

    def __call__(self, folder: str | Path, watch: Progress | None = None) -> PonderPolicy:
        self.check_memory()
        for split in self.READ_SPLITS:
            require_problems(self.task, split)
        with join_ranks(self.device):
            job, run = open_run(self, folder)
            with run:
                return event_loop.run(train(job, run, watch or NoProgress()))


async def train(job: RL, run: Run, watch: Progress) -> PonderPolicy:
    watch.phase("load")
    dtype, loading = checkpoint.resume_dtype(run, job.dtype), checkpoint.start_loading(run, current_group())
    import_compiler_early(job)
    policy = load_policy(job.model, template=job.template, device=job.device, dtype=dtype)
    check_sampler(job, policy)
    check_shared_workers(job.task, job.verifier_workers)
    learner, critic = build_learners(job, policy)
    verdicts: list[VerdictCounts] = []
    texts = [] if job.pretraining_data is None else read_conversations(job.pretraining_data)

    learners = {"policy": learner} | ({"critic": critic} if critic else {})

    async with AsyncExitStack() as stack:
        session = stack.enter_context(TrainingSession(run, job, watch, policy, learners, loading))
        watch = session.watch
        if job.preflight and not session.state.step and not learner.sharded:  # whose checks need whole weights
            watch.phase("check")
            await run_preflight(job, policy, learner, critic)
        policy.on_tokens = watch.tokens
        at_start: dict[str, float] = {}
        if job.eval_every and not session.state.step:
            at_start = {START_ACCURACY: (await evaluate_held_out(job, policy, 0, watch))[ACCURACY]}
        ahead: SamplingAhead | None = None
        workers = over_verifier_workers(job.task, job.verifier_workers, run.folder)
        verifier = await stack.enter_async_context(workers)
        if (sampler := await open_sampler(job, policy, run.folder)) is not None:
            stack.push_async_callback(sampler.close)
            sampler.on_tokens = watch.tokens
            if job.staleness:
                ahead = await stack.enter_async_context(SamplingAhead(job, sampler, session.state, verifier))
        for step in session.remaining_steps():
            with session.step() as state:
                began = time.perf_counter()
                watch.phase("sample")
                if ahead is None:
                    rollouts, traces = await collect_rollouts(job, sampler or policy, step, state, verifier)
                else:
                    rollouts = traces = await ahead.take(state)
                sampled = time.perf_counter()

                watch.phase("learn")
                policy.sleep()  # frees its memory for the learner
                metrics = sample_metrics(rollouts, verifier.name, hasattr(verifier, "episodes"))
                flat_rewards.update_flat_rewards(
                    state.objective_state, step, rollouts, verifier.name, not job.algorithm.needs_group
                )
                learner.imitation = pretraining_term(job, policy, texts, step)
                beside_device = [partial(run.prepare_traces, step, rollouts)]
                if ahead is None and step + 1 < job.steps:
                    beside_device.append(partial(encode_next, job, sampler or policy, state))
                learn = partial(learn_from, job, session, learner, critic, traces, state, beside_device)
                metrics |= learn() if ahead is None else await ahead.run_beside(learn)
                metrics |= {} if ahead is None else age_metrics(rollouts, step)
                metrics |= cluster_metrics(session.group, sampler, ahead, verifier)
                ended = time.perf_counter()

                state.num_tokens += metrics["num_tokens"]
                metrics |= {"num_tokens": state.num_tokens, "groups": float(len(traces))}
                metrics |= {"time/sample": sampled - began, "time/learn": ended - sampled, "step_time": ended - began}
                metrics |= at_start if step == 0 else {}
                if job.eval_every and ((step + 1) % job.eval_every == 0 or step + 1 == job.steps):
                    metrics |= await evaluate_held_out(job, policy, step + 1, watch)
                session.record(state, metrics, rollouts, sum(t.cost.flops for t in rollouts))
            if sampler is not None and ahead is not None:
                await ahead.publish(sampler, session.state)
            elif sampler is not None:
                await sampler.publish(session.state.step)
            scores = (t.steps[i].scores.get(verifier.name) for t in rollouts for i in t.answers())
            verdicts.append(count_verdicts(s for s in scores if s is not None))
            if why := too_many_undecided(verdicts, is_final=step + 1 == job.steps):
                raise VerifierError(why)
            if job.algorithm.needs_reward:
                flat_rewards.stop_if_flat(session, job.max_steps_without_signal)
    return policy


def learn_from(
    job: RL,
    session: TrainingSession,
    learner: Learner,
    critic: Learner | None,
    traces: Sequence[Trace],
    state: TrainingState,
    beside_device: Sequence[Callable[[], None]],
) -> dict[str, float]:
    """Credit the traces and take the learners' step. `beside_device` is done while the GPU computes the gradient."""

    def work_beside_device() -> None:
        for work in beside_device:
            work()

    if job.algorithm.credit_needs_reference:
        learner.write_reference_logprobs(traces)
    if critic:
        write_values(critic, traces)
    metrics = job.algorithm.credit(traces, job.task.verifier.name, state.objective_state)
    if job.algorithm.critic is None or session.state.step >= job.algorithm.critic.warmup_steps:
        metrics |= session.learn(learner, traces, session.watch.share, work_beside_device)
    if critic:
        metrics |= critic_metrics(session.learn(critic, traces, lambda share: None))
    return metrics


def pretraining_term(job: RL, policy: PonderPolicy, texts: Sequence[Problem], step: int) -> ImitationTerm | None:
    """PPO-ptx: the conversations that this step imitates beside its samples."""
    if not texts:
        return None
    chosen = shuffled_problems(texts, job.seed, step * job.pretraining_batch_size, job.pretraining_batch_size)
    traces = [answer_trace(policy, problem, problem.answer) for problem in chosen]
    for trace in traces:
        assign_imitation(trace)
    return ImitationTerm(job.algorithm.pretraining_coef, traces)  # type: ignore[attr-defined]


async def evaluate_held_out(job: RL, policy: PonderPolicy, step: int, watch: Progress) -> dict[str, float]:
    """Accuracy on held-out problems after so many steps, and the time it took."""
    watch.phase("eval")
    began = time.perf_counter()
    metrics = await held_out_accuracy(
        job.task, policy, job.rollout_sampling, job.eval_limit, job.eval_samples, job.seed, step
    )
    return metrics | {"time/eval": time.perf_counter() - began}


async def collect_rollouts(
    job: RL, policy: BasePolicy, step: int, state: TrainingState, verifier: Scorer | None = None
) -> tuple[list[Trace], list[Trace]]:
    """All traces of a step, and those to learn from: with dynamic sampling only groups whose rewards differ."""
    problems, verifier = job.task.train, verifier or job.task.verifier
    history = PassRateHistory.from_json(state.curriculum_state) if state.curriculum_state else PassRateHistory()
    rounds = job.sampling_rounds
    rollouts: list[Trace] = []
    useful: list[Trace] = []
    for turn in range(rounds):
        policy.reseed(job.seed, step, *([turn] if turn else []))
        chosen = job.curriculum.choose(problems, job.seed, state.cursor, job.problems_per_step - len(useful), history)
        traces = await solve_over_ranks([problems[i] for i in chosen], job.rollout_strategy, policy, verifier)
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


def encode_next(job: RL, policy: BasePolicy, state: TrainingState) -> None:
    """Encode the prompts of the next step, where its problems are known without weighing others and are the prompts."""
    if not isinstance(job.curriculum, Uniform) or hasattr(job.task.verifier, "episodes"):
        return
    problems, history = job.task.train, PassRateHistory()
    try:
        chosen = job.curriculum.choose(problems, job.seed, state.cursor, job.problems_per_step, history)
        policy.encode_ahead([problem.messages for problem in own_part([problems[i] for i in chosen])])
    except Exception:  # also an interrupt of the user's code: the next step asks for the same, and meets it again
        return


def build_learners(job: RL, policy: PonderPolicy) -> tuple[Learner, Learner | None]:
    """The policy's learner, and the critic's if the algorithm has one."""
    net, critic = policy.net, None
    sizes: Any = {
        "max_tokens_per_microbatch": job.max_tokens_per_microbatch,
        "epochs_per_batch": job.epochs_per_batch,
        "minibatches": job.minibatches,
        "process_group": current_group(),
        "fp8": job.fp8,
        "fsdp": job.fsdp,
        "shard_size": job.shard_size,
        "sequence_parallel": job.sequence_parallel,
    }
    if job.algorithm.critic is not None:
        start = job.algorithm.critic.model
        critic = make_critic_learner(
            net if start is None else load_value_model(start, policy),
            job.algorithm.critic,
            frozen_layers=job.frozen_layers,
            train_parts=job.train_parts,
            gradient_checkpointing=job.gradient_checkpointing,
            **sizes,
        )
    if job.lora is not None:
        lora.attach(net, job.lora, job.seed)
    learner = Learner(
        net, job.algorithm, job.optimizer.over(job.optimizer_steps), temperature=job.rollout_sampling.temperature,
        frozen_layers=job.frozen_layers, train_parts=job.train_parts, gradient_checkpointing=job.gradient_checkpointing,
        rollout_correction=job.used_correction,
        reference=None if job.teacher is None else load_teacher(job.teacher, policy), **sizes,
    )  # fmt: skip
    return learner, critic
