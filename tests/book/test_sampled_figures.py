"""Figures on a thousand samples (votes, monkeys, tokens): their numbers against counting by hand and brute force."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.book import monkeys, tokens, votes
from ponder.book.figure import FigureRun
from ponder.book.make import make_figure
from ponder.book.pruned_model import pruned_model
from ponder.book.sampled_answers import SampledProblem, chance_counts, pieces, stated_gold, vote_counts
from ponder.book.word_problem_start import word_problem_start
from ponder.errors import Interrupted, UsageError
from ponder.measure import bootstrap_mean, pass_at_k, plurality_accuracy
from ponder.protocols import NoProgress
from ponder.reason.price import Price
from ponder.types import Step, ids
from ponder.verify.final_answer.number import FinalNumber


def problem(number: int, right: int, wrong: list[int], silent: int = 0) -> SampledProblem:
    """A problem with so many samples of the right answer, of each wrong one, and without an answer, shuffled."""
    texts = ["r"] * right + [f"w{i}" for i, n in enumerate(wrong) for _ in range(n)] + [None] * silent
    order = np.random.default_rng(number).permutation(len(texts))
    answers = [texts[i] for i in order]
    logprobs = np.random.default_rng([number, 1]).normal(-5, 2, len(texts)).tolist()
    own = SampledProblem(f"p{number}", "?", 3, answers, [float(a == "r") for a in answers], logprobs)  # type: ignore[arg-type]
    own.lengths, own.flops = [10] * len(texts), 100.0 * len(texts)
    return own


def test_condorcet_is_the_binomial_tail() -> None:
    for p, n in ((0.3, 5), (0.6, 9), (0.8, 17)):
        brute = sum(
            math.prod([p if x else 1 - p for x in voters]) for voters in itertools.product([0, 1], repeat=n)
            if sum(voters) > n / 2
        ) if n < 10 else plurality_accuracy([p, 1 - p], n)  # fmt: skip
        assert votes.condorcet(p, n) == pytest.approx(brute)
    assert votes.condorcet(0.6, 3) == pytest.approx(0.648)  # 0.6^3 + 3 * 0.6^2 * 0.4


def test_measured_votes_by_difficulty() -> None:
    problems = [
        problem(0, 60, [40, 30, 20, 10, 0]), problem(1, 8, [152]), problem(2, 120, [40]), problem(3, 40, [60, 50], 10),
    ]  # fmt: skip
    result = votes.measure_votes(problems)
    assert [result["bins"][name]["problems"] for name in votes.BINS] == [1, 1, 1, 1]
    assert result["won below half"] == [1, 3]  # the first wins with 60 of 160, the others lose
    assert result["lost though most frequent right"] == 0
    rng, at = np.random.default_rng(0), votes.AT
    for own, vote in zip(problems, result["vote"], strict=True):
        drawn = [Counter(own.answers[i] for i in rng.permutation(160)[:at]) for _ in range(1500)]
        won = np.mean([max((a for a in c if a), key=lambda a: (c[a], rng.random())) == "r" for c in drawn])
        assert vote == pytest.approx(won, abs=0.04)
    assert result["worst difference"] < 0.2  # samples without replacement are not independent, but near it
    assert vote_counts(problems[3]) == (40, [60, 50])


def test_independent_votes_with_silent_samples() -> None:
    own = problem(3, 60, [50, 30], 20)
    shares, rng = np.array([60, 50, 30, 20]) / 160, np.random.default_rng(1)
    for n in (3, 17):
        counts = rng.multinomial(n, shares, size=20_000)[:, :3]  # the last states nothing
        top = counts == counts.max(axis=1, keepdims=True)
        won = np.where(counts.sum(axis=1) > 0, top[:, 0] / top.sum(axis=1), 0.0).mean()
        assert votes.independent_votes(own, [n])[0] == pytest.approx(won, abs=0.012)
    exact = votes.measure_votes([own])
    assert 0 < exact["worst difference"] < 0.05


def test_coverage_and_its_law() -> None:
    problems = [problem(0, 1, [7]), problem(1, 3, [5]), problem(2, 0, [4, 4])]
    result = monkeys.measure_coverage(problems, seed=0)
    for k, value in zip(result["k"], result["coverage"], strict=True):
        each = [
            np.mean([any(own.right[i] for i in subset) for subset in itertools.combinations(range(8), k)])
            for own in problems
        ]
        assert value == pytest.approx(np.mean(each), abs=1e-5), k
    assert result["flops per sample"] == 100 and result["tokens per sample"] == 10
    assert result["vote right"] == [False, False, False] and result["lost by the vote"] == 2


def test_coverage_by_answers_to_other_problems() -> None:
    problems = [problem(0, 1, [3]), problem(1, 2, [2]), problem(2, 0, [3], 1)]
    for own, gold in zip(problems, ("5", "7", "5"), strict=True):
        own.answers, own.gold = [gold if a == "r" else None if a is None else "5" for a in own.answers], gold
        own.right = [float(a == gold) for a in own.answers]
    expected = []
    for k in (1, 2, 4):
        each = []
        for own in problems:
            others = [a for other in problems if other is not own for a in other.answers]
            each.append(np.mean([own.gold in subset for subset in itertools.combinations(others, k)]))
        expected.append(np.mean(each))
    counts = chance_counts(problems)
    assert counts is not None
    totals, hits = zip(*counts, strict=True)
    assert pass_at_k(totals, hits, [1, 2, 4]).mean(axis=0) == pytest.approx(expected)
    problems[1].answers[problems[1].right.index(1.0)] = "7.0"  # as right, but it reads differently
    assert chance_counts(problems) is None and chance_counts(problems[:1]) is None


@pytest.mark.parametrize("gold", ["21.93", "70000", "-3", "0.6"])
def test_gold_is_stated_as_the_verifier_reads_answers(gold: str) -> None:
    assert stated_gold(gold) == FinalNumber().extract_answer(f"It is {gold}.\n#### {gold}")


def test_selection_of_all_samples_is_the_plain_choice() -> None:
    problems = [problem(0, 5, [3]), problem(1, 3, [4, 1]), problem(2, 2, [1], 5)]
    result = monkeys.measure_selection(problems, seed=0)
    assert result["k"] == [1, 2, 4, 8]
    assert result["majority"]["mean"][-1] == pytest.approx(2 / 3, abs=1e-5)  # the second loses 3 to 4
    able = [[i for i, a in enumerate(p.answers) if a is not None] for p in problems]
    best = [p.right[max(own, key=lambda i: p.logprobs[i])] for p, own in zip(problems, able, strict=True)]
    assert result["best"]["mean"][-1] == pytest.approx(np.mean(best), abs=1e-5)
    weight = []
    for p in problems:
        totals: Counter[str] = Counter()
        for a, x in zip(p.answers, p.logprobs, strict=True):
            if a is not None:
                totals[a] += np.exp(x)  # type: ignore[assignment]
        weight.append(totals.most_common(1)[0][0] == "r")
    assert result["weighted"]["mean"][-1] == pytest.approx(np.mean(weight), abs=1e-5)
    assert result["best"]["by problem"] == best and result["weighted"]["by problem"] == weight


def test_one_seed_has_intervals_over_problems() -> None:
    problems = [problem(i, right, [8 - right]) for i, right in enumerate((1, 3, 0, 5, 8, 2))]
    data: dict[str, Any] = {"model": "some/model", "seed": 0, "cost": {"seconds": 1.0, "tokens": 10.0, "flops": 100.0}}
    data |= {"large": monkeys.measure_coverage(problems, 0), "selection": monkeys.measure_selection(problems, 0)}
    chance = [1 - math.comb(8 - c, 4) / math.comb(8, 4) for c in (1, 3, 0, 5, 8, 2)]
    assert monkeys.covered_problems(data["large"], 4) == pytest.approx(chance)
    text = "\n".join(monkeys.FIGURE.report({0: data}))
    assert "One seed: 95 % intervals over problems" in text
    lost = bootstrap_mean([float(c > 0) - float(c > 4) for c in (1, 3, 0, 5, 8, 2)])
    least, most = f"{100 * lost.low:.1f}", f"{100 * lost.high:.1f}"
    assert f"below coverage at the end by {100 * lost.mean:.1f} [{least}, {most}]: **not clear**" in text


def test_dollars_of_samples_by_hand() -> None:
    """A prompt of 3 tokens is charged once, each of the samples has 10; two of three problems have 4 right of 8."""
    problems = [problem(i, right, [8 - right]) for i, right in enumerate((4, 4, 0))]
    data: dict[str, Any] = {"model": "some/model", "seed": 0, "cost": {"seconds": 1.0, "tokens": 10.0, "flops": 100.0}}
    data |= {"large": monkeys.measure_coverage(problems, 0), "selection": monkeys.measure_selection(problems, 0)}
    prices = {"model": Price(prompt=10.0, generated=5.0)}
    text = "\n".join(monkeys.Monkeys(prices).report({0: data}))
    one, four = 1000 * (3 * 10 + 10 * 5) / 1e6, 1000 * (3 * 10 + 40 * 5) / 1e6
    covered = 2 / 3 * (1 - math.comb(4, 4) / math.comb(8, 4))
    assert f"| the model | {one:g} | 1 | 33.3 | {one:g} | 1 | {3 * one:.3g} |" in text
    cells = [f"{four / 4:.3g}", "4", f"{100 * covered:.1f}", *(f"{x:.3g}" for x in (four, four / one, four / covered))]
    assert f"| {' | '.join(cells)} |" in text
    assert "at given prices: per million prompt and generated tokens, the model 10 and 5. A prompt is charged" in text
    example = "\n".join(monkeys.FIGURE.report({0: data}))
    assert "an example, which is the price of no API" in example and "the model 0.2 and 0.8." in example
    del data["large"]["prompt tokens"]
    assert "Prompts are left out" in "\n".join(monkeys.FIGURE.report({0: data}))
    assert "In dollars" not in "\n".join(monkeys.Monkeys({"smaller": Price()}).report({0: data}))


def test_smollm2_answers_word_problems_after_gsm8k_solutions(tmp_path: Path) -> None:
    ran: list[tuple[Any, Path]] = []

    class Recorded(FigureRun):
        def run_job(self, job: Any, folder: Path) -> Path:
            ran.append((job, folder))
            return folder

    def built(name: str, **settings: Any) -> Any:
        return name, settings

    folder = tmp_path / "judges-smollm2-mawps" / "seed-1"
    start = word_problem_start(Recorded("smollm2", 1, folder, built, "mawps"))
    (((recipe, settings), where),) = ran
    assert recipe == "cold_start" and settings["task"] == "gsm8k" and settings["seed"] == 1
    assert where == tmp_path / "start-gsm8k-smollm2" / "seed-1" and start == {"start": str(where / "start")}
    for model, task in (("smollm2", None), ("smollm2", "countdown"), ("some/model", "mawps")):
        assert word_problem_start(Recorded(model, 1, folder, built, task)) == {}
    assert len(ran) == 1
    small = word_problem_start(Recorded("smollm2", 1, folder, built, "gsm8k"), "some/pruned")
    (recipe, settings), where = ran[1]
    assert settings["model"] == "some/pruned" and small == {"start": str(where / "start")}
    assert where == tmp_path / "start-gsm8k-pruned-smollm2" / "seed-1"
    assert pruned_model(Recorded("smollm2", 1, folder, built, "gsm8k")) == str(tmp_path / "pruned-smollm2" / "healed")
    (recipe, settings), _ = ran[2]
    assert recipe == "prune" and settings["seed"] == 0, "one model for all seeds"
    assert pruned_model(Recorded("some/model", 1, folder, built)) is None and len(ran) == 3


def test_same_flops_gives_the_smaller_model_more_samples() -> None:
    data = {
        "small": {"k": [1, 2, 4, 8], "coverage": [0.1, 0.2, 0.3, 0.4], "flops per sample": 50.0},
        "large": {"k": [1, 2, 4, 8], "coverage": [0.2, 0.3, 0.5, 0.6], "flops per sample": 100.0},
    }
    assert monkeys.same_flops(data, 1) == (pytest.approx(0.2), pytest.approx(0.2))
    assert monkeys.same_flops(data, 4) == (pytest.approx(0.4), pytest.approx(0.5))


def family(shares: list[float], flops: float) -> dict[str, Any]:
    return {"samples": 1000, "share right": shares, "flops per sample": flops, "tokens per sample": 10.0}


ANCHOR = 0.8


def test_family_is_laid_on_each_other_at_the_largest_coverage_that_both_reach() -> None:
    high, low, never = family([0.08] * 3, 1.0), family([0.08, 0.08, 0.0, 0.0], 1.0), family([0.0] * 3, 1.0)
    assert monkeys.family_anchor([{"large": high, "small": high}]) == 0.8
    assert monkeys.family_anchor([{"large": high, "small": low}]) == 0.5
    assert monkeys.family_anchor([{"large": high, "small": high}, {"large": never, "small": high}]) is None


def test_sizes_of_a_family_are_one_curve_shifted_along_log_k() -> None:
    """Chances of 0.08 and of 0.02 at all problems: 1 - (1 - p)^k, nearly one curve of k p."""
    data = {"large": family([0.08] * 3, 400.0), "small": family([0.02] * 3, 100.0)}
    exact = math.log(1 - ANCHOR) / math.log(1 - 0.08)
    assert monkeys.k_at(data["large"], ANCHOR) == pytest.approx(exact, rel=0.02)
    shift = monkeys.shift_of_sizes(data, ANCHOR)
    assert shift["factor"] == pytest.approx(math.log(0.92) / math.log(0.98), rel=0.05)
    assert shift["gap after"] < 0.02 < 0.2 < shift["gap"]
    same = monkeys.same_coverage(data, 1)
    assert same["samples"] == pytest.approx(math.log(0.92) / math.log(0.98), rel=0.05)
    assert same["flops"] == pytest.approx(same["samples"] / 4) and same["price"] == pytest.approx(1 / same["samples"])
    assert math.isnan(monkeys.k_at(family([0.0, 0.5], 1.0), ANCHOR))
    assert monkeys.k_at(data["large"], 0.04) == pytest.approx(0.5)


def test_kinds_of_tokens() -> None:
    text = "3+4=7\n7+10=17\n#### 17"
    kinds = tokens.token_kinds(text, len(text) + 1)
    assert kinds[:6] == ["copied", "copied", "copied", "equals", "result", "newline"]
    assert kinds[11:14] == ["result", "result", "newline"] and kinds[14:19] == ["mark"] * 5
    assert kinds[19:] == ["answer", "answer", "end"]


def step(text: str, entropy: list[float]) -> Step:
    stats = {name: np.array(entropy, dtype=np.float32) for name in ("entropy", "varentropy", "gini")}
    return Step(0, text, ids(range(len(entropy))), np.zeros(len(entropy), dtype=np.float32), notes=stats)


def test_token_statistics_by_hand() -> None:
    table = tokens.TokenTable()
    table.add(step("1+1=2", [0, 0, 0, 0, 1]), 0, 1.0)
    table.add(step("1+1=3", [0, 0, 0, 0, 3]), 0, 0.0)
    table.add(step("1+1=2\n", [0, 0, 0, 0, 2, 0]), 0, 1.0)
    table.add(step("2+1=", [1, 1, 1, 1]), 1, 1.0)
    result = tokens.measure_tokens(table)
    assert result["answers"] == 4 and result["tokens"] == 20 and result["problems"] == 2
    assert result["kinds"]["result"]["entropy"] == 2 and result["kinds"]["result"]["share"] == 0.15
    assert result["kinds"]["copied"]["entropy"] == 0.25
    assert result["top share"] == pytest.approx((3 + 2 + 1 + 1) / 10)
    for measure in ("entropy", "varentropy", "gini"):
        assert result["along"]["right"][measure][4] == 1.5 and result["along"]["wrong"][measure][4] == 3
    assert result["along"]["right"]["entropy"][:4] == [pytest.approx(1 / 3, abs=1e-4)] * 4
    assert result["along"]["wrong"]["entropy"][5:] == [0.0] * (tokens.SHOWN_TOKENS - 5)
    # within the first problem: mean entropies 0.2 and 1/3 of the right against 0.6; lengths 5 and 6 against 5
    assert result["auroc"]["entropy"] == 1.0 and result["auroc"]["length"] == 0.25


def test_curves_of_all_three_measures_are_drawn_where_they_are_kept() -> None:
    table = tokens.TokenTable()
    for right in (1.0, 0.0, 1.0):
        table.add(step("1+1=2", [0, 0, 0, 0, 1 + right]), 0, right)
    data = {"model": "tiny", "cost": {"seconds": 1.0, "tokens": 10.0, "flops": 100.0}} | tokens.measure_tokens(table)
    panels = {row["panel"] for row in tokens.FIGURE.draw({0: data}).rows}
    assert panels == {"along", "varentropy along", "gini along", "kinds"}, "few answers have no panel of lengths"
    old = data | {"along": {name: curves["entropy"] for name, curves in data["along"].items()}}
    for seeds in ({0: old}, {0: data, 1: old}):
        assert {row["panel"] for row in tokens.FIGURE.draw(seeds).rows} == {"along", "kinds"}


def test_pieces_in_their_order(tmp_path: Path) -> None:
    for name in ("samples-10", "samples-2", "start"):
        (tmp_path / name).mkdir()
    assert [path.name for path in pieces(tmp_path)] == ["samples-2", "samples-10"]


def build(name: str, **settings: Any) -> Any:
    from ponder.cli import recipe_files

    return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings)


def test_recipe_samples_in_pieces() -> None:
    stages = build("repeated_sampling", n=600, piece=256).stages
    assert [s.name for s in stages] == ["start", "samples-0", "samples-1", "samples-2"]
    assert [s.job.strategy.n for s in stages[1:]] == [256, 256, 88]
    assert len({s.job.seed for s in stages[1:]}) == 3
    half = build("repeated_sampling", half_width=True).stages
    assert half[0].job.model.width * 2 == stages[0].job.model.width
    other = build("repeated_sampling", model="some/model", task="countdown", n=8).stages
    assert [(s.name, s.job.model) for s in other] == [("samples-0", "some/model")]
    with pytest.raises(UsageError, match="give a smaller --model"):
        build("repeated_sampling", model="some/model", half_width=True)


@pytest.mark.nightly
def test_figures_share_their_samples_and_resume_after_a_stop(tmp_path: Path) -> None:
    few = {"n": 160, "piece": 80, "limit": 3, "start_steps": 80}

    def build_few(name: str, **settings: Any) -> Any:
        return build(name, **settings | few)

    class StopAtPiece(NoProgress):
        """Stops when the first problem of the second piece is solved."""

        solved = 0

        def step(self, done: int, total: int, metrics: Any, traces: Any) -> None:
            self.solved += total == few["limit"]
            if self.solved == 4:
                raise Interrupted("stopped here")

    def run(progress: Any) -> FigureRun:
        return FigureRun("tiny", 0, tmp_path / "runs", build_few, device="cpu", dtype="float32", progress=progress)

    with pytest.raises(Interrupted):
        make_figure(votes.FIGURE, run(StopAtPiece()), [0], tmp_path / "book", lambda seed, data: None)
    assert not (tmp_path / "book" / "votes-tiny").exists()
    for figure in (votes.FIGURE, monkeys.FIGURE, tokens.FIGURE):
        make_figure(figure, run(NoProgress()), [0], tmp_path / "book", lambda seed, data: None)
    whole = tmp_path / "whole"
    fresh = FigureRun("tiny", 0, whole / "runs", build_few, device="cpu", dtype="float32")
    make_figure(monkeys.FIGURE, fresh, [0], whole / "book", lambda seed, data: None)
    kept = [json.loads((f / "book" / "monkeys-tiny" / "0.json").read_text()) for f in (tmp_path, whole)]
    flops = [data["large"].pop("flops per sample") for data in kept]
    assert flops[0] == pytest.approx(flops[1], rel=1e-3)  # after a stop a prompt is read again
    assert kept[0]["large"] == kept[1]["large"] and kept[0]["selection"] == kept[1]["selection"]
    assert kept[0]["large"]["samples"] == 160 and kept[0]["large"]["problems"] == 3


def test_length_bins_hold_equal_numbers_of_answers() -> None:
    lengths, right = np.array([9, 1, 2, 8, 3, 7, 4, 6] * 2), np.array([0.0, 1, 1, 0, 1, 0, 1, 0] * 2)
    bins = tokens.by_length_bins(lengths, right)
    assert [b["answers"] for b in bins] == [2] * 8
    assert [b["length"] for b in bins] == [1, 2, 3, 4, 6, 7, 8, 9] and [b["right"] for b in bins] == [1] * 4 + [0] * 4
