"""An algorithm of your own: GRPO whose advantages come from the ranks of the rewards in a group."""

import tempfile
from dataclasses import dataclass

import numpy as np

from ponder import GRPO, RL, AdamW, Addition, Sampling, ScratchModel, read_metrics
from ponder.train import credit


@dataclass(frozen=True)
class RankGRPO(GRPO):
    """The best completion of a group gets +1, the worst -1; equal rewards get equal advantages."""

    def credit(self, traces, scorer, state):
        for trace in traces:
            answers = credit.scored_answers(trace, scorer)
            rewards = np.array([a.reward for a in answers])
            wins = (rewards[:, None] > rewards).sum(1) - (rewards[:, None] < rewards).sum(1)
            if len(answers) > 1 and rewards.std() > 0:
                credit.assign_to_answers(
                    trace, {a.leaf: w / (len(answers) - 1) for a, w in zip(answers, wins, strict=True)}
                )
        return {}


job = RL(
    Addition(digits=1),
    ScratchModel("0123456789 +?Whatis", width=32, layers=1, heads=2),
    template="{{ bos_token }}{{ messages[-1].content }}",
    sampling=Sampling(max_tokens=2),
    algorithm=RankGRPO(kl=None),
    optimizer=AdamW(lr=3e-3),
    steps=2,
    problems_per_step=8,
    dtype="float32",
)
with tempfile.TemporaryDirectory() as folder:
    job(folder)
    print([round(row["reward"], 3) for row in read_metrics(folder)])
