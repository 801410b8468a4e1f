"""The content of a message: a text, or a list of parts, some of which are pictures.

Parts are read in the shapes of OpenAI (`image_url`, `input_image`) and Hugging Face (`image` with `image`, `url` or
`base64`). A picture must be in the message itself, as a data URL or base64 text of a PNG, or of a JPEG or WebP where
Pillow is installed: nothing is fetched, and no file is opened, since messages may be a stranger's. Parts are plain
JSON, so that problems, traces and datasets keep them as they are.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ponder.pictures.picture import InvalidPicture, Picture
from ponder.pictures.picture_files import read_picture
from ponder.pictures.png import write_png
from ponder.validate import short_repr

Content = str | Sequence[Any]  # a text, or parts

_TEXT_TYPES = ("text", "input_text", "output_text")
_IMAGE_TYPES = ("image", "image_url", "input_image")
_IMAGE_KEYS = ("image_url", "image", "url", "base64", "path")
_DATA_URL = "data:image/png;base64,"
_DATA_URLS = (_DATA_URL, "data:image/jpeg;base64,", "data:image/jpg;base64,", "data:image/webp;base64,")


def data_url(picture: Picture) -> str:
    return _DATA_URL + base64.b64encode(write_png(picture)).decode()


def image_part(picture: Picture) -> dict[str, Any]:
    """The part of a message that shows this picture, in OpenAI's shape."""
    return {"type": "image_url", "image_url": {"url": data_url(picture)}}


def place_pictures(messages: Sequence[Mapping[str, Any]], pictures: Sequence[Picture]) -> list[dict[str, Any]]:
    """The messages with these pictures: at the parts `{"type": "image"}` that hold none, in order, as TRL's rows have
    them; where there is no such part, before the text of the last message of the user."""
    out = [dict(message) for message in messages]
    empty = [(m, i) for m, message in enumerate(out) if _is_parts(message.get("content"))
             for i, part in enumerate(message["content"]) if _is_empty_image(part)]  # fmt: skip
    if not empty:
        last = max((m for m, message in enumerate(out) if message.get("role") == "user"), default=None)
        if last is None:
            raise InvalidPicture("the prompt has no message of the user, which would show the picture")
        content = out[last]["content"]
        parts = list(content) if _is_parts(content) else [text_part(str(content))]
        out[last]["content"] = [*map(image_part, pictures), *parts]
        return out
    if len(empty) != len(pictures):
        raise InvalidPicture(
            f"the messages have {len(empty)} places for {len(pictures)} pictures; give as many of both"
        )
    for (m, i), picture in zip(empty, pictures, strict=True):
        out[m]["content"] = [*out[m]["content"][:i], image_part(picture), *out[m]["content"][i + 1 :]]
    return out


def _is_empty_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image" and not any(part.get(key) for key in _IMAGE_KEYS)


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
    """The picture of a data URL."""
    if not is_data_url(url):
        raise InvalidPicture(
            f"the picture {short_repr(url[:60])} is not in the message: give it as {_DATA_URL}... (nothing is fetched)"
        )
    return _decode_base64(url.partition(",")[2])


def is_data_url(url: str) -> bool:
    """Whether a text is a data URL of a picture."""
    return url.startswith(_DATA_URLS)


def base64_bytes(text: str) -> bytes:
    """The bytes of a picture's file in base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidPicture("the picture is not valid base64; encode the whole file of the picture") from None


@lru_cache(maxsize=64)  # a prompt is encoded, checked and shown, each time from its message
def _decode_base64(text: str) -> Picture:
    return read_picture(base64_bytes(text))


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
    value = next((part[key] for key in _IMAGE_KEYS if key in part), None)
    if isinstance(value, Mapping):
        value = value.get("url")
    if isinstance(value, Picture):
        return value
    if isinstance(value, str):
        return _decode_base64(value) if "base64" in part else decode_data_url(value)
    raise InvalidPicture(f"a part of type {part['type']} has no picture; give it as {_DATA_URL}...")
