"""docs/results.py: its numbers against plain arithmetic, and a run of its own at the smallest size."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ponder.cli import recipe_files
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import BestOfN
from ponder.runs import Run
from ponder.tasks import GridWalk, Sums
from ponder.types import Score, Step, Trace, ids, prompt_trace

ROOT = Path(__file__).parent.parent


sys.path.insert(0, str(ROOT / "docs"))

import results_agents  # noqa: E402
import results_page  # noqa: E402

import results  # noqa: E402


def measured(stage: str, right: list[int], samples: int = 4, **more: Any) -> dict[str, Any]:
    return {"stage": stage, "job": "Evaluate", "right": right, "samples": samples, "sampled": 999, **more}


def test_the_page_ends_with_the_notes() -> None:
    notes = results_page.KEPT / "notes.md"
    page = (notes.parent.parent / "results.md").read_text()
    assert page.rstrip().endswith(notes.read_text().strip().replace("](../", "](")), "python docs/results.py --render"


def test_intervals_over_seeds_are_students() -> None:
    values = [3.0, 4.5, 2.0]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert results_page.over_seeds(values) == pytest.approx((low, high))
    assert results_page.over_seeds([1.0]) == (-np.inf, np.inf)  # one seed says nothing about others


def test_a_change_is_told_with_both_intervals_and_a_verdict() -> None:
    before = [measured("a", [0, 1, 2, 1] * 5), measured("a", [1, 1, 2, 0] * 5)]
    after = [measured("b", [2, 3, 4, 2] * 5), measured("b", [3, 3, 4, 1] * 5)]
    output = results_page.change(after, before)
    gaps = [0.5, 0.5, 0.5, 0.25] * 5
    low, high = (100 * x for x in stats.t.interval(0.95, 19, np.mean(gaps), stats.sem(gaps)))
    assert output == ["+43.8 (+43.8, +43.8)", "[+43.8, +43.8]", f"[{low:+.1f}, {high:+.1f}]", "yes"]
    mixed = [measured("b", [4, 4, 4, 4] * 5), measured("b", [1, 1, 2, 1] * 5)]
    assert results_page.change(mixed, before)[3] == "every seed"  # so different that the next one might be worse
    assert results_page.change(before, after)[3] == "**no**"
    assert results_page.accuracy(after) == "68.8 % (68.8, 68.8)"


def test_tokens_leave_out_the_start_measuring_and_what_another_row_used() -> None:
    stages = [
        {"stage": "teacher", "job": "FineTune", "trained": 7},
        {"stage": "sample", "job": "Collect", "sampled": 4000},
        {"stage": "by-traces", "job": "FineTune", "trained": 2000},
        measured("by-traces-accuracy", [1]),
        {"stage": "by-logits", "job": "FineTune", "trained": 3000},
        measured("by-logits-accuracy", [1]),
    ]
    rows = {("distillation", 0): {"stages": stages}}
    output = [
        results_page.tokens(rows, "distillation", f"by-{by}-accuracy", [0], what)
        for by in ("traces", "logits")
        for what in ("sampled", "trained")
    ]
    assert output == ["4 k", "2 k", "4 k", "3 k"]


def test_a_run_is_summed_up_and_keeps_no_optimiser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    bases = importlib.import_module("_bases")
    real = bases.BASES["tiny"]
    small = {
        "task": replace(real.task, terms=3, limit=4, test_size=4),
        "model": replace(real.model, width=16, layers=1),
    }
    monkeypatch.setitem(
        bases.BASES,
        "tiny",
        replace(real, **small, cold_start=bases.StepsAndRate(20, 1e-2), rl=bases.StepsAndRate(2, 1e-4)),
    )
    start = tmp_path / "cold" / "start"
    first = results.run("cold_start", "tiny", "tiny", 0, "", tmp_path / "cold")
    second = results.run("grpo --problems-per-step 2 --group-size 2", "tiny", "tiny", 0, str(start), tmp_path / "grpo")
    assert second["command"] == "ponder run grpo --model tiny --problems-per-step 2 --group-size 2 --seed 0"
    (before,) = [s for s in first["stages"] if s["stage"] == "start-accuracy"]
    assert second["start"] == {"samples": 4, "right": before["right"]} and len(before["right"]) == 4
    grpo, after = second["stages"]
    assert grpo["job"] == "RL" and 0 < grpo["sampled"] <= 2 * 2 * 2 * 40 and after["samples"] == 4
    assert results_page.found({("grpo", 0): second}, "grpo", "", 0) == second["start"]
    assert not [*tmp_path.rglob("learner.safetensors")] and [*tmp_path.rglob("model.safetensors")]


def test_rewards_of_episodes_are_summed_by_problem(tmp_path: Path) -> None:
    """A reward may be a share: alphabet-sort pays for each turn."""
    flags = "--task alphabet-sort --cold-start-steps 2 --steps 1 --problems-per-step 1 --group-size 2 --limit 3"
    row = results.run(f"agent {flags}", "tiny", "tiny", 0, "", tmp_path / "agent")
    before, after = (s for s in row["stages"] if s["job"] == "Evaluate")
    assert [before["stage"], after["stage"]] == ["before", "after"] and before["samples"] == 4
    assert len(before["right"]) == 3 and all(0 <= x <= 4 for x in before["right"])


def test_settings_of_agents_are_chosen_on_training_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    bases = importlib.import_module("_bases")
    task = GridWalk(level=1)
    assert bases.measured(task) is task
    monkeypatch.setattr(bases, "_on_training", [True])
    validation = bases.measured(task)
    chosen = {p.question for p in validation.test}
    assert len(chosen) > 50 and not chosen & {p.question for p in task.test}
    assert not chosen & {p.question for p in validation.train[:500]}


def test_best_settings_of_an_agent_are_those_that_gained_most() -> None:
    def row(run: str, after: list[int], before: int = 0) -> dict[str, Any]:
        return {"run": run, "stages": [measured("before", [before] * 2), measured("after", after)]}

    names = ["agent --task grid-walk", "agent --task mastermind"]
    tried = [row(f"{names[0]} --lr 1", [1, 2]), row(f"{names[0]} --lr 2", [3, 2]), row("grpo --lr 3", [4, 4])]
    tried.append(row(f"{names[0]} --lr 3", [4, 4], before=3))
    assert results_agents.best_tried(tried, names, results_page.share) == [f"{names[0]} --lr 2", names[1]]
    tried.append(row(f"{names[0]} --lr 2", [0, 0]))  # a further seed: the mean of its seeds counts
    assert results_agents.best_tried(tried, names, results_page.share) == [f"{names[0]} --lr 1", names[1]]
    tried.append(row(names[0], [4, 4]))  # as it stands
    assert results_agents.best_tried(tried, names, results_page.share) == names


def test_agents_are_shown_with_the_gain_over_their_start() -> None:
    def row(before: list[float], after: list[float]) -> dict[str, Any]:
        learned = {"stage": "rl", "job": "RL", "sampled": 5000, "trained": 3000}
        return {"stages": [measured("before", before), learned, measured("after", after)]}

    rows = {("agent --task grid-walk --lr 1", seed): row([1, 2, 1, 0], [3, 3.5, 3, 2.5]) for seed in (0, 1, 2)}
    rows |= {("agent --task grid-walk", 0): row([1, 2, 1, 0], [0, 0, 0, 0])}
    text = "\n".join(results_page.agents(rows))
    assert "| grid-walk (`--lr 1`) | 25.0 % (25.0, 25.0, 25.0) | 75.0 % (75.0, 75.0, 75.0) | +50.0 (" in text
    assert "| grid-walk | 25.0 % (25.0) | 0.0 % (0.0) | -25.0 (" in text, "every setting that is kept is shown"
    assert "calculator" not in text and results_page.agents({}) == []


def judged(problem: Any, right: list[int], scores: list[float]) -> Trace:
    trace = prompt_trace(problem, ids([1]))
    for i, (good, score) in enumerate(zip(right, scores, strict=True)):
        text = f"#### {problem.answer if good else -1 - i % 2}"
        message = {"accuracy": Score(float(good)), "orm": Score(score), "prm": Score(-score)}
        trace.add(Step(0, text, ids([i]), np.zeros(1, np.float32), "eos", scores=message))
    return trace


def test_curves_are_those_of_all_subsets(tmp_path: Path) -> None:
    task = Sums(terms=2, limit=9, prompt="{sum}=", forms=("hash",), test_size=2)
    right = [[1, 0, 0, 1], [0, 0, 1, 0]]
    scores = [[0.3, 0.9, 0.1, 0.5], [0.2, 0.6, 0.8, 0.4]]
    jobs = [Stage(f"best-by-{by}", Evaluate(task, strategy=BestOfN(4), guide="reward:x")) for by in ("orm", "prm")]
    for stage in jobs:
        with Run(tmp_path / stage.name, stage.job) as run:
            run.write_traces(0, [judged(p, r, s) for p, r, s in zip(task.test, right, scores, strict=True)])
    both = results.judged(Stages(tuple(jobs)), tmp_path)
    output, areas = both["curves"], both["auroc"]
    for place, k in enumerate((1, 2, 4)):
        subsets = [[*itertools.combinations(range(4), k)]] * 2
        for name, sign in (("orm", 1), ("prm", -1)):
            best = [np.mean([r[max(c, key=lambda i: sign * s[i])] for c in cs])
                    for r, s, cs in zip(right, scores, subsets, strict=True)]  # fmt: skip
            assert output[name][place] == pytest.approx(np.mean(best), abs=1e-5)
        any_right = [np.mean([max(r[i] for i in c) for c in cs]) for r, cs in zip(right, subsets, strict=True)]
        assert output["oracle"][place] == pytest.approx(np.mean(any_right), abs=1e-5)
    assert output["majority"][0] == pytest.approx(3 / 8)
    assert output["logprob_sum"][0] == output["logprob"][0] == pytest.approx(3 / 8)
    # Of 3 right and 5 wrong answers 9 of 15 pairs are in order: of the first problem 2 of 4, of the second all 3.
    assert areas["orm"] == {"pooled": 0.6, "within problems": 0.75}
    assert areas["prm"] == {"pooled": 0.4, "within problems": 0.25}
    assert areas["logprob_sum"] == {"pooled": 0.5, "within problems": 0.5}, "all alike"


def test_page_has_log_probability_and_auroc_of_judges_where_measured() -> None:
    ways = {"orm": [0.5, 0.25], "prm": [0.5, 0.5], "majority": [0.5, 0.5], "oracle": [0.5, 0.75]}
    own = {"logprob_sum": [0.5, 0.75], "logprob": [0.5, 0.625]}
    stages = [{"stage": name, "job": "Collect", "sampled": 1000} for name in ("outcomes", "sample", "label")]
    old = {("verifiers", seed): {"stages": stages, "curves": ways} for seed in (0, 1)}
    text = "\n".join(results_page.verifiers(old))
    assert "both are missing here" in text and "log-probability, sum" not in text and "| AUROC" not in text
    areas = {way: {"pooled": 0.5, "within problems": 0.75} for way in ("orm", "prm", *own)}
    new = {key: row | {"curves": ways | own, "auroc": areas} for key, row in old.items()}
    text = "\n".join(results_page.verifiers(new))
    assert "both are missing here" not in text and "| 75.0 (75.0, 75.0) | 62.5 (62.5, 62.5) |" in text
    assert "log-probability, sum less majority" in text and "+25.0 [+25.0, +25.0]" in text
    assert "| ORM | 0.500 [0.500, 0.500] (0.500, 0.500) | 0.750 [0.750, 0.750] (0.750, 0.750) |" in text


def test_r1_is_shown_up_to_the_stage_that_every_seed_has() -> None:
    def row(*stages: str) -> dict[str, Any]:
        return {"stages": [measured(stage, [i, 4]) for i, stage in enumerate(stages)]}

    names = ["reasoning-rl-accuracy", "sft-accuracy", "all-rl-accuracy"]
    students = ["small-accuracy", "student-accuracy", "student-by-logits-accuracy"]
    rows = {("cold_start", seed): row("start-accuracy") for seed in (0, 1)}
    short = rows | {(results_page.LONGER_R1, 0): row(*names), (results_page.LONGER_R1, 1): row(*names, *students)}
    text = "\n".join(results_page.r1(short, results_page.LONGER_R1))
    assert "| RL for all scenarios | 62.5 % (62.5, 62.5) | 75.0 % (75.0, 75.0) | +12.5 (" in text
    assert "student" not in text
    both = rows | {(results_page.LONGER_R1, seed): row(*names, *students) for seed in (0, 1)}
    assert "| student, by logits |" in "\n".join(results_page.r1(both, results_page.LONGER_R1))


def test_the_page_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_page, "KEPT", tmp_path)
    assert "##" not in results_page.page().replace("# Results", "")
    rows = [
        {"run": run, "on": "tiny", "seed": seed, "machine": "here", "seconds": 60, "stages": stages}
        for seed in (0, 1)
        for run, stages in (
            ("cold_start", [measured("start-accuracy", [1, 2, 1])]),
            (
                "grpo",
                [{"stage": "grpo", "job": "RL", "sampled": 5000, "trained": 3000}, measured("accuracy", [2, 3, 2])],
            ),
        )
    ]
    (tmp_path / "tiny.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = results_page.page()
    assert "| GRPO | 33.3 % (33.3, 33.3) | 58.3 % (58.3, 58.3) | +25.0 (+25.0, +25.0) |" in page
    assert "| 5 k | 3 k |" in page and "ponder run grpo --model tiny --seed 0" in page
    assert "STaR" not in page and "4 minutes" in page
