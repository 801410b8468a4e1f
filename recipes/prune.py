"""A smaller model of the same family: layers or neurons are left out of a trained one, and the rest learns to write as
the whole did.

The model answers training problems. On these texts each layer's influence is measured (1 - cos of its input and output;
Men et al. 2024, arXiv:2403.03853), and with `--mlp-width` the activations of the MLPs' neurons (Muralidharan et al.
2024, arXiv:2407.14679). What matters least is left out. Then the rest is healed: it learns the whole model's
distribution over the same answers, right or wrong. `RUN/healed` is the model; `RUN/pruned/model` the same before it
was healed.

With `--more-tasks` the model answers problems of several tasks.
"""

from dataclasses import replace
from typing import Annotated

from _bases import (
    LIMIT,
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    Problems,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.cli.named_objects import build_task
from ponder.cli.plan_ranks import model_config
from ponder.errors import UsageError
from ponder.nets.prune import LayerRule
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.prune import MODEL_FOLDER, Prune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan
from ponder.tasks.mixture import TaskMixture
from ponder.train.distill import Distill
from ponder.train.optimizer import AdamW

WARMUP_SHARE = 20  # a twentieth of the steps


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    more_tasks: Annotated[tuple[str, ...], "tasks whose training problems are answered, too"] = (),
    layers: Annotated[
        int | None, "to keep; None: all where the MLPs become narrower, else half of them", GreaterThan(0)
    ] = None,
    mlp_width: Annotated[int | None, "neurons of each MLP to keep; None: all", GreaterThan(0)] = None,
    keep: Annotated[LayerRule, "the layers of most influence, or evenly spaced ones"] = "influence",
    problems: Problems = None, n: Count = 4, steps: Steps = None, lr: Lr = None,
    batch_size: Annotated[int, "answers per step", GreaterThan(0)] = 64, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, whole = b.cold_start_stages(seed, None)
    if more_tasks and task is None:
        raise UsageError("--more-tasks stand beside --task: give that too")
    every = (b.task, *(build_task(name, {}, "more-tasks") for name in more_tasks))
    asked = replace(b, task=TaskMixture(every)) if more_tasks else b
    steps = steps or 4 * b.sft.steps
    pace = AdamW(lr=lr or 5 * b.sft.lr, warmup_steps=max(1, steps // WARMUP_SHARE), decay_steps=steps)
    less = f"stage:pruned/{MODEL_FOLDER}"
    distill = {"algorithm": Distill(), "teacher": whole, "batch_size": batch_size}
    heal = replace(b.fine_tune("stage:lessons/data.jsonl", less, seed, steps, None, **distill), optimizer=pace)
    pruned = Prune(("stage:answers",), whole, layers, mlp_width, keep, seed=seed)
    if layers is not None or mlp_width is not None:
        pruned.check_sizes(model_config(b.model))  # before any answer is sampled
    stages += [
        Stage("answers", asked.collect(whole, Samples(n, b.sampling), problems or b.answer_budget // n, seed)),
        # every answer, right or wrong
        Stage("lessons", Harvest(("stage:answers",), min_score=0.0, max_per_problem=n, tokenizer=whole)),
        Stage("pruned", pruned),
        Stage("pruned-accuracy", replace(b.evaluate(less, seed), template=b.template)),
        Stage("healed", heal),
        Stage("healed-accuracy", b.evaluate("stage:healed", seed)),
    ]
    return Stages(tuple(stages))
