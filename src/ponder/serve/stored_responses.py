"""Responses that clients asked to keep (`store`), for `previous_response_id` and `GET /v1/responses/{id}`.

They are kept in memory, for each key by itself: no key sees another's, and none can displace another's. Where a key has
too many or too large ones, its oldest go first. A restart forgets them all.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_RESPONSES = 1000  # of one key
MAX_RESPONSE_BYTES = 64 << 20  # of one key's responses together, as JSON


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was sent, and the conversation that it continued."""

    response: Mapping[str, Any]
    input_items: tuple[Mapping[str, Any], ...]  # of this request, without earlier responses
    history: tuple[Mapping[str, Any], ...]  # all items before this response, earlier responses included

    @property
    def conversation(self) -> tuple[Mapping[str, Any], ...]:
        """All items up to the end of this response: what the next one continues."""
        return (*self.history, *self.input_items, *self.response["output"])


class StoredResponses:
    """The responses of all keys. An `owner` is whatever tells one key from another."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self.max_responses, self.max_bytes = max_responses, max_bytes
        self._by_owner: dict[str, OrderedDict[str, tuple[StoredResponse, int]]] = {}
        self._bytes: dict[str, int] = {}

    def put(self, owner: str, stored: StoredResponse) -> bool:
        """Keep a response. False: it is larger than all that a key may keep."""
        size = len(json.dumps([stored.response, stored.input_items, stored.history], ensure_ascii=False).encode())
        if size > self.max_bytes or self.max_responses < 1:
            return False
        mine = self._by_owner.setdefault(owner, OrderedDict())
        self.delete(owner, stored.response["id"])
        mine[stored.response["id"]] = stored, size
        self._bytes[owner] = self._bytes.get(owner, 0) + size
        while len(mine) > self.max_responses or self._bytes[owner] > self.max_bytes:
            _, (_, oldest_size) = mine.popitem(last=False)
            self._bytes[owner] -= oldest_size
        return True

    def get(self, owner: str, response_id: str) -> StoredResponse | None:
        found = self._by_owner.get(owner, OrderedDict()).get(response_id)
        return None if found is None else found[0]

    def delete(self, owner: str, response_id: str) -> bool:
        """Whether there was one."""
        found = self._by_owner.get(owner, OrderedDict()).pop(response_id, None)
        if found is None:
            return False
        self._bytes[owner] -= found[1]
        return True
