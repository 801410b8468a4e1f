"""What inference computes: 2 (parameters + 2 layers width context) FLOPs per token, summed over where tokens stand.

A token's context is every token before it, and itself. Every token is counted once where prefixes are shared; without
sharing, each piece of text that was asked for reads its whole way again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.types import Trace


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a decoder's FLOPs hang on: the parameters that multiply, its layers, and how wide its attention is."""

    parameters: float
    layers: int
    attention_width: int  # query heads x their size; the hidden size in most models

    def __post_init__(self) -> None:
        if not (self.parameters > 0 and self.layers >= 0 and self.attention_width >= 0):
            raise UsageError(f"{self} is no shape of a model: parameters must be above 0, the others not below")

    @classmethod
    def from_decoder_config(
        cls,
        layers: int,
        width: int,
        hidden: int,
        heads: int,
        vocab: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        gated: bool = True,
    ) -> ModelShape:
        """A transformer's own: projections, feed-forward (three matrices where gated, else two) and the head.

        Looking a token up in the embedding multiplies nothing, so the embedding counts once, as the head.
        """
        size = head_dim or width // heads
        attention = width * size * (2 * heads + 2 * (kv_heads or heads))
        feed = (3 if gated else 2) * width * hidden
        return cls(layers * (attention + feed) + vocab * width, layers, heads * size)

    def flops(self, tokens: int, before: int = 0) -> float:
        """Of so many tokens in a row, the first of which has `before` tokens before it."""
        if tokens < 0 or before < 0:
            raise UsageError(f"{tokens} tokens after {before} cannot be counted; both must be at least 0")
        contexts = tokens * before + tokens * (tokens + 1) / 2
        return 2.0 * (self.parameters * tokens + 2 * self.layers * self.attention_width * contexts)


def group_flops(shape: ModelShape, prompt: int, completions: Sequence[int], shared: bool = True) -> float:
    """One prompt and its completions, of so many tokens each: the prompt once, or once for each where not shared."""
    times = 1 if shared else len(completions)
    return times * shape.flops(prompt) + sum(shape.flops(length, prompt) for length in completions)


def trace_flops(shape: ModelShape, trace: Trace, shared: bool = True) -> float:
    """All thinking of a trace, branches and dead ends alike: what its steps added, each where it stands in its path."""
    total, end = 0.0, [0] * len(trace.steps)
    asked_from = {step.parent for step in trace.steps}
    for i, step in enumerate(trace.steps):
        before = 0 if step.parent is None else end[step.parent]
        end[i] = before + len(step.token_ids)
        if shared:
            total += shape.flops(len(step.token_ids), before)
        elif step.sampled or i not in asked_from:  # a prompt is read by what was asked after it
            total += shape.flops(end[i])
    return total


def gpu_seconds(flops: float, peak_flops: float, utilization: float = 0.4, gpus: int = 1) -> float:
    """How long so many FLOPs take at a peak rate per GPU of which a share is used."""
    if not (flops >= 0 and peak_flops > 0 and 0 < utilization <= 1 and gpus >= 1):
        raise UsageError("time takes FLOPs, a peak rate above 0, a share of it in (0, 1] and at least one GPU")
    return flops / (peak_flops * utilization * gpus)
