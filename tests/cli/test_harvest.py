"""`ponder harvest`: one command, the funnel, and what it says of a bad request."""

from __future__ import annotations

import json
from pathlib import Path


def test_harvest_of_a_run(ponder, trained: Path, tmp_path: Path):
    printed = ponder("harvest", trained, "--kind", "values", "--out", tmp_path / "v.jsonl")
    assert printed.code == 0, printed.err
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert (
        f"{len(rows):,} values of" in printed.out and "  traces" in printed.out and "distinct prefixes" in printed.out
    )
    again = ponder("harvest", trained, "--kind", "values", "--out", tmp_path / "v.jsonl")
    assert again.code == 2 and "is already there" in again.err
    output = ponder("harvest", trained, trained, "--kind", "values", "--out", tmp_path / "w.jsonl", "--json")
    data = json.loads(output.out)
    assert data["rows"] == len(rows) and data["funnel"][0]["stage"] == "traces"


def test_nothing_found_tells_the_funnel(ponder, trained: Path, tmp_path: Path):
    output = ponder("harvest", trained, "--min-score", "2", "--out", tmp_path / "c.jsonl")
    assert output.code == 2 and "hold no chains" in output.err and "right" in output.err and "wrong" in output.err
    assert not (tmp_path / "c.jsonl").exists()


def test_labels_in_every_format(ponder, trained: Path, tmp_path: Path):
    from ponder.tasks.step_labels import LABEL_SCORE, detect_format, read_labels

    known = {}
    for format in ("stepwise", "prm800k", "shepherd", "omega"):
        out = tmp_path / f"{format}.jsonl"
        output = ponder("harvest", "--kind", "labels", "--format", format, "--out", out, trained)
        assert output.code == 0, output.err
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert {detect_format(row, "x") for row in rows} == {
            format
        } and f"{len(rows):,} rows of labels of" in output.out
        traces = read_labels(out)
        labels = [(t.problem.question, t.text(i).strip(), t.score(i, LABEL_SCORE)) for t in traces for i in t.answers()]
        known[format] = {(q, text.removeprefix("Step 1: "), label) for q, text, label in labels}
    assert known["stepwise"] == known["prm800k"] == known["omega"] and len(known["stepwise"]) > 3
    assert {q for q, *_ in known["shepherd"]} == {q for q, *_ in known["stepwise"]}


def test_bad_requests(ponder, here: Path):
    for argv, wanted in (
        (("--out", "x"), "required: RUN"),
        (("--out", "x", "nowhere"), "not a run directory"),
        (("nowhere", "--out", "x"), "not a run directory"),
        (("r", "--out", "x", "--kind", "chain"), "is not one of"),
        (("r",), "--out"),
        (("r", "--out", "x", "--verifier.a", "1"), "--verifier.a means nothing without --verifier"),
        (("r", "--out", "no/x"), "there is no folder no to write x in"),
        (("r", "--out", "x", "--tokenizer", "m", "--kind", "pairs"), "token ids are for"),
        (("r", "--out", "x", "--kind", "labels", "--max-tokens", "1"), "`max_tokens` is for chains, journeys, pairs,"),
        (("r", "--out", "x", "--format", "omega"), "`format` is for labels: leave it out for chains"),
        (("r", "--out", "x", "--kind", "labels", "--format", "trl"), "is not one of stepwise, prm800k,"),
    ):
        output = ponder("harvest", *argv)
        assert output.code == 2 and wanted in output.err, (argv, output.err)
    assert "RUN" in ponder("harvest", "--help").out
