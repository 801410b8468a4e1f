"""Embeds prompts with pictures: the vectors of the tower and connector in place of image tokens' embeddings.

Where the tower learns, each pass with gradient computes the features of its own pictures, once for each. Where it is
frozen, and in the engine between two changes of the weights, features are computed once per picture and kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from ponder.nets.picture_table import PictureTable
from ponder.nets.qwen_vision_tower import QwenVisionTower
from ponder.nets.vision_tower import Connector, VisionTower
from ponder.pictures.picture import Picture

MAX_CACHED_BYTES = 2 << 30


class PictureEncoder(Protocol):
    """What makes vectors of pictures."""

    pictures_per_pass: int  # without gradient, to bound memory

    def encode(self, pictures: Sequence[Picture]) -> list[Tensor]:
        """The vectors [tokens, E] of each picture."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


class TileEncoder:
    """A SigLIP tower with its connector, over square tiles of one size."""

    pictures_per_pass = 64

    def __init__(self, tower: VisionTower, connector: Connector) -> None:
        self.tower, self.connector = tower, connector

    def encode(self, pictures: Sequence[Picture]) -> list[Tensor]:
        weight = self.connector.modality_projection.proj.weight
        features_BNE: Tensor = self.connector(self.tower(tile_pixels(pictures).to(weight.device, weight.dtype)))
        return list(features_BNE)

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.tower.parameters()
        yield from self.connector.parameters()


class QwenEncoder:
    """The tower of Qwen2.5-VL, over pictures of any size."""

    pictures_per_pass = 8

    def __init__(self, tower: QwenVisionTower) -> None:
        self.tower = tower

    def encode(self, pictures: Sequence[Picture]) -> list[Tensor]:
        vectors: list[Tensor] = self.tower(pictures)
        return vectors

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.tower.parameters()


class FeatureCache:
    """Features of pictures [N, E], by the picture's index and whether they are inference tensors."""

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._features: OrderedDict[tuple[int, bool], Tensor] = OrderedDict()
        self._bytes, self._max_bytes = 0, max_bytes

    def __deepcopy__(self, memo: Any) -> Self:
        """A copy of a network has other weights soon, and no features yet."""
        return type(self)(self._max_bytes)

    def clear(self) -> None:
        self._features.clear()
        self._bytes = 0

    def missing(self, indexes: Sequence[int], inference: bool) -> list[int]:
        return [index for index in indexes if (index, inference) not in self._features]

    def copy_from_engine(self, indexes: Sequence[int]) -> None:
        """Take over what a pass in inference mode has computed, as tensors that a backward pass may keep."""
        for index in self.missing(indexes, False):
            if (index, True) in self._features:
                self.put([index], False, [self._features[index, True]])

    def put(self, indexes: Sequence[int], inference: bool, features: Sequence[Tensor]) -> None:
        for index, vectors in zip(indexes, features, strict=True):
            self._features[index, inference] = vectors.clone()  # not a part of a larger tensor
            self._bytes += vectors.nbytes

    def get(self, indexes: Sequence[int], inference: bool) -> list[Tensor]:
        for index in indexes:
            self._features.move_to_end((index, inference))
        out = [self._features[index, inference] for index in indexes]
        while self._bytes > self._max_bytes and self._features:
            self._bytes -= self._features.popitem(last=False)[1].nbytes
        return out


def embed_pictures(
    x_TE: Tensor, ids_T: Tensor, table: PictureTable, encoder: PictureEncoder, cached: FeatureCache
) -> Tensor:
    """Put the features of pictures at the places of local ids below 0."""
    places = (ids_T < 0).nonzero()[:, 0]
    learns = torch.is_grad_enabled() and any(p.requires_grad for p in encoder.parameters())
    if not len(places):
        return x_TE + _zero(encoder) if learns else x_TE
    picture, place = table.locate(-1 - ids_T[places].cpu().numpy().astype(np.int64))
    indexes, row = np.unique(picture, return_inverse=True)
    features = (
        _compute(indexes.tolist(), table, encoder) if learns else _cached(indexes.tolist(), table, encoder, cached)
    )
    firsts = np.cumsum([0, *(len(vectors) for vectors in features)])[:-1]
    source = torch.from_numpy(firsts[row] + place).to(x_TE.device)
    return x_TE.index_put((places,), torch.cat(features)[source].to(x_TE.dtype))


def tile_pixels(tiles: Sequence[Picture]) -> Tensor:
    """Pixels [B, 3, H, W] between -1 and 1, as SigLIP was trained."""
    pixels = torch.from_numpy(np.stack([tile.pixels for tile in tiles])).permute(0, 3, 1, 2)
    return pixels.float() / 127.5 - 1.0


def _compute(indexes: Sequence[int], table: PictureTable, encoder: PictureEncoder) -> list[Tensor]:
    return encoder.encode([table.tile(index) for index in indexes])


def _cached(indexes: list[int], table: PictureTable, encoder: PictureEncoder, cached: FeatureCache) -> list[Tensor]:
    inference = torch.is_inference_mode_enabled()
    learning = any(p.requires_grad for p in encoder.parameters())
    with torch.no_grad():
        if learning and not inference:  # a learner's pass: the weights may have changed since
            return [f for part in _parts(indexes, encoder) for f in _compute(part, table, encoder)]
        if not inference:
            cached.copy_from_engine(indexes)
        for part in _parts(cached.missing(indexes, inference), encoder):
            cached.put(part, inference, _compute(part, table, encoder))
        return cached.get(indexes, inference)


def _parts(indexes: list[int], encoder: PictureEncoder) -> list[list[int]]:
    size = encoder.pictures_per_pass
    return [indexes[i : i + size] for i in range(0, len(indexes), size)]


def _zero(encoder: PictureEncoder) -> Tensor:
    """0, as a function of all parameters: in a batch without pictures they get a gradient of 0 and not none."""
    return torch.stack([parameter.flatten()[0] * 0 for parameter in encoder.parameters()]).sum()
