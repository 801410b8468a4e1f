"""One Trace, by hand: a question, four samples, their scores, and what GRPO makes of them."""

import asyncio

from ponder import GRPO, FinalNumber, Problem, Samples, Sampling, load, solve, user_messages
from ponder.reason.operators import majority_step
from ponder.verify import ANSWER_FORMS

policy = load("smollm2", template="qa")
verifier = FinalNumber(forms=ANSWER_FORMS)
problem = Problem("sum", user_messages("What is 27 + 58?"), answer="85")

strategy = Samples(n=4, sampling=Sampling(max_tokens=16, seed=0))
trace = asyncio.run(solve(problem, strategy, policy, verifier))
GRPO().credit([trace], verifier.name, state={})

for i in trace.answers():
    step = trace.steps[i]
    advantage = None if step.advantages is None else step.advantages[0]
    print(repr(step.text), step.scores[verifier.name], advantage)
print("majority:", majority_step(trace, trace.answers(), verifier.extract_answer))
print("cost:", trace.cost)
