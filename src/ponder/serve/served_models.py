"""The models that a server has: policies by name, with their guides, and scorers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ponder.errors import UsageError
from ponder.models import chat_templates
from ponder.models.base_policy import BasePolicy
from ponder.models.openai_policy import OpenAIPolicy
from ponder.models.picture_prompt import encode_pictures
from ponder.models.ponder_policy import AdapterPolicy, PonderPolicy
from ponder.pictures.message_parts import content_pictures
from ponder.protocols import Policy, Scorer
from ponder.reason.operators.self_evaluate import PTrue
from ponder.reason.presets import PRESETS
from ponder.reason.scorers import Likelihood
from ponder.reason.strategies import STRATEGIES
from ponder.reason.tools.tool_messages import takes_tools, without_tool_roles
from ponder.serve.errors import not_found
from ponder.types import Ids, Message, ids

DEFAULT_THINK_START, DEFAULT_THINK_END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ThinkMarkers:
    """The texts around a model's thinking."""

    start: str = DEFAULT_THINK_START
    end: str = DEFAULT_THINK_END


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A policy under a name. `think`: None where the model does not think before it answers."""

    name: str
    policy: Policy
    think: ThinkMarkers | None = None
    guides: Mapping[str, Scorer] = field(default_factory=dict)  # by the names that requests may give
    created: int = field(default_factory=lambda: int(time.time()))
    root: str = ""  # the model that this is, or is an adapter of

    def __post_init__(self) -> None:
        own = {"likelihood": Likelihood(), "p_true": PTrue(self.policy)}  # need nothing but the policy
        object.__setattr__(self, "guides", {**own, **self.guides})

    @cached_property
    def base(self) -> BasePolicy | None:
        """The policy with the tokenizer; None for a policy that has none."""
        inner: Any = self.policy.policy if isinstance(self.policy, AdapterPolicy) else self.policy
        return inner if isinstance(inner, BasePolicy) else None

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together."""
        return self.base.context_length if self.base is not None else 1 << 30

    def encode(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), **template_fields: Any
    ) -> Ids:
        """The prompt of a conversation, by the model's own chat template."""
        if any(content_pictures(message.get("content")) for message in messages):
            return self._encode_pictures(messages, tools, template_fields)
        base = self.base
        template = None if base is None or isinstance(base, OpenAIPolicy) else base.tokenizer.chat_template
        if not takes_tools(template):
            messages = without_tool_roles(messages, tools)
        elif tools:
            template_fields["tools"] = list(tools)
        if base is None or isinstance(base, OpenAIPolicy):
            return self.policy.encode(messages)
        return chat_templates.encode_chat(base.tokenizer, messages, **template_fields)

    def _encode_pictures(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], template_fields: Mapping[str, Any]
    ) -> Ids:
        base = self.base
        vision = base.net.config.vision if isinstance(base, PonderPolicy) else None
        if base is None or vision is None:
            raise UsageError(f"{self.name} reads text only; ask a vision-language model about pictures")
        if tools:
            raise UsageError("a conversation with pictures cannot have tools yet; leave out one of them")
        return encode_pictures(base.tokenizer, messages, vision, **template_fields)

    def text(self, token_ids: Sequence[int]) -> str:
        base = self.base
        if base is None:
            return self.policy.text(ids(token_ids))
        return base.tokenizer.decode(token_ids, keep_special=True)


def find_think_markers(policy: Policy) -> ThinkMarkers | None:
    """The usual markers, where the model's chat template or vocabulary has their end."""
    tokenizer = getattr(policy, "tokenizer", None)
    if tokenizer is None:
        return None
    template = tokenizer.chat_template or ""
    known = tokenizer.inner.token_to_id(DEFAULT_THINK_END) is not None
    return ThinkMarkers() if known or DEFAULT_THINK_END in template else None


class ServedModels:
    """Models and scorers by name. `NAME:STRATEGY` is a model with a strategy."""

    def __init__(self, models: Sequence[ServedModel] = (), scorers: Mapping[str, Scorer] | None = None) -> None:
        self.models = {model.name: model for model in models}
        self.scorers = dict(scorers or {})  # reward, process and value models, for /v1/score
        self.created = int(time.time())

    def find(self, name: str | None) -> tuple[ServedModel, str]:
        """The model of this name, and the strategy after a colon; without a name, the server's only model."""
        if not name and len(self.models) == 1:
            return next(iter(self.models.values())), ""
        if (model := self.models.get(name or "")) is not None:
            return model, ""
        base, _, strategy = (name or "").rpartition(":")
        if base in self.models and (strategy in STRATEGIES or strategy in PRESETS):
            return self.models[base], strategy
        known = ", ".join(self.models) or "none"
        what = f"no model named {name[:200]!r}" if name else "the request names no `model`"
        raise not_found(f"{what}; this server has {known}", "model_not_found", "model")
