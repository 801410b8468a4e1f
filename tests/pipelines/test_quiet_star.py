"""Thoughts between tokens as a job: it runs, goes on to the bit, measures itself, and says what does not work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fakes import QUESTION_TEMPLATE, DigitTask, RecordingProgress, char_policy, run_async
from ponder.errors import Interrupted, UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.quiet_star import QuietStar, answer_text, copy_embeddings, sample_thoughts
from ponder.runs import job_json, read_metrics, read_traces
from ponder.train.optimizer import AdamW
from ponder.train.quiet_star_learner import QuietText
from ponder.types import ids

MODEL = ScratchModel("0123456789=:[]", width=16, layers=1, heads=2, context=24)
JOB = QuietStar(
    DigitTask(), MODEL, template=QUESTION_TEMPLATE, thought_tokens_like=(":", "="), max_thought_tokens=3, steps=4,
    batch_size=3, eval_limit=5, save_every=2, keep_checkpoints=2,
    optimizer=AdamW(lr=1e-2), device="cpu", dtype="float32",
)  # fmt: skip


def told(folder: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in m.items() if "time" not in k} for m in read_metrics(folder)]


def test_quiet_star_learns_and_evaluates(tmp_path: Path) -> None:
    job = replace(JOB, steps=60, batch_size=10, save_every=60, optimizer=AdamW(lr=2e-2))
    job(tmp_path / "run")
    rows = read_metrics(tmp_path / "run")
    assert rows[0]["nll"] > 1.5 and rows[-1]["nll"] < 0.3 and rows[-1]["test/talk"] < 0.3
    assert rows[-1]["right/talk"] == 1.0 and 0 < rows[-1]["thought/weight"] < 1
    kept = json.loads((tmp_path / "run" / "measured.json").read_text())
    assert kept["test/talk"]["mean"] == pytest.approx(rows[-1]["test/talk"]) and kept["test/talk"]["problems"] == 5
    text = "\n".join(job.summary_lines(tmp_path / "run", None))
    assert "without thoughts" in text and "with thoughts" in text and "100.0% of answers" in text
    plain = replace(job, num_thoughts=0)
    plain(tmp_path / "plain")
    (last,) = read_metrics(tmp_path / "plain")[-1:]
    assert last["test/talk"] == last["test/plain"] and last["num_tokens"] < rows[-1]["num_tokens"] / 3
    text = "\n".join(plain.summary_lines(tmp_path / "plain", None))
    assert "with thoughts" not in text.replace("without thoughts", "")


@pytest.mark.parametrize("where", [("phase", 6), ("tokens", 3), ("share", 3), ("step", 2)])
def test_interrupted_run_resumes_exactly(where: tuple[str, int], tmp_path: Path) -> None:
    expected = JOB(tmp_path / "whole")
    with pytest.raises(Interrupted, match="goes on"):
        JOB(tmp_path / "run", RecordingProgress(*where))
    policy = JOB(tmp_path / "run")
    assert told(tmp_path / "run") == told(tmp_path / "whole")
    for name, weight in expected.net.state_dict().items():
        assert torch.equal(weight, policy.net.state_dict()[name])


def test_thoughts_are_recorded(tmp_path: Path) -> None:
    JOB(tmp_path / "run")
    traces = [t for _, t in read_traces(tmp_path / "run")]
    assert len(traces) == 2 * JOB.steps
    for trace in traces:
        asides = [s for s in trace.steps if s.meta]
        assert len(asides) == 2 * 2 and all(1 <= len(s.token_ids) <= 3 for s in asides), "two places, two thoughts each"
        (end,) = trace.answers()
        assert trace.text(end).startswith(str(trace.problem.answer))


def test_thought_positions_and_lengths() -> None:
    policy = char_policy(context=16)
    one, two = QuietText(ids([3, 4, 5, 6]), 2), QuietText(ids([3, 4, 7]), 2)
    start = int(policy.tokens("?")[0])
    thoughts, flops = run_async(sample_thoughts(policy, [one, two], start, 3, 4))
    assert flops > 0
    assert [[len(here) for here in by_place] for by_place in thoughts] == [[3, 3], [3]]
    same = [t.tolist() for t in thoughts[0][0]], [t.tolist() for t in thoughts[1][0]]
    assert same[0] != same[1], "texts that begin alike have thoughts of their own"
    assert all(len(t) <= 4 for by_place in thoughts for here in by_place for t in here)
    assert run_async(sample_thoughts(policy, [one], start, 0, 4)) == ([[[], []]], 0.0)
    copy_embeddings(policy, (3, 4), (8, 9))
    table = policy.net.embed_tokens.weight
    assert torch.equal(table[3], table[8]) and torch.equal(table[4], table[9])


def test_invalid_settings_are_refused() -> None:
    for change, why in [
        ({"num_thoughts": 1}, "no others"), ({"steps": 0}, "at least 1"), ({"beta": -1.0}, "0 or more"),
        ({"thought_tokens": ("[", "[")}, "must differ"), ({"beta": np.nan}, "0 or more"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=why):
            replace(JOB, **change)  # type: ignore[arg-type]
    assert replace(JOB, num_thoughts=1, beta=0.0).num_thoughts == 1
    assert job_json.decode(job_json.encode(JOB), trust=True) == JOB
    policy = char_policy(context=8)
    with pytest.raises(UsageError, match="context of 8: think shorter"):
        answer_text(replace(JOB, max_thought_tokens=4), policy, DigitTask().train[0])


def test_thought_token_must_be_one_token(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a mark must be one"):
        replace(JOB, thought_tokens=("[:", "]"))(tmp_path / "run")
