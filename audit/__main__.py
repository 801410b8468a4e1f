"""Walk what an outsider would walk, and keep what was seen: `make audit`, or `python -m audit SECTION ...`.

Each section is a module of this folder with a function `check() -> Iterator[Finding]`. Its last result stands in
audit/results/SECTION-HARDWARE.md with its commit and machine. An audit may take an hour; it is no part of `make test`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from audit.check_result import CheckResult

SECTIONS = ("readme", "flags", "gradients", "preflight_faults", "prompts", "searches", "serving")
RESULTS = Path(__file__).with_name("results")
RESULT_WORDS = {True: "ok", False: "FAILED", None: "skipped"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of: {', '.join(SECTIONS)} (default: all)")
    parser.add_argument(
        "--failed", action="store_true", help="of readme: run only what failed last time on such a machine, or is new"
    )
    args = parser.parse_args()
    chosen = args.sections or list(SECTIONS)
    if unknown := [s for s in chosen if s not in SECTIONS]:
        parser.error(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    if args.failed and chosen != ["readme"]:
        parser.error("--failed takes the section readme alone: the others are done in minutes")
    if args.failed and _page("readme").exists():  # without it, every command is new
        return _repeat_failed()
    total = failed = 0
    for section in chosen:
        start = time.monotonic()
        print(f"== {section}", flush=True)
        findings = list(_run(section))
        print(f"  written to {_write(section, findings, time.monotonic() - start)}", flush=True)
        total, failed = total + len(findings), failed + sum(f.passed is False for f in findings)
    print(f"{total} looked at, {failed} failed")
    return int(failed > 0)


def _repeat_failed() -> int:
    """Of the commands of the README audit, run those that its page calls failed or does not have, and add what came
    out to the page."""
    from audit.readme import all_commands

    path = _page("readme")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if " | FAILED | " not in line]
    had = {line.split(" | ")[0].removeprefix("| ") for line in lines}
    again = [line for line in all_commands() if _cell(line) not in had]
    findings = list(_run("readme", only=again)) if again else []
    lines += [f"{_row(f)[:-2]} (at commit {_commit()}) |" for f in findings]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    failed = sum(f.passed is False for f in findings)
    print(f"  written to {path}\n{len(again)} run, {failed} failed")
    return int(failed > 0)


def _run(section: str, **options: Any) -> Iterator[CheckResult]:
    try:
        for finding in importlib.import_module(f"audit.{section}").check(**options):
            print(f"  {RESULT_WORDS[finding.passed]:8}{finding.name}: {finding.detail}", flush=True)
            yield finding
    except Exception as error:  # a section that breaks is a finding, and the others go on
        traceback.print_exc()
        yield CheckResult(section, False, f"the section broke: {type(error).__name__}: {error}")


def _write(section: str, findings: list[CheckResult], seconds: float) -> Path:
    doc = " ".join((importlib.import_module(f"audit.{section}").__doc__ or "").split())
    when = f"`python -m audit {section}` at commit {_commit()}, {datetime.now(UTC):%Y-%m-%d}"
    lines = [f"# {section}", "", doc, "", f"{when}, in {seconds / 60:.1f} min on {_machine()}.", ""]
    lines += ["| what | result | seen |", "|---|---|---|"]
    lines += [_row(f) for f in findings]
    path = _page(section)
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _page(section: str) -> Path:
    """Where a section's last result on such a machine stands."""
    return RESULTS / f"{section}-{_hardware()}.md"


def _row(finding: CheckResult) -> str:
    return f"| {_cell(finding.name)} | {RESULT_WORDS[finding.passed]} | {_cell(finding.detail)} |"


def _cell(text: str) -> str:
    """One line of a table, without the data folder of this machine."""
    if data := os.environ.get("PONDER_DATA"):
        text = text.replace(data, "$PONDER_DATA")
    return " ".join(text.split()).replace("|", "\\|")


def _commit() -> str:
    try:
        name = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        status = ["git", "status", "--porcelain", "--", ":!audit/results"]
        changed = subprocess.run(status, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.stdout.strip() + (" with uncommitted changes" if changed.stdout.strip() else "")


def _machine() -> str:
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    return f"{platform.machine()}, {torch.get_num_threads()} threads{gpu}, torch {torch.__version__}"


def _hardware() -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return "".join(c if c.isalnum() else "-" for c in name.lower())


if __name__ == "__main__":
    sys.exit(main())
