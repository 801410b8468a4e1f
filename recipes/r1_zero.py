"""R1-Zero: reinforcement learning from the base model, on accuracy and format rewards alone.

No worked answers: the R1 template asks for thinking inside <think> and the answer inside <answer>, a right number earns
1 and the form 0.2. Response length, words of doubt and the share of text in the question's language are kept in the
metrics; `ponder reflect RUN` shows the first answers in which the model takes back what it said.

The tiny model is no base model: a short imitation stands for all that one has read, and it knows no words, so only
accuracy earns. It shows the loop in minutes; the rest is meant for SmolLM2 on a GPU.
"""

from dataclasses import replace

from _bases import Lr, On, Problems, Start, Steps, base

from ponder.pipelines.stages import Stage, Stages
from ponder.tasks.mixed import Shaped
from ponder.train.objective import NO_KL
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling


def recipe(
    on: On = "tiny", steps: Steps = None, prompts: Problems = None, n: int = 8, max_tokens: int = 256, lr: Lr = None,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b, grpo = base(on), GRPO(kl=NO_KL)
    if on == "tiny":
        stages, first = b.begin(seed, start)
        zero = b.reinforce(first, n, grpo, seed, steps, lr, prompts=prompts)
    else:
        b = replace(b, task=replace(b.task, forms=("tag",)), template="r1", draw=Sampling(max_tokens=max_tokens))
        first = start or b.model
        stages = [Stage("start-accuracy", replace(b.measure(first, seed), template=b.template))]
        rewards = ((b.task.verifier.name, 1.0), ("format", 0.2), ("language", 0.0))
        task, prompts = Shaped(b.task, rewards), prompts or 64
        zero = b.reinforce(first, n, grpo, seed, steps or 200, lr or 2e-5, prompts=prompts, task=task)
    return Stages((*stages, Stage("zero", zero), Stage("accuracy", b.measure("stage:zero", seed))))
