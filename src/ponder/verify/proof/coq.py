"""Coq: the statement is in a file of ours, the proof is compiled alone, and two programs list the axioms it uses.

    Goal.v        header, definitions, and `statement`: the trusted part, compiled before the proof is seen
    Candidate.v   header, the import of Goal, and the proof, which must define `solution`
    Check.v       verdict : PonderCheck.Goal.statement := @PonderCheck.Candidate.solution
    Print.v       Print Assumptions PonderCheck.Check.verdict

Check and Print `Require` the proof and import nothing of it, so its notations and names have no effect there.
Printing is a file of its own because an abbreviation can run tactics, and so print, where it is used. Options that a
proof sets globally do reach these files; none can change what the kernel wrote into Check.vo, and coqchk reads only
that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ponder.runs.trust import names_code
from ponder.types import Score
from ponder.verify.base import bad_data
from ponder.verify.proof.coq_text import check_coq_source
from ponder.verify.proof.proof_verifier import (
    CheckerFailed,
    ProofVerifier,
    gold_names,
    gold_text,
    score_unfinished,
    shorten_message,
)
from ponder.verify.proof.run_checker import CheckerResult, checker_limits, missing_checker, run_checker
from ponder.verify.sandbox import SandboxLimits

_QUIET = "-deprecated-native-compiler-option"  # deprecated, but it still works
_COMPILE = ("coqc", "-q", "-noglob", "-w", _QUIET, "-native-compiler", "no", "-Q", ".", "PonderCheck")
_CLOSED = "Closed under the global context"
_CHECK = (
    "Require PonderCheck.Goal PonderCheck.Candidate.\n"
    "Definition verdict : PonderCheck.Goal.statement := @PonderCheck.Candidate.{}.\n"
)
_PRINT = "Require PonderCheck.Check.\nSet Printing Width 10000.\nPrint Assumptions PonderCheck.Check.verdict.\n"
_OURS = ("Goal", "Candidate", "Check")
# The library of this machine is trusted: checking it again would take a minute.
_RECHECK = (
    "coqchk", "-silent", "-o", "-Q", ".", "PonderCheck",
    *(word for file in _OURS for word in ("-norec", f"PonderCheck.{file}")),
)  # fmt: skip


@dataclass(frozen=True)
class Coq(ProofVerifier):
    """1 where `solution`, as the code block defines it, proves the statement from nothing but allowed axioms.

    The problem's answer holds
    `statement`: a proposition or type, such as "forall n : nat, n + 0 = n";
    `header` (optional): imports and scopes, put in front of both statement and proof;
    `definitions` (optional): what the statement speaks of; the proof sees it by import;
    `theorem` (optional): the name to prove it under, `solution`;
    `axioms` (optional): those the proof may rest on, such as ["functional_extensionality_dep"]. None by default.
    """

    limits: SandboxLimits = checker_limits(20)
    # the folder of Coq, if outside /usr, such as one of opam's switches
    tools: tuple[str, ...] = field(default=(), metadata=names_code())

    def missing_tools(self) -> str:
        return missing_checker("Coq", ("coqc", "coqchk"), "try apt-get install coq", self.tools)

    def check_proof(self, proof: str, gold: Mapping[str, Any]) -> Score:
        goal = _Goal.read(gold)
        text = check_coq_source(proof, goal.source)
        if text.fault:
            return Score(0.0, text.fault)
        files = {"Goal.vo": _compiled(goal.source, self.limits, self.tools)}
        prefix = f"{goal.header}\nRequire Import PonderCheck.Goal.\n"
        outcome = _compile("Candidate", prefix + text.source + "\n", files, self.limits, self.tools)
        if score := score_unfinished(outcome, "the proof"):
            return score
        if "Candidate.vo" not in outcome.files:
            return Score(0.0, f"rejected: {message(outcome.errors, prefix.count(chr(10)))}")
        files |= outcome.files
        outcome = _compile("Check", _CHECK.format(goal.theorem), files, self.limits, self.tools)
        if score := score_unfinished(outcome, "the comparison with the statement"):
            return score
        if "Check.vo" not in outcome.files:
            return Score(0.0, f"wrong: {goal.theorem} does not prove the statement: {_unplaced(outcome.errors)}")
        files |= outcome.files
        return self._assumptions(files, goal.axioms)

    def _assumptions(self, files: Mapping[str, bytes], allowed: tuple[str, ...]) -> Score:
        """Check the axioms behind the verdict, as Coq and its independent checker report them."""
        rechecked = _run(_RECHECK, files, self.limits, self.tools)
        score_unfinished(rechecked, "coqchk", blamed=False)
        if rechecked.exit_code:
            return Score(0.0, f"rejected by coqchk: {shorten_message(rechecked.errors)}")
        summary = parse_coqchk_context(rechecked.all_output)
        if summary.unsafe:
            return Score(0.0, f"wrong: a check of the kernel was turned off for {', '.join(summary.unsafe)}")
        if own := [
            name for name in summary.axioms if name.startswith(("PonderCheck.Candidate.", "PonderCheck.Check."))
        ]:
            return Score(0.0, f"wrong: the proof assumes {', '.join(_short_name(name) for name in own)}")
        printed = _compile("Print", _PRINT, files, self.limits, self.tools)
        score_unfinished(printed, "Print Assumptions", blamed=False)
        if not printed.passed:
            raise CheckerFailed(f"crashed: Print Assumptions failed: {_unplaced(printed.errors)}")
        assumed = parse_assumptions(printed.output)
        refused = [name for name in assumed if not _allowed(name, summary.axioms, allowed)]
        if refused:
            return Score(0.0, f"wrong: the proof rests on {', '.join(refused)}, which is not allowed")
        return Score(1.0, "proved" if not assumed else f"proved from {', '.join(assumed)}")


class _Goal(NamedTuple):
    header: str
    source: str
    theorem: str
    axioms: tuple[str, ...]

    @classmethod
    def read(cls, gold: Mapping[str, Any]) -> _Goal:
        header, definitions = gold_text(gold, "header", ""), gold_text(gold, "definitions", "")
        statement, theorem = gold_text(gold, "statement"), gold_text(gold, "theorem", "solution")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_']*", theorem):
            bad_data(f"the gold answer's 'theorem' is {theorem!r}; it must be a name")
        source = f"{header}\n{definitions}\nDefinition statement : Type :=\n{statement}\n.\n"
        return cls(header, source, theorem, gold_names(gold, "axioms"))


@lru_cache(maxsize=256)
def _compiled(source: str, limits: SandboxLimits, tools: tuple[str, ...]) -> bytes:
    """Compile Goal.vo, once for all proofs of one statement."""
    outcome = _compile("Goal", source, {}, limits, tools)
    score_unfinished(outcome, "the statement", blamed=False)
    if "Goal.vo" not in outcome.files:
        bad_data(f"the statement does not compile: {message(outcome.errors)}")
    return outcome.files["Goal.vo"]


def _compile(
    name: str, source: str, files: Mapping[str, bytes], limits: SandboxLimits, tools: tuple[str, ...]
) -> CheckerResult:
    source_file = {f"{name}.v": source.encode(errors="replace")}
    return _run([*_COMPILE, f"{name}.v"], {**files, **source_file}, limits, tools, f"{name}.vo")


def _run(
    command: Sequence[str], files: Mapping[str, bytes], limits: SandboxLimits, tools: tuple[str, ...], *keep: str
) -> CheckerResult:
    """Run a program of Coq. A system-wide Coq finds plugins by a file under /etc, which the sandbox hides."""
    try:
        findlib = Path("/etc/ocamlfind.conf").read_bytes() if not tools else b""
    except OSError:
        findlib = b""
    if not findlib:
        return run_checker(command, files, limits, keep, tools=tools)
    return run_checker(command, {**files, "findlib.conf": findlib}, limits, keep, {"OCAMLFIND_CONF": "./findlib.conf"})


_ERROR = re.compile(r'^(?:File "[^"\n]*", line (\d+), characters (\d+)-(\d+):\n)?(?:Fatal )?Error:', re.MULTILINE)


def message(errors: str, prefix: int = 0) -> str:
    """The last error Coq reported, its line counted from the start of the proof, without paths."""
    matches = list(_ERROR.finditer(errors))
    if not matches:
        return shorten_message(errors) or "no message"
    text = _unplaced(errors)
    line, start, end = matches[-1].groups()
    return text if line is None else f"line {int(line) - prefix}, characters {start}-{end}: {text}"


def _unplaced(errors: str) -> str:
    """The last error without its position, and with names as the proof writes them."""
    last = _ERROR.split(errors)[-1]
    return shorten_message(re.sub(r" in file \./Candidate\.v|\b(?:PonderCheck\.)?(?:Goal|Candidate)\.", "", last))


class CoqContext(NamedTuple):
    """coqchk's summary of everything loaded, by full names."""

    axioms: tuple[str, ...]
    unsafe: tuple[str, ...]


_HEADINGS = (
    "Theory",
    "Axioms",
    "Constants/Inductives relying on type-in-type",
    "Constants/Inductives relying on unsafe (co)fixpoints",
    "Inductives whose positivity is assumed",
)
_SECTION = re.compile(r"^\* ([^:\n]+):(.*\n(?:  .*\n)*)", re.MULTILINE)


def parse_coqchk_context(output: str) -> CoqContext:
    """Parse the summary; raises `CheckerFailed` where its format is not the expected one."""
    sections = _SECTION.findall(output)
    body_of = {heading: body.strip() for heading, body in sections}
    if sorted(heading for heading, _ in sections) != sorted(_HEADINGS) or body_of["Theory"] != "Set is predicative":
        raise CheckerFailed(f"crashed: coqchk's summary cannot be read: {shorten_message(output)}")
    axioms, *unsafe = ([] if body_of[heading] == "<none>" else body_of[heading].split() for heading in _HEADINGS[1:])
    return CoqContext(tuple(axioms), tuple(name for names in unsafe for name in names))


def parse_assumptions(output: str) -> tuple[str, ...]:
    """The names that Print Assumptions lists, unqualified as it prints them; a line without a name is kept whole."""
    output = output.strip()
    if output == _CLOSED:
        return ()
    head, _, body = output.partition("\n")
    lines = [line for line in body.splitlines() if line and not line.startswith(" ")]
    if head != "Axioms:" or not lines:
        raise CheckerFailed(f"crashed: Print Assumptions cannot be read: {shorten_message(output)}")
    return tuple(line.partition(" :")[0] for line in lines)


def _allowed(name: str, axioms: tuple[str, ...], allowed: tuple[str, ...]) -> bool:
    """Whether every axiom that a short name may refer to is allowed."""
    candidates = [axiom for axiom in axioms if _ends(axiom, name)]
    return bool(candidates) and all(any(_ends(axiom, each) for each in allowed) for axiom in candidates)


def _ends(full: str, short: str) -> bool:
    return full == short or full.endswith(f".{short}")


def _short_name(name: str) -> str:
    return name.rpartition(".")[2]
