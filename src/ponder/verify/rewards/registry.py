"""Build a reward from names and weights: `{"accuracy": 1.0, "format": 0.2}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ponder.errors import UsageError
from ponder.protocols import Scorer
from ponder.registry import lookup
from ponder.verify.rewards.combine import WeightedSum
from ponder.verify.rewards.language_consistency import LanguageConsistency
from ponder.verify.rewards.repetition import RepetitionPenalty
from ponder.verify.rewards.step_arithmetic import StepArithmetic
from ponder.verify.rewards.think_format import ThinkFormat

REWARDS: dict[str, Callable[[], Scorer]] = {
    "format": ThinkFormat,
    "language": LanguageConsistency,
    "repetition": RepetitionPenalty,
    "steps": StepArithmetic,
}


def weighted_reward(weights: Mapping[str, float], verifier: Scorer) -> WeightedSum:
    """The verifier by its own name, others from `REWARDS`, from `module:object`, or from a plug-in.

    `language:en` asks for a language whatever the question is in, as where it is a formula.
    """
    return WeightedSum(tuple((_find_reward(name, verifier), float(weight)) for name, weight in weights.items()))


def reward_code(name: str) -> str:
    """The `module:object` that a reward's name refers to; empty for a built-in reward, a language or a plug-in."""
    return name if ":" in name and not name.startswith("language:") else ""


def _find_reward(name: str, verifier: Scorer) -> Scorer:
    if name == verifier.name:
        return verifier
    kind, _, setting = name.partition(":")
    if kind == "language" and setting:
        return LanguageConsistency(setting)
    reward = lookup("reward", name, REWARDS | {verifier.name: lambda: verifier})
    scorer = reward() if isinstance(reward, type) else reward
    if not isinstance(scorer, Scorer):
        raise UsageError(f"the reward {name!r} is a {type(scorer).__name__}, which does not score traces")
    return scorer
