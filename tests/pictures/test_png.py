"""PNG files against Pillow, and against damage."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest

from ponder.errors import UsageError
from ponder.pictures.picture import Picture
from ponder.pictures.png import SIGNATURE, read_png, write_png

RNG = np.random.default_rng(0)


def noise(height, width):
    smooth = np.add.outer(np.arange(height) * 3, np.arange(width) * 2)[..., None] + np.array([0, 50, 90])
    return ((smooth + RNG.integers(0, 20, smooth.shape)) % 256).astype(np.uint8)


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, body, bits=8, color_type=2, interlaced=0):
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, interlaced)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 9), (7, 1), (33, 21), (64, 64)])
def test_written_png_is_read_back_by_us_and_by_pillow(height, width):
    image = pytest.importorskip("PIL.Image")
    picture = Picture.from_pixels(noise(height, width))
    data = write_png(picture)
    assert read_png(data) == picture and read_png(data).sha256 == picture.sha256
    assert (np.asarray(image.open(io.BytesIO(data))) == picture.pixels).all()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1"])
def test_png_of_pillow_is_read_as_pillow_reads_it(mode):
    image = pytest.importorskip("PIL.Image")
    given = image.fromarray(noise(37, 53)).convert(mode)
    for optimize in (False, True):
        buffer = io.BytesIO()
        given.save(buffer, "PNG", optimize=optimize)
        assert (read_png(buffer.getvalue()).pixels == np.asarray(given.convert("RGB"))).all()


@pytest.mark.parametrize("kind", range(5))
def test_each_filter_is_undone(kind):
    """The filters by their definition, byte by byte."""
    pixels = noise(6, 5)
    rows = pixels.reshape(6, 15).astype(int)
    body = b""
    for y in range(6):
        line = []
        for i in range(15):
            left = rows[y, i - 3] if i >= 3 else 0
            up = rows[y - 1, i] if y else 0
            corner = rows[y - 1, i - 3] if y and i >= 3 else 0
            guess = left + up - corner
            paeth = min((left, up, corner), key=lambda value, guess=guess: abs(guess - value))
            line.append((rows[y, i] - [0, left, up, (left + up) // 2, paeth][kind]) % 256)
        body += bytes([kind, *line])
    assert (read_png(png(5, 6, body)).pixels == pixels).all()


GOOD = write_png(Picture.from_pixels(noise(8, 8)))


@pytest.mark.parametrize("end", range(0, len(GOOD), 7))
def test_truncated_png_is_refused(end):
    with pytest.raises(UsageError, match=r"ends too early|is no PNG|no header"):
        read_png(GOOD[:end])


def test_png_with_a_flipped_bit_is_refused():
    at = len(GOOD) // 2
    with pytest.raises(UsageError, match="checksum"):
        read_png(GOOD[:at] + bytes([GOOD[at] ^ 4]) + GOOD[at + 1 :])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (png(50_000, 50_000, b""), "50,000 x 50,000 pixels, more than"),
        (png(0, 8, b""), "shows nothing"),
        (png(8, 8, bytes(8 * 24)), "ends too early"),  # a row short
        (png(8, 8, bytes(8 * 25), interlaced=1), "interlaced"),
        (png(8, 8, bytes(8 * 49), bits=16), "16 bits"),
        (png(8, 8, bytes([9] + [0] * 24) * 8), "unknown filter"),
        (png(4, 1, bytes(5), color_type=3), "palette"),
        (SIGNATURE + chunk(b"IEND", b""), "no header"),
        (b"GIF89a", "is no PNG"),
    ],
)
def test_png_that_cannot_be_right_is_refused(data, match):
    with pytest.raises(UsageError, match=match):
        read_png(data)


def test_pixels_after_the_last_row_are_never_unpacked():
    bomb = png(2, 2, bytes(2 * 7) + bytes(50_000_000))
    assert len(bomb) < 100_000 and read_png(bomb).size == (2, 2)


def test_picture_of_wrong_size_is_refused():
    with pytest.raises(UsageError, match="12 bytes of RGB, but 11 are given"):
        Picture(2, 2, bytes(11))
    with pytest.raises(UsageError, match="give uint8"):
        Picture.from_pixels(np.zeros((2, 2, 3)))


def test_hash_depends_on_shape_and_pixels():
    wide, high = Picture(2, 1, bytes(6)), Picture(1, 2, bytes(6))
    assert wide.sha256 != high.sha256 != Picture(1, 2, bytes([0] * 5 + [1])).sha256
