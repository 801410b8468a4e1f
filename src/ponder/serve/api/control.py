"""`POST /v1/chat/completions/control`: end the thinking of a running request, or cancel it."""

from __future__ import annotations

from typing import Any

from ponder.serve.json_body import Fields
from ponder.serve.running_requests import RunningRequests

ACTIONS = ("reasoning_end", "cancel")


def control_request(fields: Fields, running: RunningRequests, owner: str) -> dict[str, Any]:
    """Act on the request whose `id` is that of its chunks (`chatcmpl-...`), and of the header x-request-id."""
    request_id = fields.required_text("id", 200)
    action = fields.choice("action", ACTIONS)
    if action is None:
        raise fields.error("action", f"one of {', '.join(ACTIONS)}")
    fields.refuse_unread(())
    control = running.find(request_id, owner).control
    if action == "reasoning_end":
        control.end_thinking.set()
    else:
        control.cancel()
    return {"id": request_id, "object": "chat.completion.control", "action": action}
