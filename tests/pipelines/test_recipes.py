"""Every recipe that needs no large model, at the smallest size: to its end, not twice, and not past an empty stage."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

from ponder.cli import recipe_files
from ponder.errors import Interrupted, TaskError
from ponder.models.chat_templates import CHAT_TEMPLATES
from ponder.models.ponder_policy import PonderPolicy
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.label import Label
from ponder.pipelines.prune import MODEL_FOLDER, Prune
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stages
from ponder.protocols import NoProgress
from ponder.runs import Run, checkpoints, job_json, read_job, read_metrics, read_traces
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.types import Cost, Step, Trace, ids

REWRITTEN = ("lock", "metrics.jsonl", "status.json")  # by every process that opens a run
WITH_EXAMPLES = "chain_of_thought"  # of a data set
SMALL: dict[str, dict[str, Any]] = {
    "cold_start": {},
    "star": {"problems": 8, "n": 4, "steps": 2},
    "rejection": {"problems": 8, "n": 4, "steps": 2},
    "dpo_rounds": {"problems": 8, "n": 4, "steps": 2},
    "grpo": {"steps": 2, "problems_per_step": 2, "group_size": 4},
    "r1_zero": {"steps": 2, "problems_per_step": 2, "group_size": 4},
    "ppo": {"steps": 3, "problems_per_step": 2, "group_size": 2, "critic_warmup_steps": 1},
    "distillation": {"problems": 8, "steps": 2},
    "prune": {"problems": 8, "steps": 2, "mlp_width": 48},
    "rlhf": {"problems": 8, "reward_steps": 2, "rl_steps": 2, "problems_per_step": 2},
    "r1": {"problems": 8, "rl_steps": 2, "sft_steps": 2, "problems_per_step": 4},
    "expert_iteration": {"problems": 6, "simulations": 4, "steps": 2},
    "trace_supervision": {"problems": 8, "steps": 2},
    "tree_grpo": {"steps": 2, "problems_per_step": 2},
    "verifiers": {"problems": 4, "outcomes": 4, "samples": 2, "completions": 2, "n": 4, "limit": 4, "steps": 2},
}


@pytest.fixture(scope="module")
def tiny() -> Iterator[Any]:
    """What recipes share, made small: sums of three numbers below 4, which take seconds to half learn."""
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    import _bases

    real, start, measure = _bases.BASES["tiny"], _bases.RecipeBase.cold_start_job, _bases.RecipeBase.evaluate

    def small(self: Any, seed: int, steps: int | None = None, small: bool = False) -> FineTune:
        return replace(start(self, seed, 20 if small else 150, small), batch_size=16, optimizer=AdamW(lr=1e-2))

    with pytest.MonkeyPatch.context() as patch:
        task = replace(real.task, terms=3, limit=4, test_size=4)
        nets = {"model": replace(real.model, width=32, layers=1), "student": replace(real.model, width=16, layers=1)}
        patch.setitem(_bases.BASES, "tiny", replace(real, task=task, **nets))
        patch.setattr(_bases.RecipeBase, "cold_start_job", small)
        patch.setattr(_bases.RecipeBase, "evaluate", lambda self, model, seed, n=2: measure(self, model, seed, 2))
        yield _bases


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Stages, Path], None]:
    """Puts the first stage where it belongs if another recipe has done the same: it is then not done again."""
    kept: list[tuple[FineTune, Path]] = []

    def begin(stages: Stages, folder: Path) -> None:
        with Run(folder, stages):
            pass
        for stage in stages.stages:
            if isinstance(stage.job, FineTune) and not isinstance(stage.job.data, str):
                result = next((at for job, at in kept if job == stage.job), None)
                if result is None:
                    kept.append((stage.job, result := tmp_path_factory.mktemp("start") / "run"))
                    stage.job(result)
                shutil.copytree(result, folder / stage.name)

    return begin


def made(name: str, **settings: Any) -> Any:
    return recipe_files.build_job(recipe_files.load_recipe(recipe_files.shipped_recipes()[name]), settings)


def test_every_recipe_makes_a_job_that_encodes() -> None:
    """Also those that need a language model, and are only built here."""
    assert set(SMALL) < {*recipe_files.shipped_recipes()}
    for name in {*recipe_files.shipped_recipes()} - {WITH_EXAMPLES}:
        job = made(name)
        assert job_json.decode(job_json.encode(job)) == job
    for name in SMALL:
        job = made(name, model="smollm2")
        assert job_json.decode(job_json.encode(job)) == job != made(name)
        assert '"model": "some/folder"' in json.dumps(job_json.encode(made(name, model="some/folder")))


def test_recipe_with_examples_of_a_data_set_encodes(data: Path) -> None:
    job = made(WITH_EXAMPLES)
    assert job_json.decode(job_json.encode(job)) == job


def test_r1_last_stage_has_a_quarter_of_the_steps_or_what_is_given() -> None:
    steps = {
        given: {stage.name: stage.job.steps for stage in made("r1", rl_steps=40, all_rl_steps=given).stages
                if isinstance(stage.job, RL)}
        for given in (None, 64)
    }  # fmt: skip
    assert steps == {None: {"reasoning-rl": 40, "all-rl": 10}, 64: {"reasoning-rl": 40, "all-rl": 64}}


@pytest.mark.parametrize("shown", [True, False])
def test_r1_zero_rewards_the_format_of_its_prompt(shown: bool) -> None:
    job = made("r1_zero", model="smollm2", one_shot=shown).stages[1].job
    assert isinstance(job, RL) and job.template is not None
    problem = job.task.train[0]
    template = CHAT_TEMPLATES.get(job.template, job.template)
    asked = Environment().from_string(template).render(messages=problem.messages, add_generation_prompt=True)
    assert asked.endswith(f"User: {problem.question}\nAssistant: <think>")
    message = [
        " so </think> <answer> {} </answer>",
        " so </think> <answer> 99999 </answer>",
        " so it is {}",
        "</think>{}",
    ]
    trace = Trace(problem, [Step(None, problem.question, ids([]))])
    at = [trace.add(Step(0, text.format(problem.answer), ids([]), stop="eos")) for text in message]
    assert [s.value for s in asyncio.run(job.task.verifier(trace, at))] == pytest.approx([1.2, 0.2, 0, 0])


def test_recipe_starts_from_given_model() -> None:
    """Without a model it makes one first; all that follows is the same job, but for its name."""
    for name in SMALL.keys() - {"cold_start", "distillation", "prune"}:
        alone = made(name).stages
        assert [s.name for s in alone[:2]] == ["start", "start-accuracy"]
        given = job_json.encode(made(name, start="some/run").stages)
        assert json.loads(json.dumps(job_json.encode(alone[2:])).replace("stage:start", "some/run")) == given


OTHERS = [
    ("expert_iteration", {"problems": 6, "simulations": 6, "steps": 2, "by": "value"}),
    ("dpo_rounds", {"problems": 6, "simulations": 6, "steps": 2, "by": "search", "rounds": 1}),
]


@pytest.mark.parametrize(("name", "settings"), [*SMALL.items(), *OTHERS])
def test_recipe_runs_once(
    name: str,
    settings: dict[str, Any],
    tiny: Any,
    begun: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages = made(name, **settings)
    assert job_json.decode(job_json.encode(stages)) == stages
    folder = tmp_path / "run"
    begun(stages, folder)
    first = stages(folder)
    assert list(first) == [s.name for s in stages.stages]
    for stage in stages.stages:
        assert_done(stage.job, folder / stage.name)
    output = stages.summary_lines(folder, first)
    assert [line for line in output if line.startswith("== ")] == [f"== {name}" for name in first]
    assert sum(line.startswith("  traces ") for line in output) == sum(
        isinstance(s.job, Harvest) for s in stages.stages
    )

    def again(*_: Any, **__: Any) -> None:
        raise AssertionError("that was done before")

    monkeypatch.setattr(Learner, "step", again)
    monkeypatch.setattr(PonderPolicy, "generate", again)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name not in REWRITTEN}
    before = {path: at for path, at in before.items() if path.is_file() and path.name != "traces.bin"}
    second = stages(folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for stage in stages.stages:
        if isinstance(stage.job, Evaluate | Collect | Harvest):
            assert second[stage.name] == first[stage.name]


def assert_done(job: Any, folder: Path) -> None:
    match job:
        case FineTune() | RL() | TrainRewardModel():
            assert [row["step"] for row in read_metrics(folder)] == list(range(job.steps))
            assert checkpoints(folder)[-1].name == f"step-{job.steps:06d}"
        case Harvest():
            rows = [json.loads(line) for line in (folder / "data.jsonl").open()]
            assert len(rows) == json.loads((folder / "filter_report.json").read_text())[-1]["count"] > 0
            assert job.kind != "chains" or all(sum(row["learned"]) == row["tokens"] for row in rows)
        case Evaluate():
            assert [t.failed for _, t in read_traces(folder)] == [""] * len(job.task.test)
        case Collect():
            assert 0 < len([t for _, t in read_traces(folder) if not t.failed]) <= job.limit
        case Prune():
            assert (folder / MODEL_FOLDER / "config.json").is_file()
        case Label():
            assert 0 < len(list(read_traces(folder))) <= job.limit
        case _:
            raise AssertionError(f"what is done of a {type(job).__name__}?")


@pytest.mark.parametrize(
    ("name", "at", "why"),
    [
        ("star", "harvest-1", "hold no chains"),
        ("rejection", "harvest", "hold no chains"),
        ("dpo_rounds", "pairs-1", "hold no pairs"),
        ("distillation", "harvest", "hold no chains"),
        ("r1", "harvest", "hold no chains"),
        ("expert_iteration", "harvest-1", "hold no chains"),
        ("rlhf", "reward-model", "labels"),
    ],
)
def test_empty_stage_stops_recipe_with_filter_report(
    name: str, at: str, why: str, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that knows nothing: no answer is right. What was done before stays."""
    real = tiny.RecipeBase.cold_start_job
    monkeypatch.setattr(
        tiny.RecipeBase, "cold_start_job", lambda *a, **k: replace(real(*a, **k), steps=1, save_every=1, batch_size=2)
    )
    stages = made(name, **{**SMALL[name], "problems": 2})
    with pytest.raises(TaskError, match=why) as error:
        stages(tmp_path / "run")
    assert str(error.value).startswith(f"stage '{at}': ")
    assert "\n  traces" in str(error.value) and "- " in str(error.value)
    names = [s.name for s in stages.stages]
    for stage in stages.stages[: names.index(at)]:
        assert_done(stage.job, tmp_path / "run" / stage.name)
    assert not any((tmp_path / "run" / later).exists() for later in names[names.index(at) + 1 :])
    assert read_job(tmp_path / "run") == job_json.encode(stages)


class Impatient(NoProgress):
    """Interrupts after so many events of any kind."""

    def __init__(self, patience: int) -> None:
        self.left = patience

    def _told(self, *_: Any) -> None:
        self.left -= 1
        if not self.left:
            raise Interrupted("enough")

    phase = tokens = share = step = _told


def test_interrupted_recipe_ends_the_same(tiny: Any, begun: Callable[..., None], tmp_path: Path) -> None:
    stages = made("rejection", **SMALL["rejection"])
    for name in ("whole", "parts"):
        begun(stages, tmp_path / name)
    whole = stages(tmp_path / "whole")
    stops, result = 0, None
    while result is None:
        try:
            result = stages(tmp_path / "parts", Impatient(8 + 12 * stops))
        except Interrupted:
            stops += 1
    assert stops > 3
    for stage in stages.stages:
        one, two = tmp_path / "whole" / stage.name, tmp_path / "parts" / stage.name
        assert_done(stage.job, two)
        if isinstance(stage.job, FineTune):
            losses = [[row["loss"] for row in read_metrics(folder)] for folder in (one, two)]
            assert losses[0] == losses[1]
        elif isinstance(stage.job, Harvest):
            rows = [[json.loads(line)["messages"] for line in (f / "data.jsonl").open()] for f in (one, two)]
            assert rows[0] == rows[1]
        else:
            assert replace(whole[stage.name], cost=Cost()) == replace(result[stage.name], cost=Cost())
