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

On a given task the prompt is R1's, the rewards are the same, and the model starts as it is. A
task with reward functions of its own has these alone.

The tiny model is no base model: a short imitation stands for all that one has read, and it knows no words, so only
accuracy earns. It shows the loop in minutes.
"""

from dataclasses import replace
from typing import Annotated, Any

from _bases import (
    LIMIT,
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    ModelName,
    Problems,
    Start,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.pipelines.stages import Stage, Stages
from ponder.settings import GreaterThan, When
from ponder.tasks import Sums
from ponder.train.policy_gradient import GRPO

ONE_SHOT_TEMPLATE = """\
{{- 'User: What is 20+15?\\nAssistant: <think> 20+15 is 35. </think> <answer> 35 </answer>\\n' }}
{{- 'User: ' + messages[-1].content + '\\nAssistant: <think>' }}"""
EASY_SUMS: dict[str, Any] = {"terms": 2, "limit": 50, "forms": ("tag",)}  # for a model that has seen no worked answer


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Annotated[Template, "r1, if none is given with a task"] = None,
    max_tokens: Annotated[int | None, "longest answer; None: 40 of the tiny model, 64 for sums, 256", GreaterThan(0)]
    = None, limit: Limit = LIMIT,
    steps: Steps = None, problems_per_step: Problems = None, group_size: Count = 8, lr: Lr = None,
    one_shot: Annotated[
        bool,
        "leave the worked answer out of the prompt of sums",
        When("model", other_than=("tiny",)), When("task", None), When("template", None),
    ] = True,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b, grpo = find_base(model, task, task_settings, template, max_tokens, limit), GRPO(kl=None)
    if model == "tiny":
        stages, first = b.cold_start_stages(seed, start)
        zero = b.rl_job(first, group_size, grpo, seed, steps, lr, problems_per_step=problems_per_step)
        return Stages((*stages, Stage("zero", zero), Stage("accuracy", b.evaluate("stage:zero", seed))))
    if isinstance(b.task, Sums) and task is None:
        easy = {name: value for name, value in EASY_SUMS.items() if name not in task_settings}
        usual = ONE_SHOT_TEMPLATE if one_shot else "r1"
        sampling = replace(b.sampling, max_tokens=max_tokens or 64, stop=("\nUser",))
        b = replace(b, task=replace(b.task, **easy), sampling=sampling)
    else:
        usual = "r1"
    b = replace(b, template=template or usual, model=start or b.model)
    assert isinstance(b.model, str)
    task_rewards = b.with_rewards(format=0.2, language=0.0)
    zero = b.rl_job(
        b.model, group_size, grpo, seed, steps or 60, lr or 3e-5,
        problems_per_step=problems_per_step or 64, task=task_rewards,
    )  # fmt: skip
    stages = [Stage("start-accuracy", b.evaluate(b.model, seed)), Stage("zero", zero)]
    return Stages((*stages, Stage("accuracy", b.evaluate("stage:zero", seed))))
