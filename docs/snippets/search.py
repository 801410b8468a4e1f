"""A search under a budget, guided by the policy's own likelihood, then graded."""

import asyncio

from ponder import MCTS, Budget, FinalNumber, Problem, Sampling, load, solve, user_messages
from ponder.reason.scorers import Likelihood

policy = load("smollm2", template="qa")
problem = Problem("sum", user_messages("What is 2 + 3?"), answer="5")
search = MCTS(simulations=4, width=2, sampling=Sampling(max_tokens=16))
trace = asyncio.run(
    solve(problem, search, policy, FinalNumber(), guide=Likelihood(), budget=Budget(tokens=200)),
)
print(len(trace.steps), "steps,", trace.cost.generated_tokens, "tokens")
print("budget exhausted:", trace.budget_exhausted)
