"""What a user may write, for mypy (with the rest) and pyright (test_type_checkers.py). It is never run."""

from ponder import (
    GRPO,
    MCTS,
    RL,
    AdamW,
    Addition,
    Collect,
    CustomTask,
    Evaluate,
    FineTune,
    Harvest,
    LoRA,
    MajorityVote,
    Sampling,
    ask,
    load,
    read_metrics,
    read_traces,
)


def main() -> None:
    job = RL(task="addition", template="qa", strategy="samples", algorithm=GRPO(kl=None), sampling=Sampling(top_p=0.9))
    job("runs/a")
    rewards: list[float] = [row["reward"] for row in read_metrics("runs/a")]
    for _, trace in read_traces("runs/a"):
        print(trace.problem.question, [trace.text(i) for i in trace.answers()], rewards)
    Evaluate(task="addition", model="runs/a", strategy="majority-vote")("runs/b")
    Evaluate(Addition(digits=2), strategy=MajorityVote(4))("runs/c")
    print(Evaluate("addition", strategy=MCTS(simulations=4)).task.name, job.task.train[0].question)
    Collect(task="addition", strategy="samples", limit=8)("runs/d")
    Harvest(("runs/d",), kind="chains")("runs/e")
    FineTune("addition", "smollm2", optimizer=AdamW(lr=1e-5), lora=LoRA(rank=8))("runs/f")
    FineTune(data="rows.jsonl")("runs/g")
    RL(CustomTask(data=[{"prompt": "a"}], rewards=lambda completions, **columns: [1.0 for _ in completions]))("runs/h")
    answer = ask("What is 2 + 3?", model=load("smollm2"), n=4)
    print(answer.text, answer.n)
