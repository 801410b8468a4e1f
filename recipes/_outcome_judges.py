"""Judges that learn from the verdicts on a model's own answers: a scalar head and an implicit reward model."""

from _bases import RecipeBase

from ponder.pipelines.stages import Stage
from ponder.reason.strategies import Samples
from ponder.train.reward_objectives import ImplicitReward, OutcomeReward

JUDGE_BETA = 0.2


def judge_stages(
    b: RecipeBase, first: str, seed: int, steps: int | None, problems: int | None, samples: int
) -> list[Stage]:
    """Sample answers of a model and train both judges on them: the stages `outcomes`, `orm` and `implicit`."""
    problems = problems or b.answer_budget // (2 * samples)
    return [
        Stage("outcomes", b.collect(first, Samples(samples, b.sampling), problems, seed)),
        Stage("orm", b.train_reward_model("stage:outcomes", first, OutcomeReward(), seed, steps)),
        Stage("implicit", b.train_reward_model("stage:outcomes", first, ImplicitReward(JUDGE_BETA), seed, steps)),
    ]


def judge_folder(judges: str | None, name: str) -> str:
    """Where a judge lies: in a run of `outcome_judges`, or in this one."""
    return f"stage:{name}" if judges is None else f"{judges}/{name}"
