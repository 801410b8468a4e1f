"""Verifiers compared: which chooses best of N answers, majority vote, an outcome or a process reward model?

Both reward models learn from samples of training problems, of about as many tokens: the outcome model from the
correctness of answers, the process model from how often continuations of a step are correct (Math-Shepherd's labels).
Each then scores `n` answers to each held-out problem; its choices among fewer answers follow from the same scores.

Results with three seeds, hardware and time: docs/results.md.
"""

from _bases import (
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

from ponder.pipelines.label import Label
from ponder.pipelines.rewards.step_labelling import MathShepherd
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import BestOfN, Samples
from ponder.train.reward_objectives import OutcomeReward, ProcessReward


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 128,
    problems: Problems = None, samples: Count = 4, completions: Count = 4,
    outcomes: Problems = None,
    n: Count = 64, steps: Steps = None, lr: Lr = None, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    problems, outcomes = problems or b.answer_budget // 128, outcomes or b.answer_budget // (4 * samples)
    rule = MathShepherd(max_completions=completions, sampling=b.sampling)
    best = BestOfN(n, sampling=b.sampling)
    stages += [
        Stage("outcomes", b.collect(first, Samples(2 * samples, b.sampling), outcomes, seed)),
        Stage("sample", b.collect(first, Samples(samples, b.sampling), problems, seed)),
        Stage(
            "label",
            Label(
                b.task,
                first,
                b.template_of(first),
                data=("stage:sample",),
                labeller=rule,
                limit=problems,
                max_concurrency=256,
                seed=seed,
            ),
        ),
        Stage("orm", b.train_reward_model("stage:outcomes", first, OutcomeReward(), seed, steps, lr)),
        Stage("prm", b.train_reward_model("stage:label", first, ProcessReward(), seed, steps, lr, separator="\n")),
        Stage("best-by-orm", b.evaluate_with(best, first, seed, guide="reward:stage:orm")),
        Stage("best-by-prm", b.evaluate_with(best, first, seed, guide="reward:stage:prm")),
    ]
    return Stages(tuple(stages))
