"""Several LoRA adapters (Hu et al. 2021) in one batch: each token goes through its own, beside others and beside none.

The network is the same for all: to the output of a layer, scale B A x is added for the tokens of an adapter.

Shapes: T tokens of a pass, t those of one adapter; A is [rank, inputs], B [outputs, rank].
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ponder.engine.layer_override import Forward, override_forward
from ponder.engine.radix_tree import RadixNode
from ponder.errors import UnknownName, UsageError
from ponder.nets import lora
from ponder.nets.decoder import Decoder

LoRAPairs = dict[str, tuple[Tensor, Tensor]]  # A and scale times B, by the layer's name


class Adapters:
    """Those of one decoder, by name. `paused` is the engine's: no pass runs in it; `changed` is called where a name may
    come to mean another adapter."""

    def __init__(
        self, net: Decoder, paused: Callable[[], AbstractContextManager[None]], changed: Callable[[], None]
    ) -> None:
        self.net, self._paused, self._changed = net, paused, changed
        self._loaded: dict[str, LoRAPairs] = {}  # in float32, as they were read
        self._on_device: dict[str, LoRAPairs] = {}  # where the network is, in its type
        self._layers: dict[str, nn.Module] = {}
        self._use_counts: Counter[str] = Counter()
        self._lock = threading.RLock()  # a call that is given up may be ended by the garbage collector, anywhere

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._loaded))

    def __contains__(self, name: object) -> bool:
        return name in self._loaded

    def add(self, name: str, folder: Path | str) -> None:
        """An adapter from a folder that was saved by `nets.lora` or by peft."""
        if not name:
            raise UsageError("an adapter needs a name; the model without any has the empty one")
        if lora.has_adapter(self.net):
            raise UsageError("the model is trained with an adapter of its own: load it again to sample with others")
        made, stored = lora.read_adapter(self.net, folder)
        owners = {layer.rpartition(".lora_")[0] for layer in stored}
        pairs = {}
        for owner in sorted(owners):
            a, b = (stored[f"{owner}.lora_{kind}.weight"].float() for kind in "AB")
            pairs[owner] = a, b * (made.alpha / made.rank)
        with self._lock:
            if name in self._loaded:
                raise UsageError(f"there is an adapter {name!r} already: remove it first, or name this one otherwise")
            self._layers |= {owner: self.net.get_submodule(owner) for owner in owners}
            self._loaded[name] = pairs

    def remove(self, name: str) -> None:
        """Forget an adapter, and what was computed with it."""
        with self._paused(), self._lock:
            self._require(name)
            if self._use_counts[name]:
                raise UsageError(f"the adapter {name!r} is in use: wait for the texts that are written with it")
            del self._loaded[name]
            self._on_device.pop(name, None)
        self._changed()

    @contextmanager
    def in_use(self, name: str) -> Iterator[None]:
        """In here the adapter stays. The empty name is the model alone."""
        with self._lock:
            self._require(name)
            self._use_counts[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._use_counts[name] -= 1

    def load_to_device(self, names: Iterable[str]) -> None:
        """Before texts with these adapters join others: what fails here fails for them alone."""
        for name in names:
            if name:
                self._device_pairs(name)

    @contextmanager
    def apply(self, names: Sequence[str], sizes: Sequence[int]) -> Iterator[None]:
        """For a pass over runs of so many tokens, each run with the adapter of that name."""
        parts: dict[str, list[tuple[Tensor | None, Tensor, Tensor]]] = {}
        for name in sorted({*names} - {""}):
            index = self._token_index(name, names, sizes)
            for layer, (a, b) in self._device_pairs(name).items():
                parts.setdefault(layer, []).append((index, a, b))
        with override_forward({self._layers[layer]: _add_lora(its) for layer, its in parts.items()}):
            yield

    def _token_index(self, name: str, names: Sequence[str], sizes: Sequence[int]) -> Tensor | None:
        """Which tokens of the pass are this adapter's; None: all."""
        own = np.repeat([n == name for n in names], sizes)
        return None if own.all() else torch.from_numpy(np.flatnonzero(own)).to(self.net.device)

    def _device_pairs(self, name: str) -> LoRAPairs:
        device, dtype = self.net.device, self.net.dtype
        pairs = self._on_device.get(name)
        if pairs is None or any((t.device, t.dtype) != (device, dtype) for t in next(iter(pairs.values()))):
            pairs = {layer: (a.to(device, dtype), b.to(device, dtype)) for layer, (a, b) in self._loaded[name].items()}
            self._on_device[name] = pairs
        return pairs

    def _require(self, name: str) -> None:
        if name and name not in self._loaded:
            raise UnknownName("adapter", name, self._loaded, "Add it with engine.adapters.add(name, folder).")


def node_adapter(node: RadixNode) -> str:
    """Under which adapter's root a run of the tree stands."""
    root = node
    while root.parent is not None:
        root = root.parent
    return next(name for name, other in node.tree.roots.items() if other is root)


def _add_lora(parts: Sequence[tuple[Tensor | None, Tensor, Tensor]]) -> Callable[[Forward], Forward]:
    """To a layer's output, what each adapter adds: which tokens (None: all), A, and scale times B."""

    def made(plain: Forward) -> Forward:
        def forward(x_TI: Tensor) -> Tensor:
            out_TO = plain(x_TI)
            for index_t, a, b in parts:
                if index_t is None:
                    out_TO = out_TO + x_TI @ a.T @ b.T
                else:
                    out_TO.index_add_(0, index_t, x_TI[index_t] @ a.T @ b.T)
            return out_TO

        return forward

    return made
