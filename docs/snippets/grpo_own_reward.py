"""GRPO on your own rows (or a .jsonl, .csv or .parquet file) with your own reward function."""

from ponder import RL, CustomTask, Sampling

rows = [{"prompt": f"What is {n} times 3?", "answer": 3 * n} for n in range(100)]


def right(completions, answer, **columns):
    return [float(str(gold) in text.split()) for text, gold in zip(completions, answer, strict=True)]


task = CustomTask(data=rows, rewards=right, gold_column="answer")
short = Sampling(max_tokens=8)
job = RL(task, "smollm2", "qa", group_size=4, sampling=short, steps=2, problems_per_step=4)
job("runs/times-three")
