"""DPO in rounds: pairs of correct and wrong answers of the newest model to the same problem, DPO, and again.

With `--nll` correct answers are imitated a little, too (Pang et al. 2024, arXiv 2404.19733): DPO alone may make both
less likely. With `--by search` the pairs are siblings in search trees: steps after the same prefix, of which one led
to more correct answers (Xie et al. 2024, arXiv 2405.00451).

Results with three seeds, hardware and time: docs/results.md.
"""

from dataclasses import replace
from typing import Annotated, Literal

from _bases import (
    LIMIT,
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    Problems,
    Start,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.pipelines.harvest import Harvest
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.settings import When


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    by: Literal["samples", "search"] = "samples", rounds: Count = 2,
    problems: Problems = None,
    n: Annotated[Count, When("by", "samples")] = 8, simulations: Annotated[Count, When("by", "search")] = 16,
    steps: Steps = None, beta: float | None = None, nll: float | None = None, lr: Lr = None, start: Start = None,
    seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, newest = b.cold_start_stages(seed, start)
    given = {name: value for name, value in (("beta", beta), ("nll_weight", nll)) if value is not None}
    problems = problems or b.answer_budget // (rounds * (n if by == "samples" else simulations))
    way, guide, what = Samples(n, b.sampling), "", "pairs"
    if by == "search":
        way, guide, what = b.mcts(simulations, rollouts=1), "oracle", "siblings"
    for k in range(1, rounds + 1):
        pairs, dpo = f"stage:pairs-{k}/data.jsonl", replace(b.dpo_objective, **given)
        stages += [
            Stage(f"sample-{k}", b.collect(newest, way, problems, seed, (k - 1) * problems, guide)),
            Stage(f"pairs-{k}", Harvest((f"stage:sample-{k}",), what, max_per_problem=4)),
            Stage(f"prefer-{k}", b.fine_tune(pairs, newest, seed, steps, lr, algorithm=dpo, batch_size=128)),
            Stage(f"accuracy-{k}", b.evaluate(f"stage:prefer-{k}", seed)),
        ]
        newest = f"stage:prefer-{k}"
    return Stages(tuple(stages))
