"""PNG files by zlib alone.

Read: grey, RGB and palette, with or without alpha (which is dropped), 1 to 8 bits, not interlaced. Written: 8-bit RGB.
The size in the header bounds all work: more data than it calls for is never unpacked.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ponder.pictures.picture import InvalidPicture, Picture, Pixels, check_picture_size

SIGNATURE = b"\x89PNG\r\n\x1a\n"

_GREY, _RGB, _PALETTE, _GREY_ALPHA, _RGB_ALPHA = 0, 2, 3, 4, 6
_CHANNELS = {_GREY: 1, _RGB: 3, _PALETTE: 1, _GREY_ALPHA: 2, _RGB_ALPHA: 4}
_TRUNCATED = "the PNG ends too early; save or download it again"


class _Header(NamedTuple):
    width: int
    height: int
    bits: int  # of a channel
    color_type: int

    @property
    def row_bytes(self) -> int:
        return (self.width * _CHANNELS[self.color_type] * self.bits + 7) // 8


def write_png(picture: Picture) -> bytes:
    rows = np.zeros((picture.height, 1 + 3 * picture.width), np.uint8)  # each row begins with its filter: 0, none
    rows[:, 1:] = picture.pixels.reshape(picture.height, -1)
    header = struct.pack(">IIBBBBB", picture.width, picture.height, 8, _RGB, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")]
    return SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def read_png(data: bytes) -> Picture:
    """The picture in the bytes of a PNG file."""
    if not data.startswith(SIGNATURE):
        raise InvalidPicture("the picture is no PNG; convert it to PNG first")
    header: _Header | None = None
    palette, packed = b"", []
    for kind, body in _chunks(data):
        if header is None:
            header = _parse_header(kind, body)
        elif kind == b"PLTE":
            palette = body
        elif kind == b"IDAT":
            packed.append(body)
        elif kind == b"IEND":
            return _decode(header, palette, b"".join(packed))
    raise InvalidPicture(_TRUNCATED)


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height by the header alone."""
    kind, body = next(_chunks(data), (b"", b""))
    header = _parse_header(kind, body)
    return header.width, header.height


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        checksum = data[at + 8 + length : at + 12 + length]
        if len(body) < length or len(checksum) < 4:
            raise InvalidPicture(_TRUNCATED)
        if int.from_bytes(checksum, "big") != zlib.crc32(kind + body):
            raise InvalidPicture("the PNG is damaged: a checksum in it is wrong; save or download it again")
        yield kind, body
        at += 12 + length


def _parse_header(kind: bytes, body: bytes) -> _Header:
    if kind != b"IHDR" or len(body) != 13:
        raise InvalidPicture("the PNG has no header; save or download it again")
    width, height, bits, color_type, _, _, interlaced = struct.unpack(">IIBBBBB", body)
    check_picture_size(width, height)
    if interlaced:
        raise InvalidPicture("the PNG is interlaced; save it without interlacing")
    if color_type not in _CHANNELS or bits not in ((1, 2, 4, 8) if color_type in (_GREY, _PALETTE) else (8,)):
        raise InvalidPicture(f"the PNG has {bits} bits in colour type {color_type}; save it with 8 bits per channel")
    return _Header(width, height, bits, color_type)


def _decode(header: _Header, palette: bytes, packed: bytes) -> Picture:
    expected = header.height * (1 + header.row_bytes)
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(packed, expected)
    except zlib.error:
        raise InvalidPicture("the PNG is damaged: its pixels cannot be unpacked; save or download it again") from None
    if len(raw) < expected:
        raise InvalidPicture(_TRUNCATED)
    rows = _unfilter(np.frombuffer(raw, np.uint8).reshape(header.height, -1), _pixel_bytes(header))
    samples = _unpack_bits(rows, header).reshape(header.height, header.width, _CHANNELS[header.color_type])
    return Picture.from_pixels(_to_rgb(samples, header, palette))


def _pixel_bytes(header: _Header) -> int:
    """How far back a filter looks: the bytes of a pixel, at least one."""
    return max(1, _CHANNELS[header.color_type] * header.bits // 8)


def _unfilter(rows: Pixels, step: int) -> Pixels:
    """Undo the filter of each row (PNG specification, section 9)."""
    filters, out = rows[:, 0], rows[:, 1:].copy()
    above = np.zeros(out.shape[1], np.uint8)
    for kind, row in zip(filters.tolist(), out, strict=True):
        if kind == 1:
            for channel in range(step):
                row[channel::step] = np.cumsum(row[channel::step], dtype=np.uint64) % 256
        elif kind == 2:
            row += above
        elif kind in (3, 4):
            row[:] = _undo_average(row, above, step) if kind == 3 else _undo_paeth(row, above, step)
        elif kind:
            raise InvalidPicture("the PNG is damaged: a row has an unknown filter; save or download it again")
        above = row
    return out


def _undo_average(row: Pixels, above: Pixels, step: int) -> list[int]:
    out = row.tolist()
    for i, up in enumerate(above.tolist()):
        left = out[i - step] if i >= step else 0
        out[i] = (out[i] + (left + up) // 2) & 255
    return out


def _undo_paeth(row: Pixels, above: Pixels, step: int) -> list[int]:
    out, ups = row.tolist(), above.tolist()
    for i, up in enumerate(ups):
        left, corner = (out[i - step], ups[i - step]) if i >= step else (0, 0)
        guess = left + up - corner
        far_left, far_up, far_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
        nearest = left if far_left <= far_up and far_left <= far_corner else up if far_up <= far_corner else corner
        out[i] = (out[i] + nearest) & 255
    return out


def _unpack_bits(rows: Pixels, header: _Header) -> Pixels:
    """One byte for each sample of 1, 2 or 4 bits."""
    if header.bits == 8:
        return rows
    bits = np.unpackbits(rows, axis=1).reshape(header.height, -1, header.bits)
    samples = (bits << np.arange(header.bits - 1, -1, -1, dtype=np.uint8)).sum(2, dtype=np.uint8)
    return samples[:, : header.width]


def _to_rgb(samples: Pixels, header: _Header, palette: bytes) -> Pixels:
    if header.color_type == _PALETTE:
        colors = np.frombuffer(palette[: len(palette) // 3 * 3], np.uint8).reshape(-1, 3)
        if not len(colors) or samples.max() >= len(colors):
            raise InvalidPicture("the PNG is damaged: its palette lacks colours; save or download it again")
        return colors[samples[..., 0]]
    if header.color_type in (_GREY, _GREY_ALPHA):
        scale = 255 // ((1 << header.bits) - 1)
        return np.repeat(samples[..., :1] * np.uint8(scale), 3, axis=2)
    return np.ascontiguousarray(samples[..., :3])
