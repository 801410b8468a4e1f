"""R1-Zero on countdown: the attempts that its bases read, and what is measured of a run, by hand."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from ponder.book import r1_zero
from ponder.book.r1_zero import attempt_value, corrected_shares, is_corrected, measure_samples
from ponder.book.sampled_answers import SampledProblem
from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.types import Problem, Score, Step, Trace, ids, user_messages
from ponder.verify import CountdownVerifier
from ponder.verify.numeric.arithmetic import evaluate_arithmetic


def recipe_module(name: str) -> Any:
    import importlib

    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    return importlib.import_module(name)


@pytest.mark.parametrize("numbers", [3, 4])
def test_attempts_state_their_values_and_are_taken_back_only_where_they_miss(numbers: int) -> None:
    traces = recipe_module("_countdown_traces")
    task = traces.CountdownTraces(
        numbers=numbers, fewest=numbers, backtracks=0.5, hits=0.1, checks=numbers == 4, **traces.PUZZLES
    )
    taken_back = right = missed_answers = 0
    for i in range(300):
        problem = task.train[i]
        text = task.gold(problem)
        assert text == task.gold(problem) and set(text) <= set(traces.ALPHABET)
        *attempts, answer = text.split("\n")
        for k, line in enumerate(attempts):
            line, *mark = line.split(" ")
            line, *check = line.split(":")
            assert check == ([str(problem.answer["target"])] if numbers == 4 else [])
            values = [int(v) for v in re.findall(r"=(-?\d+)", line)]
            expression = re.sub(r"=-?\d+", "", line)
            parts = [*[m.start() for m in re.finditer(r"[+-]", expression)][1:], len(expression)]
            assert values == [evaluate_arithmetic(expression[:end]).value for end in parts]
            assert evaluate_arithmetic(expression).used_integers == tuple(problem.answer["numbers"])
            assert mark == (["wait"] if k < len(attempts) - 1 else [])
            if mark:
                taken_back += 1
                assert values[-1] != problem.answer["target"]
        assert answer == f"#### {expression}"
        solved = task.verifier.grade(text, problem.answer).value == 1.0
        right, missed_answers = right + solved, missed_answers + (not solved)
    assert right > 10 and missed_answers > 100
    assert taken_back / (taken_back + missed_answers) == pytest.approx(0.5, abs=0.08), "half of all misses"


def test_attempts_are_all_sign_patterns() -> None:
    traces = recipe_module("_countdown_traces")
    rng = random.Random(0)
    seen = Counter(str(traces.random_attempt((2, 3, 4), rng)) for _ in range(400))
    assert set(seen) == {"2+3=5+4=9", "2+3=5-4=1", "2-3=-1+4=3", "2-3=-1-4=-5"} and min(seen.values()) > 70
    found = Counter(str(traces.solution((4, 3, 3), rng, 4)) for _ in range(200))
    assert set(found) == {"4+3=7-3=4", "4-3=1+3=4"} and min(found.values()) > 70


def test_hits_are_the_chance_of_a_solution() -> None:
    traces = recipe_module("_countdown_traces")
    for hits, low, high in ((1.0, 1.0, 1.0), (0.3, 0.35, 0.5), (0.0, 0.1, 0.25)):  # of random attempts 16 % are right
        task = traces.CountdownTraces(numbers=4, fewest=4, hits=hits, **traces.PUZZLES)
        problems = [task.train[i] for i in range(300)]
        right = [task.verifier.grade(task.gold(p), p.answer).value for p in problems]
        assert low <= sum(right) / 300 <= high


def test_plain_base_reads_single_attempts_and_rl_puzzles_of_one_size() -> None:
    build = recipe_files.build_job
    recipe = recipe_files.load_recipe(recipe_files.find_recipe("r1_zero_countdown"))
    base, *rest = (s.job for s in build(recipe, {"base": "plain"}).stages)
    assert all("wait" not in base.data.gold(base.data.train[i]) for i in range(50))
    assert {len(base.data.train[i].answer["numbers"]) for i in range(50)} == {3, 4}
    for job, numbers in zip(rest, (3, 3, 4, 4), strict=True):
        assert {len(job.task.train[i].answer["numbers"]) for i in range(20)} == {numbers}
        assert all(job.task.verifier.grade(job.task.gold(p), p.answer).value == 1.0 for p in job.task.test[:10])
    read = {base.data.train[i].question for i in range(3000)}
    assert not read & {p.question for job in rest for p in job.task.test}, "what is measured on was never read"
    primed = [s.job for s in build(recipe, {"validation": True}).stages]
    tested = {p.question for p in primed[-1].task.test}
    assert not tested & {p.question for p in rest[-1].task.test}
    assert not tested & {primed[0].data.train[i].question for i in range(500)}
    for wrong, words in (
        ({"backtracks": 1.5}, "it is a chance"),
        ({"hits": -0.1}, "hits is -0.1"),
        ({"fewest": 5}, "give at most as many"),
    ):
        with pytest.raises(UsageError, match=words):
            recipe_module("_countdown_traces").CountdownTraces(**wrong)


def trace_of(text: str, right: float) -> Trace:
    problem = Problem("a", user_messages("6,2,3>5="), {"numbers": [6, 2, 3], "target": 5})
    trace = Trace(problem, [Step(None, "", ids([1]))])
    trace.add(Step(0, text, ids([2, 3]), stop="eos", scores={"accuracy": Score(right)}))
    return trace


def test_correction_needs_a_right_answer_and_an_attempt_taken_back() -> None:
    verifier = CountdownVerifier(True, ("hash",))
    corrected = "6+2=8+3=11 wait\n6+2=8-3=5\n#### 6+2-3"
    direct = "6+2=8-3=5\n#### 6+2-3"
    wrong = "6+2=8+3=11 wait\n6-2=4-3=1\n#### 6-2-3"
    traces = [(0, trace_of(direct, 1.0)), (0, trace_of(corrected, 1.0)), (4, trace_of(wrong, 0.0))]
    assert corrected_shares(traces, verifier) == [0.5, 0.0]
    assert verifier.extract_answer(corrected) == "6+2-3" == verifier.extract_answer("#### 6 + 2 - 3 = 5")
    assert verifier.extract_answer("6+2=8-3=5") is None


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("6+2=8+3=11:5 wait\n6+2=8-3=5:5\n#### 6+2-3", True),
        ("6+2=8-3=5:5\n#### 6+2-3", False),
        ("6+2=8-3=5:5 wait\n6+2=8-3=5:5\n#### 6+2-3", False),  # what was taken back was the answer
        ("6+2=8-3=4:5 wait\n6+2=8-3=5:5\n#### 6+2-3", False),  # also where its value was wrong
        ("6-2=4+=:5 wait\n6+2=8-3=5:5\n#### 6+2-3", False),  # no attempt
        ("6-2=4-3=1 wait\n6+2=8-3=5\n#### 6+2-3", True),
    ],
)
def test_only_an_attempt_with_another_value_is_corrected(text: str, corrected: bool) -> None:
    assert is_corrected(text, CountdownVerifier(True, ("hash",))) is corrected
    assert attempt_value("6+2=8+3=99:5") == "11"


def test_samples_of_the_base_have_their_mean_and_their_vote() -> None:
    one = SampledProblem("a", "?", 3, ["x", "x", "y", "z"], [1.0, 1.0, 0.0, 0.0])
    two = SampledProblem("b", "?", 3, ["x", "y", "y", "y"], [1.0, 0.0, 0.0, 0.0])
    assert measure_samples([one, two]) == {"problems": 2, "pass@1": 0.375, "majority": 0.5}


def run_data(base: str, numbers: int, seed: int) -> dict[str, Any]:
    gain = 0.5 if base == "primed" else 0.1
    longer = 2.0 if base == "primed" else 1.0
    first = {"step": 2, "question": "6,2,3>5=", "text": "6+2=8+3=11 wait"} if base == "primed" else None
    return {
        "problems": 64, "measured at": [0, 10, 20], "pass@1": [0.1, 0.2, 0.1 + gain + seed / 100],
        "cons@16": [0.1, 0.3, 0.2 + gain], "steps": list(range(1, 21)),
        "length": np.linspace(50, 50 * longer, 20).tolist(), "reward": [0.1] * 20, "corrected": [0.0] * 19 + [0.4],
        "first": first, "tokens": 1e6, "flops": 1e12,
    }  # fmt: skip


def test_gain_at_equal_tokens_is_of_the_last_measurement_within_them() -> None:
    run = {"measured at": [0, 2, 4], "pass@1": [0.1, 0.3, 0.6], "length": [10, 20, 30, 40]}
    for length, gain in (([5] * 4, 0.0), ([10, 20, 30, 39], 0.2), ([25] * 4, 0.5)):
        assert r1_zero.gain_at_tokens(run, {"length": length}) == pytest.approx(gain)


def test_compute_of_rl_is_flops_or_tokens_up_to_each_measurement() -> None:
    run = {"measured at": [0, 2, 4], "pass@1": [0.1, 0.3, 0.6], "steps": [1, 2, 3, 4], "length": [10, 20, 30, 40]}
    x, y = r1_zero.compute_axis([run, {**run, "pass@1": [0.1, 0.5, 0.8]}])
    assert x == [256 * 30.0, 256 * 100.0] and y == pytest.approx([0.4, 0.7])
    assert r1_zero.compute_axis([{**run, "samples a step": 2}])[0] == [60.0, 200.0]
    assert r1_zero.compute_axis([{**run, "flops at": [0.0, 1e9, 4e9]}])[0] == [1e9, 4e9]
    assert r1_zero.compute_axis([run, {**run, "flops at": [0.0, 1e9, 4e9]}])[0] == x, "one unit for all"


def test_report_fits_accuracy_to_the_logarithm_of_compute() -> None:
    """Points of 10, 100 and 1,000 times the first FLOPs: on a line, and 30 points off it in the middle."""
    own = run_data("primed", 3, 0) | {"measured at": [0, 5, 10, 20], "cons@16": [0.0] * 4}
    own["flops at"] = [0.0, 1e9, 1e10, 1e11]
    straight = own | {"pass@1": [0.1, 0.2, 0.4, 0.6]}
    bent = own | {"pass@1": [0.1, 0.2, 0.7, 0.6]}
    runs = {f"{b} {k}": straight if b == "primed" else bent for b in r1_zero.BASES for k in r1_zero.NUMBERS}
    text = "\n".join(r1_zero.FIGURE.report({s: {"seed": s, "runs": runs} for s in range(2)}))
    assert "3 points, 2.0 decades" in text and "in FLOPs of sampling and learning, from" in text
    line = "points of pass@1 by a tenfold of RL's compute: **yes**; points around the line by"
    assert f"- primed, 3 numbers: +20.0 [+20.0, +20.0] (+20.0, +20.0) {line} 0.0 [" in text
    off = f"{100 * np.sqrt(0.1**2 + 0.2**2 + 0.1**2):.1f}"
    assert f"- plain, 4 numbers: +20.0 [+20.0, +20.0] (+20.0, +20.0) {line} {off} [" in text
    assert text.count("in every seed: **yes**") == text.count("in every seed: **no**") == 2


def test_dip_is_described_and_left_out_of_the_fit() -> None:
    """Below the base after 5 steps in both seeds; then on a line of 20 points a tenfold."""
    own = run_data("primed", 3, 0) | {"measured at": [0, 5, 10, 15, 20], "cons@16": [0.0] * 5, "length": [90.0] * 20}
    own["flops at"] = [0.0, 1e9, 1e10, 1e11, 1e12]
    dips = own | {"pass@1": [0.3, 0.1, 0.4, 0.6, 0.8]}
    other = own | {"pass@1": [0.3, 0.4, 0.5, 0.6, 0.7], "length": [30.0] * 20}
    assert (r1_zero.dip_length([dips]), r1_zero.dip_length([dips, other]), r1_zero.dip_length([other])) == (1, 0, 0)
    assert r1_zero.dip_length([own | {"pass@1": [0.3, 0.1, 0.1, 0.1, 0.1]}]) == 0, "it never rises"
    runs = {f"{b} {k}": dips if b == "primed" else other for b in r1_zero.BASES for k in r1_zero.NUMBERS}
    seeds = {s: {"seed": s, "runs": runs} for s in range(2)}
    text = "\n".join(r1_zero.FIGURE.report(seeds))
    assert "pass@1 first dips below the base's, in every seed:" in text
    assert (
        "- primed, 3 numbers: from 30.0 % before RL to 10.0 after step 5." in text
        and "- plain, 3 numbers: from" not in text
    )
    assert "in all steps, which is in its dip, by -60.0" in text, "600 tokens of each sample are 6 of its steps"
    assert "- primed, 3 numbers: +20.0 [+20.0, +20.0]" in text
    assert "of the 3 points after the dip; with those in it, which are low, it rises by +23.0 [" in text


def test_report_says_what_each_base_gains() -> None:
    seeds = {
        s: {"seed": s, "runs": {f"{b} {k}": run_data(b, k, s) for b in r1_zero.BASES for k in r1_zero.NUMBERS}}
        for s in range(3)
    }
    text = "\n".join(r1_zero.FIGURE.report(seeds))
    assert "gains +51.0 [+48.5, +53.5] (+50.0, +51.0, +52.0) points of pass@1: **yes**" in text
    assert "more than the plain one by +40.0" in text
    assert "no more tokens than the plain one in all steps, by -1.0 [-3.5, +1.5]" in text, "its first 10 steps"
    assert "(64 with 3 numbers and 64 with 4 numbers)" in text and "by less than a tenth: **yes**" in text
    assert re.search(r"its answers grow by \+9\d .*: \*\*yes\*\*; those of the plain base by \+0", text)
    assert "the first one: step 2, step 2, step 2" in text and "plain, 4 numbers: none of the samples" in text
    assert "6+2=8+3=11 wait" in text
    assert len(r1_zero.FIGURE.draw(seeds).rows) == 4 * (3 + 3 + 20 + 20 + 2)
