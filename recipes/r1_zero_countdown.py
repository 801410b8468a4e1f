"""R1-Zero where length pays: countdown, from a base that takes attempts back or from one that does not.

A base model of characters has read attempts, most of them wrong. Primed (Gandhi et al. 2025), it has also read that an
attempt that misses may be taken back, and another one made; plain, it has read single attempts. Then GRPO on the
verifier's reward alone, on puzzles with three and with four numbers. `ponder book r1-zero` compares the two bases.

SmolLM2 reads the same attempts in a short fine-tuning. Results of both models with three seeds: docs/book/r1-zero.md.
"""

from typing import Annotated, Literal

from _bases import Count, Limit, Lr, ModelName, Steps, Validation
from _countdown_traces import PUZZLES, TEMPLATE, ChainCountdown, CountdownTraces, small_model

from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Task
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan
from ponder.train.objective import KL
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

NUMBERS = (3, 4)
PRIMED_BACKTRACKS = 0.5  # an attempt that misses is taken back so often
TINY_KL = 0.2  # without, RL spoils the sums that the attempts are checked by
WARMUP_STEPS = 8  # of RL: Adam's first steps, at the full rate, undo what the base has learned


def recipe(
    model: ModelName = "tiny",
    base: Annotated[Literal["primed", "plain"], "whether the base has read attempts that are taken back"] = "primed",
    max_tokens: Annotated[int, "longest answer", GreaterThan(0)] = 192,
    base_steps: Steps = None, base_lr: Lr = None,
    steps: Annotated[int, "of RL", GreaterThan(0)] = 40, lr: Lr = None,
    problems_per_step: Count = 16, group_size: Count = 16,
    n: Annotated[int, "samples of each held-out problem", GreaterThan(0)] = 16, limit: Limit = 48,
    eval_every: Annotated[int, "steps between measurements on held-out problems", GreaterThan(0)] = 10,
    validation: Annotated[bool, "measure on problems kept out of training, to choose settings"] = False,
    seed: int = 0,
) -> Stages:  # fmt: skip
    tiny = model == "tiny"
    backtracks = PRIMED_BACKTRACKS if base == "primed" else 0.0
    attempts: Task = CountdownTraces(
        numbers=max(NUMBERS), fewest=min(NUMBERS), backtracks=backtracks, checks=base == "primed", **PUZZLES
    )
    base_steps, base_lr = base_steps or (700 if tiny else 60), base_lr or (4e-3 if tiny else 1e-4)
    sampling = Sampling(max_tokens=max_tokens)
    read = FineTune(
        Validation(attempts) if validation else attempts,
        small_model(32 + max(192, max_tokens), seed) if tiny else model, TEMPLATE if tiny else "qa",
        optimizer=AdamW(lr=base_lr, warmup_steps=base_steps // 10, decay_steps=base_steps), steps=base_steps,
        batch_size=64 if tiny else 32, save_every=base_steps, seed=seed,
    )  # fmt: skip
    stages = [Stage("base", read)]
    for numbers in NUMBERS:
        puzzles: Task = ChainCountdown(numbers=numbers, fewest=numbers, **PUZZLES)
        task = Validation(puzzles) if validation else puzzles
        start = Evaluate(task, "stage:base", strategy=Samples(n, sampling), limit=limit, seed=seed, max_concurrency=16)
        zero = RL(
            task, "stage:base", algorithm=GRPO(kl=KL(TINY_KL) if tiny else None), steps=steps,
            problems_per_step=problems_per_step, group_size=group_size, sampling=sampling, save_every=steps, seed=seed,
            eval_every=eval_every, eval_samples=n, eval_limit=limit,
            optimizer=AdamW(lr=lr or (3e-4 if tiny else 3e-5), betas=(0.9, 0.95), warmup_steps=WARMUP_STEPS),
        )  # fmt: skip
        stages += [Stage(f"start-{numbers}", start), Stage(f"zero-{numbers}", zero)]
    return Stages(tuple(stages))
