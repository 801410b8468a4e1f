"""Several LoRA adapters (Hu et al. 2021) in one batch: each token uses its own adapter, or none.

The network is shared: scale B A x is added to a layer's output for the tokens of an adapter.

Shapes: T tokens of a step, t those of one adapter; A is [rank, inputs], B [outputs, rank].
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
from ponder.nets.tensor_parallel import DecoderShard

LoRAPairs = dict[str, tuple[Tensor, Tensor]]  # A and scale times B, by the layer's name


class Adapters:
    """The adapters of one decoder, by name.

    `paused` is the engine's: no step runs inside it. `changed` is called when a name may refer to another adapter.
    """

    def __init__(
        self, net: Decoder, paused: Callable[[], AbstractContextManager[None]], changed: Callable[[], None]
    ) -> None:
        self.net, self._paused, self._changed = net, paused, changed
        self._loaded: dict[str, LoRAPairs] = {}  # in float32, as stored
        self._on_device: dict[str, LoRAPairs] = {}  # on the network's device, in its dtype
        self._layers: dict[str, nn.Module] = {}
        self._use_counts: Counter[str] = Counter()
        self._lock = threading.RLock()  # the garbage collector may end an abandoned call in any thread

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._loaded))

    def __contains__(self, name: object) -> bool:
        return name in self._loaded

    def add(self, name: str, folder: Path | str) -> None:
        """Load an adapter from a folder that `nets.lora` or peft saved."""
        if not name:
            raise UsageError("an adapter needs a name; the model without any has the empty one")
        if isinstance(self.net, DecoderShard):
            raise UsageError("a model that is split over GPUs takes no adapters: merge it, or leave out the splitting")
        if lora.has_adapter(self.net):
            raise UsageError("the model is trained with an adapter of its own: load it again to sample with others")
        settings, stored = lora.read_adapter(self.net, folder)
        owners = {layer.rpartition(".lora_")[0] for layer in stored}
        pairs = {}
        for owner in sorted(owners):
            a, b = (stored[f"{owner}.lora_{kind}.weight"].float() for kind in "AB")
            pairs[owner] = a, b * (settings.alpha / settings.rank)
        with self._lock:
            if name in self._loaded:
                raise UsageError(f"an adapter {name!r} is loaded already: remove it first, or choose another name")
            self._layers |= {owner: self.net.get_submodule(owner) for owner in owners}
            self._loaded[name] = pairs

    def remove(self, name: str) -> None:
        """Remove an adapter and the cache entries that were computed with it."""
        with self._paused(), self._lock:
            self._require(name)
            if self._use_counts[name]:
                raise UsageError(f"the adapter {name!r} is in use: wait for the requests that use it")
            del self._loaded[name]
            self._on_device.pop(name, None)
        self._changed()

    @contextmanager
    def in_use(self, name: str) -> Iterator[None]:
        """Inside this context the adapter cannot be removed. The empty name is the model without adapters."""
        with self._lock:
            self._require(name)
            self._use_counts[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._use_counts[name] -= 1

    def load_to_device(self, names: Iterable[str]) -> None:
        """Load adapters before requests that use them join the batch: an error here fails only those requests."""
        for name in names:
            if name:
                self.device_pairs(name)

    @contextmanager
    def apply(self, names: Sequence[str], sizes: Sequence[int]) -> Iterator[None]:
        """Apply adapters in a step over runs of tokens: `sizes[i]` tokens use the adapter `names[i]`."""
        updates: dict[str, list[tuple[Tensor | None, Tensor, Tensor]]] = {}
        for name in sorted({*names} - {""}):
            index = self._token_index(name, names, sizes)
            for layer, (a, b) in self.device_pairs(name).items():
                updates.setdefault(layer, []).append((index, a, b))
        with override_forward({self._layers[layer]: _add_lora(pairs) for layer, pairs in updates.items()}):
            yield

    def _token_index(self, name: str, names: Sequence[str], sizes: Sequence[int]) -> Tensor | None:
        """Indices of the tokens that use this adapter; None: all."""
        uses = np.repeat([n == name for n in names], sizes)
        return None if uses.all() else torch.from_numpy(np.flatnonzero(uses)).to(self.net.device)

    def device_pairs(self, name: str) -> LoRAPairs:
        """A and scale times B of each layer, on the network's device and in its dtype."""
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
    """The adapter whose tree a node belongs to."""
    root = node
    while root.parent is not None:
        root = root.parent
    return next(name for name, other in node.tree.roots.items() if other is root)


def _add_lora(updates: Sequence[tuple[Tensor | None, Tensor, Tensor]]) -> Callable[[Forward], Forward]:
    """A forward that adds each adapter's update to a layer's output: token indices (None: all), A, scale times B."""

    def override(plain: Forward) -> Forward:
        def forward(x_TI: Tensor) -> Tensor:
            out_TO = plain(x_TI)
            for index_t, a, b in updates:
                if index_t is None:
                    out_TO = out_TO + x_TI @ a.T @ b.T
                else:
                    out_TO.index_add_(0, index_t, x_TI[index_t] @ a.T @ b.T)
            return out_TO

        return forward

    return override
