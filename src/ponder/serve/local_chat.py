"""The model of `ponder chat` in this process: the reasoner of the server, without a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from ponder.errors import UsageError
from ponder.models.guides import check_guide, load_guide
from ponder.models.load import load_inference_policy
from ponder.sampling import Sampling
from ponder.serve.chat_backends import ChatSettings
from ponder.serve.errors import ApiError
from ponder.serve.events import Event
from ponder.serve.generation import GenerationRequest, StrategySpec
from ponder.serve.limits import Limits
from ponder.serve.load_models import default_name, own_guides
from ponder.serve.reasoner import reason
from ponder.serve.running_requests import Control
from ponder.serve.served_models import ServedModel, find_think_markers
from ponder.types import Message


class LocalBackend:
    """A `ChatBackend` over a model in this process. `guide`: the name of the guide that strategies use."""

    def __init__(self, model: ServedModel, guide: str = "") -> None:
        self.model, self.guide = model, guide

    @classmethod
    def load(
        cls, model: str, guide: str = "", template: str | None = None, device: str = "auto", dtype: str = "auto"
    ) -> LocalBackend:
        check_guide(guide)
        policy = load_inference_policy(model, template, device, dtype)
        scorer = load_guide(guide, policy, None, device, dtype)
        guides = own_guides(policy) | ({} if scorer is None else {guide: scorer})
        return cls(ServedModel(default_name(model), policy, find_think_markers(policy), guides), guide)

    @property
    def name(self) -> str:
        return self.model.name

    async def stream(self, messages: Sequence[Message], settings: ChatSettings) -> AsyncGenerator[Event]:
        request = chat_request(self.name, messages, settings, self.guide)
        try:
            async with aclosing(reason(request, self.model, Control(), Limits())) as events:
                async for event in events:
                    yield event
        except ApiError as error:
            raise UsageError(error.message) from None


def chat_request(model: str, messages: Sequence[Message], settings: ChatSettings, guide: str = "") -> GenerationRequest:
    """What the settings of a chat ask for. Earlier thoughts are not sent again."""
    sampling, given = Sampling(), frozenset[str]()
    if settings.temperature is not None:
        sampling, given = Sampling(temperature=settings.temperature), frozenset(("temperature",))
    strategy = None
    if settings.strategy is not None:
        strategy = StrategySpec(settings.strategy, guide=guide)
    return GenerationRequest(
        model,
        tuple({"role": m["role"], "content": m["content"]} for m in messages),
        sampling=sampling,
        given=given,
        seed=settings.seed,
        max_tokens=settings.max_tokens,
        effort=settings.effort,
        strategy=strategy,
    )
