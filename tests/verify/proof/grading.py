"""Judge many proofs at once, so that each test has only to look at one verdict."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ponder.types import Score
from ponder.verify.proof import ProofVerifier
from ponder.verify.sandbox import SandboxError, shared_sandbox


def block(proof: str) -> str:
    return f"I prove it so:\n```\n{proof}\n```"


def need(scorer: ProofVerifier) -> None:
    """Skip where the checker or the sandbox is missing."""
    if missing := scorer.missing_tools():
        pytest.skip(missing)
    try:
        shared_sandbox()
    except SandboxError as error:
        pytest.skip(f"no sandbox here: {error}")


def grade_all(scorer: ProofVerifier, cases: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, Score]:
    """The verdict on each (proof, gold), by its key."""
    need(scorer)
    with ThreadPoolExecutor(4) as threads:
        scores = [(block(proof), gold) for proof, gold in cases.values()]
        return dict(zip(cases, threads.map(lambda case: scorer.grade(*case), scores), strict=True))
