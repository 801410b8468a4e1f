"""The `openai` policy: any server that speaks OpenAI's protocol, such as vLLM, llama.cpp, Ollama or OpenAI itself.

Two ways to talk, and the tokenizer decides which:

- With a tokenizer (the model's own, from a local folder), prompts and answers are token ids. vLLM and llama.cpp can do
  this (llama.cpp through its own `/completion`, since its `/v1/completions` loses tokens that end inside a character).
- Without one, they are text, and tokens are the text's bytes (see `spoken`). A conversation goes to
  `/v1/chat/completions`; where a chat template was given, its text goes to `/v1/completions`.

What a server cannot tell is NaN, never made up: in text, every log-probability; from llama.cpp, that of a token which
ends inside a character or belongs to a stop string, and all where a schema rules, an option changes a greedy choice, or
alternatives (which are of the model's own distribution) are asked for and another is sampled from. vLLM's are those of
its `--logprobs-mode`: by default of the model's own distribution, before temperature and truncation; start it with
`processed_logprobs` for those of the distribution sampled from.

Each of a call's n continuations is a request of its own with a seed of its own, so the first of n does not depend on n.
A seed fixes what is drawn as far as the server keeps its promise. Costs are what the server counts, within what can be
true of the text that came (see `heard`); FLOPs are unknown. Text beyond `max_tokens` is cut, with a warning.

An `effort` (`ponder.reason.effort`) goes with every request of a conversation, as the server's own reasoning effort.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from ponder.engine.request import Request, SequenceState
from ponder.errors import MAX_NAME_CHARS, ModelError, UnknownName, UsageError
from ponder.models import byte_tokenizer, chat_templates, sampling_params, server_replies
from ponder.models.base_policy import BasePolicy
from ponder.models.http_client import HttpClient, RequestRefused
from ponder.models.sampling_params import ServerKind
from ponder.models.tokenizer import Tokenizer
from ponder.reason.effort import get_effort
from ponder.terminal import escape_controls
from ponder.types import Completion, Cost, Ids, Message, ids

_SERVER_KINDS: dict[str, ServerKind] = {"vllm": "vllm", "llamacpp": "llama.cpp"}
_TOKENIZER_PROBE = "The quick brown fox jumps over 13 lazy dogs."  # splits otherwise under most other vocabularies
_MALFORMED_REPLY_ERRORS = (
    KeyError,
    TypeError,
    IndexError,
    ValueError,
    AttributeError,
    OverflowError,
    RecursionError,
)  # what reading an answer of another shape raises


_MAX_PADDING_ROWS = 1 << 16  # rows that an embedding may have beyond the tokenizer's ids


@dataclass(eq=False, slots=True)
class _ServerSequence(SequenceState):
    cost: Cost = Cost()


class OpenAIPolicy(BasePolicy):
    """A `Policy` over a server. Get one with `connect`."""

    def __init__(
        self,
        http: HttpClient,
        model: str | None,
        kind: ServerKind = "other",
        tokenizer: Tokenizer | None = None,
        template: str | None = None,
        context: int | None = None,
        seed: int = 0,
        effort: str | None = None,
    ) -> None:
        known = tokenizer or byte_tokenizer.make_tokenizer()
        limit = context if tokenizer and context else sys.maxsize  # of text, the server counts the tokens
        super().__init__(known, known.vocab_size, limit, seed)
        self.http, self.model, self.server_kind, self.context = http, model, kind, context
        self.sends_token_ids, self.template, self.effort = tokenizer is not None, template, effort
        self._warned = False

    @classmethod
    def connect(
        cls,
        url: str,
        model: str | None = None,
        tokenizer: Tokenizer | None = None,
        template: str | None = None,
        api_key: str | None = None,
        seed: int = 0,
        *,
        max_concurrency: int = 64,
        timeout: float = 600.0,
        retries: int = 4,
        effort: str | None = None,
    ) -> OpenAIPolicy:
        """Ask a server what it serves. `model`: None where it has one only. `at_once`: most requests in flight.
        `timeout`: seconds of silence; a whole answer may take a second more for each token that it may have. `effort`:
        how hard the served model is to think. The key is `api_key`, else OPENAI_API_KEY, which is not sent in the clear
        to another machine."""
        if effort is not None:
            get_effort(effort)  # says which there are
            if tokenizer is not None or template is not None:
                raise UsageError("a reasoning effort is for a server's chat: leave out the tokenizer and the template")
        url = url.rstrip("/") if urlsplit(url).path.strip("/") else url.rstrip("/") + "/v1"
        http = HttpClient(url, _api_key(url, api_key), max_concurrency, timeout, retries)
        name, told = _choose_model(http, model)
        kind = _SERVER_KINDS.get(str(told.get("owned_by", "")), "other")
        meta = told["meta"] if isinstance(told.get("meta"), dict) else {}
        context, size = (
            _positive_int(told.get("max_model_len")) or _positive_int(meta.get("n_ctx")),
            _positive_int(meta.get("n_vocab")),
        )
        policy = cls(http, name, kind, tokenizer, template, context, seed, effort)
        if tokenizer is not None:
            if size is not None:
                if not tokenizer.vocab_size <= size <= tokenizer.vocab_size + _MAX_PADDING_ROWS:
                    raise ModelError(f"the tokenizer does not fit: {tokenizer.vocab_size} ids, but {url} serves {size}")
                policy.vocab_size = size  # an embedding may have more rows than the tokenizer has ids
            policy._check_tokenizer(tokenizer)
            if template is not None:
                policy.tokenizer = chat_templates.with_chat_template(tokenizer, template)
        return policy

    def encode(self, messages: Sequence[Message]) -> Ids:
        if self.sends_token_ids:
            return super().encode(messages)
        if self.template is None:
            return byte_tokenizer.encode_messages(messages)
        return ids(byte_tokenizer.to_bytes(chat_templates.render_chat(self.template, messages)))

    async def _generate(self, request: Request) -> list[SequenceState]:
        write = self._generate_token_ids if self.sends_token_ids else self._generate_text
        tasks = [asyncio.ensure_future(self._timed(write, request, j)) for j in range(request.n)]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:  # one failed: nobody waits for the others
            for task in tasks:
                task.cancel()
            raise

    def _flops(self, context: int) -> float:
        return 0.0

    def _completion(self, row: SequenceState) -> Completion:
        assert isinstance(row, _ServerSequence)
        return replace(super()._completion(row), cost=row.cost)

    async def _timed(
        self, write: Callable[[Request, int], Awaitable[_ServerSequence]], request: Request, number: int
    ) -> SequenceState:
        began = time.perf_counter()
        row = await write(request, number)
        row.cost = replace(row.cost, seconds=time.perf_counter() - began)
        row.versions = [self.version] * max(1, len(row.token_ids))
        self.on_tokens(row.cost.generated_tokens)
        return row

    # prompts and answers as token ids

    async def _generate_token_ids(self, request: Request, number: int) -> _ServerSequence:
        seed = sampling_params.continuation_seed(request.seed, number)
        limit = self.context or len(request.prefix) + request.sampling.max_tokens
        body = sampling_params.token_request_fields(request.sampling, self.server_kind, seed, limit, self.eos)
        body |= {"model": self.model, "prompt": request.prefix.tolist()}
        row = _new_sequence(request, number)
        if self.server_kind == "llama.cpp":
            url, hear = self._server_root + "/completion", self._parse_llama_cpp
        else:
            url, hear = self.http.url + "/completions", self._parse_vllm
        s = request.sampling
        found = await self.http.post(url, body, self.http.limits(s.max_tokens, len(request.prefix), s.logprobs))
        try:
            hear(row, found)
        except _MALFORMED_REPLY_ERRORS as reason:
            raise self._malformed(found, reason) from None
        most = request.sampling.max_tokens
        if not 0 < len(row.token_ids) <= most or not 0 <= min(row.token_ids) <= max(row.token_ids) < self.vocab_size:
            raise ModelError(
                f"{self.http.url} wrote {len(row.token_ids)} tokens of {most}, which must be each below {self.vocab_size}: "
                "it does not keep to what it is asked"
            )
        return row

    def _parse_llama_cpp(self, row: _ServerSequence, found: Any) -> None:
        row.token_ids = written = [server_replies.require_int(t) for t in found["tokens"]]
        row.stop = {"eos": "eos", "word": "stop", "limit": "length"}[found["stop_type"]]  # type: ignore[assignment]
        ends = [i for i, t in enumerate(written) if t in self.eos]
        if ends:  # it may not know all that end an answer, and write on
            row.token_ids, row.stop = written[: ends[0] + 1], "eos"
        count, times = len(row.token_ids), found["timings"]
        told: dict[str, Any] = {
            "prompt_tokens": server_replies.require_int(times["prompt_n"])
            + server_replies.require_int(times["cache_n"])
        }
        told |= {"prompt_tokens_details": {"cached_tokens": times["cache_n"]}}
        told |= {"completion_tokens": found["tokens_predicted"]}
        row.cost = server_replies.parse_usage(told, len(row.request.prefix), len(written), row.sampling.max_tokens)
        row.cost = replace(row.cost, wasted_tokens=row.cost.generated_tokens - count)
        s, top = row.sampling, row.sampling.logprobs
        known = not s.json_schema and not (
            s.edits_logits if s.temperature == 0 else top and sampling_params.changes_distribution(s)
        )
        logprobs, tops = [math.nan] * len(written), [server_replies.top_k((), top)] * len(written)
        for at, entry in server_replies.match_logprobs(
            written, found.get("completion_probabilities") or (), self._is_whole_text
        ):
            logprobs[at] = server_replies.entry_logprob(entry) if known else math.nan
            others = [
                (server_replies.require_int(t["id"]), server_replies.entry_logprob(t))
                for t in entry.get("top_logprobs", ())
            ]
            tops[at] = server_replies.top_k(others, top)
        row.logprobs, row.top_logprobs = logprobs[:count], tops[:count] if top else []

    def _is_whole_text(self, token: int) -> bool:
        return "\ufffd" not in self.tokenizer.decode([token], keep_special=True)

    def _parse_vllm(self, row: _ServerSequence, found: Any) -> None:
        (choice,), top = server_replies.single_choice(found["choices"]), row.sampling.logprobs
        if choice.get("token_ids") is None:
            raise UsageError(f"{self.http.url} gives no token ids: leave out the tokenizer, to talk in text")
        row.token_ids = [server_replies.require_int(t) for t in choice["token_ids"]]
        told = choice.get("logprobs") or {}
        given = told.get("token_logprobs") or [None] * len(row.token_ids)
        row.logprobs = [math.nan if x is None else server_replies.require_logprob(x) for x in given]
        if len(row.logprobs) != len(row.token_ids):
            raise ValueError(f"{len(row.token_ids)} tokens with {len(row.logprobs)} log-probabilities")
        row.stop = self._stop_reason(choice["finish_reason"])
        if row.stop == "eos" and choice.get("stop_reason") is not None and row.token_ids[-1] not in self.eos:
            row.stop = "stop"
        wrote = len(row.token_ids)
        row.cost = server_replies.parse_usage(found.get("usage") or {}, len(row.request.prefix), wrote, wrote)
        if top:
            each = [
                [(int(t.removeprefix("token_id:")), server_replies.require_logprob(x)) for t, x in d.items()]
                for d in told["top_logprobs"]
            ]
            row.top_logprobs = [server_replies.top_k(t, top) for t in each]

    def _check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """A tokenizer of another model would turn every answer to nonsense: the server splits a text too."""
        if self.server_kind == "other":
            return
        asked = (
            {"content": _TOKENIZER_PROBE}
            if self.server_kind == "llama.cpp"
            else {"model": self.model, "prompt": _TOKENIZER_PROBE}
        )
        try:
            found = self.http.request_blocking(
                "POST", self._server_root + "/tokenize", {**asked, "add_special_tokens": False}
            )
        except RequestRefused:
            return  # it has no such service
        theirs = found.get("tokens") if isinstance(found, dict) else None
        try:
            ours = tokenizer.encode(_TOKENIZER_PROBE, add_special_tokens=False).tolist()
        except UsageError:
            ours = []
        if theirs is not None and theirs != ours:
            raise ModelError(
                f"the tokenizer is not that of {self.model!r} at {self.http.url}: the two split a text otherwise; "
                "give the served model's own"
            )

    # prompts and answers as text

    async def _generate_text(self, request: Request, number: int) -> _ServerSequence:
        said, sampling = byte_tokenizer.decode_prefix(request.prefix), request.sampling
        body: dict[str, Any] = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        limit = self.context or 1 << 16
        spoke = not isinstance(said, str)
        body |= sampling_params.text_request_fields(
            sampling, self.server_kind, sampling_params.continuation_seed(request.seed, number), limit, spoke
        )
        if self.effort is not None and spoke:
            body |= sampling_params.reasoning_effort_fields(self.effort, self.server_kind)
        path, body["messages" if spoke else "prompt"] = ("/chat/completions" if spoke else "/completions"), said
        if isinstance(said, list):
            if not said[-1]["content"]:
                said.pop()
            elif self.server_kind == "other":
                raise UsageError(
                    f"whether the chat at {self.http.url} goes on with a half-written answer or begins another is not "
                    "known: give the model's tokenizer or a template, or let each answer be written in one go"
                )
            else:
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        row = _new_sequence(request, number)
        try:
            limits = self.http.limits(sampling.max_tokens, len(request.prefix))
            read = server_replies.stream_reader(sampling.stop, sampling.max_tokens)
            said_now = await self.http.stream(self.http.url + path, body, read, limits)
            row.cost = server_replies.parse_usage(
                said_now.reported_usage, len(request.prefix), said_now.min_tokens, sampling.max_tokens
            )
        except RequestRefused as reason:
            if reason.status == 404 and not spoke:
                raise UsageError(f"{reason}; if it has a chat only, give no template") from None
            if self.effort is not None and "effort" in reason.message:
                raise UsageError(
                    f"{reason}; to bound answers and tokens alone, give --n and --max-tokens in place of an effort"
                ) from None
            raise
        except _MALFORMED_REPLY_ERRORS as reason:
            raise self._malformed("its stream", reason) from None
        if said_now.truncated:
            self._warn_truncated(sampling.max_tokens)
        row.stop = "stop" if said_now.finish_reason is None else self._stop_reason(said_now.finish_reason)
        row.token_ids = [
            *said_now.text.encode(errors="replace"),
            *([byte_tokenizer.END_ID] if row.stop == "eos" else []),
        ]
        row.logprobs = [math.nan] * len(row.token_ids)
        return row

    # both

    @property
    def _server_root(self) -> str:
        """Where a server has what is not OpenAI's."""
        return self.http.url.removesuffix("/v1")

    def _warn_truncated(self, most: int) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"{self.http.url} wrote more than max_tokens ({most}): what came beyond is cut", stacklevel=2)

    def _stop_reason(self, reason: Any) -> Any:
        if reason not in ("stop", "length"):
            raise ModelError(f"{self.http.url} broke off an answer: {escape_controls(str(reason)[:200])}")
        return "eos" if reason == "stop" else "length"

    def _malformed(self, found: Any, reason: Exception) -> ModelError:
        try:
            said = self.http.redact_key(f"{found!r}"[:200])
        except RecursionError:
            said = "nested too deep to be shown"
        why = self.http.redact_key(f"{type(reason).__name__}: {reason}"[:200])
        return ModelError(f"{self.http.url} sent what no such server sends ({why}): {said}")


def _api_key(url: str, given: str | None) -> str | None:
    """A key for one service must not go to another machine in the clear because it is in the environment."""
    key = (given if given is not None else os.environ.get("OPENAI_API_KEY", "")).strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError("the API key has characters that no key has; set OPENAI_API_KEY anew")
    parts = urlsplit(url)
    near = parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")
    return (key or None) if near or given is not None else None


def _choose_model(http: HttpClient, model: str | None) -> tuple[str | None, Mapping[str, Any]]:
    """The model's name, and what the server says of it."""
    try:
        found = http.request_blocking("GET", http.url + "/models")
    except RequestRefused as reason:
        if reason.status != 404:
            raise
        if model is None:
            raise UsageError(f"{http.url} does not list its models: name one, as in openai:{http.url}#NAME") from None
        return model, {}
    listed = found.get("data") if isinstance(found, dict) else None
    if not isinstance(listed, list) or not all(isinstance(m, dict) and isinstance(m.get("id"), str) for m in listed):
        raise ModelError(f"{http.url}/models lists no models: is it the address of an OpenAI-compatible server?")
    others = [(a, m) for m in listed if isinstance(m.get("aliases"), list) for a in m["aliases"] if isinstance(a, str)]
    names = {m["id"]: m for m in listed} | dict(others)
    if model is None and len(listed) == 1:
        return listed[0]["id"], listed[0]
    if model is None:
        some = ", ".join(name[:MAX_NAME_CHARS] for name in sorted(names)[:20]) + ("" if len(names) <= 20 else ", …")
        raise UsageError(f"{http.url} serves {len(listed)} models; name one, as in openai:{http.url}#NAME: {some}")
    if model not in names:
        raise UnknownName(f"model at {http.url}", model, names)
    return model, names[model]


def _positive_int(told: Any) -> int | None:
    """A positive number that a server says of its model; None where it says none that could be."""
    return told if type(told) is int and 0 < told < 1 << 31 else None


def _new_sequence(request: Request, number: int) -> _ServerSequence:
    return _ServerSequence(request, number, 0)  # the server draws its own numbers
