"""Reads the header of a GGUF file: its metadata and the location of each tensor, checked against the file's size.

A count, length or offset is accepted only if that many bytes follow: a file of a hundred bytes cannot make the reader
allocate a gigabyte.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TEXT_BYTES = 16 << 20  # of a string; the longest in use are chat templates
MAX_KEY_BYTES = (1 << 16) - 1  # of the specification
MAX_STRINGS = 1 << 22  # of all lists of strings; a vocabulary of 262,144 tokens has a million with its merges
MAX_TENSORS = 1 << 17
MAX_KEYS = 1 << 16
MAX_DIMENSIONS = 4  # of the specification
MAX_ALIGNMENT = 1 << 20
STRING, ARRAY = 8, 9
Order = Literal["<", ">"]  # of bytes
SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
NUMPY_DTYPES = {0: "f4", 1: "f2", 24: "i1", 25: "i2", 26: "i4", 27: "i8", 28: "f8"}  # tensor types that numpy knows


class MalformedGGUF(ValueError):
    """A damaged file; the message says what is wrong with it."""


@dataclass(frozen=True)
class GGUFTensor:
    """A tensor of the file; `data` is a memory map, read on use."""

    name: str
    tensor_type: Any  # of the gguf package
    shape: tuple[int, ...]  # the fastest dimension first
    data: NDArray[Any]


class ByteCursor:
    """Reads from an offset in the file, never past its end."""

    def __init__(self, data: NDArray[np.uint8], order: Order) -> None:
        self.data, self.order, self.offset = memoryview(data.data), order, 0
        self.items = 0

    def number(self, form: str) -> Any:
        form = self.order + form
        self.need(size := struct.calcsize(form))
        (value,) = struct.unpack_from(form, self.data, self.offset)
        self.offset += size
        return value

    def text(self, most: int = MAX_TEXT_BYTES) -> str:
        length = self.number("Q")
        if length > most:
            raise MalformedGGUF(f"a string of {length:,} bytes")
        self.need(length)
        self.offset += length
        return str(self.data[self.offset - length : self.offset], "utf-8")

    def value(self) -> Any:
        kind = self.number("I")
        if kind == STRING:
            return self.text()
        return self.array() if kind == ARRAY else self.number(_scalar_format(kind))

    def array(self) -> Any:
        kind, count = self.number("I"), self.number("Q")
        if kind == STRING:
            self.items += count
            self.need(8 * count)
            if self.items > MAX_STRINGS:
                raise MalformedGGUF(f"{self.items:,} strings in its lists")
            return [self.text() for _ in range(count)]
        if kind == ARRAY:
            raise MalformedGGUF("lists of lists, which no model has")
        item = np.dtype(_scalar_format(kind)).newbyteorder(self.order)
        self.need(item.itemsize * count)
        values = np.frombuffer(self.data, item, count, self.offset)
        self.offset += values.nbytes
        return values

    def need(self, count: int) -> None:
        if count > len(self.data) - self.offset:
            raise MalformedGGUF(
                f"it ends at byte {len(self.data):,}, where {count:,} more were to follow {self.offset:,}"
            )


def _scalar_format(kind: int) -> str:
    if kind not in SCALAR_FORMATS:
        raise MalformedGGUF(f"metadata of the unknown type {kind}")
    return SCALAR_FORMATS[kind]


def read_contents(path: Path, package: Any) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    """The metadata and the tensors of a file, by name. `package`: gguf, which knows the types of tensors."""
    data = np.memmap(path, np.uint8, "r")
    order: Order = ">" if bytes(data[4:6]) == b"\0\0" else "<"
    cursor = ByteCursor(data, order)
    cursor.offset = len(MAGIC)
    version, tensors, keys = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
    if version not in VERSIONS:
        raise MalformedGGUF(f"version {version} of the format, not 2 or 3")
    if tensors > MAX_TENSORS or keys > MAX_KEYS:
        raise MalformedGGUF(f"{tensors:,} tensors and {keys:,} keys")
    fields: dict[str, Any] = {}
    for _ in range(keys):
        key = cursor.text(MAX_KEY_BYTES)
        if key in fields:
            raise MalformedGGUF(f"the key {key!r:.80} appears in it twice")
        fields[key] = cursor.value()
    table = [_read_tensor_info(cursor, package) for _ in range(tensors)]
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise MalformedGGUF(f"an alignment of {alignment!r:.40}")
    return fields, _map_tensors(data, table, -(-cursor.offset // alignment) * alignment, order, package)


def _read_tensor_info(cursor: ByteCursor, package: Any) -> tuple[str, Any, tuple[int, ...], int]:
    """Name, type, shape and offset."""
    name, count = cursor.text(MAX_KEY_BYTES), cursor.number("I")
    if not 0 < count <= MAX_DIMENSIONS:
        raise MalformedGGUF(f"{name!r:.80} has {count:,} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(count))
    number, offset = cursor.number("I"), cursor.number("Q")
    try:
        kind = package.GGMLQuantizationType(number)
        block, _ = package.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise MalformedGGUF(f"{name!r:.80} is of the unknown type {number}") from None
    if min(shape) < 1 or shape[0] % block:
        raise MalformedGGUF(f"{name!r:.80} has the shape {shape}, which {kind.name} cannot have")
    return name, kind, shape, offset


def _map_tensors(
    data: NDArray[np.uint8], table: list[tuple[str, Any, tuple[int, ...], int]], start: int, order: Order, package: Any
) -> dict[str, GGUFTensor]:
    out: dict[str, GGUFTensor] = {}
    end, before = start, ""
    for name, kind, shape, offset in sorted(table, key=lambda row: row[3]):
        block, size = package.GGML_QUANT_SIZES[kind]
        begin, length = start + offset, math.prod(shape) // block * size
        if begin + length > len(data):
            raise MalformedGGUF(f"{name!r:.80} would end at byte {begin + length:,} of {len(data):,}")
        if begin < end:
            raise MalformedGGUF(f"{before!r:.80} and {name!r:.80} lie on the same bytes")
        if name in out:
            raise MalformedGGUF(f"the tensor {name!r:.80} appears in it twice")
        end, before = begin + length, name
        rows, raw = shape[:0:-1], data[begin : begin + length]
        if kind.value in NUMPY_DTYPES:
            item = np.dtype(NUMPY_DTYPES[kind.value]).newbyteorder(order)
            out[name] = GGUFTensor(name, kind, shape, np.frombuffer(raw, item).reshape(*rows, shape[0]))
        else:
            out[name] = GGUFTensor(name, kind, shape, raw.reshape(*rows, shape[0] // block * size))
    return {name: out[name] for name, *_ in table}
