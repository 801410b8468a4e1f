"""Gradients and trained tokens of a learner on a few samples, without a step: the data for preflight checks.

The completions are sampled but short; those that did not end get an end token. Shapes: S tokens of a sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ponder.models.ponder_policy import PonderPolicy
from ponder.protocols import Strategy
from ponder.reason.first_prompt import first_prompts
from ponder.train.learner import Learner
from ponder.train.objective import Tokens
from ponder.train.pack import PackedBatch
from ponder.types import Completion, Floats, Ids, Problem, Sampling, Score, Step, Trace, ids, prompt_trace

NUM_PROBLEMS, NUM_COMPLETIONS = 2, 2
MAX_COMPLETION_TOKENS = 12  # so that all checks take seconds on a CPU
UNLIMITED_TOKENS = 1 << 40  # more than any micro-batch has


@dataclass(frozen=True, slots=True)
class TrainedSequence:
    """One completion as the loss saw it."""

    targets_S: Ids
    weights_S: Floats
    logprobs_S: Floats  # the learner's
    sampled_S: Floats  # the sampler's; NaN for tokens that were not sampled


@dataclass(frozen=True, slots=True)
class ProbedGradient:
    """One forward and backward pass. The gradient is that of some parameters only, see `probe_gradient`."""

    loss: float
    grads: dict[str, Tensor]
    sequences: list[TrainedSequence]

    def dot(self, other: ProbedGradient) -> float:
        return sum(float((g.double() * other.grads[n].double()).sum()) for n, g in self.grads.items())

    def norm(self) -> float:
        return self.dot(self) ** 0.5

    def minus(self, other: ProbedGradient) -> ProbedGradient:
        return ProbedGradient(
            self.loss - other.loss, {n: g - other.grads[n] for n, g in self.grads.items()}, self.sequences
        )


def probe_gradient(
    learner: Learner, traces: Sequence[Trace], max_tokens_per_microbatch: int = UNLIMITED_TOKENS
) -> ProbedGradient:
    """A forward and a backward pass over credited traces. No step is taken, and the learner stays as it was.

    The gradient is that of the lowest layer that learns and of the last norm: every other layer, the head and the
    packing lie between these and the loss, and a large model's whole gradient would not fit again.
    """
    parameters = _probed_parameters(learner)
    gradient = learner.probe_gradient(traces, parameters, max_tokens_per_microbatch=max_tokens_per_microbatch)
    with torch.no_grad():
        loss = sum(float((learner.objective.loss(t)[0] * b.weight_N).sum()) for b, t in gradient.batches)
    return ProbedGradient(loss, gradient.grads, [one for b, t in gradient.batches for one in _trained_sequences(b, t)])


def _probed_parameters(learner: Learner) -> list[Tensor]:
    """Chosen without changing which parameters learn: blocks would be compiled anew for that."""
    params = learner.master_weights.params
    layers = [int(n.split(".")[1]) for n in params if n.startswith("layers.")]
    names = ("norm.weight", f"layers.{min(layers)}.") if layers else ("",)
    return [p for n, p in params.items() if n.startswith(names)]


def gradient_norms(learner: Learner, traces: Sequence[Trace], compiled: bool) -> dict[str, float]:
    """The norm of each parameter's gradient, by name; a parameter without a gradient is left out.

    `compiled` False runs the blocks plainly. A gradient is dropped once its norm is known, so that the whole of it is
    never in memory. Raises OutOfMemory if the traces do not fit into one batch.
    """
    squares: dict[str, Tensor] = {}

    def measure(name: str) -> Callable[[Tensor], None]:
        def read(p: Tensor) -> None:
            assert p.grad is not None
            squares[name], p.grad = p.grad.double().square().sum(), None

        return read

    hooks = [p.register_post_accumulate_grad_hook(measure(n)) for n, p in learner.master_weights.params.items()]
    try:
        learner.probe_gradient(
            traces,
            list(learner.master_weights.params.values()),
            max_tokens_per_microbatch=UNLIMITED_TOKENS,
            compiled=learner.compiled and compiled,
            retries_oom=False,  # the norms of two halves do not add up to that of the whole
        )
    finally:
        for hook in hooks:
            hook.remove()
        learner.master_weights.zero_grad()
    return {name: float(square) ** 0.5 for name, square in squares.items()}


def _trained_sequences(batch: PackedBatch, tokens: Tokens) -> Iterator[TrainedSequence]:
    columns = (batch.weight_N, tokens.logprobs_N, batch.sampled_N)
    floats = [c.detach().float().cpu().numpy() for c in columns]
    sequence_N, target_N = batch.sequence_N.cpu().numpy(), batch.target_N.cpu().numpy()
    for s in np.unique(sequence_N):
        mine = sequence_N == s
        yield TrainedSequence(target_N[mine].astype(np.int32), *(f[mine] for f in floats))


@dataclass(slots=True)
class PreflightData:
    """What the checks read. `shared_prompt`: one batch, prompts shared; `microbatched`: each completion in a batch of
    its own; `unshared_prompt`: one batch, each completion after its own copy of the prompt (None if the objective
    needs whole traces).
    """

    policy: PonderPolicy
    learner: Learner
    problems: list[Problem]
    traces: list[Trace]
    sampled_lengths: dict[int, int]  # by id of a completion's step: sampled tokens, without an added end token
    shared_prompt: ProbedGradient
    microbatched: ProbedGradient
    unshared_prompt: ProbedGradient | None

    def credited(self) -> list[tuple[Trace, Step]]:
        """Completions that have a gradient, in the order in which the learner packs them."""
        return [
            (t, s)
            for t in self.traces
            for s in t.steps[1:]
            if _has_advantage(s, self.learner.objective.trains_zero_advantage)
        ]


def gather_preflight_data(
    policy: PonderPolicy, learner: Learner, traces: list[Trace], sampled_lengths: dict[int, int]
) -> PreflightData:
    """Probe credited traces of one level: a prompt and its completions."""
    dense, together = learner.objective.trains_zero_advantage, learner.objective.needs_whole_trace
    split = [
        Trace(t.problem, [t.steps[0], replace(s, parent=0)])
        for t in traces
        for s in t.steps[1:]
        if _has_advantage(s, dense)
    ]
    whole, cut = probe_gradient(learner, traces), probe_gradient(learner, traces, 1)
    problems = [t.problem for t in traces]
    apart = None if together else probe_gradient(learner, split)
    return PreflightData(policy, learner, problems, traces, sampled_lengths, whole, cut, apart)


def _has_advantage(step: Step, dense: bool) -> bool:
    return step.advantages is not None and (dense or bool(np.any(step.advantages)))


def shortest_prompts(policy: PonderPolicy, problems: Sequence[Problem]) -> list[Problem]:
    """Those with the shortest prompts: what holds for them holds for others, in less time."""
    return sorted(problems, key=lambda p: len(policy.encode(p.messages)))[:NUM_PROBLEMS]


async def draw_short_samples(
    policy: PonderPolicy, problems: Sequence[Problem], sampling: Sampling, strategy: Strategy | None = None
) -> list[tuple[Trace, list[Completion]]]:
    """Some short samples of the policy's own, after the prompts that the strategy sends."""
    sampling = replace(sampling, max_tokens=min(MAX_COMPLETION_TOKENS, sampling.max_tokens))
    own = [policy.encode(p.messages) for p in problems]
    prompts = own if strategy is None else await first_prompts(strategy, problems, policy)
    traces = [prompt_trace(p, prompt) for p, prompt in zip(problems, prompts, strict=True)]
    requests = (policy.generate(t.steps[0].token_ids, sampling, NUM_COMPLETIONS) for t in traces)
    return list(zip(traces, await asyncio.gather(*requests), strict=True))


def add_ended_answers(
    samples: Sequence[tuple[Trace, list[Completion]]], end: int | None, scorer: str
) -> dict[int, int]:
    """Add the completions as ended answers, scored 1 and 0 in turn. Returns how many tokens of each were sampled.

    All but the first of each problem are cut shorter, or repeat their first token: equal completions with opposite
    credit would have no gradient, and equal lengths would hide a wrong denominator.
    """
    sampled_lengths = {}
    for trace, completions in samples:
        for k, c in enumerate(completions):
            length = len(c.token_ids) - k * len(c.token_ids) // (NUM_COMPLETIONS + 1)
            tokens, logprobs = c.token_ids[:length], c.logprobs[:length]
            if end is not None and not (length == len(c.token_ids) and c.stop == "eos"):
                if any(np.array_equal(tokens, s.token_ids[:-1]) for s in trace.steps[1:]):
                    tokens, logprobs = np.append(tokens, tokens[:1]), np.append(logprobs, logprobs[:1])
                tokens, logprobs = np.append(tokens, ids([end])), np.append(logprobs, np.float32(-1))
            step = Step(0, c.text, ids(tokens), logprobs, "eos", c.version, {scorer: Score(float(k % 2 == 0))})
            step.notes["values"] = np.zeros(len(tokens), np.float32)  # what a critic that knows nothing would say
            trace.add(step)
            sampled_lengths[id(step)] = length
    return sampled_lengths
