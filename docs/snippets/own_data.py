"""Your own rows with any columns, and reward functions as TRL takes them."""

import asyncio

from ponder import CustomTask, Step
from ponder.types import ids, prompt_trace

rows = [{"prompt": f"What is {n} times 3?", "answer": 3 * n} for n in range(100)]  # or a file


def right(completions, answer, **kwargs):
    return [float(text.strip() == str(gold)) for text, gold in zip(completions, answer, strict=True)]


def brief(completions, **kwargs):
    return [-len(text) / 100 for text in completions]


task = CustomTask(data=rows, rewards=(right, brief), weights=(1.0, 0.1))
print(len(task.train), "training and", len(task.test), "held-out problems, which share no prompt")

problem = task.train[0]
trace = prompt_trace(problem, ids([]))
texts = (str(problem.answer["columns"]["answer"]), "No idea.")
steps = [trace.add(Step(0, text, ids([]))) for text in texts]
for step, score in zip(steps, asyncio.run(task.verifier(trace, steps)), strict=True):
    print(f"{trace.text(step)!r}: {score.value:.2f} = {score.reason}")

# On the command line, with right and brief in rewards.py:
#   ponder train custom --task.data rows.jsonl \
#       --task.rewards rewards.py:right,rewards.py:brief --task.weights 1,0.1
