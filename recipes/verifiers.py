"""Which judge picks best: majority, an outcome model, a process model or the oracle, of N answers.

Both models learn from samples of training problems, of about as many tokens: the outcome model from whether the answer
is right, the process model from how often samples that begin with a step's prefix end right (Math-Shepherd's labels).
Each then scores `n` answers to each held-out problem; what it would choose of fewer follows from the same scores.

What it gave, with three seeds, hardware and time: docs/results.md.
"""

from _bases import Count, Lr, On, Problems, Start, Steps, base

from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.label import Label
from ponder.pipelines.rewards.step_labelling import MathShepherd
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import BestOfN, Samples
from ponder.train.reward_objectives import OutcomeReward, ProcessReward


def recipe(
    base_model: On = "tiny", problems: Problems = None, samples: Count = 4, completions: Count = 4, outcomes: Problems = None,
    n: Count = 64, limit: int = 128, steps: Steps = None, lr: Lr = None, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = base(base_model)
    stages, first = b.begin(seed, start)
    problems, outcomes = problems or b.answers // 128, outcomes or b.answers // (4 * samples)
    rule = MathShepherd(max_completions=completions, sampling=b.draw)
    best = {"task": b.task, "model": first, "strategy": BestOfN(n, sampling=b.draw), "limit": limit, "seed": seed}
    stages += [
        Stage("outcomes", b.sample(first, Samples(2 * samples, b.draw), outcomes, seed)),
        Stage("sample", b.sample(first, Samples(samples, b.draw), problems, seed)),
        Stage(
            "label",
            Label(b.task, first, data=("stage:sample",), labeller=rule, limit=problems, max_concurrency=256, seed=seed),
        ),
        Stage("orm", b.judged("stage:outcomes", first, OutcomeReward(), seed, steps, lr)),
        Stage("prm", b.judged("stage:label", first, ProcessReward(), seed, steps, lr, separator="\n")),
        Stage("best-by-orm", Evaluate(guide="reward:stage:orm", **best)),
        Stage("best-by-prm", Evaluate(guide="reward:stage:prm", **best)),
    ]
    return Stages(tuple(stages))
