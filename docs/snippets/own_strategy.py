"""A strategy of your own: sample until two answers agree."""

from dataclasses import dataclass

from ponder import Sampling, ask
from ponder.reason.answer_extraction import extract_answer
from ponder.reason.operators import generate


@dataclass(frozen=True)
class UntilTwoAgree:
    limit: int = 8
    sampling: Sampling = Sampling(max_tokens=16)

    async def __call__(self, trace, policy, scorer=None):
        seen = {}
        while len(trace.answers()) < self.limit:
            (step,) = await generate(trace, 0, policy, self.sampling, 1, last=True)
            answer = extract_answer(trace.text(step))
            if answer is not None and answer in seen:
                trace.chosen = seen[answer]
                return
            seen[answer] = step


print(ask("What is 2 + 3?", strategy=UntilTwoAgree(), template="qa"))
