"""Chain of thought: word problems asked directly, with "Think step by step", and after solved examples with and without
their working; then the same of the model fine-tuned on answers alone and on worked answers. The suite of four
categories has examples of its own, and no fine-tuning. Reads GSM8K, SVAMP and MAWPS (`ponder data`).

`ponder book chain-of-thought` tabulates the accuracy of one sample and of the vote of all.
"""

from dataclasses import replace
from typing import Annotated

from _bases import Count, Lr, MaxTokens, ModelName, StepsAndRate, Template, find_base
from _suite_examples import suite_examples
from _word_problems import FirstProblems, OnlySet, ReadLastNumber, solved_examples

from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Task
from ponder.reason.prompts import Prompt
from ponder.reason.strategies import Samples
from ponder.tasks import GSM8K, MAWPS, SVAMP, Suite
from ponder.tasks.mixture import TaskMixture
from ponder.types import Sampling

DIRECT_TOKENS = 32
SFT_STEPS = 100
SFT_LR = 2e-4


def recipe(
    model: ModelName = "smollm2", template: Template = None, max_tokens: MaxTokens = 256,
    limit: Annotated[Count, "held-out problems of each set, at most"] = 200,
    n: Count = 8, shots: Annotated[Count, "solved examples before the question, from GSM8K's training problems"] = 8,
    temperature: float = 0.7,
    sft_steps: Annotated[int, "of fine-tuning on GSM8K's training problems; 0: none"] = SFT_STEPS, lr: Lr = None,
    seed: int = 0,
) -> Stages:  # fmt: skip
    stages: list[Stage] = []
    tuned: list[Stage] = []
    for style in ("direct", "cot"):
        examples = GSM8K(style=style)
        sets: tuple[Task, ...] = (
            ReadLastNumber(examples),
            ReadLastNumber(SVAMP(style=style)),
            ReadLastNumber(OnlySet(MAWPS(style=style), "multiarith")),
            Suite(style=style),
        )
        every = TaskMixture(tuple(FirstProblems(task, limit) for task in sets))
        worded = TaskMixture(tuple(t for t in every.tasks if t.name != "suite"))  # the examples are word problems
        length = DIRECT_TOKENS if style == "direct" else max_tokens or 256
        alone = Samples(n, Sampling(max_tokens=length, temperature=temperature))
        shown = replace(alone, prompt=Prompt(examples=solved_examples(examples, shots, seed)))
        stages.append(Stage(f"zero.{style}", _job(every, model, template, alone, seed)))
        stages.append(Stage(f"few.{style}", _job(worded, model, template, shown, seed)))
        suite = TaskMixture(tuple(t for t in every.tasks if t.name == "suite"))
        own = replace(alone, prompt=Prompt(examples=suite_examples(Suite(style=style), shots)))
        stages.append(Stage(f"few.{style}.suite", _job(suite, model, template, own, seed)))
        if sft_steps:
            pace = StepsAndRate(sft_steps, lr or SFT_LR)
            base = replace(find_base(model, examples, template=template), cold_start=pace)
            tuned.append(Stage(f"sft-{style}", base.cold_start_job(seed)))
            tuned.append(Stage(f"tuned.{style}", _job(worded, f"stage:sft-{style}", None, alone, seed)))
    return Stages((*stages, *tuned))


def _job(task: Task, model: str, template: str | None, strategy: Samples, seed: int) -> Evaluate:
    return Evaluate(task, model, template, strategy=strategy, max_concurrency=256, seed=seed)
