"""Files of blocks: damage and disorder are named, a torn end is not damage, and bodies are skipped."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from ponder.errors import RunError
from ponder.runs import block_file
from ponder.runs.block_file import (
    FOOTER_BYTES,
    HEADER_BYTES,
    ITEMS,
    LOST,
    MAX_BODY_BYTES,
    MAX_DIRECTORY_BYTES,
    MAX_LISTED_FAULTS,
    RESUMED,
    BlockReader,
    BlockWriter,
    StoredBlock,
    encode_block,
    mark_lost,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    writer = BlockWriter(tmp_path / "blocks")
    for i in range(5):
        writer.append(i, ITEMS, i + 1, b"dir%d" % i, bytes([i]) * 200)
    writer.sync()
    writer.close()
    return tmp_path / "blocks"


def scan(path: Path) -> list[StoredBlock]:
    with BlockReader(path) as reader:
        return [block for block, _ in reader.scan(check_bodies=True)]


def pieces(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return [content[block.offset : block.end] for block in scan(path)]


def test_blocks_are_numbered_and_count_what_is_before_them(path: Path) -> None:
    with BlockReader(path) as reader:
        blocks = list(reader.scan())
        assert [(b.number, b.step, b.count, b.before, d) for b, d in blocks] == [
            (i + 1, i, i + 1, i * (i + 1) // 2, b"dir%d" % i) for i in range(5)
        ]
        assert [reader.read_body(b) for b, _ in blocks] == [bytes([i]) * 200 for i in range(5)]
        assert reader.last_block() == blocks[-1][0] and reader.block_at(blocks[2][0].offset) == blocks[2][0]


@pytest.mark.parametrize(
    ("order", "fault"),
    [
        ([0, 2, 3, 4], "block 3 is damaged (block 2 is missing before it)"),
        ([3, 4], "block 4 is damaged (blocks 1 to 3 are missing before it)"),
        ([0, 1, 1, 2, 3, 4], "block 3 is damaged (block 2 stands here again)"),
        ([0, 2, 1, 3, 4], "block 3 is damaged (block 2 is missing before it)"),
    ],
)
def test_missing_doubled_and_moved_blocks_are_named(path: Path, order: list[int], fault: str) -> None:
    parts = pieces(path)
    path.write_bytes(b"".join(parts[i] for i in order))
    with pytest.raises(RunError) as error:
        scan(path)
    assert fault in str(error.value) and f"ponder traces {path.parent} --repair" in str(error.value)


def test_every_changed_byte_is_named(path: Path) -> None:
    content = path.read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 0x40
        path.write_bytes(changed)
        with pytest.raises(RunError, match=r"block \d is damaged"):
            scan(path)


def test_every_cut_at_the_end_is_ignored_and_removed(path: Path) -> None:
    content, parts = path.read_bytes(), pieces(path)
    for end in range(len(content) - len(parts[-1]), len(content)):
        path.write_bytes(content[:end])
        assert len(scan(path)) == 4
    BlockWriter(path).close()
    assert path.read_bytes() == b"".join(parts[:4])
    path.write_bytes(b"".join(parts[:4]) + bytes(5000))
    assert len(scan(path)) == 4, "zeros after a power failure"


def test_bytes_removed_from_the_middle_are_not_taken_for_a_torn_end(path: Path) -> None:
    content, last = path.read_bytes(), scan(path)[-1]
    for size in (1, 30, 150, last.end - last.offset - 40):
        path.write_bytes(content[: last.offset + 10] + content[last.offset + 10 + size :])
        with pytest.raises(RunError, match="block 5 is damaged"):
            scan(path)


def test_writer_goes_on_with_number_and_count(path: Path) -> None:
    writer = BlockWriter(path)
    writer.append(3, RESUMED)
    writer.append(3, ITEMS, 2, b"d", b"b")
    writer.close()
    assert [(b.number, b.before, b.kind) for b in scan(path)[5:]] == [(6, 15, RESUMED), (7, 15, ITEMS)]


def test_writer_refuses_a_damaged_file_without_a_whole_end(path: Path) -> None:
    content = bytearray(path.read_bytes()[:-1])
    content[3] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match="block 1 is damaged"):
        BlockWriter(path)
    assert path.read_bytes() == content


def test_scan_of_a_growing_file_ends_with_the_last_whole_block(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with BlockReader(path) as reader:
        blocks = reader.scan()
        next(blocks)
        path.write_bytes(content)
        assert len(list(blocks)) == 3, "as it was when it was opened"
    assert len(scan(path)) == 5


@pytest.mark.parametrize("change", ["body", "missing", "doubled", "last", "garbage"])
def test_mark_lost_keeps_whole_blocks(path: Path, change: str) -> None:
    parts = pieces(path)
    spoilt = parts[1][:100] + b"!" + parts[1][101:]
    path.write_bytes(
        b"".join(
            {
                "body": [parts[0], spoilt, *parts[2:]],
                "missing": [parts[0], *parts[2:]],
                "doubled": [parts[0], parts[1], parts[1], *parts[2:]],
                "last": [*parts[:4], parts[4][:100] + b"!" + parts[4][101:]],
                "garbage": [parts[0], b"x" * 5000, *parts[2:]],
            }[change]
        )
    )
    assert len(mark_lost(path)) == 1
    kinds = [(b.number, b.kind) for b in scan(path)]
    lost = {"doubled": 0, "last": 5}.get(change, 2)
    assert kinds == [(i, LOST if i == lost else ITEMS) for i in range(1, 6)]
    assert mark_lost(path) == []


@pytest.mark.parametrize(
    ("directory", "body"),
    [
        (MAX_DIRECTORY_BYTES + 1, 0),
        (0, MAX_BODY_BYTES + 1),
        (MAX_DIRECTORY_BYTES, MAX_BODY_BYTES),
        (300, 2**20),
    ],
)
def test_sizes_beyond_the_file_are_not_read(path: Path, directory: int, body: int) -> None:
    fields = struct.pack("<8sQQqIIIQII", b"PTRACE\x01\n", 6, 15, 0, ITEMS, 1, directory, body, 0, 0)
    with path.open("ab") as file:
        file.write(fields + struct.pack("<I", crc32(fields)) + b"x" * 300)
    if directory > MAX_DIRECTORY_BYTES or body > MAX_BODY_BYTES:
        with pytest.raises(RunError, match="its header is not what was written"):
            scan(path)
    else:
        assert len(scan(path)) == 5, "it looks like a block that is being written"


# Repair of crafted files: the work is proportional to the size


def sealed(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32(data))


def frame(number: int, inside: bytes, directory: int = 0, has_footer: bool = True) -> bytes:
    """A block around other bytes, with a right header and wrong checksums of what it holds."""
    length = HEADER_BYTES + len(inside) + FOOTER_BYTES
    sizes = (directory, len(inside) - directory)
    header = sealed(struct.pack("<8sQQqIIIQII", b"PTRACE\x01\n", number, 0, 0, ITEMS, 1, *sizes, 7, 7))
    footer = sealed(struct.pack("<QQ8s", length, number, b"\nPTREND\n"))
    return header + inside + (footer if has_footer else b"?" * FOOTER_BYTES)


def nested(count: int) -> bytes:
    """Frames in frames: whoever checks each body reads the square of the size."""
    heads, tails, size = [], [], 0
    for i in range(count, 0, -1):
        whole = frame(i, b"\0" * size)
        heads.append(whole[:HEADER_BYTES])
        tails.append(whole[-FOOTER_BYTES:])
        size = len(whole)
    return b"".join(reversed(heads)) + b"".join(tails)


def overlapping(count: int) -> bytes:
    """Headers whose directories reach over all that follow, without ends."""
    out, step = [], HEADER_BYTES + 8
    for i in range(count):
        size = min(step * (count - i), 1 << 16)
        out.append(frame(i + 1, b"\0" * size, size, has_footer=False)[:HEADER_BYTES] + b"\1" * 8)
    return b"".join(out) + b"\1" * (1 << 16)


def alternating(count: int) -> bytes:
    """Whole blocks and damaged ones."""
    blocks = []
    for i in range(count):
        block = encode_block(i + 1, i, 0, ITEMS, 1, b"{}", b"body")
        blocks.append(block if i % 2 else block[:9] + b"?" + block[10:])
    return b"".join(blocks)


CRAFTED: list[Callable[[int], bytes]] = [
    nested,
    overlapping,
    alternating,
    lambda count: b"PTRACE\x01\n" * (8 * count),
    lambda count: (b"\0" * 200 + b"?") * count,
    lambda count: b"".join(frame(count - i, b"again") for i in range(count)),
]


@pytest.mark.parametrize("make", CRAFTED)
def test_repair_reads_a_crafted_file_a_few_times_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[int], bytes]
) -> None:
    num_read = 0

    class CountingFile(io.FileIO):
        def readinto(self, buffer: object, /) -> int:
            nonlocal num_read
            count = super().readinto(buffer)  # type: ignore[arg-type]
            num_read += count
            return count

    def counting_open(path: Path, mode: str, buffering: int = -1) -> object:
        return io.BufferedReader(CountingFile(path), buffering) if mode == "rb" else open(path, mode)

    monkeypatch.setattr(block_file, "open", counting_open, raising=False)
    path = tmp_path / "crafted"
    path.write_bytes(make(4000))
    size = path.stat().st_size
    mark_lost(path)
    assert num_read < 12 * size + (1 << 16)
    monkeypatch.undo()
    assert mark_lost(path) == [], "what is left is whole"


def test_repair_keeps_the_whole_blocks_between_damaged_ones(tmp_path: Path) -> None:
    path = tmp_path / "crafted"
    path.write_bytes(alternating(2 * MAX_LISTED_FAULTS + 10))
    faults = mark_lost(path)
    assert len(faults) == MAX_LISTED_FAULTS + 1 and faults[-1] == "5 more blocks"
    assert [b.number for b in scan(path) if b.kind == ITEMS] == list(range(2, 2 * MAX_LISTED_FAULTS + 11, 2))


def test_repair_takes_no_block_out_of_the_body_of_a_damaged_one(tmp_path: Path) -> None:
    """The body holds bytes that are a block: what a model wrote must not come back as a block of its own."""
    path = tmp_path / "crafted"
    forged = encode_block(2, 1, 0, ITEMS, 1, b"{}", b"forged")
    path.write_bytes(encode_block(1, 0, 0, ITEMS, 1, b"{}", b"a") + frame(2, forged) + frame(3, b""))
    mark_lost(path)
    assert [(b.number, b.kind) for b in scan(path)] == [(1, ITEMS), (2, LOST), (3, LOST)]
