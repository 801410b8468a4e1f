"""`TransformersPolicy`: any causal language model that Hugging Face's transformers loads from a local folder.

It is for inference with architectures that ponder has no network for. It uses ponder's sampler: the same seed draws the
same tokens from the same logits.

Shapes: P prompts, B rows (continuations), L tokens so far with padding on the left, V vocabulary.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.engine.request import Request, SequenceState
from ponder.engine.sampling_step import StopCheck, sample_and_append
from ponder.errors import MissingExtra, ModelError, UsageError
from ponder.models.engine_policy import EnginePolicy, hit_stop_string
from ponder.models.tokenizer import Tokenizer
from ponder.models.tokenizer_json import catch_rust_panics
from ponder.nets.base_model import refuse_base
from ponder.runs import manifest

# `trust_remote_code` is explicit because transformers would ask on a terminal.
_LOAD_OPTIONS = {"local_files_only": True, "trust_remote_code": False}
_MAX_CACHE_BYTES = 2 << 30  # for keys and values of sequences in flight


@dataclass(slots=True)
class _PendingCall:
    request: Request
    answer: asyncio.Future[list[SequenceState]]


class TransformersPolicy(EnginePolicy):
    """A `Policy` over a model and a tokenizer of transformers. Calls that wait at the same time are decoded in one
    batch."""

    def __init__(self, model: Any, tokenizer: Tokenizer, seed: int = 0) -> None:
        c = model.config.get_text_config()
        context = getattr(c, "max_position_embeddings", None) or sys.maxsize  # None: no limit
        super().__init__(tokenizer, model.get_input_embeddings().weight.shape[0], context, seed)
        if tokenizer.vocab_size > self.vocab_size:
            both = f"its highest id is {tokenizer.vocab_size - 1}, but the model has {self.vocab_size} tokens"
            raise ModelError(f"the tokenizer does not fit the model: {both}; use the one the model was trained with")
        self.model = model.eval()
        # Norms and biases are not counted, nor an embedding that is not also the output head.
        weights = sum(p.numel() for p in model.parameters() if p.dim() > 1)
        head = model.get_output_embeddings()
        tied = head is not None and head.weight is model.get_input_embeddings().weight
        self._weights = weights - (0 if tied else model.get_input_embeddings().weight.numel())
        heads = getattr(c, "num_attention_heads", None) or 1
        head_dim = getattr(c, "head_dim", None) or c.hidden_size // heads
        self._queries = c.num_hidden_layers * heads * head_dim  # numbers per token, over all layers
        self._keys = c.num_hidden_layers * (getattr(c, "num_key_value_heads", None) or heads) * head_dim
        self._waiting: list[_PendingCall] = []
        self._worker: asyncio.Task[None] | None = None

    @classmethod
    def load(
        cls, folder: Path | str, dtype: torch.dtype | str = "auto", device: torch.device | str = "cpu", seed: int = 0
    ) -> TransformersPolicy:
        """The model in a local folder. Nothing is downloaded, and code that comes with a model is not run."""
        refuse_base(Path(folder).expanduser(), "transformers")
        try:
            import transformers
        except ImportError:
            raise MissingExtra("a model named 'transformers:FOLDER'", "transformers", "hf") from None
        folder = Path(folder).expanduser()
        if not folder.is_dir():
            raise ModelError(f"no model folder at {folder}; check the path")
        manifest.verify(folder)
        try:
            with _without_progress_bars(transformers.utils.logging), catch_rust_panics():
                model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **_LOAD_OPTIONS)
            with catch_rust_panics():
                theirs = transformers.AutoTokenizer.from_pretrained(folder, **_LOAD_OPTIONS)
        except Exception as reason:  # transformers raises nothing narrower
            message = " ".join(str(reason).split()) or type(reason).__name__
            raise ModelError(f"transformers cannot load {folder}: {message}") from None
        if not getattr(model, "is_quantized", False):  # quantised weights stay where their library put them
            model = model.to(device)
        return cls(model, _tokenizer(theirs, model, folder), seed)

    async def _generate(self, request: Request) -> list[SequenceState]:
        if request.sampling.has_grammar:
            raise UsageError(
                "a regex, json_schema or structural_tag needs one of ponder's own networks: give the folder alone"
            )
        call = _PendingCall(request, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await call.answer

    async def _work(self) -> None:
        await asyncio.sleep(0)  # let every call that is ready now join the batch
        while self._waiting:
            calls, self._waiting = [c for c in self._waiting if not c.answer.done()], []
            if not calls:  # the callers were cancelled
                return
            try:
                answers = await asyncio.to_thread(self._run, [c.request for c in calls])
            except BaseException as failure:
                for call in calls:
                    if not call.answer.done():
                        call.answer.set_exception(failure)
                if not isinstance(failure, Exception):
                    raise
                continue
            for call, answer in zip(calls, answers, strict=True):
                if not call.answer.done():
                    tell = call.answer.set_exception if isinstance(answer, Exception) else call.answer.set_result
                    tell(answer)  # type: ignore[arg-type]

    def _run(self, requests: list[Request]) -> list[list[SequenceState] | Exception]:
        """The sequences of each request, or the error of one of them."""
        began = time.perf_counter()
        done: dict[Request, list[SequenceState]] = {request: [] for request in requests}
        failed: dict[Request, Exception] = {}
        stop_check = partial(hit_stop_string, self.tokenizer)
        for rows in self._batches(requests):
            alive = [row for row in rows if row.request not in failed]
            for row in decode(self.model, alive, self.eos, stop_check, self.version, self.on_tokens, failed):
                done[row.request].append(row)
        seconds = (time.perf_counter() - began) / sum(r.n for r in requests)
        for group in done.values():
            for row in group:
                row.seconds = seconds
                row.prefill_tokens = len(row.request.prefix) if row.index == 0 else 0
        return [failed.get(request, group) for request, group in done.items()]

    def _batches(self, requests: list[Request]) -> Iterator[list[SequenceState]]:
        """Sequences to decode in one batch: as many as memory allows, sorted by length."""
        max_rows = self._max_batch_rows(requests)
        alone = _recurrent(self.model)
        rows: list[SequenceState] = []
        for request in sorted(requests, key=lambda r: len(r.prefix)):
            for row in SequenceState.from_request(request):
                other = rows and alone and len(rows[-1].request.prefix) != len(request.prefix)
                if other or len(rows) == max_rows:
                    yield rows
                    rows = []
                rows.append(row)
        if rows:
            yield rows

    def _max_batch_rows(self, requests: list[Request]) -> int:
        longest = max(len(r.prefix) + r.sampling.max_tokens for r in requests)
        per_token = 2 * self._keys * self.model.dtype.itemsize
        return max(1, min(1024, _MAX_CACHE_BYTES // (per_token * longest)))

    def _flops(self, context: int) -> float:
        """A mixture of experts is counted as if every expert processed every token."""
        return 2.0 * (self._weights + 2 * self._queries * context)


@torch.inference_mode()
def decode(
    model: Any,
    rows: list[SequenceState],
    eos: frozenset[int],
    stopped: StopCheck,
    version: int = 0,
    progress: Callable[[int], None] = lambda tokens: None,
    failed: dict[Request, Exception] | None = None,
) -> list[SequenceState]:
    """Decode these sequences to their ends. A prompt is prefilled once for its sequences. Sequences that end leave the
    batch at once, and so do those of a request that fails; its error is put into `failed`."""
    failed = {} if failed is None else failed
    if not rows:
        return []
    everyone, forward = rows, _Forward(model)
    prompts = list(dict.fromkeys(row.request for row in rows))
    logits_PV = forward.prefill([prompt.prefix for prompt in prompts])
    place_B = torch.tensor([prompts.index(row.request) for row in rows], device=logits_PV.device)
    forward.keep(place_B)
    logits_BV = logits_PV[place_B]
    while True:
        for row, failure in sample_and_append(logits_BV, rows, eos, stopped, version).items():
            failed.setdefault(row.request, failure)
        progress(len(rows))
        alive = [i for i, row in enumerate(rows) if row.stop is None and row.request not in failed]
        if not alive:
            return everyone
        if len(alive) < len(rows):
            forward.keep(torch.tensor(alive, device=logits_PV.device))
            rows = [rows[i] for i in alive]
        logits_BV = forward.next([row.newest_token for row in rows])


class _Forward:
    """A model with its cache. Methods return logits [.., V] for the next token."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.takes = inspect.signature(model.forward).parameters
        self.cache_name = "past_key_values" if "past_key_values" in self.takes else "cache_params"
        self.cache: Any = None
        self.seen = torch.empty(0, 0, dtype=torch.long, device=model.device)  # [rows, L]: 1 where there is a token

    def prefill(self, prefixes: Sequence[np.ndarray]) -> Tensor:
        longest = max(len(p) for p in prefixes)
        ids_PL = np.zeros((len(prefixes), longest), dtype=np.int64)
        seen_PL = np.zeros_like(ids_PL)
        for p, prefix in enumerate(prefixes):
            ids_PL[p, longest - len(prefix) :] = prefix
            seen_PL[p, longest - len(prefix) :] = 1
        self.seen = torch.from_numpy(seen_PL).to(self.model.device)
        return self._logits(torch.from_numpy(ids_PL), (self.seen.cumsum(-1) - 1).clamp(min=0))

    def next(self, last: Sequence[int]) -> Tensor:
        self.seen = F.pad(self.seen, (0, 1), value=1)
        return self._logits(torch.tensor(last)[:, None], self.seen.sum(-1, keepdim=True) - 1)

    def keep(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may occur several times."""
        self.seen = self.seen[rows]
        self.cache.reorder_cache(rows)

    def _logits(self, ids: Tensor, positions: Tensor) -> Tensor:
        given = {"attention_mask": self.seen, "position_ids": positions, "logits_to_keep": 1, "use_cache": True}
        if _recurrent(self.model):
            del given["attention_mask"]
        given = {name: value for name, value in given.items() if name in self.takes}
        if self.cache is not None:
            given[self.cache_name] = self.cache
        out = self.model(input_ids=ids.to(self.model.device), **given)
        self.cache = getattr(out, self.cache_name, None)
        if not hasattr(self.cache, "reorder_cache"):
            raise ModelError(f"{type(self.model).__name__} has no cache that can be reordered; use another model")
        return out.logits[:, -1]


def _recurrent(model: Any) -> bool:
    """Whether the model is recurrent. Its state would include padding, so only prompts of one length share a batch,
    without a mask."""
    return bool(getattr(model, "_is_stateful", False))


@contextmanager
def _without_progress_bars(logging: Any) -> Iterator[None]:
    """Disable the library's progress bars, which would disturb a live panel."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _tokenizer(theirs: Any, model: Any, folder: Path) -> Tokenizer:
    """A `Tokenizer` around the same `tokenizers` object, so that every policy encodes chats and texts alike."""
    if not getattr(theirs, "is_fast", False):
        raise ModelError(f"the tokenizer of {folder} has no tokenizer.json form; use a model with one")
    ends = [getattr(model.generation_config, "eos_token_id", None), theirs.eos_token_id]
    eos = [int(e) for end in ends for e in (end if isinstance(end, list) else [end]) if e is not None]
    template = theirs.chat_template
    return Tokenizer(
        theirs.backend_tokenizer,
        bos=theirs.bos_token_id,
        eos=tuple(dict.fromkeys(eos)),
        pad=theirs.pad_token_id,
        chat_template=template.get("default") if isinstance(template, dict) else template,
    )
