"""Pictures in requests: data URLs in a part of a user's message. Nothing is fetched."""

from __future__ import annotations

from typing import Any

from ponder.errors import UsageError
from ponder.pictures.message_parts import decode_data_url
from ponder.serve.errors import invalid
from ponder.serve.json_body import Fields


def read_picture_url(fields: Fields, name: str) -> dict[str, Any]:
    """The part of a message that shows the picture whose data URL stands in this field."""
    url = fields.required_text(name)
    try:
        decode_data_url(url)
    except UsageError as why:
        raise invalid(f"{fields.name(name)}: {why}", fields.name(name), "invalid_image") from None
    return {"type": "image_url", "image_url": {"url": url}}
