"""Replicas whose networks are split over real processes, joined by gloo: samples, new weights, and lost shards."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fakes import DigitTask, char_policy, perturb
from ponder import rank_env
from ponder.cluster.places import LocalPlace
from ponder.errors import UsageError
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas import replica_process, vllm_server
from ponder.models.replicas.ledger import LedgerCounts, read_ledger
from ponder.models.replicas.model_replicas import ModelReplicas, ReplicaModel
from ponder.models.replicas.replica import ReplicaDeadlines
from ponder.models.replicas.replica_policy import LEDGER_FILE, ReplicaPolicy
from ponder.models.replicas.shard_processes import ShardLost, ShardProcesses, ShardSettings, pack_message, read_message
from ponder.nets import hf
from ponder.nets.decoder import Decoder, init_decoder
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.training import open_sampler
from ponder.serve.load_models import load_served_models
from ponder.train.ranks import take_own_gpu
from ponder.types import Completion, Sampling

SAMPLING, LONG = Sampling(max_tokens=12, logprobs=2), Sampling(max_tokens=60, min_tokens=60)
DEADLINES = ReplicaDeadlines(pong=5.0)  # which is also how long shards wait for each other


def grouped_policy(seed: int = 0) -> PonderPolicy:
    """Four query heads that share two key heads, and an output head of its own."""
    policy = char_policy(seed, context=256)
    config = replace(policy.net.config, kv_heads=2, tied_embeddings=False)
    return PonderPolicy(perturb(init_decoder(config, seed), 0.2), policy.tokenizer, seed)


def children(pid: int) -> list[int]:
    return [int(n) for path in Path(f"/proc/{pid}/task").glob("*/children") for n in path.read_text().split()]


def gap(found: list[Completion], wanted: list[Completion]) -> float:
    """The largest distance between log-probabilities; infinite where other tokens were drawn."""
    if [c.token_ids.tolist() for c in found] != [c.token_ids.tolist() for c in wanted]:
        return float("inf")
    return max(float(np.abs(a.logprobs - b.logprobs).max()) for a, b in zip(found, wanted, strict=True))


@dataclass
class Outcome:
    """What a scenario with real processes brought."""

    gaps: list[float] = field(default_factory=list)
    gaps_after_publish: list[float] = field(default_factory=list)
    costs: list[Any] = field(default_factory=list)
    shards: list[int] = field(default_factory=list)
    answers: int = 0
    seconds_until_noticed: float = 0.0
    ledger: LedgerCounts = LedgerCounts()
    log: str = ""
    left_over: list[int] = field(default_factory=list)
    temporary: list[Path] = field(default_factory=list)  # files while a replica runs, after two others were lost


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    temporary = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))  # of the processes that are started
        return asyncio.run(asyncio.wait_for(scenario(tmp_path_factory.mktemp("shards"), temporary), 400))


async def ask_both(policy: PonderPolicy, replicas: ReplicaPolicy) -> list[float]:
    """Several prompts at once, some of which share their beginning, each forked."""
    prompts = [replicas.tokens(text) for text in ("3+4=", "3+4=7 5+5=", "3+4=7 5+5=", "9", "a+b=c?d=e" * 8)]
    for each in (policy, replicas):
        each.reseed(7)
    found = await asyncio.gather(*(replicas.generate(p, SAMPLING, 3) for p in prompts))
    for_one = await asyncio.gather(*(policy.generate(p, SAMPLING, 3) for p in prompts))
    return [gap(a, b) for a, b in zip(found, for_one, strict=True)]


async def scenario(folder: Path, temporary: Path) -> Outcome:
    out, policy = Outcome(), grouped_policy()
    async with ReplicaPolicy(policy, 1, folder, tensor_parallel=2, deadlines=DEADLINES) as replicas:
        (replica,) = replicas.replicas
        first = [replica.pid, *children(replica.pid)]
        out.shards = first[1:]
        out.gaps = await ask_both(policy, replicas)
        perturb(policy.net, 0.3)
        policy.version = 5
        await replicas.publish(5)
        out.gaps_after_publish = await ask_both(policy, replicas)
        prompt = replicas.tokens("3+4=")
        costs = [(await each.generate(prompt, SAMPLING))[0].cost for each in (replicas, policy)]
        out.costs = [replace(cost, seconds=0.0) for cost in costs]
        tasks = [asyncio.create_task(replicas.generate(replicas.tokens(f"{i}+2="), LONG, 2)) for i in range(8)]
        await asyncio.sleep(0.05)
        os.kill(out.shards[0], signal.SIGKILL)
        out.answers += sum(len(c) for c in await asyncio.gather(*tasks))
        second = [replica.pid, *children(replica.pid)]
        began, lost = time.monotonic(), replica.lost
        os.kill(second[1], signal.SIGSTOP)
        tasks = [asyncio.create_task(replicas.generate(prompt, LONG, 2))]
        await lost.wait()
        out.seconds_until_noticed = time.monotonic() - began
        out.answers += sum(len(c) for c in await asyncio.gather(*tasks))
        third = [replica.pid, *children(replica.pid)]
        out.log = replica.log.read_text()
        out.temporary = list(temporary.rglob("*"))
    for _ in range(100):  # the kernel ends a shard with the process that started it, a moment later
        out.left_over = [pid for pid in (*first, *second, *third) if Path(f"/proc/{pid}").exists()]
        if not out.left_over:
            break
        await asyncio.sleep(0.05)
    out.ledger = read_ledger(folder / LEDGER_FILE) or LedgerCounts()
    return out


def test_two_shards_give_the_log_probabilities_of_one_process(outcome: Outcome) -> None:
    assert len(outcome.shards) == 1 and max(outcome.gaps) < 1e-5


def test_published_weights_reach_every_shard(outcome: Outcome) -> None:
    assert max(outcome.gaps_after_publish) < 1e-5


def test_costs_are_those_of_the_whole_network(outcome: Outcome) -> None:
    assert outcome.costs[0] == outcome.costs[1] and outcome.costs[0].flops > 0


def test_lost_shards_restart_the_replica(outcome: Outcome) -> None:
    """One killed, one stopped: nothing is lost or answered twice, and no process is left."""
    counts = outcome.ledger
    assert outcome.answers == 18 and counts.deaths == 2 and counts.sent_again >= 2
    assert counts.doubled == counts.open == counts.cancelled == 0
    assert f"shard 1 of 2 (process {outcome.shards[0]}) is lost: signal 9" in outcome.log
    assert "a pass over 2 shards failed, which wait 5 seconds for each other" in outcome.log
    assert outcome.seconds_until_noticed < 30
    assert outcome.left_over == []


def test_replicas_that_are_killed_leave_no_temporary_files(outcome: Outcome) -> None:
    """They cannot remove any, so they have none, and however they end, none is left."""
    assert outcome.temporary == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    policy, path = grouped_policy(), tmp_path_factory.mktemp("split") / "model"
    hf.save(policy.net, path)
    policy.tokenizer.save(path)
    return path


def test_server_splits_a_model_that_its_shards_load(folder: Path) -> None:
    """Four shards, more than there are key heads; each loads its part of the files."""
    served = load_served_models([f"m={folder}"], device="cpu", dtype="float32", replicas=1, tensor_parallel=4)
    split, policy = served.models["m"].policy, grouped_policy()
    assert isinstance(split, ModelReplicas)

    async def compare() -> tuple[list[float], np.ndarray, np.ndarray, int]:
        await split.start()
        try:
            prompt, text = policy.tokens("3+4=7 "), policy.tokens("5+5=10")
            for each in (policy, split):
                each.reseed(3)
            gaps = [gap(await split.generate(prompt, SAMPLING, 3), await policy.generate(prompt, SAMPLING, 3))]
            both = [await each.token_logprobs(prompt, text) for each in (split, policy)]
            return gaps, both[0], both[1], len(children(split.replicas[0].pid))
        finally:
            await split.close()

    gaps, found, wanted, shards = asyncio.run(asyncio.wait_for(compare(), 300))
    assert shards == 3 and max(gaps) < 1e-5
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_numbers_of_shards_that_do_not_work_are_refused(folder: Path) -> None:
    policy = grouped_policy()
    with pytest.raises(UsageError, match=r"may be 2, 4$"):
        ReplicaPolicy(policy, 1, "nowhere", tensor_parallel=3)
    with pytest.raises(UsageError, match=r"may be 2, 4$"):
        ModelReplicas(ReplicaModel(str(folder)), tensor_parallel=3)
    with pytest.raises(UsageError, match="give --replicas 1 or more"):
        load_served_models([f"m={folder}"], device="cpu", replicas=0, tensor_parallel=2)
    with pytest.raises(UsageError, match="give --replicas 1 or more"):
        Evaluate(DigitTask(), tensor_parallel=2)
    with pytest.raises(UsageError, match="tensor_parallel is 0; it must be 1 or more"):
        RL(DigitTask(), replicas=1, tensor_parallel=0)


def test_shards_get_gpus_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the whole weights in the host's memory all GPUs are theirs; a place shows a replica its own alone."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    policy, gpu = grouped_policy(), torch.device("cuda")
    split = ReplicaPolicy(policy, 2, tmp_path / "a", device=gpu, tensor_parallel=2)
    settings = [split._settings(index) for index in range(2)]
    assert [s["shards"]["devices"] for s in settings] == [["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]]
    assert [s["device"] for s in settings] == ["cuda:0", "cuda:2"] and settings[0]["learner_gpu"] is None

    class OwnGPUs(LocalPlace):
        own_gpus = True

    placed = ReplicaPolicy(policy, 2, tmp_path / "b", device=gpu, tensor_parallel=2, place=OwnGPUs())
    assert placed._settings(1)["shards"]["devices"] == ["cuda:0", "cuda:1"]
    assert ReplicaPolicy(policy, 1, tmp_path / "c")._settings(0)["shards"] is None


@pytest.mark.parametrize("shown", ["", "4,5,6,7", "GPU-a,GPU-b,GPU-c,GPU-d"])
@pytest.mark.parametrize(("rank", "shards", "wanted"), [(0, 1, [2]), (1, 1, [3]), (0, 2, [2, 3]), (1, 2, [0, 1])])
def test_replicas_of_ranks_get_the_gpus_after_theirs(
    rank: int, shards: int, wanted: list[int], shown: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two ranks and two replicas on four GPUs: a rank sees its own GPU alone, and its replicas see all of them."""
    names = shown.split(",") if shown else ["0", "1", "2", "3"]
    monkeypatch.setattr(rank_env, "_all_gpus", ())
    monkeypatch.setattr(rank_env, "_own_gpu", 0)
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert take_own_gpu("auto") and os.environ["CUDA_VISIBLE_DEVICES"] == names[rank]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert take_own_gpu("auto") and os.environ["CUDA_VISIBLE_DEVICES"] == names[rank]  # of a second job

    opened: list[ReplicaPolicy] = []

    async def start(self: ReplicaPolicy) -> None:
        opened.append(self)

    monkeypatch.setattr(ReplicaPolicy, "start", start)
    monkeypatch.setattr(open_sampler, "current_group", lambda: SimpleNamespace(size=2, rank=rank))
    job = RL(DigitTask(), replicas=2, tensor_parallel=shards)
    asyncio.run(open_sampler.open_sampler(job, grouped_policy(), tmp_path))
    monkeypatch.setattr(Decoder, "device", torch.device("cuda", 0))  # as a rank numbers its own
    opened[0]._device = torch.device("cuda")
    settings = opened[0]._settings(0)
    devices = [settings["device"]] if shards == 1 else settings["shards"]["devices"]
    assert devices == [f"cuda:{number}" for number in wanted] and settings["learner_gpu"] == rank
    environment = replica_process._child_environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == ",".join(names) and "RANK" not in environment
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", environment["CUDA_VISIBLE_DEVICES"])  # what vLLM gets in a replica
    gpus, _ = vllm_server.device_settings(devices, settings["learner_gpu"])
    order = [*wanted, *([] if rank in wanted else [rank])]
    assert gpus == ",".join(names[i] for i in order)


@pytest.mark.parametrize(
    ("gpu", "shards", "wanted"),
    [(True, 2, ("cpu", "bfloat16")), (True, 1, ("auto", "auto")), (False, 2, ("auto", "auto"))],
)
def test_weights_of_split_replicas_stay_on_the_host(
    gpu: bool, shards: int, wanted: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_sampler, "pick_device", lambda name: torch.device("cuda" if gpu else "cpu"))
    monkeypatch.setattr(open_sampler, "pick_dtype", lambda name, device: torch.bfloat16)
    assert open_sampler.host_if_split(Evaluate(DigitTask(), replicas=1, tensor_parallel=shards)) == wanted


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        (["cpu", "cpu"], "gloo"),
        (["cuda:0", "cuda:1"], "nccl"),
        (["cuda:0", "cuda:0"], "gloo"),
    ],
)
def test_shards_that_share_a_gpu_are_joined_by_gloo(devices: list[str], wanted: str) -> None:
    assert ShardSettings(tuple(devices), 1, 1, 1).backend == wanted


def test_shard_that_does_not_answer_is_named() -> None:
    lost: list[ShardLost] = []
    shards = ShardProcesses(ShardSettings(("cpu", "cpu"), deadline=0.2, start=0.2, load=0.2), lost.append)
    try:
        with pytest.raises(ShardLost, match=r"shard 1 of 2 \(process \d+\) did not answer for 0.2 seconds"):
            shards.collect_replies()
        with pytest.raises(ShardLost, match="did not answer"):  # the first reason stays
            shards.fail(RuntimeError("another"))
        assert len(lost) == 1
    finally:
        shards.close()


def test_messages_come_back_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "pipe").write_bytes(pack_message({"kind": "pass"}, b"1234") + pack_message({"kind": "cut"}, b"12")[:-1])
    with (tmp_path / "pipe").open("rb") as pipe:
        assert read_message(pipe) == ({"kind": "pass"}, b"1234")
        assert read_message(pipe) is None
