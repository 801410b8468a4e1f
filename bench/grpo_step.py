"""One whole GRPO step: sample groups, reward, credit, forward, backward, optimiser. ponder and TRL's GRPOTrainer.

Both start from the same folder, in the same type and with the same number of threads, on the same chat prompts, with
GRPO's loss, no KL term, one pass, AdamW at the same constant learning rate, clipping at 1, without gradient
checkpointing. Every completion has exactly so many tokens. The reward is a number drawn from the completion's text,
so that all rewards of a group differ and no side has less to learn from. The time is that of whole steps after the
first ones, which warm up; loading is not counted. On a GPU the bytes are those at most in use: ponder's before TRL is
loaded, TRL's less what ponder holds. Steps take turns, so that a machine that slows down slows down both.

TRL is measured where it is installed (pip install 'trl==1.16.*'); without it only ponder is. `--trl-vllm` measures TRL
once more with vLLM sampling in its process ("colocate"), after the others, in a process of its own; its bytes are those
that the GPU lacks, vLLM's cache of `--vllm-memory` included. With `--no-trl` it is the only peer, and the result is
kept as `grpo_step_vllm`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import ponder  # noqa: F401 - before torch, whose allocator then keeps freed memory as in `ponder train`

# isort: split
import torch

from harness import RESULTS, make_parser, report
from ponder import event_loop
from ponder.models.load import load_policy
from ponder.models.model_paths import find_model
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.pipelines.solve import solve_all
from ponder.reason.strategies import Samples
from ponder.tasks.generated.addition import Addition
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Problem, Sampling, Score, Trace
from training_harness import trl_dataset

INSTALL = "pip install 'trl==1.16.*'"
LR = 1e-6


def reward(text: str) -> float:
    """Between 0 and 1, as good as random: two texts of a group do not share it."""
    return zlib.crc32(text.encode()) / 2**32


@dataclass(frozen=True)
class SampledStep:
    """`reward` as a scorer."""

    name: str = "drawn"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(reward(trace.text(i))) for i in steps]


def synchronize_device(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def ponder_steps(options: Any, dtype: str) -> Iterator[dict[str, float]]:
    """The body of `ponder.pipelines.rl`'s loop, without its files; seconds of each step."""
    used_at_start = used_gpu_bytes(options.device)
    policy = load_policy(options.model, device=options.device, dtype=dtype)
    policy.engine.eos = frozenset()
    objective, scorer = GRPO(kl=None), SampledStep()
    learner = Learner(policy.net, objective, AdamW(lr=LR), max_tokens_per_microbatch=options.max_tokens_per_microbatch)
    strategy = Samples(options.n, Sampling(max_tokens=options.tokens))
    for step in range(2 + options.steps):
        asked = problems(options, step)
        peak_memory_bytes(options.device, reset=True)
        began, worked = synchronize_device(options.device), time.process_time()
        policy.reseed(0, step)
        traces = event_loop.run(solve_all(asked, strategy, policy, scorer))
        sample_used = used_gpu_bytes(options.device) - used_at_start
        policy.sleep()
        sampled = synchronize_device(options.device)
        sampling = peak_memory_bytes(options.device, reset=True)
        objective.credit(traces, scorer.name, {})
        learned = learner.step(traces)
        ended, cpu = synchronize_device(options.device), time.process_time() - worked
        assert (
            learned["num_trained_tokens"] == options.prompts * options.n * options.tokens and learned["grad_norm"] > 0
        )
        print(f"ponder step {step}: {ended - began:.2f} s ({sampled - began:.2f} s sampling)", flush=True)
        bytes_ = {"sample_bytes": sampling, "learn_bytes": peak_memory_bytes(options.device)}
        bytes_ |= {"sample_used": sample_used, "learn_used": used_gpu_bytes(options.device) - used_at_start}
        yield {"step": ended - began, "sample": sampled - began, "learn": ended - sampled, "cpu": cpu, **bytes_}


def peak_memory_bytes(device: str, reset: bool = False) -> int:
    """Bytes at most on the GPU since the last reset."""
    if device != "cuda":
        return 0
    peak = torch.cuda.max_memory_allocated()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return peak


def used_gpu_bytes(device: str) -> int:
    """Bytes of the GPU that are taken, by whomever."""
    if device != "cuda":
        return 0
    free, whole = torch.cuda.mem_get_info()
    return whole - free


def trl_steps(
    options: Any, dtype: str, between: Callable[[], None] = lambda: None, vllm: bool = False
) -> list[dict[str, float]]:
    """Seconds of each of TRL's steps; `between` is called after each. `vllm`: it samples, in this process."""
    if vllm:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # TRL writes its weights into vLLM's network
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    name = "TRL with vLLM" if vllm else "TRL"
    times: list[dict[str, float]] = []
    ours_too = torch.cuda.memory_allocated() if options.device == "cuda" else 0  # what ponder holds meanwhile

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            peak_memory_bytes(options.device, reset=True)
            self.began, self.worked = synchronize_device(options.device), time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            took, cpu = synchronize_device(options.device) - self.began, time.process_time() - self.worked
            held = (
                used_gpu_bytes(options.device) - used_at_start if vllm else peak_memory_bytes(options.device) - ours_too
            )
            times.append({"step": took, "cpu": cpu, "bytes": held})
            print(f"{name} step {len(times) - 1}: {times[-1]['step']:.2f} s", flush=True)
            between()

    used_at_start = used_gpu_bytes(options.device)

    def judge(completions: list[Any], **_: Any) -> list[float]:
        assert len(completions) == options.prompts * options.n
        return [reward(c[-1]["content"]) for c in completions]

    asked = [p for step in range(1 + options.steps) for p in problems(options, step)]
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, max_steps=1 + options.steps, per_device_train_batch_size=options.trl_batch,
            gradient_accumulation_steps=options.prompts * options.n // options.trl_batch, num_generations=options.n,
            max_completion_length=options.tokens, temperature=1.0, top_p=1.0, top_k=0, beta=0.0, loss_type="grpo",
            num_iterations=1, learning_rate=LR, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
            optim="adamw_torch_fused", bf16=dtype == "bfloat16", fp16=False, gradient_checkpointing=False,
            generation_kwargs={"min_tokens" if vllm else "min_new_tokens": options.tokens},
            use_cpu=options.device == "cpu", shuffle_dataset=False, use_vllm=vllm, vllm_mode="colocate",
            vllm_gpu_memory_utilization=options.vllm_memory,
            model_init_kwargs={"dtype": "float32"}, report_to="none", save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=str(find_model(options.model)),
            reward_funcs=judge,
            args=settings,
            train_dataset=trl_dataset([{"prompt": [dict(m) for m in p.messages]} for p in asked]),
            callbacks=[Clock()],
        )
        trainer.train()
    logged = [entry for entry in trainer.state.log_history if "completions/mean_length" in entry]
    assert logged and all(entry["completions/mean_length"] == options.tokens for entry in logged)
    return times


def trl_vllm_steps(options: Any) -> list[dict[str, float]]:
    """TRL's steps with vLLM, in a process of their own: this one's GPU memory is not given back."""
    given = ["--device", options.device, "--only-trl-vllm", "--model", options.model, "--trl-batch", options.trl_batch]
    for name in ("prompts", "n", "tokens", "steps", "vllm_memory"):
        given += [f"--{name.replace('_', '-')}", getattr(options, name)]
    given += ["--dtype", options.dtype] if options.dtype else []
    child = subprocess.Popen(
        [sys.executable, __file__, *map(str, given)], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert child.stdout is not None
    result: list[dict[str, float]] = []
    for line in child.stdout:
        print(line, end="", flush=True)
        if line.startswith('[{"step"'):
            result = json.loads(line)
            break
    if not result:
        child.wait()
        raise SystemExit("TRL with vLLM failed; what it said last stands above")
    child.kill()  # it is done, and vLLM takes long to end
    child.wait()
    return result


def problems(options: Any, step: int) -> list[Problem]:
    return shuffled_problems(Addition().train, 0, step * options.prompts, options.prompts)


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--prompts", type=int, default=8)
    flags.add_argument("--n", type=int, default=8, help="completions of each prompt")
    flags.add_argument("--tokens", type=int, default=32, help="tokens of each completion")
    flags.add_argument("--steps", type=int, default=2, help="measured steps of each, after one to warm up")
    flags.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on a GPU bfloat16")
    flags.add_argument("--max-tokens-per-microbatch", type=int, default=0, help="ponder's micro-batch, in tokens")
    flags.add_argument("--trl-batch", type=int, help="TRL's micro-batch, in completions; default: all of them")
    flags.add_argument("--trl-vllm", action="store_true", help="measure TRL with vLLM, too")
    flags.add_argument("--no-trl", action="store_true", help="leave out TRL without vLLM")
    flags.add_argument("--only-trl-vllm", action="store_true", help="nothing but that, as a line of JSON")
    flags.add_argument("--vllm-memory", type=float, default=0.3, help="share of the GPU's memory for vLLM")
    flags.add_argument("--model", default="smollm2")
    flags.add_argument("--results", type=Path, default=RESULTS, help="folder of the result")
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    options = flags.parse_args()
    options.trl_batch = options.trl_batch or options.prompts * options.n
    dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")

    if options.only_trl_vllm:
        print(json.dumps(trl_steps(options, dtype, vllm=True)), flush=True)
        return

    steps = ponder_steps(options, dtype)
    times = {"ponder": [next(steps), next(steps)]}  # before TRL takes any memory
    alone = times["ponder"][1]
    threads = torch.get_num_threads()
    if options.no_trl:
        pass
    elif importlib.util.find_spec("trl") is None:
        print(f"TRL is not installed, so only ponder is measured. To measure both: {INSTALL}", flush=True)
    else:
        times["TRL"] = trl_steps(options, dtype, lambda: times["ponder"].extend(islice(steps, 1)))
        assert torch.get_num_threads() == threads
    times["ponder"] += steps
    if options.trl_vllm:
        times["TRL with vLLM"] = trl_vllm_steps(options)
    measured = {who: every[2 if who == "ponder" else 1 :] for who, every in times.items()}
    step = {who: statistics.median(t["step"] for t in every) for who, every in measured.items()}
    asked_peers = {"TRL": not options.no_trl, "TRL with vLLM": options.trl_vllm}
    sizes = f"{options.prompts} prompts x {options.n} completions x {options.tokens} tokens"
    report(
        "grpo_step_vllm" if options.no_trl else "grpo_step",
        f"{Path(options.model).name}, {dtype}: one GRPO step of {sizes}",
        step["ponder"],
        {who: step.get(who) for who, asked in asked_peers.items() if asked},
        promised=6.0 if options.device == "cpu" else None,
        unit="s",
        better="lower",
        device=options.device,
        results=options.results,
        packages=["trl", "transformers", "accelerate", "vllm"],
        details={
            "seconds": measured,  # cpu: processor time of the whole step, which a shared machine changes less
            # used: what the GPU lacks at the end of sampling and of learning, the cache and kernels counted
            "bytes": {name: alone[name] for name in ("sample_bytes", "learn_bytes", "sample_used", "learn_used")},
            "threads": threads,
            "max_tokens_per_microbatch": options.max_tokens_per_microbatch,
            "trl_batch": options.trl_batch,
            "vllm_memory": options.vllm_memory if options.trl_vllm else None,
            "lr": LR,
            "note": options.note,
        },
    )


if __name__ == "__main__":
    main()
