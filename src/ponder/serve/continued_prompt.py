"""The prompt of a call that continues an earlier one: the tokens that are there, and those of the new messages.

Nothing is tokenised again. Where the template is append-only its bridge gives the new tokens (`models.turn_bridge`);
else the whole conversation is rendered, and what it says after the text of the tokens that are there is added. If it
does not begin with that text, the conversation was rewritten, and there is nothing to add to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ponder.models.base_policy import BasePolicy
from ponder.models.openai_policy import OpenAIPolicy
from ponder.serve.generation import GenerationRequest
from ponder.serve.served_models import ServedModel
from ponder.types import Ids, Message


def bridged_tokens(
    request: GenerationRequest, model: ServedModel, messages: Sequence[Message], closed: bool
) -> Ids | None:
    """The tokens from the end of an answer up to the next one, by the template's bridge; None if there is none.
    `closed`: the answer ended with the end-of-sequence token."""
    base = model.base
    if not isinstance(base, BasePolicy) or isinstance(base, OpenAIPolicy):
        return None
    if model.think is not None or request.template_fields:  # the template is rendered with more than its messages
        return None
    if any(message["role"] == "assistant" for message in messages):
        return None
    return base.bridge(messages, request.tools if request.tool_choice != "none" else (), closed)


def appended_tokens(before: Ids, whole: Ids, model: ServedModel, closed: bool) -> Ids | None:
    """The tokens to add to those that are there, so that they say what the whole prompt says; None if its text does
    not begin with theirs. `closed`: they end with the end-of-sequence token, which a template may leave out."""
    if len(whole) > len(before) and np.array_equal(whole[: len(before)], before):
        return whole[len(before) :]
    rendered = model.text(whole.tolist())
    for known in (before, before[:-1]) if closed else (before,):
        text = model.text(known.tolist())
        if rendered.startswith(text) and len(rendered) > len(text):
            return model.policy.tokens(rendered[len(text) :])
    return None
