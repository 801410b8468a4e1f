"""What a sampled text states, for votes: also on tasks whose reward reads no answer out of it."""

from __future__ import annotations

from typing import Any


def stated_answer(verifier: Any, text: str) -> str | None:
    """The answer that the verifier reads, or the first of several rewards that reads one. Where none does, the whole
    text is the answer, so that a vote counts equal texts."""
    for reader in (verifier, *getattr(verifier, "functions_by_name", {}).values()):
        if (extract := getattr(reader, "extract_answer", None)) is not None:
            found: str | None = extract(text)
            return found
    return text.strip() or None
