"""`RemoteHeadReader`: the numbers that the head of a served reward, process or value model reads, over HTTP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ponder.errors import ModelError, UsageError
from ponder.models import ponder_server
from ponder.models.http_client import HttpClient
from ponder.models.openai_policy import OpenAIPolicy
from ponder.models.ponder_server import ServedModelInfo
from ponder.models.server_discovery import ServerName, api_key_for, choose_scorer, with_api_path
from ponder.nets.decoder_with_head import ScoreHead
from ponder.types import Cost, Ids


class RemoteHeadReader:
    """Reads a head's numbers at positions of a text, as `HeadReader` does in this process. The server caches them."""

    def __init__(self, http: HttpClient, model: str, info: ServedModelInfo) -> None:
        if info.head is None:
            raise UsageError(f"{model!r} at {http.url} is a language model, which has no head: name a scorer")
        self.http, self.model = http, model
        self.head: ScoreHead = info.head
        self.engine_policy = OpenAIPolicy(http, model, "ponder", info.tokenizer, context=info.context_length)
        self.engine_policy.vocab_size = info.vocab_size

    @classmethod
    def connect(
        cls, address: str, api_key: str | None = None, *, max_concurrency: int = 64, timeout: float = 600.0
    ) -> RemoteHeadReader:
        """Connect to "URL#MODEL"; a server with a single scorer needs no name. The API key is `api_key`, else
        OPENAI_API_KEY, which is never sent in the clear to another machine."""
        server = ServerName.parse(address)
        if server.tokenizer is not None or server.effort is not None:
            raise UsageError(f"{address!r}: a scorer's address is URL#MODEL, with nothing after a ?")
        url = with_api_path(server.url)
        http = HttpClient(url, api_key_for(url, api_key), max_concurrency, timeout, retries=4)
        model = choose_scorer(http, server.model)
        return cls(http, model, ponder_server.fetch_model_info(http, model))

    def text(self, tokens: Ids) -> str:
        return self.engine_policy.text(tokens)

    async def __call__(self, tokens: Ids, at: Sequence[int]) -> tuple[list[float], Cost]:
        """The number at each of these positions, in ascending order, and the cost."""
        body = {"model": self.model, "token_ids": tokens.tolist(), "positions": [int(position) for position in at]}
        reply = await self.http.post(self.http.url + "/score", body, self.http.limits(len(at), len(tokens)))
        try:
            return _parse_scores(reply, len(at)), ponder_server.parse_cost(reply["cost"])
        except (KeyError, TypeError, ValueError, AttributeError) as reason:
            shown = self.http.redact_key(f"{type(reason).__name__}: {reason}"[:200])
            raise ModelError(f"{self.http.url}/score sent what no ponder server sends ({shown})") from None


def _parse_scores(reply: Any, count: int) -> list[float]:
    scores = [math.nan if x is None else float(x) for x in reply["scores"] if x is None or type(x) in (int, float)]
    if len(scores) != count or len(reply["scores"]) != count:
        raise ValueError(f"{len(reply['scores'])} scores for {count} positions")
    return scores
