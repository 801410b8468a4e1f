"""GRPO on your own rows (or a .jsonl, .csv or .parquet file) with your own reward function."""

from ponder import RL, AdamW, CustomTask, Sampling

pairs = [(a, b) for a in range(40) for b in range(40)]
rows = [{"prompt": f"Addition: {a} + {b} = ", "answer": a + b} for a, b in pairs]


def right(completions, answer, **columns):
    return [float(text.strip() == str(gold)) for text, gold in zip(completions, answer, strict=True)]


task = CustomTask(data=rows, rewards=right, gold_column="answer")
short = Sampling(max_tokens=4, stop=("\n",))
template, adam = "{{ messages[-1].content }}", AdamW(lr=3e-5)
job = RL(task, "smollm2", template, sampling=short, optimizer=adam, steps=8, problems_per_step=16)
job("runs/sums")
