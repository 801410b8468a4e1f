"""NCCL and FSDP2 with one rank on a GPU: the loss, the gradient and the step of a learner without them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fakes import mixed_groups, tiny_decoder
from ponder.nets.decoder import Decoder
from ponder.train.distributed import current_group
from ponder.train.learner import Learner
from ponder.train.objective import KL
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Trace

pytestmark = pytest.mark.gpu
BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}
DEVICE = "cuda"


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group(BACKENDS[DEVICE], store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def credited() -> list[Trace]:
    traces = mixed_groups()
    GRPO(kl=None).credit(traces, "wanted", {})
    return traces


class WrappedLearner(Learner):
    shards_one_rank = True


def make_learner(net: Decoder, fsdp: bool, compiled: bool = False, kind: type[Learner] = WrappedLearner) -> Learner:
    learner = kind(
        net, GRPO(kl=KL(0.05)), AdamW(lr=1e-3, warmup_steps=0), max_tokens_per_microbatch=40, fsdp=fsdp,
        process_group=current_group(),
    )  # fmt: skip
    learner.compiled = compiled
    return learner


@pytest.mark.parametrize("compiled", [False, True])
def test_fsdp_with_one_rank_is_the_same_learner(compiled: bool, one_rank: None) -> None:
    net = tiny_decoder().to(DEVICE)
    plain = make_learner(copy.deepcopy(net), fsdp=False)
    sharded = make_learner(copy.deepcopy(net), fsdp=True, compiled=compiled)
    assert sharded.sharded and not plain.sharded
    assert not make_learner(copy.deepcopy(net), fsdp=True, kind=Learner).sharded  # a job wraps nothing with one rank
    wanted, found = (learner.gradient(credited()) for learner in (plain, sharded))
    assert wanted.keys() == found.keys()
    for name, g in wanted.items():
        torch.testing.assert_close(
            found[name].float(), g.float(), rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
    first, second = (learner.step(credited()) for learner in (plain, sharded))
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-4, abs=1e-6)
    assert first["grad_norm"] == pytest.approx(second["grad_norm"], rel=1e-4)
    for (name, a), (_, b) in zip(plain.whole_net.named_parameters(), sharded.whole_net.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_gradients_pass_through_nccl_unchanged(one_rank: None) -> None:
    learner = make_learner(tiny_decoder().to(DEVICE), fsdp=False)
    grads = learner.gradient(credited())
    before = copy.deepcopy(grads)
    for g in grads.values():
        dist.all_reduce(g)
    assert all(torch.equal(g, before[name]) for name, g in grads.items())
    payload = current_group().all_gather_bytes(b"traces")
    assert payload == [b"traces"]
