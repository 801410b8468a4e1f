"""A learner whose replicas get new weights by broadcast trains on the samples of one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from ponder.errors import UsageError
from ponder.models.replicas.replica_policy import LEDGER_FILE
from ponder.models.scratch_model import ScratchModel
from ponder.nets import broadcast_weights
from ponder.nets.broadcast_weights import BroadcastTransport
from ponder.nets.weight_transports import TransportName
from ponder.pipelines.rl import RL
from ponder.pipelines.training.open_sampler import REPLICAS_FOLDER
from ponder.reason.strategies import Samples
from ponder.runs import read_traces
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

JOB = RL(
    DigitTask(), ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32), QUESTION_TEMPLATE,
    Samples(4, Sampling(max_tokens=2)), GRPO(kl=None), AdamW(lr=3e-3, warmup_steps=2), steps=4, problems_per_step=3,
    preflight=False, save_every=2, device="cpu", dtype="float32",
)  # fmt: skip


def test_broadcast_weights_give_the_samples_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, send = list[int](), BroadcastTransport.send

    def count(transport: BroadcastTransport) -> None:
        send(transport)
        sent.append(transport.generation)

    monkeypatch.setattr(broadcast_weights.BroadcastTransport, "send", count)
    JOB(tmp_path / "plain")
    replace(JOB, replicas=2, weight_transport="broadcast")(tmp_path / "broadcast")
    tokens = [
        [(step, s.token_ids.tolist()) for step, trace in read_traces(tmp_path / run) for s in trace.steps]
        for run in ("plain", "broadcast")
    ]
    assert tokens[0] == tokens[1] and {step for step, _ in tokens[1]} == {0, 1, 2, 3}
    assert sent and set(sent) == {1}  # one group
    ledger = (tmp_path / "broadcast" / REPLICAS_FOLDER / LEDGER_FILE).read_text()
    assert not [row for row in map(json.loads, ledger.splitlines()) if row["event"] == "broadcast failed"]


def test_transport_that_cannot_be_is_refused_before_the_first_step(tmp_path: Path) -> None:
    assert "cuda_ipc" in get_args(TransportName)
    with pytest.raises(UsageError, match="cuda_ipc needs a learner on a GPU"):
        replace(JOB, replicas=1, weight_transport="cuda_ipc")(tmp_path / "run")
