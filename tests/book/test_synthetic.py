"""Synthetic problems: what the tiny model reads before it writes, the stages of the recipe, and the report."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest

from ponder.book import synthetic
from ponder.cli import recipe_files
from ponder.pipelines.problems.reapply_filters import FILTER_NAMES, MadeProblem
from ponder.pipelines.problems.solve_rate import SolveRate
from ponder.pipelines.problems.sources import writing_requests
from ponder.tasks.synthetic import parse_reply, synthetic_problem


def stages_of(**settings: Any) -> dict[str, Any]:
    recipe = recipe_files.load_recipe(recipe_files.find_recipe("synthetic_problems"))
    return {stage.name: stage.job for stage in recipe_files.build_job(recipe, settings).stages}


def test_every_other_example_is_a_request_with_a_reply_that_is_right() -> None:
    jobs = stages_of()
    data = jobs["start"].data
    tests = {p.question for p in data.test}
    for index in range(1, 60, 2):
        request = data.train[index]
        reply = parse_reply(data.gold(request))
        assert not isinstance(reply, str)
        question, answer = reply
        assert str(sum(map(int, question.removesuffix("=").split("+")))) == answer and question not in tests
    assert data.gold(data.train[0]).endswith(f"#### {data.train[0].answer}")


def test_sentences_of_requests_are_single_tokens() -> None:
    jobs = stages_of()
    words, parents = jobs["start"].model.words, list(jobs["write-made"].task.train)
    for source, operators in (("write", ()), ("evolve", ("constraint", "steps")), ("backward", ())):
        for request in writing_requests(source, parents, operators, 4, 1, 0):  # type: ignore[arg-type]
            text = request.question
            for word in sorted(words, key=len, reverse=True):
                text = text.replace(word, "")
            assert set(text) <= set("0123456789+="), text


def test_stages_leave_out_one_filter_at_a_time() -> None:
    jobs = stages_of(seed=1)
    assert jobs["together-tune"].data.filters == FILTER_NAMES
    for name in FILTER_NAMES:
        assert set(FILTER_NAMES) - set(jobs[f"without-{name}-tune"].data.filters) == {name}
        assert jobs[f"without-{name}-tune"].data.runs == jobs["together-tune"].data.runs
    assert jobs["without-all-tune"].data.filters == ()
    assert len({(job.steps, job.batch_size) for name, job in jobs.items() if name.endswith("-tune")}) == 1
    seeds = [p.question.count("+") + 1 for p in jobs["evolve-made"].task.train]
    held_out = {p.question.count("+") + 1 for p in jobs["together-accuracy"].task.test}
    assert len(seeds) == 128 and set(seeds) == {3, 4} and held_out == {3, 4, 5, 6}


def test_right_lines_alone_are_learned_from_where_it_says_so() -> None:
    jobs = stages_of(seed=1)
    for name in synthetic.CHECKED:
        checked, plain = (jobs[f"{x}-tune"].data for x in (name, name.removesuffix("-checked")))
        assert checked.checked and not plain.checked and checked.runs == plain.runs and checked.filters == FILTER_NAMES
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    has_right_lines = importlib.import_module("synthetic_problems").has_right_lines
    one = made("4+4+3=", "11")
    assert has_right_lines(one, "4+4=8\n8+3=11\n#### 11")
    for text in ("4+4=9\n9+3=11\n#### 11", "4+4=8\n8+3=12\n#### 11", "4+4=8\n#### 11", "8+3=11\n#### 11", "#### 11",
                 "4+4=8\n8+3=11\n", "", "4+4=8\n8+3=11\n#### 12"):  # fmt: skip
        assert not has_right_lines(one, text), text


def test_checked_answers_drop_only_those_with_wrong_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    module = importlib.import_module("synthetic_problems")
    one = replace(made("4+4+3=", "11"), solutions=("4+4=9\n9+3=11\n#### 11", "4+4=8\n8+3=11\n#### 11"))
    monkeypatch.setattr(module, "read_made_problems", lambda run: [one])
    data = module.FilteredAnswers(stages_of()["start"].data.task, ("made",), (), 1)
    assert [data.gold(p) for p in data.train] == [one.solutions[0]]
    assert [data.gold(p) for p in replace(data, checked=True).train] == [one.solutions[1]], "of as many as there may be"


def made(question: str, answer: str) -> MadeProblem:
    problem = synthetic_problem("p", question, answer, source="write", operator="write")
    return MadeProblem(problem, SolveRate(problem), ())


def test_answers_of_sums_are_worked_out() -> None:
    assert synthetic.has_right_answer(made("3+4+5=", "12")) and not synthetic.has_right_answer(made("3+4+5=", "13"))
    assert not synthetic.has_right_answer(made("3++5=", "8"))
    assert synthetic.describe([made("3+4=", "7"), made("3+4=", "8")], True) == {
        "problems": 2,
        "answers": 0,
        "right": 0.5,
    }


def seed_data(seed: int) -> dict[str, Any]:
    def share(x: float) -> dict[str, float]:
        return {"all": x + seed / 100, "few": x + 0.1, "many": x - 0.1, "tokens": 1000.0}

    counts = {"problems": 10, "answers": 8, "right": 0.5}
    way = {"made": counts, "kept": {"problems": 4, "answers": 4, "right": 1.0},
           "dropped": dict.fromkeys(FILTER_NAMES, 1), "asked": 12, "attempts": 8,
           "cost": {"written": 50.0, "tried": 700.0}}  # fmt: skip
    names = [*synthetic.GIVEN, *synthetic.WAYS, synthetic.TOGETHER]
    out: dict[str, Any] = {"model": "tiny", "seed": seed, "start": share(0.3), "made": dict.fromkeys(names, way)}
    out["made"] |= {f"without-{name}": counts for name in (*FILTER_NAMES, "all")}
    out["learned"] = {name: share(0.5) for name in names} | {"seeds": share(0.4)}
    out["learned"] |= {f"without-{name}": share(0.5) for name in (*FILTER_NAMES, "all")}
    out["learned"]["without-agreement"] = share(0.45)
    return out


def test_report_says_what_ways_and_filters_are_worth() -> None:
    seeds = {s: seed_data(s) for s in range(3)}
    assert synthetic.gains(list(seeds.values()), "seeds") == pytest.approx([0.1] * 3)
    assert synthetic.worth(list(seeds.values()), "agreement") == pytest.approx([0.05] * 3)
    text = "\n".join(synthetic.FIGURE.report(seeds))
    assert "above the seeds alone by +10.0 [+10.0, +10.0]" in text
    assert "agreement is worth +5.0 [+5.0, +5.0] (+5.0, +5.0, +5.0) points: **yes**" in text
    assert "the filter worth most is the one against answers that attempts do not agree on" in text
    assert "| templates | 50 | 700 | 1,000 |" in text and "FLOPs of these runs were not kept" in text
    assert len(synthetic.FIGURE.draw(seeds).rows) == 8 + 5 + 12
    for data in seeds.values():
        data["made"]["seeds"]["cost"]["flops"] = 2e9  # the dictionaries of all ways are one
        for learned in data["learned"].values():
            learned["flops"] = 3e9
    text = "\n".join(synthetic.FIGURE.report(seeds))
    assert "| templates | 50 | 700 | 1,000 | 2e+09 | 3e+09 |" in text and "not kept" not in text


def test_report_says_what_right_lines_are_worth() -> None:
    seeds = {s: seed_data(s) for s in range(3)}
    assert "lines alone |" not in "\n".join(synthetic.FIGURE.report(seeds)), "kept before, or of another task"
    for data in seeds.values():
        for name in synthetic.CHECKED:
            plain = data["learned"][name.removesuffix("-checked")]
            data["learned"][name] = {key: value + 0.12 for key, value in plain.items()} | {"answers": 30}
            plain["answers"] = 100
    text = "\n".join(synthetic.FIGURE.report(seeds))
    assert "new problems of the task 30.0 [30.0, 30.0] (30.0, 30.0, 30.0) %; all ways together 30.0" in text
    for label in synthetic.CHECKED.values():
        assert f"| {label} |" in text and f"- {label}: +" in text
    assert text.count("points above the start; above all right answers to the same problems by +12.0 [+12.0, ") == 2
    assert len(synthetic.FIGURE.draw(seeds).rows) == 8 + 2 + 5 + 12
