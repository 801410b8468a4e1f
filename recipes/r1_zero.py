"""R1-Zero: reinforcement learning from the base model, on accuracy and format rewards alone.

No worked answers: the R1 template asks for thinking inside <think> and the answer inside <answer>, a right number earns
1 and the form 0.2. Response length, words of doubt and the share of text in the question's language are kept in the
metrics; `ponder reflect RUN` shows the first answers in which the model takes back what it said.

Meant for SmolLM2 on a GPU; `--steps 2 --prompts 2 --n 2 --max-tokens 16` shows that it runs anywhere.
"""

from ponder.pipelines.rl import RL
from ponder.reason.strategies import Ensemble
from ponder.tasks import Sums
from ponder.tasks.mixed import Shaped
from ponder.train.objective import NO_KL
from ponder.train.optimiser import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling


def recipe(
    terms: int = 3,
    steps: int = 200,
    prompts: int = 64,
    n: int = 16,
    max_tokens: int = 256,
    lr: float = 2e-5,
    seed: int = 0,
    model: str = "smollm2",
    device: str = "auto",
    dtype: str = "auto",
) -> RL:
    task = Sums(terms=terms, prompt="What is {sum}?", forms=("tag",))
    rewards = ((task.verifier.name, 1.0), ("format", 0.2), ("language", 0.0))
    return RL(
        task=Shaped(task, rewards),
        model=model,
        template="r1",
        strategy=Ensemble(n, Sampling(max_tokens=max_tokens)),
        objective=GRPO(kl=NO_KL),
        optimiser=AdamW(lr=lr, betas=(0.9, 0.95)),
        steps=steps,
        prompts=prompts,
        seed=seed,
        device=device,
        dtype=dtype,
    )
