"""What a tree search costs beside the model: processor time per node with a policy and a guide that answer at once.

ponder grows one tree with UCT, four continuations a step, to 10^3, 10^4, 10^5 and 10^6 nodes, each time going on from
the last. treequest (standard MCTS, as it comes: every step copies the state, and in place), llm-reasoners (MCTS to
depth 8) and mctx (muzero_policy, compiled before) do the same with four actions at 10^3 and 10^4 nodes. They live in an
environment of their own: `pip install treequest mctx llm-reasoners` there, and name its Python with --peer-python or
PONDER_PEERS. A node of mctx is a simulation; ponder's simulations are in the details.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

from harness import format_number, make_parser, report

PEERS = ("treequest", "treequest in place", "llm-reasoners", "mctx")
PACKAGES = {"treequest": "treequest", "llm-reasoners": "llm-reasoners", "mctx": "mctx", "jax": "jax"}
MAX_TREE_SECONDS = 30.0  # seconds for one tree of a peer; it then says how far it came


class InstantPolicy:
    """A policy that writes four new tokens, and a guide that finds a number in each."""

    name = "instant"

    def __init__(self) -> None:
        import numpy as np

        self.count, self.numpy, self.logprobs = 0, np, np.array([-1.0], np.float32)

    def encode(self, messages: Any) -> Any:
        return self.numpy.array([1], self.numpy.int32)

    def tokens(self, text: str) -> Any:
        return self.numpy.array([1], self.numpy.int32)

    def text(self, tokens: Any) -> str:
        return ""

    async def generate(self, prefix: Any, sampling: Any, n: int = 1) -> list[Any]:
        from ponder.types import Completion

        self.count += n
        array, int32 = self.numpy.array, self.numpy.int32
        return [Completion("t\n", array([self.count - j], int32), self.logprobs.copy(), "stop") for j in range(n)]

    async def __call__(self, trace: Any, steps: Any) -> list[Any]:
        from ponder.types import Score

        return [Score(fake_value(int(trace.steps[i].token_ids[0]))) for i in steps]


def fake_value(key: int) -> float:
    """A number from 0 to 1 for each node, without a pattern."""
    return key * 2654435761 % 4294967296 / 4294967296


def ponder_overhead(sizes: list[int]) -> Iterator[dict[str, float]]:
    from ponder.reason.operators.cut import CUTS
    from ponder.reason.operators.tree_policy import UCT
    from ponder.reason.strategies.mcts import MCTS
    from ponder.types import Problem, Sampling, prompt_trace, user_messages

    world, sampling = InstantPolicy(), Sampling(max_tokens=1 << 30)
    trace = prompt_trace(Problem("p", user_messages("?")), world.encode(()))
    held, nodes, done, cpu = resident_bytes(), 1, 0, 0.0
    for size in sizes:
        began, wall = time.process_time(), time.perf_counter()
        while len(trace.steps) < size:
            more = trace.steps[0].visits + max(10, (size - len(trace.steps)) // 3)
            search = MCTS(
                simulations=more,
                width=4,
                cut=CUTS["line"],
                selection=UCT(1.0),
                sampling=sampling,
                complete_answer=False,
            )
            asyncio.run(search(trace, world, world))
        took, visits = time.process_time() - began, trace.steps[0].visits
        cpu += took
        yield {
            "nodes": len(trace.steps),
            "us_per_node": 1e6 * cpu / len(trace.steps),
            "us_per_further_node": 1e6 * took / (len(trace.steps) - nodes),
            "us_per_further_simulation": 1e6 * took / (visits - done),
            "wall_seconds": time.perf_counter() - wall,
            "resident_bytes_per_node": (resident_bytes() - held) / len(trace.steps),
            "deepest": max(len(trace.path(i)) for i in range(0, len(trace.steps), 997)) - 1,
        }
        nodes, done = len(trace.steps), visits


def memory(nodes: int) -> float:
    """Bytes per node that Python holds, its one token and log-probability among them."""
    tracemalloc.start()
    measured = next(iter(ponder_overhead([nodes])))
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / measured["nodes"]


def resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# The peers, in their own Python: each gives nodes and processor seconds.


def treequest(nodes: int, inplace: bool) -> tuple[int, float]:
    import treequest as tq

    count = 0

    def one(parent: Any) -> tuple[int, float]:
        nonlocal count
        count += 1
        return count, fake_value(count)

    search = tq.StandardMCTS(samples_per_action=4)
    state, began = search.init_tree(), time.process_time()
    for done in range(1, nodes + 1):
        state = search.step(state, {"go on": one}, inplace=inplace)
        if time.process_time() - began > MAX_TREE_SECONDS:
            return done, time.process_time() - began
    return nodes, time.process_time() - began


def llm_reasoners(nodes: int) -> tuple[int, float]:
    from reasoners import SearchConfig, WorldModel
    from reasoners.algorithm import MCTS, MCTSNode

    class World(WorldModel):
        def init_state(self) -> int:
            return 1

        def step(self, state: int, action: int) -> tuple[int, dict[str, Any]]:
            return 4 * state + action, {}

        def is_terminal(self, state: int) -> bool:
            return False

    class Config(SearchConfig):
        def get_actions(self, state: int) -> list[int]:
            return [0, 1, 2, 3]

        def fast_reward(self, state: int, action: int) -> tuple[float, dict[str, Any]]:
            return fake_value(4 * state + action), {}

        def reward(self, state: int, action: int, **_: Any) -> tuple[float, dict[str, Any]]:
            return fake_value(4 * state + action), {}

    search = MCTS(depth_limit=8, n_iters=1, w_exp=1.0)
    search.world_model, search.search_config = World(), Config()
    MCTSNode.reset_id()
    root = MCTSNode(state=1, action=None, parent=None, calc_q=search.calc_q)
    began, made, looks = time.process_time(), 0, 0
    while made < nodes and time.process_time() - began < MAX_TREE_SECONDS:
        search.iterate(root)
        made, looks = next(MCTSNode.id_iter) - looks, looks + 1  # each look takes a number
    return made, time.process_time() - began


def mctx(nodes: int) -> tuple[int, float]:
    import jax
    import jax.numpy as jnp
    import mctx as library

    def recurrent(parameters: Any, key: Any, action: Any, state: Any) -> Any:
        child = (state * jnp.uint32(4) + action.astype(jnp.uint32)) * jnp.uint32(2654435761)
        value = child.astype(jnp.float32) / 4294967296.0
        zero = jnp.zeros_like(value)
        logits = jnp.zeros((1, 4))
        return library.RecurrentFnOutput(reward=zero, discount=zero + 1, prior_logits=logits, value=value), child

    @jax.jit
    def search(key: Any) -> Any:
        root = library.RootFnOutput(
            prior_logits=jnp.zeros((1, 4)), value=jnp.zeros(1), embedding=jnp.ones(1, jnp.uint32)
        )
        return library.muzero_policy(
            params=None, rng_key=key, root=root, recurrent_fn=recurrent, num_simulations=nodes
        ).action_weights

    search(jax.random.PRNGKey(0)).block_until_ready()
    began = time.process_time()
    search(jax.random.PRNGKey(1)).block_until_ready()
    return nodes, time.process_time() - began


PEER_RUNNERS: dict[str, Callable[[int], tuple[int, float]]] = {
    "treequest": lambda n: treequest(n, inplace=False),
    "treequest in place": lambda n: treequest(n, inplace=True),
    "llm-reasoners": llm_reasoners,
    "mctx": mctx,
}


def run_peer_here(name: str, nodes: int) -> None:
    """What a peer's Python runs: one line of JSON."""
    import importlib.metadata

    random.seed(0)
    made, seconds = PEER_RUNNERS[name](nodes)
    package = PACKAGES[name.split()[0]]
    print(json.dumps({"nodes": made, "seconds": seconds, "version": importlib.metadata.version(package)}))


def run_peer(python: str, name: str, nodes: int) -> dict[str, Any]:
    """Microseconds per node, or why there are none."""
    if not python:
        return {"skipped": "no environment with the peers was named (--peer-python, PONDER_PEERS)"}
    command = [python, __file__, "--run-peer", name, "--nodes", str(nodes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10 * MAX_TREE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        text = (getattr(error, "stderr", "") or "").strip().splitlines()
        return {"skipped": text[-1] if text else str(error)}
    measured = json.loads(done.stdout.splitlines()[-1])
    ended = {} if measured["nodes"] >= nodes else {"stopped_after_seconds": MAX_TREE_SECONDS}
    return {**measured, "us_per_node": 1e6 * measured["seconds"] / measured["nodes"], **ended}


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000])
    flags.add_argument(
        "--peer-python", default=os.environ.get("PONDER_PEERS", ""), help="the Python that has the peers"
    )
    flags.add_argument("--run-peer", choices=PEERS, help="run one peer here, and nothing else")
    flags.add_argument("--nodes", type=int, default=1000, help="for --run-peer")
    args = flags.parse_args()
    if args.run_peer:
        run_peer_here(args.run_peer, args.nodes)
        return
    load = os.getloadavg()[0]
    details: dict[str, Any] = {"load_average_before": load, "bytes_per_node": memory(min(10_000, args.sizes[-1]))}
    details["ponder"] = []
    for measured in ponder_overhead(args.sizes):
        details["ponder"].append(measured)
        print(f"ponder, {measured['nodes']:,} nodes: {format_number(measured['us_per_further_node'])} us per further "
              "node, "
              f"{format_number(measured['resident_bytes_per_node'])} bytes", flush=True)  # fmt: skip
    compared = [n for n in args.sizes if n <= 10_000]
    details["peers"] = {}
    for name in PEERS:
        details["peers"][name] = {str(n): run_peer(args.peer_python, name, n) for n in compared}
        print(name, json.dumps(details["peers"][name]), flush=True)
    size = compared[-1]
    mine = next(m for m in details["ponder"] if m["nodes"] >= size)["us_per_node"]
    report(
        "search_overhead",
        f"MCTS with an instant policy, {size:,} nodes: processor time of the framework per node",
        mine,
        {name: details["peers"][name][str(size)].get("us_per_node") for name in PEERS},
        unit="us",
        better="lower",
        details={**details, "load_average_after": os.getloadavg()[0]},
    )


if __name__ == "__main__":
    sys.exit(main())
