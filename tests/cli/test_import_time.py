"""Starting is quick because nothing heavy is imported before it is used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ponder.cli import COMMANDS
from ponder.cli.recipe_files import shipped_recipes

from .conftest import SUBPROCESS_ENV

HEAVY = ["torch", "transformers", "matplotlib", "scipy", "sympy", "tokenizers", "rich", "typer", "jinja2"]


@pytest.mark.parametrize(
    "code",
    [
        "import ponder",
        "from ponder.cli import main; main(['--help'])",
        "from ponder.cli import main; main(['--version'])",
        "from ponder.cli import main; main(['trian'])",
        "import ponder.cli.job_commands, ponder.cli.solve, ponder.cli.export, ponder.cli.demo, ponder.cli.doctor",
        "import ponder.cli.plan",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    look = f"{code}\nimport json, sys\nprint(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", look], env=SUBPROCESS_ENV, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_no_help_imports_what_it_describes() -> None:
    """Help of every command and shipped recipe is read from source."""
    lines = [[name, "--help"] for name in COMMANDS] + [["run", name, "--help"] for name in shipped_recipes()]
    lines += [["plan", "train", "--help"], ["plan", "grpo", "--help"], ["completion", "words", "--", "train", "a"]]
    code = f"from ponder.cli import main\nprint([main(line) for line in {lines}])"
    heavy = [*HEAVY, "numpy", "ponder.measure", "ponder.reason", "ponder.tasks", "ponder.pipelines"]
    look = f"{code}\nimport json, sys\nprint(json.dumps([m for m in {heavy} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", look], env=SUBPROCESS_ENV, capture_output=True, text=True, check=True)
    *_, codes, imported = done.stdout.splitlines()
    assert json.loads(imported) == [] and json.loads(codes) == [0] * len(lines)


def test_python_m_ponder() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ponder", "--help"], env=SUBPROCESS_ENV, capture_output=True, text=True, check=True
    )
    for command in ("demo", "plan", "run", "train", "sft", "solve", "eval", "export", "doctor"):
        assert f"\n  {command} " in done.stdout


def test_our_warnings_are_lines_for_people_and_others_say_where_they_come_from() -> None:
    code = (
        "import warnings, ponder.pipelines as own\n"
        "from ponder.cli import main\n"
        "main(['--version'])\n"
        "warnings.warn_explicit('watch out', UserWarning, own.__file__, 7)\n"
        "warnings.warn_explicit('theirs', UserWarning, 'elsewhere.py', 7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=SUBPROCESS_ENV, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[0] == "  ! watch out"
    assert "elsewhere.py:7: UserWarning: theirs" in done.stderr
