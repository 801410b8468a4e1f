"""Embeds prompts with pictures: the vectors of the tower and connector in place of image tokens' embeddings.

Where the tower learns, each pass with gradient computes the features of its own pictures, once for each. Where it is
frozen, and in the engine between two changes of the weights, features are computed once per picture and kept; where
only the connector learns, it is what the tower has seen that is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """What makes vectors of pictures: a tower that sees, and what connects it with the decoder."""

    pictures_per_pass: int  # without gradient, to bound memory

    def see(self, pictures: Sequence[Picture], compiled: bool) -> list[Tensor]:
        """The tower's vectors [patches, C] of each picture. `compiled`: with fused blocks, where the tower has them."""
        ...

    def connect(self, seen: Sequence[Tensor]) -> list[Tensor]:
        """The decoder's vectors [tokens, E] of each, from the tower's."""
        ...

    def tower_parameters(self) -> Iterator[nn.Parameter]: ...

    def connector_parameters(self) -> Iterator[nn.Parameter]: ...


class TileEncoder:
    """A SigLIP tower with its connector, over square tiles of one size."""

    pictures_per_pass = 64

    def __init__(self, tower: VisionTower, connector: Connector) -> None:
        self.tower, self.connector = tower, connector

    def see(self, pictures: Sequence[Picture], compiled: bool) -> list[Tensor]:
        weight = self.tower.embeddings.patch_embedding.weight
        return list(self.tower(tile_pixels(pictures, weight.device).to(weight.dtype), compiled))

    def connect(self, seen: Sequence[Tensor]) -> list[Tensor]:
        return list(self.connector(torch.stack(list(seen))))

    def tower_parameters(self) -> Iterator[nn.Parameter]:
        return self.tower.parameters()

    def connector_parameters(self) -> Iterator[nn.Parameter]:
        return self.connector.parameters()


class QwenEncoder:
    """The tower of Qwen2.5-VL with its merger, over pictures of any size."""

    pictures_per_pass = 8

    def __init__(self, tower: QwenVisionTower) -> None:
        self.tower = tower

    def see(self, pictures: Sequence[Picture], compiled: bool) -> list[Tensor]:
        seen: list[Tensor] = self.tower(pictures)
        return seen

    def connect(self, seen: Sequence[Tensor]) -> list[Tensor]:
        merged: Tensor = self.tower.merger(torch.cat(list(seen)))
        return list(merged.split([len(patches) // self.tower.config.merge**2 for patches in seen]))

    def tower_parameters(self) -> Iterator[nn.Parameter]:
        return (p for name, p in self.tower.named_parameters() if not name.startswith("merger."))

    def connector_parameters(self) -> Iterator[nn.Parameter]:
        return self.tower.merger.parameters()


class FeatureCache:
    """Vectors of pictures [N, E], by the picture's index and whether they are inference tensors."""

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._features: OrderedDict[tuple[int, bool], Tensor] = OrderedDict()
        self._bytes, self._max_bytes = 0, max_bytes

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


class PictureCaches:
    """The vectors of pictures that a network keeps: the decoder's, and where only the tower is frozen, the tower's."""

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self.features, self.seen = FeatureCache(max_bytes), FeatureCache(max_bytes)
        self._stamps: list[tuple[tuple[int, int], ...]] = [(), ()]  # of the weights that made them

    def __deepcopy__(self, memo: Any) -> Self:
        """A copy of a network has other weights soon, and no features yet."""
        return type(self)()

    def clear(self) -> None:
        self.features.clear()
        self.seen.clear()

    def clear_stale(self, encoder: PictureEncoder) -> None:
        """Forget what weights made that learn or were written to."""
        tower, connector = list(encoder.tower_parameters()), list(encoder.connector_parameters())
        for i, (cache, weights) in enumerate(((self.seen, tower), (self.features, tower + connector))):
            stamp = tuple((id(w), 0 if w.is_inference() else w._version) for w in weights)
            if _learns(weights) or stamp != self._stamps[i]:
                cache.clear()
            self._stamps[i] = stamp


def embed_pictures(
    x_TE: Tensor,
    ids_T: Tensor,
    table: PictureTable,
    encoder: PictureEncoder,
    caches: PictureCaches,
    compiled: bool = False,
) -> Tensor:
    """Put the features of pictures at the places of local ids below 0."""
    places = (ids_T < 0).nonzero()[:, 0]
    if not len(places):
        weights = [*encoder.tower_parameters(), *encoder.connector_parameters()]
        return x_TE + _zero(weights) if torch.is_grad_enabled() and _learns(weights) else x_TE
    picture, place = table.locate(-1 - ids_T[places].cpu().numpy().astype(np.int64))
    indexes, row = np.unique(picture, return_inverse=True)
    features = _features(indexes.tolist(), table, encoder, caches, compiled)
    firsts = np.cumsum([0, *(len(vectors) for vectors in features)])[:-1]
    source = torch.from_numpy(firsts[row] + place).to(x_TE.device)
    return x_TE.index_put((places,), torch.cat(features)[source].to(x_TE.dtype))


def _features(
    indexes: list[int], table: PictureTable, encoder: PictureEncoder, caches: PictureCaches, compiled: bool
) -> list[Tensor]:
    """The decoder's vectors of pictures: kept where nothing that makes them learns, and in the engine, which says when
    weights have changed. A learner's pass sees the weights as they are."""
    tower_learns, connector_learns = _learns(encoder.tower_parameters()), _learns(encoder.connector_parameters())

    def see(some: list[int]) -> list[Tensor]:
        return encoder.see([table.tile(index) for index in some], compiled)

    def connect(some: list[int]) -> list[Tensor]:
        kept = connector_learns and not tower_learns
        return encoder.connect(_kept(some, caches.seen, see, encoder) if kept else see(some))

    if torch.is_inference_mode_enabled() or not (tower_learns or connector_learns):
        return _kept(indexes, caches.features, connect, encoder)
    if torch.is_grad_enabled():
        return connect(indexes)
    return [vectors for part in _parts(indexes, encoder) for vectors in connect(part)]


def _kept(
    indexes: list[int], cache: FeatureCache, compute: Callable[[list[int]], list[Tensor]], encoder: PictureEncoder
) -> list[Tensor]:
    """What the cache has, and what is computed for it, without gradient."""
    inference = torch.is_inference_mode_enabled()
    with torch.no_grad():
        if not inference:
            cache.copy_from_engine(indexes)
        for part in _parts(cache.missing(indexes, inference), encoder):
            cache.put(part, inference, compute(part))
        return cache.get(indexes, inference)


def tile_pixels(tiles: Sequence[Picture], device: torch.device | str = "cpu") -> Tensor:
    """Pixels [B, 3, H, W] between -1 and 1, as SigLIP was trained. They travel as bytes."""
    pixels = torch.from_numpy(np.stack([tile.pixels for tile in tiles])).to(device).permute(0, 3, 1, 2)
    return pixels.float() / 127.5 - 1.0


def _parts(indexes: list[int], encoder: PictureEncoder) -> list[list[int]]:
    size = encoder.pictures_per_pass
    return [indexes[i : i + size] for i in range(0, len(indexes), size)]


def _learns(weights: Iterable[nn.Parameter]) -> bool:
    return any(weight.requires_grad for weight in weights)


def _zero(weights: Iterable[nn.Parameter]) -> Tensor:
    """0, as a function of all parameters: in a batch without pictures they get a gradient of 0 and not none."""
    return torch.stack([weight.flatten()[0] * 0 for weight in weights]).sum()
