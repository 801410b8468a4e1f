"""Reads the files of a model folder as untrusted input: sizes are checked before memory of that size is allocated.

Models are often downloaded from unknown people. Sizes that a file declares are checked against its real size, and paths
against the folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ponder.errors import ModelError
from ponder.strict_parsing import parse_json

MAX_JSON_BYTES = 64 << 20  # of a configuration or an index; the largest published have 15 MB
MAX_HEADER_BYTES = 64 << 20  # of a safetensors file; 100,000 tensors take about 15 MB
MAX_DIMENSIONS = 8
FLOAT_DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # dtypes of stored weights
OTHER_DTYPE_BYTES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
OTHER_DTYPE_BYTES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor in a safetensors file: its location and shape, not its values."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


def path_inside(folder: Path, name: str) -> Path:
    """A file of the folder. Names and links that lead out of it are refused, except links of a Hugging Face cache."""
    path = folder / name
    home = folder.resolve()
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ModelError(f"{folder} names the file {name!r:.200}, which is outside of it; download the model again")
    if path.is_file():  # no other path is opened; a broken or circular link is no file
        real = path.resolve()
        blobs = home.parent.parent / "blobs"  # Hugging Face's cache keeps files there, and links in snapshots/REVISION
        cached = home.parent.name == "snapshots" and real.is_relative_to(blobs)
        if not (real.is_relative_to(home) or cached):
            raise ModelError(f"{path} is a link to {real}, outside of the model's folder; copy the file there instead")
    return path


def read_text(path: Path, most: int = MAX_JSON_BYTES) -> str:
    try:
        if (size := path.stat().st_size) > most:
            raise ModelError(f"{path} has {size:,} bytes, and at most {most:,} make sense; download it again")
        return path.read_text("utf-8")
    except OSError as why:
        raise ModelError(f"cannot read {path}: {why.strerror}") from None
    except ValueError as why:
        raise ModelError(f"{path} is not text ({why}); download it again") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    text = read_text(path)
    try:
        data = json.loads(text)
    except ValueError as reason:
        raise ModelError(f"{path} is not JSON ({reason}); download it again") from None
    except RecursionError:
        raise ModelError(f"{path} is nested too deeply to be a model's; download it again") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path} is not a JSON object; download it again")
    return data


def read_safetensors_header(path: Path) -> list[TensorEntry]:
    """The tensors that a safetensors file declares, if the file is large enough for them."""
    try:
        return list(_header_entries(path))
    except OSError as why:
        raise ModelError(f"cannot read {path}: {why.strerror}") from None
    except RecursionError:
        raise ModelError(f"{path} is damaged (its header is nested too deeply); download it again") from None
    except (ValueError, TypeError, LookupError, AttributeError) as damage:
        raise ModelError(f"{path} is damaged or cut short ({damage!s:.200}); download it again") from None


def _header_entries(path: Path) -> Iterable[TensorEntry]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(f"its header has {length:,} bytes, the file {size:,}")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"its header has {length:,} bytes, and at most {MAX_HEADER_BYTES:,} make sense")
        header = parse_json(file.read(length).decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    room, places = size - 8 - length, []
    for name, about in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, (begin, end) = about["dtype"], about["shape"], about["data_offsets"]
        if dtype not in FLOAT_DTYPE_BYTES and dtype not in OTHER_DTYPE_BYTES:
            raise ValueError(f"{name!r:.80} is of type {dtype!r:.40}")
        if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
            raise ValueError(f"{name!r:.80} has a shape or place of {shape!r:.80}, {begin!r:.40}, {end!r:.40}")
        needed = math.prod(shape) * (FLOAT_DTYPE_BYTES | OTHER_DTYPE_BYTES)[dtype]
        if end > room or end - begin != needed:
            raise ValueError(f"{name!r:.80} needs {needed:,} bytes, and is said to lie at {begin:,} to {end:,}")
        places.append((begin, end, name))
        yield TensorEntry(path, name, dtype, tuple(shape))
    places.sort()
    for (_, end, one), (begin, _, other) in pairwise(places):
        if begin < end:
            raise ValueError(f"{one!r:.80} and {other!r:.80} lie on the same bytes")
