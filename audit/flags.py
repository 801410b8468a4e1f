"""Every flag of every command, run for real on small models: does what comes out differ with it and without?

Each line of audit/flags.txt is a flag of a command, with two command lines. Both are run, and what they said and wrote
is compared: output, metrics, traces, weights, files. A flag that is only for memory or speed must leave the metrics as
they are. A flag without a line there is a failure.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.check_result import CheckResult

RECIPE = '''
"""A very small model imitates sums, then learns from rewards."""

from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.sft import FineTune
from ponder.tasks import Sums
from ponder.train.optimizer import AdamW

TASK = Sums(terms=3, limit=6, prompt="{sum}=", forms=("hash",), test_size=12)
OTHER = Sums(terms=4, limit=4, prompt="{sum}=", forms=("hash",), test_size=24)


def recipe(steps: int = 150, seed: int = 0, width: int = 48) -> FineTune:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:'-()\\\\{}<>/_*[]!\\"%"
    model = ScratchModel("0123456789+=#\\n ?" + letters, width=width, layers=2, context=400, seed=seed)
    return FineTune(TASK, model, "{{ bos_token }}{{ messages[-1].content }}", optimizer=AdamW(lr=4e-3), steps=steps,
                    batch_size=32, save_every=steps, seed=seed)
'''
TABLE = Path(__file__).with_suffix(".txt")
TASK = "small:TASK"
# Of these every flag is really run in tests/cli/test_flags_have_effect.py, which takes seconds.
IN_TESTS = (
    "compare", "plot", "replay", "reflect", "contamination", "strategies", "tasks", "doctor", "processbench", "demo",
    "completion", "runs", "traces", "serve", "view", "book", "cluster",
)  # fmt: skip


class ShortestAnswer:
    """A guide: the shorter the better."""

    name = "shortest"

    async def __call__(self, trace: Any, steps: Any) -> list[Any]:
        from ponder.types import Score

        return [Score(1 / (1 + len(trace.text(i)))) for i in steps]


def retrieve_nothing(question: str) -> list[str]:
    return []


def embed_alike(texts: list[str]) -> list[list[float]]:
    return [[1.0, 0.0] for _ in texts]


def check() -> Iterator[CheckResult]:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        with _inside(here):
            _set_up()
        tried = table()
        yield from _untested_flags(tried)
        # Processes, because a trial changes the working directory; one thread each, so that numbers can be compared.
        os.environ["OMP_NUM_THREADS"] = "1"
        workers = ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn"))
        with workers:
            yield from workers.map(_run_trial, [here] * len(tried), tried)


@dataclass(frozen=True)
class FlagTrial:
    command: str
    flag: str
    without: str
    given: str
    same: bool = False  # no number may change


def table() -> list[FlagTrial]:
    """What stands in audit/flags.txt."""
    short: dict[str, str] = {}
    out = []
    for line in TABLE.read_text("utf-8").splitlines():
        if line.startswith("$"):
            name, _, what = line.partition(" = ")
            short[name] = _expand(what, short)
        elif line and not line.startswith("#"):
            named, _, lines = line.partition(": ")
            command, flag = named.split()
            same = lines.startswith("same ")
            base, mark, more = re.split(r" (\||=>) ", lines.removeprefix("same "), maxsplit=1)
            base, more = _expand(base, short), _expand(more, short)
            out.append(FlagTrial(command, flag, base, more if mark == "=>" else f"{base} {more}", same))
    return out


def _expand(line: str, short: dict[str, str]) -> str:
    first, space, rest = line.partition(" ")
    return short.get(first, first) + space + rest


def _untested_flags(tried: list[FlagTrial]) -> Iterator[CheckResult]:
    """A command or flag that nobody looks at."""
    from ponder.cli.command_help import PLAN_EVAL, PLAN_FLAGS, RANK_FLAGS, RUN_FLAGS
    from ponder.cli.commands import COMMANDS
    from ponder.cli.job_command import command_signature

    own = {"plan": (PLAN_FLAGS, PLAN_EVAL), "run": (RUN_FLAGS, RANK_FLAGS)}
    for name, command in COMMANDS.items():
        if name in IN_TESTS:
            continue
        targets = own.get(name, (command.target,))
        wanted = {p.name for target in targets for p in command_signature(target).parameters}
        missing = wanted - {t.flag for t in tried if t.command == name}
        yield CheckResult(
            f"{name}: all flags", not missing, f"not tried: {', '.join(sorted(missing))}" if missing else "tried"
        )


def _run_trial(at: Path, tried: FlagTrial) -> CheckResult:
    """Both lines, each in a folder of its own that sees what was set up."""
    name = f"{tried.command} --{tried.flag.replace('_', '-')}"
    result = []
    for line in (tried.without, tried.given):
        with tempfile.TemporaryDirectory(dir=at) as folder:
            for path in at.iterdir():
                if not path.name.startswith("tmp"):
                    (Path(folder) / path.name).symlink_to(path)
            with _inside(Path(folder)):
                result.append(_run(line, Path(folder)))
    (code, text, files), (code_with, said_with, files_with) = result
    if tried.same:
        passed = (code, _metrics(files)) == (code_with, _metrics(files_with)) and code == 0
        return CheckResult(
            name,
            passed,
            "the numbers stay the same, as they should" if passed else f"exit {code_with}: {said_with[-200:]}",
        )
    changed = [k for k in {**files, **files_with} if files.get(k) != files_with.get(k)]
    if code and code_with and text == said_with and not changed:
        return CheckResult(name, False, f"both lines fail alike: {said_with.strip()[-200:]}")
    differences = [f"{', '.join(sorted(changed)[:3])} differ"] if changed else []
    differences += ["what is said differs"] if text != said_with else []
    if code_with and text != said_with:
        differences = [f"refused: {said_with.strip()[-160:]}"]
    return CheckResult(
        name,
        bool(differences) or code != code_with,
        "; ".join(differences) or f"nothing changes in `ponder {tried.given}`",
    )


def _metrics(files: dict[str, str]) -> list[str]:
    """Of each run. Its folder is left out: a run's default name differs where a setting does."""
    return [content for name, content in sorted(files.items()) if name.endswith("metrics.jsonl")]


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    import sys

    sys.path.insert(0, str(folder))
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        sys.path.remove(str(folder))


def _run(line: str, here: Path) -> tuple[int, str, dict[str, str]]:
    """The exit code, what was said, and what was written, without what time and place change."""
    from ponder.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(shlex.split(line))
        except SystemExit as leave:
            code = int(leave.code or 0)
        except Exception as error:
            code = 70
            print(f"{type(error).__name__}: {error}")
    files = {str(f.relative_to(here)): _file_content(f) for f in sorted(_written_files(here))}
    return code, _without_times(out.getvalue().replace(str(here), "")), files


def _written_files(here: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(here):  # which does not go into links
        yield from (Path(folder) / n for n in names if not (Path(folder) / n).is_symlink())


def _file_content(file: Path) -> str:
    if file.suffix in (".jsonl", ".json", ".csv", ".txt"):
        return _without_times(file.read_text("utf-8"))
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def _without_times(text: str) -> str:
    text = re.sub(r'"(?:[a-z_/]*time[a-z_/]*|seconds|began|started|pid|host|at)": ?[^,}\n]+', "", text)
    text = re.sub(r"[0-9.]+ ?(?:s|ms|min|tokens/s|tok/s|it/s|GiB|GB|MB)\b|[0-9:]{5,}", "", text)
    return re.sub(r"[0-9]\.[0-9]{4,}(?:e-?[0-9]+)?", lambda m: f"{float(m[0]):.3g}", text)


def _set_up() -> None:
    """Two small models, and runs and files to work on."""
    Path("small.py").write_text(RECIPE)
    for line in (
        "run small.py --run base", "export base model",
        "run small.py --seed 1 --steps 100 --run base2", "export base2 other",
        f"eval {TASK} --model model --n 4 --limit 24 --max-tokens 24 --temperature 1.3 --run drawn",
        f"label {TASK} --model model --limit 12 --answers-per-problem 2 --max-completions 3 --max-tokens 24"
        " --run labelled",
        f"eval {TASK} --model model --strategy mcts --guide oracle --n 12 --strategy.rollouts 1 --max-tokens 24"
        " --limit 12 --temperature 1.3 --run searched",
        f"eval {TASK} --model model --strategy mcts --guide oracle --n 16 --strategy.rollouts 1 --strategy.cut tokens:2"
        " --max-tokens 24 --limit 12 --temperature 1.3 --run deep",
    ):  # fmt: skip
        code, text, _ = _run(line, Path.cwd())
        if code:
            raise RuntimeError(f"`ponder {line}` failed: {text[-400:]}")
    Path("begun").symlink_to("drawn")
    rows = [{"prompt": f"{i}+{i}=", "completion": f"#### {2 * i}", "answer": str(2 * i)} for i in range(12)]
    rows = [r | {"other": f"what is {r['prompt']}", "second": str(i)} for i, r in enumerate(rows)]
    judged = [
        {"prompt": r["prompt"], "completions": ["1\n", "2"], "labels": [True, i % 2 == 0]} for i, r in enumerate(rows)
    ]
    for name, some in (
        ("said", rows), ("more", rows[:6]), ("asked", rows), ("fewer", rows[:4]), ("judged", judged),
        ("torn", [*judged, {"prompt": 3}]),
    ):  # fmt: skip
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    Path("prices.json").write_text(json.dumps({"model": {"generated": 2.5}}))
