"""Small worlds gone through whole, for the nightly job: every byte of a run's records, every cut of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.test_fuzz_records import held, write
from fuzz.test_fuzz_strict_parsing import lines, walked
from maths_variants import EXPLOITS, HONEST
from ponder.errors import RunError
from ponder.verify import MathAnswer

MEANING = b'0123456789+-.e"\\{}[],: \n\r\t\0rl'

pytestmark = pytest.mark.nightly


def test_any_changed_byte_is_detected_or_harmless(tmp_path: Path) -> None:
    """tests/runs/test_records.py flips bits; here each byte becomes each that means something in JSON."""
    path = tmp_path / "metrics.jsonl"
    write(path, [{"step": 0, "loss": 0.25}, {"resumed": 0}, {"step": 0, "loss": 0.5}])
    content, right = path.read_bytes(), held(path)
    for at in range(len(content)):
        for byte in {*MEANING} - {content[at]}:
            path.write_bytes(content[:at] + bytes([byte]) + content[at + 1 :])
            try:
                records = held(path)
            except RunError:
                continue
            assert records == right, (at, byte)


def test_a_log_truncated_at_any_byte_is_read_or_refused() -> None:
    rows = [{"id": f"p{i}", "question": "1 + 1 = ?", "answer": "2", "correct": i % 2, "score": 0.5} for i in range(3)]
    content = lines(rows)
    for at in range(len(content)):
        walked("log.jsonl", content[:at])


def test_wider_spacing_before_an_answer_is_safe() -> None:
    """The whole lists again, with each space before the answer written as several."""
    judge = MathAnswer(timeout_seconds=10)
    for cases, expected in ((EXPLOITS, {0.0}), (HONEST, {0.0, 1.0, None})):
        for gold, output in cases:
            before, box, rest = output.partition(r"\boxed")
            score = judge.grade(before.replace(" ", "   ") + box + rest, gold) if box else judge.grade(output, gold)
            assert score.value in expected and not score.reason.startswith("crashed"), (gold, output, score)
