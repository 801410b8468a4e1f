"""R1-Zero: reinforcement learning from the base model, on accuracy and format rewards alone.

No training on worked answers: thinking is to stand inside <think> and the answer inside <answer>; a right number earns
1, the form 0.2. Response length, words of doubt and the share of text in the question's language are kept in the
metrics; `ponder reflect RUN` shows the first answers in which the model takes back what it said.

SmolLM2 adds two numbers below 50. It is too small for the words of R1's template to mean much: one worked answer in
the prompt shows it the form, which it then keeps in one of five answers; `--no-one-shot` leaves that out. Measured once
(seed 0) on two Neoverse-N1 class cores, `--steps 12 --problems-per-step 16 --max-tokens 40 --limit 100`,
13 minutes: right answers to 100 held-out problems 6 % [4, 9] before, 59 % [51, 68] after. The form is learned in two
steps, the sums with it; answers get shorter, not longer, and the few words of doubt go: so small a model has nothing to
think about here. With R1's own template, 256 tokens and sums of three numbers below 100, not one of 4,096 answers was
right.

The tiny model is no base model: a short imitation stands for all that one has read, and it knows no words, so only
accuracy earns. It shows the loop in minutes.
"""

from dataclasses import replace
from typing import Annotated

from _bases import BaseModelName, Count, Lr, Problems, Start, Steps, find_base

from ponder.pipelines.stages import Stage, Stages
from ponder.settings import GreaterThan, When
from ponder.tasks.mixture import WeightedRewardTask
from ponder.train.policy_gradient import GRPO

ONE_SHOT_TEMPLATE = """\
{{- 'User: What is 20+15?\\nAssistant: <think> 20+15 is 35. </think> <answer> 35 </answer>\\n' }}
{{- 'User: ' + messages[-1].content + '\\nAssistant: <think>' }}"""


def recipe(
    base_model: BaseModelName = "tiny", steps: Steps = None, problems_per_step: Problems = None, group_size: Count = 8,
    max_tokens: Annotated[int | None, "longest answer; None: 40 of the tiny model, 64 of others", GreaterThan(0)]
    = None,
    lr: Lr = None,
    one_shot: Annotated[
        bool, "leave the worked answer out of SmolLM2's prompt", When("base_model", other_than=("tiny",))
    ] = True,
    limit: Annotated[int, "held-out problems to measure on", GreaterThan(0)] = 300, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b, grpo = find_base(base_model), GRPO(kl=None)
    most = max_tokens or (b.sampling.max_tokens if base_model == "tiny" else 64)
    b = replace(b, task=replace(b.task, test_size=limit), sampling=replace(b.sampling, max_tokens=most))
    if base_model == "tiny":
        stages, first = b.cold_start_stages(seed, start)
        zero = b.rl_job(first, group_size, grpo, seed, steps, lr, problems_per_step=problems_per_step)
    else:
        task = replace(b.task, terms=2, limit=50, forms=("tag",))
        b = replace(
            b,
            task=task,
            template=ONE_SHOT_TEMPLATE if one_shot else "r1",
            sampling=replace(b.sampling, stop=("\nUser",)),
        )
        first = start or b.model
        stages = [Stage("start-accuracy", replace(b.evaluate(first, seed), template=b.template))]
        rewards = ((b.task.verifier.name, 1.0), ("format", 0.2), ("language", 0.0))
        zero = b.rl_job(
            first,
            group_size,
            grpo,
            seed,
            steps or 60,
            lr or 3e-5,
            problems_per_step=problems_per_step or 64,
            task=WeightedRewardTask(b.task, rewards),
        )
    return Stages((*stages, Stage("zero", zero), Stage("accuracy", b.evaluate("stage:zero", seed))))
