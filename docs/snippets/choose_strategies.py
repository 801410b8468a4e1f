"""Choose a strategy for each problem under one budget: a cheap one unless a dear one helps."""

from ponder.measure import StrategyOption, choose_strategies

# By difficulty: what one sample, a vote of 8 and a search cost (tokens), and how often they succeed.
success = {"easy": (0.95, 0.97, 0.98), "medium": (0.50, 0.75, 0.80), "hard": (0.05, 0.10, 0.45)}
strategies = {"chain": 1, "vote": 8, "search": 30}
options = [
    [StrategyOption(*strategy, p) for strategy, p in zip(strategies.items(), row, strict=True)]
    for row in success.values()
]
choice = choose_strategies(options, budget=42, exact=True)
for difficulty, option in zip(success, choice.options, strict=True):
    solved = f"{100 * option.success_probability:.0f} % solved"
    print(f"{difficulty:<7} {option.name:<7} {option.cost:>3g} tokens, {solved}")
print(f"together {choice.cost:g} tokens and {choice.success:.2f} of 3 problems")
