"""AdamW over float32 master weights, whatever type the network computes in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ponder.errors import UsageError
from ponder.nets.decoder import Decoder


@dataclass(frozen=True, slots=True)
class AdamW:
    """Settings of the optimiser (Loshchilov & Hutter 2019), with linear warm-up and an optional cosine decay."""

    lr: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup: int = 0  # steps
    decay_steps: int = 0  # cosine down to 0 at this step; 0: constant
    max_norm: float = 1.0  # the gradient's global norm is clipped to this

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise UsageError(f"lr is {self.lr}; a learning rate must be positive")
        if not all(0 <= b < 1 for b in self.betas) or not self.eps > 0 or not self.weight_decay >= 0:
            raise UsageError("AdamW needs betas in [0, 1), eps > 0 and weight_decay >= 0")
        if not self.max_norm > 0:
            raise UsageError(f"max_norm is {self.max_norm}; it must be positive (inf: no clipping)")

    def rate(self, step: int) -> float:
        """Learning rate of step 0, 1, 2, ..."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.decay_steps:
            part = min(1.0, (step - self.warmup) / max(1, self.decay_steps - self.warmup))
            return self.lr * (1 + math.cos(math.pi * part)) / 2
        return self.lr


class Masters:
    """The float32 weights being optimised, their gradients and Adam's moments, by parameter name."""

    def __init__(self, net: Decoder, settings: AdamW) -> None:
        self.net, self.settings, self.steps = net, settings, 0
        self.params = {n: p for n, p in net.named_parameters() if p.requires_grad}
        self.weights = {n: p if p.dtype == torch.float32 else _master(p) for n, p in self.params.items()}
        groups = [  # decay matrices only: norms and biases have no direction to shrink in
            {"params": [w for w in self.weights.values() if w.dim() >= 2], "weight_decay": settings.weight_decay},
            {"params": [w for w in self.weights.values() if w.dim() < 2], "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)

    def collect(self) -> None:
        """Move the network's gradients into the masters', in float32; call after each micro-batch."""
        for name, p in self.params.items():
            master = self.weights[name]
            if master is p or p.grad is None:
                continue
            grad = p.grad.float()
            master.grad = grad if master.grad is None else master.grad.add_(grad)
            p.grad = None

    def norm(self) -> Tensor:
        grads = [w.grad for w in self.weights.values() if w.grad is not None]
        return torch.nn.utils.get_total_norm(grads) if grads else torch.zeros(())

    def forget(self) -> None:
        """Drop gradients without a step."""
        self.adam.zero_grad(set_to_none=True)
        self.net.zero_grad(set_to_none=True)

    def step(self, norm: Tensor) -> None:
        scale = float(self.settings.max_norm / norm.clamp(min=self.settings.max_norm))
        for w in self.weights.values():
            if w.grad is not None and scale < 1:
                w.grad.mul_(scale)
        for group in self.adam.param_groups:
            group["lr"] = self.settings.rate(self.steps)
        self.adam.step()
        self.steps += 1
        self.forget()
        with torch.no_grad():
            for name, p in self.params.items():
                if self.weights[name] is not p:
                    p.copy_(self.weights[name])

    def state(self) -> dict[str, Tensor]:
        """Everything but the step count, as named tensors for a safetensors file."""
        return dict(self._named())

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for name, w in self.weights.items():
            if w is not self.params[name]:
                yield f"master.{name}", w.detach()
            for key, value in self.adam.state.get(w, {}).items():
                yield f"{key}.{name}", value.detach()

    def restore(self, state: dict[str, Tensor], steps: int) -> None:
        self.steps = steps
        with torch.no_grad():
            for name, w in self.weights.items():
                if w is not self.params[name]:
                    w.copy_(state[f"master.{name}"])
                kept = {
                    key: state[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in state
                }
                if kept:
                    self.adam.state[w] = {k: v.to(w.device).clone() for k, v in kept.items()}


def _master(p: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(p.detach().float().clone())
