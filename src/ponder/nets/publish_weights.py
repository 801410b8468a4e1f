"""New weights for samplers in other processes: begin a version, put its tensors, commit it.

What a commit returns, a `WeightManifest`, is plain JSON: which tensors there are, where they lie, and the checksum of
each. A reader checks all of them before it changes anything, so it has a version whole or not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ponder.errors import ModelError, UsageError
from ponder.nets.weight_transports import BufferReader, TensorPlace, WeightTransport

_ALIGNMENT = 256  # bytes
_HASHING_THREADS = 16
_HASHED_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """A committed version."""

    version: int
    transport: str
    source: Mapping[str, Any]
    places: tuple[TensorPlace, ...]
    checksums: tuple[str, ...]  # of each place: SHA-256, or of memory on a GPU the sum of its words

    def to_json(self) -> dict[str, Any]:
        rows = [[p.name, p.dtype, list(p.shape), p.offset, p.nbytes] for p in self.places]
        return {
            "version": self.version,
            "transport": self.transport,
            "source": dict(self.source),
            "tensors": rows,
            "checksums": list(self.checksums),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WeightManifest:
        places = tuple(TensorPlace(n, dtype, tuple(shape), at, size) for n, dtype, shape, at, size in data["tensors"])
        return cls(data["version"], data["transport"], data["source"], places, tuple(data["checksums"]))


class WeightPublisher:
    """Publishes one version after the other. Versions only grow: a reader can tell which of two is newer."""

    def __init__(self, transport: WeightTransport) -> None:
        self.transport = transport
        self.latest: WeightManifest | None = None
        self._version = -1
        self._places: dict[str, TensorPlace] = {}
        self._missing: set[str] = set()
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def begin(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """A new version, of tensors with these names, types and shapes. From now on the one before cannot be read."""
        if self.latest is not None and version <= self.latest.version:
            raise UsageError(f"version {version} cannot be published: version {self.latest.version} was before it")
        self._places, end = {}, 0
        for name, t in tensors.items():
            nbytes = t.numel() * t.element_size()
            self._places[name] = TensorPlace(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), end, nbytes)
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._version, self._missing, self.latest = version, set(self._places), None
        self._buffer = self.transport.begin(max(end, _ALIGNMENT))

    @torch.no_grad()
    def put(self, name: str, tensor: Tensor) -> None:
        place = self._places.get(name)
        if place is None or tuple(tensor.shape) != place.shape or str(tensor.dtype) != f"torch.{place.dtype}":
            raise UsageError(f"{name} with shape {tuple(tensor.shape)} and {tensor.dtype} was not announced")
        place.view(self._buffer).copy_(tensor)
        self._missing.discard(name)

    def commit(self) -> WeightManifest:
        """From now on the version can be read."""
        if self._missing or not self._places:
            raise UsageError(f"version {self._version} is not whole: {min(self._missing, default='all')} is missing")
        places = tuple(self._places.values())
        source = self.transport.commit(self._version, places)
        sums = checksums([place.view(self._buffer) for place in places])
        self.latest = WeightManifest(self._version, self.transport.name, source, places, tuple(sums))
        return self.latest

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> WeightManifest:
        """A whole version at once."""
        self.begin(version, tensors)
        for name, tensor in tensors.items():
            self.put(name, tensor)
        return self.commit()

    def close(self) -> None:
        self.transport.close()


class WeightReader:
    """Reads what a publisher in another process committed."""

    def __init__(self) -> None:
        self._reader = BufferReader()

    def read(self, manifest: WeightManifest) -> dict[str, Tensor]:
        """The tensors of a version, all of them checked. Copy them before the next version is begun."""
        tensors = self._reader.read(manifest.transport, manifest.source, manifest.places)
        sums = checksums([tensors[place.name] for place in manifest.places])
        for place, found, wanted in zip(manifest.places, sums, manifest.checksums, strict=True):
            if found != wanted:
                raise ModelError(f"version {manifest.version} is damaged: {place.name} has another checksum")
        return tensors

    @torch.no_grad()
    def load_into(self, net: nn.Module, manifest: WeightManifest) -> None:
        """Write a version over the weights of a network. Where something does not fit, nothing is changed."""
        tensors, targets = self.read(manifest), dict(net.named_parameters())
        if tensors.keys() != targets.keys():
            other = min(tensors.keys() ^ targets.keys())
            raise ModelError(f"version {manifest.version} is of another network: {other} is on one side only")
        for name, t in tensors.items():
            if t.shape != targets[name].shape:
                raise ModelError(f"{name} was published with shape {tuple(t.shape)}, not {tuple(targets[name].shape)}")
        for name, t in tensors.items():
            targets[name].copy_(t)
        for device in {p.device for p in targets.values() if p.device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()  # the publisher may now begin the next version


def checksums(tensors: Sequence[Tensor]) -> list[str]:
    """SHA-256 of each tensor's bytes on a CPU, of a long one that of the hashes of its chunks, which several threads
    compute; on a GPU the sum of its words, which is computed there."""
    if tensors and tensors[0].device.type == "cuda":
        sums = [_words(t).sum(dtype=torch.int64) for t in tensors]
        return [f"sum:{value}" for value in torch.stack(sums).tolist()]
    chunks = [_bytes(t).split(_HASHED_CHUNK_BYTES) or (_bytes(t),) for t in tensors]
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:  # hashing does not hold Python's lock
        digests = pool.map(lambda chunk: hashlib.sha256(chunk.numpy().data), [c for part in chunks for c in part])
        return [_joined([next(digests) for _ in part]) for part in chunks]


def _joined(hashes: Sequence[Any]) -> str:
    if len(hashes) == 1:
        return str(hashes[0].hexdigest())
    return hashlib.sha256(b"".join(h.digest() for h in hashes)).hexdigest()


def _bytes(t: Tensor) -> Tensor:
    return t.detach().contiguous().reshape(-1).view(torch.uint8)


def _words(t: Tensor) -> Tensor:
    flat = _bytes(t)
    return flat.view(torch.int32) if len(flat) % 4 == 0 and flat.data_ptr() % 4 == 0 else flat
