"""The configuration of a vision tower and its connector, in the shape of Idefics3 and SmolVLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ponder.errors import ModelError, UnknownName

# Model types whose differences are only names. Value: the class name Hugging Face gives it.
VISION_FAMILIES = {"idefics3": "Idefics3ForConditionalGeneration", "smolvlm": "SmolVLMForConditionalGeneration"}

MAX_VISION_SIZES = {"width": 1 << 14, "layers": 1 << 10, "heads": 1 << 10, "mlp_width": 1 << 18}
MAX_VISION_SIZES |= {"image_size": 1 << 13, "patch": 1 << 8, "shuffle": 1 << 6}


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """A SigLIP tower over square tiles, and a connector that makes one token of `shuffle` x `shuffle` patches."""

    width: int
    layers: int
    heads: int
    mlp_width: int
    image_size: int  # pixels across and down of a tile
    patch: int  # pixels across and down of a patch
    shuffle: int
    norm_eps: float = 1e-6
    image_token: int | None = None  # the id that stands for a picture in text; it can never be sampled
    family: str = "idefics3"
    split_pixels: int | None = None  # the longest side of a picture that is split into tiles; None: one tile

    def __post_init__(self) -> None:
        if self.family not in VISION_FAMILIES:
            raise UnknownName("vision family", self.family, VISION_FAMILIES)
        for name, most in MAX_VISION_SIZES.items():
            if not 1 <= (size := getattr(self, name)) <= most:
                raise ModelError(f"a vision tower's {name} cannot be {size:,}; it must be between 1 and {most:,}")
        if self.width % self.heads:
            raise ModelError(f"a vision tower of width {self.width} does not split into {self.heads} heads")
        if self.image_size % (self.patch * self.shuffle):
            raise ModelError(
                f"tiles of {self.image_size} pixels do not divide into patches of {self.patch} pixels, {self.shuffle}"
                " of them to a token; image_size must be a multiple of both"
            )
        if self.split_pixels is not None and self.split_pixels < self.image_size:
            raise ModelError(f"split_pixels is {self.split_pixels}, less than one tile of {self.image_size} pixels")

    @property
    def patches_across(self) -> int:
        return self.image_size // self.patch

    @property
    def tokens(self) -> int:
        """Tokens of a tile."""
        return (self.patches_across // self.shuffle) ** 2

    @property
    def connector_inputs(self) -> int:
        return self.width * self.shuffle**2


def tower_size(vision: Mapping[str, Any], name: str, default: int) -> int:
    """A whole number of a tower's configuration."""
    value = vision.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"the vision tower's {name} is {value!r:.60}; it is a whole number")
    return value


def vision_from_hf(raw: Mapping[str, Any]) -> VisionConfig:
    """Read the vision part of a `config.json`."""
    vision = raw["vision_config"]
    size = partial(tower_size, vision)
    activation = vision.get("hidden_act", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise UnknownName("activation of a vision tower", str(activation), ["gelu_pytorch_tanh"])
    split = raw.get("split_pixels")
    return VisionConfig(
        width=size("hidden_size", 1152),
        layers=size("num_hidden_layers", 12),
        heads=size("num_attention_heads", 16),
        mlp_width=size("intermediate_size", 3072),
        image_size=size("image_size", 224),
        patch=size("patch_size", 32),
        shuffle=int(raw.get("scale_factor", 2)),
        norm_eps=float(vision.get("layer_norm_eps", 1e-6)),
        image_token=None if raw.get("image_token_id") is None else int(raw["image_token_id"]),
        family=str(raw["model_type"]),
        split_pixels=None if split is None else int(split),
    )


def vision_to_hf(config: VisionConfig, text: Mapping[str, Any]) -> dict[str, Any]:
    """A `config.json` of the whole model, whose decoder has the configuration `text`."""
    c = config
    text_config = {k: v for k, v in text.items() if k != "architectures"}
    return {
        "architectures": [VISION_FAMILIES[c.family]],
        "model_type": c.family,
        "text_config": text_config,
        "vision_config": {
            "model_type": f"{c.family}_vision",
            "hidden_size": c.width,
            "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads,
            "intermediate_size": c.mlp_width,
            "image_size": c.image_size,
            "patch_size": c.patch,
            "num_channels": 3,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": c.norm_eps,
        },
        "scale_factor": c.shuffle,
        "image_token_id": c.image_token,
        "tie_word_embeddings": text["tie_word_embeddings"],
        **{key: text[key] for key in ("torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id")},
        **({} if c.split_pixels is None else {"split_pixels": c.split_pixels}),
    }
