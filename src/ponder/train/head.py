"""Log-probability and entropy of given tokens without keeping a [tokens, vocabulary] tensor.

The head runs over a chunk of tokens at a time and again in the backward pass. Shapes: N tokens, E width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHUNK = 1024


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NE: Tensor, weight_VE: Tensor, target_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, norms = [], [], []
        for hidden, target in zip(hidden_NE.split(_CHUNK), target_N.split(_CHUNK), strict=True):
            logits = (hidden @ weight_VE.T).float() / temperature
            norm = logits.logsumexp(-1)
            logprobs.append(logits.gather(-1, target[:, None])[:, 0] - norm)
            probs = (logits - norm[:, None]).exp_()
            entropies.append(norm - (probs * logits).sum(-1))  # H = log Z - E[logit]
            norms.append(norm)
        ctx.save_for_backward(hidden_NE, weight_VE, target_N, torch.cat(norms))
        ctx.temperature = temperature
        entropy_N = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_N)
        return torch.cat(logprobs), entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        """d log p / d logits = onehot - softmax, over the temperature. The weight's gradient sums in float32."""
        hidden_NE, weight_VE, target_N, norm_N = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden_NE)
        grad_weight = torch.zeros_like(weight_VE, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for first in range(0, len(target_N), _CHUNK):
            part = slice(first, first + _CHUNK)
            hidden, target, coefficient = hidden_NE[part], target_N[part], grads[0][part] / ctx.temperature
            logits = (hidden @ weight_VE.T).float() / ctx.temperature
            grad_logits = (logits - norm_N[part][:, None]).exp_().mul_(-coefficient[:, None])
            grad_logits.scatter_add_(-1, target[:, None], coefficient[:, None])
            grad_logits = grad_logits.to(hidden.dtype)
            grad_hidden[part] = grad_logits @ weight_VE
            if grad_weight is not None:
                grad_weight += (grad_logits.T @ hidden).float()
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight_VE.dtype), None, None


def token_logprobs(hidden_NE: Tensor, weight_VE: Tensor, target_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """log p of each target at this temperature, with gradient, and the distribution's entropy, without."""
    out: tuple[Tensor, Tensor] = _TokenLogprobs.apply(hidden_NE, weight_VE, target_N, temperature)  # type: ignore[no-untyped-call]
    return out
