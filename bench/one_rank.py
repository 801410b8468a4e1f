"""What a process group costs where there is one rank: a learner's step alone, through NCCL, and wrapped by FSDP2.

GRPO's update on random tokens with the shape of a public model and random weights. With one rank nothing has to be
moved, so whatever differs from the plain learner is the cost of the way itself: the sum of all gradients through the
process group, and FSDP2's gathering, dropping and reducing. A job with `--fsdp` and one rank does not wrap anything;
the learner here is made to. `--compiled` times all with compiled blocks, as they run on a GPU. Learners take turns,
step by step. `--profile FILE` then writes where the time of one step of each goes.
"""

from __future__ import annotations

import copy
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness import RESULTS, make_parser, report
from ponder.nets.decoder import Decoder
from ponder.train.distributed import current_group, sum_in_place
from ponder.train.fsdp import shard_network
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Trace
from training_harness import SHAPES, initialise_on, random_groups, synchronize


class SummedLearner(Learner):
    """Sums every gradient over the process group, though this rank is the only one."""

    def _backward(self, *args: Any, **named: Any) -> Any:
        sums = super()._backward(*args, **named)
        sum_in_place(self.master_weights.gradients_or_zeros())  # as `DataParallelGroup.all_reduce` does with more ranks
        return sums


class WrappedLearner(Learner):
    """Wraps the network with FSDP2, though this rank has all of it."""

    shards_one_rank = True


class OneBlockLearner(WrappedLearner):
    def _shard(self, net: Decoder) -> Decoder:
        return shard_network(net, self.shards, unit_size=1)


def profile_steps(learners: dict[str, Learner], traces: list[Trace], device: str) -> str:
    """Tables of what took longest in one step of each learner, on the device and on the host."""
    orders = ["self_device_time_total"] * (device == "cuda") + ["self_cpu_time_total"]
    tables = []
    for name, learner in learners.items():
        with torch.profiler.profile() as profiler:
            learner.step(traces)
            synchronize(device)
        rows = profiler.key_averages()
        tables += [f"{name}, by {order}\n{rows.table(sort_by=order, row_limit=30)}" for order in orders]
    return "\n\n".join(tables)


WAYS: dict[str, tuple[str, type[Learner]]] = {
    "summed": ("{}, one rank", SummedLearner),
    "fsdp": ("FSDP2, one rank", WrappedLearner),
    "block": ("FSDP2, one rank, one block at a time", OneBlockLearner),
}


def report_times(args: Any, layers: int, times: dict[str, list[float]], norms: dict[str, list[float]]) -> None:
    seconds = {name: statistics.median(values) for name, values in times.items()}
    shape = "" if args.shape == "qwen3-0.6b" else "_" + args.shape.replace(".", "_").replace("-", "_")
    report(
        f"one_rank{shape}{'_compiled' if args.compiled else ''}",
        f"{args.shape} shape, GRPO's update on {args.sequences} sequences of {args.tokens} tokens"
        f"{' with compiled blocks' if args.compiled else ''}: FSDP2 with one rank",
        seconds["FSDP2, one rank"],
        {name: value for name, value in seconds.items() if name != "FSDP2, one rank"},
        ratio=seconds["alone"] / seconds["FSDP2, one rank"],
        promised=1 / 1.03,
        unit="s",
        better="lower",
        device=args.device,
        results=args.results,
        details={
            "seconds": times,
            "against_alone": {name: value / seconds["alone"] for name, value in seconds.items()},
            "first_gradient_norm": {name: values[0] for name, values in norms.items()},
            "layers": layers,
        },
    )


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    flags.add_argument("--layers", type=int, help="fewer than the model has, to try the script")
    flags.add_argument("--sequences", type=int, default=8, help="of each step")
    flags.add_argument("--tokens", type=int, default=2048, help="of each sequence")
    flags.add_argument("--steps", type=int, default=10)
    flags.add_argument(
        "--ways", nargs="+", choices=sorted(WAYS), default=["summed", "fsdp"], help="beside the plain one"
    )
    flags.add_argument("--compiled", action="store_true")
    flags.add_argument("--profile", type=Path, help="file for tables of one step of each learner")
    flags.add_argument("--results", type=Path, default=RESULTS, help="folder for the result")
    args = flags.parse_args()
    args.backend = "NCCL" if args.device == "cuda" else "gloo"
    config = replace(SHAPES[args.shape], layers=args.layers or SHAPES[args.shape].layers, windows=())
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    with torch.device(args.device):
        net = initialise_on(config, args.device, dtype)
    traces = random_groups(config, args.sequences, 1, 16, args.tokens - 16)
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        backend = "cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        group, adam = current_group(), AdamW(lr=1e-6)
        learners: dict[str, Learner] = {"alone": Learner(copy.deepcopy(net), GRPO(kl=None), adam)}
        for way in args.ways:
            name, learner_class = WAYS[way]
            fsdp = issubclass(learner_class, WrappedLearner)
            learner = learner_class(copy.deepcopy(net), GRPO(kl=None), adam, process_group=group, fsdp=fsdp)
            learners[name.format(args.backend)] = learner
        del net
        for learner in learners.values():
            learner.compiled = args.compiled
        times: dict[str, list[float]] = {name: [] for name in learners}
        norms: dict[str, list[float]] = {name: [] for name in learners}
        for step in range(args.steps + 2):  # two to warm up
            for name, learner in learners.items():
                began = synchronize(args.device)
                norms[name].append(learner.step(traces)["grad_norm"])
                seconds = synchronize(args.device) - began
                print(f"{name}, step {step}: {seconds:.4f} s", file=sys.stderr, flush=True)
                if step >= 2:
                    times[name].append(seconds)
        report_times(args, config.layers, times, norms)
        if args.profile is not None:
            args.profile.write_text(profile_steps(learners, traces, args.device))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
