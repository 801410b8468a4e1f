"""Estimators beside the loop one would write: coverage of a million samples at 1,000 k, votes over random subsets.

The loops are the usual ones: for each problem and k the product form of pass@k, and for each problem, subset and k a
counter of the answers drawn. They are timed on a part of the work (every so many k, a few of the problems) and scaled
up, since all of it takes minutes; what both sides computed is compared first. Times are of the processor, on one
thread: what else runs on the machine counts little.

    python bench/estimators.py --problems 1000 --samples 1000 --k 1000
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from harness import make_parser, report
from ponder.measure import SampleCurve, coverage_curve, selection_curve
from ponder.measure.statistics.answer_selection import SampleSelectionRule, SubsetScheme


def loop_coverage(n: int, c: list[int], ks: list[int]) -> list[float]:
    """Mean pass@k as the product that is usually written, one problem and one k at a time."""
    out = []
    for k in ks:
        each = [1.0 if n - x < k else 1.0 - float(np.prod(1.0 - k / np.arange(n - x + 1, n + 1))) for x in c]
        out.append(sum(each) / len(each))
    return out


def loop_votes(answers: list[list[int]], right: list[int], ks: list[int], subsets: int) -> list[float]:
    """The share of right majorities, one problem, subset and k at a time; a counter keeps first-seen order in ties."""
    rng = random.Random(0)
    won = [0] * len(ks)
    for group, gold in zip(answers, right, strict=True):
        for _ in range(subsets):
            for i, k in enumerate(ks):
                won[i] += Counter(rng.sample(group, k)).most_common(1)[0][0] == gold
    return [w / (len(answers) * subsets) for w in won]


def cpu_seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """The median of the processor's time for it."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def load() -> float:
    """Processes that wanted a core in the last minute, per core: above 1 the machine was busy."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def coverage(problems: int, samples: int, count: int) -> None:
    rng = np.random.default_rng(0)
    c = rng.binomial(samples, rng.beta(0.5, 1.5, size=problems))
    ks = np.unique(np.linspace(1, samples, count).astype(int))
    part = ks[:: max(1, ks.size // 10)]
    mine = coverage_curve(samples, c, ks).mean[np.isin(ks, part)]
    np.testing.assert_allclose(mine, loop_coverage(samples, c.tolist(), part.tolist()), atol=1e-9)
    busy = load()
    ours = cpu_seconds(lambda: coverage_curve(samples, c, ks, resamples=0), repeats=5)
    theirs = cpu_seconds(lambda: loop_coverage(samples, c.tolist(), part.tolist())) * ks.size / part.size
    report(
        "estimators_coverage", f"mean pass@k of {problems} problems x {samples} samples at {ks.size} values of k",
        ours, {"a loop over problems and k": theirs}, unit="processor s", better="lower", packages=("numpy", "scipy"),
        details={
            "with_bootstrap_over_problems_s": cpu_seconds(lambda: coverage_curve(samples, c, ks), repeats=3),
            "loop_scaled_from_k": int(part.size), "load_per_core": busy, "machine_was_busy": busy > 1,
        },
    )  # fmt: skip


def votes(problems: int, samples: int, subsets: int, few: int) -> None:
    rng = np.random.default_rng(1)
    chances = rng.dirichlet(np.full(20, 0.3), size=problems)
    answers = [rng.choice(20, size=samples, p=p).tolist() for p in chances]
    right = [[float(a == 0) for a in group] for group in answers]
    ks = list(range(1, samples + 1))
    scores = [rng.random(samples).tolist() for _ in range(problems)]
    some = answers[:few], [0] * few
    mine = selection_curve("majority", answers[:few], right[:few], ks, subsets=subsets)
    np.testing.assert_allclose(mine.mean, loop_votes(*some, ks, subsets), atol=0.08)
    busy = load()

    def choose(rule: SampleSelectionRule, how: SubsetScheme = "subsets") -> SampleCurve:
        return selection_curve(rule, answers, right, ks, scores, how, subsets)

    ours = cpu_seconds(lambda: choose("majority"), repeats=3)
    theirs = cpu_seconds(lambda: loop_votes(*some, ks, subsets)) * problems / few
    report(
        "estimators_votes",
        f"majority of {problems} problems x {samples} samples, {subsets} random subsets of each of {len(ks)} sizes",
        ours, {"a loop over problems, subsets and k": theirs},
        unit="processor s", better="lower", packages=("numpy", "scipy"),
        details={
            "weighted_s": cpu_seconds(lambda: choose("weighted")), "best_s": cpu_seconds(lambda: choose("best")),
            "exact_majority_s": cpu_seconds(lambda: choose("majority", "exact")),
            "exact_best_s": cpu_seconds(lambda: choose("best", "exact")),
            "loop_scaled_from_problems": few, "load_per_core": busy, "machine_was_busy": busy > 1,
        },
    )  # fmt: skip


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--problems", type=int, default=1000)
    flags.add_argument("--samples", type=int, default=1000, help="of each problem, for coverage")
    flags.add_argument("--k", type=int, default=1000, help="values of k, for coverage")
    flags.add_argument("--votes", type=int, default=64, help="samples of each problem, and sizes, for votes")
    flags.add_argument("--subsets", type=int, default=100)
    flags.add_argument("--loop-problems", type=int, default=10, help="problems that the loop over votes is timed on")
    args = flags.parse_args()
    coverage(args.problems, args.samples, args.k)
    votes(args.problems, args.votes, args.subsets, args.loop_problems)


if __name__ == "__main__":
    main()
