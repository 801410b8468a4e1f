"""Every flag of every command and recipe changes something, or is refused.

Commands and recipes that build a job are called with each parameter at another value than its default: the job, or
where and how it is run, must differ. Parameters that need others beside them stand in a table with those; a command
whose flags change its output stands in `OUTPUT_COMMANDS`, flag by flag. These tests find a new flag by themselves, and
fail until it changes something or has its place in a table. tests/test_settings_are_read.py then holds that whoever
runs a job reads each of its fields.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import shlex
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from matplotlib.figure import Figure

from fake_runs import TASK, StoredJob, right_answer, write_run, wrong_answer
from ponder.cli import COMMANDS, demo, flags, job_commands, main, plan, recipe_files
from ponder.cli import problems as problems_
from ponder.cli.plan_evaluation import plan_evaluation
from ponder.cluster import ray_node
from ponder.cluster.ray_node import RayNode
from ponder.errors import PonderError, UsageError
from ponder.measure.statistics.verifier_metrics import FirstErrorScores
from ponder.models import load as models_load
from ponder.models.load import load_policy
from ponder.models.reward_models import PRM
from ponder.nets import hf
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.processbench import ProcessBenchResult
from ponder.registry import import_object
from ponder.runs import Run, job_json, read_traces
from ponder.serve import load_models, local_chat
from ponder.settings import When
from ponder.types import Cost, Score

Given = dict[str, Any]
JOB_COMMANDS = {
    "train": job_commands.train,
    "sft": job_commands.sft,
    "eval": job_commands.evaluate,
    "problems": problems_.problems,
}
JOB_COMMANDS |= {name: import_object(COMMANDS[name].target) for name in ("reward", "label", "collect", "offline")}

BASE_ARGS: dict[str, Given] = {
    "train": {"task": "addition"},
    "sft": {"data": "addition"},
    "eval": {"task": "addition"},
    "label": {"task": "addition"},
    "collect": {"task": "addition"},
    "reward": {"data": ["run"], "algorithm": "prm"},
    "offline": {"data": ["run"]},
    "problems": {"operation": "write", "out": Path("new.jsonl"), "model": "m", "source": "addition"},
}
# Beside which others, and at which value, a parameter counts: (the others, its value).
ROWS: Given = {"source": "rows.jsonl"}
DATA_ROWS: Given = {"data": "rows.jsonl"}
COMPANIONS: dict[tuple[str, str], tuple[Given, Any]] = {
    ("train", "task"): ({}, "countdown"),
    ("train", "algorithm"): ({}, "rloo"),
    ("train", "algorithm_settings"): ({}, {"kl.estimator": "k2"}),
    ("train", "rollout_correction"): ({}, "tis"),
    ("train", "rollout_correction_settings"): ({"rollout_correction": "tis"}, {"cap": "3"}),
    ("train", "optimizer_settings"): ({}, {"weight_decay": "0.1"}),
    ("train", "lora_settings"): ({}, {"rank": "4"}),
    ("train", "task_settings"): ({}, {"digits": "3"}),
    ("train", "curriculum"): ({}, "frontier"),
    ("train", "pretraining_data"): (
        {"algorithm": "ppo", "algorithm_settings": {"pretraining_coef": "1"}, "pretraining_data": "rows.jsonl"},
        "other.jsonl",
    ),
    ("train", "pretraining_batch_size"): (
        {"algorithm": "ppo", "algorithm_settings": {"pretraining_coef": "1"}, "pretraining_data": "rows.jsonl"},
        4,
    ),
    ("train", "eval_limit"): ({"eval_every": 5}, 3),
    ("train", "batches_ahead"): ({"staleness": 2}, 2),
    ("train", "replica_engine"): ({"replicas": 2}, "vllm"),
    ("train", "weight_transport"): ({"replicas": 2}, "broadcast"),
    ("eval", "replica_engine"): ({"replicas": 2}, "vllm"),
    ("collect", "replica_engine"): ({"replicas": 2}, "vllm"),
    ("label", "replica_engine"): ({"replicas": 2}, "vllm"),
    **{(command, "tensor_parallel"): ({"replicas": 1}, 2) for command in ("train", "eval", "collect", "label")},
    ("train", "eval_samples"): ({"eval_every": 5}, 3),
    ("train", "curriculum_settings"): ({"curriculum": "frontier"}, {"focus": "2"}),
    ("train", "sampling_settings"): ({}, {"stop": "END"}),
    ("sft", "data"): ({}, "rows.jsonl"),
    ("sft", "step_separator"): ({"step_token": "<step>"}, ";"),
    ("sft", "algorithm"): (DATA_ROWS, "dpo"),
    ("sft", "algorithm_settings"): ({**DATA_ROWS, "algorithm": "dpo"}, {"beta": "0.3"}),
    ("reward", "algorithm"): ({}, "value"),
    ("train", "rewards"): ({}, "accuracy=1,format=0.2"),
    ("eval", "rewards"): ({}, "accuracy=1,format=0.2"),
    ("sft", "teacher"): ({"algorithm": "distill", "teacher": "one"}, "another"),
    ("sft", "optimizer_settings"): ({}, {"betas": "0.8,0.9"}),
    ("sft", "lora_settings"): ({}, {"alpha": "4"}),
    ("sft", "task_settings"): ({}, {"digits": "3"}),
    ("eval", "task"): ({}, "countdown"),
    ("eval", "strategy"): ({}, "majority-vote"),
    ("eval", "effort"): ({}, "low"),
    ("eval", "n"): ({}, 4),
    ("eval", "guide"): ({"strategy": "best-of-n"}, "likelihood"),
    **{(command, "tools"): ({}, ("calculator",)) for command in ("train", "sft", "eval", "collect")},
    **{(command, "max_turns"): ({"tools": ("calculator",)}, 3) for command in ("train", "sft", "eval", "collect")},
    **{(command, "shard_size"): ({"fsdp": True}, 4) for command in ("train", "sft", "offline", "reward")},
    **{(command, "train_parts"): ({}, ("text",)) for command in ("train", "sft", "reward", "offline")},
    ("eval", "shared_budget"): ({"budget_settings": {"tokens": "100"}}, True),
    ("eval", "budget_settings"): ({}, {"seconds": "9"}),
    ("eval", "strategy_settings"): ({"strategy": "majority-vote"}, {"weight": "likelihood"}),
    ("eval", "task_settings"): ({}, {"digits": "3"}),
    ("eval", "prices"): ({}, Path("prices.json")),
    ("collect", "task"): ({}, "countdown"),
    ("collect", "strategy"): ({}, "majority-vote"),
    ("collect", "effort"): ({}, "low"),
    ("collect", "n"): ({}, 3),
    ("collect", "guide"): ({"strategy": "best-of-n"}, "oracle"),
    ("collect", "budget_settings"): ({}, {"seconds": "9"}),
    ("collect", "strategy_settings"): ({"strategy": "majority-vote"}, {"weight": "likelihood"}),
    ("collect", "task_settings"): ({}, {"digits": "3"}),
    ("collect", "prices"): ({}, Path("prices.json")),
    ("label", "task"): ({}, "countdown"),
    ("label", "data"): ({}, ["run"]),
    ("label", "include_held_out"): ({"data": ["run"]}, True),
    ("label", "task_settings"): ({}, {"digits": "3"}),
    ("reward", "data"): ({}, ["other"]),
    ("reward", "algorithm_settings"): ({}, {"bias": "false"}),
    ("reward", "optimizer_settings"): ({}, {"eps": "1e-6"}),
    ("reward", "lora_settings"): ({}, {"rank": "4"}),
    ("reward", "format"): ({}, "omega"),
    ("offline", "data"): ({}, ["other"]),
    ("offline", "algorithm"): ({}, "rloo"),
    ("offline", "algorithm_settings"): ({}, {"kl.estimator": "k2"}),
    ("offline", "optimizer_settings"): ({}, {"eps": "1e-6"}),
    ("offline", "lora_settings"): ({}, {"rank": "4"}),
    ("problems", "operation"): ({}, "backward"),
    ("problems", "source"): ({}, "rows.jsonl"),
    ("problems", "task_settings"): ({}, {"digits": "3"}),
    ("problems", "operator"): ({"operation": "evolve"}, ["steps"]),
    ("problems", "question_column"): (ROWS, "asked"),
    ("problems", "answer_column"): (ROWS, "said"),
    ("problems", "solver"): ({}, ["other"]),
    ("problems", "prompt"): ({}, "{question} Why?"),
    ("problems", "language"): ({}, "de"),
    ("problems", "exact_solver"): ({}, "math:sqrt"),
    ("problems", "embedder"): ({}, "math:sqrt"),
    ("problems", "decontaminate_against"): ({}, ["addition"]),
    ("problems", "ngram"): ({"decontaminate_against": ["addition"]}, 9),
    ("problems", "min_pass_rate"): ({}, 0.2),
    ("problems", "max_pass_rate"): ({}, 0.5),
    ("problems", "dedup_threshold"): ({}, 0.5),
    ("run agent", "task"): ({}, "mastermind"),
    ("run countdown", "width"): ({}, 64),
    ("run compare_strategies", "n"): ({}, 32),
    ("run expert_iteration", "n"): ({"by": "sampling"}, 9),
    ("run dpo_rounds", "simulations"): ({"by": "search"}, 9),
    ("run judges", "betas"): ({}, (0.1, 0.3)),
    ("reward", "train_tenths"): ({}, 5),
    ("run judges", "dropout"): ({"token_orm": True}, 0.1),
    ("run judges", "rl_tasks"): (
        {"model": "smollm2", "task": "addition", "more_tasks": ("countdown",), "rl_steps": 3},
        (),
    ),
    ("run judges", "lm_weight"): ({"token_orm": True}, 0.5),
    ("run judges", "test_tasks"): (
        {"model": "smollm2", "task": "addition", "more_tasks": ("countdown",)},
        ("countdown",),
    ),
    ("run judges", "more_tasks"): ({"model": "smollm2", "task": "addition"}, ("countdown",)),
    ("run guided_search", "widths"): ({}, (4, 8)),
    ("run search_forks", "width"): ({}, 8),
    ("run guided_search", "simulations"): ({}, (8,)),
    ("run guided_search", "reading"): ({}, "ratio"),
    ("run guided_search", "judge"): ({}, "runs/judge"),
    ("run guided_search", "tuned"): ({}, "runs/tuned"),
    ("run guided_search", "cut"): ({}, "sentence"),
    ("run judges", "many_batch_size"): ({"many": 16}, 4),
    ("run step_judges", "puzzle"): ({}, "sudoku"),
    ("run step_judges", "numbers"): ({"puzzle": "countdown"}, 5),
    ("run step_judges", "template"): ({"model": "smollm2", "task": "addition"}, "qa{{ messages[-1].content }}"),
    ("run step_judges", "max_tokens"): ({"model": "smollm2", "task": "addition"}, 9),
    ("run step_judges", "separator"): ({"model": "smollm2", "task": "addition"}, ";"),
    ("run step_judges", "completions"): ({"model": "smollm2", "task": "addition"}, 4),
    ("run step_judges", "labels"): ({"model": "smollm2", "task": "addition"}, "hard"),
    ("run step_judges", "more_tasks"): ({"model": "smollm2", "task": "addition"}, ("countdown",)),
    ("run temperatures", "temperatures"): ({}, (1.0, 0.25)),
    ("run step_labels", "sizes"): ({}, (64, 128)),
    ("run step_labels", "steps"): ({}, (50, 100)),
    ("run step_labels", "answers"): ({}, 64),
    ("run step_labels", "samples"): ({}, 4),
    ("run puzzle_search", "puzzle"): ({}, "sudoku"),
    ("run puzzle_search", "widths"): ({}, (4, 8)),
    ("run puzzle_search", "simulations"): ({}, (8,)),
    ("run puzzle_search", "beam_width"): ({}, 2),
    ("run r1_zero", "one_shot"): ({"model": "smollm2"}, False),
    ("run star", "rationalise"): ({}, True),
    ("run r1", "plain_task"): ({}, "countdown"),
    ("run r1", "smaller_start"): ({"smaller": "runs/smaller"}, "runs/start"),
    ("run prune", "layers"): ({"mlp_width": 64}, 1),
    ("run prune", "more_tasks"): ({"model": "smollm2", "task": "addition"}, ("countdown",)),
    ("run distillation", "teacher_steps_factor"): ({}, 5),
    ("run genrm", "template"): ({"model": "smollm2"}, "qa{{ messages[-1].content }}"),
    ("run genrm", "max_tokens"): ({"model": "smollm2"}, 9),
    ("run quiet_star", "template"): ({"model": "smollm2"}, "plain"),
    ("run quiet_star", "max_thought_tokens"): ({"model": "smollm2"}, 9),
    ("run quiet_star", "lookahead_tokens"): ({"model": "smollm2"}, 9),
    ("run quiet_star", "thought_tokens"): ({"model": "smollm2"}, "(,)"),
    ("run quiet_star", "thought_tokens_like"): ({"model": "smollm2"}, ":,;"),
}
EVERY_RECIPE = {
    "task": ({"model": "smollm2"}, "addition"),
    "task_settings": ({"model": "smollm2"}, {"test_size": "50"}),
}

# Beside all of a recipe's: it counts its different problems, and of ten thousand that takes half a second.
SMALLER: dict[str, Given] = {"run step_labels": {"sizes": (64, 256), "pool": 128}}


def companions(recipe: str, name: str) -> tuple[Given, Any]:
    beside, value = COMPANIONS.get((recipe, name), EVERY_RECIPE.get(name, ({}, None)))
    return SMALLER.get(recipe, {}) | beside, value


def other(hint: Any, default: Any) -> Any:
    """Another value of this type."""
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(k for k in get_args(kind) if k is not type(None))
    if get_origin(kind) is Annotated:
        return other(kind, default)
    if get_origin(kind) is Literal:
        return next(value for value in get_args(kind) if value != default)
    if kind is bool:
        return not default
    if kind is int:
        return (default if isinstance(default, int) else 2) + 1
    if kind is float:
        return 0.7 if not isinstance(default, float | int) or not default else default * 2
    return Path("elsewhere") if kind is Path else "other"


class Captured(Exception):
    def __init__(self, *what: Any) -> None:
        self.what = what


def encoded_job(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """What a command would run, as plain data; the sentence where it refuses."""
    try:
        made = flags.call_with_flags(function, dict(given))
    except Captured as seen:
        made = seen.what
    except PonderError as why:
        return str(why)
    return [job_json.encode(part) if part is not None else None for part in made]


JOB_PARAMETERS = [(name, p) for name, function in JOB_COMMANDS.items() for p in inspect.signature(function).parameters]


@pytest.fixture
def capture_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Commands come to where they would start their job."""

    def start(*what: Any) -> Any:
        raise Captured(*what)

    monkeypatch.chdir(tmp_path)
    Path("prices.json").write_text('{"smollm2": {"generated": 2.5}}')
    monkeypatch.setattr(problems_, "_run_and_write", start)
    yield


@pytest.mark.parametrize(("command", "name"), JOB_PARAMETERS, ids=str)
@pytest.mark.usefixtures("capture_jobs")
def test_every_job_flag_changes_the_job(command: str, name: str) -> None:
    function = JOB_COMMANDS[command]
    beside, value = COMPANIONS.get((command, name), ({}, None))
    base = BASE_ARGS[command] | beside
    parameter = inspect.signature(function).parameters[name]
    default = None if parameter.default is inspect.Parameter.empty else parameter.default
    hint = get_type_hints(function, include_extras=True)[name]
    changed = base | {name: other(hint, base.get(name, default)) if value is None else value}
    before, after = encoded_job(function, base), encoded_job(function, changed)
    assert isinstance(before, list), before
    assert isinstance(after, list), after
    assert before != after, f"--{name} changes nothing in what `ponder {command}` runs"


@pytest.fixture
def word_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data folder with a few problems of GSM8K: a recipe that shows solved examples reads them when it is built."""
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    for split, first in (("train", 0), ("test", 50)):
        rows = [{"question": f"{n} + 1?", "answer": f"so #### {n + 1}"} for n in range(first, first + 20)]
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    monkeypatch.setenv("PONDER_DATA", str(tmp_path))


RECIPES = {f"run {name}": recipe_files.load_recipe(path) for name, path in recipe_files.shipped_recipes().items()}


@pytest.mark.parametrize(
    ("recipe", "name"), [(r, p) for r, f in RECIPES.items() for p in inspect.signature(f).parameters], ids=str
)
@pytest.mark.usefixtures("word_problems")
def test_every_parameter_of_a_recipe_changes_its_job(recipe: str, name: str) -> None:
    function = RECIPES[recipe]
    beside, value = companions(recipe, name)
    default = inspect.signature(function).parameters[name].default
    hint = get_type_hints(function, include_extras=True).get(name, type(default))
    given = {**beside, name: other(hint, beside.get(name, default)) if value is None else value}
    for one in (beside, given):
        flags.check_conditions(function, one)
    assert job_json.encode(recipe_files.build_job(function, beside)) != job_json.encode(
        recipe_files.build_job(function, given)
    )


@pytest.mark.usefixtures("word_problems")
def test_on_every_base_a_recipe_takes_what_it_takes_on_another() -> None:
    """The tiny model and SmolLM2: a parameter that only one of them reads is refused with the other."""
    for recipe, function in RECIPES.items():
        parameters = inspect.signature(function).parameters
        hints = get_type_hints(function, include_extras=True)
        plain: dict[str, Any] = {}  # the jobs of what stands beside a parameter, which is mostly the model alone
        for model in ("tiny", "smollm2") if "model" in parameters else ():
            for name in set(parameters) - {"model"}:
                beside, value = companions(recipe, name)
                beside = {**beside, "model": model}
                given = {**beside, name: other(hints[name], parameters[name].default) if value is None else value}
                if name == "rationalise":
                    given[name] = model == "tiny"
                try:
                    flags.check_conditions(function, given)
                    if (key := repr(sorted(beside.items()))) not in plain:
                        plain[key] = job_json.encode(recipe_files.build_job(function, beside))
                    changed = job_json.encode(recipe_files.build_job(function, given))
                except UsageError:
                    continue
                assert plain[key] != changed, f"`ponder {recipe} --model {model} --{name}` changes nothing"


# Conditions: whatever says `When` is refused elsewhere.


def functions() -> dict[str, Callable[..., Any]]:
    out = {name: import_object(c.target) for name, c in COMMANDS.items() if not c.raw_args}
    own = {
        "plan": plan.plan_flags,
        "plan eval": plan_evaluation,
        "run": job_commands.run_flags,
        "run DIRECTORY": job_commands.rerun_flags,
    }
    return out | own | RECIPES


CONDITIONS = [
    (name, parameter, condition)
    for name, function in functions().items()
    for parameter, hint in get_type_hints(function, include_extras=True).items()
    for condition in (get_args(hint)[1:] if get_origin(hint) is Annotated else ())
    if isinstance(condition, When)
]


@pytest.mark.parametrize(("command", "name", "condition"), CONDITIONS, ids=lambda x: x if isinstance(x, str) else "")
def test_flag_outside_its_condition_is_refused(command: str, name: str, condition: When) -> None:
    function = functions()[command]
    refused = "given" if condition.values == (None,) else condition.other_than[0] if condition.other_than else None
    missing: Given = dict.fromkeys(condition.names, refused)
    company: Given = {"operation": "write", "model": "m", "source": "t"} if command == "problems" else {}
    with pytest.raises(UsageError, match=f"--{name.removesuffix('_settings').replace('_', '-')} "):
        flags.check_conditions(function, {**company, **missing, name: 1})


def test_conditions_are_found() -> None:
    assert len(CONDITIONS) > 20


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("plan", "addition", "--run", "x"), "leave out --run"),
        (("plan", "train", "addition", "--no-resume"), "leave out --no-resume"),
        (("plot", "law", "run", "--cost", "flops"), "--cost is for KIND coverage"),
        (("plan", "eval", "--accuracy", "0.5"), "say what to plan"),
        (("plan", "eval", "--width", "0.1", "--power", "0.9"), "--power means nothing without --difference"),
        (("plan", "--budget", "9"), "--budget means nothing without RUN"),
        (("train", "addition", "--algorithm.kl.estimator", "k2", "--beta", "0"), "give --beta too"),
        (("train", "addition", "--algorithm", "dr-grpo", "--algorithm.kl.estimator", "k2"), "give --beta too"),
        (("train", "addition", "--algorithm.kl.beta", "0.1", "--beta", "0.2"), "the same setting"),
        (("train", "addition", "--beta", "0", "--teacher", "x"), "reads no teacher"),
        (("train", "addition", "--algorithm.clip", "0.1"), "every ratio is 1"),
        (("train", "addition", "--algorithm", "ppo", "--algorithm.lam", "0.1", "--algorithm.advantage_estimator", "mc"),
         "--algorithm.lam changes nothing"),
        (("eval", "addition", "--shared-budget"), "give --budget.tokens or --budget.seconds"),
        (("eval", "addition", "--guide", "likelihood"), "--guide likelihood changes nothing"),
        (("eval", "addition", "--strategy", "majority-vote", "--guide", "p_true"), "--guide p_true changes nothing"),
        (("eval", "addition", "--strategy", "majority-vote", "--strategy.min_leader_probability", "0.9"),
         "--strategy.min_leader_probability changes nothing"),
        (("eval", "addition", "--strategy", "length-rejection", "--max-tokens", "9"), "takes no --max-tokens"),
        (("eval", "addition", "--strategy", "mcts", "--strategy.rollout_weight", "0.5"), "changes nothing"),
        (("eval", "addition", "--model", "openai:http://127.0.0.1:1/v1", "--device", "cpu"), "leave out --device"),
        (("solve", "?", "--model", "openai:http://127.0.0.1:1/v1", "--dtype", "float32"), "leave out --dtype"),
        (("solve", "?", "--strategy", "tree-of-thoughts", "--strategy.cut", "line"), "takes no cut"),
        (("label", "addition", "--model", "vllm:x", "--device", "cpu"), "leave out --device"),
        (("problems", "filter", "x.jsonl", "--out", "y", "--count", "9"), "--count means nothing"),
        (("problems", "filter", "x.jsonl", "--out", "y", "--solver", "m", "--samples-per-solver", "0"),
         "solves nothing"),
        (("problems", "filter", "addition", "--out", "y", "--question-column", "q"), "addition is a task"),
        (("harvest", "run", "--out", "y", "--verifier.digits", "2"),
        "--verifier.digits means nothing without --verifier"),
        (("sft", "x.jsonl", "--task.digits", "2"), "x.jsonl is a file"),
        (("run", "grpo", "--group-size", "0"), "--group-size is 0"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)  # fmt: skip
def test_ineffective_flag_is_refused_in_one_sentence(
    argv: tuple[str, ...], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    output = capsys.readouterr().err
    assert words in output and output.count("\n") == 1, output


# Commands that say or write something themselves: a line, then for each flag "company | what it adds", or two lines.

ASK = "solve 'What is 1 + 2?' --model {model} --json --show tree"
KNOWS_TOOLS = "--template '{{% if tools %}}9{{% endif %}}{{{{ messages[-1].content }}}}'"
SOLVE = "solve 'What is 1 + 2?' --model {model} --max-tokens 3 --n 2 --json"
CHAT = "chat {model} --say 'What is 1 + 2?' --max-tokens 4 --seed 1 --temperature 1"
PLAY = "play tic-tac-toe --player random --against lookahead --games 2 --json"
PLAY_MODEL = (  # the small model has no letters for the question itself
    "play tic-tac-toe --model {model} --against random --illegal random --json"
    " --template '{{{{ messages[-1].content | length }}}}'"
)
UP = "cluster up"
OUTPUT_COMMANDS: dict[str, tuple[str, dict[str, str | tuple[str, str]]]] = {
    "solve": (SOLVE, {
        "question": (SOLVE, SOLVE.replace("1 + 2", "2 + 5")), "model": "| --model {run}",
        "strategy": "| --strategy samples", "effort": (ASK, ASK + " --effort low"), "n": "| --n 3",
        "max_tokens": "| --max-tokens 4", "temperature": "| --temperature 3",
        "guide": "--strategy best-of-n --guide likelihood | --guide logprob:{run}",
        "budget_settings": "| --budget.tokens 3", "prices": "| --prices prices.json",
        "strategy_settings": (ASK + " --strategy sample-tree", ASK + " --strategy sample-tree --strategy.widths 1,1"),
        "show": "| --show answer", "template": "| --template '{{{{ messages[-1].content }}}}'",
        "seed": "--temperature 3 | --seed 7", "device": "| --device cpu", "dtype": "| --dtype bfloat16",
        "run": "| --run kept", "json": "| --no-json",
        "tools": f"{KNOWS_TOOLS} | --tools calculator",
        "max_turns": f"{KNOWS_TOOLS} --tools calculator | --max-turns 2",
    }),
    "chat": (CHAT, {
        "model": (CHAT, CHAT.replace("{model}", "{untrained}")), "effort": "| --effort medium --max-tokens 40",
        "strategy": "| --strategy majority-vote --max-tokens 40", "max_tokens": "| --max-tokens 2",
        "temperature": "| --temperature 3", "say": (CHAT, CHAT.replace("1 + 2", "2 + 5")), "seed": "| --seed 7",
        "system": "--template '{{{{ messages[0].content }}}}' | --system 'What is 2 + 5?'",
        "guide": "--strategy best-of-n --max-tokens 40 | --guide p_true",
        "template": "| --template '{{{{ messages[-1].content }}}}'",
        "device": "| --device cpu", "dtype": "| --dtype bfloat16",
    }),
    "play": (PLAY, {
        "game": (PLAY, PLAY.replace("tic-tac-toe", "connect-four")), "player": "| --player alphabeta",
        "against": "| --against random", "games": "| --games 3", "opening": "| --opening 3", "seed": "| --seed 5",
        "illegal": (PLAY_MODEL, PLAY_MODEL + " --illegal forfeit"), "show": (PLAY[:-7], PLAY[:-7] + " --show boards"),
        "model": (PLAY_MODEL, PLAY_MODEL + " --model {run}"),
        "template": (PLAY_MODEL, PLAY_MODEL + " --template '{{{{ 1 }}}}='"),
        "device": (PLAY_MODEL, PLAY_MODEL + " --device cpu"), "dtype": (PLAY_MODEL, PLAY_MODEL + " --dtype bfloat16"),
        "json": "| --no-json",
        "game_settings": (PLAY.replace("tic-tac-toe", "connect-four"),
                          PLAY.replace("tic-tac-toe", "connect-four") + " --game.columns 4"),
        "player_settings": "--player mcts:60 | --player.c 0", "against_settings": "| --against.plies 1",
    }),
    "compare": ("compare {one} {two}", {
        "runs": "| {three}", "select": "| --select first", "scorer": "--select best --scorer rm | --scorer b",
        "common_problems": "{fewer} | --common-problems", "all_pairs": "{three} | --all-pairs",
        "prices": "| --prices prices.json", "k": "| --k 2", "tau": "--k 2 | --tau 1", "elo": "| --elo",
        "column": "| --column correct=b", "json": "| --json",
    }),
    "plan eval": ("plan eval {one} --problems 90", {
        "run": ("plan eval --problems 90", "plan eval {one} --problems 90"), "accuracy": "| --accuracy 0.2",
        "width": "| --width 0.1", "difference": "| --difference 0.05", "disagreement": "| --disagreement 0.4",
        "power": "| --power 0.9", "problems": "| --problems 80", "budget": "| --budget 9",
        "samples": "--gpu-tflops 1 --parameters 1e9 --tokens 900 | --samples 9",
        "parameters": "--gpu-tflops 1 --tokens 900 --parameters 1e9 | --parameters 9e9",
        "tokens": "--gpu-tflops 1 --parameters 1e9 --tokens 900 | --tokens 9000",
        "gpu_tflops": "| --gpu-tflops 1 --parameters 1e9 --tokens 900",
        "utilization": "--gpu-tflops 1 --parameters 1e9 --tokens 900 | --utilization 0.1",
        "gpus": "--gpu-tflops 1 --parameters 1e9 --tokens 900 | --gpus 9",
        "column": "| --column correct=b", "json": "| --json",
    }),
    "plot": ("plot pareto {one} {two}", {
        "kind": ("plot coverage {one}", "plot selection {one}"), "runs": "| {three}", "out": "| --out there",
        "title": "| --title T", "select": "| --select first", "cost": "| --cost seconds",
        "scorer": ("plot reliability {one} --scorer rm", "plot reliability {one} --scorer b"),
        "budgets": ("plot two-axis {one} {two}", "plot two-axis {one} {two} --budgets 9,20"),
        "training_cost": ("plot train-or-think {three} {one} --training-cost 9",
            "plot train-or-think {three} {one} --training-cost 99"),
        "quality": ("plot train-or-think {three} {one} --training-cost 9",
            "plot train-or-think {three} {one} --training-cost 9 --quality 0.4"),
        "metric": ("plot training {run}", "plot training {run} --metric loss"),
        "x": ("plot training {run}", "plot training {run} --x flops"),
        "common_problems": "{fewer} | --common-problems",
        "column": "| --column correct=b", "json": "| --json",
    }),
    "replay": ("replay {one}", {
        "run": ("replay {one}", "replay {two}"), "score": "| --score number", "select": "| --select first",
        "scorer": "--select best --scorer rm | --scorer b", "truth": "--score format | --truth new",
        "group_sizes": "| --group-sizes 3",
        "advantage": "| --advantage rloo", "task_settings": "--score addition | --task.forms hash",
        "column": "| --column correct=b", "json": "| --json", "strategy": "| --strategy majority-vote --strategy.n 2",
        "guide": "--strategy best-of-n --strategy.n 2 --guide rm | --guide b",
        "when_exhausted": "--strategy samples --strategy.n 9 | --when-exhausted cycle",
        "strategy_settings": "--strategy samples --strategy.n 2 | --strategy.n 1",
        "budget_settings": "--strategy samples --strategy.n 2 | --budget.tokens 3",
    }),
    "runs": ("runs {places}", {
        "folder": ("runs {places}", "runs {one}"), "sort": "--sort name | --sort state", "json": "| --json",
    }),
    "traces": ("traces {one}", {
        "run": ("traces {one}", "traces {two}"), "problem": "| --problem 2",
        "step": ("traces {run}", "traces {run} --step 1"), "right": "| --right", "wrong": "| --wrong",
        "scorer": "| --scorer b", "limit": "| --limit 1", "json": "| --json",
        "full": "--json | --full", "repair": "| --repair",
    }),
    "reflect": ("reflect {doubts} --scorer rm", {
        "run": ("reflect {one} --scorer rm", "reflect {doubts} --scorer rm"), "scorer": "| --scorer b",
        "show": "| --show 0", "json": "| --json",
    }),
    "contamination": ("contamination seen.jsonl asked.jsonl", {
        "train": ("contamination seen.jsonl asked.jsonl", "contamination asked.jsonl asked.jsonl"),
        "eval": ("contamination seen.jsonl asked.jsonl", "contamination seen.jsonl seen.jsonl"),
        "ngram": "| --ngram 4", "boilerplate_texts": "--ngram 4 | --boilerplate-texts 1", "column": "| --column note",
        "json": "| --json",
    }),
    "strategies": ("strategies", {"name": "| beam-search", "json": "| --json"}),
    "tasks": ("tasks", {"name": "| addition", "task_settings": "addition | --task.digits 3",
        "json": "addition | --json",
                        "strategy": "addition | --strategy cot", "effort": "addition | --effort none",
                        "template": "addition | --template r1"}),
    "data": ("data", {"action": ("data get", "data list"), "name": ("data get nothing-like-it", "data"),
        "json": "| --json"}),
    "cluster": ("cluster status", {
        "action": ("cluster status", "cluster down"), "address": ("cluster status", "cluster status 10.0.0.7:6379"),
        "host": (UP, UP + " --host 10.0.0.7"), "port": (UP, UP + " --port 7"), "cpus": (UP, UP + " --cpus 2"),
        "gpus": (UP, UP + " --gpus 2"), "json": "| --json",
    }),
    "attack": ("attack addition --limit 2", {
        "task": ("attack addition --limit 2", "attack countdown --limit 2"),
        "rewards": "| --rewards accuracy=1,format=1", "limit": "| --limit 3",
        "template": "--json --rewards accuracy=1,format=1 | --template r1",
        "task_settings": "--json | --task.digits 5", "json": "| --json",
    }),
    "export": ("export {model} a", {
        "model": ("export {model} a", "export {untrained} a"), "out": ("export {model} a", "export {model} b"),
        "gguf": ("export {model} a.gguf", "export {model} a.gguf --gguf F32"),
    }),
    "completion": ("completion bash", {"shell": ("completion bash", "completion fish")}),
    "doctor": ("doctor", {"json": "| --json"}),
    "book": ("book judges", {
        "figure": ("book", "book judges"), "on": "| --on {model}", "task": "--on {model} | --task addition",
        "task_settings": "--on {model} --task addition | --task.digits 3", "seed": "| --seed 5", "out": "| --out kept",
        "runs": "| --runs there", "device": "| --device cpu", "dtype": "| --dtype bfloat16",
        "prices": ("book monkeys", "book monkeys --prices monkeys.json"), "json": ("book", "book --json"),
    }),
    "processbench": ("processbench {model}", {
        "model": ("processbench {model}", "processbench {run}"), "subset": "| --subset math",
        "threshold": "| --threshold 0.9",
        "limit": "| --limit 1", "device": "| --device cpu", "dtype": "| --dtype bfloat16", "json": "| --json",
    }),
    "harvest": ("harvest {one} --out rows.jsonl --scorer rm", {
        "runs": ("harvest {one} --out rows.jsonl --scorer rm", "harvest {one} {two} --out rows.jsonl --scorer rm"),
        "out": "| --out others.jsonl", "kind": "--kind siblings | --kind pairs",
        "format": "--kind labels | --format prm800k", "scorer": "| --scorer b", "min_score": "| --min-score 0.3",
        "max_per_problem": "| --max-per-problem 1", "keep": "--max-per-problem 1 | --keep first",
        "max_tokens": "| --max-tokens 4",
        "min_margin": "--kind pairs | --min-margin 0.05", "max_wrong_turns": "--kind journeys | --max-wrong-turns 1",
        "max_wrong_turn_steps": "--kind journeys | --max-wrong-turn-steps 1",
        "min_visits": "--kind values | --min-visits 2",
        "include_oracle": "--kind labels | --include-oracle",
        "verifier": "--kind journeys | --verifier countdown",
        "verifier_settings": "--kind journeys --verifier addition | --verifier.digits 3",
        "tokenizer": "| --tokenizer smollm2", "json": "| --json", "include_held_out": "| --include-held-out",
    }),
    "serve": ("serve {model}", {
        "models": "| other={untrained}", "host": "--api-key k | --host 0.0.0.0", "port": "| --port 8001",
        "api_key": "| --api-key k", "traces": "| --traces kept",
        "episode_seconds": "--traces kept | --episode-seconds 7", "max_tokens": "| --max-tokens 7",
        "max_concurrent": "| --max-concurrent 7", "drain_seconds": "| --drain-seconds 7",
        "allowed_host": "| --allowed-host pc.example",
        "allowed_origin": "| --allowed-origin https://a.example", "template": "| --template qa",
        "device": "| --device cpu", "dtype": "| --dtype bfloat16", "access_log": "| --access-log",
        "replicas": "| --replicas 1", "tensor_parallel": "--replicas 1 | --tensor-parallel 2",
    }),
    "view": ("view {places}", {
        "runs": ("view {places}", "view {run}"), "port": "| --port 8001", "serve": "| --serve http://127.0.0.1:8000",
        "open": "| --open", "export": "| --export copy",
    }),
    "demo": ("demo", {"run": "| --run x", "no_resume": "| --no-resume", "json": "| --json",
        "log_to": "| --log-to tensorboard"}),
    "run": ("run grpo", {"run": "| --run x", "no_resume": "| --no-resume", "json": "| --json",
        "log_to": "| --log-to tensorboard"}),
    "plan": ("plan grpo", {"sample_groups": "| --sample-groups 3", "dry_run_steps": "| --dry-run-steps 3",
        "json": "| --json", "gpus": "| --gpus 2", "nodes": "--gpus 2 | --nodes 2",
        "gpu_memory": "--gpus 2 | --gpu-memory 0.01", "gpu_tflops": "--gpus 2 | --gpu-tflops 1",
        "gpu_bandwidth": "--gpus 2 | --gpu-bandwidth 0.1"}),
}  # fmt: skip
# What a run in seconds cannot show is seen where the flag arrives: the models that are loaded, the job that would run.
CAPTURED_COMMANDS = ("demo", "run", "plan", "serve", "view", "book", "cluster")


def test_every_output_flag_has_a_case() -> None:
    own = {"plan": plan.plan_flags, "run": job_commands.run_flags, "demo": job_commands.run_flags}
    for name, command in COMMANDS.items():
        if name not in JOB_COMMANDS:
            wanted = set(inspect.signature(own.get(name) or import_object(command.target)).parameters)
            if name == "plan":
                wanted |= {"json"}  # and no other of `ponder run`
            assert set(OUTPUT_COMMANDS[name][1]) == wanted, name
    assert set(OUTPUT_COMMANDS["plan eval"][1]) == set(inspect.signature(plan_evaluation).parameters)


@pytest.fixture(scope="module")
def example_paths(tmp_path_factory: pytest.TempPathFactory, trained: Path, model: Path) -> dict[str, str]:
    """Runs, logs and models, by the names that stand in `OUTPUT_COMMANDS`."""
    at = tmp_path_factory.mktemp("places")
    untrained = at / "untrained"
    job = job_json.decode(json.loads((trained / "job.json").read_text()))
    policy = load_policy(replace(job.model, seed=1), template="qa", dtype="float32")
    hf.save(policy.net, untrained)
    policy.tokenizer.save(untrained)
    runs = {
        name: _run(at / name, texts, shift)
        for shift, (name, texts) in enumerate({
            "one": [[right_answer(p), wrong_answer(p), wrong_answer(p, 2),
            right_answer(p)][p % 3 :] + [wrong_answer(p)] * (p % 3) for p in range(8)],
            "two": [[wrong_answer(p), right_answer(p), wrong_answer(p), wrong_answer(p, 3)] for p in range(8)],
            "three": [[right_answer(p)] * 4 for p in range(8)],
            "fewer": [[right_answer(p)] * 4 for p in range(4)],
            "doubts": [[f"It is {wrong_answer(p)}. Wait, no. \\boxed{{{right_answer(p)}}}",
            wrong_answer(p)] for p in range(8)],
        }.items())
    }  # fmt: skip
    return {"places": str(at), "run": str(trained), "model": str(model), "untrained": str(untrained), **runs}


def _run(folder: Path, texts: list[list[str]], shift: int) -> str:
    """A run whose answers have two more scorers beside the verifier."""
    rm = [[((3 * p + 5 * i + shift) % 7) / 6 for i in range(len(some))] for p, some in enumerate(texts)]
    made = write_run(
        folder.with_name(folder.name + "-first"), texts, scores=rm, cost=Cost(4, 0, 30 + shift, seconds=2.0)
    )
    with Run(folder, StoredJob(TASK)) as run:
        for _, trace in read_traces(made):
            for i in trace.answers():
                trace.steps[i].scores["b"] = Score(((5 * i + len(trace.problem.id)) % 4) / 3)
            trace.cost = replace(trace.cost, generated_tokens=trace.cost.generated_tokens)
            run.write_traces(0, [trace])
    return str(folder)


@pytest.fixture
def loaded_models(monkeypatch: pytest.MonkeyPatch, here: Path) -> list[Any]:
    """What a command loads, and for `CAPTURED_COMMANDS` what it would run."""
    seen: list[Any] = []
    loads = models_load.load_inference_policy

    def load_inference_policy(*given: Any, **named: Any) -> Any:
        seen.append((given, named))
        return loads(*given, **named)

    def stops(*what: Any, **named: Any) -> Any:
        raise Captured(*(job_json.encode(w) if is_dataclass(w) else w for w in what), named)

    def rows(job: Harvest, funnel: Any) -> list[dict[str, Any]]:
        seen.append(job_json.encode(job))
        return [{"from": {"problem": "one"}}]

    def process_bench(judge: Any, traces: Any, threshold: float, told: Any) -> ProcessBenchResult:
        seen.append((judge.given, traces, threshold))
        same = FirstErrorScores(1.0, 1.0, 2)
        return ProcessBenchResult(same, threshold, same, threshold, 0)

    def save(net: Any, tokenizer: Any, out: Path, kind: str) -> None:
        out.write_text(kind)

    def savefig(figure: Any, path: Path, **how: Any) -> None:
        path.write_text(str([axes.get_title() for axes in figure.axes] + [figure._suptitle]))

    monkeypatch.setattr(Figure, "savefig", savefig)  # to paint is most of the time, and of no flag
    for slow in ("software_checks", "machine_checks", "sandbox_check", "data_checks"):
        monkeypatch.setattr(f"ponder.cli.doctor.{slow}", lambda: iter(()))
    monkeypatch.setattr(models_load, "load_inference_policy", load_inference_policy)
    monkeypatch.setattr("ponder.models.load_scorer.load_scorer", lambda *given: object.__new__(_RecordingPRM)(given))
    monkeypatch.setattr("ponder.pipelines.processbench.process_bench", process_bench)
    monkeypatch.setattr("ponder.tasks.step_labels.processbench_labels.read_processbench", lambda part: [part, part])
    monkeypatch.setattr("ponder.nets.gguf.save", save)  # this model's characters have no place in such a file
    monkeypatch.setattr(Harvest, "rows", rows)
    monkeypatch.setattr(demo, "run_demo", lambda job, folder, stop, *how: stops(job, folder, *how))
    monkeypatch.setattr(job_commands, "run_job", stops)
    _capture_server(monkeypatch, seen, stops)
    node = RayNode("127.0.0.1:6379", 1, "")
    monkeypatch.setattr(ray_node, "start_node", stops)
    monkeypatch.setattr(ray_node, "stop_node", lambda: node)
    monkeypatch.setattr(ray_node, "read_node", lambda: node)
    state = {"machines": [], "free": {"cpus": 1, "gpus": 0}, "jobs": []}
    monkeypatch.setattr(ray_node, "cluster_state", lambda address: {"address": address, **state})

    def make_figure(figure: Any, run: Any, seeds: Any, out: Path, on_seed: Any) -> None:
        settings = (run.model, run.task, dict(run.task_settings), run.device, run.dtype, str(run.folder))
        stops(figure.name, settings, list(seeds), str(out), getattr(figure, "prices", None))

    monkeypatch.setattr("ponder.book.make.make_figure", make_figure)
    monkeypatch.setattr(plan, "fill_plan", lambda found, scan, probe, seen: stops(found.job, scan, probe, type(seen)))
    Path("prices.json").write_text(json.dumps({n: {"generated": 2.5} for n in ("one", "two", "MODEL")}))
    Path("monkeys.json").write_text(json.dumps({"model": {"generated": 2.5}}))
    rows = [" ".join(f"w{(i + j) % 30}" for j in range(16)) for i in range(12)]
    Path("seen.jsonl").write_text("".join(json.dumps({"question": r, "note": "x"}) + "\n" for r in rows[:6]))
    asked = [{"question": r, "note": f"{i} " + rows[0]} for i, r in enumerate(rows[3:])]
    Path("asked.jsonl").write_text("".join(json.dumps(r) + "\n" for r in asked))
    return seen


def _capture_server(monkeypatch: pytest.MonkeyPatch, seen: list[Any], stops: Callable[..., Any]) -> None:
    """Load what `ponder serve` and `ponder chat` would, and serve nothing; nobody types."""

    class Listener:
        def __init__(self, host: str, port: int) -> None:
            self.address = host, port

        def getsockname(self) -> tuple[str, int]:
            return self.address

        def close(self) -> None:
            pass

        def __enter__(self) -> Listener:
            return self

        def __exit__(self, *error: object) -> None:
            pass

    def make_app(service: Any, guard: Any) -> Any:
        kept = service.recorder.bounds if service.recorder is not None else None
        split = {name: getattr(m.policy, "tensor_parallel", 1) for name, m in service.models.models.items()}
        return split, guard, service.limits, service.keep_trace is None, kept

    def run_server(app: Any, service: Any, listener: Listener, ready: Any, access_log: bool) -> None:
        stops(app, listener.address, access_log)

    def run_viewer(app: Any, listener: Listener, ready: Any) -> None:
        ready()
        stops(app, listener.address)

    def load(*given: Any) -> Any:
        seen.append(given[1:])
        return loads(*given)

    loads = load_models.load_inference_policy
    monkeypatch.setattr(load_models, "load_inference_policy", load)
    monkeypatch.setattr(local_chat, "load_inference_policy", load)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("ponder.local_http.bind", Listener)
    monkeypatch.setattr("ponder.serve.app.make_app", make_app)
    monkeypatch.setattr("ponder.serve.server.run_server", run_server)
    monkeypatch.setattr("ponder.viewer.app.make_app", lambda library, guard: (str(library.root), library.serve_url))
    monkeypatch.setattr("ponder.viewer.server.run_server", run_viewer)
    monkeypatch.setattr("webbrowser.open", seen.append)


class _RecordingPRM(PRM):
    """Where a judge would have been loaded from."""

    def __call__(self, given: Any) -> Any:  # type: ignore[override]
        self.given = given
        return self


OUTPUT_CASES = [(command, flag) for command, (_, lines) in OUTPUT_COMMANDS.items() for flag in lines]


@pytest.mark.parametrize(("command", "flag"), OUTPUT_CASES, ids=str)
def test_every_output_flag_changes_the_output(
    command: str, flag: str, example_paths: dict[str, str], loaded_models: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    base, lines = OUTPUT_COMMANDS[command]
    line = lines[flag]
    company, _, more = ("", "", "") if isinstance(line, tuple) else line.partition("|")
    two = line if isinstance(line, tuple) else (f"{base} {company}", f"{base} {company} {more}")
    result = []
    for i, argv in enumerate(two):
        here = Path(f"try-{i}")
        (here / "runs" / "demo").mkdir(parents=True)
        loaded_models.clear()
        text = Path("prices.json").read_text().replace("MODEL", example_paths["model"])
        (here / "prices.json").write_text(text)
        for name in ("seen.jsonl", "asked.jsonl"):
            (here / name).write_text(Path(name).read_text())
        with contextlib.chdir(here):
            try:
                code: Any = main([word.format(**example_paths) for word in shlex.split(argv)])
            except Captured as seen:
                code = repr(seen.what)
        output = capsys.readouterr()
        assert code == 0 or i == 0 or command in CAPTURED_COMMANDS, output.err
        out = re.sub(r'"seconds": ?[0-9.e-]+|[0-9]+ GFLOP/s[^\n"]*|[0-9.]+ GB free|[0-9.]+ s\b', "", output.out)
        files = {str(f.relative_to(here)): f.stat().st_size for f in sorted(here.rglob("*")) if f.is_file()}
        kept = [f.read_bytes() for f in sorted(here.rglob("*")) if f.suffix in (".csv", ".safetensors", ".gguf")]
        result.append((code, out.replace(str(here), ""), files, kept, list(loaded_models)))
    assert result[0] != result[1], f"{flag} changes nothing in {two[1]}"
