"""Embeds prompts with pictures: the vectors of the tower and connector in place of image tokens' embeddings.

Where the tower learns, each pass with gradient computes the features of its own tiles, once for each. Where it is
frozen, and in the engine between two changes of the weights, features are computed once per tile and kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ponder.nets.picture_table import table_for
from ponder.nets.vision_config import VisionConfig
from ponder.nets.vision_tower import Connector, VisionTower
from ponder.pictures.picture import Picture

MAX_CACHED_TILES = 4096
_TILES_PER_PASS = 64  # without gradient, to bound memory


class FeatureCache:
    """Features of tiles [N, E], by the tile's index and whether they are inference tensors."""

    def __init__(self) -> None:
        self._features: OrderedDict[tuple[int, bool], Tensor] = OrderedDict()

    def __deepcopy__(self, memo: Any) -> Self:
        """A copy of a network has other weights soon, and no features yet."""
        return type(self)()

    def clear(self) -> None:
        self._features.clear()

    def missing(self, tiles: Sequence[int], inference: bool) -> list[int]:
        return [tile for tile in tiles if (tile, inference) not in self._features]

    def put(self, tiles: Sequence[int], inference: bool, features_BNE: Tensor) -> None:
        for tile, features in zip(tiles, features_BNE, strict=True):
            self._features[tile, inference] = features

    def get(self, tiles: Sequence[int], inference: bool) -> Tensor:
        for tile in tiles:
            self._features.move_to_end((tile, inference))
        out = torch.stack([self._features[tile, inference] for tile in tiles])
        while len(self._features) > MAX_CACHED_TILES:
            self._features.popitem(last=False)
        return out


def embed_pictures(
    x_TE: Tensor, ids_T: Tensor, config: VisionConfig, tower: VisionTower, connector: Connector, cached: FeatureCache
) -> Tensor:
    """Put the features of tiles at the places of local ids below 0."""
    places = (ids_T < 0).nonzero()[:, 0]
    learns = torch.is_grad_enabled() and any(p.requires_grad for part in (tower, connector) for p in part.parameters())
    if not len(places):
        return x_TE + _zero(tower, connector) if learns else x_TE
    numbers = -1 - ids_T[places]
    tiles, row = torch.unique(numbers // config.tokens, return_inverse=True)
    indexes = tiles.tolist()
    if learns:
        features_BNE = compute_features(indexes, config, tower, connector)
    else:
        features_BNE = _cached_features(indexes, config, tower, connector, cached)
    return x_TE.index_put((places,), features_BNE[row, numbers % config.tokens].to(x_TE.dtype))


def compute_features(indexes: Sequence[int], config: VisionConfig, tower: VisionTower, connector: Connector) -> Tensor:
    """Features [B, N, E] of tiles of the process's table."""
    weight = connector.modality_projection.proj.weight
    table = table_for(config.tokens)
    pixels = tile_pixels([table.tile(index) for index in indexes]).to(weight.device, weight.dtype)
    features: Tensor = connector(tower(pixels))
    return features


def tile_pixels(tiles: Sequence[Picture]) -> Tensor:
    """Pixels [B, 3, H, W] between -1 and 1, as SigLIP was trained."""
    pixels = torch.from_numpy(np.stack([tile.pixels for tile in tiles])).permute(0, 3, 1, 2)
    return pixels.float() / 127.5 - 1.0


def _cached_features(
    indexes: Sequence[int], config: VisionConfig, tower: VisionTower, connector: Connector, cached: FeatureCache
) -> Tensor:
    inference = torch.is_inference_mode_enabled()
    learning = any(p.requires_grad for part in (tower, connector) for p in part.parameters())
    with torch.no_grad():
        if learning and not inference:  # a learner's pass: the weights may have changed since
            parts = [indexes[i : i + _TILES_PER_PASS] for i in range(0, len(indexes), _TILES_PER_PASS)]
            return torch.cat([compute_features(part, config, tower, connector) for part in parts])
        missing = cached.missing(indexes, inference)
        for i in range(0, len(missing), _TILES_PER_PASS):
            part = missing[i : i + _TILES_PER_PASS]
            cached.put(part, inference, compute_features(part, config, tower, connector))
        return cached.get(indexes, inference)


def _zero(*modules: nn.Module) -> Tensor:
    """0, as a function of all parameters: in a batch without pictures they get a gradient of 0 and not none."""
    terms = [parameter.flatten()[0] * 0 for module in modules for parameter in module.parameters()]
    return torch.stack(terms).sum()
