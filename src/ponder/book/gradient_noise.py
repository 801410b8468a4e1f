"""How noisy is a policy gradient, by baseline and group size?

The gradient of log pi is taken once for each answer of a pool, less its mean over the answers to the same problem: the
policy that is measured draws from the pool, so that everything about it is known exactly. An estimate from a group is
then a sum of these with the group's advantages as weights, and its squared length a quadratic form in their inner
products: the noise of any estimator follows by drawing groups from the pool, thousands of times, without a network.
Shapes: M answers of all problems, P problems, G answers of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ponder.book.figure import (
    COSINE,
    FigureRun,
    SeedData,
    format_interval,
    markdown_table,
    over_seeds,
    paint_seeds,
)
from ponder.book.shared_settings import TINY_START
from ponder.errors import UsageError
from ponder.measure.figures.canvas import FigureWithData, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.models.load import load_policy
from ponder.runs import read_traces
from ponder.train.credit import are_equal, group_relative, leave_one_out
from ponder.train.learner import Learner
from ponder.train.policy_gradient import REINFORCE
from ponder.types import Score, Trace

Floats = NDArray[np.float64]
GROUP_SIZES = (2, 4, 8, 16, 32, 64)
DRAWS = 1000  # of each group size
MAX_GRADIENT_BYTES = 8 << 30  # of gradients that are held at once
ESTIMATORS = {
    "none": "no baseline (REINFORCE)",
    "batch": "mean of the batch (REINFORCE)",
    "loo": "the others of the group (RLOO)",
    "mean": "mean of the group (Dr. GRPO)",
    "grpo": "mean and deviation of the group (GRPO)",
}
REWARD = "reward one"  # a score of 1: the gradient is then that of log pi itself


@dataclass(frozen=True)
class GradientPool:
    """Answers with their rewards, the problem of each, and the inner products of their gradients of log pi, which sum
    to 0 over the answers to a problem."""

    reward_M: Floats
    problem_M: NDArray[np.int64]
    product_MM: Floats


class GradientNoise:
    name = "gradient-noise"
    title = "The noise of policy gradients, by baseline and group size"
    source = (
        "Williams 1992 (a baseline changes the noise, not the expectation); Kool et al. 2019 and Ahmadian et al. 2024,"
        " arXiv:2402.14740 (leave-one-out); Liu et al. 2025, arXiv:2503.20783 (the group's own mean, and its deviation)"
    )
    claim = (
        "Leave-one-out is unbiased at every group size and less noisy than no baseline, more so in larger groups; a"
        " mean that includes the answer itself shrinks the gradient by 1 - 1/G."
    )
    settings = (
        "No setting was chosen by results of this figure: all baselines and group sizes are shown. Draws of a group"
        f" size went from 2,000 to 1,000 before the kept runs. {TINY_START}"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        folder = run.run_recipe("gradient_noise")
        started = (folder / "start").is_dir()  # a language model on a given task starts as it is
        pool = gradient_pool(str(folder / "start") if started else run.model, folder / "sample", run.device)
        if are_equal(pool.reward_M):
            raise UsageError(
                f"every answer of {run.model} has the reward {pool.reward_M[0]:g}: nothing is learned from those, and"
                " there is no gradient whose noise could be measured; give a task that it solves now and then"
            )
        out: dict[str, Any] = {"model": run.model, "seed": run.seed, "draws": DRAWS, "group sizes": list(GROUP_SIZES)}
        out |= {"problems": int(pool.problem_M.max()) + 1, "answers": len(pool.reward_M)}
        out["accuracy"] = round(float(pool.reward_M.mean()), 4)
        out |= answer_lengths(pool)
        for name in ESTIMATORS:
            noise = [measure_noise(pool, name, g, DRAWS, run.seed) for g in GROUP_SIZES]
            out[name] = {"noise": [n.noise for n in noise], "length": [n.length for n in noise]}
            out[name] |= {"cosine": [n.cosine for n in noise]}
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, (kind, label) in zip(panels, (("noise", NOISE_LABEL), ("length", LENGTH_LABEL)), strict=True):
                for i, (name, title) in enumerate(ESTIMATORS.items()):
                    each = [data[name][kind] for data in seeds.values()]
                    mean = [over_seeds([x[k] for x in each])[0] for k in range(len(GROUP_SIZES))]
                    style = {"ls": "--", "ms": 7, "mfc": "none"} if name == "loo" else {"ms": 4}  # equal to the next
                    axes.plot(GROUP_SIZES, mean, color=COLOURS[i], marker=MARKERS[i], label=title, **style)
                    paint_seeds(axes, GROUP_SIZES, each, COLOURS[i])
                    both = zip(GROUP_SIZES, mean, strict=True)
                    rows.extend({"measure": kind, "baseline": title, "group size": g, "value": m} for g, m in both)
                axes.set_xscale("log", base=2)
                axes.set_xticks(GROUP_SIZES, [str(g) for g in GROUP_SIZES])
                axes.set_xlabel("answers of a group, G")
                axes.set_ylabel(label)
            panels[0].set_ylim(bottom=0)
            panels[1].set_ylim(bottom=0)
            panels[0].legend(fontsize=6.5)

        return FigureWithData(make_panels(2, paint, "", size=(4.8, 3.6)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        first = next(iter(seeds.values()))
        shown = (2, 8, 64)
        tables = []
        for kind, label in (
            ("noise", NOISE_LABEL),
            ("length", LENGTH_LABEL),
            ("cosine", "cosine with the true gradient"),
        ):
            rows = []
            for name, title in ESTIMATORS.items():
                each = [data[name][kind] for data in seeds.values()]
                bounds = COSINE if kind == "cosine" else None
                columns = [[x[GROUP_SIZES.index(g)] for x in each] for g in shown]
                rows.append([title, *(format_interval(column, 1, 2, bounds=bounds) for column in columns)])
            tables += [*markdown_table([label, *(f"G = {g}" for g in shown)], rows)]
        return [
            f"{first['answers']:,} answers to {first['problems']} training problems of a policy that is right in"
            f" {', '.join(format(100 * d['accuracy'], '.0f') for d in seeds.values())} % of them (each seed); groups"
            f" are drawn from these {first['draws']:,} times, so that the true gradient is known exactly."
            " Thin lines are the seeds.",
            *tables,
            *self._verdict_lines(seeds),
        ]

    def _verdict_lines(self, seeds: Mapping[int, SeedData]) -> list[str]:
        gain = {
            g: [d["none"]["noise"][k] / d["loo"]["noise"][k] for d in seeds.values()] for k, g in enumerate(GROUP_SIZES)
        }
        unbiased = all(abs(x - 1) < 0.1 for d in seeds.values() for x in d["loo"]["length"])
        less = all(over_seeds([np.log(x) for x in each])[1] > 0 for g, each in gain.items() if g > 2)
        rising = all(d["loo"]["noise"][0] > d["loo"]["noise"][-1] for d in seeds.values())
        shrinks = all(
            abs(x - (1 - 1 / g)) < 0.1
            for d in seeds.values()
            for x, g in zip(d["mean"]["length"], GROUP_SIZES, strict=True)
        )
        cells = "; ".join(f"G = {g}: {format_interval(gain[g], 1, 2)}" for g in (2, 8, 64))
        longer = format_interval([d["wrong by right"] for d in seeds.values()], 1)
        least = format_interval([d["least noisy baseline"] for d in seeds.values()], 1, 2)
        reward = format_interval([d["accuracy"] for d in seeds.values()], 1, 2)
        return [
            f"The squared gradient of a wrong answer is that of a right one times {longer}."
            " Without a baseline wrong answers, whose reward is 0, add nothing, and with one they do. The"
            f" constant baseline of least noise, E[r g^2] / E[g^2], is {least}, where the mean reward is {reward}.",
            "",
            f"**Held?** The noise without a baseline, by that of leave-one-out: {cells}.",
            "",
            f"- leave-one-out is unbiased (its mean is within 10 % of the true gradient's length):"
            f" **{_yes(unbiased)}**",
            f"- it is less noisy than no baseline for every G above 2: **{_yes(less)}**; and per answer less noisy in"
            f" groups of 64 than of 2: **{_yes(rising)}**",
            f"- the group's own mean shrinks the gradient by 1 - 1/G (within 0.1): **{_yes(shrinks)}**",
            "",
        ]


def answer_lengths(pool: GradientPool) -> dict[str, float]:
    """How long the gradients of right and wrong answers are, squared, and the constant baseline of least noise:
    E[r |g|^2] / E[|g|^2] (Greensmith et al. 2004)."""
    square_M = np.diag(pool.product_MM)
    means = {kind: float(square_M[pool.reward_M == r].mean()) for kind, r in (("right", 1.0), ("wrong", 0.0))}
    best = float((pool.reward_M * square_M).sum() / square_M.sum())
    return {"wrong by right": round(means["wrong"] / means["right"], 3), "least noisy baseline": round(best, 4)}


NOISE_LABEL = "noise per answer, by the true gradient's length"
LENGTH_LABEL = "length of the mean, by the true gradient's"


def _yes(held: bool) -> str:
    return "yes" if held else "no"


@dataclass(frozen=True)
class GradientStatistics:
    noise: float  # sqrt(P G tr Cov) / |true gradient| of the estimator, scaled to the true gradient's length
    length: float  # projection of the mean estimate on the true gradient, by its length
    cosine: float  # between the mean estimate and the true gradient


def measure_noise(pool: GradientPool, estimator: str, group_size: int, draws: int, seed: int) -> GradientStatistics:
    """Draw groups of every problem from the pool, with replacement, and measure the estimates.

    The true gradient is that of the expected reward when answers are drawn from the pool: no baseline, all answers.
    """
    rng = np.random.default_rng([seed, group_size])
    members = [np.flatnonzero(pool.problem_M == p) for p in range(int(pool.problem_M.max()) + 1)]
    true_M = np.concatenate([pool.reward_M[m] / len(m) for m in members])[np.argsort(np.concatenate(members))]
    true_M = true_M / len(members)
    product = pool.product_MM
    true_square = float(true_M @ product @ true_M)
    weight_DM = np.zeros((draws, len(true_M)))  # D draws
    for weight_M in weight_DM:
        drawn = [rng.choice(m, group_size) for m in members]
        for own, advantage in zip(drawn, advantages(estimator, [pool.reward_M[i] for i in drawn]), strict=True):
            np.add.at(weight_M, own, advantage / (group_size * len(members)))
    mean_M = weight_DM.mean(0)
    square = float(((weight_DM @ product) * weight_DM).sum(1).mean())
    mean_square = float(mean_M @ product @ mean_M)
    length = float(mean_M @ product @ true_M) / true_square
    covariance = max(0.0, square - mean_square) * draws / max(1, draws - 1)
    noise = np.sqrt(covariance * group_size * len(members) / true_square) / max(abs(length), 1e-9)
    cosine = float(mean_M @ product @ true_M) / np.sqrt(max(mean_square * true_square, 1e-300))
    return GradientStatistics(round(float(noise), 4), round(length, 4), round(float(cosine), 4))


def advantages(estimator: str, rewards: Sequence[Floats]) -> list[Floats]:
    """The advantage of each answer of each group."""
    match estimator:
        case "none":
            return list(rewards)
        case "batch":
            mean = float(np.concatenate(rewards).mean())
            return [group - mean for group in rewards]
        case "loo":
            return [leave_one_out(group.tolist()) for group in rewards]
        case "mean":
            return [group_relative(group.tolist(), divide_by_std=False) for group in rewards]
        case _:
            return [group_relative(group.tolist()) for group in rewards]


def gradient_pool(model: str, samples: Path, device: str = "auto", max_bytes: int = MAX_GRADIENT_BYTES) -> GradientPool:
    """The gradient of log pi of every answer of a run, and their inner products; equal answers are computed once."""
    policy = load_policy(model, device=device, dtype="float32")
    learner = Learner(policy.net, REINFORCE(baseline="none"))
    rewards: list[float] = []
    problems: list[int] = []
    rows: list[int] = []
    distinct: list[tuple[Trace, int]] = []
    for number, (_, trace) in enumerate(read_traces(samples)):
        name = next(iter(trace.steps[trace.answers()[0]].scores))
        seen: dict[bytes, int] = {}
        for leaf in trace.answers():
            key = trace.steps[leaf].token_ids.tobytes()
            if key not in seen:
                seen[key] = len(distinct)
                distinct.append((trace, leaf))
            rewards.append(float(trace.score(leaf, name) or 0.0))
            problems.append(number)
            rows.append(seen[key])
    weights = sum(p.numel() for p in policy.net.parameters())
    product_DD = inner_products(
        lambda at: answer_gradient(learner, *distinct[at]), len(distinct), max(1, max_bytes // (4 * weights))
    )
    return center_pool(GradientPool(np.array(rewards), np.array(problems), product_DD[np.ix_(rows, rows)]))


def inner_products(gradient: Callable[[int], torch.Tensor], count: int, kept: int) -> Floats:
    """Of so many gradients with each other. At most `kept` of them are held at once: where there are more, those of
    later ones are computed again for each block."""
    product_DD = np.zeros((count, count))
    for begin in range(0, count, kept):
        block = slice(begin, min(begin + kept, count))
        grad_BW = torch.stack([gradient(at) for at in range(block.start, block.stop)])
        product_DD[block, block] = (grad_BW @ grad_BW.T).double().cpu().numpy()
        for later in range(block.stop, count):
            product_DD[block, later] = product_DD[later, block] = (grad_BW @ gradient(later)).double().cpu().numpy()
    return product_DD


def center_pool(pool: GradientPool) -> GradientPool:
    """The same with each gradient less the mean of its problem: the gradient of log p of a draw from the pool."""
    same_MM = pool.problem_M[:, None] == pool.problem_M[None]
    center_MM = np.eye(len(same_MM)) - same_MM / same_MM.sum(1, keepdims=True)
    return replace(pool, product_MM=center_MM @ pool.product_MM @ center_MM.T)


def answer_gradient(learner: Learner, trace: Trace, leaf: int) -> torch.Tensor:
    """The gradient of log pi of one answer, all parameters in a row."""
    alone = Trace(trace.problem, [replace(trace.steps[0])])
    step = replace(trace.steps[leaf], parent=0, scores={REWARD: Score(1.0)}, notes={}, advantages=None)
    alone.add(step)
    learner.objective.credit([alone], REWARD, {})
    gradient = learner.gradient([alone])
    return -torch.cat([gradient[name].flatten().float() for name in sorted(gradient)])  # of log pi, not of the loss


FIGURE = GradientNoise()
