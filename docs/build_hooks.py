"""Pages that mkdocs builds from the code: the command line, the catalog, the Python API and the benchmarks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BENCHMARK_PAGES = {f"bench/{name}.md": "benchmarks.md" for name in ("NOTES", "README")}  # on the site


def cli_reference() -> str:
    """Every command with its own `--help`."""
    from ponder.cli import COMMANDS

    parts = ["# Command line", "", "Written from the commands' own `--help` when this site is built.", ""]
    for name, command in COMMANDS.items():
        parts += [f"## ponder {name}", "", f"{command.summary[0].upper()}{command.summary[1:]}.", ""]
        parts += ["```text", output_of(name, "--help"), "```", ""]
    return "\n".join(parts)


def catalog() -> str:
    """What can be given by name: tasks, strategies and recipes, as the commands list them."""
    tasks = json.loads(output_of("tasks", "--json"))["tasks"]
    listed = json.loads(output_of("strategies", "--json"))
    recipes = dict(re.findall(r"^  (\w+) {2,}(\S.*)$", output_of("run", "--help"), re.M))
    parts = ["# Tasks, strategies and recipes", "", "Written from the commands' own lists when this site is built.", ""]
    for title, use, rows in (
        ("Tasks", "`ponder tasks NAME` shows a problem of one; `--task.SETTING` changes it.", tasks),
        (
            "Strategies",
            "`ponder strategies NAME` lists settings; `--strategy NAME` takes one.",
            listed["strategies"],
        ),
        ("Presets", "Settings of published systems; `--strategy NAME` takes one.", listed["presets"]),
        ("Efforts", "`--effort NAME`: a strategy and its bounds.", listed["efforts"]),
        ("Recipes", "`ponder run NAME` runs one; `ponder run NAME --help` lists its flags.", recipes),
    ):
        parts += [f"## {title}", "", use, "", f"| name | {len(rows)} in all |", "|---|---|"]
        parts += [f"| `{name}` | {about.replace('|', chr(92) + '|')} |" for name, about in rows.items()] + [""]
    return "\n".join(parts)


def output_of(*command: str) -> str:
    """What `ponder` prints for these arguments."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "96", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "ponder", *command], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.rstrip()


def api_reference() -> str:
    """Every name of `from ponder import ...`, by the module that defines it."""
    import ponder

    parts = [
        "# Python API",
        "",
        "All of these can be imported from `ponder` itself: `from ponder import RL, GRPO`.",
        "",
    ]
    for module, entries in ponder._MODULES.items():
        parts += [f"## {module}", ""]
        for entry in entries:
            name, _, alias = entry.partition(" as ")
            shown = alias or name
            options = ["    options:", f"      heading: {shown}", f"      toc_label: {shown}"]
            parts += [f"::: {module}.{name}", *options, ""]
            if alias:
                parts += [f"`from ponder import {alias}` is `{module}.{name}`.", ""]
    return "\n".join(parts)


def benchmarks() -> str:
    """The notes, then the table that bench/write_readme.py wrote."""
    notes, table = ((ROOT / "bench" / name).read_text(encoding="utf-8") for name in ("NOTES.md", "README.md"))
    return f'{notes}\n<div class="benchmarks" markdown>\n\n#{table}\n</div>\n'


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files of the repository that are no pages of this site become their paths."""
    if page.file.src_uri == "benchmarks.md":
        page.meta["hide"] = ["toc"]  # its table is wide

    folder = "bench" if page.file.src_uri == "benchmarks.md" else f"docs/{os.path.dirname(page.file.src_uri)}"

    def replaced(link: re.Match[str]) -> str:
        text, target = link.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return link.group(0)
        target, mark, heading = target.partition("#")
        path = os.path.normpath(os.path.join(folder, target))
        site_path = BENCHMARK_PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(site_path):
            return f"[{text}]({os.path.relpath(site_path, os.path.dirname(page.file.src_uri) or '.')}{mark}{heading})"
        return f"`{path}`" if path.endswith(text.strip("`")) else f"{text} (`{path}`)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", replaced, markdown)


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    pages = {
        "reference/cli.md": cli_reference, "reference/catalog.md": catalog, "reference/api.md": api_reference,
        "benchmarks.md": benchmarks,
    }  # fmt: skip
    for path, write in pages.items():
        files.append(File.generated(config, path, content=write()))
    return files
