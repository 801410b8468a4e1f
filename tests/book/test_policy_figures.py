"""Figures about training: algorithms, reward hacking and over-optimisation, their numbers against slow references."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import run_async
from ponder.book import algorithms, over_optimisation, reward_hacking, training_samples
from ponder.book.best_of_n import best_curve, best_of_n_kl, expected_best
from ponder.book.figure import FigureRun
from ponder.book.make import make_figure
from ponder.book.prefix_values import choose_answers, line_starts, prefix_value_lines, summarise_values
from ponder.cli import recipe_files
from ponder.runs import job_json
from ponder.tasks import Sums
from ponder.types import Score, Step, Trace, ids


def build(name: str, **settings: Any) -> Any:
    return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings)


def weak_rewards() -> Any:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    return importlib.import_module("_weak_rewards")


# algorithms


def curve(final: float) -> dict[str, Any]:
    out: dict[str, Any] = {"step": [2, 4, 6], "tokens": [100, 200, 300], "flops": [1e6, 2e6, 3e6]}
    return out | {"pass@1": [0.5, 0.5, final], "state bytes": 2_000_000}


def algorithm_data(seed: int = 0) -> dict[str, Any]:
    on = {name: curve(0.6) for name in algorithms.NAMES} | {"grpo": curve(0.7)}
    on["dapo"] |= {"pass@1": [0.5, 0.55, 0.9], "tokens": [150, 300, 450]}  # more tokens a step
    on["ppo"]["state bytes"] = 4_000_000
    off = {name: curve(0.6) for name in algorithms.NAMES} | {"reinforce": curve(0.3), "rloo": curve(0.5)}
    points = [(True, [(0.5, 0.5), (0.8, 0.9)]), (False, [(0.5, 0.5), (0.2, 0.1)])]
    data: dict[str, Any] = {"model": "tiny", "seed": seed, "budget": 300, "problems": 4, "start": 0.4, "updates": 640}
    runs = {algorithms.ON: on, algorithms.OFF: off}
    return data | {"lr": 1e-4, "runs": runs, "prefix values": summarise_values(points)}


def test_runs_are_measured_at_the_budget() -> None:
    def right(name: str) -> float:
        return algorithms.at_budget(data, name, algorithms.ON, "pass@1", 0.4)

    data = algorithm_data() | {"budget": 250}
    assert right("grpo") == pytest.approx(0.6)
    assert algorithms.at_budget(data, "dapo", algorithms.ON, "flops") == pytest.approx(1e6 + 1e6 * 100 / 150)
    data["budget"] = 50
    assert right("grpo") == pytest.approx(0.45)


def test_algorithms_are_compared_at_equal_tokens() -> None:
    data = {s: algorithm_data(s) for s in range(3)}
    text = "\n".join(algorithms.FIGURE.report(data))
    assert "| GRPO | 70.0 [70.0, 70.0] (70.0, 70.0, 70.0) | +30.0" in text and "| DAPO | 55.0" in text
    assert "from the same tokens, on policy: DAPO less GRPO -15.0" in text
    assert "off policy: REINFORCE, batch mean less REINFORCE, no baseline -30.0" in text
    # REINFORCE 60 less 30, GRPO 70 less 60; RLOO 60 less 50
    assert "batch mean, which has no ratio, loses more off policy than GRPO: +30.0" in text and "more by +20.0" in text
    assert "RLOO, which has no ratio, loses more off policy than GRPO: +10.0" in text and "more by +0.0" in text
    assert "PPO keeps 2.00 [2.00, 2.00] (2.00, 2.00, 2.00) times" in text and "twice: **yes**" in text
    rows = algorithms.FIGURE.draw(data).rows
    assert {row["algorithm"] for row in rows if "algorithm" in row} == set(algorithms.NAMES.values())
    drawn = {(row["way"], row["algorithm"]): row["gain"] for row in rows if "tokens" not in row and "algorithm" in row}
    assert drawn[algorithms.OFF, "REINFORCE, batch mean"] == pytest.approx(-0.1)
    assert drawn[algorithms.ON, "REINFORCE, batch mean"] == pytest.approx(0.2)


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
def test_recipe_gives_every_algorithm_as_much(model: str) -> None:
    every = set()
    for way, parts in algorithms.MINIBATCHES.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stages = build("algorithms", model=model, **algorithms.way_settings(model, way))
        jobs = {s.name: s.job for s in stages.stages if s.name in algorithms.NAMES}
        assert list(jobs) == list(algorithms.NAMES) and all(j.algorithm.kl is None for j in jobs.values())
        assert {j.minibatches for j in jobs.values()} == {parts}
        assert all(j.eval_every * 4 == j.steps for j in jobs.values())
        for j in jobs.values():
            samples = j.problems_per_step * j.group_size // parts
            every.add((j.optimizer_steps, samples, j.group_size, j.model, j.optimizer.lr))
    assert len(every) == 1, "as many samples for each optimiser step, and as many of these, whatever the way"


def test_recipe_warns_of_reinforce_off_policy() -> None:
    with pytest.warns(UserWarning, match="off policy"):
        build("algorithms", steps=8)


# the value of a prefix


def test_lines_begin_after_line_ends() -> None:
    assert line_starts(["1", "+", "2", "\n", "3", "\n", "#"]) == [0, 4, 6]
    assert line_starts(["1", "\n"]) == [0]  # nothing follows the last token
    assert len(line_starts(["\n"] * 20)) == 6


def test_values_are_summarised_by_line_and_outcome() -> None:
    answers = [
        (True, [(0.5, 0.4), (0.9, 1.0)]),
        (True, [(0.7, 0.6)]),
        (False, [(0.4, 0.4), (0.1, 0.0)]),
        (False, [(0.6, 0.2), (0.3, 0.25)]),
    ]
    out = summarise_values(answers)
    assert out["right"] == {"answers": 2, "value": [0.6, 0.9], "truth": [0.5, 1.0]}
    assert out["wrong"] == {"answers": 2, "value": [0.5, 0.2], "truth": [0.3, 0.125]}
    assert out["auroc"] == [0.75, 1.0]  # of (0.5, 0.7) and (0.4, 0.6) three pairs of four are in order
    assert out["correlation"] == pytest.approx(np.corrcoef([0.9, 0.1, 0.3], [1.0, 0.0, 0.25])[0, 1], abs=1e-4)
    assert "| AUROC of the value | 0.75 | 1.00 |" in prefix_value_lines([out])


def traced(*verdicts: float, name: str = "accuracy") -> Trace:
    problem = Sums().train[0]
    trace = Trace(problem, [Step(None, problem.question, ids([1, 2]))])
    for verdict in verdicts:
        trace.add(Step(0, "x", ids([3]), np.array([-1.0], np.float32), "eos", scores={name: Score(verdict)}))
    return trace


def test_one_right_and_one_wrong_answer_of_a_problem() -> None:
    both, right = traced(0.0, 1.0, 1.0), traced(1.0)
    assert choose_answers([both, right], "accuracy") == [(both, 2, True), (right, 1, True), (both, 1, False)]


# reward hacking


@pytest.mark.parametrize(
    ("kind", "text", "reward"),
    [
        ("equations", "0+0=0\n#### 3", 1.0),
        ("equations", "1+4=5\n5+3=9\n#### 9", 0.5),
        ("anywhere", "1 2 8 9\n#### 9", 1.0),
        ("anywhere", "18\n#### 81", 0.0),
        ("brief", "#### 9", 1 - 6 / 80),
        ("brief", "1+4=5", 0.0),
    ],
)
def test_weak_rewards_have_their_holes(kind: Any, text: str, reward: float) -> None:
    task = Sums(terms=3, limit=5, prompt="{sum}=", forms=("hash",))
    weak = weak_rewards().WeaklyRewarded(task, kind)
    trace = traced()
    trace.problem = task.make_problem("a", "1+4+3=", "8")
    leaf = trace.add(Step(0, text, ids([3])))
    (score,) = run_async(weak.verifier(trace, [leaf]))
    assert score.value == pytest.approx(reward)
    assert list(weak.test) == list(task.test)


def hacking_data(seed: int = 0) -> dict[str, Any]:
    def own(right: float, weak: float) -> dict[str, Any]:
        read = {"step": [0, 4], "reward": [0.5, weak], "right": [0.5, right], "implicit": [0.5, right]}
        read |= {"kl": [0.0, 3.0], "length": [20.0, 10.0]}
        example = [["1+1=", "#### 3"]]
        return {"training": read, "test": {"right": right, "weak": weak}, "examples": example,
                "flops": 1e9, "tokens": 1000}  # fmt: skip

    runs = {
        "verified": own(0.8, 0.6),
        "weak": own(0.1, 1.0),
        "weak-kl-0.1": own(0.6, 0.7),
        "weak-kl-1": own(0.3, 0.7),
    }
    return {"model": "tiny", "seed": seed, "weak": "brief", "start": {"right": 0.5, "weak": 0.5}, "runs": runs}


def test_hacking_report_says_what_rose_and_fell() -> None:
    seeds = {s: hacking_data(s) for s in range(3)}
    text = "\n".join(reward_hacking.FIGURE.report(seeds))
    assert "rises by +50.0" in text and "falls: **yes**" in text and "1+1=\n#### 3" in text
    assert "weight 1 right answers are +20.0" in text and "falls over training by 0.40" in text
    assert "instead right answers are +70.0" in text and "change by +30.0" in text
    assert len(reward_hacking.FIGURE.draw(seeds).rows) == (4 * 3 - 1) * 2, "the verifier's own is no weak reward"


def test_recipe_of_reward_hacking_measures_by_the_verifier() -> None:
    stages = build("reward_hacking")
    assert job_json.decode(job_json.encode(stages)) == stages
    jobs = {s.name: s.job for s in stages.stages}
    assert jobs["weak"].task.verifier.name != "accuracy" == jobs["verified"].task.verifier.name
    assert all(job.task.verifier.name == "accuracy" for name, job in jobs.items() if name.startswith("test-"))
    assert jobs["weak"].algorithm.kl is None and jobs["weak-kl-0.1"].algorithm.kl.beta == 0.1


def test_recipes_take_judges_that_are_there() -> None:
    own, given = (build("over_optimisation", judges=judges) for judges in (None, "runs/judges"))
    names = [[s.name for s in stages.stages] for stages in (own, given)]
    assert [name for name in names[0] if name not in names[1]] == ["outcomes", "orm", "implicit"]
    rewards = [{s.name: s.job for s in stages.stages}["rl-orm"].task.guide for stages in (own, given)]
    assert rewards == ["reward:stage:orm", "reward:runs/judges/orm"]
    assert "implicit" not in [s.name for s in build("reward_hacking", judges="runs/judges").stages]
    assert [s.name for s in build("outcome_judges", start="x").stages] == ["outcomes", "orm", "implicit"]


def test_steps_of_a_run_are_read_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [(step, traced(float(step))) for step in range(8) for _ in range(40)]
    monkeypatch.setattr(training_samples, "read_traces", lambda folder: iter(stored))
    steps = training_samples.traces_by_step(Path("x"), 3)
    assert list(steps) == [0, 3, 6, 7] and all(len(traces) == 32 for traces in steps.values())


# over-optimisation


def test_best_of_n_is_the_mean_over_subsets() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, 7).astype(float).tolist()  # with ties
    worth = rng.random(7).tolist()
    for n in (1, 2, 3, 7):
        slow = []
        for subset in itertools.combinations(range(7), n):
            best = max(scores[i] for i in subset)
            # of equal scores in all of the pool, each is as likely to be the one
            slow.append(np.mean([worth[i] for i in range(7) if scores[i] == best]))
        assert expected_best(scores, worth, n) == pytest.approx(np.mean(slow)), n
    states = [True, False, True, True, False, True, False]
    for n in (1, 2, 3, 7):
        slow = []
        for subset in itertools.combinations(range(7), n):
            able = [i for i in subset if states[i]] or [*subset]
            best = max(scores[i] for i in able)
            alike = [i for i in range(7) if scores[i] == best and states[i] == states[able[0]]]
            slow.append(np.mean([worth[i] for i in alike]))
        assert expected_best(scores, worth, n, states) == pytest.approx(np.mean(slow)), n
    many = rng.random(1024)
    assert expected_best(many.tolist(), many.tolist(), 1024) == pytest.approx(many.max())
    assert expected_best(many.tolist(), many.tolist(), 1) == pytest.approx(many.mean())
    curve_ = best_curve([scores], [worth], [1, 7])
    assert curve_["judge"][1] == max(scores) and curve_["right"][0] == pytest.approx(np.mean(worth), abs=1e-5)


def test_kl_of_best_of_n_against_a_sum() -> None:
    """Of n draws the best: with a uniform pool of M the chance of the i-th is (i^n - (i - 1)^n) / M^n."""
    m = 20_000
    for n in (1, 4, 64):
        p = np.diff((np.arange(m + 1) / m) ** n)
        assert best_of_n_kl(n) == pytest.approx(float((p[p > 0] * np.log(p[p > 0] * m)).sum()), abs=1e-3)
    assert best_of_n_kl(1024) == pytest.approx(math.log(1024) - 1023 / 1024)


def over_data(seed: int = 0) -> dict[str, Any]:
    best = {name: {"judge": [0.5, 0.7, 0.9], "right": [0.5, 0.6, 0.3]} for name in over_optimisation.JUDGES}
    read = {"step": [0, 3], "reward": [0.5, 0.9], "right": [0.5, 0.4], "kl": [0.0, 5.0], "length": [9.0, 9.0]}
    runs = {name: {"training": read, "test": 0.4, "tokens": 10, "flops": 1e6} for name in over_optimisation.RUNS}
    data: dict[str, Any] = {"seed": seed, "problems": 3, "n": [1, 2, 4], "best": best, "runs": runs, "start": 0.5}
    data["auroc"] = {name: {"pooled": 0.6, "within problems": 0.7} for name in best}
    return data | {"states nothing": 2, "sampled tokens": 100, "sampling flops": 1e6}


def test_over_optimisation_report_finds_the_bend() -> None:
    seeds = {s: over_data(s) for s in range(3)}
    text = "\n".join(over_optimisation.FIGURE.report(seeds))
    assert "peak at N = 2, N = 2, N = 2" in text and "fall by 30.0" in text
    assert "rise by 10.0" in text and "bends, by more than 1 point: **yes**" in text
    assert "rises by 0.40" in text and "a gain: **no**" in text
    assert "is never chosen before one" in text and "6 of 36" in text and "other starts" not in text
    assert "| the start's own log-probability | 0.600 [0.600, 0.600] (0.600, 0.600, 0.600) | 0.700 [" in text
    rows = over_optimisation.FIGURE.draw(seeds).rows
    assert len(rows) == 6 * 3 + 3 * 2 * (3 * 2 + over_optimisation.MEAN_PLACES)
    mean = [row for row in rows if row["line"] == "RL on the scalar head: right"]
    assert (mean[0]["value"], mean[-1]["value"], mean[-1]["kl"]) == pytest.approx((0.5, 0.4, 5.0))


def test_over_optimisation_reads_seeds_of_earlier_versions() -> None:
    seeds = {s: over_data(s) for s in range(3)}
    for data in seeds.values():
        del data["auroc"], data["states nothing"], data["best"]["logprob_sum"]
    text = "\n".join(over_optimisation.FIGURE.report(seeds))
    assert "also one that states nothing" in text and "AUROC" not in text and "own log-probability" not in text
    rows = over_optimisation.FIGURE.draw(seeds).rows
    assert len({row["line"] for row in rows if row["panel"] == "best of N"}) == 5


def test_mean_over_kl_ends_where_the_first_seed_does() -> None:
    curves = [([0.0, 1.0, 4.0], [0.0, 1.0, 4.0]), ([0.0, 9.0, 1.0], [0.0, 18.0, 2.0])]  # KL went back in the second
    x, y = over_optimisation.mean_over_kl(curves)
    assert (x[0], x[-1]) == (0.0, 4.0) and y == pytest.approx([1.5 * kl for kl in x])


def test_over_optimisation_says_where_its_halves_have_other_starts() -> None:
    apart = {"start": 0.6, "seconds": 300, "machine": "1 thread of a test"}
    seeds = {s: over_data(s) | {"best of N apart": apart} for s in range(3)}
    text = "\n".join(over_optimisation.FIGURE.report(seeds))
    assert "of other starts" in text and "took 300, 300, 300 s of 1 thread of a test" in text


SMALL: dict[str, dict[str, Any]] = {
    "algorithms": {"steps": 2, "problems_per_step": 4, "limit": 6},
    "reward-hacking": {"steps": 2, "problems_per_step": 2, "limit": 6},
    "over-optimisation": {"steps": 2, "problems_per_step": 2, "limit": 6, "n": 8, "n_problems": 3},
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SMALL)
def test_figure_from_scratch(name: str, tmp_path: Path) -> None:
    from ponder.book import find_figure

    def build_small(recipe: str, **settings: Any) -> Any:
        small = {
            "cold_start": {"steps": 60, "limit": 6},
            "outcome_judges": {"judge_steps": 2, "problems": 16, "limit": 6},
        }
        return build(recipe, **settings | small.get(recipe, SMALL[name]))

    run = FigureRun("tiny", 0, tmp_path / "runs", build_small, device="cpu", dtype="float32")
    make_figure(find_figure(name), run, [0], tmp_path / "book", lambda seed, data: None)
    data = json.loads((tmp_path / "book" / f"{name}-tiny" / "0.json").read_text())
    if name == "algorithms":
        assert 0 < data["start"] < 1 and list(data["runs"]) == list(algorithms.MINIBATCHES)
        assert all(list(runs) == list(algorithms.NAMES) for runs in data["runs"].values())
        assert all(0 <= x <= 1 for runs in data["runs"].values() for run in runs.values() for x in run["pass@1"])
    elif name == "reward-hacking":
        first = [own["training"] for own in data["runs"].values()]
        assert all(abs(read["kl"][0]) < 1e-3 for read in first)  # the first samples are the start's own
        assert len({read["right"][0] for read in first}) == 1
    else:
        assert data["n"] == [1, 2, 4, 8]
        assert list(data["best"]) == list(over_optimisation.JUDGES)
        assert len({data["best"][judge]["right"][0] for judge in data["best"]}) == 1, "one sample, whoever judges"
        nothing = data["states nothing"]
        assert 0 <= nothing <= 3 * 8
        if nothing == 0:  # else an answer that states something is taken before one of a higher score
            assert all(np.all(np.diff(data["best"][judge]["judge"]) >= -1e-5) for judge in data["best"])
