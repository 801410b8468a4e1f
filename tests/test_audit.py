"""The audit's long checks need a GPU or an hour. What they are built from must exist, or a rename breaks them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from audit import __main__ as audit_program
from audit import flags, gradients, preflight_faults, readme
from audit.check_result import CheckResult
from ponder.cli.commands import COMMANDS


def test_failed_commands_are_all_commands_on_a_new_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(audit_program, "RESULTS", tmp_path)
    monkeypatch.setattr(readme, "check", lambda: iter([CheckResult("ponder runs", True, "1 s")]))
    monkeypatch.setattr(sys, "argv", ["audit", "readme", "--failed"])
    assert audit_program.main() == 0
    (page,) = tmp_path.iterdir()
    assert "| ponder runs | ok | 1 s |" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("fault", preflight_faults.FAULTS)
def test_faults_can_be_planted_and_removed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu in (False, True):  # another place to plant it in
        monkeypatch.setattr(preflight_faults, "GPU", gpu)
        with preflight_faults.FAULTS[fault][1]():
            pass


def test_the_demos_recipe_takes_the_audits_settings() -> None:
    job = gradients._recipe()
    assert (job.problems_per_step, job.device, job.dtype) == (8, "cpu", "float32")


def test_flag_trials_name_commands_that_exist() -> None:
    trials = flags.table()
    assert len(trials) > 100 and {t.command for t in trials} <= COMMANDS.keys()


def test_audit_walks_every_page_that_has_commands() -> None:
    pages = {
        str(page.relative_to(readme.ROOT))
        for page in [readme.ROOT / "README.md", *(readme.ROOT / "docs").rglob("*.md")]
        if readme.commands(page)
    }
    assert pages == {*readme.PAGES, readme.KEPT_PAGE}


def test_audit_asks_no_other_machine() -> None:
    reached = [line for line in readme.all_commands() if not readme.unreachable(line)]
    assert len(reached) > 100 and not [line for line in reached if re.search(r"\d+\.\d+\.\d+\.\d+", line)]


def test_audit_makes_what_a_command_reads_first() -> None:
    assert readme.needed("ponder processbench runs/prm") == ["runs/labels", "runs/prm"]
    assert readme.needed("ponder eval addition --run runs/a") == []
    assert readme.needed("ponder compare runs/a runs/b") == ["runs/a", "runs/b"]
