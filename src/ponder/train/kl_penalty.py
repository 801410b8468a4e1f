"""The KL term where it enters the reward: what each answer, or each of its tokens, pays for leaving the reference.

The sampler's log-probabilities differ from the learner's, which reads the reference, by rounding. In the first step the
policy is its reference, and the term is nothing else. Where the rewards of a group or batch are equal, normalising
would make advantages of size 1 of it. So a difference that the rounding of float32 explains is none. A 16-bit sampler
rounds by about 1e-2, as much as a policy may move in a step: that noise stays in the reward.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ponder.train import credit, losses
from ponder.train.credit import Array, ScoredAnswer
from ponder.train.objective import KL
from ponder.types import Trace

# By how much a log-probability of float32 differs between sampler and learner, relative to its size or 1. On SmolLM2 it
# is up to 4e-5: the logits are larger, and each layer rounds.
LOGPROB_ROUNDING = 2.0**-12


def kl_per_token(item: ScoredAnswer, kl: KL | None) -> Array:
    """The KL estimate at each token, pi being the policy that sampled; zeros where none enters the reward, or where
    policy and reference are the same on all tokens, up to the rounding of float32."""
    if kl is None or kl.where != "reward":
        return np.zeros(item.length)
    logprobs, reference = item.note("logprobs"), item.note("reference")
    if np.all(np.abs(logprobs - reference) <= LOGPROB_ROUNDING * np.maximum(1.0, np.abs(reference))):
        return np.zeros(item.length)
    return losses.KL_ESTIMATORS[kl.estimator](torch.from_numpy(logprobs), torch.from_numpy(reference)).numpy()


def answers_with_kl_penalty(
    trace: Trace, scorer: str, kl: KL | None, include_truncated: bool = True
) -> list[ScoredAnswer]:
    """The scored answers of a trace. Where the KL term enters the reward, each pays beta times the KL of its tokens."""
    items = credit.scored_answers(trace, scorer, include_truncated)
    if kl is None:
        return items
    return [replace(w, reward=w.reward - kl.beta * float(kl_per_token(w, kl).sum())) for w in items]
