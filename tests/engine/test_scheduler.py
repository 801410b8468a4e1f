"""The scheduler against a naive model: a fake network that checks, at every read, what each slot holds."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

from fakes import fails_if
from ponder.engine.radix_tree import RadixTree
from ponder.engine.request import ReadRequest, Request, SequenceState
from ponder.engine.scheduler import PrefillChunk, Scheduler, StepPlan
from ponder.types import Sampling, ids

VOCAB_SIZE = 3


@functools.cache
def next_token(tokens: tuple[int, ...]) -> int:
    """What the fake network writes next."""
    return random.Random(repr(tokens)).randrange(VOCAB_SIZE)


def expected_tokens(prefix: list[int], count: int) -> list[int]:
    tokens = list(prefix)
    for _ in range(count):
        tokens.append(next_token(tuple(tokens)))
    return tokens[len(prefix) :]


class FakeRunner:
    """Slots that remember for which prefix they were written; reading a wrong one fails."""

    def __init__(self) -> None:
        self.slots: dict[int, tuple[int, ...]] = {}
        self.computed = self.both = 0

    def check(self, slots: list[int], tokens: list[int]) -> None:
        assert len(slots) == len(tokens)
        for i, slot in enumerate(slots):
            assert self.slots.get(slot) == tuple(tokens[: i + 1])

    def fill(self, chunks: list[PrefillChunk]) -> None:
        for chunk in chunks:  # keys of all are written before any is read
            before = [t for n in chunk.node.path()[:-1] for t in n.tokens.tolist()] + chunk.node.tokens.tolist()
            for i, slot in enumerate(chunk.slots.tolist(), chunk.position):
                self.slots[slot] = tuple(before[: i + 1])
                self.computed += 1
        for chunk in chunks:
            tokens = [t for n in chunk.node.path()[:-1] for t in n.tokens.tolist()]
            tokens += chunk.node.tokens[: chunk.stop].tolist()
            self.check(chunk.visible_slots.tolist(), tokens)
            if chunk.read_request:
                chunk.read_request.hidden += chunk.tokens.tolist()

    def decode(self, seqs: list[SequenceState]) -> None:
        assert len({r.slots[-1] for r in seqs}) == len(seqs)
        for seq in seqs:
            self.slots[seq.slots[-1]] = tuple(seq.tokens.tolist())
            self.computed += 1
        for seq in seqs:
            assert seq.node is not None
            self.check([*(s for n in seq.node.path() for s in n.slots.tolist()), *seq.slots], seq.tokens.tolist())
            seq.append(next_token(tuple(seq.tokens.tolist())), 0.0, 0)

    def turn(self, schedule: Scheduler, turn: StepPlan | None) -> tuple[list[ReadRequest], list[SequenceState]]:
        """One pass; who is complete with it."""
        assert turn is not None
        if turn.chunks:
            self.fill(turn.chunks)
        self.decode(turn.seqs)
        read = schedule.finish_chunks(turn.chunks) if turn.chunks else []
        ended = [seq for seq in turn.seqs if len(seq.token_ids) == seq.sampling.max_tokens]
        schedule.retire(ended)
        return read, ended


def assert_all_free(schedule: Scheduler) -> None:
    """Nobody holds anything, and every slot is free or idle in the tree."""
    schedule.add([])  # what finished last goes into the tree before new work
    assert not schedule and schedule.allocator.free_count + schedule.tree.evictable == schedule.allocator.size
    assert not any(n.ref_count for n in schedule.tree.nodes())
    assert schedule.tree.replace_with_empty().memory.free_count == schedule.allocator.size


def random_workload(seed: int, cancel: float = 0.1, renew: float = 0.03) -> tuple[Scheduler, FakeRunner]:
    draw = random.Random(seed)
    size = draw.randint(24, 90)
    schedule = Scheduler(size, max_num_seqs=draw.randint(1, 6), prefill_chunk_tokens=draw.randint(1, 12))
    fake, steps = FakeRunner(), 0
    live: list[SequenceState | ReadRequest] = []
    to_come = draw.randint(1, 14)
    while to_come or schedule:
        steps += 1
        assert steps < 5000, "someone starves"
        if to_come and draw.random() < 0.3:
            to_come -= 1
            prefix = [draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(1, 14))]
            if written := [work.request.prefix.tolist() for work in live if isinstance(work, SequenceState)]:
                other = draw.choice(written)  # half go on from what another is writing
                prefix = draw.choice([prefix, (other + expected_tokens(other, 14))[: draw.randint(1, 14)]])
            if draw.random() < 0.25:
                reading = ReadRequest(ids(prefix), draw.randrange(len(prefix)))
                schedule.add([reading])
                live.append(reading)
            else:
                most = draw.randint(1, 24 - len(prefix))
                request = Request(ids(prefix), Sampling(max_tokens=most), draw.randint(1, 4), 0)
                seqs = SequenceState.from_request(request)
                schedule.add(seqs)
                live += seqs
        if turn := schedule.plan_step():
            fake.both += bool(turn.chunks and turn.seqs)
            assert len(turn.seqs) <= schedule.max_num_seqs
            read, ended = fake.turn(schedule, turn)
            for reading in read:
                live.remove(reading)
                assert reading.hidden == reading.tokens[reading.start :].tolist()
            for seq in ended:
                live.remove(seq)
                assert seq.token_ids == expected_tokens(seq.request.prefix.tolist(), seq.sampling.max_tokens)
        if live and draw.random() < cancel:
            schedule.remove(live.pop(draw.randrange(len(live))))
        if draw.random() < renew:
            schedule.reset_prefix_cache()
    assert not live
    return schedule, fake


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2, 3))])
def test_random_workloads_finish_and_free_all_slots(part: int) -> None:
    pushed = both = 0
    for seed in range(part * 500, part * 500 + 500):
        schedule, fake = random_workload(seed)
        pushed += schedule.preemptions
        both += fake.both
        assert_all_free(schedule)
    assert pushed > 100, "memory was short often enough to test that"
    assert both > 1000, "some filled and others decoded in one pass often enough to test that"


@pytest.mark.parametrize("mistake", ["", "cut", "kept", "freed", "leak"])
def test_broken_cache_is_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mistake == "cut":  # the chunks of a run that is cut get each other's slots
        real = RadixTree._split

        def wrong(self: RadixTree, node: object, at: int) -> object:
            node.slots = np.roll(node.slots, 1)  # type: ignore[attr-defined]
            return real(self, node, at)  # type: ignore[arg-type]

        monkeypatch.setattr(RadixTree, "_split", wrong)
    if mistake == "kept":  # the last token drawn counts as computed
        insert_computed = RadixTree.insert_computed
        monkeypatch.setattr(
            RadixTree, "insert_computed", lambda s, p, tokens, slots: insert_computed(s, p, np.roll(tokens, 1), slots)
        )
    if mistake == "freed":  # what others read goes when one of them ends
        monkeypatch.setattr(RadixTree, "hold", lambda self, node: node)
        monkeypatch.setattr(RadixTree, "release", lambda self, node: None)
    if mistake == "leak":  # nothing is ever let go
        monkeypatch.setattr(RadixTree, "release", lambda self, node: None)
    with fails_if(bool(mistake)):
        try:
            for seed in range(40):
                assert_all_free(random_workload(seed)[0])
        except Exception as failure:
            raise AssertionError("it broke") from failure


def run(schedule: Scheduler, fake: FakeRunner) -> None:
    while turn := schedule.plan_step():
        fake.turn(schedule, turn)


def ask(prefix: list[int], n: int = 1, tokens: int = 4, adapter: str = "") -> list[SequenceState]:
    request = Request(ids(prefix), Sampling(max_tokens=tokens), n, 0, adapter)
    return SequenceState.from_request(request)


def test_group_prompt_is_computed_once() -> None:
    schedule, fake = Scheduler(500, 64, 64), FakeRunner()
    prompt = [0, 1, 2, 2, 1, 0, 0, 1, 2]
    seqs = ask(prompt, n=8)
    schedule.add(seqs)
    run(schedule, fake)
    assert fake.computed == 8 + 8 * 4, "all but the last token once, and then what each row feeds"
    assert [r.prefill_tokens for r in seqs] == [8] + [0] * 7

    deeper = ask([*prompt, *seqs[0].token_ids], n=3)
    schedule.add(deeper)
    run(schedule, fake)
    assert fake.computed == 40 + 3 * 4, "only what is new is fed: the path is in the cache"
    assert [r.prefill_tokens for r in deeper] == [0, 0, 0]


def test_last_finished_are_cached_when_new_work_comes() -> None:
    schedule, fake = Scheduler(100, 64, 64), FakeRunner()
    schedule.add(ask([0, 1, 2], n=2))
    run(schedule, fake)
    assert not schedule and schedule.tree.evictable == 0 and schedule.allocator.free_count < 100
    schedule.add([])
    assert schedule.tree.evictable and schedule.allocator.free_count + schedule.tree.evictable == 100


def test_concurrent_requests_share_an_uncomputed_prefix() -> None:
    schedule, fake = Scheduler(500, 64, 4), FakeRunner()
    schedule.add(ask([0, 1, 2, 0, 1, 2, 0, 1, 1]))
    schedule.add(ask([0, 1, 2, 0, 1, 2, 0, 2, 2, 0]))
    run(schedule, fake)
    assert fake.computed == 7 + 1 + 2 + 2 * 4


def test_waiting_sequence_uses_prefix_computed_by_another() -> None:
    """The late one's prefix is half filled when the first one, which wrote the same, ends and leaves it computed."""
    schedule, fake = Scheduler(500, 64, 2), FakeRunner()
    first = ask([0, 1, 2], tokens=30)[0]
    schedule.add([first])
    late = ask([0, 1, 2, *expected_tokens([0, 1, 2], 27)], tokens=3)[0]
    while schedule:
        if len(first.token_ids) == 28 and not late.token_ids and late.node is None and not schedule.waiting:
            schedule.add([late])
        turn = schedule.plan_step()
        assert turn, "there is work, and nobody does it"
        fake.turn(schedule, turn)
    assert late.token_ids == expected_tokens(late.request.prefix.tolist(), 3)
    assert_all_free(schedule)


def test_adapters_do_not_share_prefixes() -> None:
    schedule, fake = Scheduler(500, 64, 64), FakeRunner()
    schedule.add(ask([0, 1, 2]))
    schedule.add(ask([0, 1, 2], adapter="other"))
    run(schedule, fake)
    assert fake.computed == 2 * (2 + 4)


def test_oldest_sequence_is_never_preempted() -> None:
    schedule, fake = Scheduler(40, 8, 64), FakeRunner()
    first = ask([0] * 5, tokens=30)[0]
    schedule.add([first])
    for i in range(6):
        schedule.add(ask([1 + i % 2] * (3 + i), tokens=20))
    seen = 0
    while ((turn := schedule.plan_step()) and first.node is not None) or not first.token_ids:
        assert turn is not None
        fake.turn(schedule, turn)
        seen += first in turn.seqs
        assert turn.chunks or first in turn.seqs, "a token at every pass that only decodes"
        assert len(first.token_ids) == seen
    assert schedule.preemptions > 0
    run(schedule, fake)
    assert_all_free(schedule)


def schedule_with_late_request(
    size: int, chunk: int, tokens: int, late: SequenceState
) -> tuple[Scheduler, FakeRunner, SequenceState]:
    """One has written a token when another comes."""
    schedule, fake = Scheduler(size, 8, chunk), FakeRunner()
    first = ask([0, 1], tokens=tokens)[0]
    schedule.add([first])
    for _ in range(2):
        fake.turn(schedule, schedule.plan_step())
    assert len(first.token_ids) == 1
    schedule.add([late])
    return schedule, fake, first


def test_long_prompt_prefills_in_mixed_batches() -> None:
    schedule, fake, first = schedule_with_late_request(5000, 10, 40, ask([2] * 1000)[0])
    filled = 0
    for passes in range(1, 20):
        turn = schedule.plan_step()
        fake.turn(schedule, turn)
        filled += sum(chunk.stop - chunk.start for chunk in turn.chunks)
        assert len(first.token_ids) == 1 + passes, "a token at every pass"
        assert turn.chunks or filled >= 40, "a pass without chunks comes after four with them"
    assert filled == 160, "ten tokens in four passes of five"


def test_decoding_waits_when_runner_refuses_mixed_batch() -> None:
    schedule, fake, _ = schedule_with_late_request(5000, 10, 40, ask([2] * 1000)[0])
    kinds = []
    for _ in range(9):
        turn = schedule.plan_step(mixed_batch=lambda chunks: chunks[0].position >= 60)
        fake.turn(schedule, turn)
        assert turn is not None
        kinds.append((bool(turn.chunks), bool(turn.seqs)))
    apart, alone, both = (True, False), (False, True), (True, True)
    assert kinds == [apart] * 4 + [alone] + [apart] * 2 + [both] * 2


def test_decoding_waits_when_slots_are_short() -> None:
    """Slots for those beside are never taken from work whose chunks are in the pass."""
    late = ask([2, 1, 2, 1, 2, 1, 2, 1], tokens=2)[0]
    schedule, fake, first = schedule_with_late_request(33, 4, 30, late)
    while turn := schedule.plan_step():
        assert all(chunk.node.ref_count for chunk in turn.chunks)
        fake.turn(schedule, turn)
    assert first.token_ids == expected_tokens([0, 1], 30) and late.token_ids == expected_tokens(
        [2, 1, 2, 1, 2, 1, 2, 1], 2
    )
    assert_all_free(schedule)


def test_evict_ahead_frees_slots_only_where_much_may_be_evicted() -> None:
    schedule = Scheduler(size=40, max_num_seqs=4, prefill_chunk_tokens=64)
    tree = schedule.tree
    for first in range(10):  # 40 slots of four tokens each, none in use
        tree.insert_computed(tree.match_prefix(ids([])), ids([first, 1, 2, 3]), schedule.allocator.allocate(4))
    assert schedule.allocator.free_count == 0 and tree.evictable == 40
    schedule.evict_ahead(6)  # more than an eighth
    assert schedule.allocator.free_count == 0
    schedule.evict_ahead(5)
    assert schedule.allocator.free_count == 8 and tree.evictable == 32, "whole leaves"
    assert tree.match_prefix(ids([1, 1, 2, 3])).end == 0 and tree.match_prefix(ids([2, 1, 2, 3])).end == 4, "the oldest"
