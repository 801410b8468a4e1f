"""ponder's native policy and its peers behind one small face: continue these prefixes, so many times, so many tokens.

Every side samples at temperature 1 from the whole vocabulary, from the same weights, gives each token's
log-probability, and stops at no end-of-sequence token. Nothing heavy is imported before a side is opened, so that the
time to start one is its own.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ponder import event_loop
from ponder.types import Floats, Ids, Sampling, ids

PromptRequest = tuple[Ids, int]  # a prefix, and how many continuations of it
CompletionGroup = list[tuple[Ids, Floats]]  # of each continuation its tokens and their log-probabilities
Search = Generator[
    list[PromptRequest], list[CompletionGroup], None
]  # asks, is sent the answers, asks again; ends with its work


@dataclass(frozen=True)
class BackendSetting:
    """What every side is given. Plain data: it travels to another process as JSON."""

    folder: str  # of the model, in Hugging Face's form
    device: str
    dtype: str
    max_num_seqs: int  # sequences at once, at most
    max_model_len: int  # tokens of a sequence, at most
    threads: int
    gguf: dict[str, str] = field(default_factory=dict)  # the same model for llama.cpp, by the type of its weights
    cache_gib: float = 4.0  # ponder's key-value cache
    gpu_memory_utilization: float = 0.4  # of the GPU's memory, for vLLM

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


class Backend(ABC):
    """One of those that are compared."""

    package = ""  # whose version the result names
    note = ""  # what a reader must know to judge the comparison

    def __init__(self, setting: BackendSetting) -> None:
        self.setting = setting

    @abstractmethod
    def generate_all(self, asks: Sequence[PromptRequest], tokens: int) -> list[CompletionGroup]:
        """All at once, each continuation of exactly so many tokens."""

    def run_searches(self, searches: Sequence[Search], tokens: int) -> None:
        """Run searches to their ends. A side that takes no requests while it works makes them wait for each other."""
        waiting = [(search, next(search)) for search in searches]
        while waiting:
            answers = iter(self.generate_all([ask for _, asks in waiting for ask in asks], tokens))
            waiting = _advance((search, [next(answers) for _ in asks]) for search, asks in waiting)

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        pass


def _advance(answered: Iterable[tuple[Search, list[CompletionGroup]]]) -> list[tuple[Search, list[PromptRequest]]]:
    """Send each search its answers; those that ask for more."""
    more = []
    for search, answers in answered:
        try:
            more.append((search, search.send(answers)))
        except StopIteration:
            continue
    return more


def check_completions(groups: Sequence[CompletionGroup], asks: Sequence[PromptRequest], tokens: int) -> float:
    """The mean log-probability, if each continuation is whole: the same for all sides that do the same work."""
    assert [len(g) for g in groups] == [n for _, n in asks]
    whole = [completion for group in groups for completion in group]
    text = np.concatenate([logprobs for _, logprobs in whole])
    assert {len(t) for t, _ in whole} == {len(p) for _, p in whole} == {tokens}, "a completion is too short"
    assert np.isfinite(text).all() and (text <= 1e-4).all(), "these are no log-probabilities"
    return float(text.mean())


class AsyncBackend(Backend):
    """A side that takes a request at any time."""

    @abstractmethod
    async def generate_one(self, ask: PromptRequest, tokens: int) -> CompletionGroup: ...

    def generate_all(self, asks: Sequence[PromptRequest], tokens: int) -> list[CompletionGroup]:
        return event_loop.run(self._all(asks, tokens))

    def run_searches(self, searches: Sequence[Search], tokens: int) -> None:
        async def follow(search: Search) -> None:
            going = [(search, next(search))]
            while going:
                going = _advance([(search, await self._all(going[0][1], tokens))])

        async def everyone() -> None:
            await asyncio.gather(*map(follow, searches))

        asyncio.run(everyone())

    async def _all(self, asks: Sequence[PromptRequest], tokens: int) -> list[CompletionGroup]:
        return await asyncio.gather(*(self.generate_one(ask, tokens) for ask in asks))


class Ponder(AsyncBackend):
    sampling: Sampling | None = None  # of the last call

    def __init__(self, setting: BackendSetting) -> None:
        super().__init__(setting)
        from ponder.garbage_collector import ignore_imported_objects
        from ponder.models.load import load_policy

        self.policy = load_policy(setting.folder, device=setting.device, dtype=setting.dtype)
        ignore_imported_objects()  # as the command line does
        self.policy.eos = self.policy.engine.eos = frozenset()
        self.policy.engine.cache_bytes = int(setting.cache_gib * 2**30)

    async def generate_one(self, ask: PromptRequest, tokens: int) -> CompletionGroup:
        if self.sampling is None or self.sampling.max_tokens != tokens:  # one for all calls, as a strategy has
            self.sampling = Sampling(max_tokens=tokens)
        result = await self.policy.generate(ask[0], self.sampling, ask[1])
        return [(c.token_ids, c.logprobs) for c in result]

    async def _all(self, asks: Sequence[PromptRequest], tokens: int) -> list[CompletionGroup]:
        if self.sampling is None or self.sampling.max_tokens != tokens:
            self.sampling = Sampling(max_tokens=tokens)
        result = await self.policy.generate_many([(prefix, self.sampling, n) for prefix, n in asks])
        return [[(c.token_ids, c.logprobs) for c in group] for group in result]

    def close(self) -> None:
        self.policy.engine.close()


class Transformers(Backend):
    """`generate`, with its usual cache. The prompt is computed for each completion, and nothing between calls is kept.

    The log-probabilities are taken from the scores as they pass, which is cheaper than `output_scores`: that would keep
    every step's scores over the whole vocabulary.
    """

    package = "transformers"
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, setting: BackendSetting) -> None:
        super().__init__(setting)
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.set_num_threads(setting.threads)
        dtype = getattr(torch, setting.dtype)
        model = AutoModelForCausalLM.from_pretrained(setting.folder, dtype=dtype, local_files_only=True)
        self.model = model.to(setting.device).eval()
        self.model.generation_config.eos_token_id = None

    def generate_all(self, asks: Sequence[PromptRequest], tokens: int) -> list[CompletionGroup]:
        rows = [prefix for prefix, n in asks for _ in range(n)]
        item: CompletionGroup = []
        for i in range(0, len(rows), self.setting.max_num_seqs):
            item += self._rows(rows[i : i + self.setting.max_num_seqs], tokens)
        row = iter(item)
        return [[next(row) for _ in range(n)] for _, n in asks]

    def _rows(self, rows: Sequence[Ids], tokens: int) -> CompletionGroup:
        import torch
        from transformers import LogitsProcessorList

        given, seen = left_padded(rows)
        heard = LogprobRecorder()
        result = self.model.generate(
            torch.from_numpy(given).to(self.model.device), attention_mask=torch.from_numpy(seen).to(self.model.device),
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=tokens, min_new_tokens=tokens,
            pad_token_id=0, logits_processor=LogitsProcessorList([heard]), **self.settings,
        )  # fmt: skip
        logprobs = heard.all(result).cpu().numpy()
        return list(zip(result[:, given.shape[1] :].cpu().numpy().astype(np.int32), logprobs, strict=True))


class LogprobRecorder:
    """A logits processor that changes nothing: it notes each step's log-probability when it sees what was drawn."""

    def __init__(self) -> None:
        self.scores: Any = None
        self.logprobs: list[Any] = []

    def __call__(self, tokens: Any, scores: Any) -> Any:
        self._note(tokens)
        self.scores = scores
        return scores

    def _note(self, tokens: Any) -> None:
        if self.scores is not None:
            wide = self.scores.float()
            self.logprobs.append(wide.gather(1, tokens[:, -1:])[:, 0] - wide.logsumexp(-1))

    def all(self, tokens: Any) -> Any:
        import torch

        self._note(tokens)
        return torch.stack(self.logprobs, dim=1)


class TransformersStatic(Transformers):
    """`generate` with a static cache, which compiles the network at its first call with each shape."""

    settings: ClassVar[dict[str, Any]] = {"cache_implementation": "static"}


def left_padded(rows: Sequence[Ids]) -> tuple[np.ndarray, np.ndarray]:
    longest = max(map(len, rows))
    given = np.zeros((len(rows), longest), np.int64)
    seen = np.zeros_like(given)
    for r, row in enumerate(rows):
        given[r, longest - len(row) :] = row
        seen[r, longest - len(row) :] = 1
    return given, seen


class VLLM(Backend):
    """In this process, offline, with prefix caching. Without its detokenizer, which a learner does not need."""

    package = "vllm"
    note = "in process, log-probability of the sampled token, prefix caching, no text"

    def __init__(self, setting: BackendSetting) -> None:
        super().__init__(setting)
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # it compiles with a CUDA toolkit, where one is
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from vllm import LLM

        self.llm = LLM(
            setting.folder, dtype=setting.dtype, max_model_len=setting.max_model_len, max_num_seqs=setting.max_num_seqs,
            gpu_memory_utilization=setting.gpu_memory_utilization, enable_prefix_caching=True,
            skip_tokenizer_init=True, seed=0,
        )  # fmt: skip
        self._asked = 0

    def generate_all(self, asks: Sequence[PromptRequest], tokens: int) -> list[CompletionGroup]:
        params = [self._params(n, tokens) for _, n in asks]
        found = self.llm.generate([_prompt(prefix) for prefix, _ in asks], params, use_tqdm=False)
        return [_read(output) for output in found]

    def run_searches(self, searches: Sequence[Search], tokens: int) -> None:
        """A search goes on as soon as all it asked for is there, whatever the others do."""
        engine = self.llm.llm_engine
        of: dict[str, tuple[int, int]] = {}  # request: whose, and which of his
        answers: dict[int, dict[int, CompletionGroup]] = {}
        sizes: dict[int, int] = {}

        def ask(who: int, asks: list[PromptRequest]) -> None:
            answers[who], sizes[who] = {}, len(asks)
            for i, (prefix, n) in enumerate(asks):
                self._asked += 1
                of[name := f"search-{self._asked}"] = who, i
                engine.add_request(name, _prompt(prefix), self._params(n, tokens))

        for who, search in enumerate(searches):
            ask(who, next(search))
        while of:
            for output in engine.step():
                if not output.finished:
                    continue
                who, i = of.pop(output.request_id)
                answers[who][i] = _read(output)
                if len(answers[who]) == sizes[who]:
                    whole = [answers[who][j] for j in range(sizes[who])]
                    for _, asks in _advance([(searches[who], whole)]):
                        ask(who, asks)

    def _params(self, n: int, tokens: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            n=n, temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip


def _prompt(prefix: Ids) -> Any:
    return {"prompt_token_ids": prefix.tolist()}


def _read(output: Any) -> CompletionGroup:
    return [
        (ids(c.token_ids), np.asarray([p[t].logprob for t, p in zip(c.token_ids, c.logprobs, strict=True)], np.float32))
        for c in output.outputs
    ]


class LlamaCpp(AsyncBackend):
    """llama.cpp's server in this process (package xllamacpp): a slot for each sequence, continuous batching."""

    package = "xllamacpp"
    kind = "Q4_1"
    note = "4-bit weights (Q4_1), not the others' float32; keys and values in 16 bits"

    def __init__(self, setting: BackendSetting) -> None:
        super().__init__(setting)
        if setting.on_gpu or self.kind not in setting.gguf:
            raise RuntimeError(f"the package runs on a CPU, here from a {self.kind} file, which this model has not")
        import xllamacpp

        args = xllamacpp.CommonParams()
        args.model.path = setting.gguf[self.kind]
        args.n_parallel = setting.max_num_seqs
        args.n_ctx = setting.max_num_seqs * _rounded(setting.max_model_len)  # shared evenly by the slots
        args.n_batch = args.n_ubatch = max(512, setting.max_num_seqs)
        args.cont_batching = args.cache_prompt = True
        args.cache_ram_mib = 0  # no copies of finished slots beside the slots themselves
        args.cpuparams.n_threads = args.cpuparams_batch.n_threads = setting.threads
        args.verbosity = 1  # errors only
        self.server = xllamacpp.Server(args)
        self.note = f"{self.note}; {str(xllamacpp.get_system_info()).strip()}"
        self.pool = ThreadPoolExecutor(setting.max_num_seqs)  # a call holds its thread until it is answered

    def generate_all(self, asks: Sequence[PromptRequest], tokens: int) -> list[CompletionGroup]:
        """Prompts with the same number of continuations go in one call, which is the server's own way to batch."""
        if len(counts := {n for _, n in asks}) > 1:
            return super().generate_all(asks, tokens)
        n = counts.pop()
        rows = self._ask([prefix.tolist() for prefix, _ in asks], n, tokens)
        return [rows[i : i + n] for i in range(0, len(rows), n)]

    async def generate_one(self, ask: PromptRequest, tokens: int) -> CompletionGroup:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, self._ask, [ask[0].tolist()], ask[1], tokens)

    def _ask(self, prompts: list[list[int]], n: int, tokens: int) -> CompletionGroup:
        text = self.server.handle_completions(
            {
                "prompt": prompts, "n": n, "max_tokens": tokens, "temperature": 1.0, "samplers": ["temperature"],
                "ignore_eos": True, "logprobs": 1, "cache_prompt": True,
            }
        )  # fmt: skip
        if "choices" not in text:
            raise RuntimeError(f"llama.cpp answered {text}")
        choices = sorted(text["choices"], key=lambda c: c["index"])
        assert all(choice["finish_reason"] == "length" for choice in choices)
        return [_parse_completion(choice["logprobs"]["content"], tokens) for choice in choices]

    def close(self) -> None:
        self.pool.shutdown()
        del self.server


def _parse_completion(text: list[dict[str, Any]], tokens: int) -> tuple[Ids, Floats]:
    """The server names only the last token of a character that takes several; it stands for those before it as well."""
    text = [{"id": 0, "logprob": 0.0}] * (not text) + text
    text = [text[0]] * (tokens - len(text)) + text
    return ids([t["id"] for t in text]), np.asarray([t["logprob"] for t in text], np.float32)


class LlamaCppF32(LlamaCpp):
    kind = "F32"
    note = "float32 weights; keys and values in 16 bits"


class LlamaCppBF16(LlamaCpp):
    kind = "BF16"
    note = "bfloat16 weights; keys and values in 16 bits"


def _rounded(length: int) -> int:
    return -(-length // 256) * 256  # llama.cpp rounds a slot's room up as well


class Loop(Backend):
    """What one writes by hand: see plain_loop.py. Rows of one length, no requests that come and go."""

    note = "a static cache, on a GPU a graph of one step with its sampling"

    def __init__(self, setting: BackendSetting) -> None:
        super().__init__(setting)
        import torch

        from plain_loop import PlainLoop

        torch.set_num_threads(setting.threads)
        self.loop = PlainLoop(Path(setting.folder), setting.device, getattr(torch, setting.dtype))

    def generate_all(self, asks: Sequence[PromptRequest], tokens: int) -> list[CompletionGroup]:
        given, seen = left_padded([prefix for prefix, _ in asks])
        found, logprobs = self.loop(given, seen, [n for _, n in asks], tokens)
        row = iter(zip(found.astype(np.int32), logprobs, strict=True))
        return [[next(row) for _ in range(n)] for _, n in asks]


BACKENDS: dict[str, type[Backend]] = {
    "ponder": Ponder,
    "transformers": Transformers,
    "transformers, static cache": TransformersStatic,
    "vLLM": VLLM,
    "llama.cpp, Q4_1": LlamaCpp,
    "llama.cpp, F32": LlamaCppF32,
    "llama.cpp, BF16": LlamaCppBF16,
    "plain loop": Loop,
}


def default_backends(setting: BackendSetting) -> list[str]:
    """The sides that are measured where nobody names others: made for this device, and installed."""
    mine = ["ponder", "transformers", "vLLM", "plain loop"] if setting.on_gpu else ["ponder", "transformers"]
    if not setting.on_gpu:
        mine += [f"llama.cpp, {kind}" for kind in setting.gguf]
    return [name for name in mine if is_installed(name)]


def is_installed(name: str) -> bool:
    package = BACKENDS[name].package
    return not package or importlib.util.find_spec(package) is not None
