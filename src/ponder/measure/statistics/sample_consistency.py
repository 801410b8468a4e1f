"""How consistent a system's samples are: pass@k, G-Pass@k, mG-Pass@k and pass^k, with intervals over problems."""

from __future__ import annotations

from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.measure.readers.attempts import Attempts
from ponder.measure.statistics.intervals import MeanInterval, bootstrap_mean
from ponder.measure.statistics.passk import g_pass_at_k, mean_g_pass_at_k, pass_at_k, pass_hat_k


@dataclass(frozen=True, slots=True)
class SampleConsistency:
    """Of k samples of a problem: one is right, a share tau is, that over tau from a half to 1, and all are."""

    k: int
    tau: float
    pass_at_k: MeanInterval
    g_pass_at_k: MeanInterval
    mean_g_pass_at_k: MeanInterval
    pass_hat_k: MeanInterval


def sample_consistency(system: Attempts, k: int, tau: float) -> SampleConsistency:
    """Over the problems that have a verdict; each needs k judged samples."""
    graded = system.on_problems([g.problem for g in system.groups if g.mean is not None])
    n, c = graded.counts
    if (fewest := int(n.min())) < k:
        raise UsageError(f"{system.name} has a problem with {fewest} judged samples: give --k {fewest} or less")
    estimates = (pass_at_k(n, c, k), g_pass_at_k(n, c, k, tau), mean_g_pass_at_k(n, c, k), pass_hat_k(n, c, k))
    return SampleConsistency(k, tau, *(bootstrap_mean(e.tolist()) for e in estimates))
