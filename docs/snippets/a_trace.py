"""One Trace, by hand: a question, four samples, their scores, and what GRPO makes of them."""

import asyncio

from ponder import GRPO, FinalNumber, Problem, Samples, Sampling, load, solve, user_messages
from ponder.reason.operators import majority_step
from ponder.verify import ANSWER_FORMS

policy = load("smollm2", template="qa")
verifier = FinalNumber(forms=ANSWER_FORMS)
problem = Problem("sum", user_messages("What is 2 + 3?"), answer="5")

strategy = Samples(n=4, sampling=Sampling(max_tokens=16, seed=0))
trace = asyncio.run(solve(problem, strategy, policy, verifier))
GRPO().credit([trace], verifier.name, state={})

for i in trace.answers():
    step = trace.steps[i]
    score = step.scores[verifier.name]
    print(f"{step.text!r}: {score.value} ({score.reason}), advantage {step.advantages[0]:.2f}")
print("majority:", majority_step(trace, trace.answers(), verifier.extract_answer))
print("cost:", trace.cost.generated_tokens, "tokens written")
