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
from ponder.verify.vision.segmentation_rewards import SegZero, VisionReasoner
from ponder.verify.vision.visual_rft import VisualRFTClass, VisualRFTDetection, VisualRFTGrounding

REWARDS: dict[str, Callable[[], Scorer]] = {
    "format": ThinkFormat,
    "language": LanguageConsistency,
    "repetition": RepetitionPenalty,
    "steps": StepArithmetic,
    "seg_zero": SegZero,
    "vision_reasoner": VisionReasoner,
    "visual_rft_class": VisualRFTClass,
    "visual_rft_detection": VisualRFTDetection,
    "visual_rft_grounding": VisualRFTGrounding,
}


ACCURACY = "accuracy"  # in a weighted reward: the task's verifier, whatever its own name is


def weighted_reward(
    weights: Mapping[str, float], verifier: Scorer, from_function: Callable[[str], Scorer] | None = None
) -> WeightedSum:
    """The verifier as `accuracy` or by its own name, others from `REWARDS`, from `module:name` or `file.py:name`, or
    from a plug-in.

    `language:en` asks for a language whatever the question is in, as where it is a formula. `from_function` makes a
    scorer of a name that leads to a plain function.
    """
    verifier = _without_sum(verifier)
    parts = tuple((_find_part(name, verifier, from_function), float(weight)) for name, weight in weights.items())
    return WeightedSum(parts, verifier.name if verifier in [scorer for scorer, _ in parts] else "")


def parse_rewards(text: str) -> tuple[tuple[str, float], ...]:
    """`accuracy=1,format=0.2,mine.py:reward=0.5` as names with weights. A name without a weight has the weight 1."""
    pairs: list[tuple[str, float]] = []
    for part in text.split(","):
        name, equals, weight = part.strip().rpartition("=")
        if not equals:
            name, weight = weight, "1"
        try:
            pairs.append((name.strip(), float(weight)))
        except ValueError:
            raise UsageError(f"{part.strip()!r} is no reward: write name=weight, with commas between rewards") from None
        if not pairs[-1][0]:
            raise UsageError(f"{part.strip()!r} names no reward: write name=weight, with commas between rewards")
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"the reward {twice!r} is given twice: give it once, with one weight")
    return tuple(pairs)


def find_reward(name: str, more: Mapping[str, Callable[[], Scorer]] | None = None) -> object:
    """What a reward's name stands for: one of `REWARDS` or `more`, a language, the user's own code, or a plug-in."""
    kind, _, setting = name.partition(":")
    if kind == "language" and setting:
        return LanguageConsistency(setting)
    reward = lookup("reward", name, {**REWARDS, **(more or {})})
    return reward() if isinstance(reward, type) else reward


def reward_code(name: str) -> str:
    """The `module:object` that a reward's name refers to; empty for a built-in reward, a language or a plug-in."""
    return name if ":" in name and not name.startswith("language:") else ""


def _without_sum(verifier: Scorer) -> Scorer:
    """The verifier inside a weighted reward, as of a run that was trained with one."""
    named = dict((s.name, s) for s, _ in verifier.parts) if isinstance(verifier, WeightedSum) else {}
    return named.get(getattr(verifier, "verifier_name", ""), verifier)


def _find_part(name: str, verifier: Scorer, from_function: Callable[[str], Scorer] | None) -> Scorer:
    if name in (verifier.name, ACCURACY):
        return verifier
    reward = find_reward(name, {verifier.name: lambda: verifier, ACCURACY: lambda: verifier})
    if isinstance(reward, Scorer):
        return reward
    if from_function is not None and callable(reward):
        return from_function(name)
    raise UsageError(f"the reward {name!r} is a {type(reward).__name__}, which does not score traces")
