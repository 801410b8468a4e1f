"""The corpus: small, and nothing in it twice."""

from __future__ import annotations

import json

import pytest

from fuzz.fuzzing import CORPUS, corpus, examples

TARGETS = sorted(path.stem for path in CORPUS.glob("*.json"))


def test_every_fuzzer_has_a_corpus() -> None:
    fuzzers = sorted(path.stem.removeprefix("test_fuzz_") for path in CORPUS.parent.glob("test_fuzz_*.py"))
    assert fuzzers == TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_corpus_entries_are_small_and_distinct(target: str) -> None:
    entries = [json.dumps(entry) for entry in corpus(target)]
    assert len(entries) >= 10 and len(set(entries)) == len(entries)
    assert max(map(len, entries)) < 200_000


def test_example_count_follows_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PONDER_FUZZ", raising=False)
    assert examples() == 0
    monkeypatch.setenv("PONDER_FUZZ", "700")
    assert examples() == 700
    monkeypatch.setenv("PONDER_FUZZ", "5 minutes")
    with pytest.raises(ValueError, match="number of examples"):
        examples()
