"""Judges from all problems and from a tenth: stages of the recipe, rows by hand, the page."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import mixed_groups, perturb, tiny_decoder, trace_group
from ponder.book import find_figure, judge_scale, score_answers
from ponder.book.figure import FigureRun
from ponder.book.judge_scale import (
    FEW,
    FIGURE,
    JUDGE_STAGES,
    JUDGES,
    LONG,
    ON_TINY,
    OTHERS,
    READINGS,
    SETTINGS,
    SIZES,
    TASKS,
    TINY_JUDGES,
    log_pi_reading,
    row_curves,
    score_splits,
)
from ponder.book.judges import measure_answers
from ponder.book.score_answers import ScoredAnswers, score_stored_sets
from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.tasks import Sums
from ponder.train.packed_reading import answer_logprobs, answer_scores
from ponder.train.reward_objectives import ImplicitReward, OutcomeReward, TokenOutcomeReward


def build(name: str, **settings: Any) -> Any:
    return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings)


NAMES = ["logprob_sum", "logprob", "token-orm", "tuned logprob", "tuned likelihood"]
NAMES += [f"{prefix}orm" for prefix in SIZES]
NAMES += [f"{prefix}implicit {reading}" for prefix in SIZES for reading in READINGS]


def scored(good: str, n: int) -> ScoredAnswers:
    """Two problems with one right answer each; one judge knows it, and all others prefer the first wrong one."""
    right = [[0.0] * (n - 1) + [1.0]] * 2
    answers: list[list[str | None]] = [[*("wrong" for _ in range(n - 1)), "right"]] * 2
    known = {name: [[x if name == good else 1 - x for x in group] for group in right] for name in NAMES}
    return ScoredAnswers(answers, right, [[1] * n] * 2, {name: [list(g) for g in x] for name, x in known.items()})


def seed_data(good: str = "implicit likelihood") -> dict[str, Any]:
    splits = {"validation": measure_answers(scored(good, 16), False), "test": measure_answers(scored(good, 64), False)}
    learned = {"problems": 10, "answers": 80, "right": 8, "tokens": 800}
    return {"model": "smollm2", "seed": 0, "tasks": dict.fromkeys(TASKS, splits), "learned from": {"mawps": learned}}


def test_rows_have_the_judge_that_they_name() -> None:
    seeds = {0: seed_data(), 1: seed_data()}
    assert log_pi_reading(seeds, "gsm8k") == "likelihood", "chosen on the validation split"
    for row in (*(f"{prefix}{name}" for prefix in SIZES for name in JUDGES), *OTHERS):
        last = [curve[-1] for curve in row_curves(seeds, "gsm8k", row)]
        assert last == [1.0, 1.0] if row in ("best log pi", "oracle") else last == [0.0, 0.0], row
    other = {0: seed_data("tenth-orm")}
    assert (
        row_curves(other, "mawps", f"{FEW}best orm")[0][-1] == 1.0
        and row_curves(other, "mawps", "best orm")[0][-1] == 0.0
    )
    assert row_curves(other, "mawps", f"{FEW}weighted orm")[0][-1] == 1.0
    assert row_curves(other, "mawps", f"{LONG}best orm")[0][-1] == 0.0
    assert row_curves({0: seed_data("long-tenth-orm")}, "mawps", f"{LONG}best orm")[0][-1] == 1.0
    assert row_curves({0: seed_data("tuned logprob")}, "mawps", "tuned")[0][-1] in (0.0, 1.0)


def test_page_has_a_row_for_each_judge_and_size() -> None:
    text = "\n".join(FIGURE.report({0: seed_data(), 1: seed_data()}))
    for title in JUDGES.values():
        for size in SIZES.values():
            assert text.count(f"| {title}, from {size} |") == len(TASKS)
    assert text.count("**Held?**") == len(TASKS)
    drawn = FIGURE.draw({0: seed_data(), 1: seed_data()})
    assert {row["panel"] for row in drawn.rows} == set(TASKS)


def test_judges_that_a_seed_lacks_are_left_out() -> None:
    seeds = {0: seed_data(), 1: seed_data()}
    for task in TASKS:
        for kind in ("best", "weighted", "auroc", "auroc within problems"):
            for name in [name for name in seeds[1]["tasks"][task]["test"][kind] if name.startswith(f"{LONG}implicit")]:
                del seeds[1]["tasks"][task]["test"][kind][name]
    text = "\n".join(FIGURE.report(seeds))
    assert f"| best by implicit reward model, by its ratio, from {SIZES[LONG]} |" not in text
    assert f"| best by outcome reward model, from {SIZES[LONG]} |" in text
    assert "not measured" in text, "in the table of AUROC"
    labels = {row["line"] for row in FIGURE.draw(seeds).rows}
    assert f"best by outcome reward model, from {SIZES[LONG]}" in labels
    assert f"best by implicit reward model, by log pi, from {SIZES[LONG]}" not in labels


def test_page_without_implicit_models() -> None:
    seeds = {0: seed_data(), 1: seed_data()}
    for data in seeds.values():
        for task in TASKS:
            for split in ("validation", "test"):
                for kind in ("best", "weighted", "auroc", "auroc within problems"):
                    known = data["tasks"][task][split][kind]
                    data["tasks"][task][split][kind] = {k: v for k, v in known.items() if "implicit" not in k}
    text = "\n".join(FIGURE.report(seeds))
    assert "implicit" not in text and "Log pi is read by" not in text and "| outcome reward model |" in text


def test_recipe_trains_judges_of_both_sizes_the_papers_way() -> None:
    stages = {s.name: s.job for s in build("judges", model="smollm2", task="mawps", **SETTINGS).stages}
    assert {"validation", "test", "validation-gsm8k", "test-gsm8k"} <= set(stages) and "test-svamp" not in stages
    whole, few = stages["orm"], stages["tenth-orm"]
    assert (whole.train_tenths, few.train_tenths) == (10, 1) and few.steps == whole.steps // 10
    assert whole.data == few.data and len(whole.data) == 3
    assert set(JUDGE_STAGES) <= set(stages)
    for name in ("orm", "implicit-0.05"):
        long, other = stages[f"{LONG}{name}"], stages[name]
        assert long.train_tenths == 1 and long.steps == other.steps
        assert (long.optimizer, long.algorithm, long.eval_every) == (other.optimizer, other.algorithm, other.eval_every)
    token = stages["token-orm"]
    assert isinstance(token.algorithm, TokenOutcomeReward) and token.algorithm.lm_weight == SETTINGS["lm_weight"]
    assert type(whole.algorithm) is type(few.algorithm) is OutcomeReward and token.train_tenths == 10
    assert stages["rl"].task.name == "mawps+svamp" and stages["tuned"].steps == SETTINGS["tuned_steps"]
    implicit = stages["implicit-0.05"]
    assert isinstance(implicit.algorithm, ImplicitReward) and implicit.residual_dropout == 0.0 and implicit.keep_best
    assert whole.eval_every * 3 >= whole.steps
    assert stages["test"].task.name == "mawps" and stages["test-gsm8k"].task.name == "gsm8k"
    with pytest.raises(UsageError, match="more-tasks"):
        build("judges", model="smollm2", task="mawps", test_tasks=("gsm8k",))


def test_tiny_model_takes_no_task_of_the_users(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the tiny model knows digits alone"):
        find_figure("judge-scale").run(FigureRun("tiny", 0, tmp_path, build, "svamp"))


def test_one_task_of_the_users_is_read_once_and_alone(tmp_path: Path) -> None:
    run = FigureRun("some/model", 0, tmp_path, build, "addition")
    settings = judge_scale.one_task_settings(run)
    stages = {s.name: s.job for s in run.recipe_job("judges", **settings).stages}
    assert {*judge_scale.ONE_TASK_JUDGES} <= {*stages} and not {"rl", "token-orm", "test-gsm8k"} & {*stages}
    assert stages["outcomes"].limit == judge_scale.MAX_PROBLEMS and stages["orm"].data == ("stage:outcomes",)
    assert stages["orm"].steps * stages["orm"].batch_size == pytest.approx(0.9 * stages["outcomes"].limit, rel=0.02)


def test_tiny_model_has_half_a_million_answers_of_all_its_problems() -> None:
    stages = {s.name: s.job for s in build("judges", model="tiny", **ON_TINY).stages}
    assert set(TINY_JUDGES) < set(stages) and "tuned" not in stages and "right" not in stages
    collect, whole = stages["outcomes"], stages["orm"]
    problems = shuffled_problems(collect.task.train, 0, 0, collect.limit)
    assert len({p.id for p in problems}) * collect.strategy.n > 500_000
    assert len({p.question for p in problems}) > 2400, "of 2,555"
    once = 0.9 * len({p.id for p in problems})  # a tenth is held out
    assert whole.steps * whole.batch_size == pytest.approx(once, rel=0.02)
    assert stages["tenth-orm"].steps * 10 == whole.steps


def test_figure_on_the_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    easy = {"terms": "3"}
    cold_start = build("judges", model="tiny", task_settings=easy).stages[0].job
    replace(cold_start, steps=80, save_every=80)(tmp_path / "start")
    few = {"problems": 40, "samples": 4, "steps": 10, "limit": 4, "n": 8, "validation_n": 4}
    monkeypatch.setattr(judge_scale, "ON_TINY", ON_TINY | few | {"start": str(tmp_path / "start")})
    data = FIGURE.run(FigureRun("tiny", 0, tmp_path / "figure", build, task_settings=easy, device="cpu"))
    (learned,) = data["learned from"].values()
    assert learned["answers"] == 4 * learned["problems"] and 0 < learned["different answers"] < learned["answers"]
    text = "\n".join(FIGURE.report({0: data}))
    for size in ("all", "a tenth"):
        assert f"| best by outcome reward model, from {size} |" in text
        assert f"| best by implicit reward model, by its ratio, from {size} |" in text
    assert f"{learned['answers']:,} have verdicts" in text and "every token" not in text and "tuned" not in text
    assert {row["panel"] for row in FIGURE.draw({0: data}).rows} == {"sums"}


@pytest.mark.parametrize(
    ("judges", "scores"),
    [
        (("tuned",), {"tuned logprob": -4.0, "tuned likelihood": -2.0}),
        (("long-tenth-orm",), {"long-tenth-orm": 0.25}),
        (
            ("tenth-implicit-0.05", "tuned"),
            {"tenth-implicit ratio": 1 / (1 + math.exp(-0.05 * 3)), "tenth-implicit logprob": -4.0}
            | {"tenth-implicit likelihood": -2.0, "tuned logprob": -4.0, "tuned likelihood": -2.0},
        ),
    ],
)
def test_judges_are_read_by_their_kind(
    monkeypatch: pytest.MonkeyPatch, judges: tuple[str, ...], scores: dict[str, float]
) -> None:
    """Implicit models by the ratio and by log pi, the tuned model by log pi, an outcome model by its head."""

    def scored_sets(sets: Any, orms: Any, readers: Any, *_: Any) -> Any:
        assert orms == {name: Path("run") / name for name in judges if name.endswith("orm")}
        own = ScoredAnswers([["1"]], [[1.0]], [[2]], {name: [[0.25]] for name in orms})
        return [(own, {name: [[-7.0 if name == "reference" else -4.0]] for name in readers}) for _ in sets]

    monkeypatch.setattr(judge_scale, "score_stored_sets", scored_sets)
    monkeypatch.setattr(judge_scale, "reference_model", str)
    (found,) = score_splits(Path("run"), {"test": None}, judges=judges).values()
    assert {name: group[0][0] for name, group in found.scores.items()} == pytest.approx(scores)


def test_sets_scored_together_are_scored_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = {Path("one"): mixed_groups(tool=False), Path("two"): [trace_group([5, 9], [[7, 8, 2], [7, 2]], id="last")]}
    reader, other = tiny_decoder(scale=0.1), tiny_decoder(scale=0.2)
    judge = perturb(DecoderWithHead.from_decoder(tiny_decoder(scale=0.1), ScoreHead("outcome", "logit")), 0.05, seed=4)
    assert isinstance(judge, DecoderWithHead)
    loaded: list[str] = []

    def load(name: str, *_: Any, **__: Any) -> Any:
        loaded.append(name)
        return SimpleNamespace(net={"judge": judge, "reader": reader, "other": other}[name])

    monkeypatch.setattr(score_answers, "load_policy_with_head", load)
    monkeypatch.setattr(score_answers, "load_policy", load)
    monkeypatch.setattr(score_answers, "read_traces", lambda folder: enumerate(sets[folder]))
    readers = {"reader": "reader", "other": "other"}
    found = score_stored_sets(dict.fromkeys(sets, Sums()), {"orm": Path("judge")}, readers)
    assert loaded == ["judge", "reader", "other"], "each once for all sets"
    for (scored, sums), traces in zip(found, sets.values(), strict=True):
        traces = sorted(traces, key=lambda t: t.problem.id)
        assert scored.scores["orm"] == [pytest.approx(own, abs=1e-5) for own in answer_scores(judge, traces)]
        for name, net in (("reader", reader), ("other", other)):
            assert sums[name] == [pytest.approx(own, abs=1e-4) for own in answer_logprobs(net, traces)]
        assert scored.lengths == [[len(t.steps[i].token_ids) for i in t.answers()] for t in traces]
