"""`--ranks N` on the command line: the same training, stopped and resumed together, and a rank that dies is named."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from docs import cluster_page
from safetensors.torch import load_file

from harness import RESULTS as BENCH_RESULTS
from ponder.cli import main
from ponder.cli.plan_ranks import (
    GIB,
    make_rank_plan,
    make_replica_plan,
    rank_plan_lines,
    replica_line,
    run_command_words,
    slurm_script,
    start_lines,
    training_shape,
    without_flags,
)
from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.nets.config import DecoderConfig
from ponder.nets.lora import LoRA
from ponder.pipelines.rl import RL
from ponder.runs import newest_checkpoint, read_metrics
from ponder.train.activation_memory import GPU_MICROBATCH_TOKENS, gpu_microbatch_tokens, kept_bytes_per_token
from ponder.train.rank_memory import TrainingShape, rank_memory
from ponder.train.ranks import check_gpu_count
from ponder.train.step_time import GPURates, least_step_time
from training_harness import SHAPES

from .conftest import CommandResult
from .test_graceful_stop import CliProcess, read_until, start_cli

QWEN_7B = DecoderConfig(
    "qwen2", vocab=152064, width=3584, layers=28, heads=28, kv_heads=4, head_dim=128, mlp_width=18944,
    tied_embeddings=False, qkv_bias=True,
)  # fmt: skip


def child_processes(job: CliProcess) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]


def model_weights(run: Path) -> dict[str, torch.Tensor]:
    newest = newest_checkpoint(run)
    assert newest is not None
    return load_file(newest / "model" / "model.safetensors")


@pytest.mark.nightly
def test_run_on_two_ranks_is_stopped_resumed_and_ends_as_on_one(here: Path) -> None:
    flags = ["run", "tiny.py", "--steps", "4"]
    with start_cli(*flags, "--run", "two", "--ranks", "2", cwd=here) as job:
        read_until(job, "step 2/")
        job.send_signal(signal.SIGINT)
        _, text = job.communicate(timeout=600)
    assert job.returncode == 130 and "of 4 steps; the same command goes on" in text, text
    with start_cli(*flags, "--run", "two", "--ranks", "2", cwd=here) as job:
        _, text = job.communicate(timeout=600)
    assert job.returncode == 0, text
    assert main([*flags, "--run", "one"]) == 0
    for mine, row in zip(read_metrics(here / "two"), read_metrics(here / "one"), strict=True):
        assert mine["reward"] == row["reward"] and mine["loss"] == pytest.approx(row["loss"], abs=1e-4)
    for name, w in model_weights(here / "one").items():
        torch.testing.assert_close(model_weights(here / "two")[name], w, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the ranks are found in /proc")
def test_rank_that_dies_is_named_and_ends_the_others(here: Path) -> None:
    with start_cli("run", "tiny.py", "--steps", "4000", "--run", "killed", "--ranks", "2", cwd=here) as job:
        read_until(job, "step 2/")
        ranks = child_processes(job)
        os.kill(ranks[1], signal.SIGKILL)
        _, text = job.communicate(timeout=600)
    assert job.returncode == 2 and "error: rank 1 ended with exit code -9" in text
    assert "exit code -9" in (here / "killed" / "ranks" / "rank-1.log").read_text()
    for pid in ranks:
        assert not Path(f"/proc/{pid}").exists()


def test_bad_numbers_of_ranks_are_refused(ponder: Callable[..., CommandResult], here: Path) -> None:
    for words, message in (
        (("run", "tiny.py", "--ranks", "0"), "--ranks is 0"),
        (("plan", "tiny.py", "--ranks", "2"), "give --gpus in place of --ranks"),
        (("plan", "tiny.py", "--nodes", "2"), "--nodes means nothing without --gpus"),
        (("plan", "tiny.py", "--gpus", "0"), "0 GPUs of 80 GiB on 1 nodes cannot be: give positive numbers"),
    ):
        result = ponder(*words)
        assert result.code == 2 and message in result.err
    with pytest.raises(UsageError, match="4 ranks need a GPU each, and this machine has 2"):
        check_gpu_count(4, 2)
    check_gpu_count(4, 0)


def test_plan_prints_memory_and_commands_of_ranks(ponder: Callable[..., CommandResult], here: Path) -> None:
    result = ponder("plan", "tiny.py", "--gpus", "4", "--steps", "9")
    assert result.code == 0 and "replicated fits into 80 GiB" in result.out
    assert "s of learning at least, by the GPUs' limits" in result.out
    assert "ponder run tiny.py --steps 9 --ranks 4" in result.out
    assert "torchrun --nproc-per-node 4 -m -- ponder run tiny.py --steps 9" in result.out
    result = ponder("plan", "tiny.py", "--gpus", "4", "--nodes", "2", "--gpu-memory", "0.1")
    assert result.code == 1 and "replicated does not fit into 0.1 GiB" in result.out
    assert "#SBATCH --nodes 2" in result.out


def test_rank_memory_of_7b_by_hand() -> None:
    """For each weight that learns: 2 bytes, 4 of its master, 8 of moments, 4 of gradient; and 2 of a micro-batch's: of
    the largest matrix, since gradients of so many weights are added up one by one. The head's gradient is computed in
    float32, 4 bytes more."""
    shape = TrainingShape(QWEN_7B, microbatch_tokens=0)
    n = shape.parameters
    assert n == pytest.approx(7.615e9, rel=1e-3) and shape.trained == n
    whole, sharded = (rank_memory(shape, 8, fsdp) for fsdp in (False, True))
    assert sum(whole.values()) == (2 + 4 + 8 + 4) * n + (2 + 4) * 152064 * 3584
    small = TrainingShape(replace(QWEN_7B, layers=2, windows=()), microbatch_tokens=0)
    assert sum(rank_memory(small, 1, False).values()) == (2 + 4 + 8 + 4 + 2) * small.parameters + 4 * 152064 * 3584
    assert rank_memory(shape, 16, True, shard_size=8) == sharded  # two copies
    gathered = sharded.pop("gathered")
    assert sharded.pop("LM head") == 4 * 152064 * 3584
    assert sum(sharded.values()) == pytest.approx(2 * n + 16 * n / 8, rel=1e-6) and gathered < 6 * GIB


def test_rank_memory_counts_the_sampler_and_kept_probabilities_by_hand() -> None:
    """1,024 rows of float32 logits; of two layers the weights with a merged adapter, of 28 none; 2 bytes for each
    probability of a micro-batch, at most a sixteenth of the GPU's."""
    two = replace(QWEN_7B, layers=2, windows=())
    for config, merged in ((two, 2 * 2 * two.layer_parameter_count), (QWEN_7B, 0)):
        shape = TrainingShape(config, lora=LoRA(rank=16), microbatch_tokens=1000)
        plain = rank_memory(shape, 1, False)
        full = rank_memory(replace(shape, sampler_rows=1024, gpu_bytes=80 * GIB), 1, False)
        assert full["sampler's logits"] == 4 * 1024 * 152064 and full.get("merged adapter", 0) == merged
        assert full["LM head"] - plain["LM head"] == 2 * 1000 * 152064
    large = TrainingShape(QWEN_7B, microbatch_tokens=100_000)
    none, some = (rank_memory(replace(large, gpu_bytes=n * GIB), 1, False)["LM head"] for n in (0, 16))
    assert some - none == GIB


# shape and tokens of a micro-batch, without gradient checkpointing
MEASURED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "qwen2_5_7b_4k_int8": ("qwen2.5-7b", 4096, {"states": "int8"}),
    "qwen2_5_7b_4k_lora": ("qwen2.5-7b", 4096, {"lora": LoRA(rank=16), "gpu_bytes": 140 * GIB}),
    "qwen2_5_1_5b_4k": ("qwen2.5-1.5b", 16384, {}),  # measured before probabilities were kept
    "qwen2_5_1_5b_4k_alone": ("qwen2.5-1.5b", 16384, {"gpu_bytes": 140 * GIB}),
    "qwen3_0_6b_16k": ("qwen3-0.6b", 16384, {}),
    "qwen3_0_6b_16k_alone": ("qwen3-0.6b", 16384, {"gpu_bytes": 140 * GIB}),
}


@pytest.mark.parametrize("name", MEASURED)
def test_rank_memory_is_within_a_tenth_of_what_updates_took(name: str) -> None:
    """Against the peaks that `bench/trainer_rate.py` measured on an H200."""
    shape, tokens, settings = MEASURED[name]
    kept = BENCH_RESULTS / f"trainer_rate_{name}-nvidia-h200.json"
    peak = json.loads(kept.read_text("utf-8"))["details"]["bytes"]
    planned = rank_memory(TrainingShape(SHAPES[shape], microbatch_tokens=tokens, **settings), 1, False)
    assert sum(planned.values()) == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize(("way", "settings"), [("full", {"states": "int8"}), ("lora", {"lora": LoRA(rank=16)})])
def test_rank_memory_with_gradient_checkpointing_is_within_a_tenth_of_what_steps_took(
    way: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the peaks of `bench/step_memory.py`, measured while gradients of a micro-batch were held together."""
    monkeypatch.setattr("ponder.train.rank_memory.MAX_PENDING_GRADIENT_BYTES", 1 << 60)
    kept = json.loads(cluster_page.KEPT.read_text("utf-8"))[f"step_memory_{way}"]
    tokens = kept["settings"]["max_tokens_per_microbatch"]
    shape = TrainingShape(QWEN_7B, microbatch_tokens=tokens, gradient_checkpointing=True, **settings)
    assert sum(rank_memory(shape, 1, False).values()) == pytest.approx(kept["peak_bytes"], rel=0.1)


def test_least_step_time_of_7b_by_hand() -> None:
    """64 answers of 1,000 tokens on 8 ranks: each token costs six times the weights and its attention, and each pass of
    a sampler reads all weights and half of the cache that it has at the end."""
    shape = TrainingShape(QWEN_7B)
    weights = 28 * QWEN_7B.layer_parameter_count + 152064 * 3584
    forward = 2 * weights + 28 * 28 * 128 * 4 * 500
    time = least_step_time(shape, 64, 1000, 8)
    assert time.learn == pytest.approx(64_000 * 3 * forward / 8 / 989e12)
    assert time.sample == pytest.approx(1000 * (2 * shape.parameters + 8 * 500 * 2 * 28 * 4 * 128 * 2) / 3.35e12)
    assert least_step_time(TrainingShape(QWEN_7B, lora=LoRA()), 64, 1000, 8).learn == pytest.approx(time.learn * 2 / 3)
    more = least_step_time(
        TrainingShape(QWEN_7B, reference_copy=True, gradient_checkpointing=True), 64, 1000, 8, passes=2
    )
    assert more.learn == pytest.approx(time.learn * 9 / 3)
    slow = GPURates(flops=1e12)
    split = least_step_time(shape, 64, 1000, 8, replicas=4, tensor_parallel=2)  # 16 answers at each, on two GPUs
    assert split.sample == pytest.approx(500 * (2 * shape.parameters + 16 * 500 * 2 * 28 * 4 * 128 * 2) / 3.35e12)
    assert least_step_time(shape, 64, 1000, 8, slow).sample == pytest.approx(1000 * 8 * forward / 1e12)


def test_rank_memory_of_variants() -> None:
    base = TrainingShape(QWEN_7B, microbatch_tokens=1000)
    with_reference = rank_memory(TrainingShape(QWEN_7B, reference_copy=True), 8, True)
    assert with_reference["reference"] == base.parameters * 2 // 8
    ahead = rank_memory(TrainingShape(QWEN_7B, sampler_copy=True), 8, True)
    assert ahead["sampler's weights"] == ahead["weights"]
    assert training_shape(RL("addition", ScratchModel("01"), staleness=1)).sampler_copy
    assert not training_shape(RL("addition", ScratchModel("01"))).sampler_copy
    whole, shared = (training_shape(RL("addition", ScratchModel("01"), sequence_parallel=p)) for p in (1, 4))
    assert rank_memory(whole, 4, False)["activations"] == 4 * rank_memory(shared, 4, False)["activations"]
    adapters = TrainingShape(QWEN_7B, lora=LoRA(rank=16))
    assert adapters.trained == 28 * 16 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))
    on_host = rank_memory(TrainingShape(QWEN_7B, states="cpu"), 1, False)
    assert on_host["master weights"] == on_host["moments"] == 0
    checkpointed = TrainingShape(QWEN_7B, microbatch_tokens=1000, gradient_checkpointing=True)
    assert rank_memory(checkpointed, 1, False)["activations"] < rank_memory(base, 1, False)["activations"] / 7
    assert "critic's moments" in rank_memory(TrainingShape(QWEN_7B, critic=True), 8, True)


def test_plan_says_over_how_many_gpus_a_replica_fits() -> None:
    """Llama 3 70B: 2 bytes of each weight, by hand; embeddings and head are whole on the first GPU."""
    llama = DecoderConfig(
        "llama", vocab=128256, width=8192, layers=80, heads=64, kv_heads=8, head_dim=128, mlp_width=28672,
        tied_embeddings=False,
    )  # fmt: skip
    layers, outer = 80 * (2 * 8192 * 64 * 128 + 2 * 8192 * 8 * 128 + 3 * 8192 * 28672), 2 * 128256 * 8192
    job = RL("addition", replicas=2, tensor_parallel=4)
    found = make_replica_plan(job, llama, 2, 80 * GIB)
    assert found is not None and found.weights == 2 * (layers // 4 + outer) and found.smallest == 2
    assert found.cache_token_bytes == 2 * 80 * 2 * 128 * 2  # keys and values of two heads
    assert replica_line(found) == (
        "2 replicas, each on 4 GPUs of its own: 35.8 GiB of weights on each GPU,"
        " 42.2 left for the KV cache of 553,267 tokens"
    )
    whole = make_replica_plan(replace(job, tensor_parallel=1), llama, 2, 80 * GIB)
    assert whole is not None and not whole.fits
    assert replica_line(whole).endswith("131.4 GiB of weights on each GPU, which do not fit: give --tensor-parallel 2")
    small = make_replica_plan(replace(job, tensor_parallel=1), llama, 2, 5 * GIB)
    assert small is not None and small.smallest is None and replica_line(small).endswith("over any number of GPUs")
    assert make_replica_plan(replace(job, replica_engine="vllm"), llama, 2, 80 * GIB) is None
    assert make_rank_plan(RL("addition"), [], 8, 1, 80.0).replica is None
    with pytest.raises(UsageError, match="may be 2, 4, 8, 16, 32, 64"):
        make_replica_plan(replace(job, tensor_parallel=3), llama, 2, 80 * GIB)


@pytest.mark.parametrize(
    ("gpus", "nodes", "replicas", "each", "ranks"),
    [(8, 1, 4, 1, 4), (8, 1, 6, 1, 2), (8, 1, 1, 3, 1), (8, 1, 2, 3, 2), (8, 2, 4, 3, 2), (2, 1, 1, 1, 1)],
)
def test_ranks_leave_replicas_their_gpus(gpus: int, nodes: int, replicas: int, each: int, ranks: int) -> None:
    """The most ranks that share the replicas evenly and have a GPU each beside theirs, counted one by one."""
    possible = [n for n in range(1, gpus + 1) if n * nodes <= replicas and n + replicas // nodes * each <= gpus]
    assert max(n for n in possible if replicas % (n * nodes) == 0) == ranks
    plan = make_rank_plan(RL("addition", replicas=replicas, tensor_parallel=each), ["train"], gpus, nodes, 80.0)
    assert plan.node_ranks == ranks and plan.ranks == ranks * nodes
    assert f"--nproc-per-node {ranks} " in slurm_script(plan) and f"--gpus-per-node {gpus}" in slurm_script(plan)
    assert f"{ranks * nodes}: {ranks} GPU" in rank_plan_lines(plan)[0]


def test_plan_refuses_what_the_command_would_be_refused_for() -> None:
    for job, gpus, nodes, message in [
        (RL("addition", replicas=2, tensor_parallel=3), 2, 1, "a rank and 2 replicas on 3 GPUs each take 7 GPUs"),
        (RL("addition", replicas=3), 8, 2, "2 nodes cannot share 3 replicas: give a multiple of 2"),
        (RL("addition", fsdp=True, shard_size=3), 4, 1, "4 ranks cannot hold copies of 3 each"),
        (RL("addition", sequence_parallel=3), 4, 1, "4 ranks cannot share sequences among 3 each"),
        (RL("addition", verifier_workers=3), 4, 1, "4 ranks cannot share 3 verifier workers"),
    ]:
        with pytest.raises(UsageError, match=message):
            make_rank_plan(job, ["train"], gpus, nodes, 80.0)


def test_commands_of_a_rank_plan() -> None:
    words = run_command_words(
        ["train", "addition", "--gpus", "8", "--nodes=2", "--lr", "1e-6", "--json"],
        ["--gpus", "--nodes", "--gpu-memory"], ["train", "sft"],
    )  # fmt: skip
    assert words == ["train", "addition", "--lr", "1e-6"]
    plan = make_rank_plan(RL("addition"), words, 8, 2, 80.0)
    (_, line, _, on_cluster) = start_lines(plan)
    assert on_cluster == "ponder train addition --lr 1e-6 --ranks 16 --cluster HOST:6379"
    assert line.startswith("torchrun --nnodes 2 --nproc-per-node 8") and line.endswith(
        "-m -- ponder train addition --lr 1e-6"
    )
    script = slurm_script(plan)
    assert script.startswith("#!/bin/bash") and "#SBATCH --gpus-per-node 8" in script
    assert without_flags(["a", "--x", "1", "--y=2", "b"], ["--x", "--y"]) == ["a", "b"]


def test_micro_batches_of_small_networks_are_larger_where_memory_is_plenty() -> None:
    small, large = SHAPES["smollm2-135m"], SHAPES["qwen3-0.6b"]
    assert gpu_microbatch_tokens(small, 2, 140 << 30) == 2 * GPU_MICROBATCH_TOKENS
    assert gpu_microbatch_tokens(small, 2, 80 << 30) == GPU_MICROBATCH_TOKENS
    assert gpu_microbatch_tokens(large, 2, 140 << 30) == GPU_MICROBATCH_TOKENS
    kept = 2 * GPU_MICROBATCH_TOKENS * small.layers * kept_bytes_per_token(small, 2)
    assert gpu_microbatch_tokens(small, 2, 8 * kept) == 2 * GPU_MICROBATCH_TOKENS
    assert gpu_microbatch_tokens(small, 2, 8 * kept - 8) == GPU_MICROBATCH_TOKENS
