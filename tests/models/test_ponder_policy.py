"""`PonderPolicy`: calls share batches, draws do not depend on other calls, errors reach every caller."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from fakes import CONFIGS, char_policy, run_async, tiny_decoder
from ponder.engine import sampler
from ponder.engine.engine import Engine
from ponder.engine.request import Request, SequenceState
from ponder.engine.sampling_step import finish_reason
from ponder.engine.scheduler import StepPlan
from ponder.errors import Interrupted, ModelError, UsageError
from ponder.models import base_policy
from ponder.models.engine_policy import hit_stop_string
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer, byte_level_alphabet
from ponder.nets.decoder import init_decoder
from ponder.protocols import Policy
from ponder.types import Completion, Sampling, ids, user_messages
from reference_decoder import plain_logits, weights64

ASKED = [[5, 6], [7], [5, 6, 9, 12], [20, 3]]


async def ask(
    policy: PonderPolicy, prefixes: Sequence[Sequence[int]], n: int = 2, **sampling: Any
) -> list[list[Completion]]:
    rule = Sampling(**{"max_tokens": 6, **sampling})
    return list(await asyncio.gather(*(policy.generate(ids(p), rule, n) for p in prefixes)))


def tokens(groups: list[list[Completion]]) -> list[list[list[int]]]:
    return [[c.token_ids.tolist() for c in group] for group in groups]


def test_is_a_policy_with_typed_completions() -> None:
    policy = char_policy()
    assert isinstance(policy, Policy)
    prompt = policy.encode(user_messages("12+3="))
    assert prompt.dtype == np.int32 and policy.tokenizer.decode(prompt) == "12+3="
    (group,) = run_async(ask(policy, [prompt.tolist()], n=3))
    assert len(group) == 3
    for c in group:
        assert c.token_ids.dtype == np.int32 and c.logprobs.dtype == np.float32
        assert len(c.token_ids) == len(c.logprobs) <= 6 and c.stop in ("eos", "length")
        body = c.token_ids[:-1] if c.stop == "eos" else c.token_ids
        assert c.text == policy.tokenizer.decode(body, keep_special=True)
        assert (c.token_ids[-1] == 2) == (c.stop == "eos"), "EOS is kept as a token, and is no text"


def test_waiting_calls_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = Engine._run_plan

    def spy(self: Engine, plan: StepPlan, *rest: Any) -> None:
        sizes.append(len(plan.seqs))
        real(self, plan, *rest)

    monkeypatch.setattr(Engine, "_run_plan", spy)
    policy = char_policy()

    async def begin() -> None:
        with policy.engine.paused():  # so that all have come before the first pass
            asking = asyncio.ensure_future(ask(policy, ASKED))
            while not policy.engine.mailbox._inbox:
                await asyncio.sleep(0)
        await asking

    run_async(begin())
    assert max(sizes) == 8


def test_new_weights_empty_the_cache_before_the_pause_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = char_policy()
    run_async(ask(policy, [[5, 6]]))
    renewed: list[int] = []
    monkeypatch.setattr(policy.engine, "refresh_weights", lambda: renewed.append(policy.engine.mailbox._paused))
    with policy.paused(), torch.no_grad():
        policy.net.norm.weight.mul_(2)
    assert renewed == [1], "a pass after the pause would find keys of the old weights"


def test_network_loaded_in_inference_mode() -> None:
    with torch.inference_mode():
        net = tiny_decoder()
    made = [PonderPolicy(n, char_policy().tokenizer) for n in (net, tiny_decoder())]
    once, again = (tokens(run_async(ask(policy, [[5, 6]]))) for policy in made)
    assert once == again


def test_stop_string_before_min_tokens_does_not_stop() -> None:
    policy = char_policy()
    rule: Any = {"max_tokens": 10, "min_tokens": 4, "seed": 11}
    ((free,),) = run_async(ask(policy, [[5, 6]], n=1, **rule))
    early = free.text[2]
    assert free.text.count(early) == 1, "the test wants a character that is written once"
    ((result,),) = run_async(ask(policy, [[5, 6]], n=1, stop=(early,), **rule))
    assert result.token_ids.tolist() == free.token_ids.tolist()
    ((result,),) = run_async(ask(policy, [[5, 6]], n=1, stop=(free.text[5],), **rule))
    assert result.stop == "stop" and result.text == free.text[:6]


def test_remembered_prefixes_are_bounded_and_seeds_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_policy, "_MAX_REMEMBERED_PREFIXES", 10)
    policy = char_policy()
    seeds = [policy._next_seed(ids([i % 25])) for i in range(200)]
    assert len(set(seeds)) == 200 and len(policy._times_asked) <= 10


def test_draws_depend_only_on_prefix_and_stream() -> None:
    together = tokens(run_async(ask(char_policy(), ASKED)))
    assert tokens(run_async(ask(char_policy(), ASKED[::-1])))[::-1] == together

    async def one_by_one() -> list[list[Completion]]:
        policy = char_policy()
        return [(await ask(policy, [p]))[0] for p in ASKED]

    assert tokens(run_async(one_by_one())) == together
    policy = char_policy()
    policy.reseed(0, 1)
    other = tokens(run_async(ask(policy, ASKED)))
    assert other != together
    policy.reseed(0, 2)
    assert tokens(run_async(ask(policy, ASKED))) != other
    policy.reseed(0, 1)
    assert tokens(run_async(ask(policy, ASKED))) == other


def test_the_same_question_again_gets_another_answer() -> None:
    first, second = tokens(run_async(ask(char_policy(), [ASKED[0], ASKED[0]])))
    assert first != second
    policy = char_policy()
    fixed = [tokens(run_async(ask(policy, [ASKED[0]], seed=3))) for _ in range(2)]
    assert fixed[0] == fixed[1], "unless the seed is given"


def test_versions_and_new_weights() -> None:
    """Each completion records the weights that wrote it, and no state of older ones is used."""
    net = tiny_decoder()
    policy = PonderPolicy(net, Tokenizer.from_alphabet("abc"))
    (before,) = run_async(ask(policy, [[7, 9]], n=1, temperature=0.0))
    with torch.no_grad():
        for p, q in zip(net.parameters(), tiny_decoder(seed=4).parameters(), strict=True):
            p.copy_(q)
    policy.version = 5
    (after,) = run_async(ask(policy, [[7, 9]], n=1, temperature=0.0))
    assert (before[0].version, after[0].version) == (0, 5)
    w, path = weights64(tiny_decoder(seed=4)), [7, 9]
    for _ in after[0].token_ids:
        path.append(int(plain_logits(w, net.config, path)[-1].argmax()))
    assert after[0].token_ids.tolist() == path[2:] != before[0].token_ids.tolist()


def test_cost_counts_a_shared_prompt_once() -> None:
    (group,) = run_async(ask(char_policy(), [[5, 6, 7]], n=4))
    assert [c.cost.prompt_tokens for c in group] == [3, 0, 0, 0]
    assert [c.cost.cached_tokens for c in group] == [0, 3, 3, 3]
    assert [c.cost.generated_tokens for c in group] == [len(c.token_ids) for c in group]
    assert all(c.cost.flops > 0 and c.cost.seconds > 0 for c in group)
    assert group[0].cost.flops / (2 + len(group[0].token_ids)) == pytest.approx(
        group[1].cost.flops / (len(group[1].token_ids) - 1), rel=0.2
    )


def test_max_tokens_is_cut_to_the_context() -> None:
    policy = char_policy(context=8)
    (group,) = run_async(ask(policy, [[5] * 5], n=8, max_tokens=50))
    assert max(len(c.token_ids) for c in group) == 3
    assert all(c.stop == "length" or len(c.token_ids) <= 3 for c in group)


@pytest.mark.parametrize(
    ("prefix", "n", "words"),
    [([], 1, "at least one token"), ([5], 0, "n is 0"), ([99], 1, "vocabulary"), ([-1], 1, "vocabulary"),
     ([5] * 64, 1, "context only 64"), ([5] * 99, 1, "context only 64")],
)  # fmt: skip
def test_impossible_calls_are_refused(prefix: list[int], n: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run_async(ask(char_policy(), [prefix], n=n))


def test_several_prefixes_in_one_call_equal_a_call_for_each() -> None:
    """Also where the prefixes leave different room in the context, and where a prefix comes twice."""
    prefixes = [ids([5, 6, 7]), ids([9]), ids([5, 6, 7]), ids([8] * 20)]
    counts, how = [2, 1, 1, 3], Sampling(max_tokens=40)

    def calls(context: int) -> tuple[list[list[Completion]], list[list[Completion]]]:
        one, many = char_policy(seed=3), char_policy(seed=3)
        one.context_length = many.context_length = context

        async def each() -> list[list[Completion]]:
            return list(await asyncio.gather(*map(one.generate, prefixes, [how] * 4, counts)))

        return run_async(each()), run_async(many.generate_many(list(zip(prefixes, [how] * 4, counts, strict=True))))

    for context in (100, 50):
        each, together = calls(context)
        assert tokens(together) == tokens(each) and [len(group) for group in together] == counts
        assert [[c.text for c in group] for group in together] == [[c.text for c in group] for group in each]
        assert {len(c.token_ids) for group in together for c in group if c.stop == "length"} <= {40, context - 20}
        for a, b in zip(chain.from_iterable(each), chain.from_iterable(together), strict=True):
            assert a.stop == b.stop and np.allclose(a.logprobs, b.logprobs, atol=1e-5)
    assert run_async(char_policy().generate_many([])) == []


@pytest.mark.parametrize(
    ("prefixes", "counts", "words"),
    [
        ([[5], [9999]], [1, 1], "below the vocabulary"),
        ([[5], []], [1, 1], "at least one token"),
        ([[5], [6]], [1, 0], "at least one completion"),
        ([[5], [6]], [1, True], "at least one completion"),
        ([[5], [6] * 5000], [1, 1], "the model's context only"),
    ],
)
def test_impossible_prefixes_among_several_are_refused(prefixes: Any, counts: list[int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        how = Sampling(max_tokens=4)
        run_async(char_policy().generate_many([(ids(p), how, n) for p, n in zip(prefixes, counts, strict=True)]))


def test_a_tokenizer_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ModelError, match="does not fit"):
        PonderPolicy(tiny_decoder(), Tokenizer.from_alphabet("".join(map(chr, range(200, 400)))))


def test_more_tokens_than_memory_are_refused() -> None:
    policy = char_policy()
    policy.engine.cache_bytes = 40 * 2 * 2 * 4 * 8 * 4  # tokens, keys and values, layers, heads, head size, bytes
    run_async(ask(policy, [[5] * 10], n=4, max_tokens=30))
    with pytest.raises(UsageError, match=r"41 tokens, the cache holds 40.*lower max_tokens"):
        run_async(ask(policy, [[5] * 10], max_tokens=31))


# failures


def broken() -> PonderPolicy:
    policy = char_policy()
    with torch.no_grad():
        policy.net.layers[0].mlp.down_proj.weight.fill_(torch.nan)
    return policy


def test_every_waiting_call_gets_the_failure() -> None:
    policy = broken()

    async def all_of_them() -> list[Any]:
        calls = [policy.generate(ids(p), Sampling(max_tokens=3)) for p in ASKED * 3]
        return await asyncio.gather(*calls, return_exceptions=True)

    result = run_async(all_of_them())
    assert len(result) == 12 and all(isinstance(f, ModelError) for f in result)


def test_policy_works_after_a_failure() -> None:
    policy = char_policy()
    expected = tokens(run_async(ask(char_policy(), ASKED, seed=1)))

    def stop(count: int) -> None:
        raise Interrupted("stop")

    policy.on_tokens = stop
    with pytest.raises(Interrupted):
        run_async(ask(policy, ASKED))
    policy.on_tokens = lambda count: None
    assert tokens(run_async(ask(policy, ASKED, seed=1))) == expected


def test_calls_during_a_batch_are_served() -> None:
    policy = char_policy()

    async def late() -> list[list[Completion]]:
        first = asyncio.create_task(ask(policy, ASKED[:2], max_tokens=30))
        while not policy.engine.mailbox.calls:
            await asyncio.sleep(0.001)
        second = asyncio.create_task(ask(policy, ASKED[2:], seed=2))
        await first
        return await second

    assert tokens(run_async(late())) == tokens(run_async(ask(char_policy(), ASKED[2:], seed=2)))


def test_a_failure_does_not_block_later_calls() -> None:
    policy = broken()

    async def late() -> list[Any]:
        first = asyncio.create_task(policy.generate(ids([5]), Sampling(max_tokens=3)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = [policy.generate(ids([6]), Sampling(max_tokens=3)) for _ in range(3)]
        return await asyncio.gather(first, *rest, return_exceptions=True)

    assert all(isinstance(f, ModelError) for f in run_async(late()))


def test_a_cancelled_call_disturbs_no_other() -> None:
    policy = char_policy()

    async def one_gives_up() -> list[Completion]:
        gone = asyncio.create_task(policy.generate(ids([9]), Sampling(max_tokens=20)))
        kept = asyncio.create_task(policy.generate(ids([5, 6]), Sampling(max_tokens=20, seed=1)))
        await asyncio.sleep(0)
        gone.cancel()
        return await kept

    result = run_async(one_gives_up())
    (alone,) = run_async(ask(char_policy(), [[5, 6]], n=1, max_tokens=20, seed=1))
    assert result[0].token_ids.tolist() == alone[0].token_ids.tolist()


def test_on_tokens_counts_every_token() -> None:
    policy, heard = char_policy(), []
    policy.on_tokens = heard.append
    result = run_async(ask(policy, ASKED, n=3))
    assert sum(heard) == sum(len(c.token_ids) for group in result for c in group)


# stop strings. The policy writes a script: what is drawn is replaced, everything else is real.


def scripted(monkeypatch: pytest.MonkeyPatch, script: Sequence[int]) -> None:
    left = list(script)

    def draw(logprobs: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        token = torch.full((len(logprobs),), left.pop(0))
        return token, logprobs.gather(-1, token[:, None])[:, 0]

    monkeypatch.setattr(sampler, "sample_tokens", draw)


@pytest.mark.parametrize(
    ("text", "stop", "written"),
    [
        ("0123456", ("34",), "01234"),  # over the border of two tokens
        ("0123456", ("5", "34"), "01234"),  # the first that is met
        ("0123456", ("123456",), "0123456"),
        ("0012", ("01",), "001"),  # the string's own beginning comes twice
        ("a=a=b", ("a=b",), "a=a=b"),
        ("0123456", ("8",), "0123456"),
        ("7", ("7",), "7"),  # at once
    ],
)
def test_stop_strings(text: str, stop: tuple[str, ...], written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = char_policy()
    scripted(monkeypatch, [*policy.tokenizer.encode(text, add_special_tokens=False).tolist(), 2])
    (result,) = run_async(policy.generate(ids([5]), Sampling(stop=stop, max_tokens=20)))
    assert result.text == written
    assert result.stop == ("stop" if any(s in text for s in stop) else "eos")
    assert len(result.token_ids) == len(result.logprobs) == len(written) + (result.stop == "eos"), (
        "tokens are the truth"
    )


PIECES = ["ab", "a=", "\n\n", "é", "→b", "b→", "aé"]  # beside all single bytes


@settings(max_examples=300 if os.environ.get("PONDER_FUZZ") else 80, deadline=None)
@given(st.data())
def test_stop_strings_against_a_search_in_bytes(data: st.DataObject) -> None:
    """Whatever tokens come, halves of characters too: the first that completes a stop string ends the text, unless it
    is forced or comes before `min_tokens`."""
    policy = PonderPolicy(init_decoder(replace(CONFIGS["llama"], vocab=256 + len(PIECES)), 0), bytewise(PIECES))
    likely = [*policy.tokenizer.encode("ab=\né→", add_special_tokens=False).tolist(), *range(256, 256 + len(PIECES))]
    script = data.draw(st.lists(st.one_of(st.sampled_from(likely), st.integers(1, 255)), min_size=1, max_size=12))
    stop = tuple(data.draw(st.lists(st.text("ab=\né→", min_size=1, max_size=4), min_size=1, max_size=2)))
    forced = data.draw(st.integers(0, min(3, len(script) - 1)))
    least = data.draw(st.integers(0, len(script)))
    rule = Sampling(stop=stop, forced_token_ids=tuple(script[:forced]), min_tokens=least, max_tokens=len(script))
    (row,) = SequenceState.from_request(Request(ids([5]), rule, 1, 0))
    plain = [
        *range(33, 127),
        *range(161, 173),
        *range(174, 256),
    ]  # bytes that byte-level vocabularies show as themselves
    others = [b for b in range(256) if b not in plain]
    shown = [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)]
    text, expected = b"", None
    for i, token in enumerate(script):
        row.append(token, 0.0, 0)
        if i >= forced:
            piece = bytes(shown.index(c) for c in policy.tokenizer.token(token) or "")
            new = range(len(text) + 1, len(text) + len(piece) + 1)  # where a string may end that was not there before
            text += piece
            if i + 1 >= least and any(text[:e].endswith(s.encode()) for s in stop for e in new):
                expected = "stop"
        result = finish_reason(row, frozenset({0}), partial(hit_stop_string, policy.tokenizer))
        assert result == (expected or ("length" if i + 1 == len(script) else None)), (script, stop, i)
        if result:
            return


def test_invalid_stop_token_affects_no_other_call() -> None:
    policy = char_policy()

    async def both() -> list[Any]:
        wrong = Sampling(stop_token_ids=(99,), min_tokens=3, max_tokens=6)
        asked = [policy.generate(ids([5, 6]), rule) for rule in (wrong, Sampling(max_tokens=6, temperature=0))]
        return await asyncio.gather(*asked, return_exceptions=True)

    refused, good = run_async(both())
    assert isinstance(refused, UsageError) and "token 99 is" in str(refused) and good[0].token_ids.size
    with pytest.raises(UsageError, match="at least one token"):
        run_async(policy.generate(ids(np.zeros((2, 2))), Sampling()))


def test_a_stop_string_in_the_prompt_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = char_policy()
    prompt = policy.tokenizer.encode("ab", add_special_tokens=False)
    scripted(monkeypatch, [*policy.tokenizer.encode("bab", add_special_tokens=False).tolist(), 2])
    (result,) = run_async(policy.generate(prompt, Sampling(stop=("ab",), max_tokens=20)))
    assert result.text == "bab"


def bytewise(more: Sequence[str] = ()) -> Tokenizer:
    """256 tokens, one byte each: a character of two bytes is two tokens. And `more`."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet += ["".join(piece for piece, _ in level.pre_tokenize_str(text)) for text in more]
    inner = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(inner, eos=(0,))


@pytest.mark.parametrize(("text", "stop"), [("aéb", "é"), ("xé→y", "é→"), ("日本語", "本"), ("a\nb\n\nc", "\n\n")])
def test_stop_strings_across_partial_characters(text: str, stop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = bytewise()
    policy = PonderPolicy(init_decoder(replace(CONFIGS["llama"], vocab=256), 0), tokenizer)
    scripted(monkeypatch, tokenizer.encode(text, add_special_tokens=False).tolist())
    (result,) = run_async(policy.generate(ids([5]), Sampling(stop=(stop,), max_tokens=len(text.encode()))))
    assert result.stop == "stop" and result.text == text[: text.index(stop) + len(stop)]


def byte_policy() -> PonderPolicy:
    """Its tokens are bytes, so that characters are cut between them; one token is two bytes."""
    vocab = {char: byte for byte, char in byte_level_alphabet().items()} | {"ab": 256}
    inner = tokenizers.Tokenizer(models.BPE(vocab, []))
    inner.decoder = decoders.ByteLevel()
    config = replace(CONFIGS["llama"], vocab=257)
    return PonderPolicy(init_decoder(config, 0), Tokenizer(inner, eos=(0,), chat_template="{{ messages[0].content }}"))


def sequence(tokens: Sequence[int], stop: Any = None) -> SequenceState:
    (seq,) = SequenceState.from_request(Request(ids([5]), Sampling(), 1, 0))
    seq.extend(len(tokens), ids(tokens).tobytes(), np.zeros(len(tokens), np.float32).tobytes(), 0)
    seq.stop = stop
    return seq


def test_text_decoded_ahead_is_that_of_the_tokens() -> None:
    policy, draw = byte_policy(), np.random.default_rng(0)
    whole = [*"é🙂 ab".encode(), 256, 0xFF] * 40
    for stop, end in (("length", []), ("eos", [0])):
        seqs, expected = [], []
        for size in (0, 1, 3, 200):
            cuts = sorted(draw.integers(0, size + 1, 3).tolist())
            expected.append(policy.completions([sequence([*whole[:size], 7, *end], stop)])[0].text)
            seqs.append(sequence(whole[: cuts[0]]))
            for first, last in pairwise([*cuts, size]):
                policy.decode_ahead(seqs[-1:])
                part = whole[first:last]
                seqs[-1].extend(len(part), ids(part).tobytes(), np.zeros(len(part), np.float32).tobytes(), 0)
            seqs[-1].extend(1 + len(end), ids([7, *end]).tobytes(), np.zeros(1 + len(end), np.float32).tobytes(), 0)
            seqs[-1].stop = stop
        assert any(seq.text_tokens for seq in seqs)
        assert [c.text for c in policy.completions(seqs)] == expected
    policy.decode_ahead([])


def test_tokens_without_bytes_are_not_decoded_ahead() -> None:
    policy = char_policy()
    (seq,) = SequenceState.from_request(Request(ids([5]), Sampling(), 1, 0))
    seq.extend(2, ids([5, 6]).tobytes(), np.zeros(2, np.float32).tobytes(), 0)
    policy.decode_ahead([seq])
    assert not seq.text_tokens


def test_encoded_ahead_is_encoded_once_and_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = char_policy()
    first, second = user_messages("1+2="), user_messages("3+4=")
    expected = [policy.encode(messages).tolist() for messages in (first, second)]
    rendered: list[Any] = []
    plain = base_policy.chat_templates.encode_chat

    def encode_chat(tokenizer: Tokenizer, messages: Any, **more: Any) -> Any:
        rendered.append(messages)
        return plain(tokenizer, messages, **more)

    monkeypatch.setattr(base_policy.chat_templates, "encode_chat", encode_chat)
    parts = ({"role": "user", "content": [{"type": "text", "text": "1+2="}]},)
    policy.encode_ahead([first, parts])
    assert rendered == [first]  # parts are not kept: they may be pictures
    assert [policy.encode(messages).tolist() for messages in (first, second)] == expected
    assert rendered == [first, second]
    assert policy.encode(first).tolist() == expected[0] and rendered[2:] == [first]
    policy.encode_ahead([second])
    policy.encode_ahead([])
    assert policy.encode(second).tolist() == expected[1] and rendered[3:] == [second, second]
