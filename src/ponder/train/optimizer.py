"""AdamW over float32 master weights, whatever dtype the network computes in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from ponder.errors import PonderError, RunError, UnknownName, UsageError
from ponder.nets.parameter_list import ParameterList
from ponder.train.adam_bounds import MAX_SAFE_FLOAT32, AdamBounds, max_master_weight
from ponder.train.adam_states import AdamHyperparameters, adamw_step, zero_state
from ponder.train.distributed import NOT_SHARDED, ShardMesh
from ponder.train.finite_checks import Diverged, invalid_reason
from ponder.train.fsdp import local_rows, rows_of_rank, whole_tensor
from ponder.validate import check_number

States = Literal["float32", "int8", "cpu"]
MAX_LR = 10.0
MAX_PENDING_GRADIENT_BYTES = 4 << 30  # of a micro-batch, before they are added to float32 sums
MIN_EPS = 1e-30  # a smaller eps may be 0 in float32, and 0 / 0 is NaN


@dataclass(frozen=True, slots=True)
class AdamW:
    """Settings of the optimiser (Loshchilov & Hutter 2019), with linear warm-up and an optional cosine decay.

    `states` is where Adam's two moments are kept: in float32 (8 bytes for each weight), in int8 (2 bytes), or with
    the master weights in host memory ("cpu"), where the step is then taken.
    """

    lr: Annotated[float, "learning rate"] = 1e-5
    betas: Annotated[tuple[float, float], "decay of the two moments"] = (0.9, 0.999)
    eps: Annotated[float, "added to the root of the second moment"] = 1e-8
    weight_decay: Annotated[float, "decoupled from the gradient"] = 0.0
    warmup_steps: Annotated[int, "steps over which the learning rate rises"] = 0
    decay_steps: Annotated[int, "the cosine reaches its floor at this step, not at the last"] = 0
    min_lr_ratio: Annotated[float, "the share of lr that the cosine ends at"] = 0.0
    max_grad_norm: Annotated[float, "the gradient's global norm is clipped to this"] = 1.0
    states: Annotated[States, "how Adam's moments are stored"] = "float32"
    cosine: Annotated[bool, "lower the learning rate along a cosine, to its floor at the last step"] = False

    UNBOUNDED: ClassVar = ("max_grad_norm",)  # see settings.py

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay", "min_lr_ratio", "max_grad_norm"):
            check_number(name, getattr(self, name))
        if not self.lr > 0:
            raise UsageError(f"lr is {self.lr}; a learning rate must be positive")
        if not self.lr <= MAX_LR:
            raise UsageError(f"lr is {self.lr}; a step moves each weight by about as much: give at most {MAX_LR:g}")
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas) or not self.eps > 0:
            raise UsageError("AdamW needs two betas in [0, 1) and eps > 0")
        if not MIN_EPS <= self.eps <= 1 / MIN_EPS:
            raise UsageError(f"eps is {self.eps}; in float32 it must lie between {MIN_EPS:g} and {1 / MIN_EPS:g}")
        if not 0 <= self.weight_decay * self.lr <= 1:
            raise UsageError(f"weight_decay is {self.weight_decay}; it must be 0 or positive, and at most 1 / lr")
        for name, steps in (("warmup_steps", self.warmup_steps), ("decay_steps", self.decay_steps)):
            if not isinstance(steps, int) or not steps >= 0:
                raise UsageError(f"{name} is {steps}; a number of steps is whole, 0 or more")
        if not 0 <= self.min_lr_ratio <= 1:
            raise UsageError(f"min_lr_ratio is {self.min_lr_ratio}; it is a share of lr, from 0 to 1")
        if not self.max_grad_norm > 0:
            raise UsageError(f"max_grad_norm is {self.max_grad_norm}; it must be positive (inf: no clipping)")
        if self.states not in get_args(States):
            raise UnknownName("kind of optimiser states", self.states, get_args(States))

    def over(self, steps: int) -> AdamW:
        """The same for a job of so many optimizer steps, at the last of which a cosine ends."""
        return replace(self, decay_steps=steps) if self.cosine and not self.decay_steps else self

    def lr_at(self, step: int) -> float:
        """Learning rate of step 0, 1, 2, ..."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.decay_steps:
            part = min(1.0, (step - self.warmup_steps) / max(1, self.decay_steps - self.warmup_steps))
            return self.lr * (self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * part)) / 2)
        return self.lr


class MissingGradient(PonderError):
    """The backward pass gave no gradient to a parameter that should learn."""


class MasterWeights:
    """The float32 weights being optimised, their gradients and Adam's moments, by parameter name.

    A float32 parameter is its own master, unless master weights are in host memory and it is not. Gradients stay on the
    parameter's device until the step. `shards`: the ranks among which the network is sharded (fsdp.py); this rank then
    has and updates its rows only.
    """

    def __init__(self, net: nn.Module, settings: AdamW, shards: ShardMesh = NOT_SHARDED) -> None:
        self.net, self.settings, self.steps, self.shards = net, settings, 0, shards
        self.params = {n: p for n, p in net.named_parameters() if p.requires_grad}
        self._rows = {n: local_rows(p) for n, p in self.params.items()}
        self.weights = {n: _master_copy(p, settings.states == "cpu") for n, p in self._rows.items()}
        int8 = settings.states == "int8"
        self.states = {n: zero_state(w, int8, self.params[n].numel()) for n, w in self.weights.items()}
        self._float32_grads: dict[str, Tensor] = {}  # gradients in float32, of parameters that are not
        self._listed = ParameterList(net)
        self._rounded = {n: p for n, p in self.params.items() if p.dtype != torch.float32}
        self._rounded_bytes = sum(p.nbytes for p in self._rounded.values())
        self._host_grads: dict[str, Tensor] = {}  # where gradients arrive in host memory
        self._bounds: AdamBounds | None = None  # None: not measured yet

    def accumulate(self) -> None:
        """Add the network's gradients to float32 sums; call after each micro-batch."""
        new = {n: p.grad for n, p in self.params.items() if p.grad is not None and p.dtype != torch.float32}
        first, again = ([n for n in new if (n in self._float32_grads) == known] for known in (False, True))
        if again:
            torch._foreach_add_([self._float32_grads[n] for n in again], [new[n] for n in again])
        if first:
            self._float32_grads |= {n: torch.empty_like(new[n], dtype=torch.float32) for n in first}
            torch._foreach_copy_([self._float32_grads[n] for n in first], [new[n] for n in first])
        for n in new:
            self.params[n].grad = None

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """For backward passes: the gradients of a large network are added to their sums one by one as they come, so
        that those of a whole micro-batch are never in memory together."""
        if self._rounded_bytes <= MAX_PENDING_GRADIENT_BYTES:
            yield  # many small additions would take longer than few large ones
            return
        hooks = [p.register_post_accumulate_grad_hook(partial(self._add_gradient, n)) for n, p in self._rounded.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _add_gradient(self, name: str, p: Tensor) -> None:
        if p.grad is None:  # another hook has read it and let it go: of gradient_probe.py
            return
        if name in self._float32_grads:
            self._float32_grads[name] += p.grad
        else:
            self._float32_grads[name] = p.grad.float()
        p.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """The accumulated gradients by name; parameters without a gradient are left out."""
        grads = {n: p.grad if p.dtype == torch.float32 else self._float32_grads.get(n) for n, p in self.params.items()}
        return {n: local_rows(g) for n, g in grads.items() if g is not None}

    def whole_gradients(self) -> dict[str, Tensor]:
        """Copies of the accumulated gradients, gathered where they are sharded."""
        if self.shards.group.size == 1:
            return {n: g.clone() for n, g in self.gradients().items()}
        return {n: whole_tensor(p.grad).clone() for n, p in self.params.items() if p.grad is not None}

    def check_all_have_gradient(self) -> None:
        """Raise MissingGradient if a parameter got no gradient: it would silently stay as it is."""
        if missing := self.params.keys() - self.gradients().keys():
            raise MissingGradient(
                f"{len(missing)} of {len(self.params)} parameters that should learn got no gradient, {min(missing)} "
                "among them: freeze them (frozen_layers), or report it with the versions that `ponder doctor` shows"
            )

    def gradients_or_zeros(self) -> list[Tensor]:
        """The accumulated gradients of all parameters in a fixed order, with zeros for those that got none. They are
        summed in place over processes, one of which may have used a parameter that another did not.
        """
        grads = self.gradients()
        for n, p in self.params.items():
            if n not in grads:
                grads[n] = torch.zeros_like(p, dtype=torch.float32)
                if p.dtype == torch.float32:
                    p.grad = grads[n]
                else:
                    self._float32_grads[n] = grads[n]
        return [grads[n] for n in self.params]

    def own_grad_norm(self) -> Tensor | None:
        """The norm of this process's gradients, on their device, which may still be computing it; None: there are
        none."""
        grads = list(self.gradients().values())
        return nn.utils.get_total_norm(grads) if grads else None

    def grad_norm(self, launched: Tensor | None = None) -> float:
        """`launched`: `own_grad_norm`, if that was called already."""
        norm = self.own_grad_norm() if launched is None else launched
        own = 0.0 if norm is None else float(norm)
        group = self.shards.group
        return own if group.size == 1 else math.sqrt(group.sum_of(own * own) / self.shards.copies)

    def zero_grad(self) -> None:
        """Drop the gradients without a step."""
        self._float32_grads.clear()
        for p in self._listed():
            p.grad = None

    @torch.no_grad()
    def step(self, norm: float) -> bool:
        """Clip by the norm and take a step. If a weight or moment would not be finite, nothing changes. Returns whether
        the step was taken.
        """
        grads = self.gradients()
        before = None if self._cannot_overflow(norm) else self._snapshot()
        if norm > self.settings.max_grad_norm:
            torch._foreach_mul_(list(grads.values()), self.settings.max_grad_norm / norm)
        grads = self._grads_beside_masters(grads)
        s = self.settings
        for matrices in (True, False):  # weight decay on matrices only, not on norms and biases
            names = [n for n in grads if (self.weights[n].dim() >= 2) == matrices and self.weights[n].numel()]
            rule = AdamHyperparameters(s.lr_at(self.steps), s.betas, s.eps, s.weight_decay if matrices else 0.0)
            adamw_step([(self.weights[n], grads[n], self.states[n]) for n in names], rule)
        if before is not None:
            now = self._measure_bounds()
            if not now.within(self._max_weight()):
                for name, t in self.tensors().items():
                    t.copy_(before[name])
                self.zero_grad()
                return False
            self._bounds = now
        self.steps += 1
        if s.states == "cpu":  # the weights on their way need the gradients' memory
            self.zero_grad()
        self._copy_to_parameters()
        self.zero_grad()  # last: a GPU has all of its work by now
        return True

    def _cannot_overflow(self, norm: float) -> bool:
        """Is a step with a gradient of that norm certain not to overflow? Reads the weights only in doubt."""
        s = self.settings
        rule = AdamHyperparameters(s.lr_at(self.steps), s.betas, s.eps, s.weight_decay)
        limit = self._max_weight()
        for cached in (self._bounds, None):
            bounds = cached or self._measure_bounds()
            after = bounds.after_step(
                rule, min(norm, s.max_grad_norm) if norm == norm else norm, half_precision=limit < MAX_SAFE_FLOAT32
            )
            if after.within(limit):
                self._bounds = after
                return True
        return False

    def _measure_bounds(self) -> AdamBounds:
        """Of all ranks, so that all decide alike."""
        own = AdamBounds.measure(self.weights.values(), self.states.values())
        return AdamBounds(*(self.shards.group.max_of(x) for x in (own.weight, own.first, own.second)))

    def _max_weight(self) -> float:
        computed = getattr(self.net, "compute_dtype", None)
        own = max_master_weight(self.params)
        return own if computed is None else min(own, torch.finfo(computed).max)

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: t.clone() for name, t in self.tensors().items()}

    def tensors(self) -> dict[str, Tensor]:
        """All that `restore` needs except the step count, for a safetensors file. Not copies: a step changes them."""
        named = {f"weight.{n}": w.detach() for n, w in self.weights.items()}
        return named | {f"{key}.{n}": t for n, state in self.states.items() for key, t in state.items()}

    def counters(self) -> dict[str, int]:
        return {"steps": self.steps}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, int]) -> None:
        """Restore weights and moments, here and in the network. If anything is missing, nothing changes. `tensors` are
        whole, however many ranks saved them."""
        if "steps" not in facts:
            raise RunError("the saved optimiser has no count of its steps: start again from the saved model")
        own = self.tensors()
        if self.shards.shard_size > 1:
            rank, size = self.shards.rank, self.shards.shard_size
            tensors = {name: rows_of_rank(t, rank, size) if t.dim() else t for name, t in tensors.items()}
        for name, t in own.items():
            if name not in tensors:
                raise RunError(f"the saved optimiser has no {name}: it belongs to another model or other settings")
            saved, expected = tensors[name], (tuple(t.shape), t.dtype)
            if (tuple(saved.shape), saved.dtype) != expected:
                raise RunError(
                    f"{name} of the saved optimiser is {tuple(saved.shape)} in {saved.dtype}, here {expected[0]} in "
                    f"{expected[1]}: it belongs to another model or other settings"
                )
        if (bad := invalid_reason({name: tensors[name] for name in own})) is not None:
            raise RunError(f"the saved optimiser is damaged: {bad}; go on from an earlier checkpoint")
        if unexpected := [name for name in tensors if name.startswith("weight.") and name not in own]:
            raise RunError(
                f"the saved optimiser holds {unexpected[0]}, which is not trained here: free the same layers"
            )
        for name, t in own.items():
            t.copy_(tensors[name])
        self.steps = int(facts["steps"])
        self._bounds = None
        self.zero_grad()
        self._copy_to_parameters()

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Set the weights, here and in the network."""
        for name, own in self.weights.items():
            own.copy_(weights[name])
        self._bounds = None
        self._copy_to_parameters()

    def _grads_beside_masters(self, grads: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copy gradients to the device of their master weights: start all copies, then wait once."""
        if self.settings.states != "cpu":  # then they are on one device
            return grads
        away = {n: g for n, g in grads.items() if g.device != self.weights[n].device}
        for n, g in away.items():
            if n not in self._host_grads:
                self._host_grads[n] = _empty_on_host(g)
            self._host_grads[n].copy_(g, non_blocking=True)
        for device in {g.device for g in away.values()}:
            torch.accelerator.synchronize(device)
        return {n: self._host_grads[n] if n in away else g for n, g in grads.items()}

    def _copy_to_parameters(self) -> None:
        """Copy the master weights to the network's parameters, rounded to their dtype."""
        pairs = [(p, self.weights[n]) for n, p in self._rows.items() if self.weights[n] is not p]
        near = [(p, w) for p, w in pairs if p.device == w.device]
        if near:
            torch._foreach_copy_([p for p, _ in near], [w for _, w in near])
        for p, w in pairs:
            if p.device != w.device:  # copied as float32 and rounded there: from pinned memory, without waiting
                p.copy_(w.to(p.device, non_blocking=True))
        # The fused kernel does not increment version counters, which caches of weight-dependent values compare.
        torch.autograd.graph.increment_version(list(self._rows.values()))


class GuardedStep:
    """Takes optimiser steps, and skips those that are not finite. After several in a row training ends."""

    MAX_SKIPPED = 3

    def __init__(self, master_weights: MasterWeights) -> None:
        self.master_weights = master_weights
        self.consecutive_skipped = 0

    def take(self, metrics: dict[str, float]) -> dict[str, float]:
        """Step with the gradient that was collected, unless the loss, the gradient or a new weight is not finite.
        Returns the metrics, with the number of steps skipped in a row where this one was."""
        finite = math.isfinite(metrics["grad_norm"]) and math.isfinite(metrics["loss"])
        if finite and self.master_weights.step(metrics["grad_norm"]):
            self.consecutive_skipped = 0
            return metrics
        self.master_weights.zero_grad()
        self.consecutive_skipped += 1
        if self.consecutive_skipped >= self.MAX_SKIPPED:
            raise Diverged(
                "the loss, the gradient or the new weights were not finite three steps in a row: lower the learning "
                "rate, or look at the log-probabilities and advantages of the last traces in the run directory"
            )
        return metrics | {"skipped_steps": float(self.consecutive_skipped)}

    def counters(self) -> dict[str, int]:
        return {"skipped_steps": self.consecutive_skipped}

    def restore(self, counters: Mapping[str, int]) -> None:
        self.consecutive_skipped = counters["skipped_steps"]


def _master_copy(p: Tensor, host: bool) -> Tensor:
    if host and p.device.type != "cpu":
        return _empty_on_host(p).copy_(p.detach())
    return p if p.dtype == torch.float32 else p.detach().float()


def _empty_on_host(like: Tensor) -> Tensor:
    """Float32 in host memory, pinned for CUDA so that copies are fast and asynchronous."""
    return torch.empty(like.shape, dtype=torch.float32, pin_memory=like.is_cuda)
