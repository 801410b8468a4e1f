"""FLOPs of what a learner computes, by the formula that sampling is counted with (`DecoderConfig.flops_per_token`).

Counted are the products that the result needs: 2 FLOPs per parameter of a matrix and token, and attention. The backward
pass takes as many again for the gradients of activations, and as many for those of weights, so a network that learns
whole costs 3 forward passes. Where weights are frozen, their gradients are not computed and not counted, and below the
lowest weight that learns there is no backward pass at all. Not counted are norms, biases and the softmax, padding, and
what is computed a second time to save memory (gradient checkpointing, logits in chunks, a pass that ran out of memory).
Every packed token is counted on every device, also a completion's last, which is not computed on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from ponder.nets import lora
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead


def pass_flops(net: Decoder, lengths: Sequence[int], parents: Sequence[int], readings: int, backward: bool) -> float:
    """One pass over a packed forest, each segment once. `readings`: tokens that the head reads."""
    tokens, contexts = sum(lengths), _sum_contexts(lengths, parents)
    total, reached = 0.0, backward and any(p.requires_grad for p in _embedding_parameters(net))
    for layer in net.layers:
        products = 2.0 * tokens * (net.config.layer_parameter_count + lora.active_parameter_count(layer))
        attention = net.config.attention_flops(contexts)
        total += products + attention
        reached = reached or (backward and any(p.requires_grad for p in layer.parameters()))
        if reached:  # attention has two factors, and both are activations
            total += products + 2 * attention + 2.0 * tokens * _matrix_parameters(layer, learning=True)
    head = net.score if isinstance(net, DecoderWithHead) else net.lm_head
    total += 2.0 * readings * _matrix_parameters(head) * (2 if reached else 1)
    return total + (2.0 * readings * _matrix_parameters(head, learning=True) if backward else 0.0)


def _embedding_parameters(net: Decoder) -> Iterator[nn.Parameter]:
    """Of what makes the vectors below the first layer."""
    yield from net.embed_tokens.parameters()
    if net.config.vision is not None:
        yield from net.picture_encoder.tower_parameters()
        yield from net.picture_encoder.connector_parameters()


def _sum_contexts(lengths: Sequence[int], parents: Sequence[int]) -> float:
    """How many tokens each token sees, itself included, summed over the tokens of a forest."""
    total, starts = 0.0, list[int]()
    for length, parent in zip(lengths, parents, strict=True):
        start = 0 if parent < 0 else starts[parent] + lengths[parent]
        starts.append(start)
        total += length * start + length * (length + 1) / 2
    return total


def _matrix_parameters(module: nn.Module, learning: bool = False) -> int:
    """Parameters of a module's matrices; `learning`: of those that learn."""
    return sum(p.numel() for p in module.parameters() if p.dim() == 2 and (p.requires_grad or not learning))
