"""Packed attention on random forests against plain causal attention along each path, in float64."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ponder.nets import flex_attention, tree_attention
from ponder.nets.causal_attention import CausalAttention
from ponder.nets.config import DecoderConfig
from ponder.nets.flex_attention import FlexTreeAttention
from ponder.nets.padded_run_attention import PaddedRunAttention
from ponder.nets.tree_attention import PaddedTreeAttention, make_tree_attention
from ponder.nets.varlen_attention import UnbranchedRuns

D = 4


def attend_by_runs(lengths: list[int], parents: list[int]) -> PaddedRunAttention:
    return PaddedRunAttention(UnbranchedRuns(lengths, parents))


both_ways = pytest.mark.parametrize("attention", [PaddedTreeAttention, attend_by_runs], ids=["trees", "runs"])


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Trees one after another: segment lengths, and each one's parent inside its own tree."""
    lengths: list[int] = []
    parents: list[int] = []
    for _ in range(draw(st.integers(1, 5))):
        root = len(lengths)
        for s in range(draw(st.integers(1, 6))):
            parents.append(-1 if s == 0 else draw(st.integers(root, len(lengths) - 1)))
            lengths.append(draw(st.integers(1, 9)))
    return lengths, parents


def path_tokens(lengths: list[int], parents: list[int], segment: int) -> list[int]:
    """Indices of the tokens from the root to the end of this segment."""
    starts = np.cumsum([0, *lengths])
    out: list[int] = []
    while segment >= 0:
        out = [*range(starts[segment], starts[segment + 1]), *out]
        segment = parents[segment]
    return out


def plain(
    q: Tensor, k: Tensor, v: Tensor, lengths: list[int], parents: list[int], scale: float, window: int | None
) -> Tensor:
    """Token by token: softmax over what lies before it on its own path."""
    shared = q.shape[1] // k.shape[1]
    out: list[Tensor] = []
    for s, length in enumerate(lengths):
        path = path_tokens(lengths, parents, s)
        for t in range(len(path) - length, len(path)):
            seen = path[: t + 1] if window is None else path[max(0, t + 1 - window) : t + 1]
            heads = []
            for h in range(q.shape[1]):
                scores = torch.stack([q[path[t], h] @ k[j, h // shared] * scale for j in seen])
                heads.append(scores.softmax(0) @ v[seen, h // shared])
            out.append(torch.stack(heads))
    return torch.stack(out)


def numbers(tokens: int, heads: int, kv_heads: int, seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shapes = [(tokens, heads, D), (tokens, kv_heads, D), (tokens, kv_heads, D), (tokens, heads, D)]
    return [torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes]


@both_ways
@settings(max_examples=25)
@given(forests(), st.sampled_from([None, 1, 3, 7]), st.sampled_from([(1, 1), (4, 2), (2, 2)]))
def test_packed_forest_equals_each_path_alone(
    attention: Any, forest: tuple[list[int], list[int]], window: int | None, heads: tuple[int, int]
) -> None:
    lengths, parents = forest
    *inputs, weight = numbers(sum(lengths), *heads)
    ours, theirs = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    packed = attention(lengths, parents)
    result = packed(0, *ours, scale=0.7, window=window)
    expected = plain(*theirs, lengths, parents, 0.7, window)
    torch.testing.assert_close(result, expected)
    (result * weight).sum().backward()
    (expected * weight).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    places = [len(path_tokens(lengths, parents, s)) - n + i for s, n in enumerate(lengths) for i in range(n)]
    assert packed.positions_T.tolist() == places, "positions count along the path"


@both_ways
def test_trees_are_independent(attention: Any) -> None:
    lengths, parents = [3, 2, 4, 1, 2], [-1, 0, -1, 2, -1]
    q, k, v, _ = numbers(12, 4, 2)
    before = attention(lengths, parents)(0, q, k, v, scale=1.0, window=None)
    k[5:10], v[5:10] = 100.0, math.pi  # the second tree
    after = attention(lengths, parents)(0, q, k, v, scale=1.0, window=None)
    assert torch.equal(before[:5], after[:5]) and torch.equal(before[10:], after[10:])
    assert not torch.allclose(before[5:10], after[5:10])


@both_ways
def test_tokens_attend_only_to_their_ancestors(attention: Any) -> None:
    lengths, parents = [3, 2, 2], [-1, 0, 0]
    q, k, v, _ = numbers(7, 2, 2)
    before = attention(lengths, parents)(0, q, k, v, scale=1.0, window=None)
    k[3:5], v[3:5] = 50.0, -9.0
    after = attention(lengths, parents)(0, q, k, v, scale=1.0, window=None)
    assert torch.equal(before[:3], after[:3]) and torch.equal(before[5:], after[5:])


@both_ways
def test_uneven_and_repeated_trees_equal_each_path_alone(attention: Any) -> None:
    """Whatever is batched or padded inside, each tree comes out as if alone, in its place."""
    lengths = [40, 1, 3, 1, 40, 2, 7, 7, 1, 39]
    parents = [-1, -1, -1, 2, -1, 4, -1, -1, -1, -1]
    q, k, v, _ = numbers(sum(lengths), 4, 2)
    together = attention(lengths, parents)(0, q, k, v, scale=1.0, window=5)
    first = 0
    roots = [i for i, p in enumerate(parents) if p < 0] + [len(parents)]
    for a, b in pairwise(roots):
        past = first + sum(lengths[a:b])
        one = attention(lengths[a:b], [p - a if p >= 0 else -1 for p in parents[a:b]])
        part = one(0, q[first:past], k[first:past], v[first:past], scale=1.0, window=5)
        torch.testing.assert_close(together[first:past], part)
        first = past


@pytest.mark.parametrize("lengths", [[7], [5, 5, 5], [4, 4, 9, 3, 3], [2, 6, 2]])
def test_long_sequences_equal_each_alone_with_gradients(lengths: list[int]) -> None:
    parents, device = [-1] * len(lengths), torch.device("cpu")
    attend = CausalAttention(lengths, UnbranchedRuns(lengths, parents).positions_T, device)
    *inputs, grad = numbers(sum(lengths), 6, 2)
    leaves = [x.requires_grad_() for x in inputs]
    own = attend(0, *leaves, scale=0.3, window=None)
    expected = plain(*leaves, lengths, parents, 0.3, None)
    torch.testing.assert_close(own, expected)
    of_own, of_expected = (torch.autograd.grad(out, leaves, grad) for out in (own, expected))
    torch.testing.assert_close(of_own, of_expected)


@both_ways
def test_gradient_is_finite_and_stays_in_its_tree(attention: Any) -> None:
    lengths, parents = [4, 4, 5], [-1, -1, -1]
    q, k, v, _ = numbers(13, 2, 1)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    result = attention(lengths, parents)(0, q, k, v, scale=1.0, window=None)
    assert torch.isfinite(result).all()
    result[:4].sum().backward()
    assert all(torch.isfinite(x.grad).all() and not x.grad[4:].any() for x in (q, k, v))


def test_window_masks_differ_by_layer() -> None:
    q, k, v, _ = numbers(6, 2, 2)
    packed = PaddedTreeAttention([6], [-1])
    wide = packed(0, q, k, v, scale=1.0, window=None)
    narrow = packed(1, q, k, v, scale=1.0, window=2)
    torch.testing.assert_close(wide, plain(q, k, v, [6], [-1], 1.0, None))
    torch.testing.assert_close(narrow, plain(q, k, v, [6], [-1], 1.0, 2))


def test_groups_attend_by_runs_on_a_cpu_and_single_sequences_as_trees() -> None:
    config = DecoderConfig("llama", 8, 16, 1, 2, 2, 8, 32)
    for lengths, parents, kind in (
        ([10] + [30] * 8, [-1] + [0] * 8, PaddedRunAttention),
        ([30] * 8, [-1] * 8, PaddedTreeAttention),
        ([10, 2, 2], [-1, 0, 0], PaddedTreeAttention),  # there is little to save
    ):
        made = make_tree_attention(lengths, parents, config, torch.device("cpu"), torch.float32)
        assert isinstance(made, kind)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_takes_a_forest_that_nobody_padded(
    window: int | None, filled: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU takes for float32 and deep trees, with the host's memory and FlexAttention's plain code."""
    from torch.nn.attention.flex_attention import flex_attention as plain_flex_attention

    made_for: list[torch.device] = []

    def on_host(lengths: Any, parents: Any, positions_T: Any, device: torch.device) -> FlexTreeAttention:
        made_for.append(device)
        return FlexTreeAttention(lengths, parents, positions_T, torch.device("cpu"))

    monkeypatch.setattr(tree_attention, "FlexTreeAttention", on_host)
    monkeypatch.setattr(flex_attention, "_compiled_flex_attention", lambda: plain_flex_attention)
    lengths, parents = [9, *[2] * 40, 3], [-1, *range(40), -1]  # one tree is deep: 20 keys per token
    parents[2::2] = parents[1:-1:2]  # and branches at every second segment
    if filled:
        lengths, parents = [*lengths, 128 - sum(lengths)], [*parents, -1]
    config, device = DecoderConfig("llama", 8, 64, 1, 4, 2, 16, 32), torch.device("cuda")
    attend = tree_attention.make_tree_attention(lengths, parents, config, device, dtype)
    assert made_for == [device], "another kernel was chosen"
    assert len(attend.positions_T) == sum(lengths)
    q, k, v, _ = numbers(sum(lengths), 4, 2)
    expected = PaddedTreeAttention(lengths, parents)(0, q, k, v, scale=0.7, window=window)
    torch.testing.assert_close(attend(0, q, k, v, scale=0.7, window=window), expected)


@pytest.mark.parametrize(
    ("lengths", "parents"),
    [([2, 0], [-1, 0]), ([2, 2], [-1, 1]), ([2, 2], [-1, -2]), ([2], [0]), ([2, 2, 2], [-1, -1, 0])],
    ids=["empty", "itself", "below -1", "no root", "another tree"],
)
def test_invalid_parents_are_refused(lengths: list[int], parents: list[int]) -> None:
    with pytest.raises(ValueError, match="segment"):
        PaddedTreeAttention(lengths, parents)


@given(forests())
def test_positions_and_keys_of_runs_are_those_along_their_paths(forest: tuple[list[int], list[int]]) -> None:
    runs = UnbranchedRuns(*forest)
    paths: list[list[int]] = []
    for first, size, above in zip(runs.first, runs.sizes, runs.parent, strict=True):
        paths.append([*(paths[above] if above >= 0 else []), *range(first, first + size)])
    assert runs.index_G().tolist() == [token for path in paths for token in path]
    own = zip(runs.path_lengths, runs.sizes, strict=True)
    assert runs.positions_T.tolist() == [place for end, size in own for place in range(end - size, end)]
