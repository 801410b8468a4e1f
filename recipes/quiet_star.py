"""Quiet-STaR at a small scale: a model learns to think before the next tokens of a text, from the text alone.

The base model has read sums of last digits, half of them worked out (`3*7+5:16;=6`), half plain (`3*7+5=6`). It then
reads plain ones only, and before each answer it samples two thoughts between marks that begin as copies of `:` and `;`.
A head mixes what it predicts with the thought and without; a thought that predicted the answer better than the other is
made likelier (Zelikman et al. 2024, arXiv:2403.09629; here once before an answer and not after every token).

quiet           thoughts, learned by REINFORCE
untaught        thoughts, which only the text's likelihood reaches (beta 0)
without         the same texts, no thoughts; `without-longer` reads `more` times as many of them
unread          as quiet, with marks that mean nothing yet: can it find working by itself?

Measured with seeds 0, 1 and 2 (some six minutes each on one busy Neoverse-N1 class core), on 500 held-out plain
problems: answers of which every token is the likeliest, and nats a token, with one sampled thought where there are any.

    seed            0                  1                  2                  nats, by seed
    quiet           92.6 % [90, 95]    32.6 % [28, 37]    98.4 % [97, 99]    0.13, 0.50, 0.04
    untaught        62.4 % [58, 67]    23.8 % [20, 28]    77.8 % [74, 81]    0.39, 0.53, 0.29
    without         17.8 % [15, 21]    20.8 % [17, 24]    20.4 % [17, 24]    0.53, 0.54, 0.58
    without-longer  23.0 % [19, 27]    23.2 % [20, 27]    20.0 % [17, 24]    0.52, 0.52, 0.53
    unread          17.4 % [14, 21]    21.6 % [18, 25]    21.8 % [18, 25]    0.54, 0.54, 0.57

Thoughts help as far as the base can work things out: of its samples, 93 %, 28 % and 99 % of the workings were right
before (seed 1 broke off too early). REINFORCE keeps them right, and makes them little better; without it they are
forgotten. From marks that mean nothing, thinking is not found in so short a time.
"""

from typing import Annotated

from _last_digits import TEMPLATE, LastDigits

from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.quiet_star import QuietStar
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.tasks.mixture import TaskMixture
from ponder.train.optimizer import AdamW


def recipe(
    operations: int = 3, base_steps: int = 1000, steps: int = 200, thoughts: int = 2, batch: int = 32,
    lr: float = 5e-4, more: Annotated[int, "times as many texts for the longest run without thoughts"] = 4,
    seed: int = 0,
) -> Stages:  # fmt: skip
    plain, worked = LastDigits(operations, test_size=500), LastDigits(operations, "worked")
    base = FineTune(
        TaskMixture((worked, plain)), ScratchModel("0123456789+*=:;[]", width=64, layers=2, context=48, seed=seed),
        TEMPLATE,
        optimizer=AdamW(lr=3e-3, warmup_steps=50, decay_steps=base_steps), steps=base_steps, batch_size=64,
        save_every=base_steps,
        seed=seed,
    )  # fmt: skip

    def job(steps: int, thoughts: int, beta: float = 1.0, like: tuple[str, str] | None = (":", ";")) -> QuietStar:
        return QuietStar(
            plain, "stage:base", thought_tokens_like=like, num_thoughts=thoughts, max_thought_tokens=operations,
            at_every_token=False, beta=beta, steps=steps,
            batch_size=batch, optimizer=AdamW(lr=lr, warmup_steps=20, decay_steps=steps), save_every=steps, seed=seed,
        )  # fmt: skip

    return Stages(
        (
            Stage("base", base),
            Stage("quiet", job(steps, thoughts)),
            Stage("untaught", job(steps, thoughts, beta=0.0)),
            Stage("without", job(steps, 0)),
            Stage("without-longer", job(steps * more, 0)),
            Stage("unread", job(steps, thoughts, like=None)),
        )
    )
