"""Copies for a checkpoint, in memory that is used again."""

from __future__ import annotations

import pytest
import torch

from ponder.train import host_buffers
from ponder.train.host_buffers import HostBuffers


def test_copy_is_contiguous_and_independent_of_its_source() -> None:
    source = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.ones(4, dtype=torch.int32)}
    copies = HostBuffers().start(source).tensors
    assert copies["a"].is_contiguous() and torch.equal(copies["a"], source["a"])
    source["a"].zero_()
    assert copies["a"].sum() == 15 and copies["b"].dtype == torch.int32


def test_next_copy_reuses_memory_unless_a_shape_changed() -> None:
    buffers = HostBuffers()
    first = buffers.start({"a": torch.zeros(5), "b": torch.zeros(2)}).tensors
    second = buffers.start({"a": torch.ones(5), "b": torch.ones(3)}).tensors
    assert second["a"].data_ptr() == first["a"].data_ptr() and torch.equal(second["b"], torch.ones(3))


@pytest.mark.parametrize("limit", ["MAX_PINNED_BYTES", "free_memory"])
def test_states_too_large_to_keep_are_copied_plainly(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_buffers, limit, 7 if limit.isupper() else lambda: 28)
    buffers, source = HostBuffers(), torch.ones(2)
    copy = buffers.start({"a": source})
    assert copy.is_copy and torch.equal(copy.tensors["a"], source) and not buffers._kept
    assert copy.tensors["a"].data_ptr() != source.data_ptr()


@pytest.mark.parametrize(("free", "is_copy"), [(0, False), (15, False), (16, True), (1 << 40, True)])
def test_states_that_memory_has_no_room_for_are_not_copied(
    free: int, is_copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_buffers, "free_memory", lambda: free)
    buffers, source = HostBuffers(), torch.ones(2)
    buffers.reserve({"a": source})
    copy = buffers.start({"a": source})
    copy.wait()
    assert copy.is_copy == is_copy and (copy.tensors["a"].data_ptr() != source.data_ptr()) == is_copy
    assert bool(buffers._kept) == (free > 16)


def test_reserved_memory_is_what_the_first_copy_takes() -> None:
    source = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.ones(4, dtype=torch.int32)}
    buffers = HostBuffers()
    buffers.reserve(source)
    reserved = {name: t.data_ptr() for name, t in buffers._kept.items()}
    copy = buffers.start(source)
    copy.wait()
    assert {name: t.data_ptr() for name, t in copy.tensors.items()} == reserved
    assert all(torch.equal(copy.tensors[name], t) for name, t in source.items())
