"""Traces to micro-batches: nothing is lost, nothing is cut inside, every number stands beside its token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fakes import CONFIGS, mixed_groups, tiny_decoder, trace_group
from ponder.errors import UsageError
from ponder.nets.tree_attention import make_tree_attention
from ponder.train import learner, losses, pack
from ponder.train.learner import Learner
from ponder.train.pack import PackedBatch, StepChain, TraceChains
from ponder.train.policy_gradient import GRPO
from ponder.types import Problem, Step, Trace, ids, user_messages

CPU = torch.device("cpu")


def credited(traces: list[Trace]) -> list[Trace]:
    GRPO().credit(traces, "wanted", {})
    return traces


def every(traces: Sequence[Trace], dense: bool = True) -> list[TraceChains]:
    return pack.plan(traces, losses.token_mean, dense)


def rows(batches: Sequence[PackedBatch]) -> list[tuple[int, ...]]:
    """(token, its number within the step, weight) of every trained token."""
    out = []
    for b in batches:
        inside = [i for s in b.steps for i in range(len(s.token_ids))]
        out += list(zip(b.target_N.tolist(), inside, np.round(b.weight_N.tolist(), 7), strict=True))
    return sorted(out)


@st.composite
def forests(draw: st.DrawFn) -> list[Trace]:
    """Random trees with prompts, tool output, empty steps, and credit on some of what was written."""
    token = st.integers(3, 63)
    traces = []
    for number in range(draw(st.integers(1, 3))):
        trace = Trace(
            Problem(f"p{number}", user_messages("?")),
            [Step(None, "", ids(draw(st.lists(token, min_size=1, max_size=4))))],
        )
        for _ in range(draw(st.integers(0, 7))):
            tokens = ids(draw(st.lists(token, max_size=4)))
            step = Step(draw(st.integers(0, len(trace.steps) - 1)), "", tokens)
            if draw(st.booleans()):
                step.logprobs = np.zeros(len(tokens), np.float32)
                step.advantages = np.full(len(tokens), draw(st.sampled_from([0.0, 1.0, -0.5])), np.float32)
            trace.add(step)
        traces.append(trace)
    return traces


@given(forests(), st.integers(1, 40), st.booleans())
def test_split_microbatches_keeps_every_token_once(traces: list[Trace], most: int, together: bool) -> None:
    work = every(traces)
    parts = pack.split_microbatches(work, most, together)
    batches = [pack.pack(part, CPU) for part in parts]
    wanted = [s for t in traces for s in t.steps if s.advantages is not None and len(s.token_ids)]
    assert sorted(id(s) for b in batches for s in b.steps) == sorted(map(id, wanted))
    assert rows(batches) == (rows([pack.pack(work, CPU)]) if work else [])
    assert sum(float(b.weight_N.sum()) for b in batches) == pytest.approx(1.0 if wanted else 0.0)
    for part, batch in zip(parts, batches, strict=True):
        assert len(batch.ids_T) == sum(w.tokens() for w in part) == sum(batch.lengths)
        single = len(part) == 1 and (len(part[0].chains) == 1 or together)
        assert single or len(batch.ids_T) <= most, "only what cannot be cut is larger"


@given(forests())
def test_each_token_is_predicted_from_the_one_before_it(traces: list[Trace]) -> None:
    work = every(traces)
    if not work:
        return
    batch = pack.pack(work, CPU)
    trimmed = pack.drop_unread_ends(batch)
    paths = []
    for w in work:
        for c in w.chains:
            for i in c.steps:
                path = w.trace.token_ids(i).tolist()
                paths += [path[: len(path) - n] for n in range(len(w.trace.steps[i].token_ids), 0, -1)]
    for b in (batch, trimmed):
        assert paths_read(b) == paths and min(b.target_N.tolist()) >= 3
    leaves = set(range(len(trimmed.parents))) - set(trimmed.parents)
    read, ends = set(trimmed.source_N.tolist()), np.cumsum(trimmed.lengths)
    assert min(trimmed.lengths) > 0 and len(trimmed.ids_T) == ends[-1]
    assert all(int(ends[s]) - 1 in read for s in leaves), "every branch ends in a token that is read"


def paths_read(batch: PackedBatch) -> list[list[int]]:
    """The tokens that each trained token is predicted from."""
    starts, out = np.cumsum([0, *batch.lengths]), []
    for source in batch.source_N.tolist():
        segment = int(np.searchsorted(starts, source, side="right")) - 1
        seen = batch.ids_T[starts[segment] : source + 1].tolist()
        while (segment := batch.parents[segment]) >= 0:
            seen = batch.ids_T[starts[segment] : starts[segment + 1]].tolist() + seen
        out.append(seen)
    return out


def test_gradient_without_unread_ends_is_that_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = credited(mixed_groups())
    sizes: list[tuple[int, int]] = []

    def measured(batch: pack.PackedBatch) -> pack.PackedBatch:
        kept = pack.drop_unread_ends(batch)
        sizes.append((len(kept.ids_T), len(batch.ids_T)))
        return kept

    monkeypatch.setattr(learner, "drop_unread_ends", measured)
    trimmed = Learner(tiny_decoder(), GRPO(kl=None)).gradient(traces)
    assert sizes and all(kept < whole for kept, whole in sizes)
    monkeypatch.setattr(learner, "drop_unread_ends", lambda batch: batch)
    whole = Learner(tiny_decoder(), GRPO(kl=None)).gradient(traces)
    assert all(torch.allclose(trimmed[n], g, atol=1e-6) for n, g in whole.items())


def test_drop_unread_ends_leaves_out_the_last_token_of_each_completion() -> None:
    trace = trace_group([1, 5], [[6, 7, 8], [9]], [1.0, 0.0])
    for step in trace.steps[1:]:
        step.advantages = np.ones(len(step.token_ids), np.float32)
    batch = pack.drop_unread_ends(pack.pack(every([trace]), CPU))
    assert batch.ids_T.tolist() == [1, 5, 6, 7] and batch.lengths == [2, 2] and batch.parents == [-1, 0]
    assert batch.source_N.tolist() == [1, 2, 3, 1] and batch.target_N.tolist() == [6, 7, 8, 9]


@given(forests())
def test_chains_are_unbranched(traces: list[Trace]) -> None:
    for trace in traces:
        result = pack.chains(trace, lambda s: s.advantages is not None)
        for chain in result:
            path = trace.path(chain.steps[-1])
            assert set(chain.steps) <= set(path)
            inner = path[path.index(chain.steps[0]) : -1]
            assert all(len(trace.children(i)) == 1 for i in inner)
        assert sum(len(c.steps) for c in result) == len({i for c in result for i in c.steps})


def test_chain_continues_after_tool_output() -> None:
    tool = credited(mixed_groups())[-1]
    assert [c.steps for c in pack.chains(tool, lambda s: s.advantages is not None)] == [[1, 4], [2]]
    batch = pack.pack(every([tool]), CPU)
    assert batch.sequence_N.tolist() == [0] * 6 + [1] * 2
    assert batch.target_N.tolist() == [t for i in (1, 4, 2) for t in tool.steps[i].token_ids.tolist()]
    assert set(tool.steps[3].token_ids.tolist()) <= set(batch.ids_T.tolist()), "it is read"
    assert batch.lengths == [3, 3, 2, 4, 3] and batch.parents == [-1, 0, 0, 1, 3]


def test_plan_weights_count_all_credited_completions() -> None:
    traces = credited(mixed_groups(tool=False))
    sparse, dense = every(traces, dense=False), every(traces, dense=True)
    assert [w.trace.problem.id for w in sparse] == ["mixed", "undecided", "short"]
    assert [w.trace.problem.id for w in dense] == ["mixed", "equal", "undecided", "short"]
    count = sum(len(s.token_ids) for t in traces for s in t.steps if s.advantages is not None)
    assert {round(1 / c.weight) for w in sparse for c in w.chains} == {count}
    live = pack.pack(sparse, CPU)
    assert float(live.weight_N.sum()) == pytest.approx(len(live.weight_N) / count) and count > len(live.weight_N)


def test_eos_is_trained_and_prompt_is_not() -> None:
    traces = credited(mixed_groups(tool=False))
    batch = pack.pack(every(traces), CPU)
    written = [s.token_ids.tolist() for t in traces for s in t.steps[1:] if s.advantages is not None]
    assert batch.target_N.tolist() == [token for tokens in written for token in tokens]
    assert batch.target_N.tolist().count(2) == len(written)
    assert batch.tree_N.tolist() == sorted(batch.tree_N.tolist()) and batch.sequence_N.max() == len(written) - 1


def test_pack_holds_shared_prompt_once() -> None:
    traces = credited(mixed_groups(tool=False))
    batch = pack.pack(every(traces[:2], dense=False), CPU)
    assert batch.parents == [-1, 0, 0, 0, 0] and batch.lengths == [5, 3, 6, 1, 4]
    (mixed,) = every(traces[:1])
    assert [len(b) for b in pack.split_microbatches([mixed], 12)] == [1, 1, 1], "5 + 3, 5 + 6 + 1, 5 + 4"
    assert [[len(w.chains) for w in b] for b in pack.split_microbatches([mixed], 12)] == [[1], [2], [1]]
    assert (
        len(pack.split_microbatches([mixed], 1)) == 4
        and len(pack.split_microbatches([mixed], 1, keep_traces_whole=True)) == 1
    )


def test_unknown_numbers_are_nan() -> None:
    trace = trace_group([5, 6], [[1, 2], [3]])
    trace.steps[1].logprobs, trace.steps[2].notes = None, {"values": np.array([0.25], np.float32)}
    for step in trace.steps[1:]:
        step.advantages = np.ones(len(step.token_ids), np.float32)
    batch = pack.pack([TraceChains(trace, [StepChain([1], 0.5), StepChain([2], 0.25)])], CPU, ["values"])
    assert batch.sampled_N.isnan().tolist() == [True, True, False]
    assert batch.notes["values"].isnan().tolist() == [True, True, False] and float(batch.notes["values"][2]) == 0.25
    assert batch.weight_N.tolist() == [0.5, 0.5, 0.25]


def test_credit_on_prompt_is_refused() -> None:
    trace = trace_group([5, 6], [[1]])
    trace.steps[0].advantages = np.ones(2, np.float32)
    with pytest.raises(UsageError, match="the first step is the prompt"):
        every([trace])


def test_plan_of_no_traces_is_empty() -> None:
    assert every([]) == [] and every([trace_group([5], [[1]])]) == [] and pack.split_microbatches([], 10) == []


def test_padding_of_last_block_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose kernels want whole blocks of tokens."""
    traces = credited(mixed_groups())
    work = pack.split_microbatches(every(traces), 60)
    plain = [pack.pack(part, CPU) for part in work]
    expected = Learner(tiny_decoder(), GRPO(kl=None), max_tokens_per_microbatch=60).gradient(traces)
    monkeypatch.setattr(pack, "_pad_multiple", lambda device: 128)
    monkeypatch.setattr(learner, "drop_unread_ends", lambda batch: batch)  # it would drop the padding
    filled = [pack.pack(part, CPU) for part in work]
    assert all(len(b.ids_T) == sum(b.lengths) == 128 and b.parents[-1] == -1 for b in filled)
    for a, b in zip(plain, filled, strict=True):
        assert torch.equal(a.source_N, b.source_N) and torch.equal(a.target_N, b.target_N)
        assert b.ids_T[: len(a.ids_T)].equal(a.ids_T) and b.lengths[:-1] == a.lengths
    result = Learner(tiny_decoder(), GRPO(kl=None), max_tokens_per_microbatch=60).gradient(traces)
    assert all(torch.allclose(result[n], g, atol=1e-6) for n, g in expected.items())


def test_pack_lays_out_rewritten_conversations_one_after_another() -> None:
    """Two episodes whose template rewrote the first turn: each goes on from a prompt of its own."""
    trace = trace_group([1, 5], [[6, 7], [8, 9]], [1.0, 0.0])
    for first, tokens in ((1, [1, 5, 6, 10]), (2, [1, 5, 8, 11])):
        trace.add(Step(None, "", ids(tokens), cites=(first,), turn=True))
    for prompt in (3, 4):
        trace.add(Step(prompt, "", ids([12, 2]), np.zeros(2, np.float32), stop="eos"))
    for step in trace.steps:
        step.advantages = np.ones(len(step.token_ids), np.float32) if step.sampled else None
    batch = pack.pack(every([trace]), CPU)
    attend = make_tree_attention(batch.lengths, batch.parents, CONFIGS["llama"], CPU, torch.float32)
    assert attend.positions_T.tolist() == [0, 1, 2, 3, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    before = batch.ids_T[batch.source_N].tolist()
    pairs = sorted(zip(before, batch.target_N.tolist(), strict=True))
    assert pairs == [(5, 6), (5, 8), (6, 7), (8, 9), (10, 12), (11, 12), (12, 2), (12, 2)]
