"""What placing replicas by Ray costs: at the start, for each request, and for each publish of weights.

The same requests go to one replica that is a child on pipes, to one that is connected by TCP, and to one that Ray has
placed on a local cluster: a small network, so that what is measured is the way there and back. Ray takes no part in a
request; the difference between the last two is noise. Requests go out 32 at a time, 8 tokens each.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from harness import make_parser, report
from ponder.cluster.places import LocalPlace, Place
from ponder.cluster.process_host import free_port
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.replica_policy import ReplicaPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.types import Sampling

ALPHABET = "0123456789+= "


def make_policy() -> PonderPolicy:
    import torch

    net, tokenizer = ScratchModel(ALPHABET, width=64, layers=2, heads=4, context=256).build(
        torch.float32, torch.device("cpu")
    )
    return PonderPolicy(net, tokenizer, 0)


async def measure(
    policy: PonderPolicy, places: Mapping[str, Place | None], folder: Path, requests: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """For each way: seconds until its replica is ready, milliseconds of a request in each round, and of a publish. The
    ways take turns, so that what else the machine does meets all of them."""
    sampling = Sampling(max_tokens=8, min_tokens=8)
    found: dict[str, dict[str, Any]] = {name: {"request_ms": [], "publish_ms": []} for name in places}
    async with AsyncExitStack() as stack:
        ways: dict[str, ReplicaPolicy] = {}
        for name, place in places.items():
            began = time.perf_counter()
            ways[name] = await stack.enter_async_context(ReplicaPolicy(policy, 1, folder / name, place=place))
            found[name]["ready_s"] = time.perf_counter() - began
        prompts = [policy.tokens(f"{i % 10}+{i // 10 % 10}=") for i in range(requests)]
        for version in range(1, rounds + 2):
            for name, replicas in ways.items():
                began = time.perf_counter()
                await replicas.publish(policy.version + version)
                published = time.perf_counter()
                for i in range(0, requests, 32):
                    await asyncio.gather(*(replicas.generate(p, sampling) for p in prompts[i : i + 32]))
                if version > 1:  # the first round warms up
                    found[name]["publish_ms"].append(1e3 * (published - began))
                    found[name]["request_ms"].append(1e3 * (time.perf_counter() - published) / requests)
    return found


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--requests", type=int, default=512)
    flags.add_argument("--rounds", type=int, default=9)
    args = flags.parse_args()
    if importlib.util.find_spec("ray") is None:
        print("skipped: Ray is not installed")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.setdefault("PONDER_CACHE", str(folder / "cache"))
        os.environ.setdefault("RAY_AUTH_TOKEN_PATH", str(folder / "token"))
        found, start = measure_with_ray(make_policy(), folder, args.requests, args.rounds)
    medians = {name: statistics.median(one["request_ms"]) for name, one in found.items()}
    report(
        "cluster_cost",
        f"{args.requests} requests of 8 tokens to one replica, 32 at a time: a request's share, placed by Ray",
        medians["ray"],
        {"child on pipes": medians["pipes"], "TCP without Ray": medians["tcp"]},
        unit="ms",
        better="lower",
        device=args.device,
        packages=["ray"],
        details={"ways": found, "start": start},
    )


def measure_with_ray(
    policy: PonderPolicy, folder: Path, requests: int, rounds: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    from ponder.cluster.ray_node import start_node, stop_node
    from ponder.cluster.ray_place import RayPlace

    began = time.perf_counter()
    node = start_node("127.0.0.1", free_port("127.0.0.1"), cpus=2)
    start: dict[str, Any] = {"cluster_up_s": time.perf_counter() - began}
    try:
        place = RayPlace(node.address, "bench")
        for key in ("first_slot_s", "next_slot_s"):
            began = time.perf_counter()
            (slot,) = place.reserve(1, gpu=False)
            start[key] = time.perf_counter() - began
            calls = []
            for _ in range(200):
                began = time.perf_counter()
                slot.poll()
                calls.append(1e3 * (time.perf_counter() - began))
            start["actor_call_ms"] = statistics.median(calls)
            slot.release()
        places = {"pipes": None, "tcp": LocalPlace(), "ray": place}
        return asyncio.run(measure(policy, places, folder, requests, rounds)), start
    finally:
        place.ray.shutdown()
        stop_node()


if __name__ == "__main__":
    main()
