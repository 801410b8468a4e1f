from ponder import RL, CustomTask, Sampling, ask, read_metrics

rows = [{"prompt": f"What is {n} times 3?", "answer": 3 * n} for n in range(100)]  # or a .jsonl file


def right(completions, answer, **columns):  # TRL's form
    return [float(str(gold) in text.split()) for text, gold in zip(completions, answer, strict=True)]


task = CustomTask(data=rows, rewards=right, gold_column="answer")
short = Sampling(max_tokens=8)
job = RL(task, "smollm2", "qa", group_size=4, sampling=short, steps=2, problems_per_step=4)
job("runs/readme")
print([row["reward"] for row in read_metrics("runs/readme")])
print(ask("What is 7 times 3?", model="runs/readme", n=8, max_tokens=8))
