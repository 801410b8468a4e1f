"""The content of a message: a text, or a list of parts, some of which are pictures.

Parts are read in the shapes of OpenAI (`image_url`, `input_image`) and Hugging Face (`image` with `image`, `url` or
`base64`). A picture must be in the message itself, as a PNG data URL or base64 text: nothing is fetched, and no file is
opened, since messages may be a stranger's. Parts are plain JSON, so that problems, traces and datasets keep them as
they are.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ponder.pictures.picture import InvalidPicture, Picture
from ponder.pictures.png import read_png, write_png
from ponder.validate import short_repr

Content = str | Sequence[Any]  # a text, or parts

_TEXT_TYPES = ("text", "input_text", "output_text")
_IMAGE_TYPES = ("image", "image_url", "input_image")
_DATA_URL = "data:image/png;base64,"


def data_url(picture: Picture) -> str:
    return _DATA_URL + base64.b64encode(write_png(picture)).decode()


def image_part(picture: Picture) -> dict[str, Any]:
    """The part of a message that shows this picture, in OpenAI's shape."""
    return {"type": "image_url", "image_url": {"url": data_url(picture)}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def content_text(content: Any) -> str:
    """The text of a message, without its pictures."""
    if isinstance(content, str) or not _is_parts(content):
        return str(content)
    return "\n".join(part if isinstance(part, str) else str(part["text"]) for part in content if _is_text(part))


def content_pictures(content: Any) -> list[Picture]:
    """The pictures of a message, in order."""
    if isinstance(content, str) or not _is_parts(content):
        return []
    return [_part_picture(part) for part in content if not _is_text(part)]


def with_text(content: Any, text: str) -> Any:
    """The content with another text: its pictures stay, and come first."""
    if isinstance(content, str) or not _is_parts(content):
        return text
    return [*(part for part in content if not _is_text(part)), text_part(text)]


def with_placeholders(content: Any, placeholder: str) -> str:
    """The content as one text, with this text in place of each picture."""
    if isinstance(content, str) or not _is_parts(content):
        return str(content)
    if any(placeholder in content_text([part]) for part in content if _is_text(part)):
        raise InvalidPicture(
            f"the text of a message holds {placeholder}, which stands for a picture; write it otherwise"
        )
    return "".join(content_text([part]) if _is_text(part) else placeholder for part in content)


def describe_content(content: Any) -> str:
    """The content for people to read: a picture as its size."""
    if isinstance(content, str) or not _is_parts(content):
        return str(content)
    return "\n".join(
        content_text([part]) if _is_text(part) else _describe_picture(_part_picture(part)) for part in content
    )


def _describe_picture(picture: Picture) -> str:
    return f"[picture: {picture.width} x {picture.height} pixels]"


def decode_data_url(url: str) -> Picture:
    """The picture of a PNG data URL."""
    if not url.startswith(_DATA_URL):
        raise InvalidPicture(
            f"the picture {short_repr(url[:60])} is not in the message: give it as {_DATA_URL}... (nothing is fetched)"
        )
    return _decode_base64(url.removeprefix(_DATA_URL))


@lru_cache(maxsize=64)  # a prompt is encoded, checked and shown, each time from its message
def _decode_base64(text: str) -> Picture:
    try:
        return read_png(base64.b64decode(text, validate=True))
    except binascii.Error:
        raise InvalidPicture("the picture is not valid base64; encode the whole PNG file") from None


def _is_parts(content: Any) -> bool:
    return isinstance(content, Sequence) and not isinstance(content, str | bytes)


def _is_text(part: Any) -> bool:
    if isinstance(part, str):
        return True
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXT_TYPES and isinstance(part.get("text"), str):
        return True
    if kind in _IMAGE_TYPES:
        return False
    raise InvalidPicture(
        f"a part of the message is {short_repr(part)}; give parts of type text (with a text) or image_url"
    )


def _part_picture(part: Mapping[str, Any]) -> Picture:
    """The picture of a part, in whichever of the shapes it comes."""
    value = next((part[key] for key in ("image_url", "image", "url", "base64", "path") if key in part), None)
    if isinstance(value, Mapping):
        value = value.get("url")
    if isinstance(value, Picture):
        return value
    if isinstance(value, str):
        return _decode_base64(value) if "base64" in part else decode_data_url(value)
    raise InvalidPicture(f"a part of type {part['type']} has no picture; give it as {_DATA_URL}...")
