"""R1-Zero where length pays: countdown, from a base that takes attempts back or from one that does not.

A base model of characters has read attempts drawn at random, with no eye to which are right. Primed (Gandhi et al.
2025), it has also read that an attempt that misses may be taken back, and another one made; plain, it has read single
attempts. Then GRPO on the verifier's reward alone. `ponder book r1-zero` compares the two, with three and four numbers.

SmolLM2 reads the same attempts in a short fine-tuning.
"""

from dataclasses import replace
from typing import Annotated, Literal

from _bases import Count, Limit, Lr, Steps, StepsAndRate, Validation
from _countdown_traces import ALPHABET, PUZZLES, TEMPLATE, CountdownTraces

from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Task
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan
from ponder.tasks import Countdown
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

PRIMED_BACKTRACKS = 0.5  # an attempt that misses is taken back so often


def recipe(
    model: Annotated[str, "tiny, smollm2, a Hugging Face folder or hub name, or a run directory"] = "tiny",
    base: Annotated[Literal["primed", "plain"], "whether the base has read attempts that are taken back"] = "primed",
    numbers: Annotated[int, "of a puzzle", GreaterThan(1)] = 3,
    max_tokens: Annotated[int, "longest answer", GreaterThan(0)] = 320,
    base_steps: Steps = None, base_lr: Lr = None,
    steps: Annotated[int, "of RL", GreaterThan(0)] = 60, lr: Lr = None,
    problems_per_step: Count = 32, group_size: Count = 16,
    n: Annotated[int, "samples of each held-out problem", GreaterThan(0)] = 16, limit: Limit = 96,
    eval_every: Annotated[int, "steps between measurements on held-out problems", GreaterThan(0)] = 10,
    validation: Annotated[bool, "measure on problems kept out of training, to choose settings"] = False,
    seed: int = 0,
) -> Stages:  # fmt: skip
    tiny = model == "tiny"
    backtracks = PRIMED_BACKTRACKS if base == "primed" else 0.0
    attempts: Task = CountdownTraces(numbers=numbers, backtracks=backtracks, **PUZZLES)
    puzzles: Task = Countdown(numbers=numbers, **PUZZLES)
    if validation:
        attempts, puzzles = Validation(attempts), Validation(puzzles)
    reading = StepsAndRate(600, 2e-3) if tiny else StepsAndRate(60, 1e-4)
    reading = replace(reading, steps=base_steps or reading.steps, lr=base_lr or reading.lr)
    scratch = ScratchModel(ALPHABET, width=128, layers=4, context=64 + max(256, max_tokens), seed=seed)
    sampling = Sampling(max_tokens=max_tokens)
    read = FineTune(
        attempts, scratch if tiny else model, TEMPLATE if tiny else "qa",
        optimizer=AdamW(lr=reading.lr, warmup_steps=reading.steps // 10, decay_steps=reading.steps),
        steps=reading.steps, batch_size=128 if tiny else 32, save_every=reading.steps, seed=seed,
    )  # fmt: skip
    zero = RL(
        puzzles, "stage:base", algorithm=GRPO(kl=None), steps=steps, problems_per_step=problems_per_step,
        group_size=group_size, sampling=sampling, save_every=steps, seed=seed, eval_every=eval_every,
        eval_samples=n, eval_limit=limit, optimizer=AdamW(lr=lr or (3e-4 if tiny else 1e-5), betas=(0.9, 0.95)),
    )  # fmt: skip
    start = Evaluate(puzzles, "stage:base", strategy=Samples(n, sampling), limit=limit, seed=seed, max_concurrency=32)
    return Stages((Stage("base", read), Stage("start", start), Stage("zero", zero)))
