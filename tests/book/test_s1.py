"""s1 on countdown: how answers are chosen, what is measured of chains, and s1's three measures, by hand."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ponder.book import s1
from ponder.book.s1 import class_metrics, control_metrics, sequential_minus_parallel, thinking_tokens
from ponder.cli import recipe_files
from ponder.runs import Run
from ponder.types import Cost, Problem, Score, Step, Trace, ids, user_messages


def recipe_module() -> Any:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    return importlib.import_module("s1_countdown")


def test_answers_are_chosen_by_length_and_domain() -> None:
    made = recipe_module()
    task = made.CountdownTraces(numbers=3, fewest=3, backtracks=1.0, max_attempts=12, **made.PUZZLES)
    chosen = {by: made.choose(task, by, 60, 600, seed=0) for by in made.CHOSEN}
    golds = {by: [task.gold(p) for p in problems] for by, problems in chosen.items()}
    for by, problems in chosen.items():
        assert len({p.question for p in problems}) == 60, by
        assert all(task.verifier.grade(g, p.answer).value == 1.0 for g, p in zip(golds[by], problems, strict=True))
    right = {
        p.question: len(text)
        for p in reversed(task.train[:600])  # of a puzzle that comes again the first one counts
        if task.verifier.grade(text := task.gold(p), p.answer).value == 1.0
    }
    assert sorted(map(len, golds["longest"])) == sorted(right.values())[-60:]

    def domains(by: str) -> Counter[int]:
        return Counter(p.answer["target"] // 10 for p in chosen[by])

    assert max(domains("diverse").values()) < max(domains("random").values())
    lengths = {by: sum(map(len, texts)) / 60 for by, texts in golds.items()}
    assert lengths["random"] < lengths["all"] <= lengths["longest"]


def test_conditional_problems_state_a_budget_that_their_answer_keeps() -> None:
    made = recipe_module()
    task = made.CountdownTraces(numbers=3, fewest=3, backtracks=1.0, max_attempts=12, **made.PUZZLES)
    stated = made.StatesTokens(made.ChosenAnswers(task, "random", 20, 200, 0))
    for problem in stated.train:
        budget = int(problem.question.split("#")[1].strip("="))
        used = len(stated.gold(problem).split(made.THINK_END)[0])
        assert budget in made.BUDGETS and (used <= budget) and not any(used <= b < budget for b in made.BUDGETS)


def test_steps_are_counted_down_and_half_of_the_answers_are_long() -> None:
    made = recipe_module()
    task = made.CountdownTraces(numbers=3, fewest=3, backtracks=1.0, checks=True, max_attempts=12, **made.PUZZLES)
    chosen = made.ChosenAnswers(task, "random", 20, 200, 0)
    counted, classes = made.CountsSteps(chosen), made.StatesClass(chosen)
    for plain, problem in zip(chosen.train, counted.train, strict=True):
        *attempts, answer = counted.gold(problem).split("\n")
        assert int(problem.question.split("#")[1].strip("=")) == len(attempts)
        assert [line.partition(")")[0] for line in attempts] == [str(k) for k in range(len(attempts), 0, -1)]
        stripped = [line.partition(")")[2] for line in attempts]
        assert "\n".join([*stripped, answer]) == chosen.gold(plain)
    lengths: dict[str, list[int]] = {"#s=": [], "#l=": []}
    for problem in classes.train:
        lengths[problem.question[-3:]].append(len(classes.gold(problem).split(made.THINK_END)[0]))
    assert max(lengths["#s="]) < min(lengths["#l="]) and min(map(len, lengths.values())) >= 5
    assert (made.stepwise(32).max_steps, made.stepwise(256).max_steps) == (1, 8)


def test_thinking_ends_at_its_mark_in_one_step_or_several() -> None:
    problem = Problem("a", user_messages("3, 7>10="), {"numbers": [3, 7], "target": 10})
    trace = Trace(problem, [Step(None, "", ids([1]))])
    trace.add(Step(0, "3*7:21", ids(range(6))))
    trace.add(Step(1, " wait\n", ids(range(6))))
    trace.add(Step(2, "3+7:10\n#### 3+7", ids(range(15))))
    assert thinking_tokens(trace, 3) == 6 + 6 + 6
    trace.add(Step(1, "\n#### ", ids(range(6))))
    trace.add(Step(4, "3*7", ids(range(3))))
    assert thinking_tokens(trace, 5) == 6
    assert thinking_tokens(trace, 1) == 6, "thinking that never ends"


def chains(right: float, longest: list[int]) -> dict[str, Any]:
    return {"problems": 2, "right": right, "thinking": 10.0, "longest": longest, "sampled": 40.0}


def seed_data(seed: int) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    for key in s1.CHOSEN:
        best = 0.1 * (key == "all")
        measured |= {f"{key}-forced-{b}": chains(0.2 + b / 1000 + best, [b, b - 1]) for b in (100, 200)}
        measured[f"{key}-samples"] = {"n": [1, 2], "vote": [0.1, 0.3], "tokens per sample": 20.0}
    measured |= {f"string-wait-{w}": chains(0.5, [100, 100]) for w in (1, 2)}
    for key, used in (("token-conditional", [150, 250]), ("step-conditional", [90, 100]), ("rejection", [120, -1])):
        measured |= {f"{key}-{b}": chains(0.2, used) for b in (100, 200)}
    measured |= {"class-short": chains(0.2, [20, 30]), "class-long": chains(0.4, [80, 90])}
    trained = {name: {"tokens": 1e4, "flops": 1e9} for name in (*s1.CHOSEN, "conditional", "stepwise", "classes")}
    return {"seed": seed, "measured": measured, "trained": trained}


def test_measures_are_those_of_the_paper() -> None:
    d = seed_data(0)
    forced = control_metrics(d, "all-forced")
    assert forced["control"] == 1.0 and forced["performance"] == pytest.approx(0.5)
    assert forced["scaling"] == pytest.approx(0.1 / 100)
    assert control_metrics(d, "token-conditional")["control"] == pytest.approx((0 + 0.5) / 2)
    assert control_metrics(d, "rejection")["control"] == 0.5, "a problem without an answer is not controlled"
    classes = class_metrics(d)
    assert classes == {"control": 1.0, "gain": pytest.approx(0.2), "performance": 0.4, "sampled": 40.0}
    d["measured"]["class-long"]["longest"] = [20, -1]  # one as long as one of the short, and one without an end
    assert class_metrics(d)["control"] == pytest.approx((0.5 + 0 + 1 + 1) / 4)
    assert sequential_minus_parallel(d) == pytest.approx(0.5 - 0.3), "two samples have as many tokens"


def test_report_has_every_comparison() -> None:
    seeds = {s: seed_data(s) for s in range(3)}
    text = "\n".join(s1.FIGURE.report(seeds))
    assert text.count("all three criteria, against") == 3 and "controls perfectly: **yes**" in text
    assert "less that of token-conditional: +30.0 [+30.0, +30.0]" in text and "`wait`, twice: +0.0" in text
    assert "| string | once | twice | tokens of thinking, twice |" in text
    assert "| class-conditional | 100.0 [100.0, 100.0] (100.0, 100.0, 100.0) | +20.0" in text
    assert "less that of class-conditional: +10.0" in text and "longer than asked for short: **yes**" in text
    assert len(s1.FIGURE.draw(seeds).rows) == 4 * 2 + 5 * 2 + 3 + 2 + 2


def test_strings_have_one_budget_and_none_is_among_them() -> None:
    made = recipe_module()
    plain = {s.name: s.job for s in made.recipe().stages}
    wide = {s.name: s.job for s in made.recipe(string_budget=384).stages}
    strings = [f"string-{name}-{w}" for name in ("wait", "alternatively", "hmm", "none") for w in (1, 2, 4)]
    assert [name for name in plain if name.startswith("string-")] == strings
    assert {plain[name].strategy.max_thinking_tokens for name in strings} == {256}
    assert {wide[name].strategy.max_thinking_tokens for name in (*strings, "unlengthened")} == {384}
    assert set(wide) - set(plain) == {"unlengthened"} and wide["unlengthened"].strategy.waits == 0
    assert plain["string-none-2"].strategy.wait_word == "" and plain["string-none-2"].strategy.waits == 2


def test_problem_that_failed_again_when_a_run_went_on_counts_once(tmp_path: Path) -> None:
    made = recipe_module()
    verifier = made.ChainCountdown(**made.PUZZLES).verifier

    def solved(number: int, score: float | None) -> Trace:
        trace = Trace(Problem(f"p{number}", user_messages("1,2>3="), {}), [Step(None, "1,2>3=", ids([1]))])
        trace.cost = Cost(generated_tokens=10)
        if score is None:
            trace.failed = "none of 16 answers has 0 to 56 tokens"
        else:
            trace.chosen = trace.add(
                Step(0, "1+2\n#### 1+2", ids([2] * 12), last=True, scores={verifier.name: Score(score)})
            )
        return trace

    with Run(tmp_path / "run", {"is": "Evaluate"}) as run:
        run.write_traces(0, [solved(0, 1.0), solved(1, None), solved(2, 0.0)])
        run.write_traces(0, [solved(1, None)])
    found = s1.measure_chains(tmp_path / "run", verifier)
    assert found["problems"] == 3 and found["right"] == pytest.approx(1 / 3, abs=1e-5)
    assert found["longest"] == [3, 3, -1] and found["sampled"] == 10
