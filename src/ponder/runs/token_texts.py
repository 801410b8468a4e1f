"""What each token of a run's model writes: `token_texts.bin`, so that a reader of traces needs no tokenizer.

    header      magic, number of tokens, size of what follows before it is compressed, its checksum
    deflated    the length of each token's bytes as uint32, then all bytes

Bytes, not text: a token may hold less than a character. A special token has the bytes of its name, an id without a
token has none. A run whose models have different tokens holds an empty table: no text is better than a wrong one.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ponder.atomic_write import write_bytes_atomically
from ponder.errors import RunError
from ponder.runs.symlinks import refuse_symlinks

TOKEN_TEXTS_FILE = "token_texts.bin"
MAX_TOKENS, MAX_RAW_BYTES = 1 << 22, 1 << 26  # ten times what the largest vocabularies need
_HEADER = struct.Struct("<8sIII")  # magic, number of tokens, size, checksum
_MAGIC = b"PTOKEN\x01\n"


class TokenBytes(Sequence[bytes]):
    """The bytes of each token, by its id."""

    def __init__(self, ends: NDArray[np.int64], joined: bytes) -> None:
        self._ends, self._joined = ends, joined

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"there is no token {index}: the highest is {len(self) - 1}")
        return self._joined[int(self._ends[at - 1]) if at else 0 : int(self._ends[at])]


def write_token_texts(folder: Path, texts: Sequence[bytes]) -> None:
    """Write the file, atomically, unless the run has it. If it has that of another model, the table becomes empty."""
    path = folder / TOKEN_TEXTS_FILE
    refuse_symlinks(folder)
    try:
        existing = _read(path)
    except ValueError:  # damaged: it is written anew
        existing = None
    if existing is not None:
        if len(existing) == 0 or (len(existing) == len(texts) and all(map(bytes.__eq__, existing, texts))):
            return
        texts = ()
    lengths = np.fromiter(map(len, texts), "<u4", len(texts))
    raw = lengths.tobytes() + b"".join(texts)
    if len(texts) > MAX_TOKENS or len(raw) > MAX_RAW_BYTES:
        return  # no reader would take it
    header = _HEADER.pack(_MAGIC, len(texts), len(raw), zlib.crc32(raw, len(texts)))
    try:
        write_bytes_atomically(path, header + zlib.compress(raw), sync=True)
    except OSError as why:
        raise RunError(f"cannot write {path}: {why.strerror}") from None


def read_token_texts(folder: str | Path) -> TokenBytes | None:
    """The bytes of each token of a run's model; None for a run without them: one of an earlier version, or one whose
    models have different tokens. Raises RunError if the file is damaged."""
    path = Path(folder) / TOKEN_TEXTS_FILE
    refuse_symlinks(folder)
    try:
        return _read(path) or None
    except ValueError as why:
        raise RunError(f"{path} is damaged ({why}): remove it, and tokens are shown by their ids") from None


def _read(path: Path) -> TokenBytes | None:
    """None if there is no such file. Nothing is made of a size that was not compared with a limit."""
    try:
        with open(path, "rb") as file:
            data = file.read(min(os.fstat(file.fileno()).st_size, _HEADER.size + MAX_RAW_BYTES))
    except FileNotFoundError:
        return None
    except OSError as why:
        raise RunError(f"cannot read {path}: {why.strerror}") from None
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise ValueError("it does not begin as one")
    _, count, size, checksum = _HEADER.unpack_from(data)
    if not 4 * count <= size <= MAX_RAW_BYTES or count > MAX_TOKENS:
        raise ValueError("it has sizes that nobody writes")
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(memoryview(data)[_HEADER.size :], size + 1)
    except zlib.error as why:
        raise ValueError(f"it does not decompress: {why}") from None
    if len(raw) != size or not unpacker.eof or unpacker.unused_data or zlib.crc32(raw, count) != checksum:
        raise ValueError("its checksum differs")
    ends = np.cumsum(np.frombuffer(raw, "<u4", count), dtype=np.int64)
    joined = raw[4 * count :]
    if (int(ends[-1]) if count else 0) != len(joined):
        raise ValueError("its lengths do not fit its bytes")
    return TokenBytes(ends, joined)
