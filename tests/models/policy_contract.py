"""What every policy must do: the same tests for each, over the same small model.

The model's weights are drawn at random, and its tokenizer knows bytes and a few words, so that a character can be
several tokens and a word can be split in several ways. The truth is `plain_logits`, written out in float64.
"""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from typing import Any, ClassVar

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from fakes import LLAMA, run_async
from ponder.errors import UsageError
from ponder.models.base_policy import BasePolicy
from ponder.models.tokenizer import Tokenizer
from ponder.nets import gguf, hf
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.protocols import Policy
from ponder.types import Completion, Ids, Sampling, ids, user_messages
from reference_decoder import plain_logits, weights64

Bias = tuple[tuple[int, float], ...]
WORDS = (" the", " cat", " sat", " on", " a", " mat", "ing", "er")
CONTEXT = 128
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}answer:"


@functools.cache
def small_tokenizer() -> Tokenizer:
    """Bytes, and words that grow letter by letter."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab, merges = {c: i for i, c in enumerate(alphabet)}, []
    for word in WORDS:
        letters = word.replace(" ", "Ġ")
        for end in range(2, len(letters) + 1):
            if letters[:end] not in vocab:
                vocab[letters[:end]] = len(vocab)
                merges.append((letters[: end - 1], letters[end - 1]))
    inner = tokenizers.Tokenizer(models.BPE(vocab, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|pad|>", "<|end|>"])
    end = inner.token_to_id("<|end|>")
    return Tokenizer(inner, eos=(end,), pad=inner.token_to_id("<|pad|>"), chat_template=TEMPLATE)


TOKENIZER = small_tokenizer()
(END,) = TOKENIZER.eos
SIZE = TOKENIZER.vocab_size
LETTERS = tuple(int(TOKENIZER.encode(c, add_special_tokens=False)[0]) for c in "abcdefghijkl")
PIECES = tuple(t for t in range(SIZE) if "\ufffd" in TOKENIZER.decode([t]))  # of characters of several bytes


@functools.cache
def small_net() -> Decoder:
    """Outputs differ from token to token: every weight is drawn, norms too."""
    shape = {"vocab": SIZE, "width": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "context": CONTEXT, "eos": (END,)}
    net = init_decoder(DecoderConfig(**{**LLAMA, **shape}), 0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * (0.15 if p.dim() > 1 else 0.1))
        net.embed_tokens.weight[list(PIECES)] *= 0.02  # never the likeliest
    return net


@functools.cache
def _weights() -> Any:
    return weights64(small_net())


def plain(path: Sequence[int]) -> np.ndarray:
    """The model's logits after these tokens, from the reference."""
    return plain_logits(_weights(), small_net().config, path)[-1].detach().numpy()


def plain_greedy(prefix: Sequence[int], count: int) -> list[int]:
    path = list(prefix)
    for _ in range(count):
        path.append(int(plain(path).argmax()))
    return path[len(prefix) :]


def plain_logprobs(prefix: Sequence[int], written: Sequence[int], sampling: Sampling | None = None) -> np.ndarray:
    """The log-probability of each token under the sampled distribution, in the order that `Sampling` states."""
    result, path, s = [], list(prefix), sampling or Sampling()
    for token in written:
        logits = plain(path).copy()
        seen = list(set(path))
        logits[seen] = np.where(
            logits[seen] > 0, logits[seen] / s.repetition_penalty, logits[seen] * s.repetition_penalty
        )
        for biased, value in s.logit_bias:
            logits[biased] += value
        chances = _softmax(logits / (s.temperature or 1))
        if s.top_k:
            chances = _kept(chances, chances >= np.sort(chances)[-s.top_k])
        order = np.argsort(-chances)
        before = np.cumsum(chances[order]) - chances[order]  # what is likelier, all together
        chances = _kept(chances, np.isin(np.arange(SIZE), order[before < s.top_p]))
        chances = _kept(chances, chances >= s.min_p * chances.max())
        result.append(np.log(chances[token]))
        path.append(token)
    return np.array(result)


def _softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max())
    return raised / raised.sum()


def _kept(chances: np.ndarray, kept: np.ndarray) -> np.ndarray:
    left = np.where(kept, chances, 0)
    return left / left.sum()


def save_folder(folder: Path) -> Path:
    hf.save(small_net(), folder)
    TOKENIZER.save(folder)
    return folder


def save_gguf(path: Path) -> Path:
    gguf.save(small_net(), TOKENIZER, path, "F32")
    return path


@contextmanager
def llama_server(path: Path, context: int = CONTEXT, slots: int = 8) -> Iterator[str]:
    """A real server on a free port of this machine; its address. Without xllamacpp the test skips."""
    pytest.importorskip("xllamacpp", reason="needs the package xllamacpp, which has llama.cpp's server")
    script = Path(__file__).with_name("llama_server.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(path), str(context), str(slots)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    late = Timer(240, process.kill)
    late.start()
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        late.cancel()
        assert address.startswith("http"), f"llama.cpp's server did not start (exit code {process.poll()})"
        yield address
    finally:
        late.cancel()
        process.communicate()  # closes its input
        process.wait(120)


@dataclass
class TokenCounter:
    """Records the calls of a policy's `on_tokens`."""

    tokens: int = 0

    def __call__(self, count: int) -> None:
        self.tokens += count


def ask(policy: BasePolicy, prefixes: Sequence[Sequence[int] | Ids], n: int = 1, **how: Any) -> list[list[Completion]]:
    """Ask for all prefixes concurrently."""
    sampling = Sampling(**{"max_tokens": 8, **how})

    async def all_of_them() -> list[list[Completion]]:
        return list(await asyncio.gather(*(policy.generate(ids(p), sampling, n) for p in prefixes)))

    return run_async(all_of_them())


def tokens(groups: list[list[Completion]]) -> list[list[list[int]]]:
    return [[c.token_ids.tolist() for c in group] for group in groups]


PROMPT = TOKENIZER.encode("the cat sat on a mat", add_special_tokens=False)
PROMPTS = [
    TOKENIZER.encode(t, add_special_tokens=False)
    for t in ("a", "12+3=", "the cat", "Ünïcödé", " sat on the mat, sitting")
]
# Plain letters alone, or whole characters: what some tests need of a model that would write any byte.
PLAIN: Bias = tuple((t, 90.0) for t in LETTERS)
WHOLE: Bias = tuple((t, -90.0) for t in PIECES)


class PolicyContract:
    """Subclassed for each policy, with a fixture `policy` over the small model."""

    near: ClassVar[float] = 1e-4  # how far log-probabilities may be from the reference

    # shape

    def test_it_is_a_policy(self, policy: BasePolicy) -> None:
        assert isinstance(policy, Policy)
        prompt = policy.encode(user_messages("hi"))
        assert prompt.dtype == np.int32 and policy.tokenizer.decode(prompt) == "user: hi\nanswer:"

    def test_completions_are_complete(self, policy: BasePolicy) -> None:
        groups = ask(policy, PROMPTS, n=3, seed=1, max_tokens=10)
        assert [len(g) for g in groups] == [3] * len(PROMPTS)
        for prompt, group in zip(PROMPTS, groups, strict=True):
            for c in group:
                assert c.token_ids.dtype == np.int32 and c.logprobs.dtype == np.float32
                assert len(c.token_ids) == len(c.logprobs) <= 10 and c.token_ids.max() < SIZE
                assert (c.stop == "eos") == (c.token_ids[-1] == END), "the end is kept as a token, and is no text"
                body = c.token_ids[:-1] if c.stop == "eos" else c.token_ids
                assert c.text == TOKENIZER.decode(body, keep_special=True)
                assert c.stop == "eos" or len(c.token_ids) == 10
                assert c.cost.generated_tokens == len(c.token_ids) and c.cost.seconds > 0
                assert c.cost.prompt_tokens + c.cost.cached_tokens == len(prompt)

    def test_on_tokens_counts_every_token(self, policy: BasePolicy) -> None:
        heard = policy.on_tokens = TokenCounter()
        try:
            groups = ask(policy, PROMPTS, n=2)
        finally:
            policy.on_tokens = lambda count: None
        assert heard.tokens == sum(len(c.token_ids) for g in groups for c in g)

    # what is drawn

    def test_greedy_is_the_reference(self, policy: BasePolicy) -> None:
        for prompt, (c,) in zip(PROMPTS, ask(policy, PROMPTS, temperature=0), strict=True):
            assert c.token_ids.tolist() == plain_greedy(prompt.tolist(), len(c.token_ids))
            self.agree(c.logprobs, plain_logprobs(prompt.tolist(), c.token_ids))

    @pytest.mark.parametrize(
        "rule",
        [{}, {"temperature": 0.7}, {"top_k": 5}, {"temperature": 1.3, "top_k": 20}, {"top_p": 0.7}, {"min_p": 0.2},
         {"repetition_penalty": 1.5}, {"temperature": 0.8, "repetition_penalty": 1.3, "top_p": 0.9}],
        ids=lambda rule: " ".join(rule) or "plain",
    )  # fmt: skip
    def test_logprobs_are_of_the_sampled_distribution(self, policy: BasePolicy, rule: dict[str, Any]) -> None:
        groups = ask(policy, PROMPTS, seed=4, logit_bias=WHOLE, **rule)
        for prompt, (c,) in zip(PROMPTS, groups, strict=True):
            self.agree(c.logprobs, plain_logprobs(prompt.tolist(), c.token_ids, Sampling(logit_bias=WHOLE, **rule)))

    def test_plain_sampling_has_the_models_logprobs(self, policy: BasePolicy) -> None:
        ((c,),) = ask(policy, [PROMPT], n=1, seed=9, max_tokens=1)
        self.agree(c.logprobs, plain_logprobs(PROMPT.tolist(), c.token_ids))

    def agree(self, logprobs: np.ndarray, expected: np.ndarray) -> None:
        assert np.allclose(logprobs, expected, atol=self.near)

    def test_a_seed_fixes_what_is_drawn(self, policy: BasePolicy) -> None:
        first, again, other = (tokens(ask(policy, PROMPTS, n=2, seed=s)) for s in (7, 7, 8))
        assert first == again and first != other
        assert all(a != b for a, b in first), "the n continuations differ from each other"
        alone = [tokens(ask(policy, [p], n=1, seed=7))[0][0] for p in PROMPTS]
        assert alone == [group[0] for group in first], "nor do they depend on n, or on company"

    def test_without_a_seed_the_policys_stream_decides(self, policy: BasePolicy) -> None:
        policy.reseed(3)
        first, second = (tokens(ask(policy, [PROMPT], n=2)) for _ in range(2))
        policy.reseed(3)
        assert first != second and tokens(ask(policy, [PROMPT], n=2)) == first

    def test_top_logprobs(self, policy: BasePolicy) -> None:
        ((c,),) = ask(policy, [PROMPTS[1]], temperature=0, max_tokens=4, logprobs=3)
        assert c.top_logprobs is not None
        result, logprobs = c.top_logprobs
        assert result.shape == logprobs.shape == (len(c.token_ids), 3)
        path = PROMPTS[1].tolist()
        for token, best, text in zip(c.token_ids, result, logprobs, strict=True):
            assert best.tolist() == np.argsort(-plain(path))[:3].tolist()
            self.agree(text, np.array([plain_logprobs(path, [t])[0] for t in best]))
            path.append(int(token))

    # where it ends

    def test_max_tokens_ends_a_completion(self, policy: BasePolicy) -> None:
        groups = ask(policy, PROMPTS, seed=2, max_tokens=5, logit_bias=((END, -90.0),))
        assert all(len(c.token_ids) == 5 and c.stop == "length" for (c,) in groups)

    def test_eos_ends_a_completion(self, policy: BasePolicy) -> None:
        ((c,),) = ask(policy, [PROMPT], seed=2, logit_bias=((END, 90.0),))
        assert (c.token_ids.tolist(), c.text, c.stop) == ([END], "", "eos")

    @pytest.mark.parametrize("at", [1, 3, 6])
    def test_a_stop_string_across_tokens(self, policy: BasePolicy, at: int) -> None:
        rule: dict[str, Any] = {"logit_bias": PLAIN, "seed": 11, "max_tokens": 12}
        ((whole,),) = ask(policy, [PROMPT], **rule)
        stop = whole.text[at : at + 3]
        assert len(stop) == 3 == len(TOKENIZER.encode(stop, add_special_tokens=False)), "each letter is a token"
        end = whole.text.index(stop) + 3
        ((c,),) = ask(policy, [PROMPT], **rule, stop=("not written", stop))
        assert (c.text, c.stop) == (whole.text[:end], "stop"), "the text keeps it, since the tokens do"
        assert c.token_ids.tolist() == whole.token_ids.tolist()[:end]

    def test_a_stop_string_in_the_prompt_does_not_stop(self, policy: BasePolicy) -> None:
        prompt = TOKENIZER.encode("a" * 8, add_special_tokens=False)
        ((c,),) = ask(policy, [prompt], logit_bias=((LETTERS[0], 90.0),), stop=("aaaa",), temperature=0)
        assert (c.text, c.stop) == ("aaaa", "stop")

    def test_context_length_ends_a_completion(self, policy: BasePolicy) -> None:
        ((c,),) = ask(policy, [np.resize(PROMPT, CONTEXT - 3)], max_tokens=50, logit_bias=((END, -90.0),))
        assert len(c.token_ids) == 3 and c.stop == "length"

    # tokens are the truth

    def test_the_prefix_is_never_tokenised_again(self, policy: BasePolicy) -> None:
        one, letters = (
            TOKENIZER.encode(" the", add_special_tokens=False),
            [TOKENIZER.inner.token_to_id(c) for c in "Ġthe"],
        )
        assert len(one) == 1 and TOKENIZER.decode(letters) == " the"
        half = TOKENIZER.encode("€", add_special_tokens=False)[:2]  # not a character yet
        prefixes = [p.tolist() for p in (one, np.array(letters), half)]
        groups = ask(policy, prefixes, temperature=0, max_tokens=6)
        assert tokens(groups) == [[plain_greedy(p, len(g[0].token_ids))] for p, g in zip(prefixes, groups, strict=True)]
        assert tokens(groups)[0] != tokens(groups)[1]

    def test_tokens_inside_a_character_are_kept(self, policy: BasePolicy) -> None:
        parts = TOKENIZER.encode("€é😀", add_special_tokens=False).tolist()
        ((c,),) = ask(policy, [PROMPT], seed=1, max_tokens=16, logit_bias=tuple((t, 90.0) for t in set(parts)))
        assert len(c.token_ids) == 16 and set(c.token_ids.tolist()) <= set(parts)
        assert c.text == TOKENIZER.decode(c.token_ids)

    def test_continuing_a_completion(self, policy: BasePolicy) -> None:
        rule: dict[str, Any] = {"temperature": 0, "logit_bias": ((END, -90.0),)}
        ((whole,),) = ask(policy, [PROMPT], **rule, max_tokens=6)
        ((first,),) = ask(policy, [PROMPT], **rule, max_tokens=3)
        ((rest,),) = ask(policy, [np.append(PROMPT, first.token_ids)], **rule, max_tokens=3)
        assert whole.token_ids.tolist() == [*first.token_ids, *rest.token_ids]

    # bad input, and many at once

    @pytest.mark.parametrize(
        ("prefix", "n", "words"),
        [([], 1, "at least one token"), ([5], 0, "n is 0"), ([SIZE + 9], 1, "vocabulary"), ([-1], 1, "vocabulary"),
         ([5] * CONTEXT, 1, "context")],
    )  # fmt: skip
    def test_impossible_calls_are_refused(self, policy: BasePolicy, prefix: list[int], n: int, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            ask(policy, [prefix], n=n)

    def test_one_bad_call_does_not_disturb_others(self, policy: BasePolicy) -> None:
        async def both() -> list[Any]:
            rule = Sampling(max_tokens=4, seed=5)
            calls = [policy.generate(ids(p), rule) for p in (PROMPT, [], PROMPT)]
            return await asyncio.gather(*calls, return_exceptions=True)

        first, bad, second = run_async(both())
        assert isinstance(bad, UsageError)
        assert first[0].token_ids.tolist() == second[0].token_ids.tolist()

    def test_many_concurrent_calls(self, policy: BasePolicy) -> None:
        prefixes = [[i, 65 + i % 7, i] for i in range(40)]
        together = tokens(ask(policy, prefixes, temperature=0, max_tokens=4))
        assert together == [[plain_greedy(p, len(g[0]))] for p, g in zip(prefixes, together, strict=True)]

    def test_a_cancelled_call_disturbs_no_other(self, policy: BasePolicy) -> None:
        rule = Sampling(max_tokens=CONTEXT - len(PROMPT), logit_bias=((END, -90.0),))

        async def one_gives_up(pause: float) -> tuple[bool, list[Completion]]:
            gone = asyncio.create_task(policy.generate(PROMPT, rule, 4))
            kept = asyncio.create_task(policy.generate(PROMPT, replace(rule, seed=6, max_tokens=8)))
            await asyncio.sleep(pause)
            gone.cancel()
            (end,) = await asyncio.gather(gone, return_exceptions=True)
            return isinstance(end, asyncio.CancelledError), await kept

        for pause in (0.02, 0.002, 0.0):  # a call may end within the longer ones
            cancelled, result = run_async(one_gives_up(pause))
            if cancelled:
                break
        assert cancelled
        assert tokens([result]) == tokens(ask(policy, [PROMPT], seed=6, logit_bias=((END, -90.0),)))
