"""Keep in a run directory what each token of its model writes, for readers that have no tokenizer."""

from __future__ import annotations

from ponder.models.base_policy import BasePolicy
from ponder.models.vocabulary_bytes import NotPiecesOfText, vocabulary_bytes
from ponder.runs import Run
from ponder.runs.token_texts import write_token_texts


def record_tokens(run: Run, policy: BasePolicy) -> None:
    """Call this once a run's policy is loaded. Tokens that are no pieces of text are not kept: readers show ids."""
    tokenizer = getattr(policy, "tokenizer", None)
    if tokenizer is None:  # a policy of the user's own
        return
    try:
        texts = vocabulary_bytes(tokenizer, max(tokenizer.vocab_size, policy.vocab_size))
    except NotPiecesOfText:
        return
    write_token_texts(run.folder, texts)
