"""Checkers outside /usr: a folder that is named is seen inside, and nothing beside it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ponder.verify.proof import Coq, Lean, Metamath, checker_limits, run_checker
from ponder.verify.proof import lean as lean_module
from ponder.verify.sandbox import detect_isolation
from verify.proof.grading import block

pytestmark = pytest.mark.skipif(
    detect_isolation().isolation != "namespaces", reason=f"a checker needs namespaces: {detect_isolation()}"
)
LIMITS = checker_limits(20)


@pytest.fixture
def toolchain(tmp_path: Path) -> Path:
    """As opam and elan lay one out: bin and lib in a folder of a home."""
    root = tmp_path / "home" / ".checker" / "v1"
    (root / "bin").mkdir(parents=True)
    (root / "lib").mkdir()
    (root / "lib" / "said").write_text("from its library\n")
    (tmp_path / "home" / "secret").write_text("secret")
    return root


def program(root: Path, name: str, script: str) -> Path:
    path = root / "bin" / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return path


def test_run_checker_finds_a_program_and_its_library(toolchain):
    program(toolchain, "checker", 'cat "$(dirname "$0")/../lib/said"; cat given\n')
    outcome = run_checker.run_checker(["checker"], {"given": b"a file"}, LIMITS, tools=(str(toolchain),))
    assert outcome.passed and outcome.output == "from its library\na file", outcome
    assert not run_checker.run_checker(["checker"], {"given": b""}, LIMITS).passed  # nobody said where


def test_tools_are_read_only_and_their_siblings_hidden(toolchain):
    home = toolchain.parents[1]
    script = f"touch {toolchain}/lib/new || echo held; ls {home}; cat {home}/secret; rm -rf {toolchain}/bin; true\n"
    program(toolchain, "checker", script)
    outcome = run_checker.run_checker(["checker"], {}, LIMITS, tools=(str(toolchain),))
    assert outcome.output == "held\n" and "No such file" in outcome.errors
    assert sorted(os.listdir(toolchain / "lib")) == ["said"] and (toolchain / "bin" / "checker").exists()


def test_a_real_checker_outside_usr_works(toolchain):
    """Metamath is one program; here it lies in a home, and the one under /usr is not asked."""
    path = shutil.which("metamath")
    if path is None:
        pytest.skip("Metamath is not installed: try apt-get install metamath")
    shutil.copy(path, toolchain / "bin" / "metamath")
    database = "$c |- wff ( ) -> $. $v ph ps $. wph $f wff ph $. wps $f wff ps $. wi $a wff ( ph -> ps ) $. " \
        "${ min $e |- ph $. maj $e |- ( ph -> ps ) $. mp $a |- ps $. $} ax1 $a |- ( ph -> ph ) $."  # fmt: skip
    gold = {"statement": "|- ( ph -> ph )", "database": database}
    score = Metamath(tools=(str(toolchain),)).grade(block("wph ax1"), gold)
    assert score.value == 1.0, score
    assert Metamath(tools=(str(toolchain),)).grade(block("wph wph wi"), gold).value == 0.0


def test_lean_in_an_elan_layout_is_found(toolchain, monkeypatch):
    """The chooser of versions runs outside and names the toolchain, which alone is shown inside."""
    elan = toolchain.parents[0]
    chooser = program(
        toolchain, "lean", f'[ "$1" = --print-prefix ] && echo {toolchain} && exit; echo compiled > "$2"\n'
    )
    (elan / "bin").mkdir()
    shutil.copy(chooser, elan / "bin" / "lean")
    judge = Lean(tools=(str(elan),))
    assert judge.missing_tools() == ""
    result = lean_module._toolchain("", judge.tools)
    assert result.lean == f"{toolchain}/bin/lean" and result.folders == (str(toolchain),)
    outcome = judge._compile("Goal", "def x := 1", {})
    assert outcome.passed and outcome.files == {"Goal.olean": b"compiled\n"}, outcome


def test_missing_checker_refuses_unsafe_tool_folders(monkeypatch, toolchain, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "link").symlink_to(toolchain)
    for folder, why in (
        (str(tmp_path / "link"), f"a link to {toolchain}"),
        (str(tmp_path / "home"), "home"),
        ("/", "home"),
        ("bin", "no folder"),
        ("/nowhere", "no folder"),
    ):
        message = Coq(tools=(folder,)).missing_tools()
        assert repr(folder) in message and why in message and "name the folder" in message
        assert Coq(tools=(folder,)).grade(block("x"), {"statement": "True"}).value is None
    assert "no coqc and no coqchk" in Coq(tools=(str(toolchain),)).missing_tools() or shutil.which("coqc")


def test_missing_checker_suggests_programs_on_the_path(monkeypatch, toolchain):
    program(toolchain, "lean", "exit 0\n")
    monkeypatch.setenv("PATH", f"{toolchain}/bin:{os.environ['PATH']}")
    if run_checker.find_checker("lean"):
        pytest.skip("Lean is under /usr")
    assert f"there is {toolchain}/bin/lean: give tools=('{toolchain}',)" in Lean().missing_tools()
