"""Documents say what is true: snippets run, links lead somewhere, numbers are those of kept results."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
SNIPPETS = sorted((DOCS / "snippets").glob("*.py"))
FIRST = {"rewards_table.py": "grpo_own_reward.py"}  # a snippet that reads what another one wrote


@pytest.mark.parametrize("path", SNIPPETS, ids=lambda p: p.name)
def test_snippet_runs(path: Path, tmp_path: Path) -> None:
    skip_without_smollm2(path)
    if path.name in FIRST:
        run(DOCS / "snippets" / FIRST[path.name], tmp_path)
    output = run(path, tmp_path)
    if path.name == "own_task.py":
        first, last = map(float, re.findall(r"\d\.\d\d", output)[:2])
        assert last > first + 0.3, output


def skip_without_smollm2(path: Path) -> None:
    if "smollm2" in path.read_text() or "ask(" in path.read_text() or path.name in FIRST:
        pytest.importorskip("gguf")
        from ponder.errors import ModelError
        from ponder.models import smollm2

        try:
            smollm2.packaged_gguf()
        except ModelError as absent:
            pytest.skip(str(absent))


def run(path: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_shows_the_snippet_that_is_tested() -> None:
    assert (DOCS / "snippets" / "readme.py").read_text() in (ROOT / "README.md").read_text()


def test_newcomers_programs_are_short() -> None:
    for name in ("ask.py", "grpo_own_reward.py", "rewards_table.py", "readme.py"):
        lines = [line for line in (DOCS / "snippets" / name).read_text().splitlines() if line.strip()]
        assert len([line for line in lines if not line.startswith(('"""', "#"))]) <= 15, name
        assert sum(line.startswith(("import", "from")) for line in lines) == 1, name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    generated = {"reference/cli.md", "reference/api.md", "benchmarks.md"}
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\((?!https?:)([^)#:\s]+)", text):
        where = (page.parent / target).resolve()
        if where.is_relative_to(DOCS) and str(where.relative_to(DOCS)) in generated:
            continue
        assert where.exists(), f"{page.name} links to {target}"
    for included in re.findall(r'--8<-- "([^"]+)"', page.read_text()):
        assert (DOCS / included).exists(), f"{page.name} includes {included}"


def test_site_has_every_page() -> None:
    menu = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md") if p.parent.name != "results"}
    assert menu - pages == {"reference/cli.md", "reference/api.md", "benchmarks.md"} and pages <= menu


def test_readme_speeds_are_those_of_kept_runs() -> None:
    """Each row of the table: what is measured, ponder's figure, the peer's, and the peer's name with the kept run."""
    rows = re.findall(
        r"^\| [^|]+\| ([\d,.]+) \| ([\d,.]+) \| ([^|(]+?) \(\[kept run\]\(([^)]+)\)\) \|$",
        (ROOT / "README.md").read_text(),
        re.M,
    )
    assert len(rows) >= 5
    for ours, theirs, peer, path in rows:
        kept = json.loads((ROOT / path).read_text())
        figures = [v for name, v in kept["peers"].items() if name.split()[0].lower() == peer.split()[0].lower()]
        for said, measured in ((ours, [kept["ours"]]), (theirs, figures)):
            digits = len(said.partition(".")[2])
            assert float(said.replace(",", "")) in [round(value, digits) for value in measured], (path, peer, said)


def test_training_page_lists_every_algorithm() -> None:
    from ponder.train.algorithms import OFFLINE, ONLINE

    page = (DOCS / "training.md").read_text()
    assert [name for name in {**ONLINE, **OFFLINE} if f"`{name}`" not in page] == []


def test_training_page_lists_every_recipe() -> None:
    page = (DOCS / "training.md").read_text()
    recipes = {p.stem for p in (ROOT / "recipes").glob("[a-z]*.py")}
    assert sorted(name for name in recipes if f"`{name}`" not in page) == []


def test_every_command_is_in_a_document() -> None:
    from ponder.cli import COMMANDS

    text = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in COMMANDS if f"ponder {name}" not in text] == []


def test_glossary_has_thirty_words() -> None:
    section = (DOCS / "concepts.md").read_text().partition("## The thirty words that matter")[2]
    assert len(re.findall(r"^\| .+ \| .+ \|$", section, re.M)) - 1 >= 30


def commands() -> list[tuple[str, str]]:
    """Every `ponder ...` line of the documents' shell blocks and tables, with its page."""
    found = []
    for page in PAGES:
        if page.name == "CHANGELOG.md" or page.parent.name == "results":
            continue
        text = page.read_text()
        blocks = "\n".join(re.findall(r"```(?:sh|text)?\n(.*?)```", text, re.S))
        lines = re.findall(r"^(ponder [a-z].*?)(?:\s{2,}#.*)?$", blocks, re.M) + re.findall(
            r"`(ponder [a-z][^`]+)`", text
        )
        found += [(page.name, line) for line in dict.fromkeys(lines)]
    return found


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda x: str(x)[:60])
def test_flags_of_documented_commands_exist(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    from ponder.cli import COMMANDS, main

    words = [word for word in shlex.split(line) if word != "..."]
    if words[1] not in COMMANDS:
        assert words[1] in ("COMMAND",), line
        return
    about = (
        [words[1], words[2]]
        if words[1] == "run" and len(words) > 2 and words[2].isidentifier() and words[2].islower()
        else [words[1]]
    )
    about = words[1:3] if words[1:3] == ["plan", "eval"] else about
    assert main([*about, "--help"]) == 0
    text = capsys.readouterr().out
    for flag in (word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2):
        known = re.search(rf"{re.escape(flag)}(?![\w-])", text)
        dotted = f"{flag.partition('.')[0]}.NAME" in text and "." in flag
        assert known or dotted or flag in ("--help", "--trust"), f"{page}: {line}: {flag}"


def test_every_python_block_is_a_tested_snippet() -> None:
    for page in DOCS.rglob("*.md"):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
            assert re.fullmatch(r'--8<-- "snippets/\w+\.py"\n', block), f"{page.name}: {block[:60]}"
