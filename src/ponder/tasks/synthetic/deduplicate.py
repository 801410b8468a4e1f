"""Find exact and near duplicates among questions."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponder.errors import MissingExtra, UsageError
from ponder.tasks.question_identity import normalize_question

SHINGLE_WORDS = 3  # words that make one piece of a question
MINHASH_PERMUTATIONS = 128
LSH_THRESHOLD_FACTOR = 0.8  # candidates are looked for this much below the threshold, then compared in full
EMBEDDING_BLOCK = 1_024  # embeddings compared at once

Embed = Callable[[Sequence[str]], Any]  # texts to one vector each

_WORD = re.compile(r"\w+|[^\w\s]")


def question_tokens(question: str) -> list[str]:
    return _WORD.findall(normalize_question(question))


def shingles(question: str) -> frozenset[tuple[str, ...]]:
    tokens = question_tokens(question)
    return frozenset(tuple(tokens[i : i + SHINGLE_WORDS]) for i in range(max(1, len(tokens) - SHINGLE_WORDS + 1)))


def exact_duplicates(questions: Sequence[str]) -> list[int | None]:
    """For each, the earlier one that it repeats; None: it is new."""
    first: dict[str, int] = {}
    duplicate_of: list[int | None] = []
    for i, question in enumerate(questions):
        j = first.setdefault(normalize_question(question), i)
        duplicate_of.append(None if i == j else j)
    return duplicate_of


def near_duplicates(questions: Sequence[str], threshold: float) -> list[int | None]:
    """For each, an earlier one that was kept and shares this part of their pieces (Jaccard) or more; None: it is new.

    MinHash only proposes: every pair it finds is compared in full.
    """
    _check_threshold(threshold)
    try:
        datasketch = importlib.import_module("datasketch")
    except ImportError:
        raise MissingExtra("finding near-duplicates (near=0 does without)", "datasketch", "data") from None
    index = datasketch.MinHashLSH(threshold=threshold * LSH_THRESHOLD_FACTOR, num_perm=MINHASH_PERMUTATIONS)
    pieces = [shingles(question) for question in questions]
    duplicate_of: list[int | None] = []
    for i, own in enumerate(pieces):
        sketch = datasketch.MinHash(num_perm=MINHASH_PERMUTATIONS)
        sketch.update_batch([" ".join(piece).encode() for piece in sorted(own)])
        near = [j for j in sorted(index.query(sketch)) if len(own & pieces[j]) >= threshold * len(own | pieces[j])]
        if not near:
            index.insert(i, sketch)
        duplicate_of.append(near[0] if near else None)
    return duplicate_of


def embedding_near_duplicates(embed: Embed, questions: Sequence[str], threshold: float) -> list[int | None]:
    """The same by the cosine between embeddings, which a function of the user's gives."""
    _check_threshold(threshold)
    vectors = np.asarray(embed(list(questions)), np.float64)
    if vectors.ndim != 2 or len(vectors) != len(questions) or not np.isfinite(vectors).all():
        raise UsageError(f"the embedding gave {vectors.shape} for {len(questions)} questions; give one finite row each")
    sizes = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, sizes, out=np.zeros_like(vectors), where=sizes > 0)
    unique: list[int] = []
    duplicate_of: list[int | None] = []
    for i, vector in enumerate(unit):
        near = _nearest(unit, unique, vector, threshold)
        duplicate_of.append(near)
        if near is None:
            unique.append(i)
    return duplicate_of


def _nearest(
    unit: NDArray[np.float64], unique: Sequence[int], vector: NDArray[np.float64], threshold: float
) -> int | None:
    for start in range(0, len(unique), EMBEDDING_BLOCK):
        block = unique[start : start + EMBEDDING_BLOCK]
        close = np.flatnonzero(unit[block] @ vector >= threshold)
        if len(close):
            return block[int(close[0])]
    return None


def _check_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise UsageError(f"the threshold for near-duplicates is {threshold}; it is a share above 0, at most 1")
