"""How many different children a tree search finds for a step of a model that is sure of itself.

MCTS prunes a continuation that is the same as another. Measured are the children that stay, of 4 asked for, over all
expansions, and what they cost: sampled, sampled again in place of duplicates (`resample_rounds`), and found by diverse
beam search with several numbers of groups and penalties.

    python bench/distinct_children.py                     the recipes' tiny model after its cold start, made here first
    python bench/distinct_children.py --model smollm2     SmolLM2-135M-Instruct on sums in words

ponder's figure is beam search in one group, whose beams always differ; its peers are sampling and resampling. What the
other settings of diverse beam search gave stands under `details`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beam_many import MeanLogprob
from harness import HERE, RESULTS, make_parser, report
from ponder.pipelines.solve import solve_all
from ponder.protocols import NoProgress
from ponder.reason.operators.diverse_beams import DiverseBeamSearch
from ponder.reason.strategies import MCTS
from ponder.types import Problem, Trace

sys.path.insert(0, str(HERE.parent / "recipes"))
OURS = "diverse beams, 1 group"
HOW: dict[str, dict[str, Any]] = {
    OURS: {"diverse_beams": DiverseBeamSearch(groups=1)},
    "sampled": {},
    "resample_rounds 1": {"resample_rounds": 1},
    "resample_rounds 3": {"resample_rounds": 3},
    **{
        f"diverse beams, {groups} groups, penalty {penalty:g}": {"diverse_beams": DiverseBeamSearch(groups, penalty)}
        for groups, penalty in ((2, 0.5), (4, 0.5), (4, 2.0), (4, 8.0))
    },
}


def expansions(traces: Sequence[Trace]) -> list[int]:
    """The number of different children of each step that was expanded."""
    return [
        len({trace.steps[k].token_ids.tobytes() for k in children})
        for trace in traces
        for i in range(len(trace.steps))
        if (children := [k for k in trace.children(i) if not trace.steps[k].last])
    ]


def measure(policy: Any, problems: Sequence[Problem], strategy: MCTS) -> dict[str, float]:
    policy.reseed(0)
    traces = asyncio.run(solve_all(problems, strategy, policy, guide=MeanLogprob()))
    counts = expansions(traces)
    tokens = sum(trace.cost.generated_tokens for trace in traces)
    return {
        "expansions": len(counts),
        "children": sum(counts) / len(counts),
        "with_one_child": sum(c == 1 for c in counts),
        "tokens_per_expansion": tokens / len(counts),
        "tokens_per_child": tokens / sum(counts),
    }


def load_policy(model: str, folder: Path, device: str) -> tuple[Any, Any]:
    """The recipes' base, and its policy; the tiny model learns the notation first."""
    from _bases import find_base

    from ponder.models.load import load_inference_policy

    base = find_base(model)
    if model == "tiny":
        base.cold_start_job(seed=0)(folder, NoProgress())
        return base, load_inference_policy(str(folder), device=device)
    return base, load_inference_policy(model, template=base.template, device=device)


def main() -> None:
    own = make_parser(__doc__)
    own.add_argument("--model", default="tiny", choices=["tiny", "smollm2"])
    own.add_argument("--problems", type=int, default=8)
    own.add_argument("--simulations", type=int, default=12)
    own.add_argument("--results", type=Path, default=RESULTS, help="folder that the result is written to")
    args = own.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base, policy = load_policy(args.model, Path(folder), args.device)
        problems = list(base.task.test[: args.problems])
        found = {}
        for name, settings in HOW.items():
            strategy = MCTS(
                simulations=args.simulations, width=4, sampling=base.sampling, cut=base.cut, complete_answer=False,
                **settings,
            )  # fmt: skip
            found[name] = measure(policy, problems, strategy)
            print(name, {k: round(v, 2) for k, v in found[name].items()}, flush=True)
    report(
        "distinct_children" if args.model == "tiny" else f"distinct_children_{args.model}",
        f"{args.model}, sums: MCTS of {args.simulations} simulations on {len(problems)} problems, 4 continuations of a"
        " step asked for; different children of an expanded step",
        found[OURS]["children"],
        {name: one["children"] for name, one in found.items() if "beams" not in name},
        unit="children",
        device=args.device,
        results=args.results,
        details={"how": found, "temperature": base.sampling.temperature},
    )


if __name__ == "__main__":
    main()
