"""SmolLM2-135M-Instruct learns two-digit addition by GRPO from a verifiable reward alone; `make demo` runs this.

No worked examples, no format reward, no KL: the reward is 1 if the final number is correct, else 0.
Each step asks 64 questions four times; the upper 18 of 30 layers learn.

Greedy accuracy on 372 held-out problems: 40.9 % before; 79.8, 80.1 and 83.3 % after
(seeds 0, 1, 2), in 588 to 597 s of processor time on one Neoverse-N1 thread (demo_training_accuracy in bench/results).
The settings were chosen by accuracy on 650 other held-out problems (demo_settings there): docs/demo.md.

float32 is the default on every device: with an earlier prompt (seeds 0, 1, 2, one H200) it gave 76.7, 77.0 and 75.0 %,
bfloat16 68.3, 76.7 and 69.7 %, where rewards rise some five steps later. A step of 6e-5 is less than half of bfloat16's
spacing for weights above 1/64, so these do not move at once.
"""

from typing import Annotated

from ponder.pipelines.rl import RL
from ponder.tasks import Addition
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

# As measured: these forms and no others earn a reward.
FORMS = ("bare", "boxed", "tag", "hash", "line")
# An answer is one line: what would follow earns nothing, and costs most of the tokens.
STOP = ("\n",)
# The prompt as it is, and the space before the answer: SmolLM2 has a token for it, which every answer would begin with.
TEMPLATE = "{% for message in messages %}{{ message.content + ' ' }}{% endfor %}"


def recipe(
    digits: int = 2,
    steps: int = 33,
    problems_per_step: int = 64,
    group_size: int = 4,
    lr: float = 5e-5,
    max_tokens: Annotated[int | None, "of an answer; None: what a sum, the end of its line and one more take"] = None,
    frozen_layers: int = 12,
    seed: int = 0,
    model: str = "smollm2",
    device: str = "auto",
    dtype: str = "float32",
) -> RL:
    return RL(
        task=Addition(digits=digits, prompt="Addition: {a} + {b} =", forms=FORMS),
        model=model,
        template=TEMPLATE,
        group_size=group_size,
        sampling=Sampling(max_tokens=digits + 3 if max_tokens is None else max_tokens, stop=STOP),
        algorithm=GRPO(kl=None),
        optimizer=AdamW(lr=lr, betas=(0.9, 0.95), decay_steps=steps),
        steps=steps,
        problems_per_step=problems_per_step,
        frozen_layers=frozen_layers,
        save_every=33,
        seed=seed,
        device=device,
        dtype=dtype,
    )
