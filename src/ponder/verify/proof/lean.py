"""Lean 4, checked in three files as in coq.py. Imports bring notations along, so a proof may declare none at all.

    Goal.lean        header, definitions, and `PonderCheck.statement`: the trusted part
    Candidate.lean   the import of Goal, header, and the proof, which must define `solution`
    Check.lean       theorem PonderCheck.verdict : PonderCheck.statement := @solution, and #print axioms

The statement is elaborated before the proof is seen, and the proof may not extend Lean's syntax, run code or register
anything that Check.lean would meet.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ponder.runs.trust import names_code
from ponder.types import Score
from ponder.verify.base import bad_data
from ponder.verify.proof.proof_verifier import (
    CheckerFailed,
    ProofVerifier,
    gold_names,
    gold_text,
    score_unfinished,
    shorten_message,
)
from ponder.verify.proof.run_checker import CheckerResult, checker_limits, find_checker, missing_checker, run_checker
from ponder.verify.sandbox import SandboxLimits

STANDARD_AXIOMS = ("propext", "Classical.choice", "Quot.sound")  # what Lean's own library rests on
_CHECK = (
    "import Candidate\n"
    "theorem PonderCheck.verdict : _root_.PonderCheck.statement := @_root_.{}\n"
    "#print axioms PonderCheck.verdict\n"
)  # fmt: skip


@dataclass(frozen=True)
class Lean(ProofVerifier):
    """1 where `solution`, as the code block defines it, proves the statement from allowed axioms.

    The problem's answer holds `statement`, and as options `header` (imports, opened namespaces), `definitions`,
    `theorem` (`solution`) and `axioms` (Lean's standard three). `project`: a Lake project whose libraries may be
    imported, such as one with Mathlib built.
    """

    project: str = field(default="", metadata=names_code())
    limits: SandboxLimits = checker_limits(120, memory=16 << 30)
    # the folder of Lean, if outside /usr, such as elan's; the active toolchain is detected
    tools: tuple[str, ...] = field(default=(), metadata=names_code())

    def missing_tools(self) -> str:
        programs = ("lean", "lake") if self.project else ("lean",)
        absent = missing_checker("Lean", programs, "see https://lean-lang.org/install", self.tools)
        return absent or _toolchain(self.project, self.tools).fault

    def check_proof(self, proof: str, gold: Mapping[str, Any]) -> Score:
        header, theorem = gold_text(gold, "header", ""), gold_text(gold, "theorem", "solution")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_'.]*", theorem):
            bad_data(f"the gold answer's 'theorem' is {theorem!r}; it must be a name")
        text, fault = check_lean_source(proof)
        if fault:
            return Score(0.0, fault)
        statement = f"def PonderCheck.statement : Prop :=\n  {gold_text(gold, 'statement')}\n"
        trusted = f"{header}\n{gold_text(gold, 'definitions', '')}\n{statement}"
        outcome = self._compile("Goal", trusted, {})
        score_unfinished(outcome, "the statement", blamed=False)
        if not outcome.passed:
            bad_data(f"the statement does not compile: {message(outcome.all_output)}")
        files = dict(outcome.files)
        prefix = f"import Goal\n{header}\n"
        outcome = self._compile("Candidate", prefix + text + "\n", files)
        if score := score_unfinished(outcome, "the proof"):
            return score
        if not outcome.passed:
            return Score(0.0, f"rejected: {message(outcome.all_output, prefix.count(chr(10)))}")
        files |= outcome.files
        outcome = self._compile("Check", _CHECK.format(theorem), files)
        if score := score_unfinished(outcome, "the comparison with the statement"):
            return score
        if not outcome.passed:
            return Score(0.0, f"wrong: {theorem} does not prove the statement: {message(outcome.all_output)}")
        assumed = parse_axioms(outcome.output)
        allowed = gold_names(gold, "axioms") if "axioms" in gold else STANDARD_AXIOMS
        if refused := [name for name in assumed if name not in allowed]:
            return Score(0.0, f"wrong: the proof rests on {', '.join(refused)}, which is not allowed")
        return Score(1.0, "proved" if not assumed else f"proved from {', '.join(assumed)}")

    def _compile(self, name: str, source: str, files: Mapping[str, bytes]) -> CheckerResult:
        toolchain = _toolchain(self.project, self.tools)
        command = [toolchain.lean, "-o", f"{name}.olean", f"{name}.lean"]
        whole = {**files, f"{name}.lean": source.encode(errors="replace")}
        return run_checker(
            command, whole, self.limits, [f"{name}.olean"], {"LEAN_PATH": toolchain.path}, toolchain.folders
        )


class _Toolchain(NamedTuple):
    lean: str
    path: str  # the folders of compiled libraries
    folders: tuple[str, ...] = ()  # all folders outside /usr
    fault: str = ""


@lru_cache
def _toolchain(project: str, tools: tuple[str, ...]) -> _Toolchain:
    """The compiler itself, not the version manager (elan) in front of it, which needs a home directory."""
    try:
        prefix = os.path.realpath(_tool_output(["lean", "--print-prefix"], project, tools))
        lean_path = _tool_output(["lake", "env", "printenv", "LEAN_PATH"], project, tools) if project else ""
    except (OSError, subprocess.SubprocessError) as error:
        fault = f"Lean is installed but does not run ({error}); see that `lean --version` works"
        return _Toolchain("", "", fault=fault)
    libraries = [os.path.realpath(folder) for folder in lean_path.split(os.pathsep) if folder]
    outside = [folder for folder in (prefix, *libraries) if not _is_below(folder, "/usr")]
    for folder in outside:
        if not any(_is_below(folder, shown) for shown in filter(None, (*tools, project))):
            fault = (
                f"Lean is in {folder}, and the sandbox shows only what is under /usr; add that folder to tools=(...)"
            )
            return _Toolchain("", "", fault=fault)
    return _Toolchain(f"{prefix}/bin/lean", os.pathsep.join((*libraries, ".")), tuple(outside))


def _is_below(folder: str, above: str) -> bool:
    return Path(folder).resolve().is_relative_to(Path(above).resolve())


def _tool_output(command: list[str], folder: str, tools: tuple[str, ...]) -> str:
    program = find_checker(command[0], tools) or command[0]
    return subprocess.run(
        [program, *command[1:]], cwd=folder or None, check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


_REFUSED = {
    "leaves something unproved": r"sorry|sorryAx|admit|axiom",
    "goes around the kernel": r"unsafe|implemented_by|extern|native_decide|skipKernelTC|debug\.\w+|csimp",
    "extends the language or runs code, which a proof may not": (
        r"notation3?|infix[lr]?|prefix|postfix|macro(?:_rules)?|syntax|elab(?:_rules)?|declare_syntax_cat|run_\w+|by_elab"
        r"|#eval!?|#exec|initialize|builtin_\w+|d?simproc(?:_decl)?|register_\w+|export|unif_hint|meta|include_str"
    ),
    "is given with the problem; leave it out": r"import|prelude|PonderCheck",
}
_FENCES = {why: re.compile(rf"(?<![A-Za-z0-9_.'])(?:{words})(?![A-Za-z0-9_'?!])") for why, words in _REFUSED.items()}
_ATTRIBUTES = re.compile(r"(?:@|attribute)\s*\[([^\]]*)\]?")
_HARMLESS = frozenset(
    ("simp", "ext", "reducible", "irreducible", "inline", "instance", "refl", "symm", "trans", "congr", "norm_num",
     "gcongr", "specialize", "elab_as_elim")
)  # fmt: skip
_OUTSIDE = re.compile(r'/-|--[^\n]*|"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)  # tokens outside of a comment
_INSIDE = re.compile(r"/-|-/")


def check_lean_source(source: str) -> tuple[str, str]:
    """The proof with its comments blanked, so that nothing hides in one; and why it is refused, or an empty string."""
    pieces: list[str] = []
    depth = at = 0
    while mark := (_INSIDE if depth else _OUTSIDE).search(source, at):
        before, at = source[at : mark.start()], mark.end()
        commented = depth > 0 or mark[0][0] != '"'
        pieces += [_blank(before) if depth else before, _blank(mark[0]) if commented else mark[0]]
        depth += {"/-": 1, "-/": -1}.get(mark[0], 0)
    if depth:
        return "", "malformed: a comment is never closed"
    text = "".join(pieces) + source[at:]
    for why, fence in _FENCES.items():
        if match := fence.search(text):
            return "", f"refused: line {text.count(chr(10), 0, match.start()) + 1}: {match[0]!r} {why}"
    for attributes in _ATTRIBUTES.findall(text):
        for item in attributes.split(","):
            words = [word for word in re.findall(r"\w+", item) if word not in ("local", "scoped")]
            if words and words[0] not in _HARMLESS:
                return "", f"refused: the attribute {words[0]!r} may change more than the proof"
    return text, ""


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


_ERROR = re.compile(r"^[^:\n]*\.lean:(\d+):(\d+): error(?:\([^)\n]*\))?: ", re.MULTILINE)
_NEXT = re.compile(r"^[^:\n]*\.lean:\d+:\d+: ", re.MULTILINE)


def message(output: str, prefix: int = 0) -> str:
    """The first error Lean reported, its line counted from the start of the proof."""
    match = _ERROR.search(output)
    if not match:
        return shorten_message(output) or "no message"
    text = _NEXT.split(output[match.end() :])[0]
    return f"line {int(match[1]) - prefix}, column {match[2]}: {shorten_message(text)}"


_AXIOMS = re.compile(r"'PonderCheck\.verdict' (?:(does not depend on any axioms)|depends on axioms: \[([^\]]*)\])")


def parse_axioms(output: str) -> tuple[str, ...]:
    """The axioms that #print axioms lists."""
    matches = _AXIOMS.findall(output)
    if len(matches) != 1:
        raise CheckerFailed(f"crashed: #print axioms cannot be read: {shorten_message(output)}")
    none, names = matches[0]
    return () if none else tuple(name.strip() for name in names.split(","))
