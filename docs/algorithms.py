"""One toy task, every online algorithm: what each makes of the same rewards.

A tiny policy is to write a secret word of five characters, and is told only what share of them is right: whoever finds
out which of the five earned it learns faster. All have one learning rate, sixteen answers to each of six prompts, and
two passes over them (the second is off policy for REINFORCE and RLOO, which have no ratio to correct for it, so this
is not how their papers run them); nothing is tuned, and with three seeds the order of close ones is luck. Steps in a
curve are places that a policy stays stuck in: three of five right, and too sure of the others to try again.

    python docs/algorithms.py                      a quick look: a few steps of each
    python docs/algorithms.py docs/algorithms.png  three seeds of each, and the plot (ten minutes on one core)
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ponder.measure.figures.theme import STYLE, TEXT_COLOUR
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rl import RL
from ponder.protocols import Policy, Scorer, Strategy
from ponder.reason.operators import evaluate, generate
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics
from ponder.train.algorithms import ONLINE
from ponder.train.objective import Critic
from ponder.train.optimizer import AdamW
from ponder.types import Problem, Sampling, Score, Trace, user_messages

SECRET, LETTERS = "50341", "012345"
PLAIN = Sampling(max_tokens=len(SECRET))
ADAM = AdamW(lr=5e-3)


@dataclass(frozen=True)
class Share:
    """How much of the answer is right, place by place."""

    name: str = "share"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self.grade(trace.text(i), str(trace.problem.answer)) for i in steps]

    def grade(self, text: str, wanted: str) -> Score:
        return Score(sum(a == b for a, b in zip(text, wanted, strict=False)) / len(wanted))


@dataclass(frozen=True)
class Word:
    """The same secret whatever is asked."""

    name: str = "word"
    verifier: Share = Share()

    @property
    def train(self) -> Sequence[Problem]:
        return [Problem(letter, user_messages(letter), SECRET) for letter in LETTERS]

    test = train

    def gold(self, problem: Problem) -> str:
        return str(problem.answer)


@dataclass(frozen=True)
class Fork:
    """Eight beginnings of two characters, each of which goes on in two ways: sixteen answers, a tree of outcomes."""

    sampling: Sampling = PLAIN

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        begun = await generate(trace, 0, policy, replace(self.sampling, max_tokens=2), 8)
        rest = replace(self.sampling, max_tokens=len(SECRET) - 2)
        alive = [i for i in begun if trace.steps[i].stop != "eos"]
        await asyncio.gather(*(generate(trace, i, policy, rest, 2) for i in alive))
        if scorer is not None:
            await evaluate(trace, trace.answers(), scorer)


# Without KL, which the toy does not need; ranges and lengths as they suit five characters, not thousands.
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"kl": None, "critic": Critic(optimizer=ADAM)},
    "rloo": {"kl": None},
    "reinforce++": {"kl": None},
    "grpo": {"kl": None},
    "dr-grpo": {"length": len(SECRET)},
    "dapo": {"buffer": 0},
    "gspo": {"clip": 0.1, "clip_high": 0.1},
    "rejection": {"least": 0.4},
}
CREDIT = {  # who is told what: each token, each step, or only each answer, against what
    "per token, by a critic": ("#d1570a", ["ppo"]),
    "per step, by what came of it": ("#8250df", ["tree", "gigpo"]),
    "per answer, against the batch": ("#1a7f37", ["reinforce", "reinforce++"]),
    "per answer, against its group": ("#1f5fbf", ["rloo", "grpo", "dr-grpo", "dapo", "gspo", "cispo"]),
    "the best ones, imitated": ("#8c959f", ["rejection"]),
}


def rewards(name: str, steps: int, seed: int) -> list[float]:
    """Mean reward of each step's samples."""
    strategy: Strategy = Fork() if name == "tree" else Samples(16, PLAIN)
    job = RL(
        Word(),
        ScratchModel(LETTERS, width=32, layers=2, heads=4, context=16, seed=seed),
        "{{- messages[-1].content }}",
        strategy,
        ONLINE[name](**SETTINGS.get(name, {})),
        ADAM,
        steps=steps,
        problems_per_step=6,
        epochs_per_batch=2,
        preflight=False,
        save_every=steps,
        seed=seed,
        device="cpu",
        dtype="float32",
    )
    with tempfile.TemporaryDirectory() as run:
        job(run)
        return [row["reward"] for row in read_metrics(run)]


def draw(path: str, curves: dict[str, np.ndarray], seeds: int) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    window = 9 if len(curves["ppo"]) > 30 else 1
    smooth = {n: np.convolve(r, np.ones(window) / window, "valid") for n, r in curves.items()}
    steps = np.arange(window // 2, window // 2 + len(next(iter(smooth.values()))))
    order = sorted(smooth, key=lambda n: smooth[n][-1])
    heights = np.array([smooth[n][-1] for n in order])
    for _ in range(500):  # push labels apart until none hides another
        close = np.diff(heights) < 0.034
        heights[:-1][close] -= 0.001
        heights[1:][close] += 0.001
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 4.4), layout="constrained")
        axes = figure.subplots()
        for kind, (colour, names) in CREDIT.items():
            for name in names:
                axes.plot(steps, smooth[name], color=colour, lw=1.7, alpha=0.9)
                at, height = smooth[name][-1], heights[order.index(name)]
                axes.plot([steps[-1], steps[-1] + 2.2], [at, height], color=colour, lw=0.7, clip_on=False)
                axes.text(steps[-1] + 2.8, height, name, color=colour, va="center", fontsize=8.5)
            axes.plot([], [], color=colour, lw=2.2, label=kind)
        axes.legend(
            loc="upper left", frameon=False, fontsize=8.5, labelcolor=TEXT_COLOUR, title="credit", alignment="left"
        )
        axes.set_ylim(0, 1.02)
        axes.set_xlim(0, steps[-1])
        axes.grid(axis="y")
        axes.set_xlabel(f"training step (moving mean over {window}, mean of {seeds} seeds)")
        axes.set_title("mean reward: share of a five-character secret", loc="left", fontsize=9, color=TEXT_COLOUR)
        figure.savefig(path, dpi=200, facecolor="white")


def main(path: str | None) -> None:
    steps, seeds = (4, 1) if path is None else (120, 3)
    curves = {}
    for name in ONLINE:
        curves[name] = np.mean([rewards(name, steps, seed) for seed in range(seeds)], axis=0)
        print(f"{name:12} reward {curves[name][0]:.2f} -> {curves[name][-5:].mean():.2f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        draw(path or f"{folder}/algorithms.png", curves, seeds)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
