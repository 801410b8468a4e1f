"""Training reward models: from preferences, outcomes or step labels, implicit ones, and value models."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ponder import full_disk, memory_check
from ponder.atomic_write import TEMPORARY_SUFFIX
from ponder.common_settings import MODEL_HELP, IncludeHeldOut, SaveEvery, Template
from ponder.errors import RunError, UnknownName, UsageError
from ponder.measure import auroc, auroc_within_problems, best_at_k, ece
from ponder.measure.statistics.logistic_fit import fit_logistic
from ponder.measure.statistics.verifier_metrics import (
    correct_pairs,
    fit_binary_temperature,
    fit_categorical_temperature,
)
from ponder.models.load_scorer import load_policy_with_head
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import lora
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.decoder_with_reference import DecoderWithReference
from ponder.pipelines.job.base_job import BaseJob, format_steps
from ponder.pipelines.job.learner_fields import LearnerFields, OptimizerField
from ponder.pipelines.job.open_run import open_run
from ponder.pipelines.problems.shuffled_order import shuffled_indices
from ponder.pipelines.rewards.labelled_traces import merge_by_prompt, prepare_labels, read_training_labels
from ponder.pipelines.rewards.negatives import Negatives
from ponder.pipelines.training.session import TrainingSession
from ponder.protocols import NoProgress, Progress
from ponder.reason.operators.logprob_features import features_at, logprob_features
from ponder.reason.operators.uncertainty import mean_logprob, sum_logprob
from ponder.runs import Run, read_metrics, write_json
from ponder.runs.data_files import FILTER_REPORT_FILE, filter_report_lines
from ponder.settings import Named, When
from ponder.train import checkpoint
from ponder.train.distributed import current_group
from ponder.train.equal_answers import answer_count
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.ranks import join_ranks
from ponder.train.readouts import LOGPROB_OFFSET_NOTE
from ponder.train.reward_learner import make_reward_learner, predict
from ponder.train.reward_objectives import OutcomeReward, RewardObjective, RewardTarget, two_hot
from ponder.types import Trace


@dataclass(frozen=True)
class TrainRewardModel(LearnerFields, BaseJob):
    """The job. `data`: files of labels or traces, or run directories, whose labels are the scores of `scorer`.

    `separator` splits completions into steps (None: the trace's own steps). Some tenths of the questions are held out,
    for evaluation and to fit the temperature. `head_only` trains the head alone, and `lora` the head and adapters: such
    a reward model can share an engine with the policy it was trained on. An implicit reward model has no head: the
    language model itself is trained, and saved with the reference that it began as.
    """

    data: Annotated[
        tuple[str, ...], "JSONL of labels or traces, or a run directory; several are read one after another"
    ]
    model: Annotated[str | ScratchModel, MODEL_HELP] = "smollm2"
    algorithm: Annotated[
        RewardObjective,
        Named("ponder.train.reward_objectives:REWARD_OBJECTIVES", listed=True),
        "learn from preferences, outcomes, steps, or values of states",
    ] = OutcomeReward()
    template: Template = None
    format: Annotated[str | None, "prm800k, shepherd, omega, stepwise, pairs, ranked, outcomes or traces"] = None
    scorer: Annotated[str | None, "whose scores are the labels of a run's traces"] = None
    separator: Annotated[
        str | None,
        "cut what a model wrote into steps here, such as '\\n'",
        When("algorithm", "prm", "implicit-prm", "value"),
    ] = None
    skip_bad: Annotated[bool, "go on without rows of a file that cannot be used"] = False
    held_out_tenths: Annotated[int, "tenths of the questions to measure on, and to fit the temperature"] = 1
    train_tenths: Annotated[int, "tenths of the other questions to learn from: to see what more of them are worth"] = 10
    negatives: Annotated[
        Negatives,
        "wrong answers to learn from: all, or as many as right ones to the same problem, those nearest to a right one"
        " or at random",
    ] = "all"
    include_held_out: IncludeHeldOut = False
    optimizer: OptimizerField = AdamW(lr=1e-5)
    batch_size: Annotated[int, "solutions (or prompts) per step"] = 32
    head_only: Annotated[bool, "train the head alone: it can then read the policy's own states"] = False
    residual_dropout: Annotated[float, "share of what each layer adds that is set to 0 at random while learning"] = 0.0
    keep_best: Annotated[
        bool, "end with the weights that were best on the held-out questions, measured every eval_every steps"
    ] = False
    eval_every: Annotated[int, "steps between measurements on the held-out questions; 0: save_every"] = 0
    save_every: SaveEvery = field(default=50, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.data, str) or not self.data:
            raise UsageError("data is one or more paths: give a tuple of files or run directories")
        self.check_shared_fields()
        self.check_at_least_one("batch_size")
        if not 0 <= self.held_out_tenths <= 9:
            raise UsageError(f"held_out_tenths is {self.held_out_tenths}; it is 0 to 9 tenths of the questions")
        if not 1 <= self.train_tenths <= 10:
            raise UsageError(f"train_tenths is {self.train_tenths}; give 1 to 10")
        if self.negatives not in get_args(Negatives):
            raise UnknownName("choice of negatives", str(self.negatives), get_args(Negatives))
        if self.negatives != "all" and self.algorithm.predicts == "value":
            raise UsageError("a value model learns from all states: leave out negatives")
        if self.eval_every < 0:
            raise UsageError(f"eval_every is {self.eval_every}; give a number of steps, or 0 for save_every")
        if not 0 <= self.residual_dropout < 1:
            raise UsageError(f"residual_dropout is {self.residual_dropout}; a share that is dropped is 0 to below 1")
        if self.keep_best and (not self.held_out_tenths or self.fsdp):
            raise UsageError("keep_best needs held-out questions to measure on, and weights in one piece (no fsdp)")
        if self.head_only and (self.lora is not None or self.frozen_layers):
            raise UsageError("lora, head_only and frozen_layers each choose which weights learn: give one of them")
        if self.head_only and self.algorithm.head.predicts == "implicit":
            raise UsageError("an implicit reward model has no head to train alone: leave out head_only")

    def check_memory(self) -> None:
        memory_check.require_trace_memory({"batch_size": self.batch_size}, {})

    def __call__(self, folder: str | Path, watch: Progress | None = None) -> PonderPolicy:
        self.check_memory()
        with join_ranks(self.device):
            job, run = open_run(self, folder)
            with run:
                return train_reward_model(job, run, watch or NoProgress())

    def summary_lines(self, folder: Path, result: Any) -> list[str]:
        return [*self._metric_lines(folder), f"run       {folder}"]

    def _metric_lines(self, folder: Path) -> list[str]:
        rows = read_metrics(folder)
        if not rows:
            return []
        took = sum(row.get("step_time", 0.0) for row in rows)
        out = (
            ["data", *(f"  {line}" for line in filter_report_lines(folder))]
            if (folder / FILTER_REPORT_FILE).is_file()
            else []
        )
        first, last = rows[0]["loss"], rows[-1]["loss"]
        out += [f"loss      {first:.3f} -> {last:.3f} after {format_steps(len(rows))}, {took:.0f} s"]
        test = {k.removeprefix("test/"): v for k, v in rows[-1].items() if k.startswith("test/")}
        if not test:
            return [*out, "measured  on nothing: no question was held out"]
        labels = int(test.pop("labels"))
        few = ", too few to be precise" if labels < 500 else ""
        out.append(f"measured  on {labels} labels of held-out questions{few}")
        out += [f"  {name.replace('_', ' '):<20}{value:.3f}" for name, value in test.items()]
        return [*out, f"use it    --guide reward:{folder} with ponder eval or ponder solve"]


def train_reward_model(job: TrainRewardModel, run: Run, watch: Progress) -> PonderPolicy:
    watch.phase("load")
    raw_labels = read_training_labels(
        job.data, job.format, job.scorer, job.skip_bad, job.algorithm.needs_scores, job.include_held_out
    )
    policy = load_policy_with_head(
        job.model, job.algorithm.head, job.template, job.device, checkpoint.resume_dtype(run, job.dtype), job.seed
    )
    net = policy.net
    assert isinstance(net, DecoderWithHead | DecoderWithReference)
    net.head = replace(net.head, separator=job.separator or net.head.separator)
    labels = prepare_labels(
        raw_labels, policy, job.algorithm.targets, job.held_out_tenths, job.separator,
        pairwise=job.algorithm.pairwise, must_differ=job.algorithm.needs_both_labels,
        whole_answers=job.algorithm.reads_whole_answers, train_tenths=job.train_tenths,
        # Answers with the same tokens differ by dropout, and where they are read by their sampled log-probabilities.
        merge_equal=job.algorithm.merges_equal_answers and not job.residual_dropout,
        same_logprobs=bool(net.head.logprob_weights), negatives=job.negatives, seed=job.seed,
    )  # fmt: skip
    held_out = merge_by_prompt(labels.test)
    if net.head.logprob_weights:
        fitted_weights = fit_logprob_weights(labels.train, job.algorithm, labels.scorer)
        net.head = replace(net.head, logprob_weights=fitted_weights)
        note_logprob_offsets([*labels.train, *held_out], fitted_weights)
    if job.lora is not None:
        lora.attach(net, job.lora, job.seed)
    learner = make_reward_learner(
        net, job.algorithm, job.optimizer.over(job.steps), max_tokens_per_microbatch=job.max_tokens_per_microbatch,
        gradient_checkpointing=job.gradient_checkpointing, fp8=job.fp8,
        frozen_layers=job.frozen_layers, train_parts=job.train_parts,
        head_only=job.head_only, process_group=current_group(), fsdp=job.fsdp, shard_size=job.shard_size,
        sequence_parallel=job.sequence_parallel, residual_dropout=job.residual_dropout, dropout_seed=job.seed,
    )  # fmt: skip
    best = BestWeights(run.folder / f"best-{current_group().rank}.safetensors", learner) if job.keep_best else None
    eval_every = job.eval_every or job.save_every

    with TrainingSession(run, job, watch, policy, {"model": learner}) as session:
        memory = session.state.objective_state
        if not session.state.step and session.group.is_main:
            write_json(run.folder / FILTER_REPORT_FILE, labels.filter_report.to_json())
        net.head = replace(net.head, temperature=memory.get("temperature", net.head.temperature))
        for step in session.remaining_steps():
            with session.step() as state:
                began = time.perf_counter()
                session.watch.phase("learn")
                chosen = shuffled_indices(
                    len(labels.train), job.seed, step * job.batch_size, min(job.batch_size, len(labels.train))
                )
                traces = [labels.train[i] for i in dict.fromkeys(chosen)]
                metrics = job.algorithm.credit(traces, labels.scorer, state.objective_state)
                metrics |= session.learn(learner, traces, session.watch.share)
                if held_out and ((step + 1) % eval_every == 0 or step + 1 == job.steps):
                    metrics |= evaluate_reward_model(learner, job.algorithm, held_out, labels.scorer)
                    fitted = metrics["test/temperature"] * job.algorithm.head.temperature
                    state.objective_state["temperature"] = fitted
                    if best is not None:
                        best.keep_if_better(metrics, state.objective_state)
                        if step + 1 == job.steps:
                            metrics["best_step"] = best.load(state.objective_state)
                    net.head = replace(net.head, temperature=state.objective_state["temperature"])

                state.num_tokens += sum(len(s.token_ids) * answer_count(s) for t in traces for s in t.steps)
                metrics |= {"num_tokens": state.num_tokens, "step_time": time.perf_counter() - began}
                session.record(state, metrics, traces)
    if best is not None:
        best.path.unlink(missing_ok=True)
    return policy


def fit_logprob_weights(traces: Sequence[Trace], objective: RewardObjective, scorer: str) -> tuple[float, ...]:
    """The weights of sampled log-probabilities' features and a constant that fit the labels best."""
    features, labels = [], []
    for trace in traces:
        for i, target in objective.targets(trace, scorer):
            found = features_at(trace, i, [-1])
            if found is None:
                raise UsageError(
                    f"{trace.problem.id}, step {i}: it has a label but no log-probabilities that it was sampled with:"
                    " leave out reads_logprobs, or learn from answers that ponder sampled"
                )
            count = answer_count(trace.steps[i])
            features += [found[0]] * count
            labels += [target] * count
    return tuple(fit_logistic(features, labels).tolist())


def note_logprob_offsets(traces: Iterable[Trace], weights: Sequence[float]) -> None:
    """Note beside each token what the log-probabilities up to it add to a head's number."""
    for trace in traces:
        for leaf in trace.leaves():
            offset = logprob_features(trace, leaf) @ np.asarray(weights[:-1]) + weights[-1]
            parts = np.split(offset, np.cumsum([len(trace.steps[i].token_ids) for i in trace.path(leaf)])[:-1])
            for i, part in zip(trace.path(leaf), parts, strict=True):
                trace.steps[i].notes[LOGPROB_OFFSET_NOTE] = np.nan_to_num(part).astype(np.float32)


class BestWeights:
    """The weights of the evaluation that was best on held-out labels, in a file, so that a resumed run has them."""

    def __init__(self, path: Path, learner: Learner) -> None:
        self.path, self.learner = path, learner

    def keep_if_better(self, metrics: Mapping[str, float], memory: dict[str, float]) -> None:
        """Best is the lowest loss; of preferences, which have none, the highest accuracy."""
        loss = metrics.get("test/nll", metrics.get("test/error", -metrics.get("test/accuracy", 0.0)))
        if loss < memory.get("best_loss", float("inf")):
            steps = float(self.learner.master_weights.steps)
            self._save({name: w.cpu().contiguous() for name, w in self.learner.copy_weights().items()})
            memory |= {"best_loss": loss, "best_step": steps, "best_temperature": memory["temperature"]}

    def load(self, memory: dict[str, float]) -> float:
        """Go back to the best weights; returns the optimiser step that they are of."""
        if memory["best_step"] != self.learner.master_weights.steps:
            self.learner.load_weights(load_file(self.path))
            memory["temperature"] = memory["best_temperature"]
        return memory["best_step"]

    def _save(self, weights: dict[str, torch.Tensor]) -> None:
        """Replace the file as a whole; while the disk is full, wait for space as a checkpoint does."""
        unfinished = self.path.with_name(self.path.name + TEMPORARY_SUFFIX)

        def write() -> None:
            try:
                save_file(weights, unfinished)
                unfinished.replace(self.path)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise

        try:
            full_disk.retry_while_disk_full(write, self.path, sum(w.nbytes for w in weights.values()))
        except (OSError, SafetensorError) as why:
            failure = f"cannot save {self.path} ({getattr(why, 'strerror', None) or why})"
            raise RunError(f"{failure}: fix this and run again; the previous checkpoint is kept") from None


Prediction = tuple[Trace, list[RewardTarget], NDArray[np.float64]]


def evaluate_reward_model(
    learner: Learner, objective: RewardObjective, traces: Sequence[Trace], scorer: str
) -> dict[str, float]:
    """On traces that were not learned from, one for each prompt: accuracy, and the temperature that fits best."""
    objective.credit(traces, scorer, {})
    with learner.unchanged():
        predictions = list(predict(learner, traces))
    if objective.predicts == "preference":
        metrics = _preference_metrics(predictions)
    elif objective.predicts == "value":
        assert isinstance(learner.whole_net, DecoderWithHead)
        metrics = _value_metrics(learner.whole_net, predictions)
    else:
        metrics = _label_metrics(predictions)
    groups = [] if objective.predicts == "value" else [_answer_scores(*one) for one in predictions]
    if several := [(z, y) for z, y in groups if len(y) > 1]:  # of as many answers as each prompt has
        metrics["best_of_n"] = float(np.mean([best_at_k(y, z, len(y)) for z, y in several]))
        metrics["any_of_n"] = float(np.mean([np.mean(y) for _, y in several]))
        metrics["oracle_of_n"] = float(np.mean([np.max(y) for _, y in several]))
        metrics |= _likeliest_metrics(predictions)
        metrics |= _within_metrics(several)
    return {f"test/{name}": value for name, value in metrics.items()}


def _answer_scores(
    trace: Trace, places: list[RewardTarget], numbers: NDArray[np.float64]
) -> tuple[list[float], list[float]]:
    """For each answer the lowest number on the path to it, and its label."""
    read = {i: float(z[0]) for (i, _), z in zip(places, numbers, strict=True)}
    label = dict(places)
    scored = [i for i in trace.answers() if i in label]
    return [min(read[j] for j in trace.path(i) if j in read) for i in scored], [label[i] for i in scored]


def _likeliest_metrics(predictions: Sequence[Prediction]) -> dict[str, float]:
    """What the sampling policy's own log-probabilities would choose of the same answers: by their sum and mean. Nothing
    where they are not known."""
    out: dict[str, float] = {}
    for name, measure in (("likeliest_of_n", sum_logprob), ("likeliest_per_token", mean_logprob)):
        groups = []
        for trace, places, _ in predictions:
            labels = dict(places)
            known = [(measure(trace, i), labels[i]) for i in trace.answers() if i in labels]
            if len(known) > 1:
                groups.append(known)
        if groups and all(z is not None for group in groups for z, _ in group):
            out[name] = float(np.mean([best_at_k([y for _, y in g], [z for z, _ in g], len(g)) for g in groups]))
    return out


def _within_metrics(groups: Sequence[tuple[list[float], list[float]]]) -> dict[str, float]:
    """AUROC within problems, of answers that are right or wrong."""
    scores = [z for group, _ in groups for z in group]
    right = [y for _, group in groups for y in group]
    problems = [n for n, (_, group) in enumerate(groups) for _ in group]
    if any(y not in (0, 1) for y in right) or all(len(set(y)) < 2 for _, y in groups):
        return {}
    return {"auroc_within": auroc_within_problems(scores, right, problems).area}


def _preference_metrics(predictions: Iterable[Prediction]) -> dict[str, float]:
    won = total = 0.0
    margins: list[float] = []
    for _, places, numbers in predictions:
        rewards, scores = [float(z[0]) for z in numbers], [y for _, y in places]
        right, pairs = correct_pairs(rewards, scores)
        won, total = won + right, total + pairs
        margins += [a - b for a, x in zip(rewards, scores) for b, y in zip(rewards, scores) if x > y]  # noqa: B905
    return {
        "accuracy": won / total,
        "labels": total,
        "temperature": fit_binary_temperature(margins, np.ones(len(margins))),
    }


def _label_metrics(predictions: Iterable[Prediction]) -> dict[str, float]:
    logits, labels = _concatenate(predictions)
    z, right = logits[:, 0], labels >= 0.5
    metrics = {
        "accuracy": float(np.mean((z > 0) == right)),
        "labels": float(len(z)),
        "temperature": fit_binary_temperature(z, labels),
    }
    t = metrics["temperature"]
    metrics["nll"] = float(np.mean(np.logaddexp(0, z / t) - labels * z / t))
    if np.all((labels == 0) | (labels == 1)):
        metrics["ece"] = ece((1 / (1 + np.exp(-z / t))).tolist(), labels.tolist())
    if 0 < right.sum() < len(right):
        metrics["auroc"] = auroc(z.tolist(), right.astype(float).tolist()).area
    return metrics


def _value_metrics(net: DecoderWithHead, predictions: Iterable[Prediction]) -> dict[str, float]:
    numbers, targets = _concatenate(predictions)
    head = replace(net.head, temperature=1.0)
    warm = 1.0
    if head.form == "two-hot":
        spread = two_hot(torch.from_numpy(targets), head.bins, head.low, head.high)
        warm = fit_categorical_temperature(numbers, spread.numpy())
    read = replace(head, temperature=warm).interpret(torch.from_numpy(numbers)).numpy()
    error = float(np.mean((read - targets) ** 2))
    spread_of = float(targets.var())
    metrics = {"error": error, "labels": float(len(targets)), "temperature": warm}
    return metrics | ({"explained": 1 - error / spread_of} if spread_of > 0 else {})


def _concatenate(predictions: Iterable[Prediction]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    both = [(numbers, [y for _, y in places]) for _, places, numbers in predictions]
    return np.concatenate([n for n, _ in both]), np.concatenate([np.asarray(y, np.float64) for _, y in both])
