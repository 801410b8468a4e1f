"""A network split over shards against the whole one and against a plain loop in float64. The shards are threads here,
with the messages that processes would get; tests/models/test_tensor_parallel.py has real ones."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import CONFIGS, perturb, run_async, tiny_decoder
from ponder.engine import kv_cache, torch_attention
from ponder.engine.attention_plan import AttentionPlan, KVSegment
from ponder.engine.engine import Engine
from ponder.engine.request import Request, SequenceState
from ponder.engine.runner_factory import make_runner
from ponder.engine.sharded_runner import FollowingRunner, PassMessage, _read_plan, split_arrays
from ponder.errors import UsageError
from ponder.nets.decoder import Decoder
from ponder.nets.tensor_parallel import DecoderShard, Shard, can_split, check_shard_count, own_part, shard_config
from ponder.types import Sampling, ids
from reference_decoder import plain_logprobs, weights64

PROMPTS = [[5], [9, 3, 22, 40, 17], [33] * 11, [8, 60, 7], [12, 12, 50, 9, 30, 4, 61, 22]]
SPLITS = [("llama", 2), ("llama", 4), ("untied", 2), ("window", 2), ("qwen3", 4), ("gemma", 2)]  # 2 key heads in all


class ThreadShards:
    """Shards of one network as threads. What goes to them goes through JSON and bytes."""

    def __init__(self, whole: Decoder, count: int) -> None:
        self.nets = [DecoderShard(whole.config, Shard(rank, count)).to(whole.dtype) for rank in range(count)]
        for net in self.nets:
            net.requires_grad_(False)
            net.all_reduce = self.all_reduce
        self._barrier, self._parts = threading.Barrier(count), {}
        self._queues = [queue.Queue[tuple[str, bytes] | None]() for _ in self.nets[1:]]
        self._replies = queue.Queue[dict[str, Any]]()
        self.messages: list[dict[str, Any]] = []
        self.failure: BaseException | None = None
        self.load(whole)
        self.nets[0].followers = self
        self._threads = [threading.Thread(target=self._follow, args=(i,), daemon=True) for i in range(count - 1)]
        for thread in self._threads:
            thread.start()

    def load(self, whole: Decoder) -> None:
        weights = dict(whole.named_parameters())
        for net in self.nets:
            net.load_state_dict(net.own_tensors(weights), strict=False)

    def all_reduce(self, x: Tensor) -> Tensor:
        self._parts[threading.get_ident()] = x
        self._barrier.wait(20)
        total = torch.stack(list(self._parts.values())).double().sum(0).to(x.dtype)
        self._barrier.wait(20)
        self._parts.clear()
        self._barrier.wait(20)
        return total

    def _follow(self, index: int) -> None:
        runner = FollowingRunner(self.nets[index + 1])
        try:
            while (received := self._queues[index].get()) is not None:
                if (reply := runner.take(json.loads(received[0]), received[1])) is not None:
                    self._replies.put(reply)
        except BaseException as error:
            self.failure = error
            self._barrier.abort()

    def send(self, message: Mapping[str, Any], body: bytes = b"") -> None:
        self.messages.append(dict(message))
        for one in self._queues:
            one.put((json.dumps(message), body))

    def collect_replies(self) -> list[dict[str, Any]]:
        return [self._replies.get(timeout=20) for _ in self._queues]

    def fail(self, error: BaseException) -> NoReturn:
        raise self.failure or error

    def close(self) -> None:
        for one in self._queues:
            one.put(None)
        for thread in self._threads:
            thread.join(20)


@contextmanager
def split(whole: Decoder, count: int) -> Iterator[ThreadShards]:
    shards = ThreadShards(whole, count)
    yield shards
    shards.close()


def request(prompt: Sequence[int], n: int = 1, seed: int = 0, **sampling: Any) -> Request:
    return Request(ids(prompt), Sampling(**{"max_tokens": 12, **sampling}), n, seed)


def generate(net: Decoder, requests: Sequence[Request], slots: int = 4000, **more: Any) -> list[SequenceState]:
    room = slots * kv_cache.bytes_per_token(net.config, net.dtype)
    machine = Engine(net, cache_bytes=room, **more)

    async def all_of_them() -> list[SequenceState]:
        return [seq for seqs in await asyncio.gather(*(machine.generate(r) for r in requests)) for seq in seqs]

    found = run_async(all_of_them(), 60)
    machine.close()
    return found


def assert_same(found: Sequence[SequenceState], wanted: Sequence[SequenceState]) -> None:
    assert [seq.token_ids for seq in found] == [seq.token_ids for seq in wanted]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


@pytest.fixture(params=["together", "apart"])
def attention_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What rows share is read by each of them, or once for all, which is another message."""
    if request.param == "apart":
        monkeypatch.setattr(torch_attention, "_MAX_INLINE_BYTES", -1)


@pytest.mark.parametrize(("kind", "count"), SPLITS)
def test_shards_sample_what_the_whole_network_does(kind: str, count: int, attention_path: None) -> None:
    """Forks of one prompt, prompts that share a beginning, prefill in chunks beside decoding rows."""
    whole = tiny_decoder(kind)
    requests = [request(p, n, seed=i) for i, (p, n) in enumerate(zip(PROMPTS, (1, 3, 4, 1, 2), strict=True))]
    requests += [request([*PROMPTS[4], 3, 1, 41], 2, seed=9), request(PROMPTS[1], 3, seed=11, max_tokens=30)]
    with split(whole, count) as shards:
        found = generate(shards.nets[0], requests, prefill_chunk_tokens=6)
    assert_same(found, generate(whole, requests, prefill_chunk_tokens=6))
    w = {n: p.detach() for n, p in weights64(whole).items()}
    for seq in found:
        text = [*seq.request.prefix.tolist(), *seq.token_ids]
        exact = plain_logprobs(whole, w, text, len(seq.token_ids))
        np.testing.assert_allclose(seq.logprobs, exact, atol=1e-5)


def test_shards_go_on_after_preemptions() -> None:
    """A cache that is too small for all: rows are preempted, and come back with other slots."""
    whole, requests = tiny_decoder(), [request(p, 2, seed=i, max_tokens=20) for i, p in enumerate(PROMPTS)]
    with split(whole, 2) as shards:
        found = generate(shards.nets[0], requests, slots=48)
    assert_same(found, generate(whole, requests))


def test_new_weights_reach_all_shards() -> None:
    whole, requests = tiny_decoder("untied"), [request(p, 2, seed=i) for i, p in enumerate(PROMPTS)]
    with split(whole, 2) as shards:
        before = generate(shards.nets[0], requests)
        shards.load(perturb(whole, 0.3))
        after = generate(shards.nets[0], requests)
    assert_same(after, generate(whole, requests))
    assert [seq.token_ids for seq in before] != [seq.token_ids for seq in after]


def test_steps_of_the_same_rows_send_their_slots_alone() -> None:
    with split(tiny_decoder(), 2) as shards:
        generate(shards.nets[0], [request([5, 6, 7], max_tokens=8)])
        passes = [m for m in shards.messages if m["kind"] == "pass"]
    assert [m["rows"] for m in passes] == [[], ["plan"], *([["grow"]] * 7)]
    assert all(sum(m["lengths"]) == 2 for m in passes[2:])  # its slot and its token


def test_each_shard_has_its_part_of_weights_and_cache() -> None:
    whole = tiny_decoder("untied")
    nets = [DecoderShard(whole.config, Shard(rank, 2)) for rank in range(2)]
    own = [net.own_tensors(dict(whole.named_parameters())) for net in nets]
    for net, tensors in zip(nets, own, strict=True):
        assert {n: tuple(t.shape) for n, t in tensors.items()} == {n: tuple(p.shape) for n, p in net.named_parameters()}
    down, q = "layers.0.mlp.down_proj", "layers.1.self_attn.q_proj"
    assert torch.equal(torch.cat([t[f"{down}.weight"] for t in own], 1), whole.get_parameter(f"{down}.weight"))
    assert torch.equal(torch.cat([t[f"{q}.bias"] for t in own]), whole.get_parameter(f"{q}.bias"))
    assert torch.equal(own[0][f"{down}.bias"] + own[1][f"{down}.bias"], whole.get_parameter(f"{down}.bias"))
    assert "lm_head.weight" in own[0] and "lm_head.weight" not in own[1]
    tokens = [kv_cache.bytes_per_token(net.config, torch.float32) for net in nets]
    assert 2 * tokens[0] == 2 * tokens[1] == kv_cache.bytes_per_token(whole.config, torch.float32)
    assert nets[1].model_config == whole.config


def test_key_heads_are_repeated_where_there_are_fewer_of_them_than_shards() -> None:
    config, keys = CONFIGS["llama"], torch.arange(16.0)[:, None].expand(16, 32)  # 2 key heads of 8
    parts = [own_part(config, Shard(rank, 4), "layers.0.self_attn.k_proj.weight", keys) for rank in range(4)]
    assert [part[0, 0].item() for part in parts if part is not None] == [0, 0, 8, 8]
    assert shard_config(config, Shard(3, 4)).kv_heads == 1 and shard_config(config, Shard(3, 4)).heads == 1


def test_shapes_that_do_not_divide_name_those_that_do() -> None:
    smollm2 = replace(CONFIGS["llama"], heads=9, kv_heads=3, mlp_width=1536)
    with pytest.raises(
        UsageError, match=r"9 query heads, 3 key heads and 1,536 hidden units .* 2 shards: .* may be 3$"
    ):
        check_shard_count(smollm2, 2)
    check_shard_count(smollm2, 3)
    qwen = replace(CONFIGS["llama"], heads=12, kv_heads=2, mlp_width=8960)  # Qwen2.5 1.5B
    assert [n for n in range(1, 13) if can_split(qwen, n)] == [1, 2, 4]
    with pytest.raises(UsageError, match="give 1 or more"):
        check_shard_count(smollm2, 0)
    with pytest.raises(UsageError, match="1 alone"):
        check_shard_count(replace(smollm2, mlp_width=1535), 3)


def test_quantised_weights_and_adapters_are_refused() -> None:
    net = DecoderShard(CONFIGS["llama"], Shard(0, 2))
    with pytest.raises(UsageError, match="leave out --tensor-parallel"):
        make_runner(net, 8, 8, True, "int8")
    with pytest.raises(UsageError, match="takes no adapters"):
        Engine(net).adapters.add("one", "nowhere")


def test_smaller_cache_is_tried_where_a_shard_has_no_memory() -> None:
    class Full(ThreadShards):
        def collect_replies(self) -> list[dict[str, Any]]:
            replies = super().collect_replies()
            return [{**r, "error": "out of memory"} for r in replies] if len(self.messages) == 1 else replies

    shards = Full(tiny_decoder(), 2)
    machine = Engine(shards.nets[0])
    run_async(machine.generate(request([5, 6])), 60)
    machine.close()
    shards.close()
    first, second = [m["slots"] for m in shards.messages if m["kind"] == "cache"]
    assert second == first // 2


def test_plan_comes_back_from_its_message() -> None:
    first = KVSegment([0, 2], 0, [np.asarray([4, 5], np.int32), np.asarray([9], np.int32)])
    plan = AttentionPlan([first, KVSegment([0, 1], 3, [ids([7])])], [ids([1, 2]), ids([3]), ids([8, 6, 0])], [3, 4, 3])
    message = PassMessage()
    message.add_plan(plan)
    encoded, body = message.encode(np.asarray([1, 2, 3]), [])
    arrays = split_arrays(encoded["lengths"], body)
    found = _read_plan(arrays)
    assert [(s.rows, s.position, s.slots.tolist()) for s in found.shared] == [([0, 2], 0, [4, 5, 9]), ([0, 1], 3, [7])]
    assert [t.tolist() for t in found.tails] == [[1, 2], [3], [8, 6, 0]] and found.tail_starts == [3, 4, 3]
    assert next(arrays).tolist() == [1, 2, 3]
