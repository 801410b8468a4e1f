"""A tiny transformer from scratch on two-number countdown: cold-start SFT on solved puzzles, then GRPO lifts it.

`13, 4 > 52 =` is answered by `#### 13 * 4`. Fine-tuning teaches the notation and to copy the numbers; RL has to
learn which operation reaches the target.

Measured once (seed 0) on two Neoverse-N1 class cores in float32: right answers when sampling at temperature 1, on 300
held-out puzzles, 43.8 % [40.8, 46.8] after imitation and 62.0 % [58.0, 65.8] after GRPO, in 2 min 56 s.
Greedy accuracy did not rise (80.7 % and 78.0 % in a similar run), and neither did
the share solved in eight tries (86.0 % and 80.7 %).
"""

from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.tasks import Countdown
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

ALPHABET = "0123456789+-*/()#, >="
TEMPLATE = "{{ bos_token }}{{ messages[-1].content }}"


def recipe(
    numbers: int = 2,
    largest: int = 99,
    highest: int = 9801,
    width: int = 128,
    layers: int = 3,
    sft_steps: int = 180,
    rl_steps: int = 120,
    batch: int = 64,
    problems_per_step: int = 32,
    group_size: int = 8,
    sft_lr: float = 1e-3,
    rl_lr: float = 8e-5,
    seed: int = 0,
) -> Stages:
    asked = "{numbers} > {target} ="
    task = Countdown(numbers=numbers, largest=largest, highest=highest, prompt=asked, forms=("hash",))
    budget = Sampling(max_tokens=24)
    evaluation = {"task": task, "strategy": Samples(n=8, sampling=budget), "seed": seed}
    sft = FineTune(
        data=task,
        model=ScratchModel(ALPHABET, width=width, layers=layers, context=64, seed=seed),
        template=TEMPLATE,
        optimizer=AdamW(lr=sft_lr, warmup_steps=20, decay_steps=sft_steps),
        steps=sft_steps,
        batch_size=batch,
        save_every=sft_steps,
        seed=seed,
    )
    rl = RL(
        task=task,
        model="stage:sft",
        group_size=group_size,
        sampling=budget,
        algorithm=GRPO(kl=None),
        optimizer=AdamW(lr=rl_lr, betas=(0.9, 0.95)),
        steps=rl_steps,
        problems_per_step=problems_per_step,
        save_every=rl_steps,
        seed=seed,
    )
    return Stages(
        (
            Stage("sft", sft),
            Stage("sft-accuracy", Evaluate(model="stage:sft", **evaluation)),
            Stage("rl", rl),
            Stage("rl-accuracy", Evaluate(model="stage:rl", **evaluation)),
        )
    )
