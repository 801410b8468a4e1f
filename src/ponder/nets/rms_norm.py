"""RMSNorm, of decoders and of vision towers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.nets import cpu_training_ops


class RMSNorm(nn.Module):
    """Computed in float32 for any input dtype; Gemma stores its weight as a difference from 1."""

    def __init__(self, size: int, eps: float, gemma: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if gemma else torch.ones(size))
        self.eps, self.gemma = eps, gemma

    def forward(self, x: Tensor) -> Tensor:
        if self.gemma:
            return F.rms_norm(x.float(), x.shape[-1:], 1.0 + self.weight.float(), self.eps).to(x.dtype)
        if (library := cpu_training_ops.load_training_kernels(x, self.weight)) is not None:
            return cpu_training_ops.rms_norm(library, x, self.weight, self.eps)
        return F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(x.dtype) * self.weight
