"""The configuration of the vision tower of Qwen2.5-VL, and how it is written in `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ponder.errors import ModelError, UnknownName
from ponder.nets.vision_config import tower_size

QWEN_VISION_FAMILY, QWEN_VISION_CLASS = "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"
QWEN_TEXT_TYPE = "qwen2_5_vl_text"

MAX_QWEN_SIZES = {"width": 1 << 14, "layers": 1 << 10, "heads": 1 << 10, "mlp_width": 1 << 18}
MAX_QWEN_SIZES |= {"patch": 1 << 8, "merge": 1 << 6, "window": 1 << 13, "out_width": 1 << 20}
DEFAULT_MIN_PIXELS, DEFAULT_MAX_PIXELS = 56 * 56, 28 * 28 * 1280  # the defaults of the published processor


@dataclass(frozen=True, slots=True)
class QwenVisionConfig:
    """A tower over pictures of any size in patches, with attention inside windows in all layers but a few, and a merger
    that makes one token of `merge` x `merge` patches."""

    width: int
    layers: int
    heads: int
    mlp_width: int
    patch: int  # pixels across and down of a patch
    merge: int
    window: int  # pixels across and down of a window
    full_layers: tuple[int, ...]  # layers in which a patch sees the whole picture
    out_width: int  # of the decoder
    image_token: int | None = None  # the id that stands for a picture in text; it can never be sampled
    video_token: int | None = None
    vision_start: int | None = None
    vision_end: int | None = None
    min_pixels: int = DEFAULT_MIN_PIXELS  # a picture is resized to a size between these
    max_pixels: int = DEFAULT_MAX_PIXELS

    family = QWEN_VISION_FAMILY

    def __post_init__(self) -> None:
        for name, most in MAX_QWEN_SIZES.items():
            if not 1 <= (size := getattr(self, name)) <= most:
                raise ModelError(f"a vision tower's {name} cannot be {size:,}; it must be between 1 and {most:,}")
        if self.width % (4 * self.heads):
            raise ModelError(
                f"a vision tower of width {self.width} does not split into {self.heads} heads whose size is a multiple"
                " of 4, as positions across and down need"
            )
        if self.window < self.unit:
            raise ModelError(f"windows of {self.window} pixels are smaller than a token of {self.unit} pixels")
        if not 1 <= self.min_pixels <= self.max_pixels:
            raise ModelError(f"min_pixels is {self.min_pixels} and max_pixels {self.max_pixels}; the first is smaller")

    @property
    def unit(self) -> int:
        """Pixels across and down of a token."""
        return self.patch * self.merge

    @property
    def tokens(self) -> None:
        """Tokens of a picture: they vary with its size."""
        return None


def qwen_vision_from_hf(raw: Mapping[str, Any]) -> QwenVisionConfig:
    """Read the vision part of a `config.json`."""
    vision = raw["vision_config"]
    size = partial(tower_size, vision)
    activation = vision.get("hidden_act", "silu")
    if activation != "silu":
        raise UnknownName("activation of a vision tower", str(activation), ["silu"])
    if (frames := size("temporal_patch_size", 2)) != 2:
        raise ModelError(f"the vision tower takes {frames} frames at once; only 2 are known")
    tokens = {name: raw.get(f"{name}_id") for name in ("image_token", "video_token")}
    return QwenVisionConfig(
        width=size("hidden_size", 3584),
        layers=size("depth", 32),
        heads=size("num_heads", 16),
        mlp_width=size("intermediate_size", 3420),
        patch=size("patch_size", 14),
        merge=size("spatial_merge_size", 2),
        window=size("window_size", 112),
        full_layers=tuple(int(i) for i in vision.get("fullatt_block_indexes", (7, 15, 23, 31))),
        out_width=size("out_hidden_size", 3584),
        vision_start=raw.get("vision_start_token_id"),
        vision_end=raw.get("vision_end_token_id"),
        min_pixels=int(raw.get("min_pixels", DEFAULT_MIN_PIXELS)),
        max_pixels=int(raw.get("max_pixels", DEFAULT_MAX_PIXELS)),
        **tokens,
    )


def qwen_vision_to_hf(config: QwenVisionConfig, text: Mapping[str, Any], sections: tuple[int, ...]) -> dict[str, Any]:
    """A `config.json` of the whole model, whose decoder has the configuration `text`."""
    c = config
    text_config = {k: v for k, v in text.items() if k not in ("architectures", "head_dim", "rope_theta")}
    rope = {"rope_type": "default", "rope_theta": text["rope_theta"], "mrope_section": list(sections)}
    sizes = {} if (c.min_pixels, c.max_pixels) == (DEFAULT_MIN_PIXELS, DEFAULT_MAX_PIXELS) else {
        "min_pixels": c.min_pixels, "max_pixels": c.max_pixels,
    }  # fmt: skip
    return {
        "architectures": [QWEN_VISION_CLASS],
        "model_type": c.family,
        "text_config": {**text_config, "model_type": QWEN_TEXT_TYPE, "rope_parameters": rope},
        "vision_config": {
            "model_type": "qwen2_5_vl_vision",
            "hidden_size": c.width,
            "depth": c.layers,
            "num_heads": c.heads,
            "intermediate_size": c.mlp_width,
            "patch_size": c.patch,
            "spatial_merge_size": c.merge,
            "temporal_patch_size": 2,
            "window_size": c.window,
            "fullatt_block_indexes": list(c.full_layers),
            "out_hidden_size": c.out_width,
            "in_channels": 3,
            "hidden_act": "silu",
        },
        "image_token_id": c.image_token,
        "video_token_id": c.video_token,
        "vision_start_token_id": c.vision_start,
        "vision_end_token_id": c.vision_end,
        "tie_word_embeddings": text["tie_word_embeddings"],
        **{key: text[key] for key in ("torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id")},
        **sizes,
    }
