"""Low-rank adapters (LoRA, Hu et al. 2021): W + alpha / rank B A, of which only A and B are trained. Uses peft.

The layers are replaced inside the decoder, so sampler and learner run as before. A decoder with adapters has other
parameter names: `merged_weights` gives its weights under the plain names. B starts at zero, so the model with disabled
adapters is the model that training started from: the reference, at no cost. The weights under the adapters may be
quantised (QLoRA, `quantized_linear.py`); then the model that training starts from is the quantised one.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor, nn

from ponder import staging
from ponder.errors import MissingExtra, ModelError, UnknownName, UsageError
from ponder.nets import fp8_linear, model_files
from ponder.nets.config import parse_int
from ponder.nets.decoder import Decoder
from ponder.nets.model_files import TensorEntry
from ponder.nets.nonfinite_tensors import all_finite
from ponder.nets.quantized_linear import QuantizedLinear
from ponder.runs import manifest

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 1 << 14
PEFT_PREFIX = "base_model.model.model."  # before the parameter names in peft's files
MAX_ALPHA = 1e6
LoraBase = Literal["full", "int8", "nf4"]

# Settings of an adapter file that say nothing about its function, or are read here; all others must be empty.
KNOWN_SETTINGS = {
    "auto_mapping", "base_model_name_or_path", "bias", "exclude_modules", "inference_mode", "init_lora_weights",
    "lora_alpha", "lora_dropout", "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "revision",
    "runtime_config", "target_modules", "task_type", "use_rslora",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoRA:
    """Settings of an adapter. No dropout: training must compute the log-probabilities of sampling."""

    rank: Annotated[int, "rank of the two factors"] = 16
    alpha: Annotated[float, "the update is scaled by alpha / rank"] = 32.0
    targets: Annotated[tuple[str, ...], "projections that get an adapter"] = LORA_TARGETS
    base: Annotated[LoraBase, "how the frozen weights under an adapter are stored"] = "full"

    def __post_init__(self) -> None:
        if self.rank < 1 or not 0 < self.alpha <= MAX_ALPHA:
            given = f"LoRA has rank {self.rank} and alpha {self.alpha}"
            raise UsageError(f"{given}; both must be positive, and alpha at most {MAX_ALPHA:g}")
        if self.base not in get_args(LoraBase):
            raise UnknownName("base of LoRA", str(self.base), get_args(LoraBase))
        if not self.targets:
            raise UsageError(f"LoRA has no targets; choose of {', '.join(LORA_TARGETS)}")
        for name in self.targets:  # not the head or embedding: their weight is used directly, without an adapter
            if name not in LORA_TARGETS:
                raise UnknownName("layer for LoRA", name, LORA_TARGETS)


def attach(net: Decoder, lora: LoRA, seed: int) -> None:
    """Attach adapters to the decoder; only they are trained then. Its outputs do not change: A is random, B is zero.

    They compute in the decoder's own type: float32 ones would turn its activations into float32 and multiply there.
    Small updates survive in the optimiser's float32 masters, as those of any weight do.
    """
    if has_adapter(net):
        raise UsageError("the model has adapters already; load it again to attach others")
    peft = _import_peft()
    with torch.random.fork_rng(devices=[]):  # peft initialises the adapters, which is replaced here
        not_tower = {} if net.config.vision is None else {"exclude_modules": _TOWER}
        peft.inject_adapter_in_model(_peft_config(peft, lora, **not_tower), net)
    draw = torch.Generator().manual_seed(seed)
    for layer in _lora_layers(net).values():
        a, b = _a_and_b(layer)
        bound = 1 / math.sqrt(a.shape[1])  # peft's: Kaiming's uniform with a = sqrt(5)
        a.data.copy_(torch.empty(a.shape).uniform_(-bound, bound, generator=draw))
        b.data.zero_()
        if lora.base != "full":
            layer.base_layer = QuantizedLinear(layer.base_layer, lora.base)
        peft_class: Any = type(layer)
        layer.__class__ = _with_short_forward(peft_class)
    _mark_attached(net, lora, zero=True)


@cache
def _with_short_forward(layer_class: Any) -> Any:
    """peft's layer with the one branch of its forward that is used here. Its own is too much for torch's compiler."""

    def forward(self: Any, x: Tensor, fp8: bool = False) -> Tensor:
        out: Tensor = fp8_linear.linear(self.base_layer, x, fp8)
        if self._disable_adapters:
            return out
        return out + self.lora_B["default"](self.lora_A["default"](x)) * self.scaling["default"]

    return type(layer_class.__name__, (layer_class,), {"forward": forward})


def can_compile(net: nn.Module) -> bool:
    """Whether torch compiles the decoder's blocks: not where they dequantise the weights under an adapter."""
    settings: LoRA | None = getattr(net, "_lora", None)
    return settings is None or settings.base == "full"


def has_adapter(net: nn.Module) -> bool:
    return getattr(net, "_lora", None) is not None


def trains_only_adapter(net: nn.Module) -> bool:
    """Whether nothing learns but the adapters and a value or reward model's head."""
    free = [name for name, p in net.named_parameters() if p.requires_grad]
    return has_adapter(net) and all(".lora_" in name or name.startswith("score.") for name in free)


def starts_at_zero(net: nn.Module) -> bool:
    """Whether the decoder without its adapters is the model that training starts from."""
    return has_adapter(net) and bool(getattr(net, "_lora_zero", False))


@contextmanager
def disable_adapter(net: Decoder) -> Iterator[None]:
    """Disable the adapters: the model that training started from."""
    _require_adapter(net)
    if not starts_at_zero(net):
        raise UsageError(
            "this adapter was trained before, so the model without it is not the one that training begins with: "
            "keep a frozen copy of the model as the reference"
        )
    layers = [layer for layer in _lora_layers(net).values() if not layer.disable_adapters]
    try:
        for layer in layers:
            layer._disable_adapters = True  # peft's own method would freeze the factors, and blocks be compiled anew
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def active_parameter_count(module: nn.Module) -> int:
    """Parameters of the adapters in a module that are not disabled."""
    layers = (layer for layer in _lora_layers(module).values() if not layer.disable_adapters)
    return sum(p.numel() for layer in layers for p in _a_and_b(layer))


def base_layer(layer: nn.Module) -> Any:
    """The linear layer under an adapter; without one, the layer itself."""
    return getattr(layer, "base_layer", layer)


def factors(net: Decoder) -> tuple[dict[str, tuple[Tensor, Tensor]], float]:
    """A and B of each layer, by its name in a plain decoder, and the scale of their product."""
    settings = _settings(net)
    return {name: _a_and_b(layer) for name, layer in _lora_layers(net).items()}, settings.alpha / settings.rank


def rank(net: Decoder) -> int:
    return _settings(net).rank


def _settings(net: nn.Module) -> LoRA:
    settings: LoRA | None = getattr(net, "_lora", None)
    if settings is None:
        raise UsageError("the model has no adapters; attach or load some first")
    return settings


@torch.no_grad()
def merged_weights(net: Decoder) -> dict[str, Tensor]:
    """The weights with adapters merged, under a plain decoder's names and in their order. The decoder does not change;
    weights without an adapter are its own, not copies.
    """
    layers = _lora_layers(net)
    out: dict[str, Tensor] = {}
    for name, p in net.named_parameters():
        owner, *inside = re.split(r"\.(base_layer|lora_[AB])\.", name)
        if not inside:
            out[name] = p.detach()
            continue
        if f"{owner}.weight" not in out:  # first, though a quantised one is no parameter
            out[f"{owner}.weight"] = _merged_weight(layers[owner])
        part, leaf = inside
        if part == "base_layer" and leaf != "weight":
            out[f"{owner}.{leaf}"] = p.detach()
    return out


def _merged_weight(layer: Any) -> Tensor:
    return merge(layer.base_layer.weight, *_a_and_b(layer), layer.scaling["default"])


def merge(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W + scale B A, computed in float32 and rounded once to the weight's dtype."""
    return (weight.float() + b.float() @ a.float() * scale).to(weight.dtype)


@torch.no_grad()
def first_nonfinite_merge(net: Decoder) -> str | None:
    """The first adapted weight that would not be finite when merged. One merged weight at a time is in memory."""
    layers = _lora_layers(net).items()
    return next((f"{name}.weight" for name, layer in layers if not all_finite(_merged_weight(layer))), None)


def save(net: Decoder, lora: LoRA, folder: Path | str, base: str) -> None:
    """Save an adapter that peft and vLLM load onto the model `base`, atomically."""
    write = snapshot(net, lora, base)
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder} is not an empty folder; name another one to save the adapter in")
    with staging.staging_folder(folder) as work:
        write(work / "new")  # made with the user's permissions, where the work folder is private
        os.replace(work / "new", folder)


def snapshot(net: Decoder, lora: LoRA, base: str) -> Callable[[Path], None]:
    """A function that writes the adapter as it is now, whenever it is called."""
    from safetensors.torch import save_file

    _require_adapter(net)
    if lora != getattr(net, "_lora", None):
        raise UsageError(f"the model's adapters are {getattr(net, '_lora', None)}, not {lora}: save those")
    config = _peft_config(_import_peft(), lora, base_model_name_or_path=base, inference_mode=True)
    tensors = {
        PEFT_PREFIX + name: p.detach().to("cpu", copy=True).contiguous() for name, p in _adapter_tensors(net).items()
    }

    def write(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(folder)
        save_file(tensors, folder / ADAPTER_WEIGHTS_FILE, {"format": "pt"})
        shutil.copymode(folder / ADAPTER_CONFIG_FILE, folder / ADAPTER_WEIGHTS_FILE)  # safetensors makes private files

    return write


def load(net: Decoder, folder: Path | str) -> LoRA:
    """Attach an adapter that `save` or peft has written, in the decoder's dtype."""
    lora, stored = read_adapter(net, folder)
    attach(net, lora, seed=0)
    for name, p in _adapter_tensors(net).items():
        p.data.copy_(stored[name])
    _mark_attached(net, lora, zero=all(not t.any() for name, t in stored.items() if ".lora_B." in name))
    return lora


def read_adapter(net: Decoder, folder: Path | str) -> tuple[LoRA, dict[str, Tensor]]:
    """The settings of an adapter that fits the decoder, and A and B of every layer, by name without peft's prefix."""
    return _read_fitting(Path(folder), {n: (m.out_features, m.in_features) for n, m in _linear_layers(net)})


def read_factors(
    folder: Path, matrices: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, tuple[Tensor, Tensor]], float]:
    """A and B of each layer of an adapter that fits these matrices (their shapes, by the layer's name), and the scale
    of B A."""
    layers = {name: shape for name, shape in matrices.items() if name.rpartition(".")[2] in LORA_TARGETS}
    lora, stored = _read_fitting(folder, layers)
    owners = dict.fromkeys(name.rpartition(".lora_")[0] for name in stored)
    pairs = {o: (stored[f"{o}.lora_A.weight"], stored[f"{o}.lora_B.weight"]) for o in owners}
    return pairs, lora.alpha / lora.rank


def _linear_layers(net: Decoder) -> list[tuple[str, nn.Linear]]:
    return [(name, layer) for name, layer in net.named_modules() if isinstance(layer, nn.Linear)]


def _read_fitting(folder: Path, layers: Mapping[str, tuple[int, ...]]) -> tuple[LoRA, dict[str, Tensor]]:
    raw, stored = _read_files(folder)
    targets = tuple(t for t in LORA_TARGETS if any(f".{t}.lora_A." in name for name in stored))
    rank, alpha = _rank_and_alpha(raw, folder)
    if not targets:
        raise ModelError(f"{folder} has no adapter for any layer of a decoder ({', '.join(LORA_TARGETS)})")
    lora = LoRA(rank, alpha, targets)
    _check_shapes(layers, lora, {name: entry.shape for name, entry in stored.items()}, folder)
    return lora, _load_tensors(stored, folder)


def _rank_and_alpha(raw: Mapping[str, Any], folder: Path) -> tuple[int, float]:
    """The rank, and the alpha that is divided by the rank."""
    try:
        rank, alpha = parse_int("r", raw["r"]), float(raw["lora_alpha"])
    except (LookupError, TypeError, ValueError, ArithmeticError, ModelError) as reason:
        raise ModelError(f"the adapter in {folder} is damaged ({reason!s:.200}); download it again") from None
    if not 1 <= rank <= MAX_RANK or not 0 < alpha < math.inf:
        raise ModelError(f"the adapter in {folder} has rank {rank:,} and alpha {alpha}, which no adapter has")
    return rank, alpha * (math.sqrt(rank) if raw.get("use_rslora") else 1.0)  # alpha / sqrt(rank) there


def _load_tensors(stored: Mapping[str, TensorEntry], folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(folder / ADAPTER_WEIGHTS_FILE)
    except (SafetensorError, OSError) as reason:
        raise ModelError(f"the adapter in {folder} is damaged ({reason}); download it again") from None
    out = {name: tensors[entry.name] for name, entry in stored.items()}
    for name, tensor in out.items():
        if not all_finite(tensor):
            raise ModelError(f"the adapter in {folder} has weights that are not finite ({name}); download it again")
    return out


def _read_files(folder: Path) -> tuple[Mapping[str, Any], dict[str, TensorEntry]]:
    """The adapter's configuration, and the tensors that its file declares, not their values."""
    for file in (ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE):
        if not model_files.path_inside(folder, file).is_file():
            raise ModelError(f"{folder} has no {file}, so it is no adapter that peft saved")
    manifest.verify(folder)
    try:
        raw = model_files.read_json(folder / ADAPTER_CONFIG_FILE)
        stored = model_files.read_safetensors_header(folder / ADAPTER_WEIGHTS_FILE)
    except ModelError as reason:
        raise ModelError(f"the adapter in {folder} is damaged: {reason}") from None
    if raw.get("peft_type") != "LORA":
        raise ModelError(f"{folder} holds an adapter of type {raw.get('peft_type')!r:.60}; only LoRA can be loaded")
    if wrong := [entry for entry in stored if entry.dtype not in model_files.FLOAT_DTYPE_BYTES]:
        raise ModelError(
            f"{wrong[0].name:.200} in {folder / ADAPTER_WEIGHTS_FILE} is stored as {wrong[0].dtype}, not as floats"
        )
    strange = [f"{key}={value!r:.60}" for key, value in raw.items() if value and key not in KNOWN_SETTINGS]
    if (start := raw.get("init_lora_weights", True)) not in (True, False, "gaussian"):  # some change the base, too
        strange.append(f"init_lora_weights={start!r:.60}")
    if strange:
        raise ModelError(
            f"the adapter in {folder} is not plain LoRA ({strange[0]}): merge it into its model with peft's "
            "merge_and_unload, and give that model"
        )
    return raw, {entry.name.removeprefix(PEFT_PREFIX): entry for entry in stored}


def _check_shapes(
    layers: Mapping[str, tuple[int, ...]], lora: LoRA, stored: Mapping[str, tuple[int, ...]], folder: Path
) -> None:
    """`layers`: the shape of each linear layer's weight, by the layer's name."""
    expected_shapes: dict[str, tuple[int, ...]] = {}
    for name, (out_features, in_features) in layers.items():
        if name.rpartition(".")[2] in lora.targets:
            expected_shapes[f"{name}.lora_A.weight"] = (lora.rank, in_features)
            expected_shapes[f"{name}.lora_B.weight"] = (out_features, lora.rank)
    for name in expected_shapes.keys() | stored.keys():
        shape = stored.get(name, "nothing")
        if shape != expected_shapes.get(name):
            raise ModelError(
                f"the adapter in {folder} does not fit this model: {name} is {shape} there, and "
                f"{expected_shapes.get(name, 'nothing')} here; load the model that it was trained on"
            )


def _import_peft() -> Any:
    try:
        import peft
    except ImportError:
        raise MissingExtra("LoRA", "peft", "hf") from None
    return peft


_TOWER = r"(vision_model|visual)\..*"  # its projections have the decoder's names; adapters are for the decoder


def _peft_config(peft: Any, lora: LoRA, **more: Any) -> Any:
    alpha = int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha  # some readers take no 32.0
    return peft.LoraConfig(
        r=lora.rank, lora_alpha=alpha, target_modules=list(lora.targets), lora_dropout=0.0, bias="none",
        task_type="CAUSAL_LM", **more,
    )  # fmt: skip


def _lora_layers(net: nn.Module) -> dict[str, Any]:
    return {name: m for name, m in net.named_modules() if hasattr(m, "lora_A")}


def _a_and_b(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.lora_A["default"].weight, layer.lora_B["default"].weight


def _adapter_tensors(net: nn.Module) -> dict[str, Tensor]:
    """A and B of every layer, by name without peft's prefix."""
    pairs = {name: _a_and_b(layer) for name, layer in _lora_layers(net).items()}
    return {f"{name}.lora_{kind}.weight": p for name, pair in pairs.items() for kind, p in zip("AB", pair, strict=True)}


def _require_adapter(net: nn.Module) -> None:
    _settings(net)


def _mark_attached(net: Decoder, lora: LoRA, zero: bool) -> None:
    """Stored on the decoder, so that copies have it too."""
    object.__setattr__(net, "_lora", lora)
    object.__setattr__(net, "_lora_zero", zero)
