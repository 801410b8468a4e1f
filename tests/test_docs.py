"""Documents say what runs: each snippet is a program, and README shows it as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SNIPPETS = sorted((ROOT / "docs").glob("*.py"))


@pytest.mark.parametrize("path", SNIPPETS, ids=lambda p: p.name)
def test_a_snippet_runs(path: Path) -> None:
    if "smollm2" in path.read_text():
        pytest.importorskip("gguf")
        from ponder.errors import ModelError
        from ponder.models import smollm2

        try:
            smollm2.packaged_gguf()
        except ModelError as absent:
            pytest.skip(str(absent))
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    if path.name == "own_task.py":
        first, last = map(float, re.findall(r"\d\.\d\d", done.stdout)[:2])
        assert last > first + 0.3, done.stdout


def test_documents_name_only_what_is_there() -> None:
    """Links and quoted paths of the project's own files exist."""
    for page in ROOT.glob("*.md"):
        text = page.read_text()
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / target).exists(), f"{page.name} links to {target}"


def test_readme_names_every_command() -> None:
    from ponder.cli import COMMANDS

    readme = (ROOT / "README.md").read_text()
    for command in COMMANDS:
        assert f"ponder {command}" in readme, command
