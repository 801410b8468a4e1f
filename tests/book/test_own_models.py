"""Figures on a model and a task of the user's: a small model in a run directory, a task in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ponder.book import find_figure, judge_scale, r1_pipeline
from ponder.book.figure import FigureRun
from ponder.book.make import OTHER_MODEL, make_figure
from ponder.book.stated_answer import stated_answer
from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.sft import FineTune
from ponder.runs import read_traces
from ponder.tasks import CustomTask, Sums
from ponder.tasks.step_labels import LABEL_SCORE
from ponder.train.optimizer import AdamW
from ponder.verify import FinalNumber

TASKS = """
from dataclasses import dataclass
from ponder.pipelines.rewards.step_labelling import ExactSteps
from ponder.tasks import CustomTask, Sums

SUMS = Sums(terms=3, limit=4, prompt="{sum}=", forms=("hash",), test_size=8)
ROWS = [{"prompt": f"{a}+{b}+{c}=", "answer": str(a + b + c)} for a in range(4) for b in range(4) for c in range(4)]
REWARDED = CustomTask(data=ROWS, rewards=("ponder.verify:FinalNumber",), name="rewarded")

@dataclass(frozen=True, kw_only=True)
class EqualSides(ExactSteps):
    def is_right(self, problem, before, step):
        left, _, right = step.strip().partition("=")
        known = right.isdigit() and all(map(str.isdigit, left.split("+")))
        return step.startswith("#") or (known and sum(map(int, left.split("+"))) == int(right))

@dataclass(frozen=True)
class CheckedSums(Sums):
    step_check = EqualSides()

CHECKED = CheckedSums(terms=3, limit=4, prompt="{sum}=", forms=("hash",), test_size=8)

class OtherSums(Sums):
    name = "larger"

OTHER = OtherSums(terms=3, limit=5, prompt="{sum}=", forms=("hash",), test_size=8)
"""
STAGES_OF_TWO = ("outcomes", "outcomes-larger", "steps", "steps-larger")
SMALL = {"problems": 24, "samples": 6, "steps": 2, "limit": 3, "n": 8, "max_tokens": 20}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that half knows sums of three numbers, and tasks."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "tasks.py").write_text(TASKS)
    task = Sums(terms=3, limit=4, prompt="{sum}=", forms=("hash",), test_size=8)
    FineTune(
        task, ScratchModel("0123456789+=#\n ", width=48, layers=2, context=64),
        "{{ bos_token }}{{ messages[-1].content }}", optimizer=AdamW(lr=4e-3, decay_steps=110), steps=110,
        batch_size=48, save_every=110,
    )(folder / "model")  # fmt: skip
    return folder


def builder(**small: Any) -> Callable[..., Any]:
    def build(name: str, **settings: Any) -> Any:
        return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings | small)

    return build


def run_of(place: Path, out: Path, task: str, **small: Any) -> FigureRun:
    given = f"{place / 'tasks.py'}:{task}"
    return FigureRun(str(place / "model"), 0, out / "runs", builder(**small), given, device="cpu")


def made(name: str, run: FigureRun, out: Path) -> tuple[str, dict[str, Any]]:
    """The page of a figure and what is kept of its seed."""
    make_figure(find_figure(name), run, [0], out / "book", lambda seed, data: None)
    (kept,) = (out / "book").glob(f"{name}-*/0.json")
    return (out / "book" / f"{name}.md").read_text(), json.loads(kept.read_text())


def test_judges_of_two_sizes_on_own_task(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"limit": 3, "n": 8, "validation_n": 4, "samples": 6, "tuned_steps": 1}
    monkeypatch.setattr(judge_scale, "ON_ONE_TASK", judge_scale.ON_ONE_TASK | few)
    monkeypatch.setattr(judge_scale, "MAX_PROBLEMS", 24)
    page, data = made("judge-scale", run_of(place, tmp_path, "SUMS", max_tokens=20), tmp_path)
    (task,) = data["tasks"].values()
    assert task["test"]["problems"] == 3 and data["learned from"]["sums"]["problems"] == 24
    assert {"orm", "tenth-orm", "long-tenth-orm", "implicit ratio"} <= task["test"]["best"].keys()
    assert "in 3 steps of 32" in page and "judges learned from sums alone" in page
    assert "SmolLM2 after" not in page and "MAWPS" not in page


def test_steps_of_own_task_are_labelled_by_rollouts(place: Path, tmp_path: Path) -> None:
    page, data = made("step-judges", run_of(place, tmp_path, "SUMS", completions=3, **SMALL), tmp_path)
    labels = data["puzzles"]["sums"]["labels"]
    assert labels["kind"] == "soft" and labels["completions"] == 3
    values = set()
    for _, trace in read_traces(next((tmp_path / "runs").rglob("step_judges")) / "steps"):
        values |= {trace.score(i, LABEL_SCORE) for i, step in enumerate(trace.steps) if LABEL_SCORE in step.scores}
    assert values & {1 / 3, 2 / 3} and values <= {0.0, 1 / 3, 2 / 3, 1.0}
    assert data["puzzles"]["sums"]["costs"]["labels"]["tokens"] > 0 and "| rollouts that label steps |" in page
    assert "rollouts labelled, as Math-Shepherd's do" in page and "(a soft label)" in page
    assert "sums of five numbers" not in page.lower() and "Not made yet" not in page


def test_judges_of_steps_learn_from_and_choose_on_two_tasks(place: Path, tmp_path: Path) -> None:
    other = f"{place / 'tasks.py'}:OTHER"
    page, data = made(
        "step-judges", run_of(place, tmp_path, "SUMS", completions=2, more_tasks=(other,), **SMALL), tmp_path
    )
    first, second = data["puzzles"]["sums"], data["puzzles"]["larger"]
    folder = next((tmp_path / "runs").rglob("step_judges"))
    each = [sum(len(t.answers()) for _, t in read_traces(folder / name)) for name in ("steps", "steps-larger")]
    assert min(each) > 0 and first["answers learned from"] == second["answers learned from"] == sum(each)
    assert first["labels"] == second["labels"] and first["test"]["best"] != second["test"]["best"]
    assert {"outcomes", "outcomes-larger", "labels", "orm", "test"} < set(first["costs"])
    tokens = {name: sum(t.cost.generated_tokens for _, t in read_traces(folder / name)) for name in STAGES_OF_TWO}
    rollouts = tokens["steps"] - tokens["outcomes"] + tokens["steps-larger"] - tokens["outcomes-larger"]
    assert first["costs"]["labels"]["tokens"] == rollouts > 0
    assert set(second["costs"]) == {"validation", "test"} and "| answers to learn from, larger |" in page
    assert "### sums" in page and "### larger" in page and page.count("The same policy and judges.") == 1
    calibrated = first["test"]["calibrated"]
    assert "before" in calibrated["prm min"] and "before" not in calibrated["logprob_sum"]
    assert "Platt scaling" in page and "ProcessBench" not in page


def test_own_check_of_steps_labels_them(place: Path, tmp_path: Path) -> None:
    page, data = made("step-judges", run_of(place, tmp_path, "CHECKED", **SMALL), tmp_path)
    found = data["puzzles"]["sums"]
    assert found["labels"]["check"] == "EqualSides" and 0 < found["labels"]["mean"] < 1
    assert "labels" not in found["costs"] and "code checked (`EqualSides`" in page and "rollouts" not in page


@pytest.mark.parametrize("recipe", ["judges", "step_judges"])
def test_tasks_that_cannot_be_kept_apart_are_refused(recipe: str, place: Path) -> None:
    given = {"model": "some/model", "task": f"{place / 'tasks.py'}:SUMS"}
    with pytest.raises(UsageError, match="with the task these are sums, sums: give tasks with names of their own"):
        builder()(recipe, **given, more_tasks=(f"{place / 'tasks.py'}:CHECKED",))
    with pytest.raises(UsageError, match=r"the verifiers of sums, rewarded are .*: give tasks whose verifier has one"):
        builder()(recipe, **given, more_tasks=(f"{place / 'tasks.py'}:REWARDED",))


def test_steps_of_two_tasks_are_labelled_alike(place: Path) -> None:
    given = {"model": "some/model", "task": f"{place / 'tasks.py'}:CHECKED"}
    with pytest.raises(UsageError, match="code checks the steps of one task and not of another"):
        builder()("step_judges", **given, more_tasks=(f"{place / 'tasks.py'}:OTHER",))


def test_hard_labels_and_another_separator_reach_the_recipe() -> None:
    given = {"model": "some/model", "task": "addition", "labels": "hard", "completions": 1, "separator": ". "}
    stages = {s.name: s.job for s in builder()("step_judges", **given).stages}
    assert stages["steps"].labeller.kind == "hard" and stages["steps"].labeller.max_completions == 1
    assert stages["steps"].separator == stages["prm"].separator == stages["implicit-prm"].separator == ". "
    with pytest.raises(UsageError, match="--separator is empty"):
        builder()("step_judges", **given | {"separator": ""})


@pytest.mark.nightly
def test_r1_starts_from_own_worked_answers(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"plain_task": f"{place / 'tasks.py'}:SUMS", "max_tokens": 20, "limit": 3}
    few = {"rl_steps": 1, "problems_per_step": 4, "problems": 24, "sft_steps": 4}
    monkeypatch.setattr(r1_pipeline, "SETTINGS", r1_pipeline.SETTINGS | few)
    page, data = made("r1-pipeline", run_of(place, tmp_path, "SUMS", **own), tmp_path)
    start = data["cold start"]
    assert start["lines"] == 3 and f"64 in each of {start['steps']} steps" in page and start["tokens"] > 0
    assert data["stages"]["reasoning-rl-accuracy"]["sampled so far"] < start["tokens"]
    assert data["stages"]["start-accuracy"]["flops so far"] == 0
    assert "GSM8K's worked" not in page and "hardly any working" not in page and OTHER_MODEL in page


def test_r1_says_that_answers_without_working_teach_a_form() -> None:
    start = {"steps": 30, "batch": 64, "lr": 5e-5, "lines": 1.0, "words": 1.0}
    assert "hardly any working" in r1_pipeline._cold_start_line({"cold start": start})
    assert "hardly any working" not in r1_pipeline._cold_start_line({"cold start": start | {"lines": 4.0}})


def test_r1_refuses_task_without_worked_answers(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="starts from worked answers: the task 'rewarded' has no gold answers"):
        find_figure("r1-pipeline").run(run_of(place, tmp_path, "REWARDED"))


def test_judges_after_rl_of_another_model_have_rl(place: Path, tmp_path: Path) -> None:
    figure: Any = find_figure("rl-judges")
    stages = {s.name: s.job for s in figure.recipe_job(run_of(place, tmp_path, "SUMS")).stages}
    assert stages["rl"].steps == 50 and stages["rl"].task.name == "sums" and stages["test"].model == "stage:rl"
    line = figure._start_line({"model": "m", "task": "sums", "rl steps": 50})
    assert line == " The policy is the model after 50 steps of GRPO on sums, 512 answers each."


def test_search_trains_its_own_judge(place: Path, tmp_path: Path) -> None:
    small = {name: SMALL[name] for name in ("problems", "samples", "limit", "max_tokens")}
    run = run_of(place, tmp_path, "SUMS", n=4, judge_steps=1, widths=(4,), simulations=(4,), **small)
    page, data = made("search", run, tmp_path)
    assert {"beam-4-implicit", "mcts-4-likelihood"} <= data["searches"].keys() and "SmolLM2" not in page


def test_task_of_reward_functions_has_judges_and_votes(place: Path, tmp_path: Path) -> None:
    """Each function's score stands beside the sum, and only a scorer among them reads an answer."""
    page, data = made("judges", run_of(place, tmp_path, "REWARDED", tuned_steps=1, **SMALL), tmp_path)
    assert data["test"]["oracle"][-1] > 0 and data["test"]["states nothing"] < 40 and "SmolLM2 after" not in page


def test_answer_is_what_any_reward_reads_or_the_whole_text() -> None:
    def likes_all(completions: list[str], **columns: Any) -> list[float]:
        return [1.0 for _ in completions]

    def verifier(*rewards: Any) -> Any:
        return CustomTask(data=[{"prompt": "1+1=", "answer": "2"}], rewards=rewards, name="own").verifier

    assert stated_answer(FinalNumber(("hash",)), "1\n#### 2") == "2"
    assert stated_answer(verifier(likes_all, "ponder.verify:FinalNumber"), "so 1\n#### 2") == "2"
    assert stated_answer(verifier(likes_all), " so 2\n") == "so 2" and stated_answer(verifier(likes_all), " ") is None
