"""Ask a model, vote over eight samples, then rank eight samples by your own scorer."""

from ponder import BestOfN, Sampling, ask

answer = ask("What is 27 + 58?", model="smollm2", n=8, template="qa", max_tokens=16)
print(answer, f"({answer.votes} of {answer.n} votes, {answer.trace.cost.generated_tokens} tokens)")


def shortness(text: str) -> float:
    return -len(text)


strategy = BestOfN(n=8, sampling=Sampling(max_tokens=16))
best = ask("What is 27 + 58?", strategy=strategy, scorer=shortness, template="qa")
print(best.text)
