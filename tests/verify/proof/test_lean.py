"""Lean is not run here: the files that would be compiled, and what its documented output means."""

from __future__ import annotations

import time

import pytest

from ponder.types import Score
from ponder.verify.proof import Lean, run_checker
from ponder.verify.proof import lean as module
from ponder.verify.proof.lean import check_lean_source, message, parse_axioms
from ponder.verify.proof.proof_verifier import CheckerFailed
from ponder.verify.proof.run_checker import CheckerResult
from verify.proof.grading import block

GOLD = {
    "statement": "∀ n : Nat, double n = n + n",
    "header": "open Nat",
    "definitions": "def double (n : Nat) := 2 * n",
}
PROOF = "theorem solution : ∀ n : Nat, double n = n + n := by\n  intro n; unfold double; omega"
CLEAN = "'PonderCheck.verdict' does not depend on any axioms\n"
RESTS = "'PonderCheck.verdict' depends on axioms: [propext,\n Classical.choice,\n Quot.sound]\n"


class Compiler:
    """Stands in for Lean: says what it is told to, and remembers what it was given."""

    def __init__(self, **outputs: CheckerResult) -> None:
        self.outputs, self.sources, self.beside = outputs, {}, {}

    def __call__(self, command, files, limits, keep, env, tools):
        name = command[-1].removesuffix(".lean")
        assert command == ["/lean/bin/lean", "-o", f"{name}.olean", f"{name}.lean"] and env == {"LEAN_PATH": "/libs:."}
        assert list(keep) == [f"{name}.olean"]
        self.sources[name] = files[f"{name}.lean"].decode()
        self.beside[name] = {file for file in files if file.endswith(".olean")}
        files_made = {f"{name}.olean": name.encode()}
        return self.outputs.get(name, CheckerResult("ended", 0, CLEAN if name == "Check" else "", "", files_made))


@pytest.fixture
def graded(monkeypatch):
    def grade(proof=PROOF, gold=GOLD, **outputs):
        compiler = Compiler(**outputs)
        monkeypatch.setattr(module, "run_checker", compiler)
        monkeypatch.setattr(run_checker, "find_checker", lambda program, tools: f"/bin/{program}")
        monkeypatch.setattr(module, "_toolchain", lambda project, tools: module._Toolchain("/lean/bin/lean", "/libs:."))
        return Lean().grade(block(proof), gold), compiler

    return grade


def test_lean_writes_goal_candidate_and_check_files(graded):
    score, compiler = graded()
    assert score == Score(1.0, "proved")
    assert compiler.sources == {
        "Goal": "open Nat\ndef double (n : Nat) := 2 * n\n"
        "def PonderCheck.statement : Prop :=\n  ∀ n : Nat, double n = n + n\n",
        "Candidate": f"import Goal\nopen Nat\n{PROOF}\n",
        "Check": "import Candidate\ntheorem PonderCheck.verdict : _root_.PonderCheck.statement := @_root_.solution\n"
        "#print axioms PonderCheck.verdict\n",
    }
    assert compiler.beside == {"Goal": set(), "Candidate": {"Goal.olean"}, "Check": {"Goal.olean", "Candidate.olean"}}


def ended(code: int, output: str) -> CheckerResult:
    return CheckerResult("ended", code, output, "", {"Check.olean": b"", "Candidate.olean": b""})


def test_lean_refuses_other_axioms(graded):
    assert graded(Check=ended(0, RESTS))[0].value == 1.0
    assert graded(gold={**GOLD, "axioms": []}, Check=ended(0, RESTS))[0].value == 0.0
    score = graded(Check=ended(0, "'PonderCheck.verdict' depends on axioms: [propext, sorryAx]\n"))[0]
    assert score == Score(0.0, "wrong: the proof rests on sorryAx, which is not allowed")
    assert graded(Check=ended(0, "'PonderCheck.verdict' depends on axioms: [Lean.ofReduceBool]\n"))[0].value == 0.0
    assert graded(Check=ended(0, ""))[0].value is None


def test_lean_errors_are_feedback(graded):
    outputs = "Candidate.lean:4:12: error: unknown identifier 'omegaa'\nCandidate.lean:9:0: warning: w\n"
    assert graded(Candidate=ended(1, outputs))[0] == Score(
        0.0, "rejected: line 2, column 12: unknown identifier 'omegaa'"
    )  # fmt: skip
    mismatch = "Check.lean:2:55: error: type mismatch\n  solution\nhas type\n  True : Prop\n"
    score = graded(Check=ended(1, mismatch))[0]
    assert score.value == 0.0 and score.reason.startswith("wrong: solution does not prove the statement: ")
    score = graded(Goal=ended(1, "Goal.lean:2:1: error: unknown identifier 'x'\n"))[0]
    assert score.value is None and score.reason.startswith("bad data: the statement does not compile")
    assert graded(Candidate=CheckerResult("timed out"))[0].value == 0.0
    assert graded(Goal=CheckerResult("timed out"))[0].value is None
    assert graded(Candidate=CheckerResult("crashed"))[0].value is None


@pytest.mark.parametrize(
    "source",
    ["theorem solution : False := sorry", "axiom f : False", "theorem t : 1 = 2 := by native_decide", "import Lean",
     'notation "∀" x => True', 'infixl:65 " + " => fun _ _ => 0', 'macro "x" : term => `(1)',
     'local macro "x" : term => `(1)', 'elab "#print" "axioms" x:ident : command => return', 'syntax "x" : term',
     "macro_rules | `(1) => `(2)", "run_cmd Lean.logInfo \"'PonderCheck.verdict' does not depend on any axioms\"",
     "#eval 1", "#eval! 1", "by run_tac x", "set_option debug.skipKernelTC true in\ntheorem t : True := trivial",
     "unsafe def f := 1", "initialize x", "@[implemented_by f] def g := 1", '@[extern "c"] def g := 1',
     "@[command_elab x] def g := 1", "attribute [simp, init f] g", "@[simp, term_elab x] def g := 1",
     "namespace PonderCheck\ndef statement := True", "export Foo (goal)", "builtin_initialize x", "/- -/ sorry /- -/",
     "/-/ sorry /-/ -/ sorry", '-- "\nsorry', '"--" sorry', "/- unclosed", "@[\nsimp\n,\n csimp\n] x",
     "simproc x (1) := fun _ => 1", "meta def f := 1", "theorem solution : False := by admit"],
)  # fmt: skip
def test_check_lean_source_refuses_forbidden_words(graded, source):
    score, compiler = graded(source)
    assert score.value == 0.0 and score.reason.startswith(("refused: ", "malformed: ")) and not compiler.sources


@pytest.mark.parametrize("piece", ['"\\', '"', "/-", "-/", "--", "@[", "sorr", "\n", "attribute [", "\\"])
def test_check_lean_source_is_fast_on_hostile_text(piece):
    before = time.thread_time()
    check_lean_source(piece * (50_000 // len(piece)))
    assert time.thread_time() - before < 8


@pytest.mark.parametrize(
    "source",
    ["/-- doc -- with dashes -/ theorem t : True := trivial", '/- a " quote -/ theorem t : True := trivial',
     "-- no sorry, no axiom\ntheorem t : True := trivial", "/- sorry /- nested -/ sorry -/ theorem t : True := trivial",
     "@[simp] theorem t : True := trivial", "theorem axiom_free : True := trivial", "open Nat in\n#check 1",
     "set_option maxHeartbeats 400000 in\ntheorem t : True := trivial", "theorem t : l.prefix = 1 := by simp?",
     "instance : Inhabited Nat := ⟨0⟩", "theorem t := Nat.rec (motive := fun _ => True) trivial (fun _ h => h)"],
)  # fmt: skip
def test_check_lean_source_accepts_honest_text(source):
    text, fault = check_lean_source(source)
    assert not fault and len(text) == len(source) and text.count("\n") == source.count("\n")


def test_parse_axioms_reads_documented_output():
    assert parse_axioms(CLEAN) == () and parse_axioms(f"Check.lean:3:0: info: {CLEAN}") == ()
    assert parse_axioms(RESTS) == module.STANDARD_AXIOMS
    for unreadable in ("", "'other' does not depend on any axioms", CLEAN + CLEAN):
        with pytest.raises(CheckerFailed):
            parse_axioms(unreadable)
    assert (
        message("x/A.lean:3:7: error(lean.unknown): bad\n more\nA.lean:4:0: warning: w", 2)
        == "line 1, column 7: bad\n more"
    )
    assert message("") == "no message"


def test_missing_lean_is_undecided(monkeypatch):
    monkeypatch.setattr(run_checker, "find_checker", lambda program, tools: "")
    monkeypatch.setenv("PATH", "")
    score = Lean(project="p").grade(block(PROOF), GOLD)
    assert score.value is None and score.reason.startswith("Lean is not installed: no lean and no lake under /usr")


def test_a_toolchain_outside_the_sandbox_is_refused(monkeypatch):
    outputs = {"lean": "/usr/local/lean", "lake": "/usr/local/project/lib:/usr/local/mathlib"}
    monkeypatch.setattr(module, "_tool_output", lambda command, folder, tools: outputs[command[0]])
    find = module._toolchain.__wrapped__
    assert find("", ()) == ("/usr/local/lean/bin/lean", ".", (), "")
    assert find("p", ()).path == "/usr/local/project/lib:/usr/local/mathlib:."
    outputs["lake"] = "/home/someone/mathlib"
    assert "/home/someone/mathlib" in find("p", ()).fault
    assert find("/home/someone", ()).folders == ("/home/someone/mathlib",)  # the project's own are shown
    outputs["lean"] = "/home/someone/.elan/toolchains/v4"
    assert "/home/someone/.elan" in find("", ()).fault
    assert find("", ("/home/someone/.elan",)).folders == ("/home/someone/.elan/toolchains/v4",)


def test_a_broken_toolchain_is_reported(tmp_path, monkeypatch):
    broken = tmp_path / "lean"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(module, "find_checker", lambda program, tools: str(broken))
    assert "does not run" in module._toolchain.__wrapped__("", ()).fault
