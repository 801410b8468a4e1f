"""Test doubles: a policy without a model, tiny networks, a task that can be learned in seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from ponder.models import chat_templates
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.nets.config import DecoderConfig, RopeConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.protocols import NoProgress
from ponder.types import Completion, Cost, Ids, Message, Problem, Sampling, Score, Step, Trace, ids, user_messages

T = TypeVar("T")

LLAMA: dict[str, Any] = {
    "family": "llama", "vocab": 64, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp_width": 64,
    "context": 256, "eos": (2,),
}  # fmt: skip
CONFIGS: dict[str, DecoderConfig] = {
    "llama": DecoderConfig(**LLAMA),
    "untied": DecoderConfig(**LLAMA, tied_embeddings=False, qkv_bias=True, mlp_bias=True, out_bias=True),
    "window": DecoderConfig(**{**LLAMA, "family": "mistral"}, windows=(5, None)),
    "qwen3": DecoderConfig(**{**LLAMA, "family": "qwen3"}, qk_norm=True),
    "gemma": DecoderConfig(
        **{**LLAMA, "family": "gemma3_text"}, windows=(4, None), qk_norm=True, gemma=True, activation="gelu_tanh",
        query_scale=24**-0.5, rope=RopeConfig(1e6), local_rope=RopeConfig(1e4), tied_embeddings=False,
    ),
}  # fmt: skip


def run_async(work: Awaitable[T], seconds: float = 240.0) -> T:
    """Run to the end, or fail after `seconds`."""

    async def bounded() -> T:
        return await asyncio.wait_for(work, seconds)

    return asyncio.run(bounded())


@contextmanager
def fails_if(broken: bool) -> Iterator[None]:
    """Around a check that must hold, and must fail if the code was broken on purpose."""
    if not broken:
        yield
        return
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        yield


def tiny_decoder(
    kind: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 0.2, layers: int = 2
) -> Decoder:
    """Layers whose outputs differ from token to token: every weight is random, norms and biases too."""
    net = init_decoder(
        CONFIGS[kind]
        if layers == 2
        else replace(CONFIGS[kind], layers=layers, windows=CONFIGS[kind].windows * (layers // 2)),
        seed,
    )
    draw = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * (scale if p.dim() > 1 else scale / 2))
    return net.to(dtype)


ALPHABET = "0123456789abcdef?+= "
QUESTION_TEMPLATE = "{{- messages[-1].content }}"  # the question and nothing else


def char_policy(seed: int = 0, **changes: Any) -> PonderPolicy:
    """A tiny policy that reads and writes characters."""
    fresh = ScratchModel(ALPHABET, **{"width": 32, "layers": 2, "heads": 4, "context": 64, "seed": seed, **changes})
    net, tokenizer = fresh.build(torch.float32, torch.device("cpu"))
    return PonderPolicy(net, chat_templates.with_chat_template(tokenizer, QUESTION_TEMPLATE), seed)


@dataclass(frozen=True)
class FirstCharVerifier:
    """1 if the first character is the problem's answer, 0 if it is another, undecided for an empty text."""

    @property
    def name(self) -> str:
        return "wanted"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self.grade(trace.text(i), str(trace.problem.answer)) for i in steps]

    def grade(self, text: str, wanted: str) -> Score:
        return Score(float(text[0] == wanted), "compared") if text else Score(None, "nothing was written")

    def extract_answer(self, text: str) -> str | None:
        return text[:1] or None


@dataclass(frozen=True)
class DigitTask:
    """Write the digit you are asked for."""

    size: int = 10
    answer: str | None = None  # None: the digit asked for

    @property
    def name(self) -> str:
        return "digits"

    @property
    def train(self) -> Sequence[Problem]:
        return [self._problem("train", i) for i in range(self.size)]

    @property
    def test(self) -> Sequence[Problem]:
        return [self._problem("test", i) for i in range(self.size)]

    @property
    def verifier(self) -> FirstCharVerifier:
        return FirstCharVerifier()

    def gold(self, problem: Problem) -> str:
        return str(problem.answer)

    def _problem(self, part: str, i: int) -> Problem:
        digit = str(i % 10)
        return Problem(f"digits/{part}/{i}", user_messages(f"{digit}="), self.answer or digit, {"part": part})


@dataclass
class FakePolicy:
    """A `Policy` without a model: a token is a code point. It returns its script, then random digits."""

    script: Sequence[str] = ()
    seed: int = 0
    length: int = 3
    stop: str = "eos"
    calls: list[tuple[Ids, Sampling, int]] = field(default_factory=list)
    written: int = 0

    def encode(self, messages: Sequence[Message]) -> Ids:
        return ids(ord(c) for m in messages for c in str(m["content"]))

    def tokens(self, text: str) -> Ids:
        return ids(map(ord, text))

    def text(self, tokens: Ids) -> str:
        return "".join(map(chr, tokens))

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        self.calls.append((prefix, sampling, n))
        await asyncio.sleep(0)
        return [self._completion(prefix, first=j == 0) for j in range(n)]

    def _completion(self, prefix: Ids, first: bool) -> Completion:
        text = self.script[self.written] if self.written < len(self.script) else self._digits(prefix)
        self.written += 1
        tokens = ids([ord(c) for c in text] or [0])
        cost = Cost(len(prefix) if first else 0, 0 if first else len(prefix), len(tokens), 0, 2.0 * len(tokens), 0.5)
        return Completion(text, tokens, np.full(len(tokens), -1.0, np.float32), self.stop, 0, cost)  # type: ignore[arg-type]

    def _digits(self, prefix: Ids) -> str:
        draw = np.random.default_rng([self.seed, self.written, *prefix.tolist()])
        return "".join(map(str, draw.integers(10, size=self.length)))


class RecordingProgress(NoProgress):
    """Records its calls, and stops the job at the n-th call of a kind."""

    def __init__(self, stop: str = "", at: int = 0, error: type[BaseException] | None = None) -> None:
        from ponder.errors import Interrupted

        self.stop, self.at, self.error = stop, at, error or Interrupted
        self.calls: list[tuple[Any, ...]] = []

    def _record(self, kind: str, *what: Any) -> None:
        self.calls.append((kind, *what))
        if kind == self.stop and sum(s[0] == kind for s in self.calls) == self.at:
            raise self.error("stop")

    def phase(self, name: str) -> None:
        self._record("phase", name)

    def tokens(self, count: int) -> None:
        self._record("tokens", count)

    def share(self, done: float) -> None:
        self._record("share", done)

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Trace]) -> None:
        self._record("step", done, total, dict(metrics))


def trace_group(
    prompt: Iterable[int], completions: Sequence[Iterable[int]], scores: Sequence[float | None] = (), id: str = "p"
) -> Trace:
    """A flat tree, as of a GRPO group: each completion ended with EOS and has a score "wanted"."""
    trace = Trace(Problem(id, user_messages("?")), [Step(None, "?", ids(prompt))])
    for i, tokens in enumerate(completions):
        tokens = ids(tokens)
        step = Step(0, "", tokens, np.full(len(tokens), -1.0, np.float32), "eos")
        if i < len(scores):
            step.scores["wanted"] = Score(scores[i])
        trace.add(step)
    return trace


def mixed_groups(seed: int = 0, tool: bool = True) -> list[Trace]:
    """Groups of all kinds: mixed rewards, equal rewards, one undecided, a completion of one token, a tool's output."""
    rng = np.random.default_rng(seed)

    def write(n: int) -> list[int]:
        return [*rng.integers(3, 64, n - 1).tolist(), 2]  # ends in EOS

    traces = [
        trace_group(rng.integers(3, 64, 5), [write(n) for n in (3, 6, 1, 4)], [1.0, 0.0, 0.0, 1.0], "mixed"),
        trace_group(rng.integers(3, 64, 2), [write(n) for n in (5, 5)], [1.0, 1.0], "equal"),
        trace_group(rng.integers(3, 64, 7), [write(n) for n in (2, 7, 3)], [0.3, None, 0.9], "undecided"),
        trace_group(rng.integers(3, 64, 1), [write(n) for n in (4, 1)], [0.0, 1.0], "short"),
    ]
    if tool:
        asked = trace_group(rng.integers(3, 64, 3), [write(3), write(2)], [None, 0.2], "tool")
        asked.steps[1].stop, asked.steps[1].scores = "stop", {}
        answered = asked.add(Step(1, "", ids(write(4))))
        end = ids(write(3))
        scores = {"wanted": Score(0.7)}
        asked.add(Step(answered, "", end, np.full(len(end), -1.0, np.float32), "eos", scores=scores))
        traces.append(asked)
    return traces


def perturb(net: Decoder, by: float = 0.02, seed: int = 9) -> Decoder:
    """Add noise to the weights."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * by)
    return net
