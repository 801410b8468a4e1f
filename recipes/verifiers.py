"""Verifiers compared: which chooses best of N answers, majority vote, an outcome or a process reward model?

Both reward models learn from samples of training problems, of about as many tokens: the outcome model from the
correctness of answers, the process model from how often continuations of a step are correct (Math-Shepherd's labels).
Each then scores `n` answers to each held-out problem; its choices among fewer answers follow from the same scores.

Results with three seeds, hardware and time: docs/results.md.
"""

from _bases import BaseModelName, Count, Lr, Problems, Start, Steps, find_base

from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.label import Label
from ponder.pipelines.rewards.step_labelling import MathShepherd
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import BestOfN, Samples
from ponder.train.reward_objectives import OutcomeReward, ProcessReward


def recipe(
    base_model: BaseModelName = "tiny", problems: Problems = None, samples: Count = 4, completions: Count = 4,
    outcomes: Problems = None,
    n: Count = 64, limit: int = 128, steps: Steps = None, lr: Lr = None, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(base_model)
    stages, first = b.cold_start_stages(seed, start)
    problems, outcomes = problems or b.answer_budget // 128, outcomes or b.answer_budget // (4 * samples)
    rule = MathShepherd(max_completions=completions, sampling=b.sampling)
    best = {"task": b.task, "model": first, "strategy": BestOfN(n, sampling=b.sampling), "limit": limit, "seed": seed}
    stages += [
        Stage("outcomes", b.collect(first, Samples(2 * samples, b.sampling), outcomes, seed)),
        Stage("sample", b.collect(first, Samples(samples, b.sampling), problems, seed)),
        Stage(
            "label",
            Label(b.task, first, data=("stage:sample",), labeller=rule, limit=problems, max_concurrency=256, seed=seed),
        ),
        Stage("orm", b.train_reward_model("stage:outcomes", first, OutcomeReward(), seed, steps, lr)),
        Stage("prm", b.train_reward_model("stage:label", first, ProcessReward(), seed, steps, lr, separator="\n")),
        Stage("best-by-orm", Evaluate(guide="reward:stage:orm", **best)),
        Stage("best-by-prm", Evaluate(guide="reward:stage:prm", **best)),
    ]
    return Stages(tuple(stages))
