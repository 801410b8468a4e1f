"""Choose a strategy for each problem under one budget for all: cheap ones where they do, dear ones where they help."""

from ponder.measure import StrategyOption, choose_strategies

# By difficulty: what one sample, a vote of 8 and a search cost (tokens), and how often they succeed.
success = {"easy": (0.95, 0.97, 0.98), "medium": (0.50, 0.75, 0.80), "hard": (0.05, 0.10, 0.45)}
options = [
    [StrategyOption(name, cost, p) for name, cost, p in zip(("chain", "vote", "search"), (1, 8, 30), ps, strict=True)]
    for ps in success.values()
]
choice = choose_strategies(options, budget=42, exact=True)
for difficulty, option in zip(success, choice.options, strict=True):
    print(f"{difficulty:<7} {option.name:<7} {option.cost:>3g} tokens, {100 * option.success_probability:.0f} % solved")
print(f"together {choice.cost:g} tokens and {choice.success:.2f} of 3 problems")
