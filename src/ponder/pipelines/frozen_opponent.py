"""Loads the model that a game's opponent is (`--task.opponent model:FOLDER`), once for all games."""

from __future__ import annotations

from typing import Any

from ponder.models.load import load_inference_policy
from ponder.protocols import Policy, Scorer
from ponder.runs.kept_for_run import kept_for_run


def with_opponent(verifier: Scorer | None, policy: Policy) -> Any:
    """The verifier; where its games are against a model, with that model in place, on the policy's device."""
    name = getattr(verifier, "opponent_model", "")
    if not name:
        return verifier
    net = getattr(policy, "net", None)
    device, dtype = ("auto", "auto") if net is None else (str(net.device), str(net.dtype).removeprefix("torch."))
    return verifier.against(_load(name, device, dtype))  # type: ignore[union-attr]


@kept_for_run(2)
def _load(name: str, device: str, dtype: str) -> Policy:
    return load_inference_policy(name, device=device, dtype=dtype)
