"""Token ids in a request that its model does not have: a 400 that names their field."""

from __future__ import annotations

from collections.abc import Iterable

from ponder.sampling import Sampling
from ponder.serve.errors import invalid


def check_token_ids(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Raise where a token id of a field is beyond the vocabulary."""
    highest = max(token_ids, default=0)
    if highest >= vocab_size:
        raise invalid(f"{field} has the token {highest}; token ids must be below the vocabulary's {vocab_size}",
                      field, "invalid_value")  # fmt: skip


def check_named_token_ids(sampling: Sampling, vocab_size: int, path: str = "") -> None:
    """Raise where a setting of the sampling names a token beyond the vocabulary. `path`: where the request has it."""
    if max(sampling.named_token_ids, default=0) < vocab_size:  # nearly all
        return
    prefix = f"{path}." if path else ""
    for field in ("allowed_token_ids", "forced_token_ids", "stop_token_ids"):
        check_token_ids(prefix + field, getattr(sampling, field), vocab_size)
    check_token_ids(prefix + "logit_bias", [token for token, _ in sampling.logit_bias], vocab_size)
