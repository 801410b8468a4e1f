"""Metamath: the database and the statement are trusted; a proof may add lemmas, but no axioms.

The proof is split into tokens and written out again between the trusted parts, so no token can affect anything outside
its place. The `metamath` program of the machine then checks the whole, or, where there is none, `metamath_kernel` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ponder.runs.trust import names_code
from ponder.types import Score
from ponder.verify.base import bad_data, repr_for_reason
from ponder.verify.proof.metamath_kernel import MetamathDatabase, MetamathError, TooMuchWork, metamath_tokens
from ponder.verify.proof.proof_verifier import (
    CheckerFailed,
    ProofVerifier,
    gold_names,
    gold_text,
    score_unfinished,
    shorten_message,
)
from ponder.verify.proof.run_checker import checker_limits, find_checker, missing_checker, run_checker
from ponder.verify.sandbox import SandboxLimits

_VERIFY = ("metamath", "set scroll continuous", 'read "graded.mm"', "verify proof *", "exit")
_LABEL = re.compile(r"[A-Za-z0-9._-]+")
_SYMBOL = re.compile(r"[!-#%-~]+")  # printable, no dollar sign
_ENDS = {"$p": "$=", "$=": "$.", "$e": "$.", "$d": "$."}


class MalformedMetamath(Exception):
    """Why a text is not a proof."""


@dataclass(frozen=True)
class Metamath(ProofVerifier):
    """1 where the proof derives the statement from the trusted database.

    The problem's answer holds
    `statement`: its symbols, such as "|- ( ph -> ph )";
    `database`: the text it is proved from (or name a file for all problems in the field `database`);
    `hypotheses` (optional): {"solution.1": "|- ph"}; `distinct` (optional): ["x y"]: both hold for the statement;
    `theorem` (optional): its label, `solution`.

    The code block holds the proof alone (labels, or the compressed form), or lemmas and then the theorem:
    `lemma $p |- ... $= ... $.  solution $p |- ... $= ... $.`, with `${ $e $d $}` around lemmas where needed.
    """

    database: str = ""
    limits: SandboxLimits = checker_limits(20)
    # the folder of Metamath, if outside /usr
    tools: tuple[str, ...] = field(default=(), metadata=names_code())

    def missing_tools(self) -> str:
        """Empty without `tools`: the Python verifier replaces the program."""
        if not self.tools:
            return ""
        return missing_checker("Metamath", ("metamath",), "try apt-get install metamath", self.tools)

    def check_proof(self, proof: str, gold: Mapping[str, Any]) -> Score:
        theorem, statement = gold_text(gold, "theorem", "solution"), gold_text(gold, "statement").split()
        database = gold_text(gold, "database") if "database" in gold or not self.database else _read(self.database)
        try:
            lemmas, claimed, steps = split_proof(proof, theorem)
        except MalformedMetamath as fault:
            return Score(0.0, f"malformed: {fault}")
        if claimed is not None and claimed != statement:
            return Score(0.0, f"wrong: {theorem} states {shorten_message(' '.join(claimed))}")
        premises, claim = _premises(gold), [theorem, "$p", *statement]
        if not find_checker("metamath", self.tools):
            _check_statement_in_python(database, theorem, " ".join([*premises, *claim]))
            closing = [*premises, *claim, "$=", *steps, "$."]
            return _grade_in_python("\n".join([database, *lemmas, "${", *closing, "$}"]))
        _check_statement(database, theorem, " ".join([*premises, *claim]), self.limits, self.tools)
        closing = [*premises, *claim, "$=", *steps, "$."]
        source = "\n".join([database, *_lines(lemmas), "${", *_lines(closing), "$}", ""])
        outcome = run_checker(_VERIFY, {"graded.mm": source.encode()}, self.limits, tools=self.tools)
        if score := score_unfinished(outcome, "the proof"):
            return score
        return read_metamath_output(outcome.output)


def split_proof(proof: str, theorem: str) -> tuple[list[str], list[str] | None, list[str]]:
    """Tokens of the lemmas, the statement the theorem claims (None: only its proof is given), and its proof."""
    tokens = list(metamath_tokens(proof, MalformedMetamath))
    if not any(token.startswith("$") for token in tokens):
        return [], None, _steps(tokens)
    lemmas: list[str] = []
    depth = at = 0
    while at < len(tokens):
        token = tokens[at]
        if token in ("${", "$}"):
            depth += 1 if token == "${" else -1
            if depth < 0:
                raise MalformedMetamath("a $} without its ${")
            lemmas.append(token)
            at += 1
        elif token == "$d":
            end = _span(tokens, at, depth)
            lemmas += tokens[at:end]
            at = end
        else:
            end = _labelled(tokens, at, depth)
            if token == theorem:
                return _last(tokens, at, end, depth, lemmas)
            lemmas += tokens[at:end]
            at = end
    raise MalformedMetamath(f"nothing is labelled {theorem}")


def _last(
    tokens: list[str], at: int, end: int, depth: int, lemmas: list[str]
) -> tuple[list[str], list[str] | None, list[str]]:
    if depth or tokens[at + 1] != "$p":
        raise MalformedMetamath(f"{tokens[at]} must be a $p outside of any ${{ $}}: its hypotheses are given")
    if end < len(tokens):
        raise MalformedMetamath(f"there is text after {tokens[at]}")
    middle = tokens.index("$=", at)
    return lemmas, tokens[at + 2 : middle], _steps(tokens[middle + 1 : end - 1])


def _labelled(tokens: list[str], at: int, depth: int) -> int:
    """The end of a labelled statement that begins here."""
    kind = tokens[at + 1] if at + 1 < len(tokens) else ""
    if not _LABEL.fullmatch(tokens[at]) or kind not in ("$p", "$e"):
        raise MalformedMetamath(
            f"{repr_for_reason(tokens[at])} {repr_for_reason(kind)}: a proof may hold only $p, $e and $d,"
            " and ${ $} around them"
        )
    return _span(tokens, at + 1, depth)


def _span(tokens: list[str], at: int, depth: int) -> int:
    """The end of the statement whose keyword is at this position, after a check of each symbol."""
    keyword = tokens[at]
    if keyword in ("$e", "$d") and depth == 0:
        raise MalformedMetamath(f"{keyword} outside of ${{ $}} would change the statement")
    end = at + 1
    while end < len(tokens) and tokens[end] != _ENDS[keyword]:
        if not _SYMBOL.fullmatch(tokens[end]):
            raise MalformedMetamath(f"{repr_for_reason(tokens[end])} inside of {keyword}")
        end += 1
    if end == len(tokens):
        raise MalformedMetamath(f"{keyword} without its {_ENDS[keyword]}")
    if keyword == "$=":
        _steps(tokens[at + 1 : end])
    return _span(tokens, end, depth) if keyword == "$p" else end + 1


def _steps(tokens: list[str]) -> list[str]:
    """The steps of a proof, none of them left open."""
    compressed = tokens.index(")") if tokens[:1] == ["("] and ")" in tokens else 0
    for n, token in enumerate(tokens):
        if not (_LABEL.fullmatch(token) or (compressed and n in (0, compressed))):
            raise MalformedMetamath(
                "a step is left open" if "?" in token else f"{repr_for_reason(token)} is no step of a proof"
            )
    if not tokens:
        raise MalformedMetamath("an empty proof")
    return tokens


def _premises(gold: Mapping[str, Any]) -> list[str]:
    """The trusted hypotheses and distinct variables, as tokens."""
    hypotheses = gold.get("hypotheses", {})
    if not isinstance(hypotheses, Mapping) or not all(isinstance(text, str) for text in hypotheses.values()):
        bad_data(f"the gold answer's 'hypotheses' is {repr_for_reason(hypotheses)}; it must map labels to statements")
    tokens = [token for pair in gold_names(gold, "distinct") for token in ("$d", *pair.split(), "$.")]
    return tokens + [token for label, text in hypotheses.items() for token in (str(label), "$e", *text.split(), "$.")]


def _lines(tokens: list[str]) -> Iterator[str]:
    """One statement per line, because the program prints the line of an error."""
    line: list[str] = []
    for token in tokens:
        line.append(token)
        if token in ("$.", "${", "$}", "$="):
            yield " ".join(line)
            line = []
    if line:
        yield " ".join(line)


_ERROR = re.compile(r"^\?Error on line \d+ of file[^:]*:$", re.MULTILINE)
_CARETS = re.compile(r"^[ \n]*\^[\^ \n]*\n", re.MULTILINE)  # below the line of the error, which may be wrapped
_READ = re.compile(r"^No errors were found\.", re.MULTILINE)
_VERIFIED = re.compile(r"^All proofs in the database were verified in [0-9.]+ s\.$", re.MULTILINE)


def read_metamath_output(output: str) -> Score:
    """The score from the program's output. It echoes lines of the proof only below a line that begins with "?"."""
    if complaint := re.search(r"^(?:\?|Warning:)", output, re.MULTILINE):
        return Score(0.0, f"rejected: {message(output[complaint.start() :])}")
    if not (_READ.search(output) and _VERIFIED.search(output)):
        raise CheckerFailed(f"crashed: metamath's output cannot be read: {shorten_message(output[-500:])}")
    return Score(1.0, "proved")


def message(complaint: str) -> str:
    """The program's first error, without its position in a file that the reader does not have."""
    text = _ERROR.sub("", complaint, count=1)
    if marked := _CARETS.search(text):
        text = text[marked.end() :]
    return shorten_message(re.split(r"\n\n|\n\?|\nMM>|\n\.\.\.|Type\s\"SHOW", text.lstrip("?\n"))[0])


@lru_cache(maxsize=64)
def _check_statement(database: str, theorem: str, claim: str, limits: SandboxLimits, tools: tuple[str, ...]) -> None:
    """Check that the trusted part is valid and lacks only this proof, so that its faults are not the proof's."""
    source = f"{database}\n${{ {claim} $= ? $. $}}\n"
    outcome = run_checker(_VERIFY, {"graded.mm": source.encode()}, limits, tools=tools)
    score_unfinished(outcome, "the database", blamed=False)
    complaint = re.search(r"^\?", outcome.output, re.MULTILINE)
    if complaint or not _READ.search(outcome.output):
        problem = outcome.output[complaint.start() :] if complaint else outcome.output
        bad_data(f"the database or the statement is not accepted: {message(problem)}")
    unproved = re.search(r"^Warning: .* not proved:([^?]*?)\nMM>", outcome.output, re.MULTILINE)
    if unproved is None or unproved[1].split() != [theorem]:
        bad_data(
            f"the database leaves proofs open: {shorten_message(unproved[1] if unproved else outcome.output[-300:])}"
        )


def _grade_in_python(source: str) -> Score:
    """The verdict of the Python verifier on a whole database."""
    try:
        unproved = MetamathDatabase(source).open_proofs
    except MetamathError as fault:
        return Score(0.0, f"rejected: {shorten_message(str(fault))}")
    except TooMuchWork as fault:
        return Score(0.0, f"timed out: {fault}")
    return Score(0.0, f"rejected: not proved: {' '.join(unproved)}") if unproved else Score(1.0, "proved")


@lru_cache(maxsize=64)
def _check_statement_in_python(database: str, theorem: str, claim: str) -> None:
    """As `_check_statement`, by the Python verifier."""
    try:
        unproved = MetamathDatabase(f"{database}\n${{ {claim} $= ? $. $}}\n").open_proofs
    except (MetamathError, TooMuchWork) as fault:
        bad_data(f"the database or the statement is not accepted: {shorten_message(str(fault))}")
    if unproved != [theorem]:
        bad_data(f"the database leaves proofs open: {shorten_message(' '.join(unproved))}")


@lru_cache(maxsize=4)
def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        bad_data(f"the database {path} cannot be read ({error}); name a Metamath file")
