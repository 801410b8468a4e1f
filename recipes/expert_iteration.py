"""Expert iteration: MCTS with the policy and a value model, both trained on the results of the search, and again.

In training the gold answer scores the ends of rollouts (guide `oracle`); at test time the value model guides the search
(Besta et al. 2025; Silver et al. 2018). With `--by value` the value model replaces rollouts in training too, from the
second round on. With `--by sampling` there is no search and no value model, but independent samples of about as many
tokens: the difference is what the search adds.

Results with three seeds, hardware and time: docs/results.md.
"""

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
from ponder.train.reward_objectives import StateValue


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    by: Literal["search", "value", "sampling"] = "search", rounds: Count = 2,
    problems: Problems = None, simulations: Annotated[Count, When("by", "search", "value")] = 16,
    n: Annotated[Count, When("by", "sampling")] = 8, steps: Steps = None, lr: Lr = None, start: Start = None,
    seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, newest = b.cold_start_stages(seed, start)
    problems = problems or b.answer_budget // (2 * rounds * n)  # searches take their time
    search, guided = b.mcts(simulations, rollouts=1), b.mcts(simulations)
    for k in range(1, rounds + 1):
        way, guide = (search, "oracle") if by != "sampling" else (Samples(n, b.sampling), "")
        if by == "value" and k > 1:
            way, guide = guided, f"oracle+reward:stage:value-{k - 1}"
        stages += [
            Stage(f"sample-{k}", b.collect(newest, way, problems, seed, (k - 1) * problems, guide)),
            Stage(f"harvest-{k}", Harvest((f"stage:sample-{k}",), "chains", max_per_problem=4, tokenizer=newest)),
            Stage(f"tune-{k}", b.fine_tune(f"stage:harvest-{k}/data.jsonl", newest, seed, steps, lr)),
            Stage(f"accuracy-{k}", b.evaluate(f"stage:tune-{k}", seed)),
        ]
        if by != "sampling":
            think = {"guide": f"reward:stage:value-{k}", "limit": min(100, limit)}
            stages += [
                Stage(f"values-{k}", Harvest((f"stage:sample-{k}",), "values", include_oracle=True)),
                Stage(
                    f"value-{k}",
                    b.train_reward_model(f"stage:values-{k}/data.jsonl", f"stage:tune-{k}", StateValue(), seed, steps),
                ),
                Stage(f"search-accuracy-{k}", b.evaluate_with(guided, f"stage:tune-{k}", seed, **think)),
            ]
        newest = f"stage:tune-{k}"
    return Stages(tuple(stages))
