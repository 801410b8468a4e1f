"""Small worlds gone through whole, for the nightly job: every byte of a run's records, every cut of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.test_fuzz_records import held, write
from fuzz.test_fuzz_tables import lines, walked
from maths_variants import EXPLOITS, HONEST
from ponder.errors import RunError
from ponder.types import Problem, Score, Step, Trace, ids, user
from ponder.verify import MathAnswer

pytestmark = pytest.mark.nightly


def test_any_byte_in_place_of_any_other_is_noticed_or_harmless(tmp_path: Path) -> None:
    """tests/test_records.py flips bits; here each byte becomes each of the 255 others."""
    path = tmp_path / "traces.jsonl"
    trace = Trace(Problem("a", user("?"), "7"), [Step(None, "?", ids([1])), Step(0, "7", ids([2, 3]))])
    trace.steps[1].scores["accuracy"] = Score(1.0, "right")
    write(path, [{"step": 0, **trace.to_json()}, {"step": 1, "loss": 0.25}, {"resumed": 1}, {"step": 1, "loss": 0.5}])
    content, right = path.read_bytes(), held(path)
    for at in range(len(content)):
        for byte in {*range(256)} - {content[at]}:
            path.write_bytes(content[:at] + bytes([byte]) + content[at + 1 :])
            try:
                found = held(path)
            except RunError:
                continue
            assert found == right, (at, byte)


def test_a_log_cut_after_any_byte_is_read_or_refused() -> None:
    rows = [{"id": f"p{i}", "question": "1 + 1 = ?", "answer": "2", "correct": i % 2, "score": 0.5} for i in range(3)]
    content = lines(rows)
    for at in range(len(content)):
        walked("log.jsonl", content[:at])


def test_no_spacing_makes_an_exploit_right_or_an_honest_answer_crash() -> None:
    """The whole lists again with each space doubled, taken away, or written as LaTeX writes it."""
    judge = MathAnswer(seconds=10)
    for space in ("  ", r"\,", r"\ ", "~", "\n"):
        for gold, output in EXPLOITS:
            score = judge.judge(output.replace(" ", space), gold)
            assert score.value != 1.0, (gold, output, space, score)
        for gold, output in HONEST:
            score = judge.judge(output.replace(" ", space), gold)
            assert not score.reason.startswith("crashed"), (gold, output, space, score)
