"""A file of numbered, checksummed blocks that is only appended to, and read without the bodies that are not asked for.

    header      magic, number of the block, step, how many items there are in it and before it, sizes, checksums
    directory   JSON: what the body holds, enough for an index
    body        bytes
    footer      length and number of the block: the file can be read from its end, and a block that lost bytes is told
                from one that was never finished

A block whose end the file does not hold is torn: a crash left it, or it is being written. Readers ignore it and the
next writer removes it. Everything else that differs from what was written is damage, and is named: changed bytes, and
blocks that are missing, doubled or in another order. Nothing is allocated or read by a size that was not compared with
the file's.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from zlib import crc32

from ponder import signals
from ponder.atomic_write import TEMPORARY_SUFFIX, fsync_path
from ponder.errors import RunError
from ponder.runs.append_file import AppendFile

ITEMS, RESUMED, LOST = 1, 2, 3  # kinds of blocks: items, a step that is written again, blocks that are known to be lost
MAX_DIRECTORY_BYTES, MAX_BODY_BYTES = 1 << 24, 1 << 28
MAX_LISTED_FAULTS = 1000
_MAGIC, _END = b"PTRACE\x01\n", b"\nPTREND\n"
_HEADER = struct.Struct("<8sQQqIIIQII")  # magic, number, before, step, kind, count, directory, body, their checksums
_FOOTER = struct.Struct("<QQ8s")  # length, number, magic
_CRC = struct.Struct("<I")  # after the header and after the footer, of what stands before it
HEADER_BYTES, FOOTER_BYTES = _HEADER.size + _CRC.size, _FOOTER.size + _CRC.size
_BUFFER_BYTES = 1 << 13  # what is read at once, of a header and what follows it
_CHUNK_BYTES = 1 << 20
_READ_AHEAD_BYTES = 1 << 23
_FIRST_CHUNK_BYTES = 1 << 9  # of a search, which reads twice as much each time: the next block is often near
_MAX_NUMBER = 1 << 62


class DamagedBlock(RunError):
    """A block that differs from what was written. `search_from`: where the next whole block may begin; after the end of
    this one if its header and footer are as they were written, for a body may hold bytes that look like blocks."""

    def __init__(self, path: Path, number: int, why: str, offset: int, search_from: int | None = None) -> None:
        cure = f"restore the file from a copy, or go on without what is lost: ponder traces {path.parent} --repair"
        super().__init__(f"{path}, block {number} is damaged ({why}): {cure}")
        self.number, self.offset, self.why = number, offset, f"block {number}: {why}"
        self.search_from = offset + 1 if search_from is None else search_from


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Where a block is, and what its header says."""

    offset: int
    number: int
    before: int  # items in earlier blocks of the file
    step: int
    kind: int
    count: int  # of items
    directory_bytes: int
    body_bytes: int
    directory_crc: int
    body_crc: int

    @property
    def body_offset(self) -> int:
        return self.offset + HEADER_BYTES + self.directory_bytes

    @property
    def end(self) -> int:
        return self.body_offset + self.body_bytes + FOOTER_BYTES


def encode_block(number: int, before: int, step: int, kind: int, count: int, directory: bytes, body: bytes) -> bytes:
    """A whole block."""
    if len(directory) > MAX_DIRECTORY_BYTES or len(body) > MAX_BODY_BYTES:
        raise ValueError(f"a block of {len(directory)} and {len(body)} bytes is too large")
    header = _HEADER.pack(
        _MAGIC, number, before, step, kind, count, len(directory), len(body), crc32(directory), crc32(body)
    )
    length = HEADER_BYTES + len(directory) + len(body) + FOOTER_BYTES
    return b"".join((_sealed(header), directory, body, _sealed(_FOOTER.pack(length, number, _END))))


def _sealed(data: bytes) -> bytes:
    return data + _CRC.pack(crc32(data))


def _unseal(data: bytes, size: int) -> bytes | None:
    """What `_sealed` took, or None if it is something else."""
    body = data[:size]
    return body if len(data) == size + _CRC.size and _CRC.unpack_from(data, size)[0] == crc32(body) else None


def parse_header(data: bytes, offset: int) -> StoredBlock | None:
    """The block that begins with these bytes; None if they are no header, or one with sizes that nobody writes."""
    header = _unseal(data[:HEADER_BYTES], _HEADER.size)
    if header is None or not header.startswith(_MAGIC):
        return None
    block = StoredBlock(offset, *_HEADER.unpack(header)[1:])
    sizes_fit = block.directory_bytes <= MAX_DIRECTORY_BYTES and block.body_bytes <= MAX_BODY_BYTES
    numbers_fit = block.kind in (ITEMS, RESUMED, LOST) and max(block.number, block.before) < _MAX_NUMBER
    return block if sizes_fit and numbers_fit else None


class BlockReader:
    """Reads the blocks of a file as it was when this was opened; it may be growing. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] = open(path, "rb", buffering=_BUFFER_BYTES)  # noqa: SIM115
        self.size = os.fstat(self._file.fileno()).st_size
        self._read_ahead_to = 0

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def scan(
        self, check_bodies: bool = False, offset: int = 0, expected: int = 1, before: int = 0
    ) -> Iterator[tuple[StoredBlock, bytes]]:
        """Every whole block with its directory, in order. Raises DamagedBlock at the first one that is damaged.

        `offset`, `expected`, `before`: where to begin, the number of the block there, and the items before it.
        """
        while offset < self.size:
            self._read_ahead(offset)
            block = parse_header(self._read(offset, HEADER_BYTES), offset)
            if (self.size - offset < HEADER_BYTES if block is None else block.end > self.size) or (
                block is None and self._is_zero(offset)
            ):
                if self._ends_with_block(expected):
                    raise DamagedBlock(self.path, expected, "bytes of it are missing", offset)
                return
            if block is None:
                raise DamagedBlock(self.path, expected, "its header is not what was written", offset)
            if not self._has_footer(block):
                raise DamagedBlock(self.path, block.number, "its end is not what was written", offset)
            self._check_order(block, expected, before)
            directory = self.read_directory(block)
            if check_bodies:
                self._check_body(block)
            yield block, directory
            offset, expected, before = block.end, block.number + 1, block.before + block.count

    def block_at(self, offset: int) -> StoredBlock:
        """The block that an earlier scan saw there."""
        block = parse_header(self._read(offset, HEADER_BYTES), offset)
        if block is None or block.end > self.size:
            raise DamagedBlock(self.path, 0, "it is not where it was: the file was replaced", offset)
        return block

    def read_directory(self, block: StoredBlock) -> bytes:
        directory = self._read(block.offset + HEADER_BYTES, block.directory_bytes)
        if crc32(directory) != block.directory_crc:
            why = "the checksum of its directory differs"
            raise DamagedBlock(self.path, block.number, why, block.offset, block.end)
        return directory

    def read_body(self, block: StoredBlock) -> bytes:
        body = self._read(block.body_offset, block.body_bytes)
        if crc32(body) != block.body_crc:
            raise DamagedBlock(self.path, block.number, "its checksum differs", block.offset, block.end)
        return body

    def last_block(self) -> StoredBlock | None:
        """The last block, by the footer at the end of the file; None if the file does not end with one."""
        footer = self._footer(self.size)
        if footer is None or not HEADER_BYTES + FOOTER_BYTES <= footer[0] <= self.size:
            return None
        offset = self.size - footer[0]
        block = parse_header(self._read(offset, HEADER_BYTES), offset)
        return block if block is not None and block.end == self.size and block.number == footer[1] else None

    def next_block(self, offset: int, number: int) -> StoredBlock | None:
        """The first block at this offset or after it that has at least this number and a whole end. Every byte is read
        about twice at most, whatever the file holds."""
        size = _FIRST_CHUNK_BYTES
        while offset < self.size:
            chunk, at = self._read(offset, size), -1
            last_start = max(1, len(chunk) - HEADER_BYTES + 1)  # headers that begin before it are whole in this chunk
            while 0 <= (at := chunk.find(_MAGIC, at + 1)) < last_start:
                block = parse_header(chunk[at : at + HEADER_BYTES], offset + at)
                if block is not None and block.number >= number and block.end <= self.size and self._has_footer(block):
                    return block
            offset, size = offset + last_start, min(2 * size, _CHUNK_BYTES)
        return None

    def copy(self, start: int, end: int, target: IO[bytes]) -> None:
        for at in range(start, end, _CHUNK_BYTES):
            target.write(self._read(at, min(_CHUNK_BYTES, end - at)))

    def _read_ahead(self, offset: int) -> None:
        """Have the system fetch what follows. A scan skips the bodies, and to wait for a disk once per block is slower
        than to read the whole file in its order."""
        if hasattr(os, "posix_fadvise") and offset + _READ_AHEAD_BYTES // 2 > self._read_ahead_to < self.size:
            start = max(offset, self._read_ahead_to)
            with contextlib.suppress(OSError):  # not a file on a disk
                os.posix_fadvise(self._file.fileno(), start, _READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            self._read_ahead_to = start + _READ_AHEAD_BYTES

    def _read(self, offset: int, count: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(max(0, min(count, self.size - offset)))

    def _check_order(self, block: StoredBlock, expected: int, before: int) -> None:
        number = block.number
        if number < expected:
            raise DamagedBlock(self.path, expected, f"block {number} stands here again", block.offset, block.end)
        if block.kind == LOST:
            return
        if number > expected:
            missing = f"block {expected} is" if number == expected + 1 else f"blocks {expected} to {number - 1} are"
            raise DamagedBlock(self.path, number, f"{missing} missing before it", block.offset, block.offset)
        if block.before != before:
            why = f"it counts {block.before} before it, not {before}"
            raise DamagedBlock(self.path, number, why, block.offset, block.end)

    def _check_body(self, block: StoredBlock) -> None:
        crc, end = 0, block.body_offset + block.body_bytes
        for at in range(block.body_offset, end, _CHUNK_BYTES):
            crc = crc32(self._read(at, min(_CHUNK_BYTES, end - at)), crc)
        if crc != block.body_crc:
            raise DamagedBlock(self.path, block.number, "its checksum differs", block.offset, block.end)

    def _footer(self, end: int) -> tuple[int, int] | None:
        """Length and number of the block that ends here."""
        if end < FOOTER_BYTES:
            return None
        footer = _unseal(self._read(end - FOOTER_BYTES, FOOTER_BYTES), _FOOTER.size)
        if footer is None or not footer.endswith(_END):
            return None
        length, number, _ = _FOOTER.unpack(footer)
        return length, number

    def _has_footer(self, block: StoredBlock) -> bool:
        return self._footer(block.end) == (block.end - block.offset, block.number)

    def _ends_with_block(self, expected: int) -> bool:
        """Whether the file ends with a finished block that a scan has not come to."""
        footer = self._footer(self.size)
        return footer is not None and footer[1] >= expected

    def _is_zero(self, offset: int) -> bool:
        """Whether only zeros follow, which some systems leave after a power failure."""
        if self.size - offset > MAX_BODY_BYTES:
            return False
        size = HEADER_BYTES
        while chunk := self._read(offset, size):
            if chunk.count(0) < len(chunk):
                return False
            offset, size = offset + len(chunk), min(2 * size, _CHUNK_BYTES)
        return True


class BlockWriter:
    """Appends blocks, each completely or not at all. It removes a torn block that a crash left."""

    def __init__(self, path: Path, stopped: Callable[[], bool] = signals.stop_requested) -> None:
        self.path, is_new_file = path, not path.exists()
        self._number = self._before = 0
        if not is_new_file:
            with BlockReader(path) as reader:
                last, end = reader.last_block(), reader.size
                if last is None:
                    end = 0
                    for last, _ in reader.scan():
                        end = last.end
            if end < reader.size:
                os.truncate(path, end)
            if last is not None:
                self._number, self._before = last.number, last.before + last.count
        self._file = AppendFile(path, is_new_file, stopped)

    def append(self, step: int, kind: int, count: int = 0, directory: bytes = b"", body: bytes = b"") -> None:
        self._file.append(encode_block(self._number + 1, self._before, step, kind, count, directory, body))
        self._number, self._before = self._number + 1, self._before + count

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def mark_lost(path: Path) -> list[str]:
    """Replace damaged blocks by marks that they are lost, and remove a torn one. The whole blocks stay as they are, in
    a new file that takes the old one's place. Returns what was wrong, in words.

    The work is proportional to the file's size: after each fault the search goes on behind what was read.
    """
    faults: list[str] = []
    num_faults = 0
    repaired = path.with_name(path.name + TEMPORARY_SUFFIX)
    with BlockReader(path) as reader, open(repaired, "wb") as target:
        offset, expected, before = 0, 1, 0
        while True:
            start, damage = offset, None
            try:
                for block, _ in reader.scan(True, offset, expected, before):
                    offset, expected, before = block.end, block.number + 1, block.before + block.count
            except DamagedBlock as found:
                damage = found
            reader.copy(start, offset, target)
            if damage is None:
                break
            num_faults += 1
            if len(faults) < MAX_LISTED_FAULTS:
                faults.append(damage.why)
            following = reader.next_block(damage.search_from, expected)
            number, before = (expected, before) if following is None else (following.number - 1, following.before)
            if number >= expected:
                target.write(encode_block(number, before, 0, LOST, 0, b"", b""))
            offset, expected = (reader.size if following is None else following.offset), number + 1
        target.flush()
        os.fsync(target.fileno())
    repaired.replace(path)
    fsync_path(path.parent)
    return faults if num_faults == len(faults) else [*faults, f"{num_faults - len(faults)} more blocks"]
