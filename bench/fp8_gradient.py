"""What rounding does to a gradient: bfloat16 and FP8 products against float32, on real text.

The whole gradient of one step of a published model on GSM8K's training problems and their solutions, computed by the
learner in float32, in bfloat16, and in bfloat16 with FP8 products (`--fp8`). Of each: its cosine with the float32
gradient, its distance from it over that one's norm, both also over the blocks' matrices alone and as the median over
these matrices, and how far log-probabilities of tokens are from float32's. Two losses: imitation (SFT), and a policy
gradient in which each solution has a random advantage, whose terms cancel in part. For scale: the cosine of the
float32 gradients of the batch's two halves, which differ by their texts.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from harness import RESULTS, commit, hardware, make_parser, report, versions
from ponder.models.load import load_policy
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.tasks.datasets.word_problems import GSM8K
from ponder.train.imitation import SFT
from ponder.train.learner import Learner
from ponder.train.objective import Objective
from ponder.train.policy_gradient import GRPO
from ponder.types import Problem, Step, Trace, ids

WAYS = {"float32": ("float32", False), "bfloat16": ("bfloat16", False), "fp8": ("bfloat16", True)}
LOSSES: dict[str, Objective] = {"imitation": SFT(), "policy_gradient": GRPO(kl=None)}


def make_traces(policy: Any, problems: Iterable[Problem], loss: str) -> list[Trace]:
    draw = np.random.default_rng(0)
    traces = []
    for problem in problems:
        prompt = policy.encode(problem.messages)
        answer = ids(policy.tokenizer.encode(GSM8K().gold(problem)))
        trace = Trace(problem, [Step(None, problem.question, prompt), Step(0, "", answer, None, "eos")])
        if loss == "policy_gradient":
            trace.steps[1].advantages = np.full(len(answer), draw.normal(), np.float32)
        traces.append(trace)
    if loss == "imitation":
        LOSSES[loss].credit(traces, "", {})
    return traces


def compare(result: Mapping[str, Tensor], exact: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, float]:
    """Of two gradients as one vector each: cosine, and distance over the exact one's norm."""
    dot = own = other = 0.0
    for name in names:
        a, b = result[name].double(), exact[name].double()
        dot, own, other = dot + float((a * b).sum()), own + float((a * a).sum()), other + float((b * b).sum())
    return {"cosine": dot / (own * other) ** 0.5, "relative_error": max(0.0, (own - 2 * dot + other) / other) ** 0.5}


def measure(args: Any, save: Callable[[Any], None]) -> dict[str, Any]:
    exact: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for way, (dtype, fp8) in WAYS.items():
        if fp8 and args.device == "cpu":
            continue  # refused there
        policy = load_policy(args.model, device=args.device, dtype=dtype)
        for loss, objective in LOSSES.items():
            began = time.perf_counter()
            problems = shuffled_problems(GSM8K().train, 0, 0, args.problems)
            learner = Learner(policy.net, objective, fp8=fp8)
            traces = make_traces(policy, problems, loss)
            grads = learner.gradient(traces)
            for trace in traces:
                trace.steps[1].notes.clear()
            learner.write_notes(traces, [t.steps[1] for t in traces], "logprobs", policy.net)
            logprobs = np.concatenate([t.steps[1].notes["logprobs"] for t in traces])
            if way == "float32":
                halves = [learner.gradient(make_traces(policy, half, loss)) for half in _halves(problems)]
                exact[loss] = grads, logprobs
                rows[loss] = {"halves": compare(halves[0], halves[1], grads), "tokens": len(logprobs)}
                continue
            expected, their_logprobs = exact[loss]
            matrices = [name for name in grads if name.endswith("_proj.weight")]
            single = [compare(grads, expected, [name]) for name in matrices]
            gaps = np.abs(logprobs - their_logprobs)
            rows[loss][way] = {
                "whole": compare(grads, expected, grads),
                "blocks": compare(grads, expected, matrices),
                "median_matrix": {k: statistics.median(one[k] for one in single) for k in single[0]},
                "worst_matrix_relative_error": max(one["relative_error"] for one in single),
                "logprob_gap": {"mean": float(gaps.mean()), "largest": float(gaps.max())},
                "seconds": time.perf_counter() - began,
            }
            save(rows)
    return rows


def _halves(problems: list[Problem]) -> tuple[list[Problem], list[Problem]]:
    return problems[: len(problems) // 2], problems[len(problems) // 2 :]


def keep(args: Any, rows: dict[str, Any], origin: dict[str, Any] | None = None) -> None:
    """`origin`: of rows that were measured elsewhere, see `harness.report`."""
    imitation = rows["imitation"]
    report(
        "fp8_gradient",
        f"{args.model}: distance of the gradient of one step on {args.problems} solutions of GSM8K from float32's "
        "over its norm",
        imitation["fp8"]["whole"]["relative_error"],
        {"bfloat16": imitation["bfloat16"]["whole"]["relative_error"]},
        better="lower",
        device=args.device,
        details={"rows": rows, "note": args.note},
        results=args.results,
        origin=origin,
    )


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--model", default="smollm2")
    flags.add_argument("--problems", type=int, default=128)
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    flags.add_argument("--results", type=Path, default=RESULTS, help="folder that the result is written to")
    flags.add_argument("--kept", type=Path, help="make the result of a file of rows, and measure nothing")
    flags.add_argument("--out", type=Path, help="file that the rows are written to, as they come")
    args = flags.parse_args()
    if args.kept is not None:
        known = json.loads(args.kept.read_text("utf-8"))
        keep(args, known["rows"], known)
        return
    facts = {"hardware": hardware(args.device), "versions": versions(), "commit": commit()}

    def save(rows: Any) -> None:
        if args.out is not None:
            args.out.write_text(json.dumps({"name": "fp8_gradient", **facts, "rows": rows}, indent=2) + "\n", "utf-8")

    rows = measure(args, save)
    if "fp8" in rows["imitation"]:  # a CPU has none
        keep(args, rows, facts)
    else:
        print(json.dumps(rows), flush=True)


if __name__ == "__main__":
    main()
