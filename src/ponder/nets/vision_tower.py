"""The SigLIP vision tower and Idefics3's connector: from the pixels of a tile to vectors in place of embeddings.

Parameter names are Hugging Face's. Shapes: B tiles, P patches of a tile, C width of the tower, H heads, D head size,
N tokens of a tile, E width of the decoder.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.nets.torch_compile import compile_once
from ponder.nets.vision_config import VisionConfig


class VisionEmbeddings(nn.Module):
    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.across = c.patches_across
        self.patch_embedding = nn.Conv2d(3, c.width, kernel_size=c.patch, stride=c.patch)
        self.position_embedding = nn.Embedding(c.patches_across**2, c.width)

    def forward(self, pixels_B3HW: Tensor) -> Tensor:
        patches_BPC = self.patch_embedding(pixels_B3HW).flatten(2).transpose(1, 2)
        return patches_BPC + self.position_embedding(patch_positions(self.across).to(pixels_B3HW.device))


def patch_positions(across: int) -> Tensor:
    """The index of each patch's position: which of the tower's buckets the share of the side lies in, in float32. For
    some sizes the rounding there puts two patches into one bucket, and the published weights were trained so."""
    edges = torch.arange(1 / across, 1.0, 1 / across)
    share = torch.clamp(torch.arange(across, dtype=torch.float32) * (1.0 / torch.tensor(across)), max=1.0 - 1e-6)
    bucket = torch.bucketize(share, edges, right=True)
    return (bucket[:, None] * across + bucket[None, :]).flatten()


class VisionAttention(nn.Module):
    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.heads = c.heads
        self.k_proj = nn.Linear(c.width, c.width)
        self.v_proj = nn.Linear(c.width, c.width)
        self.q_proj = nn.Linear(c.width, c.width)
        self.out_proj = nn.Linear(c.width, c.width)

    def forward(self, x_BPC: Tensor) -> Tensor:
        q, k, v = (
            project(x_BPC).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )  # [B, H, P, D]
        mixed_BHPD = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(mixed_BHPD.transpose(1, 2).flatten(2))


class VisionMLP(nn.Module):
    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(c.width, c.mlp_width)
        self.fc2 = nn.Linear(c.mlp_width, c.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class VisionBlock(nn.Module):
    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.self_attn = VisionAttention(c)
        self.layer_norm1 = nn.LayerNorm(c.width, eps=c.norm_eps)
        self.mlp = VisionMLP(c)
        self.layer_norm2 = nn.LayerNorm(c.width, eps=c.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class VisionEncoder(nn.Module):
    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VisionBlock(c) for _ in range(c.layers))


class VisionTower(nn.Module):
    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.embeddings = VisionEmbeddings(c)
        self.encoder = VisionEncoder(c)
        self.post_layernorm = nn.LayerNorm(c.width, eps=c.norm_eps)

    def forward(self, pixels_B3HW: Tensor, compiled: bool = False) -> Tensor:
        """[B, P, C] from pixels between -1 and 1. `compiled` fuses the blocks, once for all layers."""
        run: Callable[..., Tensor] = compile_once(VisionBlock.forward) if compiled else VisionBlock.__call__
        x = self.embeddings(pixels_B3HW)
        for block in self.encoder.layers:
            x = run(block, x)
        normed: Tensor = self.post_layernorm(x)
        return normed


class ConnectorProjection(nn.Module):
    def __init__(self, c: VisionConfig, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(c.connector_inputs, width, bias=False)


class Connector(nn.Module):
    """Pixel shuffle (a square of patches becomes one wider vector), then a linear map to the decoder's width."""

    def __init__(self, c: VisionConfig, width: int) -> None:
        super().__init__()
        self.across, self.shuffle = c.patches_across, c.shuffle
        self.modality_projection = ConnectorProjection(c, width)

    def forward(self, x_BPC: Tensor) -> Tensor:
        """[B, N, E], row by row."""
        side = self.across // self.shuffle
        squares = x_BPC.unflatten(1, (side, self.shuffle, side, self.shuffle))  # [B, side, s, side, s, C]
        wide_BNC = squares.transpose(2, 3).reshape(len(x_BPC), side * side, -1)
        projected: Tensor = self.modality_projection.proj(wide_BNC)
        return projected
