"""Encode a conversation with pictures: each becomes tiles, and each tile a run of ids below 0.

The text around tiles is Idefics3's where the tokenizer has its tokens; a model from scratch sees the runs alone. For
Qwen2.5-VL a picture is one run of its own length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ponder.errors import UsageError
from ponder.models import qwen_picture_prompt
from ponder.models.chat_templates import render_chat_for
from ponder.models.tokenizer import Tokenizer
from ponder.nets.picture_table import table_for
from ponder.nets.qwen_vision_config import QwenVisionConfig
from ponder.nets.vision_config import VisionConfig
from ponder.pictures.message_parts import content_pictures, image_part, with_placeholders
from ponder.pictures.picture import Picture
from ponder.pictures.resize import resize
from ponder.types import Ids, Message, ids

IMAGE_TEXT, FAKE_TEXT, GLOBAL_TEXT = "<image>", "<fake_token_around_image>", "<global-img>"
# A template that goes through the parts of a message itself.
_READS_PARTS = re.compile(r"""(\[['"]type['"]\]|\.type)\s*==\s*['"]image['"]""")


class Tiles(NamedTuple):
    """A picture as square tiles: rows of crops, and the whole."""

    rows: list[list[Picture]]  # none: the picture is not split
    whole: Picture


def encode_pictures(
    tokenizer: Tokenizer, messages: Sequence[Message], vision: VisionConfig | QwenVisionConfig, **extra: Any
) -> Ids:
    """The tokens of a conversation up to the assistant's answer. While the array lives, its pictures stay in memory."""
    pictures = [picture for message in messages for picture in content_pictures(message.get("content"))]
    qwen = isinstance(vision, QwenVisionConfig)
    image_text = qwen_picture_prompt.IMAGE_TEXT if qwen else IMAGE_TEXT
    marked = qwen and tokenizer.inner.token_to_id(qwen_picture_prompt.START_TEXT) is not None
    written = f"{qwen_picture_prompt.START_TEXT}{image_text}{qwen_picture_prompt.END_TEXT}" if marked else image_text
    text = render_chat_for(
        tokenizer, [_as_template_takes_it(m, tokenizer, image_text, written) for m in messages], **extra
    )
    pieces = text.split(image_text)
    if len(pieces) != len(pictures) + 1:
        raise UsageError(
            f"the prompt has {len(pieces) - 1} times {image_text} for {len(pictures)} pictures: write it otherwise in"
            " your text, or take a chat template that shows every picture"
        )
    out = [tokenizer.encode(pieces[0], add_special_tokens=False)]
    for picture, piece in zip(pictures, pieces[1:], strict=True):
        if isinstance(vision, QwenVisionConfig):
            out.append(qwen_picture_prompt.encode_picture(picture, vision))
        else:
            out += [*encode_tiles(tokenizer, split_into_tiles(picture, vision), vision)]
        out.append(tokenizer.encode(piece, add_special_tokens=False))
    return table_for(None if qwen else vision.tokens).keep(ids(np.concatenate(out)))


def split_into_tiles(picture: Picture, vision: VisionConfig) -> Tiles:
    """Where the tower splits: the longest side resized to `split_pixels`, the sides up to whole tiles, and cut."""
    side = vision.image_size
    if vision.split_pixels is None:
        return Tiles([], resize(picture, side, side))
    scale = vision.split_pixels / max(picture.size)
    across, down = (max(1, math.ceil(round(length * scale) / side)) for length in picture.size)
    large = resize(picture, across * side, down * side)
    if across == down == 1:
        return Tiles([], large)
    rows = [[_crop(large, x * side, y * side, side) for x in range(across)] for y in range(down)]
    return Tiles(rows, resize(large, side, side))


def encode_tiles(tokenizer: Tokenizer, tiles: Tiles, vision: VisionConfig) -> list[Ids]:
    """The ids of a picture's tiles, with the text around them."""
    table = table_for(vision.tokens)
    named = tokenizer.inner.token_to_id(FAKE_TEXT) is not None

    def text(written: str) -> Ids:
        return tokenizer.encode(written, add_special_tokens=False) if named else ids([])

    out: list[Ids] = []
    for r, row in enumerate(tiles.rows, 1):
        for c, tile in enumerate(row, 1):
            out += [text(f"{FAKE_TEXT}<row_{r}_col_{c}>"), table.add(tile)]
        out.append(text("\n"))
    opening = "\n" if tiles.rows else ""
    return [*out, text(f"{opening}{FAKE_TEXT}{GLOBAL_TEXT}"), table.add(tiles.whole), text(FAKE_TEXT)]


def _as_template_takes_it(message: Message, tokenizer: Tokenizer, image_text: str, written: str) -> Message:
    """`written`: what a template that takes texts shows for a picture; it holds `image_text`."""
    content = message.get("content")
    text = with_placeholders(content, image_text)  # refuses the placeholder in a text beside pictures
    text = text.replace(image_text, written)
    if content is None or isinstance(content, str):
        parts: Any = [{"type": "text", "text": content or ""}]
    else:
        parts = [{"type": "image"} if content_pictures([part]) else {"type": "text", "text": part["text"]}
                 for part in content]  # fmt: skip
    takes_parts = _READS_PARTS.search(tokenizer.chat_template or "") is not None
    return {**message, "content": parts if takes_parts else text}


def _crop(picture: Picture, x: int, y: int, side: int) -> Picture:
    return Picture.from_pixels(np.ascontiguousarray(picture.pixels[y : y + side, x : x + side]))


def without_pictures(messages: Sequence[Message]) -> list[Message]:
    """The conversation with a grey picture in place of each: what a model answers that cannot see."""
    return [{**m, "content": _greyed(m.get("content"))} for m in messages]


def _greyed(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content
    return [image_part(_grey(shown[0])) if (shown := content_pictures([part])) else part for part in content]


def _grey(picture: Picture) -> Picture:
    return Picture(picture.width, picture.height, bytes([128]) * len(picture.rgb))
