"""The KL term where it enters the reward: what each answer, or each of its tokens, pays for leaving the reference.

The sampler's log-probabilities differ from the learner's, which reads the reference, by rounding. In the first step the
policy is its reference, and the term is nothing else. Where the rewards of a group or batch are equal, normalising
would make advantages of size 1 of it. So a difference that the rounding of float32 explains is none. A 16-bit sampler
rounds by about 1e-2, as much as a policy may move in a step: that noise stays in the reward.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def kl_per_token(items: Sequence[ScoredAnswer], kl: KL | None) -> list[Array]:
    """The KL estimate at each token of a batch's answers, pi being the policy that sampled. Zeros where none enters the
    reward, or where policy and reference are the same on all tokens of the batch, up to the rounding of float32."""
    if kl is None or kl.where != "reward" or all(map(_is_rounding, items)):
        return [np.zeros(item.length) for item in items]
    estimate = losses.KL_ESTIMATORS[kl.estimator]
    notes = [(torch.from_numpy(item.note("logprobs")), torch.from_numpy(item.note("reference"))) for item in items]
    return [estimate(logprobs, reference).numpy() for logprobs, reference in notes]


def _is_rounding(item: ScoredAnswer) -> bool:
    logprobs, reference = item.note("logprobs"), item.note("reference")
    return bool(np.all(np.abs(logprobs - reference) <= LOGPROB_ROUNDING * np.maximum(1.0, np.abs(reference))))


def groups_with_kl_penalty(
    traces: Sequence[Trace], scorer: str, kl: KL | None, include_truncated: bool = True
) -> list[list[ScoredAnswer]]:
    """The scored answers of each trace of a batch. Where the KL term enters the reward, each pays beta times the KL of
    its tokens."""
    groups = [credit.scored_answers(trace, scorer, include_truncated) for trace in traces]
    if kl is None:
        return groups
    paid = iter(kl_per_token([w for items in groups for w in items], kl))
    return [[replace(w, reward=w.reward - kl.beta * float(next(paid).sum())) for w in items] for items in groups]
