"""A stranger's run directory: nothing that it names is imported, called, or followed out of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ponder.errors
from ponder import registry
from ponder.errors import RunError, UntrustedCode, UsageError
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.make_problems import MakeProblems
from ponder.pipelines.problems.filters import Filters
from ponder.pipelines.rewards.reward_model_task import RewardModelTask
from ponder.pipelines.rl import RL
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.runs import Run, checkpoints, job_json, read_job, read_metrics, read_traces
from ponder.runs.environment import read_environment
from ponder.runs.run_dir import lock_run
from ponder.runs.trust import external_code, trust_within
from ponder.tasks import Addition, CustomTask
from ponder.tasks.mixture import WeightedRewardTask
from ponder.types import Problem, Score, Step, Trace, ids, user_messages

MODULE = "stranger_module"
CODE = """
from pathlib import Path

Path(__file__).with_name("marker").touch()


def call(*args, **columns):
    Path(__file__).with_name("marker").touch()
    return [1.0 for _ in columns.get("completions", args)]
"""
CALL = f"{MODULE}:call"
COLUMNS = {"is": "ponder.tasks.datasets.custom:CustomTask", "data": [{"prompt": "touch marker", "answer": "1"}]}
WEIGHED = job_json.encode(WeightedRewardTask(Addition(digits=1), (("accuracy", 1.0),))) | {
    "rewards": [["accuracy", 1.0], [CALL, 1.0]]
}
TASKS: dict[str, Any] = {
    "a name in place of a task": CALL,
    "a type": {"is": f"{MODULE}:Task"},
    "a type in a file": {"is": f"{MODULE}.py:Task"},
    "a type in a type": {"is": "ponder.tasks.mixture:TaskMixture", "tasks": [{"is": f"{MODULE}:Task"}]},
    "a module that ends the process": {"is": "unittest.__main__:x"},
    "no object": {"is": MODULE},
    "a reward": COLUMNS | {"rewards": [CALL]},
    "a reward of Python's": COLUMNS | {"rewards": ["subprocess:getoutput"]},
    "a reward beside ponder's own": COLUMNS | {"rewards": ["ponder.verify:FinalNumber", CALL]},
    "a module as a reward": COLUMNS | {"rewards": [MODULE]},
    "a reward through ponder": COLUMNS | {"rewards": ["ponder.runs.environment:subprocess.getoutput"]},
    "ponder's own loader as a reward": COLUMNS | {"rewards": ["ponder.registry:load"]},
    "a weighted reward": WEIGHED,
    "a judge": job_json.encode(RewardModelTask(Addition(digits=1), "reward:x")) | {"guide": CALL},
}


def trace(id: str = "p/0") -> Trace:
    answer = {"columns": {"answer": "1", "args": "touch marker", "cmd": "touch marker"}, "conversational": False}
    out = Trace(Problem(id, user_messages("touch marker"), answer), [Step(None, "", ids([1]))])
    for text, value in (("3", 1.0), ("4", 0.0)):
        step = Step(0, text, ids([2]), stop="eos", last=True)
        step.scores |= {"reward": Score(value), "other": Score(0.5)}
        out.add(step)
    return out


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that the user works in, with a stranger's module in it, and importable: whatever is named would run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{MODULE}.py").write_text(CODE)
    before = set(sys.modules)
    yield tmp_path
    came = {name for name in sys.modules if name not in before and name.partition(".")[0] in (MODULE, "unittest")}
    for name in came:
        del sys.modules[name]
    assert not came and not (tmp_path / "marker").exists()


def write_run(folder: Path, job: Any, *traces: Trace) -> Path:
    """A run directory with that encoded job, as a stranger may have packed it."""
    with Run(folder, Evaluate(Addition(digits=1)), {}) as run:
        run.write_traces(0, traces or [trace()])
        run.write_metrics(0, {"reward": 0.5})
        run.write_metrics(1, {"reward": 0.5})
    (folder / "job.json").write_text(json.dumps(job))
    return folder


def evaluation(task: Any, **more: Any) -> Any:
    return job_json.encode(Evaluate(Addition(digits=1), model="no-such-model", limit=1)) | {"task": task, **more}


READING: dict[str, tuple[str, ...]] = {
    "compare": ("compare", "run"),
    "compare by a scorer": ("compare", "run", "--column", "correct=other"),
    "plot": ("plot", "coverage", "run"),
    "plot training": ("plot", "training", "run"),
    "plot length": ("plot", "length", "run"),
    "reflect": ("reflect", "run"),
    "contamination": ("contamination", "run", "run"),
    "replay": ("replay", "run"),
    "replay by weights": ("replay", "run", "--score", "reward=1,format=0.5"),
    "harvest": ("harvest", "run", "--include-held-out", "--out", "rows.jsonl"),
    "journeys": ("harvest", "run", "--include-held-out", "--kind", "journeys", "--out", "rows.jsonl"),
}


@pytest.mark.parametrize("command", READING)
def test_a_reading_command_runs_nothing_of_a_run(command: str, strange: Path, ponder: Callable[..., Any]) -> None:
    drawn = command.startswith("plot")  # which takes a second each time
    for what in ("a type", "a reward") if drawn else TASKS:
        home, task = strange / "run", TASKS[what]
        write_run(home, evaluation(task), trace(), trace("p/1"))
        output = ponder(*READING[command])
        assert output.code in (0, 2) and not (strange / "marker").exists(), (what, output.err)
        assert MODULE not in sys.modules, what
        for path in (*home.iterdir(), strange / "rows.jsonl"):
            path.unlink(missing_ok=True)


JOBS: dict[str, Any] = {
    **{what: evaluation(task) for what, task in TASKS.items()},
    "a job": {"is": CALL},
    "a strategy": evaluation(job_json.encode(Addition()), strategy={"is": f"{MODULE}:Strategy"}),
    "a guide": evaluation(job_json.encode(Addition()), guide=CALL),
    "a guide beside the oracle": evaluation(job_json.encode(Addition()), guide=f"oracle+{CALL}"),
    "a guide to collect by": job_json.encode(Collect(Addition())) | {"guide": CALL},
    "an exact solver": job_json.encode(MakeProblems("templates", file="t.json")) | {"exact_solver": "os:system"},
    "a sieve": job_json.encode(MakeProblems("templates", file="t.json", filters=Filters())) | {
        "filters": job_json.encode(Filters()) | {"embedder": CALL}
    },
    "training": job_json.encode(RL(Addition())) | {"task": COLUMNS | {"rewards": [CALL]}},
    "a stage": {
        "is": "ponder.pipelines.stages:Stages",
        "stages": [{"is": "ponder.pipelines.stages:Stage", "name": "a", "job": evaluation({"is": f"{MODULE}:Task"})}],
    },
    "no jail": evaluation({"is": "ponder.verify.code.call_tests:CallTests", "isolation": "unsafe"}),
    "programs in a folder": evaluation({"is": "ponder.verify.proof.coq:Coq", "tools": ["/tmp/theirs"]}),
    "a project whose programs run": evaluation({"is": "ponder.verify.proof.lean:Lean", "project": "/tmp/theirs"}),
    "a server": evaluation(job_json.encode(Addition()), model="openai:https://elsewhere.example/v1#m"),
    "a server as a scorer": evaluation(job_json.encode(Addition()), guide="reward:https://elsewhere.example/v1#v"),
    "a server as a reduced scorer": evaluation(
        job_json.encode(Addition()), guide="oracle+reward+product:http://elsewhere.example"
    ),
    "a server as a judge": evaluation(job_json.encode(Addition()), guide="genrm:openai:https://elsewhere.example/v1"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize("what", JOBS)
def test_a_job_with_code_of_its_own_is_refused(
    command: str, what: str, strange: Path, ponder: Callable[..., Any]
) -> None:
    write_run(strange / "run", JOBS[what])
    output = ponder(command, "run")
    assert output.code == 2 and output.err.count("\n") == 1, output.err
    assert "--trust" in output.err and ("job.json names" in output.err), output.err
    assert not (strange / "run" / "checkpoints").exists()


def test_trust_flag_allows_foreign_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ponder: Callable[..., Any]
) -> None:
    """The user's own run, by its directory: --trust, with which modules of the current folder are found."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_words.py").write_text("def call(question):\n    return ['3']\n")
    sums = {
        "name": "sums",
        "question": "What is {a} + {b}?",
        "variables": {"a": [1, 2], "b": [1, 2]},
        "answer": "a + b",
    }
    (tmp_path / "t.json").write_text(json.dumps(sums | {"answer": "a + b"}))
    given = (
        "problems",
        "templates",
        "t.json",
        "--count",
        "4",
        "--dedup-threshold",
        "0",
        "--exact-solver",
        "own_words:call",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    first = ponder(*given, "--run", "run", "--out", "a.jsonl")
    assert first.code == 0, first.err
    again = ponder(*given, "--run", "run", "--out", "b.jsonl")
    assert again.code == 0, again.err  # he named it himself
    other = ponder(*given[:-2], "--run", "run", "--out", "c.jsonl")
    assert other.code == 0, other.err  # the stored job named code that is not asked for any more
    assert ponder(*given, "--run", "run", "--out", "d.jsonl").code == 0
    assert "own_words:call" in (refused := ponder("run", "run")).err and refused.code == 2
    assert ponder("run", "run", "--trust").code == 0
    assert ponder("run", "run").code == 2, "one command's word is not the next one's"


def test_trust_is_a_flag_only_where_run_directories_are_read(ponder: Callable[..., Any]) -> None:
    assert "--trust" in ponder("--help").out and "--trust" in ponder("run", "--help").out
    output = ponder("strategies", "--trust")
    assert output.code == 2 and "--trust" in output.err


# In Python


def test_decode_trusts_ponder_s_own_types_only() -> None:
    job = Evaluate(CustomTask(data=({"prompt": "?"},), rewards=("json:dumps",)))
    data = json.loads(json.dumps(job_json.encode(job)))
    assert external_code(data) == ["json:dumps"] == job_json.external_code_in(job)
    with pytest.raises(UntrustedCode, match=r"'json:dumps'.*--trust"):
        job_json.decode(data)
    with pytest.raises(UntrustedCode):
        job_json.decode(data, trust=["json:loads"])
    assert job_json.decode(data, trust=["json:dumps"]) == job_json.decode(data, trust=True) == job
    with trust_within(["json:dumps"]):
        assert job_json.decode(data) == job


def test_all_that_is_foreign_is_named_before_anything_is_imported(strange: Path) -> None:
    both = [evaluation({"is": f"{MODULE}:A"}), evaluation({"is": f"{MODULE}:B"}, guide=CALL)]
    with pytest.raises(UntrustedCode) as why:
        job_json.decode(both, trust=[f"{MODULE}:A"])
    assert f"{MODULE}:B" in str(why.value) and CALL in str(why.value) and f"{MODULE}:A" not in str(why.value)


@pytest.mark.parametrize(
    "path",
    [
        "os:system", "ponder.staging:shutil.rmtree", "ponder.runs.environment:subprocess", "ponder.registry:load",
        "ponder.__main__:main", "ponder.cli:main", "ponder:__file__", "ponder.runs.run_dir:Run", "ponder_x:y",
        "ponder", "",
        "ponder..types:Trace", "ponder.types:Sampling.__init__", "ponder.types:Sampling.__init__.__globals__",
        "ponder.runs.run_dir:Path", "ponder.pipelines.stages:replace", "stranger_module:call", "../x:y",
        ".types:Sampling",
    ],
)  # fmt: skip
def test_only_dataclasses_of_ponder_s_are_its_own(path: str, strange: Path) -> None:
    assert registry.ponder_object(path) is None
    with registry.only_allowed(()), pytest.raises(UsageError):
        registry.import_object(path)


def test_ponder_s_own_is_found_within_limits() -> None:
    kinds = (
        "ponder.verify:Constraints",
        "ponder.reason.scorers:TopKConfidence",
        "ponder.tasks.synthetic.problem_rows:accuracy",
    )
    with registry.only_allowed(()):
        assert all(registry.import_object(kind) is not None for kind in kinds)
        assert (
            registry.import_object("_last_digits:LastDigits").__name__ == "LastDigits"
        )  # of a recipe that comes with ponder
    assert registry.import_object("json:dumps") is json.dumps, "beyond, whoever writes a name means it"


def test_a_plug_in_is_not_found_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plug:
        def load(self) -> Any:
            raise AssertionError("it was loaded")

    monkeypatch.setattr(registry, "entry_points", lambda group, name: [Plug()])
    data = job_json.encode(WeightedRewardTask(Addition(), (("accuracy", 1.0),))) | {"rewards": [["plugged", 1.0]]}
    with pytest.raises(UntrustedCode, match="plug-in plugged"):
        job_json.decode(data)


def test_every_name_that_is_loaded_stands_in_a_field_that_says_so() -> None:
    """What is loaded by name is found in these modules; a new one must mark its field with `names_code`."""
    import ponder as package

    known = {
        "cli/__init__.py", "runs/job_json.py", "registry.py", "models/guides.py", "pipelines/make_problems.py",
        "pipelines/replay.py", "pipelines/problems/filters.py", "tasks/__init__.py", "tasks/reward_functions.py",
        "verify/rewards/reward_registry.py", "cli/job_command.py", "cli/job_commands.py", "cli/named_objects.py",
        "cli/strategy_flags.py", "cli/strategies.py", "reason/tools/function_tool.py",
        "tasks/environments/episode_task.py", "tasks/environments/process_environment.py",
        "tasks/environments/tool_task.py", "tasks/environments/user_environment.py",
        "tasks/environments/environment_worker.py",  # what process_environment.py gives it
        "pipelines/job/resolve_names.py", "reason/named_strategies.py",  # typed
        "cli/contamination.py", "measure/readers/run_directory.py", "pipelines/harvest.py", "runs/trust.py",  # limits
    }  # fmt: skip
    root = Path(package.__file__).parent
    users = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if any(
            line.strip().startswith(("from ponder.registry import", "from ponder import")) and "registry" in line
            for line in file.read_text().splitlines()
        )
    }
    assert users | {"registry.py"} == known


@dataclass(frozen=True)
class RecordingTask:
    """A job of the user's own, which reads its run directory back."""

    def __call__(self, folder: Path, watch: Any = None) -> Any:
        with Run(folder, self, {}):
            return job_json.decode(read_job(folder))


def test_what_stages_name_is_trusted_while_they_run(tmp_path: Path) -> None:
    job = Stages((Stage("a", RecordingTask()),))
    assert job_json.external_code_in(job) == [f"{__name__}:RecordingTask"]
    for _ in range(2):  # also when they go on
        assert job(tmp_path / "run") == {"a": RecordingTask()}
    with pytest.raises(UntrustedCode, match="RecordingTask"):
        job_json.decode(read_job(tmp_path / "run"))


# Links


FILES = (
    "job.json",
    "metrics.jsonl",
    "traces.jsonl",
    "traces.bin",
    "environment.json",
    "lock",
    "checkpoints",
    "job.json.new",
    "part",
)


def run_with_link(home: Path, name: str) -> Path:
    """A run in which that name leads to something of the user's, outside."""
    write_run(home, job_json.encode(Evaluate(Addition(digits=1), limit=1)))
    outside = home.parent / f"{home.name}-mine"
    if name in ("checkpoints", "part"):
        (outside / "step-000001").mkdir(parents=True)
        (outside / "step-000001" / "state.json").write_text("mine")
    else:
        outside.write_bytes((home / name).read_bytes() if (home / name).exists() else b"mine\n")
    (home / name).unlink(missing_ok=True)
    (home / name).symlink_to(outside)
    return outside


def contents(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in (path, *path.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_a_run_directory_is_refused(name: str, tmp_path: Path, ponder: Callable[..., Any]) -> None:
    home = tmp_path / "run"
    outside = run_with_link(home, name)
    before = contents(outside)
    reads = (read_job, lambda f: list(read_traces(f)), read_metrics, checkpoints, read_environment, lock_run)
    for read in reads:
        with pytest.raises(RunError, match=rf"{name} is a symbolic link"):
            read(home)
    with pytest.raises(RunError, match="symbolic link"), Run(home, Evaluate(Addition(digits=1)), {}):
        pass
    for argv in (("compare", home), ("run", home), ("reflect", home), ("eval", "addition", "--run", home)):
        output = ponder(*argv)
        assert output.code == 2 and "symbolic link" in output.err, (argv, output.err)
    assert contents(outside) == before


def test_a_link_deep_in_a_checkpoint_is_refused(tmp_path: Path) -> None:
    home = write_run(tmp_path / "run", job_json.encode(Evaluate(Addition())))
    (home / "checkpoints" / "step-000001" / "model").mkdir(parents=True)
    (home / "checkpoints" / "step-000001" / "model" / "config.json").symlink_to("/etc/hostname")
    with pytest.raises(RunError, match="symbolic link"):
        checkpoints(home)


def test_what_is_neither_file_nor_folder_is_refused(tmp_path: Path) -> None:
    home = write_run(tmp_path / "run", job_json.encode(Evaluate(Addition())))
    (home / "traces.bin").unlink()
    os.mkfifo(home / "traces.bin")  # whoever opens it waits for ever
    with pytest.raises(RunError, match="neither a file nor a folder"):
        list(read_traces(home))


def test_the_run_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    write_run(tmp_path / "run", job_json.encode(Evaluate(Addition())))
    (tmp_path / "newest").symlink_to(tmp_path / "run")
    assert len(list(read_traces(tmp_path / "newest"))) == 1


# Paths that climb


@pytest.mark.parametrize("path", ["{run}/../../mine", "{run}/../a/../../mine", "reward:{run}/../../x", "{run}/../.."])
def test_a_path_beside_the_run_stays_beside_it(path: str, tmp_path: Path) -> None:
    home = write_run(tmp_path / "run", evaluation(job_json.encode(Addition()), model=path))
    with pytest.raises(RunError, match="leads out of the folder of its stages"):
        read_job(home)


def test_a_sibling_stage_is_still_found(tmp_path: Path) -> None:
    home = write_run(tmp_path / "run", evaluation(job_json.encode(Addition()), model="{run}/../sft"))
    assert read_job(home)["model"] == str(tmp_path / "sft")


@pytest.mark.parametrize("path", ["stage:a/../../x", "reward:stage:a/.."])
def test_a_place_in_an_earlier_stage_stays_in_it(path: str) -> None:
    with pytest.raises(UsageError, match=r"leave out '\.\.'"):
        Stages((Stage("a", Evaluate(Addition())), Stage("b", Evaluate(Addition(), model=path))))


@pytest.mark.parametrize(
    "data",
    [
        {"is": 3}, {"is": None}, {"is": ["x"]}, {"is": "float", "value": "x"}, {"is": "float"},
        {"is": "ponder.tasks.generated.addition:Addition", "digits": "x"},
        {"is": "ponder.tasks.mixture:TaskMixture", "tasks": 3}, {"is": "ponder.tasks.mixture:WeightedRewardTask",
        "task": 1, "rewards": [2]},
        job_json.encode(Evaluate(Addition(), strategy=Samples())) | {"budget": {"is": "ponder.types:Nothing"}},
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_one_sentence(data: Any) -> None:
    with pytest.raises(ponder.errors.PonderError):
        job_json.decode(data)
