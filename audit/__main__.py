"""Walk what an outsider would walk, and keep what was seen: `make audit`, or `python -m audit SECTION ...`.

Each section is a module of this folder with a function `check() -> Iterator[Finding]`. The last result stands in
audit/RESULT.md with its commit and machine. An audit may take an hour; it is no part of `make test`.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from audit.finding import Finding

SECTIONS = ("readme", "flags", "gradients", "preflight", "prompts", "searches")
RESULT = Path(__file__).with_name("RESULT.md")
MARKS = {True: "ok", False: "FAILED", None: "skipped"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of: {', '.join(SECTIONS)} (default: all)")
    chosen = parser.parse_args().sections or list(SECTIONS)
    if unknown := [s for s in chosen if s not in SECTIONS]:
        parser.error(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    results = {}
    for section in chosen:
        start = time.monotonic()
        print(f"== {section}", flush=True)
        findings = list(_run(section))
        results[section] = (findings, time.monotonic() - start)
    if set(chosen) == set(SECTIONS):
        RESULT.write_text(_page(results), encoding="utf-8")
        print(f"written to {RESULT}")
    failed = sum(f.passed is False for findings, _ in results.values() for f in findings)
    total = sum(len(findings) for findings, _ in results.values())
    print(f"{total} looked at, {failed} failed")
    return int(failed > 0)


def _run(section: str) -> Iterator[Finding]:
    try:
        for finding in importlib.import_module(f"audit.{section}").check():
            print(f"  {MARKS[finding.passed]:8}{finding.name}: {finding.detail}", flush=True)
            yield finding
    except Exception as error:  # a section that breaks is a finding, and the others go on
        traceback.print_exc()
        yield Finding(section, False, f"the section broke: {type(error).__name__}: {error}")


def _page(results: dict[str, tuple[list[Finding], float]]) -> str:
    lines = [
        "# Last audit",
        "",
        f"`make audit` at commit {_commit()}, {datetime.now(UTC):%Y-%m-%d}, on {_machine()}.",
        "",
    ]
    for section, (findings, seconds) in results.items():
        lines += [f"## {section} ({seconds / 60:.1f} min)", "", "| what | result | seen |", "|---|---|---|"]
        lines += [f"| {_cell(f.name)} | {MARKS[f.passed]} | {_cell(f.detail)} |" for f in findings]
        lines += [""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _commit() -> str:
    try:
        name = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.stdout.strip() + (" with uncommitted changes" if changed.stdout.strip() else "")


def _machine() -> str:
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    return f"{platform.machine()}, {torch.get_num_threads()} threads{gpu}, torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main())
