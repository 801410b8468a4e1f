"""`OpenAIPolicy`: a model behind a server with OpenAI's protocol, such as vLLM, llama.cpp, Ollama or OpenAI itself.

The policy talks to the server in one of two ways:

- With the model's own tokenizer, from a local folder, prompts and answers are token ids. vLLM and llama.cpp support
  this (llama.cpp by its own `/completion`, because its `/v1/completions` drops tokens that end inside a character).
  ponder's own server hands over its tokenizer, so that none need be given, and takes every option of `Sampling`; a seed
  gives the tokens that the model would write in this process (see `ponder_server`).
- Without a tokenizer, prompts and answers are text, and a token is a byte of the text (see `byte_tokenizer`). A
  conversation goes to `/v1/chat/completions`. With a chat template, the rendered text goes to `/v1/completions`.

A log-probability that the server does not report is NaN: all of them in text; with llama.cpp, that of a token which
ends inside a character or belongs to a stop string, and all of them under a JSON schema, where an option changes a
greedy choice, or where `Sampling.logprobs` are asked for (they are of the model's own distribution) and another
distribution is sampled from. vLLM reports what its `--logprobs-mode` says: by default log-probabilities of the model's
own distribution, before temperature and truncation; start it with `processed_logprobs` for those of the distribution
sampled from.

Each of a call's n continuations is a request with a seed of its own, so the first of n does not depend on n. Whether a
seed fixes the draws is up to the server. Costs are the server's counts, limited to what is possible for the text that
arrived (see `server_replies`). Only ponder's own server reports FLOPs. Text beyond `max_tokens` is cut, with a warning.

An `effort` (`ponder.reason.effort`) is sent with every request of a conversation, as the server's reasoning effort.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ponder.errors import ModelError, UsageError
from ponder.models import byte_tokenizer, chat_templates, ponder_server, sampling_params, server_replies
from ponder.models.base_policy import BasePolicy, RawCompletion, build_completion, gather_or_cancel
from ponder.models.http_client import HttpClient, RequestRefused
from ponder.models.sampling_params import ServerKind
from ponder.models.server_discovery import api_key_for, choose_model, positive_int, with_api_path
from ponder.models.tokenizer import Tokenizer
from ponder.reason.effort import get_effort
from ponder.reason.tools.tool_messages import ToolSchema, without_tool_roles
from ponder.types import Completion, Ids, Message, Sampling, StopReason, ids

_SERVER_KINDS: dict[str, ServerKind] = {"vllm": "vllm", "llamacpp": "llama.cpp", ponder_server.OWNED_BY: "ponder"}
_TOKENIZER_PROBE = "The quick brown fox jumps over 13 lazy dogs."  # splits otherwise under most other vocabularies
_MAX_PADDING_ROWS = 1 << 16  # rows that an embedding may have beyond the tokenizer's ids
# Reading a reply of another shape raises one of these.
_MALFORMED_REPLY_ERRORS = (
    KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip


class OpenAIPolicy(BasePolicy):
    """A `Policy` over a server. `OpenAIPolicy.connect` makes one."""

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
        limit = context if tokenizer and context else sys.maxsize  # the server counts the tokens of a text
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
        """Connect to a server and ask which models it serves. `model` may be None where the server has a single one.
        `max_concurrency` bounds the requests in flight. `timeout` is in seconds without a byte; a whole answer may take
        a second more for each of its `max_tokens`. `effort` is the served model's reasoning effort. The API key is
        `api_key`, else OPENAI_API_KEY, which is never sent in the clear to another machine."""
        if effort is not None:
            get_effort(effort)  # refuses an unknown name
            if tokenizer is not None or template is not None:
                raise UsageError("a reasoning effort is for a server's chat: leave out the tokenizer and the template")
        url = with_api_path(url)
        http = HttpClient(url, api_key_for(url, api_key), max_concurrency, timeout, retries)
        name, entry = choose_model(http, model)
        kind = _SERVER_KINDS.get(str(entry.get("owned_by", "")), "other")
        meta = entry["meta"] if isinstance(entry.get("meta"), dict) else {}
        context = positive_int(entry.get("max_model_len")) or positive_int(meta.get("n_ctx"))
        size = positive_int(meta.get("n_vocab"))
        if kind == "ponder" and tokenizer is None and effort is None:
            info = ponder_server.fetch_model_info(http, name)
            if info.head is not None:
                raise UsageError(f"{name!r} at {url} is a scorer, which writes nothing: use it as --guide reward:{url}")
            tokenizer, size, context = info.tokenizer, info.vocab_size, info.context_length
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

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Ids:
        if self.sends_token_ids:
            return super().encode(messages, tools)
        messages = without_tool_roles(messages, tools)
        if self.template is None:
            return byte_tokenizer.encode_messages(messages)
        return ids(byte_tokenizer.to_bytes(chat_templates.render_chat(self.template, messages)))

    def bridge(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), closed: bool = True) -> Ids | None:
        """None where the server renders the conversation: every turn then sends it whole."""
        return super().bridge(messages, tools, closed) if self.sends_token_ids else None

    def turn_content(self, text: str) -> str:
        return super().turn_content(text) if self.sends_token_ids else text

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        prefix = ids(prefix)
        sampling = self._validate(prefix, sampling, n)
        seed = self._seed_for(prefix, sampling)
        if self.sends_token_ids and self.server_kind == "ponder":
            return await self._generate_group(prefix, sampling, n, seed)
        seeds = (sampling_params.continuation_seed(seed, number) for number in range(n))
        return await gather_or_cancel(self._generate_one(prefix, sampling, seed) for seed in seeds)

    async def _generate_one(self, prefix: Ids, sampling: Sampling, seed: int) -> Completion:
        start = time.perf_counter()
        send = self._generate_token_ids if self.sends_token_ids else self._generate_text
        raw = await send(prefix, sampling, seed)
        raw.cost = replace(raw.cost, seconds=time.perf_counter() - start)
        self.on_tokens(raw.cost.generated_tokens)
        return build_completion(self.tokenizer, raw, self.version)

    # prompts and answers as token ids

    async def _generate_group(self, prefix: Ids, sampling: Sampling, n: int, seed: int) -> list[Completion]:
        """All n continuations in one request, by ponder's own server."""
        body = ponder_server.generate_request(self.model, prefix, sampling, seed, n)
        limits = self.http.limits(n * sampling.max_tokens, len(prefix), sampling.logprobs)
        reply = await self.http.post(self._server_root + "/inference/v1/generate", body, limits)
        try:
            group = ponder_server.parse_generate(reply, n, sampling)
        except _MALFORMED_REPLY_ERRORS as reason:
            raise self._malformed(reply, reason) from None
        for raw, _ in group:
            self._check_written(raw, sampling.max_tokens)
            self.on_tokens(raw.cost.generated_tokens)
        return [build_completion(self.tokenizer, raw, version) for raw, version in group]

    async def _generate_token_ids(self, prefix: Ids, sampling: Sampling, seed: int) -> RawCompletion:
        max_tokens = sampling.max_tokens
        context = self.context or len(prefix) + max_tokens
        body = sampling_params.token_request_fields(sampling, self.server_kind, seed, context, self.eos)
        body |= {"model": self.model, "prompt": prefix.tolist()}
        limits = self.http.limits(max_tokens, len(prefix), sampling.logprobs)
        llama_cpp = self.server_kind == "llama.cpp"
        url = self._server_root + "/completion" if llama_cpp else self.http.url + "/completions"
        reply = await self.http.post(url, body, limits)
        try:
            if llama_cpp:
                raw = server_replies.parse_llama_cpp(reply, len(prefix), sampling, self.eos, self._is_whole_text)
            else:
                raw = server_replies.parse_vllm(reply, len(prefix), sampling, self.eos, self.http.url)
        except _MALFORMED_REPLY_ERRORS as reason:
            raise self._malformed(reply, reason) from None
        self._check_written(raw, max_tokens)
        return raw

    def _check_written(self, raw: RawCompletion, max_tokens: int) -> None:
        """Raise if there are too many tokens, or one that the model does not have."""
        if (
            not 0 < len(raw.token_ids) <= max_tokens
            or not 0 <= min(raw.token_ids) <= max(raw.token_ids) < self.vocab_size
        ):
            raise ModelError(
                f"{self.http.url} wrote {len(raw.token_ids)} tokens of {max_tokens}, which must be each below "
                f"{self.vocab_size}: it does not keep to what it is asked"
            )

    def _is_whole_text(self, token: int) -> bool:
        return "\ufffd" not in self.tokenizer.decode([token], keep_special=True)

    def _check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise if the server splits a text into other tokens: then the tokenizer is another model's."""
        if self.server_kind == "other":
            return
        body = (
            {"content": _TOKENIZER_PROBE}
            if self.server_kind == "llama.cpp"
            else {"model": self.model, "prompt": _TOKENIZER_PROBE}
        )
        url = self._server_root + "/tokenize"
        try:
            reply = self.http.request_blocking("POST", url, {**body, "add_special_tokens": False})
        except RequestRefused:
            return  # the server cannot tokenize
        theirs = reply.get("tokens") if isinstance(reply, dict) else None
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

    async def _generate_text(self, prefix: Ids, sampling: Sampling, seed: int) -> RawCompletion:
        prompt = byte_tokenizer.decode_prefix(prefix)
        chat = not isinstance(prompt, str)
        url = self.http.url + ("/chat/completions" if chat else "/completions")
        body = self._text_body(prompt, sampling, seed)
        limits = self.http.limits(sampling.max_tokens, len(prefix))
        read = server_replies.stream_reader(sampling.stop, sampling.max_tokens)
        try:
            reply = await self.http.stream(url, body, read, limits)
            usage = reply.reported_usage
            cost = server_replies.parse_usage(usage, len(prefix), reply.min_tokens, sampling.max_tokens)
        except RequestRefused as reason:
            if reason.status == 404 and not chat:
                raise UsageError(f"{reason}; if it has a chat only, give no template") from None
            if self.effort is not None and "effort" in reason.message:
                raise UsageError(
                    f"{reason}; to bound answers and tokens alone, give --n and --max-tokens in place of an effort"
                ) from None
            raise
        except _MALFORMED_REPLY_ERRORS as reason:
            raise self._malformed("its stream", reason) from None
        if reply.truncated:
            self._warn_truncated(sampling.max_tokens)
        stop: StopReason = "stop"  # the reader ended the text at a stop string
        if reply.finish_reason is not None:
            stop = server_replies.parse_finish_reason(reply.finish_reason, self.http.url)
        end = [byte_tokenizer.END_ID] if stop == "eos" else []
        token_ids = [*reply.text.encode(errors="replace"), *end]
        return RawCompletion(token_ids, [math.nan] * len(token_ids), stop, cost)

    def _text_body(self, prompt: str | list[dict[str, str]], sampling: Sampling, seed: int) -> dict[str, Any]:
        """The request for a text prompt, or for a conversation whose last message is the answer so far."""
        chat = not isinstance(prompt, str)
        body: dict[str, Any] = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        body |= sampling_params.text_request_fields(sampling, self.server_kind, seed, self.context or 1 << 16, chat)
        body["messages" if chat else "prompt"] = prompt
        if isinstance(prompt, str):
            return body
        if self.effort is not None:
            body |= sampling_params.reasoning_effort_fields(self.effort, self.server_kind)
        if not prompt[-1]["content"]:
            prompt.pop()
        elif self.server_kind in ("other", "ponder"):
            raise UsageError(
                f"whether the chat at {self.http.url} goes on with a half-written answer or begins another is not "
                "known: give the model's tokenizer or a template, or let each answer be written in one go"
            )
        else:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body

    # both

    @property
    def _server_root(self) -> str:
        """The address of the server's own services, which are not OpenAI's."""
        return self.http.url.removesuffix("/v1")

    def _warn_truncated(self, max_tokens: int) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"{self.http.url} wrote more than max_tokens ({max_tokens}): the rest is cut", stacklevel=2)

    def _malformed(self, reply: Any, reason: Exception) -> ModelError:
        try:
            shown = self.http.redact_key(f"{reply!r}"[:200])
        except RecursionError:
            shown = "nested too deep to be shown"
        why = self.http.redact_key(f"{type(reason).__name__}: {reason}"[:200])
        return ModelError(f"{self.http.url} sent what no such server sends ({why}): {shown}")
