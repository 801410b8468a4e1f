"""The figure about searches: what is measured of samples and searches, and what is set beside what, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ponder.book.figure import FigureRun
from ponder.book.rl_judges import rl_policy_and_judges
from ponder.book.score_answers import ScoredAnswers
from ponder.book.search import (
    FIGURE,
    at_flops,
    at_tokens,
    bin_rows,
    difficulty_bins,
    gaps_by_difficulty,
    measure_samples,
    search_gap,
)
from ponder.cli import recipe_files

# Of each problem four samples: two tell how hard it is, and two are chosen among.
SCORED = ScoredAnswers(
    answers=[["1", "2", "1", "2"], ["7", "7", None, "7"], ["5", "5", "4", "4"]],
    right=[[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]],
    lengths=[[10, 10, 10, 10], [10, 10, 10, 10], [10, 10, 10, 30]],
    scores={
        "likelihood": [[0.4, 0.4, 0.9, 0.1], [0.4, 0.4, 0.9, 0.1], [0.4, 0.4, 0.4, 0.4]],
        "implicit": [[0.5, 0.5, 0.2, 0.8], [0.5, 0.5, 0.9, 0.1], [0.5, 0.5, 0.5, 0.5]],
    },
)


def test_half_of_the_samples_tell_difficulty_and_half_are_chosen_among() -> None:
    out = measure_samples(SCORED)
    assert out["pass rate"] == [0.5, 1.0, 0.0] and out["n"] == [1, 2]
    assert out["tokens a sample"] == pytest.approx(140 / 12, abs=0.01)
    # Of one: each sample half of the time, and one that states nothing is wrong. Of two: a tie is half right, the judge
    # decides, and what states nothing is never chosen, however high its score.
    assert out["majority"] == [[0.5, 0.5], [0.5, 1.0], [0.0, 0.0]]
    assert out["best likelihood"] == [[0.5, 1.0], [0.5, 1.0], [0.0, 0.0]]
    assert out["best implicit"] == [[0.5, 0.0], [0.5, 1.0], [0.0, 0.0]]
    assert [curve[1] for curve in out["weighted likelihood"]] == [1.0, 1.0, 0.0]
    assert [curve[1] for curve in out["weighted implicit"]] == [0.0, 1.0, 0.0]
    # The pairs of a right and a wrong sample: four of the first problem, three of the second, none of the third.
    assert out["auroc"] == {
        "likelihood": pytest.approx((3.5 / 4 + 0) / 2),
        "implicit": pytest.approx((0.5 / 4 + 0) / 2),
    }


def seed_data(search_right: list[float]) -> dict[str, Any]:
    sampled = {"n": [1, 2, 4], "tokens a sample": 10.0, "pass rate": [0.9, 0.1, 0.5]}
    curves = [[0.8, 0.9, 1.0], [0.0, 0.2, 0.4], [0.4, 0.4, 0.7]]
    names = ["majority", *(f"{kind} {guide}" for kind in ("best", "weighted") for guide in ("likelihood", "implicit"))]
    searches = {
        f"{way}-{size}-{guide}": {"right": search_right, "tokens": 5.0 * size, "scorer tokens": 3.0, "flops": 1.0}
        for way in ("beam", "rebase", "mcts") for size in (2, 4) for guide in ("likelihood", "implicit")
    }  # fmt: skip
    return {
        "model": "tiny",
        "task": "sums",
        **sampled,
        **dict.fromkeys(names, curves),
        "auroc": {"likelihood": 0.7, "implicit": 0.6},
        "searches": searches,
    }


def test_samples_are_compared_at_the_tokens_of_a_search() -> None:
    data = seed_data([1.0, 0.0, 1.0])
    assert at_tokens(data, "majority", "", 20.0) == pytest.approx((0.9 + 0.2 + 0.4) / 3)
    assert at_tokens(data, "best", "implicit", 20 * 2**0.5) == pytest.approx(
        (0.95 + 0.3 + 0.55) / 3
    )  # halfway in log N
    assert at_tokens(data, "best", "implicit", 20.0, [1]) == pytest.approx(0.2)


def test_problems_are_parted_by_difficulty() -> None:
    data = seed_data([1.0, 0.0, 1.0])
    assert difficulty_bins(data) == {"hard": [1], "medium": [2], "easy": [0]}
    rows = bin_rows([data])
    assert rows["majority vote"] == {"hard": [pytest.approx(0.2)], "medium": [pytest.approx(0.4)], "easy": [0.9]}
    beam = next(values for title, values in rows.items() if title.startswith("beam search, 4 paths, by an implicit"))
    assert beam == {"hard": [0.0], "medium": [1.0], "easy": [1.0]}
    assert not any(", 2 " in title for title in rows), "of each search the largest"


@pytest.mark.parametrize(("right", "held"), [([1.0, 1.0, 1.0], "yes"), ([0.0, 0.0, 0.0], "no")])
def test_verdict_is_against_the_best_choice_among_samples(right: list[float], held: str) -> None:
    seeds = {seed: seed_data(right) for seed in range(3)}
    lines = [line for line in FIGURE.report(seeds) if line.startswith("- ")]
    assert len(lines) == 12 and all(line.endswith(f"**{held}**") for line in lines)
    figure = FIGURE.draw(seeds)
    panels = {"likelihood", "implicit", "difficulty, likelihood", "difficulty, implicit"}
    assert {row["panel"] for row in figure.rows} == panels


def test_gain_on_hard_problems_is_set_against_that_on_easy_ones() -> None:
    """At 10 tokens a choice solves 80 % of the easy problem, 0 of the hard and 40 % of the medium one."""
    better = [seed_data([1.0, 1.0, 1.0]) for _ in range(3)]
    found = gaps_by_difficulty(better, "beam-2-implicit")
    assert found == {"hard": [1.0] * 3, "medium": [pytest.approx(0.6)] * 3, "easy": [pytest.approx(0.2)] * 3}
    cells = last_cells(better, "beam search, 2 paths")
    assert cells == "+80.0 [+80.0, +80.0] (+80.0, +80.0, +80.0), **yes**"
    loses_less = last_cells([seed_data([0.0, 0.0, 1.0])] * 3, "beam search, 2 paths")
    assert loses_less.startswith("+80.0") and loses_less.endswith("**not clear**"), "it gains nothing on hard problems"


def last_cells(data: list[dict[str, Any]], title: str) -> str:
    lines = iter(FIGURE.report(dict(enumerate(data))))
    assert next(line for line in lines if "hard less easy" in line)
    (row,) = (line for line in lines if line.startswith(f"| {title}, by an implicit"))
    return row.split("|")[-2].strip()


def test_part_of_the_problems_that_nothing_solves_is_not_drawn() -> None:
    data = seed_data([1.0, 0.0, 1.0])
    for name in ("majority", "best implicit", "weighted implicit"):
        data[name] = [data[name][0], [0.0, 0.0, 0.0], data[name][2]]
    drawn = FIGURE.draw({0: data})
    parts = {row["x"] for row in drawn.rows if row["panel"] == "difficulty, implicit"}
    assert parts == {"medium", "easy"}
    assert {row["x"] for row in drawn.rows if row["panel"] == "difficulty, likelihood"} == {"hard", "medium", "easy"}
    labels = [axes.get_xlabel() for axes in drawn.figure.axes]
    assert labels[3] == "not drawn: hard (1 problems), all below 1 %" and labels[2] == ""


def test_searches_that_some_seeds_lack_are_reported_seed_by_seed() -> None:
    seeds = {seed: seed_data([1.0, 1.0, 1.0]) for seed in range(3)}
    finished = {name: found for name, found in seeds[1]["searches"].items() if not name.endswith("-implicit")}
    seeds[1] |= {"searches": finished}
    beam = {"beam-2-implicit": seeds[2]["searches"]["beam-2-implicit"] | {"right": [0.75, 0.0, 0.0]}}
    seeds[2] |= {"searches": finished | beam}
    text = "\n".join(FIGURE.report(seeds))
    # Of 10 tokens one sample: (0.8 + 0.0 + 0.4) / 3 = 40 %.
    assert "- beam search, 2 paths, by an implicit reward model's log pi: +60.0 (seed 0), -15.0 (seed 2) points" in text
    assert "- MCTS, 4 simulations, by an implicit reward model's log pi: +50.0 (seed 0) points" in text
    assert text.count("above: **yes**") == 6, "the searches that every seed has"
    drawn = FIGURE.draw(seeds)
    assert {row["panel"] for row in drawn.rows} == {"likelihood", "difficulty, likelihood"}
    seeds[0] |= {"about": "An earlier run."}
    assert FIGURE.report(seeds)[0].startswith("An earlier run. 3 held-out problems")


def puzzle_data(search_right: list[float]) -> dict[str, Any]:
    data = seed_data(search_right)
    reading = {"implicit": {"tokens": 20.0, "flops": 3.0}}
    found = {name: own | {"flops": 8.0} for name, own in data["searches"].items()}
    lines = {"right": [0.9, 0.8], "line": {"implicit": [0.7, None]}, "answer": {"implicit": [0.6, 0.75]}}
    return data | {
        "task": "countdown", "searches": found, "flops a sample": 1.0, "reading": reading, "lines": lines,
        "guides": {"prm": "reward+min", "implicit": "reward+ratio"},
    }  # fmt: skip


def test_samples_are_compared_at_the_flops_of_a_search_with_what_is_read_of_them() -> None:
    data = puzzle_data([1.0, 0.0, 1.0])
    assert at_flops(data, "majority", "implicit", 4.0) == pytest.approx(2.1 / 3), "four samples"
    assert at_flops(data, "best", "likelihood", 4.0) == pytest.approx(2.1 / 3), "it reads nothing"
    assert at_flops(data, "best", "implicit", 4.0) == pytest.approx(1.2 / 3), "one sample that is read"
    assert at_flops(data, "best", "implicit", 8.0, [1]) == pytest.approx(0.2)
    # beam-2 takes ten tokens: one sample. Of its 8 FLOPs the vote has eight samples, and there are four.
    assert search_gap(data, "beam-2-implicit") == pytest.approx(2 / 3 - 1.2 / 3)
    assert search_gap(data, "beam-2-implicit", equal="flops") == pytest.approx(2 / 3 - 2.1 / 3)


def test_report_states_flops_and_what_is_known_of_lines() -> None:
    text = "\n".join(FIGURE.report({seed: puzzle_data([1.0, 1.0, 1.0]) for seed in range(3)}))
    assert "| search | tokens | read by the judge | FLOPs | right, % |" in text
    assert (
        "A sample takes 1 FLOPs, and reading it takes 20 tokens and 3 FLOPs by an implicit reward model's log-ratio."
        in text
    )
    assert "read by the lowest of a path's steps, the implicit one by its log-ratio over the path" in text
    assert text.count("; at equal FLOPs +30.0 [+30.0, +30.0] (+30.0, +30.0, +30.0), above: **yes**") == 12
    (row,) = [line for line in text.splitlines() if line.startswith("| is the line right?")]
    assert row.endswith("| 0.700 [0.700, 0.700] (0.700, 0.700, 0.700) | - |")
    plain = "\n".join(FIGURE.report({seed: seed_data([1.0, 1.0, 1.0]) for seed in range(3)}))
    assert "at equal FLOPs" not in plain and "will the answer be right" not in plain and "| FLOPs |" in plain


def test_search_on_word_problems_begins_with_the_policy_and_the_judge_of_rl_judges(tmp_path: Path) -> None:
    ran: list[tuple[str, list[str]]] = []

    class Recorded(FigureRun):
        def run_job(self, job: Any, folder: Path) -> Path:
            ran.append((str(folder.relative_to(tmp_path)), [stage.name for stage in job.stages]))
            return folder

    def build(name: str, **settings: Any) -> Any:  # on tasks that need no files
        settings |= {"task": "addition"} | ({"more_tasks": ("countdown",)} if name == "judges" else {})
        return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings)

    run = Recorded("smollm2", 1, tmp_path / "search-smollm2-mawps" / "seed-1", build, "mawps")
    found = rl_policy_and_judges(run)
    home = "rl-judges-smollm2/seed-1/judges"
    assert found == {
        name: str(tmp_path / home / stage)
        for name, stage in (("start", "rl"), ("judge", "implicit-0.05"), ("tuned", "tuned"))
    }
    assert ran[1] == (home, ["rl", "outcomes", "outcomes-countdown", "right", "tuned", "implicit-0.05"])
    (tmp_path / home / "orm").mkdir(parents=True)  # of the figure rl-judges, which was made before
    rl_policy_and_judges(run)
    assert ran[3][1] == ["rl", "outcomes", "outcomes-countdown", "right", "tuned", "orm", "implicit-0.05"]
    assert rl_policy_and_judges(Recorded("tiny", 1, run.folder, build)) == {}
    stages = build("guided_search", model="smollm2", task="addition", seed=1, **found, cut="line").stages
    assert stages[0].name == "samples" and stages[0].job.model == found["start"]
    assert {stage.job.guide for stage in stages[1:]} == {
        "likelihood", f"reward+logprob+product:{found['judge']}", f"likelihood:{found['tuned']}"
    }  # fmt: skip
