"""GRPO on your own rows with your own reward function. Rows may also be a .jsonl, .csv or .parquet file."""

from ponder import GRPO, RL, CustomTask, Samples, Sampling

rows = [{"prompt": f"What is {n} times 3?", "answer": 3 * n} for n in range(100)]


def right(completions, answer, **columns):
    return [float(text.strip() == str(gold)) for text, gold in zip(completions, answer, strict=True)]


task, samples = CustomTask(data=rows, rewards=right, gold_column="answer"), Samples(4, Sampling(max_tokens=8))
job = RL(task, "smollm2", "qa", strategy=samples, algorithm=GRPO(kl=None), steps=2, problems_per_step=2)
job("runs/times-three")
