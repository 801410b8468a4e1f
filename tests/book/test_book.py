"""The book: how a figure is run, kept and rendered, and the numbers of its figures against slow references."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.book import FIGURES, bandits, find_figure
from ponder.book.bandits import MARKS, growth, regret_curve, ucb1_bound, uct_bonus
from ponder.book.figure import (
    COSINE,
    POSITIVE,
    SHARE,
    FigureRun,
    SeedData,
    cells_line,
    format_interval,
    held_above,
    lines_above_at_every_n,
    over_seeds,
)
from ponder.book.first_errors import STEP_LENGTH, first_error_lines, measure_first_errors
from ponder.book.judges import FIGURE as JUDGES
from ponder.book.judges import chosen_settings, measure_answers, reported_curves
from ponder.book.make import make_figure, render
from ponder.book.score_answers import ScoredAnswers
from ponder.cli import main
from ponder.errors import Interrupted, UnknownName, UsageError
from ponder.measure import bootstrap_mean
from ponder.measure.figures.canvas import FigureWithData, make_panels
from ponder.protocols import NoProgress
from ponder.reason.operators.tree_policy import UCT
from ponder.runs.run_dir import lock_run

BOOK = Path(__file__).parents[2] / "docs" / "book"


class Counted:
    """A figure that counts its runs."""

    name, title, source, claim, models = "counted", "Counted", "Nobody 2026", "Seeds are numbers.", ("tiny",)

    def __init__(self) -> None:
        self.ran: list[tuple[int, Path]] = []

    def run(self, run: FigureRun) -> dict[str, Any]:
        self.ran.append((run.seed, run.folder))
        return {"value": run.seed / 10}

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        return FigureWithData(make_panels(1, lambda figure, axes: None), ({"seeds": len(seeds)},))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        return [format_interval([data["value"] for data in seeds.values()]), ""]


def run_of(folder: Path) -> FigureRun:
    return FigureRun("tiny", 0, folder / "runs", lambda name, **settings: None)


def test_seeds_that_are_kept_do_not_run_again(tmp_path: Path) -> None:
    figure, told = Counted(), []
    out = tmp_path / "book"
    make_figure(figure, run_of(tmp_path), [0, 1], out, lambda seed, data: told.append(seed))
    files = make_figure(figure, run_of(tmp_path), [0, 1, 2], out, lambda seed, data: told.append(seed))
    assert [seed for seed, _ in figure.ran] == [0, 1, 2] and told == [0, 1, 0, 1, 2]
    assert figure.ran[2][1] == tmp_path / "runs" / "counted-tiny" / "seed-2"
    page = (out / "counted.md").read_text()
    assert "10.0 [-14.8, 34.8] (0.0, 10.0, 20.0)" in page and "ponder book counted --on tiny" in page
    assert (out / "counted-tiny.png") in files and "Seeds are numbers." in page
    (out / "counted-tiny" / "1.json").write_text("[")
    with pytest.raises(UsageError, match="remove it, and the seed runs again"):
        render(figure, out)


def test_an_unwritable_folder_is_refused_before_a_seed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, file = Counted(), tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match=r"--out .*file/book cannot be made: Not a directory"):
        make_figure(figure, run_of(tmp_path), [0], file / "book", lambda seed, data: None)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # a test may run as root
    with pytest.raises(UsageError, match="cannot be written to: give another folder"):
        make_figure(figure, run_of(tmp_path), [0], tmp_path / "book", lambda seed, data: None)
    assert not figure.ran


def test_other_files_and_damaged_seeds_among_those_that_are_kept(tmp_path: Path) -> None:
    figure, out = Counted(), tmp_path / "book"
    make_figure(figure, run_of(tmp_path), [0], out, lambda seed, data: None)
    (out / "counted-tiny" / "notes.json").write_text("[]")
    render(figure, out)
    (out / "counted-tiny" / "0.json").write_text("{}")
    with pytest.raises(UsageError, match="holds no numbers of a seed: remove it"):
        make_figure(figure, run_of(tmp_path), [0], out, lambda seed, data: None)


def test_a_kept_seed_of_another_version_is_named(tmp_path: Path) -> None:
    figure, out = Counted(), tmp_path / "book"
    make_figure(figure, run_of(tmp_path), [0], out, lambda seed, data: None)
    (out / "counted-tiny" / "1.json").write_text('{"seconds": 1, "machine": "a"}')
    with pytest.raises(UsageError, match=r"a seed in .*counted-tiny has no 'value': remove it, and it runs again"):
        render(figure, out)


def test_only_a_seed_that_goes_on_is_called_resumed(tmp_path: Path) -> None:
    figure, out, folder = Counted(), tmp_path / "book", tmp_path / "runs" / "counted-tiny"
    (folder / "seed-0").mkdir(parents=True)  # of a start that was refused
    (folder / "seed-1" / "start").mkdir(parents=True)
    make_figure(figure, run_of(tmp_path), [0, 1], out, lambda seed, data: None)
    kept = [json.loads((out / "counted-tiny" / f"{seed}.json").read_text()) for seed in (0, 1)]
    assert ["resumed" in data for data in kept] == [False, True]
    page = (out / "counted.md").read_text()
    assert "0 s, 0 s for the seeds 0, 1; of seed 1 only the last part was counted, not what came before it (" in page
    (out / "counted-tiny" / "0.json").unlink()
    render(figure, out)
    assert "0 s for seed 1; of seed 1 only the last part was counted" in (out / "counted.md").read_text()


def test_task_of_a_file_in_a_folder_has_its_figure(tmp_path: Path) -> None:
    run = replace(run_of(tmp_path), task="tasks/mine.py:Mine")
    make_figure(Counted(), run, [0], tmp_path / "book", lambda seed, data: None)
    assert (tmp_path / "book" / "counted-tiny-tasks-mine.py:Mine.png").is_file()
    assert "No run of this figure is kept" not in (tmp_path / "book" / "counted.md").read_text()


def test_page_of_a_given_task_has_its_command(tmp_path: Path) -> None:
    run = FigureRun("some/model", 0, tmp_path / "runs", lambda name, **settings: None, "countdown")
    make_figure(Counted(), run, [0], tmp_path / "book", lambda seed, data: None)
    assert "`ponder book counted --on some/model --task countdown`" in (tmp_path / "book" / "counted.md").read_text()


def test_kept_seeds_of_other_models_and_settings_are_not_taken(tmp_path: Path) -> None:
    """Two folders of one name, and settings of a task, which have a folder of their own."""
    models = [tmp_path / name / "start" for name in ("a", "b")]
    for model in models:
        model.mkdir(parents=True)
    figure, out = Counted(), tmp_path / "book"
    runs = [replace(run_of(tmp_path), model=str(model)) for model in models]
    make_figure(figure, runs[0], [0], out, lambda seed, data: None)
    assert f"`ponder book counted --on {models[0]}`" in (out / "counted.md").read_text()
    with pytest.raises(UsageError, match=r"counted-start holds seeds of .*a/start`, not of .*b/start`"):
        make_figure(figure, runs[1], [0], out, lambda seed, data: None)
    make_figure(figure, replace(runs[0], dtype="float32"), [0], out, lambda seed, data: None)  # the same numbers
    own = replace(run_of(tmp_path), task="sums", task_settings={"terms": "4", "prompt": "{sum}="})
    make_figure(figure, own, [0], out, lambda seed, data: None)
    assert len(figure.ran) == 2 and figure.ran[1][1].parent.name == "counted-tiny-sums-terms-4-prompt-_sum_"
    assert (
        "`ponder book counted --on tiny --task sums --task.terms 4 --task.prompt '{sum}='`"
        in (out / "counted.md").read_text()
    )


def test_page_of_a_given_dtype_has_its_command(tmp_path: Path) -> None:
    run = replace(run_of(tmp_path), device="cpu", dtype="float32")
    make_figure(Counted(), run, [0], tmp_path / "book", lambda seed, data: None)
    assert "`ponder book counted --on tiny --dtype float32`" in (tmp_path / "book" / "counted.md").read_text()


def test_interval_over_seeds_is_students() -> None:
    mean, low, high = over_seeds([1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx((2.0, 2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)))
    assert math.isnan(over_seeds([1.0])[1])


def test_interval_of_shares_stays_within_its_bounds() -> None:
    """By hand: angles of 0.5 and 0.75 are pi/4 and pi/3, Student's t of one degree of freedom is 12.7062."""
    mean, low, high = over_seeds([1.0, 1.0, 0.992], SHARE)
    assert mean == pytest.approx(0.99733333) and 0.95 < low < mean < high == 1.0
    middle, half = math.pi * 7 / 24, 12.706205 * math.pi / 12 / 2
    assert over_seeds([0.5, 0.75], SHARE)[1:] == (pytest.approx(max(0.0, middle - half)), 1.0)
    near = over_seeds([0.50, 0.51, 0.52], SHARE)  # far from the bounds it is nearly the plain one
    assert near == pytest.approx(over_seeds([0.50, 0.51, 0.52]), abs=1e-4)
    low, high = over_seeds([0.96, 0.99, 1.0], COSINE)[1:]
    assert low < 0.96 and high <= 1.0
    half = 12.706205 * math.log(2) / 2  # of the logs 0 and 2 log 2, deviation sqrt(2) log 2
    assert over_seeds([1.0, 4.0], POSITIVE)[1] == pytest.approx(2 * math.exp(-2 * half))


def test_held_says_what_interval_and_seeds_say() -> None:
    assert held_above([1.0, 1.1, 1.2]) == "yes" and held_above([-1.0, -1.1, -1.2]) == "no"
    assert held_above([0.1, 5.0, 1.0]) == "in every seed" and held_above([-0.1, -5.0, -1.0]) == "in no seed"
    assert held_above([-1.0, 5.0, 1.0]) == "not clear"
    assert held_above([0.6, 0.7], 0.5, SHARE) == "in every seed" and held_above([0.0]) == "not clear"
    assert held_above([0.5]) == "in its one seed" and held_above([-0.5]) == "not in its one seed"


def test_above_at_every_n_reports_seeds_where_intervals_differ_over_n() -> None:
    def verdict(*gaps: tuple[float, float, float]) -> str:
        """Of three seeds' gaps at N = 1, 8 and 64."""
        curves = {"one": [list(seed) for seed in gaps], "other": [[0.0] * 3 for _ in gaps]}
        line = lines_above_at_every_n([("one", "other")], curves.__getitem__, str, [1, 8, 64])[2]
        return line.partition("**")[2].removesuffix("**.")

    above = [(0.0, 0.10, 0.01), (0.0, 0.11, 0.50), (0.0, 0.12, 0.10)]  # at N = 64 the interval includes 0
    below = [(0.0, -eight, -last) for _, eight, last in above]
    assert verdict(*above) == "in every seed" and verdict(*below) == "in no seed"
    assert verdict(*below[:2], (0.0, -0.12, 0.01)) == "not clear"
    assert verdict(*((0.0, -x, -x) for x in (0.10, 0.11, 0.12))) == "no"
    assert verdict(above[0]) == "in its one seed" and verdict(below[0]) == "not in its one seed"


def test_command_lists_and_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["book"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in FIGURES)
    assert main(["book", "--json"]) == 0
    assert [row["figure"] for row in json.loads(capsys.readouterr().out)["figures"]] == list(FIGURES)
    for flags in (
        ["--on", "smollm2"], ["--seed", "0"], ["--device", "cpu"], ["--dtype", "float32"], ["--out", "X"],
        ["--runs", "X"], ["--out", "X", "--json"],
    ):  # fmt: skip
        assert main(["book", *flags]) == 2
        found = capsys.readouterr()
        assert "name the figure to make, or give no flag for one" in found.err and "bandits" not in found.out
    for argv, words in (
        (["book", "bandit"], "Did you mean 'bandits'"),
        (["book", "bandits", "--on", "smollm2"], "needs no model"),
        (["book", "bandits", "--device", "cpu"], "needs no model"),
        (["book", "s1", "--on", "smollm2", "--task", "gsm8k"], "attempts that are taken back"),
        (["book", "r1-zero", "--on", "smollm2", "--task", "gsm8k"], "ponder run r1_zero --task"),
        (["book", "step-judges", "--task", "gsm8k"], "the tiny model knows digits alone"),
        (["book", "step-labels", "--on", "smollm2", "--task", "long-sums"], "not on long-sums with smollm2"),
        (
            ["book", "step-labels", "--task", "gsm8k"],
            "or smollm2, with --task long-sums on tiny, not on gsm8k with tiny",
        ),
        (["book", "step-judges", "--task.terms", "3"], "leave out the settings of a task"),
    ):
        assert main(argv) == 2
        assert words in capsys.readouterr().err
    table = tmp_path / "prices.json"
    table.write_text('{"modell": {"generated": 1.0}}')
    for name, words in (("bandits", "has no costs in dollars"), ("monkeys", "Did you mean 'model'")):
        assert main(["book", name, "--prices", str(table)]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(UnknownName):
        find_figure("nothing")


def test_a_model_that_is_not_there_leaves_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert main(["book", "judges", "--on", "nonsense", "--runs", str(runs), "--out", str(tmp_path / "out")]) == 2
    assert "no model named 'nonsense'" in capsys.readouterr().err
    assert not runs.exists() and not (tmp_path / "out").exists()


def test_an_error_of_a_run_names_the_flag_that_book_has(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    taken = tmp_path / "runs" / "judges-tiny" / "seed-0" / "judges"
    taken.mkdir(parents=True)
    (taken / "notes.txt").write_text("mine")
    assert main(["book", "judges", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 2
    assert "give another --runs" in capsys.readouterr().err


@pytest.mark.parametrize("name", FIGURES)
def test_page_in_docs_is_that_of_the_kept_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FigureWithData, "save", lambda self, path: [path])  # painting is slow, and not compared
    index = (BOOK / "index.md").read_text().splitlines()
    for folder in BOOK.glob(f"{name}-*"):
        if folder.is_dir():
            shutil.copytree(folder, tmp_path / folder.name)
            seeds = sorted(int(p.stem) for p in folder.glob("*.json"))
            few = f"({len(seeds)} of 3 seeds)" in next(line for line in index if f"[{name}]" in line)
            enough = len(seeds) >= 3 and seeds == list(range(len(seeds)))
            assert enough or few or (seeds == [0] and "smollm2" in folder.name), "one on a GPU, or it says so"
            assert folder.with_name(f"{folder.name}.png").is_file()
    render(find_figure(name), tmp_path)
    assert (tmp_path / f"{name}.md").read_text() == (BOOK / f"{name}.md").read_text(), (
        "ponder book FIGURE --out docs/book"
    )
    assert f"({name}.md)" in (BOOK / "index.md").read_text()


def word_of_verdicts(page: str) -> str:
    """How many of a page's verdicts are positive, in the words that docs/book/index.md explains."""
    judged = [line for line in page.splitlines() if "perfect judge" not in line]
    words = r"yes|no|not clear|in every seed|in no seed|in its one seed|not in its one seed"
    verdicts = re.findall(rf"\*\*({words})\*\*", "\n".join(judged))
    share = sum(verdict in ("yes", "in every seed") for verdict in verdicts) / len(verdicts)
    least = {"yes": 1.0, "mostly": 2 / 3, "partly": 1 / 3, "hardly": 1e-9, "not shown": 0.0}
    return next(word for word, bound in least.items() if share >= bound)


def test_verdicts_of_a_perfect_judge_and_of_one_seed_do_not_count_as_held() -> None:
    assert word_of_verdicts("- a: **yes**\n- b: **in every seed**") == "yes"
    assert word_of_verdicts("- by a perfect judge: **yes**\n- a: **no**") == "not shown"
    assert word_of_verdicts("- a: **in its one seed**\n- b: **not in its one seed**") == "not shown"
    assert word_of_verdicts("- a: **in its one seed**\n- b: **yes**") == "partly"


@pytest.mark.parametrize("name", FIGURES)
def test_index_says_whether_the_claim_held(name: str) -> None:
    (row,) = (line for line in (BOOK / "index.md").read_text().splitlines() if line.startswith(f"| [{name}]"))
    held = row.strip("|").split("|")[2].strip()
    page = (BOOK / f"{name}.md").read_text()
    if "No run of this figure is kept" in page:
        assert held == "not run yet"
        return
    word = word_of_verdicts(page)
    assert held.startswith(f"**{word}**: "), f"the verdicts of {name}.md are: {word}"
    assert len(held.split()) <= 20 and not re.search(r"\d\.\d", held), "plain words; numbers are on the page"


@pytest.mark.parametrize("name", FIGURES)
def test_page_says_how_its_settings_were_chosen(name: str) -> None:
    told = [line for line in (BOOK / f"{name}.md").read_text().splitlines() if line.startswith("**Settings.** ")]
    assert told, "a page says how its settings were chosen"
    assert all(re.search(r"chosen|tries|tried|one value|not kept", line) for line in told)
    if settings := getattr(find_figure(name), "settings", ""):
        assert told == [f"**Settings.** {settings}."] and not settings.endswith(".")


def test_page_of_a_figure_without_settings_has_no_such_line(tmp_path: Path) -> None:
    figure = Counted()
    make_figure(figure, run_of(tmp_path), [0], tmp_path / "book", lambda seed, data: None)
    assert "**Settings.**" not in (tmp_path / "book" / "counted.md").read_text()
    figure.settings = "Chosen among two"  # type: ignore[attr-defined]
    render(figure, tmp_path / "book")
    assert "\n**Settings.** Chosen among two.\n" in (tmp_path / "book" / "counted.md").read_text()


# bandits


def test_bonus_is_that_of_the_search() -> None:
    rng = np.random.default_rng(0)
    count = rng.integers(1, 50, (20, 4)).astype(float)
    value = rng.random((20, 4))
    for n, q, ours in zip(count, value, value + uct_bonus(count), strict=True):
        theirs = UCT().scores(0, 0.0, [int(x) for x in n], list(q), [0.25] * 4)
        assert ours == pytest.approx(theirs)


def test_bound_and_regret_against_known_values(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ucb1_bound((0.9, 0.6), 1000) == pytest.approx(8 * math.log(1000) / 0.3 + (1 + math.pi**2 / 3) * 0.3)
    assert ucb1_bound((0.9, 0.9), 1000) == 0.0
    monkeypatch.setattr(bandits, "MARKS", (10, 100, 400))
    uniform = regret_curve("uniform", (0.9, 0.6), 400, 200, seed=0)
    assert uniform == pytest.approx([1.5, 15, 60], rel=0.1), "half of all plays lose 0.3"
    ours = regret_curve("ucb1", (1.0, 0.0), 400, 5, seed=0)
    # With certain rewards everything is known: the bad arm is played while sqrt(2 ln N / n) can exceed 1.
    plays = [0, 0]
    for _ in range(400):
        scores = UCT().scores(0, 0.0, plays, [1.0, 0.0], [0.5, 0.5])
        plays[0 if scores[0] >= scores[1] else 1] += 1
    assert ours[-1] == plays[1]


def test_growth_tells_a_logarithm_from_a_line() -> None:
    line, log = [float(n) for n in MARKS], [math.log(n) for n in MARKS]
    assert growth(line) == pytest.approx(10) and growth(log) == pytest.approx(1)


# judges


def scored(seed: int = 0, problems: int = 4, n: int = 4) -> ScoredAnswers:
    rng = np.random.default_rng(seed)
    answers: list[list[str | None]] = [[str(x) if x else None for x in rng.integers(0, 4, n)] for _ in range(problems)]
    right = [[float(a == "1") for a in group] for group in answers]
    right[0], answers[0] = [1.0, 0.0, 0.0, 1.0], ["1", "2", None, "1"]
    names = ["orm", "logprob_sum", "logprob", "tuned logprob", "tuned likelihood"]
    names += [f"implicit-{b} {r}" for b in ("0.1", "1") for r in ("ratio", "logprob", "likelihood")]
    scores: dict[str, list[list[float | None]]] = {name: rng.random((problems, n)).tolist() for name in names}
    return ScoredAnswers(answers, right, [[3] * n] * problems, scores)


def test_cells_of_many_seeds_have_the_least_and_the_greatest() -> None:
    few, many = [0.1, 0.3, 0.2, 0.5, 0.4], [0.1, 0.3, 0.2, 0.5, 0.4, 0.6]
    assert format_interval(few).endswith("(10.0, 30.0, 20.0, 50.0, 40.0)")
    assert format_interval(many, sign=True).endswith("(+10.0 to +60.0)") and format_interval(many)[:4] == "35.0"
    assert "and each seed;" in cells_line(few) and "the least and the greatest of the seeds;" in cells_line(many)


def test_best_of_n_is_the_mean_over_all_subsets() -> None:
    data = scored()
    result = measure_answers(data)
    for name, scores in data.scores.items():
        for k, mean in zip(result["n"], result["best"][name], strict=True):
            worths = []
            for p, answers in enumerate(data.answers):
                able = [i for i, a in enumerate(answers) if a is not None] or list(range(len(answers)))
                subsets = list(itertools.combinations(range(len(answers)), k))
                chosen = [max((i for i in s if i in able), key=lambda i: scores[p][i], default=None) for s in subsets]  # type: ignore[arg-type,return-value]
                worths.append(np.mean([0.0 if i is None else data.right[p][i] for i in chosen]))
            assert mean == pytest.approx(np.mean(worths), abs=1e-5), (name, k)
    assert result["oracle"][-1] == pytest.approx(np.mean([max(r) for r in data.right]))
    assert result["states nothing"] == sum(a is None for g in data.answers for a in g)


LEARNED = {"answers learned from": 8, "tokens sampled": 1234}


def test_settings_are_chosen_on_the_validation_split_alone() -> None:
    seeds = {
        s: {
            "validation": measure_answers(scored(s)),
            "test": measure_answers(scored(s + 9)),
            "answers learned from": 8,
            "tokens sampled": 1234,
        }
        for s in range(3)
    }
    names = [name for name in seeds[0]["test"]["best"] if name.startswith("implicit-")]  # type: ignore[index]
    for data in seeds.values():
        for name in names:
            data["validation"]["best"][name] = [0.1, 0.1, 0.1]  # type: ignore[index]
            data["test"]["best"][name] = [0.9, 0.9, 0.9]  # type: ignore[index]
        for name in ("implicit-1 ratio", "implicit-0.1 likelihood"):
            data["validation"]["best"][name] = [0.1, 0.2, 0.3]  # type: ignore[index]
            data["test"]["best"][name] = [0.5, 0.5, 0.25]  # type: ignore[index]
    assert chosen_settings(seeds) == ("implicit-1 ratio", "implicit-0.1 likelihood")
    curves = reported_curves(seeds)
    assert curves["implicit"][0] == curves["log pi"][2] == [0.5, 0.5, 0.25]
    assert curves["tuned"][0] == seeds[0]["test"]["best"]["tuned likelihood"]  # type: ignore[index]
    text = "\n".join(JUDGES.report(seeds))
    assert (
        "so is beta, among 0.1, 1: the ratio is that of beta 1; log pi is that of beta 0.1, read as its mean." in text
    )
    assert "within problems" in text
    assert "1,234, 1,234, 1,234 tokens were sampled" in text and "FLOPs of these runs were not kept" in text


def test_judges_of_one_seed_have_intervals_over_problems() -> None:
    data = {
        "validation": measure_answers(scored(0)),
        "test": measure_answers(scored(9)),
        "answers learned from": 8,
        "tokens sampled": 1234,
    }
    kept = data["test"]["by problem"]  # type: ignore[index]
    assert kept["n"] == [4] and np.mean(kept["orm"][0]) == pytest.approx(data["test"]["best"]["orm"][-1], abs=1e-3)  # type: ignore[index]
    assert np.mean(kept["majority"][0]) == pytest.approx(data["test"]["majority"][-1], abs=1e-3)  # type: ignore[index]
    text = "\n".join(JUDGES.report({0: data}))
    gap = bootstrap_mean([x - y for x, y in zip(kept["orm"][0], kept["majority"][0], strict=True)])
    least, most = f"{100 * gap.low:+.1f}", f"{100 * gap.high:+.1f}"
    assert f"best by outcome reward model less majority: N = 4: {100 * gap.mean:+.1f} [{least}, {most}]" in text


def test_first_errors_by_a_threshold_of_other_solutions() -> None:
    rng = np.random.default_rng(0)
    solutions = []
    for i in range(40):
        steps = rng.uniform(0.5, 0.9, 4).tolist()
        label = int(rng.integers(0, 4)) if i % 4 > 1 else -1
        if label >= 0:
            steps[label] = 0.1
        solutions.append((label, steps))
    found = measure_first_errors(solutions)
    assert found["f1"] == found["low"] == found["high"] == 1.0 and 0.1 < found["threshold"] < 0.9
    assert found["solutions"] == 20
    blind = measure_first_errors([(label, [0.5] * 4) for label, _ in solutions])
    assert blind["f1"] == 0.0  # every step or none is below any threshold
    assert found["guess"] == pytest.approx(
        max(2 * q * (1 - q) / 4 / (q + (1 - q) / 4) for q in np.linspace(0, 1, 101)), abs=1e-4
    )
    both = {"some judge": found, STEP_LENGTH: blind}
    assert "has on these solutions: **yes**: some judge." in "\n".join(first_error_lines({0: {"processbench": both}}))
    text = "\n".join(first_error_lines({0: {"processbench": {"some judge": found}}}))
    assert "| some judge | 100.0 | 100.0 | 100.0 [100.0, 100.0] |" in text


def test_first_errors_of_several_seeds() -> None:
    def of(f1: float, name: str) -> dict[str, Any]:
        shares = {"f1": f1, "error accuracy": f1, "correct accuracy": f1, "low": f1, "high": f1, "guess": 0.2}
        return {name: shares | {"solutions": 10}}

    seeds = {s: {"processbench": of(f1, "some judge") | of(0.4, STEP_LENGTH)} for s, f1 in enumerate((0.5, 0.51, 0.52))}
    text = "\n".join(first_error_lines(seeds))
    assert f"| some judge | 51.0 | 51.0 | {format_interval([0.5, 0.51, 0.52], bounds=SHARE)} | 20.0 |" in text
    assert "40.0 [40.0, 40.0] over solutions |" in text and "Intervals of F1 are over seeds;" in text
    assert "**yes**: some judge." in text


def test_judges_after_rl_are_of_language_models(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--on smollm2"):
        find_figure("rl-judges").run(run_of(tmp_path))


@dataclass(frozen=True)
class MadeByOne:
    """A job whose run directory one process at a time may have."""

    stages: tuple[Any, ...] = ()

    def __call__(self, folder: Path, progress: Any) -> None:
        with lock_run(folder):
            (folder / "made").touch()


class Watched(NoProgress):
    def __init__(self, stop: bool, on_phase: Callable[[], None] = lambda: None) -> None:
        self.stop, self.on_phase, self.phases = stop, on_phase, list[str]()

    def phase(self, name: str) -> None:
        self.phases.append(name)
        self.on_phase()

    def tokens(self, count: int) -> None:
        if self.stop:
            raise Interrupted("stopped")


def test_a_run_that_another_process_makes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponder.book.figure._WAIT_SECONDS", 0.01)
    shared = tmp_path / "shared"
    lock, stopped = lock_run(shared), Watched(stop=True)
    free = Watched(stop=False, on_phase=lock.close)  # the other process ends meanwhile
    with pytest.raises(Interrupted):
        replace(run_of(tmp_path), progress=stopped).run_job(MadeByOne(), shared)
    assert stopped.phases == [f"waiting for the process that makes {shared}"] and not (shared / "made").exists()
    assert replace(run_of(tmp_path), progress=free).run_job(MadeByOne(), shared) == shared
    assert (shared / "made").exists() and free.phases == stopped.phases
    assert replace(run_of(tmp_path), progress=(alone := Watched(stop=True))).run_job(MadeByOne(), shared) == shared
    assert not alone.phases


@pytest.mark.nightly
def test_judges_from_scratch(tmp_path: Path) -> None:
    """The whole figure, with few steps: its judges are those that a guide by name is."""
    from fakes import run_async
    from ponder.cli import recipe_files
    from ponder.models.guides import load_guide
    from ponder.runs import read_traces

    small = {"steps": 4, "limit": 6, "problems": 16, "samples": 4, "n": 8}

    def build(name: str, **settings: Any) -> Any:
        return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings | small)

    run = FigureRun("tiny", 0, tmp_path / "runs", build, device="cpu", dtype="float32")
    make_figure(JUDGES, run, [0], tmp_path / "book", lambda seed, data: None)
    data = json.loads((tmp_path / "book" / "judges-tiny" / "0.json").read_text())
    assert all(cost["flops"] > 0 for cost in data["costs"].values()) and {"orm", "test"} <= data["costs"].keys()
    folder = tmp_path / "runs" / "judges-tiny" / "seed-0" / "judges"
    verifier = build("judges").stages[-1].job.task.verifier
    traces = [t for _, t in read_traces(folder / "test")]
    for reading in ("ratio", "logprob", "likelihood"):
        guide = load_guide(f"reward+{reading}:{folder / 'implicit-0.2'}", None, device="cpu", dtype="float32")
        assert guide is not None
        right = []
        for trace in traces:
            able = [i for i in trace.answers() if verifier.extract_answer(trace.text(i)) is not None]
            scores = run_async(guide(trace, able))
            right.append(trace.score(able[int(np.argmax([s.value for s in scores]))], verifier.name))
        expected = data["test"]["best"][f"implicit-0.2 {reading}"][-1]
        assert expected == pytest.approx(np.mean(right), abs=1e-4), reading  # type: ignore[arg-type]
