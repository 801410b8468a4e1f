"""New weights for samplers in other processes: begin a version, put its tensors, commit it.

What a commit returns, a `WeightManifest`, is plain JSON: which tensors there are, where they lie, and their checksums.
A reader checks all of them before it changes anything, so it has a version whole or not at all.
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
from ponder.nets.tensor_parallel import DecoderShard
from ponder.nets.weight_transports import BufferReader, TensorPlace, WeightTransport

_ALIGNMENT = 256  # bytes
_HASHING_THREADS = 16
_HASHED_CHUNK_BYTES = 16 << 20
_BLOCK_WORDS = 1 << 20
_BLOCKS_AT_ONCE = 64  # 256 MB
_BLOCK_SUM = "sum:"  # what the sum of a block begins with


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """A committed version."""

    version: int
    transport: str
    source: Mapping[str, Any]
    places: tuple[TensorPlace, ...]
    checksums: tuple[str, ...]  # SHA-256 of each place; of memory on a GPU the sums of the words of each block

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
        self._views: list[Tensor] = []  # of the places in the buffer

    def begin(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """A new version, of tensors with these names, types and shapes. From now on the one before cannot be read."""
        if self.latest is not None and version <= self.latest.version:
            raise UsageError(f"version {version} cannot be published: version {self.latest.version} was before it")
        places, end = {}, 0
        for name, t in tensors.items():
            nbytes = t.numel() * t.element_size()
            places[name] = TensorPlace(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), end, nbytes)
            end += _aligned(nbytes)
        self._version, self._missing, self.latest = version, set(places), None
        buffer = self.transport.begin(max(end, _ALIGNMENT))
        if buffer is not self._buffer or places != self._places:  # else all is where it was
            self._buffer, self._places = buffer, places
            self._views = [place.view(buffer) for place in places.values()]

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
        sums = block_sums(self._buffer, places) if self._buffer.is_cuda else checksums(self._views)
        self.latest = WeightManifest(self._version, self.transport.name, source, places, tuple(sums))
        return self.latest

    @torch.no_grad()
    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> WeightManifest:
        """A whole version at once."""
        self.begin(version, tensors)
        torch._foreach_copy_(self._views, list(tensors.values()))
        self._missing.clear()
        return self.commit()

    def close(self) -> None:
        self.transport.close()


class WeightReader:
    """Reads what a publisher in another process committed. `device`: where a broadcast is received."""

    def __init__(self, device: torch.device = torch.device("cpu")) -> None:
        self._reader = BufferReader(device)

    def reserve(self, net: nn.Module) -> None:
        """Have the memory for a broadcast of these weights now: later there may be none."""
        sizes = [_aligned(p.numel() * p.element_size()) for p in net.parameters()]
        self._reader.receiver.reserve(max(sum(sizes), _ALIGNMENT))

    def read(self, manifest: WeightManifest) -> dict[str, Tensor]:
        """The tensors of a version, all of them checked. Copy them before the next version is begun."""
        tensors = self._reader.read(manifest.transport, manifest.source, manifest.places)
        in_blocks = manifest.checksums[:1] != () and manifest.checksums[0].startswith(_BLOCK_SUM)
        sums = block_sums(self._reader.buffer, manifest.places) if in_blocks else checksums(list(tensors.values()))
        for i, (found, wanted) in enumerate(zip(sums, manifest.checksums, strict=True)):
            if found != wanted:
                name = block_name(i, manifest.places) if in_blocks else manifest.places[i].name
                raise ModelError(f"version {manifest.version} is damaged: {name} has another checksum")
        return tensors

    @torch.no_grad()
    def load_into(self, net: nn.Module, manifest: WeightManifest) -> None:
        """Write a version over the weights of a network, or its part over those of a shard. Where something does not
        fit, nothing is changed."""
        tensors, targets = self.read(manifest), dict(net.named_parameters())
        if isinstance(net, DecoderShard):
            tensors = net.own_tensors(tensors)
        if tensors.keys() != targets.keys():
            other = min(tensors.keys() ^ targets.keys())
            raise ModelError(f"version {manifest.version} is of another network: {other} is on one side only")
        for name, t in tensors.items():
            if t.shape != targets[name].shape:
                raise ModelError(f"{name} was published with shape {tuple(t.shape)}, not {tuple(targets[name].shape)}")
        torch._foreach_copy_([targets[name] for name in tensors], list(tensors.values()))
        for device in {p.device for p in targets.values() if p.device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()  # the publisher may now begin the next version


def checksums(tensors: Sequence[Tensor]) -> list[str]:
    """SHA-256 of each tensor's bytes, of a long one that of the hashes of its chunks, which several threads compute."""
    chunks = [_bytes(t).split(_HASHED_CHUNK_BYTES) or (_bytes(t),) for t in tensors]
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:  # hashing does not hold Python's lock
        digests = pool.map(lambda chunk: hashlib.sha256(chunk.numpy().data), [c for part in chunks for c in part])
        return [_joined([next(digests) for _ in part]) for part in chunks]


def block_sums(buffer: Tensor, places: Sequence[TensorPlace]) -> list[str]:
    """Sums of the words of a buffer, block by block, computed where it lies: a few kernels for all tensors together."""
    words = buffer[: _end(places)].view(torch.int32)
    whole = len(words) // _BLOCK_WORDS * _BLOCK_WORDS
    blocks = words[:whole].view(-1, _BLOCK_WORDS).split(_BLOCKS_AT_ONCE)  # torch copies them to int64 first
    sums = [part.sum(1, dtype=torch.int64) for part in blocks]
    if whole < len(words):
        sums.append(words[whole:].sum(dtype=torch.int64, dim=0, keepdim=True))
    return [f"{_BLOCK_SUM}{value}" for value in torch.cat(sums).tolist()]


def block_name(block: int, places: Sequence[TensorPlace]) -> str:
    """The first and the last tensor of a block."""
    begin, end = block * 4 * _BLOCK_WORDS, (block + 1) * 4 * _BLOCK_WORDS
    within = [p.name for p in places if p.offset < end and p.offset + _aligned(p.nbytes) > begin]
    return within[0] if len(within) == 1 else f"something from {within[0]} to {within[-1]}"


def _end(places: Sequence[TensorPlace]) -> int:
    return max(_ALIGNMENT, max((p.offset + _aligned(p.nbytes) for p in places), default=0))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _joined(hashes: Sequence[Any]) -> str:
    if len(hashes) == 1:
        return str(hashes[0].hexdigest())
    return hashlib.sha256(b"".join(h.digest() for h in hashes)).hexdigest()


def _bytes(t: Tensor) -> Tensor:
    return t.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
