"""The bytes of each token in a run directory: exact, written once, safe to read from a stranger."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest

from fake_runs import write_run
from ponder.errors import RunError
from ponder.runs.token_texts import MAX_RAW_BYTES, MAX_TOKENS, TOKEN_TEXTS_FILE, read_token_texts, write_token_texts

TEXTS = [b"", b"<pad>", "日".encode()[:2], "日".encode()[2:], b" a" * 300, b"\x00\xff", b""]


def crafted(count: int, size: int, raw: bytes) -> bytes:
    return struct.pack("<8sIII", b"PTOKEN\x01\n", count, size, zlib.crc32(raw, count)) + zlib.compress(raw)


def lengths(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def test_texts_come_back_byte_for_byte(tmp_path: Path) -> None:
    write_token_texts(tmp_path, TEXTS)
    texts = read_token_texts(tmp_path)
    assert texts is not None and list(texts) == TEXTS and len(texts) == len(TEXTS)
    assert texts[-2] == TEXTS[-2] and texts[1:4] == TEXTS[1:4]
    for index in (len(TEXTS), -len(TEXTS) - 1):
        with pytest.raises(IndexError, match="the highest is 6"):
            texts[index]
    assert os.listdir(tmp_path) == [TOKEN_TEXTS_FILE]


def test_run_of_an_earlier_version_has_none(tmp_path: Path) -> None:
    assert read_token_texts(write_run(tmp_path / "r", [["a"]])) is None


def test_file_is_written_once(tmp_path: Path) -> None:
    write_token_texts(tmp_path, TEXTS)
    before = (tmp_path / TOKEN_TEXTS_FILE).stat()
    write_token_texts(tmp_path, TEXTS)
    after = (tmp_path / TOKEN_TEXTS_FILE).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("other", [[b"x"], [*TEXTS[:-1], b"x"], [*TEXTS, b"x"]])
def test_run_with_models_of_different_tokens_has_none(tmp_path: Path, other: list[bytes]) -> None:
    for texts in (TEXTS, other, TEXTS):
        write_token_texts(tmp_path, texts)
    assert read_token_texts(tmp_path) is None


def test_damaged_file_is_named_and_written_anew(tmp_path: Path) -> None:
    write_token_texts(tmp_path, TEXTS)
    path = tmp_path / TOKEN_TEXTS_FILE
    good, damaged = path.read_bytes(), 0
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        try:
            assert list(read_token_texts(tmp_path) or ()) == TEXTS, "a bit that deflate does not use"
        except RunError as why:
            assert "damaged" in str(why)
            damaged += 1
    assert damaged >= len(good) - 1
    for size in range(len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(RunError, match="damaged"):
            read_token_texts(tmp_path)
    write_token_texts(tmp_path, TEXTS)
    assert list(read_token_texts(tmp_path) or ()) == TEXTS


@pytest.mark.parametrize(
    "data",
    [
        crafted(2, 8, lengths(1, 1)),  # lengths of bytes that are not there
        crafted(2, 12, lengths(0xFFFFFFFF, 5) + b"abcd"),  # which add up only in 32 bits
        crafted(1, 5, lengths(1) + b"ab"),
        crafted(MAX_TOKENS + 1, MAX_RAW_BYTES, b""),
        crafted(0, 0, b"more than it says"),
        crafted(1, 5, lengths(1) + b"a") + b"after its end",
    ],
)
def test_crafted_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / TOKEN_TEXTS_FILE).write_bytes(data)
    with pytest.raises(RunError, match="damaged"):
        read_token_texts(tmp_path)


def test_small_file_cannot_fill_the_memory(tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(MAX_RAW_BYTES), 1)
    header = struct.pack("<8sIII", b"PTOKEN\x01\n", 1, 1 << 20, 0)
    (tmp_path / TOKEN_TEXTS_FILE).write_bytes(header + bomb)
    tracemalloc.start()
    try:
        with pytest.raises(RunError, match="damaged"):
            read_token_texts(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_symlink_is_not_followed(tmp_path: Path) -> None:
    run, secret = tmp_path / "r", tmp_path / "s"
    run.mkdir()
    secret.mkdir()
    write_token_texts(secret, TEXTS)
    (run / TOKEN_TEXTS_FILE).symlink_to(secret / TOKEN_TEXTS_FILE)
    with pytest.raises(RunError, match="symbolic link"):
        read_token_texts(run)
    with pytest.raises(RunError, match="symbolic link"):
        write_token_texts(run, [b"x"])
