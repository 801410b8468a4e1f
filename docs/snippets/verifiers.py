"""Verifiers: right (1), wrong (0) or undecided (None), with a reason."""

from ponder import AssertTests, FinalNumber, MathAnswer
from ponder.verify import GatedReward, ThinkFormat, weighted_reward

print(MathAnswer().grade(r"So \boxed{\frac{1}{2}}.", "0.5").reason)
print(FinalNumber().grade("15 * 3 + 9 = 54, so the answer is \\boxed{54}.", "54").reason)
print(AssertTests())  # programs, in a sandbox; also CallTests, OutputTests and PropertyTests
print(weighted_reward({"accuracy": 1, "format": 0.2}, MathAnswer()))  # rewards by name and weight
print(GatedReward(ThinkFormat(), MathAnswer()))  # paid only where the format is kept
