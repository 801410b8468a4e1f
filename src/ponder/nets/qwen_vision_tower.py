"""The vision tower and patch merger of Qwen2.5-VL: from pictures of any size to vectors in place of embeddings.

Patches of all pictures form one flat list, square by square: the patches that become one token stand together. Most
layers attend inside windows, a few inside whole pictures; both are groups of patches, padded to the largest.

Parameter names are Hugging Face's. Shapes: P patches of all pictures, C width of the tower, H heads, D head size, G
groups, L patches of the largest, E width of the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.nets import rope
from ponder.nets.qwen_vision_config import QwenVisionConfig
from ponder.nets.rms_norm import RMSNorm
from ponder.pictures.picture import Picture

NORM_EPS, ROPE_THETA = 1e-6, 10000.0
_MEAN = (0.48145466, 0.4578275, 0.40821073)  # of CLIP's pictures, by colour
_STD = (0.26862954, 0.26130258, 0.27577711)


class PatchGroups(NamedTuple):
    """Which patches attend to each other."""

    index_GL: Tensor  # arbitrary on padding
    is_patch_GL: Tensor


class QwenPatchEmbed(nn.Module):
    def __init__(self, c: QwenVisionConfig) -> None:
        super().__init__()
        self.proj = nn.Conv3d(3, c.width, kernel_size=(2, c.patch, c.patch), stride=(2, c.patch, c.patch), bias=False)

    def forward(self, patches_P3pp: Tensor) -> Tensor:
        """The tower takes two frames at a time; a picture is both of them."""
        weight = self.proj.weight.sum(2).flatten(1)
        return patches_P3pp.flatten(1) @ weight.T


class QwenVisionAttention(nn.Module):
    def __init__(self, c: QwenVisionConfig) -> None:
        super().__init__()
        self.heads = c.heads
        self.qkv = nn.Linear(c.width, 3 * c.width)
        self.proj = nn.Linear(c.width, c.width)

    def forward(self, x_PC: Tensor, rotary: tuple[Tensor, Tensor], groups: PatchGroups) -> Tensor:
        q, k, v = self.qkv(x_PC).unflatten(-1, (3, self.heads, -1)).unbind(1)  # [P, H, D]
        q, k = (rope.rotate(x.float(), *rotary).to(x_PC.dtype) for x in (q, k))
        q, k, v = (x[groups.index_GL].transpose(1, 2) for x in (q, k, v))  # [G, H, L, D]
        mask = None if bool(groups.is_patch_GL.all()) else groups.is_patch_GL[:, None, None, :]
        mixed_GLHD = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
        out = torch.empty_like(x_PC.unflatten(-1, (self.heads, -1)))
        out = out.index_put((groups.index_GL[groups.is_patch_GL],), mixed_GLHD[groups.is_patch_GL])
        return self.proj(out.flatten(1))


class QwenVisionMLP(nn.Module):
    def __init__(self, c: QwenVisionConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.width, c.mlp_width)
        self.up_proj = nn.Linear(c.width, c.mlp_width)
        self.down_proj = nn.Linear(c.mlp_width, c.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class QwenVisionBlock(nn.Module):
    def __init__(self, c: QwenVisionConfig) -> None:
        super().__init__()
        self.norm1 = RMSNorm(c.width, NORM_EPS)
        self.norm2 = RMSNorm(c.width, NORM_EPS)
        self.attn = QwenVisionAttention(c)
        self.mlp = QwenVisionMLP(c)

    def forward(self, x_PC: Tensor, rotary: tuple[Tensor, Tensor], groups: PatchGroups) -> Tensor:
        x_PC = x_PC + self.attn(self.norm1(x_PC), rotary, groups)
        return x_PC + self.mlp(self.norm2(x_PC))


class QwenPatchMerger(nn.Module):
    def __init__(self, c: QwenVisionConfig) -> None:
        super().__init__()
        inner = c.width * c.merge**2
        self.ln_q = RMSNorm(c.width, NORM_EPS)
        self.mlp = nn.Sequential(nn.Linear(inner, inner), nn.GELU(), nn.Linear(inner, c.out_width))
        self.inner = inner

    def forward(self, x_PC: Tensor) -> Tensor:
        merged: Tensor = self.mlp(self.ln_q(x_PC).view(-1, self.inner))
        return merged


class QwenVisionTower(nn.Module):
    def __init__(self, c: QwenVisionConfig) -> None:
        super().__init__()
        self.config = c
        self.patch_embed = QwenPatchEmbed(c)
        self.blocks = nn.ModuleList(QwenVisionBlock(c) for _ in range(c.layers))
        self.merger = QwenPatchMerger(c)

    def forward(self, pictures: Sequence[Picture]) -> list[Tensor]:
        """The vectors [P, C] of each picture's patches, square by square; `merger` makes tokens of them.

        Sizes are whole tokens.
        """
        c, weight = self.config, self.patch_embed.proj.weight
        grids = [(picture.height // c.patch, picture.width // c.patch) for picture in pictures]
        patches = torch.cat([picture_patches(picture, c) for picture in pictures])
        x_PC = self.patch_embed(patches.to(weight.device, weight.dtype))
        rotary = patch_rotary(grids, c, weight.device)
        windows, wholes = (_pad_groups(groups, weight.device) for groups in (_windows(grids, c), _wholes(grids)))
        for layer, block in enumerate(self.blocks):
            x_PC = block(x_PC, rotary, wholes if layer in c.full_layers else windows)
        return list(x_PC.split([rows * columns for rows, columns in grids]))


def picture_patches(picture: Picture, c: QwenVisionConfig) -> Tensor:
    """Patches [P, 3, p, p] of normalised pixels, square by square."""
    pixels = torch.from_numpy(picture.pixels.copy()).float() / 255.0
    normed = ((pixels - torch.tensor(_MEAN)) / torch.tensor(_STD)).permute(2, 0, 1)  # [3, H, W]
    rows, columns = picture.height // c.unit, picture.width // c.unit
    squares = normed.reshape(3, rows, c.merge, c.patch, columns, c.merge, c.patch)
    return squares.permute(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3, c.patch, c.patch)


def patch_rotary(grids: Sequence[tuple[int, int]], c: QwenVisionConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [P, 1, D] of each patch's row and column: half of the pairs turn with each."""
    half = c.width // c.heads // 2
    freqs = ROPE_THETA ** -(torch.arange(0, half, 2, dtype=torch.float64) / half)
    places = torch.cat([_patch_places(rows, columns, c.merge) for rows, columns in grids])  # [P, 2]
    turn = (places[:, :, None].float() * freqs.float()).flatten(1)
    turn_PD = torch.cat((turn, turn), dim=-1)[:, None, :].to(device)
    return turn_PD.cos(), turn_PD.sin()


def _patch_places(rows: int, columns: int, merge: int) -> Tensor:
    """Row and column [P, 2] of each patch of a picture, square by square."""
    places = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), dim=-1)
    squares = places.reshape(rows // merge, merge, columns // merge, merge, 2)
    return squares.transpose(1, 2).reshape(-1, 2)


def _wholes(grids: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """The patches of each picture."""
    ends = np.cumsum([rows * columns for rows, columns in grids])
    return [np.arange(end - rows * columns, end) for end, (rows, columns) in zip(ends, grids, strict=True)]


def _windows(grids: Sequence[tuple[int, int]], c: QwenVisionConfig) -> list[np.ndarray]:
    """The patches of each window of each picture: squares of whole tokens, cut off at the edges."""
    side, per_token = c.window // c.unit, c.merge**2
    out: list[np.ndarray] = []
    first = 0
    for rows, columns in grids:
        tokens = np.arange(rows * columns // per_token).reshape(rows // c.merge, columns // c.merge)
        for y in range(0, tokens.shape[0], side):
            for x in range(0, tokens.shape[1], side):
                inside = tokens[y : y + side, x : x + side].reshape(-1, 1) * per_token
                out.append(first + (inside + np.arange(per_token)).ravel())
        first += rows * columns
    return out


def _pad_groups(groups: Sequence[np.ndarray], device: torch.device) -> PatchGroups:
    index = np.zeros((len(groups), max(map(len, groups))), np.int64)
    is_patch = np.zeros(index.shape, bool)
    for row, group in enumerate(groups):
        index[row, : len(group)], is_patch[row, : len(group)] = group, True
    return PatchGroups(torch.from_numpy(index).to(device), torch.from_numpy(is_patch).to(device))
