"""How a training job is spread over processes, as metrics of each step: ranks, replicas, and batches that wait."""

from __future__ import annotations

from typing import Any

from ponder.models.replicas.replica_policy import ReplicaPolicy
from ponder.pipelines.rewards.verifier_workers import VerifierWorkers
from ponder.pipelines.training.sampling_ahead import SamplingAhead
from ponder.train.distributed import DataParallelGroup


def cluster_metrics(
    group: DataParallelGroup, sampler: Any, ahead: SamplingAhead | None, verifier: Any = None
) -> dict[str, float]:
    """As things are when a step has been learned; nothing for a job in one process that samples and learns in turn.

    A batch that is ready waits for the learner; where none is, the learner waits for samples.
    """
    metrics = {"cluster/ranks": float(group.size)} if group.size > 1 else {}
    if isinstance(sampler, ReplicaPolicy):
        metrics |= {
            "cluster/replicas": group.sum_of(sum(replica.ready for replica in sampler.replicas)),
            "cluster/in_flight": group.sum_of(sum(replica.sequences for replica in sampler.replicas)),
            "cluster/restarts": group.sum_of(sampler.restarts),
        }
    if isinstance(verifier, VerifierWorkers):
        metrics |= {
            "cluster/verifier_workers": group.sum_of(len(verifier.pool.ready)),
            "cluster/verifier_restarts": group.sum_of(verifier.pool.restarts),
        }
    if ahead is not None:
        metrics["cluster/batches_ready"] = float(ahead.ready_batches())
        metrics["cluster/batches_ahead"] = float(ahead.batches_ahead)
    return metrics
