"""The configuration of a decoder, read from and written to Hugging Face's `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ponder.errors import ModelError, UnknownName
from ponder.nets.qwen_vision_config import (
    QWEN_VISION_FAMILY,
    QwenVisionConfig,
    qwen_vision_from_hf,
    qwen_vision_to_hf,
)
from ponder.nets.vision_config import VISION_FAMILIES, VisionConfig, vision_from_hf, vision_to_hf

# Families whose differences are settings of one decoder. Value: the class name Hugging Face gives it.
FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}


# Larger sizes are refused: several times those of the largest published models.
MAX_SIZES = {"layers": 1 << 12, "heads": 1 << 14, "head_dim": 1 << 16, "width": 1 << 20, "mlp_width": 1 << 24}
MAX_SIZES |= {"vocab": 1 << 24, "context": 1 << 24, "kv_heads": 1 << 14}

DEFAULT_SECTIONS = (16, 24, 24)  # of M-RoPE, in Qwen2.5-VL
ROPE_NUMERIC_KEYS = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
ROPE_NUMERIC_KEYS |= {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions: the base frequency, and how it is stretched to longer contexts."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)  # factor and the other numbers of this kind
    sections: tuple[int, ...] = ()  # M-RoPE: how many frequencies turn with each of three components; none: one


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    family: str
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int  # of the feed-forward block
    context: int = 2048
    norm_eps: float = 1e-6
    rope: RopeConfig = RopeConfig()
    local_rope: RopeConfig | None = None  # Gemma 3: sliding-window layers have another base
    windows: tuple[int | None, ...] = ()  # attention window of each layer, in tokens (None: all)
    tied_embeddings: bool = True  # the output head is the embedding
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    query_scale: float | None = None  # None: head_dim ** -0.5
    gemma: bool = False  # norms scale by 1 + w and follow the blocks too; embeddings scale by sqrt(width)
    bos: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None
    vision: VisionConfig | QwenVisionConfig | None = None  # None: the model reads text only

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise UnknownName("model family", self.family, FAMILIES)
        for name, most in MAX_SIZES.items():
            if not 1 <= (size := getattr(self, name)) <= most:
                raise ModelError(f"a model's {name} cannot be {size:,}; it must be between 1 and {most:,}")
        if self.head_dim % 2:
            raise ModelError(f"a head size of {self.head_dim} is odd: rotary positions need pairs")
        for name, value in (("norm epsilon", self.norm_eps), ("query scale", self.scale)):
            if not 0 <= value <= 1e6:
                raise ModelError(f"a model's {name} cannot be {value}")
        for rope in (self.rope, self.local_rope or self.rope):
            if not 1 <= rope.theta <= 1e15:
                raise ModelError(f"a rope's base cannot be {rope.theta}")
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} query heads cannot share {self.kv_heads} key heads evenly")
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.layers)
        if len(self.windows) != self.layers:
            raise ModelError(f"{self.layers} layers but {len(self.windows)} attention windows")
        if min((w for w in self.windows if w is not None), default=1) < 1:
            raise ModelError(f"an attention window cannot reach {min(w for w in self.windows if w is not None)} tokens")
        if self.rope.sections and sum(self.rope.sections) != self.head_dim // 2:
            raise ModelError(
                f"the rope's sections {self.rope.sections} do not add up to {self.head_dim // 2} frequencies"
            )
        if isinstance(self.vision, QwenVisionConfig) and self.vision.out_width != self.width:
            raise ModelError(f"the tower gives vectors of {self.vision.out_width}, the decoder takes {self.width}")
        if self.vision is not None and (self.vision.image_token or 0) >= self.vocab:
            raise ModelError(f"the image token is {self.vision.image_token}; the vocabulary has {self.vocab} tokens")

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    @property
    def layer_parameter_count(self) -> int:
        """Parameters of the matrices of one layer."""
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.width * self.mlp_width

    @property
    def parameter_count(self) -> int:
        """Parameters of the matrices, without norms and biases. A tied head counts once."""
        return self.layers * self.layer_parameter_count + self.vocab * self.width

    def attention_flops(self, contexts: float) -> float:
        """FLOPs of one layer's attention: of queries with keys and of weights with values. `contexts`: how many tokens
        each token sees, itself included, summed over the tokens; a window is not taken off."""
        return 4.0 * self.heads * self.head_dim * contexts

    def flops_per_token(self, context: int = 0) -> float:
        """FLOPs of the forward pass: 2 (parameters + 2 layers width context), without the embedding lookup."""
        return 2.0 * self.parameter_count + self.layers * self.attention_flops(context)


def from_hf(raw: Mapping[str, Any]) -> DecoderConfig:
    """Read a `config.json`, in the spelling of transformers 4 or 5."""
    family = str(raw.get("model_type", ""))
    if family in VISION_FAMILIES and isinstance(raw.get("text_config"), Mapping):
        return _parse_vision_model(raw)
    if family == QWEN_VISION_FAMILY and isinstance(raw.get("vision_config"), Mapping):
        return _parse_qwen_vision_model(raw)
    if family == "gemma3" and isinstance(raw.get("text_config"), Mapping):
        return from_hf({**raw["text_config"], "model_type": "gemma3_text"})
    if family not in FAMILIES:
        raise UnknownName("native model family", family, FAMILIES, "Use the 'transformers:' policy for others.")
    try:
        return _parse_family(family, raw)
    except KeyError as missing:
        raise ModelError(f"config.json has no {missing}; it is not a whole {family} configuration") from None


def _parse_vision_model(raw: Mapping[str, Any]) -> DecoderConfig:
    """A vision-language model: its decoder, with a tower. Token ids and the tied head are named outside the decoder."""
    text = raw["text_config"]
    if (family := str(text.get("model_type", ""))) != "llama":
        raise UnknownName("decoder of a vision-language model", family, ["llama"])
    outside = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
    above = {name: raw[name] for name in outside if raw.get(name) is not None}
    try:
        return replace(from_hf({**text, **above}), vision=vision_from_hf(raw))
    except KeyError as missing:
        raise ModelError(f"config.json has no {missing}; it is not a whole {raw['model_type']} configuration") from None


def _parse_qwen_vision_model(raw: Mapping[str, Any]) -> DecoderConfig:
    """Qwen2.5-VL: older files have the decoder's settings beside `vision_config`, newer ones in `text_config`."""
    text = raw.get("text_config") or {k: v for k, v in raw.items() if k != "vision_config"}
    outside = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
    above = {name: raw[name] for name in outside if raw.get(name) is not None}
    try:
        decoder = from_hf({**text, **above, "model_type": "qwen2"})
        rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
        sections = tuple(parse_int("mrope_section", n) for n in rope.get("mrope_section") or DEFAULT_SECTIONS)
        theta = float(rope.get("rope_theta") or text.get("rope_theta") or 1e6)
        new = replace(decoder.rope, theta=theta, sections=sections)
        return replace(decoder, rope=new, vision=qwen_vision_from_hf(raw))
    except KeyError as missing:
        raise ModelError(f"config.json has no {missing}; it is not a whole {raw['model_type']} configuration") from None


def parse_int(name: str, value: Any) -> int:
    """An integer from a file."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise ModelError(f"{name} is {value!r:.60}, which makes no sense: it is a whole number")
    return int(value)


def parse_token_id(name: str, value: Any) -> int | None:
    """The id of a special token; some files write -1 for none."""
    if value is None:
        return None
    index = parse_int(name, value)
    if index >= MAX_SIZES["vocab"]:
        raise ModelError(f"{name} is {index:,}, which is no token of any model")
    return index if index >= 0 else None


def parse_token_ids(name: str, values: Any) -> tuple[int, ...]:
    """One or several token ids, without duplicates."""
    ids = [parse_token_id(name, value) for value in (values if isinstance(values, list | tuple) else [values])]
    return tuple(dict.fromkeys(index for index in ids if index is not None))


def _parse_family(family: str, raw: Mapping[str, Any]) -> DecoderConfig:
    def size(name: str, default: int | None = None) -> int:
        value = raw[name] if default is None else raw.get(name)
        return default if value is None and default is not None else parse_int(name, value)

    heads, layers, width = size("num_attention_heads"), size("num_hidden_layers"), size("hidden_size")
    if not 1 <= layers <= MAX_SIZES["layers"] or heads < 1:
        raise ModelError(f"a model cannot have {layers:,} layers of {heads:,} heads")
    gemma = family == "gemma3_text"
    qwen = family.startswith("qwen")
    bias = bool(raw.get("attention_bias", family == "qwen2"))
    rope, local = _parse_ropes(raw, gemma)
    scalar = raw.get("query_pre_attn_scalar", 256) if gemma else None
    return DecoderConfig(
        family=family,
        vocab=size("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", 256 if gemma else width // heads),
        mlp_width=size("intermediate_size"),
        context=size("max_position_embeddings", 2048),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=rope,
        local_rope=local,
        windows=_parse_windows(raw, layers, gemma, qwen),
        tied_embeddings=bool(raw.get("tie_word_embeddings", gemma)),
        qkv_bias=bias or family == "qwen2",
        out_bias=bias and family != "qwen2",
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=family in ("qwen3", "gemma3_text"),
        activation="gelu_tanh" if gemma else "silu",
        query_scale=None if scalar is None else float(scalar) ** -0.5,
        gemma=gemma,
        bos=parse_token_id("bos_token_id", raw.get("bos_token_id")),
        eos=parse_token_ids("eos_token_id", raw.get("eos_token_id")),
        pad=parse_token_id("pad_token_id", raw.get("pad_token_id")),
    )


def _parse_ropes(raw: Mapping[str, Any], gemma: bool) -> tuple[RopeConfig, RopeConfig | None]:
    new = raw.get("rope_parameters") or {}
    if gemma:
        full = new.get("full_attention") or raw.get("rope_scaling") or {}
        local = new.get("sliding_attention") or {}
        return (
            _parse_rope(full, raw.get("rope_theta", 1e6)),
            _parse_rope(local, raw.get("rope_local_base_freq", 1e4)),
        )
    return _parse_rope(new or raw.get("rope_scaling") or {}, raw.get("rope_theta", 1e4)), None


def _parse_rope(data: Mapping[str, Any], theta: Any) -> RopeConfig:
    settings = dict(data)
    kind: Any = settings.pop("rope_type", None) or settings.pop("type", None) or "default"
    settings.pop("type", None)
    theta = float(settings.pop("rope_theta", None) or theta)
    for name in ROPE_NUMERIC_KEYS & settings.keys():
        if isinstance(value := settings[name], bool) or not isinstance(value, int | float | None):
            raise ModelError(f"the rope's {name} is {value!r:.60}, which makes no sense: it is a number")
    if kind == "mrope":  # how older files of Qwen2.5-VL call it
        kind = "default"
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise UnknownName("rope scaling", str(kind), ("default", "linear", "llama3", "yarn"))
    return RopeConfig(theta, kind, {} if kind == "default" else settings)


def _parse_windows(raw: Mapping[str, Any], layers: int, gemma: bool, qwen: bool) -> tuple[int | None, ...]:
    window = raw.get("sliding_window", 4096 if gemma else None)
    if window is None or (qwen and not raw.get("use_sliding_window", False)):
        return (None,) * layers
    kinds = raw.get("layer_types")
    if kinds is None and gemma:  # older files: every n-th layer has full attention
        every = int(raw.get("sliding_window_pattern", 6))
        kinds = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
    if kinds is None and qwen:
        first = int(raw.get("max_window_layers", layers))
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    if kinds is None:
        return (int(window),) * layers
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def to_hf(config: DecoderConfig, dtype: str = "float32") -> dict[str, Any]:
    """A `config.json` that transformers and vLLM read."""
    c = config
    out: dict[str, Any] = {
        "architectures": [FAMILIES[c.family]],
        "model_type": c.family,
        "vocab_size": c.vocab,
        "hidden_size": c.width,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.mlp_width,
        "max_position_embeddings": c.context,
        "rms_norm_eps": c.norm_eps,
        "tie_word_embeddings": c.tied_embeddings,
        "hidden_act": "silu",
        "torch_dtype": dtype,
        "bos_token_id": c.bos,
        "eos_token_id": c.eos[0] if len(c.eos) == 1 else list(c.eos) or None,
        "pad_token_id": c.pad,
        "rope_theta": c.rope.theta,
    }
    if c.rope.kind != "default":
        out["rope_scaling"] = {"rope_type": c.rope.kind, **c.rope.settings}
    if c.family in ("llama", "qwen3"):
        out["attention_bias"] = c.qkv_bias
    if c.family == "llama":
        out["mlp_bias"] = c.mlp_bias
    window = next((w for w in c.windows if w is not None), None)
    if c.family == "mistral":
        out["sliding_window"] = window
    elif window is not None or c.gemma:
        out["sliding_window"] = window
        out["layer_types"] = ["full_attention" if w is None else "sliding_attention" for w in c.windows]
        if not c.gemma:
            out |= {"use_sliding_window": True, "max_window_layers": c.windows.index(window)}
    if c.gemma and c.local_rope is not None:
        del out["hidden_act"]
        out |= {"hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": c.local_rope.theta}
        scalar = round(c.scale**-2, 6)
        out["query_pre_attn_scalar"] = int(scalar) if scalar.is_integer() else scalar  # transformers refuses 24.0
    if isinstance(c.vision, QwenVisionConfig):
        return qwen_vision_to_hf(c.vision, out, c.rope.sections)
    return out if c.vision is None else vision_to_hf(c.vision, out)
