"""The KL term where it enters the reward: what each answer, or each of its tokens, pays for leaving the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ponder.train import credit, losses
from ponder.train.credit import Array, ScoredAnswer
from ponder.train.objective import KL
from ponder.types import Trace


def kl_per_token(item: ScoredAnswer, kl: KL | None) -> Array:
    """The KL estimate at each token, pi being the policy that sampled; zeros where none enters the reward."""
    if kl is None or kl.where != "reward":
        return np.zeros(item.length)
    both = (torch.from_numpy(item.note(name)) for name in ("logprobs", "reference"))
    return losses.KL_ESTIMATORS[kl.estimator](*both).numpy()


def answers_with_kl_penalty(
    trace: Trace, scorer: str, kl: KL | None, include_truncated: bool = True
) -> list[ScoredAnswer]:
    """The scored answers of a trace. Where the KL term enters the reward, each pays beta times the KL of its tokens."""
    items = credit.scored_answers(trace, scorer, include_truncated)
    if kl is None:
        return items
    return [replace(w, reward=w.reward - kl.beta * float(kl_per_token(w, kl).sum())) for w in items]
