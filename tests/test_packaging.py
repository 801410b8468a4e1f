"""What surrounds the package: the Makefile and the container images."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_make_help_lists_every_target() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    assert {line.split()[1] for line in done.stdout.splitlines()} == set(targets[1].split())


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_image_copies_what_there_is_and_what_is_not_ignored(name: str) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", (ROOT / name).read_text(), re.MULTILINE)
              for word in line.split()]  # fmt: skip
    assert {"src", "recipes", "pyproject.toml", "README.md", "LICENSE"} <= set(copied) <= kept
    assert all((ROOT / path).exists() for path in copied)


def test_cpu_image_has_the_tested_torch() -> None:
    pinned = re.search(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None and f"torch=={pinned[1]}+cpu" in (ROOT / "Dockerfile").read_text()


def test_names_of_files_are_plain() -> None:
    """No file that a wrong redirection of a shell made."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no git repository")
    assert [name for name in done.stdout.split("\0") if not re.fullmatch(r"[\w./+@:-]*", name)] == []
