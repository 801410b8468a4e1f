"""Pictures in messages, in the shapes of OpenAI and Hugging Face."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from ponder.errors import UsageError
from ponder.pictures import message_parts as parts
from ponder.pictures.picture import Picture
from ponder.pictures.png import write_png
from ponder.types import Problem

PICTURE = Picture.from_pixels(np.arange(36, dtype=np.uint8).reshape(3, 4, 3))
URL = parts.data_url(PICTURE)
TEXT = {"type": "text", "text": "What is it?"}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        {"type": "image_url", "image_url": URL},
        {"type": "input_image", "image_url": URL},
        {"type": "image", "image": URL},
        {"type": "image", "url": URL},
        {"type": "image", "base64": base64.b64encode(write_png(PICTURE)).decode()},
        {"type": "image", "image": PICTURE},
    ],
)
def test_picture_is_read_in_every_shape(part):
    assert parts.content_pictures([part, TEXT]) == [PICTURE]
    assert parts.content_text([part, TEXT]) == "What is it?"
    assert parts.with_placeholders([part, TEXT], "<image>") == "<image>What is it?"


@pytest.mark.parametrize(
    ("part", "match"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}, "nothing is fetched"),
        ({"type": "image", "path": "/etc/passwd"}, "nothing is fetched"),
        ({"type": "image", "url": "data:image/gif;base64,AAAA"}, "nothing is fetched"),
        ({"type": "image", "base64": "!!"}, "not valid base64"),
        ({"type": "image", "base64": "AAAA"}, "neither PNG nor JPEG"),
        ({"type": "image"}, "has no picture"),
        ({"type": "audio", "audio": ""}, "parts of type text"),
        (7, "parts of type text"),
    ],
)
def test_part_that_is_no_picture_is_refused(part, match):
    with pytest.raises(UsageError, match=match):
        parts.content_pictures([part, TEXT])


def test_placeholder_in_the_text_is_refused():
    with pytest.raises(UsageError, match="stands for a picture"):
        parts.with_placeholders([parts.image_part(PICTURE), parts.text_part("an <image>?")], "<image>")


def test_another_text_keeps_the_picture():
    content = parts.with_text([TEXT, parts.image_part(PICTURE)], "Why?")
    assert parts.content_pictures(content) == [PICTURE] and parts.content_text(content) == "Why?"
    assert parts.with_text("What?", "Why?") == "Why?"


def test_question_of_a_problem_is_its_text():
    problem = Problem("1", ({"role": "user", "content": [parts.image_part(PICTURE), TEXT]},))
    assert problem.question == "What is it?"
    assert parts.describe_content(problem.messages[0]["content"]) == "[picture: 4 x 3 pixels]\nWhat is it?"
