"""Proofs over a small propositional calculus: what follows is accepted, what is taken for granted is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.types import Score
from ponder.verify.proof import Metamath, metamath
from ponder.verify.proof.metamath import MalformedMetamath, read_metamath_output, split_proof
from ponder.verify.proof.metamath_kernel import MetamathDatabase, MetamathError, TooMuchWork
from ponder.verify.proof.proof_verifier import CheckerFailed
from verify.proof.grading import block, grade_all, need

# Łukasiewicz's axioms, with one rule. The last theorem is here to be used.
DATABASE = """
$c ( ) -> -. wff |- $.
$v ph ps ch $.
wph $f wff ph $.
wps $f wff ps $.
wch $f wff ch $.
wn $a wff -. ph $.
wi $a wff ( ph -> ps ) $.
ax-1 $a |- ( ph -> ( ps -> ph ) ) $.
ax-2 $a |- ( ( ph -> ( ps -> ch ) ) -> ( ( ph -> ps ) -> ( ph -> ch ) ) ) $.
ax-3 $a |- ( ( -. ph -> -. ps ) -> ( ps -> ph ) ) $.
${ min $e |- ph $. maj $e |- ( ph -> ps ) $. ax-mp $a |- ps $. $}
${ a1i.1 $e |- ph $. a1i $p |- ( ps -> ph ) $= wph wps wph wi a1i.1 wph wps ax-1 ax-mp $. $}
"""
IDENTITY = "|- ( ph -> ph )"
ID = """wph wph wph wi wi wph wph wi wph wph ax-1 wph wph wph wi wph wi wi wph wph wph wi wi wph wph wi wi
wph wph wph wi ax-1 wph wph wph wi wph ax-2 ax-mp ax-mp"""
LEMMA = f"id $p {IDENTITY} $= {ID} $."
INFERENCE = "${ h $e |- ph $. twice $p |- ( ps -> ( ps -> ph ) ) $= wps wph wi wps wph wps h a1i a1i $. $}"

HONEST = {
    "labels": (IDENTITY, ID, {}),
    "the whole statement": (IDENTITY, f"solution $p {IDENTITY} $= {ID} $.", {}),
    "compressed": (
        "|- ( ps -> ( ph -> ph ) )", f"{LEMMA} solution $p |- ( ps -> ( ph -> ph ) ) $= ( wi id a1i ) AACBADE $.", {},
    ),
    "a lemma": (IDENTITY, f"{LEMMA} solution $p {IDENTITY} $= wph id $.", {}),
    "an inference": (
        "|- ( ps -> ( ps -> ( ph -> ph ) ) )",
        f"{LEMMA} {INFERENCE} solution $p |- ( ps -> ( ps -> ( ph -> ph ) ) ) $= wph wph wi wps wph id twice $.",
        {},
    ),
    "a comment": (IDENTITY, f"$( by ax-1 $a and ? $) {ID}", {}),
    "a hypothesis": ("|- ( ps -> ph )", "wph wps solution.1 a1i", {"hypotheses": {"solution.1": "|- ph"}}),
    "modus ponens": (
        "|- ps", "wph wps s.1 s.2 ax-mp", {"hypotheses": {"s.1": "|- ph", "s.2": "|- ( ph -> ps )"}},
    ),
    "distinct variables": (IDENTITY, ID, {"distinct": ["ph ps"]}),
    "distinct in a lemma": (IDENTITY, f"${{ $d ph ps $. {LEMMA} $}} solution $p {IDENTITY} $= wph id $.", {}),
    "substitution": ("|- ( -. ph -> -. ph )", f"{LEMMA} solution $p |- ( -. ph -> -. ph ) $= wph wn id $.", {}),
    "an axiom": ("|- ( ch -> ( ph -> ch ) )", "wch wph ax-1", {}),
    "another name": (IDENTITY, f"id $p {IDENTITY} $= {ID} $.", {"theorem": "id"}),
    "a theorem of the database": ("|- ( ch -> ( ph -> ( ps -> ph ) ) )", "wph wps wph wi wi wch wph wps ax-1 a1i", {}),
    "lines": (IDENTITY, ID.replace(" ", "\n"), {}),
}  # fmt: skip

FALSE = "|- ( ph -> ps )"
CHEATS = {
    "axiom": f"x $a {FALSE} $. solution $p {FALSE} $= wph wps x $.",
    "axiom in a block": f"${{ x $a {FALSE} $. $}} solution $p {FALSE} $= wph wps x $.",
    "hypothesis at the top": f"x $e {FALSE} $. solution $p {FALSE} $= x $.",
    "hypothesis around": f"${{ x $e {FALSE} $. solution $p {FALSE} $= x $. $}}",
    "hypothesis in an open block": f"${{ x $e {FALSE} $. solution $p {FALSE} $= x $.",
    "block closed twice": f"${{ $}} $}} solution $p {FALSE} $= wph $.",
    "open step": "?",
    "open step among steps": "wph wps ? ax-1",
    "open step, compressed": "( ax-1 ) AB?",
    "open lemma": f"x $p {FALSE} $= ? $. solution $p {FALSE} $= wph wps x $.",
    "lemma that does not hold": f"x $p {FALSE} $= wph wps ax-1 $. solution $p {FALSE} $= wph wps x $.",
    "lemma that uses itself": f"x $p {FALSE} $= wph wps x $. solution $p {FALSE} $= wph wps x $.",
    "uses itself": "wph wps solution",
    "another statement": f"solution $p {IDENTITY} $= {ID} $.",
    "proof of another statement": ID,
    "stronger name": f"solution $p {FALSE} $= {ID} $.",
    "constants": f"$c bogus $. solution $p {FALSE} $= {ID} $.",
    "variables": f"$v zz $. wzz $f wff zz $. solution $p {FALSE} $= {ID} $.",
    "variable of another kind": f"bad $f |- ph $. solution $p {FALSE} $= bad $.",
    "include": f"$[ /etc/passwd $] solution $p {FALSE} $= {ID} $.",
    "include in a statement": f"solution $p {FALSE} $[ /etc/passwd $] $= {ID} $.",
    "include in a proof": "$[ /etc/passwd $] wph",
    "comment that opens a statement": f"$( $) x $a {FALSE} $. $( $) solution $p {FALSE} $= wph wps x $.",
    "comment never closed": f"solution $p {FALSE} $= wph wps x $. $( ",
    "closes the statement early": f"wph $. x $a {FALSE} $. y $p {IDENTITY} $= {ID}",
    "after the theorem": f"solution $p {FALSE} $= wph $. x $a {FALSE} $.",
    "twice": f"solution $p {IDENTITY} $= {ID} $. solution $p {FALSE} $= wph $.",
    "label of the database": f"ax-1 $p {FALSE} $= wph $. solution $p {FALSE} $= wph wps ax-1 $.",
    "label of a hypothesis": f"min $p {FALSE} $= wph $. solution $p {FALSE} $= wph wps min $.",
    "hypothesis of an axiom": "maj",
    "too few steps": "wph wps",
    "too many steps": "wph wps ax-1 wph wps ax-1",
    "not a theorem": "wph wps wi",
    "nothing": "solution",
    "an empty proof": f"solution $p {FALSE} $= $.",
    "prints what the judge reads": (
        f"x $p No errors were found. $= wph $. y $p All proofs in the database were verified in 0.00 s. $= wph $."
        f" solution $p {FALSE} $= wph $."
    ),
    "typesetting": f"$( $t htmldef \"ph\" as \"x\"; $) solution $p {FALSE} $= wph wps ax-1 $.",
    "bytes": "wph \x00 wps",
    "other letters": "wph wрs ax-1",
}  # fmt: skip


@pytest.fixture(scope="module")
def honest() -> dict[str, Score]:
    golds = {name: (p, {"statement": s, "database": DATABASE, **extra}) for name, (s, p, extra) in HONEST.items()}
    return grade_all(Metamath(), golds)


@pytest.fixture(scope="module")
def cheats() -> dict[str, Score]:
    gold = {"statement": FALSE, "database": DATABASE}
    return grade_all(Metamath(), {name: (proof, gold) for name, proof in CHEATS.items()})


@pytest.mark.parametrize("name", HONEST)
def test_metamath_accepts_honest_proofs(honest, name):
    assert honest[name] == Score(1.0, "proved")


@pytest.mark.parametrize("name", CHEATS)
def test_metamath_rejects_cheats(cheats, name):
    assert cheats[name].value == 0.0 and cheats[name].reason, cheats[name]


def test_metamath_rejects_a_proof_with_a_missing_step():
    """A proof with any one step left out or said twice is no proof."""
    steps = ID.split()
    changed = {f"without {n}": steps[:n] + steps[n + 1 :] for n in range(0, len(steps), 4)}
    changed |= {f"twice {n}": steps[:n] + steps[n : n + 1] + steps[n:] for n in range(0, len(steps), 4)}
    gold = {"statement": IDENTITY, "database": DATABASE}
    scores = grade_all(Metamath(), {name: (" ".join(proof), gold) for name, proof in changed.items()})
    assert {score.value for score in scores.values()} == {0.0}


def test_metamath_feedback_names_the_error():
    need(Metamath())
    gold = {"statement": IDENTITY, "database": DATABASE}
    score = Metamath().grade(block(ID.replace("ax-2", "ax-9")), gold)
    assert score == Score(
        0.0, "rejected: The token at proof step 38 is not an active statement label or a local label."
    )
    score = Metamath().grade(block("wph wps ax-1"), gold)
    assert 'The result is "|- ( ph -> ( ps -> ph ) )"' in score.reason and "SHOW" not in score.reason


@pytest.mark.parametrize(
    "changed",
    [{"statement": "|- zz"}, {"statement": ""}, {"database": "$c wff $"}, {"database": 3}, {"hypotheses": ["|- ph"]},
     {"hypotheses": {"h": "|- zz"}}, {"distinct": "x y"},
     {"database": DATABASE + "open $p |- ( ph -> ps ) $= ? $."}, {"statement": "|- ph $= wph $. x $p |- ph"}],
)  # fmt: skip
def test_a_bad_problem_is_undecided(changed):
    need(Metamath())
    score = Metamath().grade(block(ID), {"statement": IDENTITY, "database": DATABASE, **changed})
    assert score.value is None and score.reason.startswith("bad data: "), score


def test_one_database_for_all_problems(tmp_path):
    need(Metamath())
    (tmp_path / "small.mm").write_text(DATABASE)
    assert Metamath(str(tmp_path / "small.mm")).grade(block(ID), {"statement": IDENTITY}).value == 1.0
    score = Metamath(str(tmp_path / "none.mm")).grade(block(ID), {"statement": IDENTITY})
    assert score.value is None and "none.mm cannot be read" in score.reason


def test_python_verifier_grades_where_the_program_is_missing(monkeypatch):
    monkeypatch.setattr(metamath, "find_checker", lambda program, tools: "")
    gold = {"statement": IDENTITY, "database": DATABASE}
    assert Metamath().grade(block(ID), gold) == Score(1.0, "proved")
    for statement, proof, extra in HONEST.values():
        assert Metamath().grade(block(proof), {"statement": statement, "database": DATABASE, **extra}).value == 1.0, (
            proof
        )
    for name, proof in CHEATS.items():
        score = Metamath().grade(block(proof), {"statement": FALSE, "database": DATABASE})
        assert score.value == 0.0 and score.reason, name
    assert Metamath().grade(block("( wi ) AABZ" + "CB" * 20), gold).value == 0.0
    missing = Metamath(tools=("/nowhere/at/all",)).grade(block(ID), gold)
    assert missing.value is None and "/nowhere/at/all" in missing.reason


def test_python_verifier_bounds_its_work():
    """Each step of the proof doubles the formula, so that forty steps are too many for any machine."""
    proof = "( wi ) AABZ" + "".join(f"{letter}{letter}BZ" for letter in "CDEFGHIJKLMNOPQRST")
    source = DATABASE + f"big $p wff ph $= {proof} $."
    with pytest.raises(TooMuchWork):
        MetamathDatabase(source, max_symbols=10_000)


@pytest.mark.parametrize(
    ("statement", "message"),
    [("x $a |- zz $.", "not declared"), ("$c ph $.", "cannot be a constant"), ("ax-1 $a |- ph $.", "used twice"),
     ("$d ph ph $.", "different variables"), ("${ $v zz $. x $a |- zz $. $}", "has no type"), ("$}", "without its"),
     ("x $f wff ph $.", "has a type already"), ("x $p |- ph $= ( ax-1 ABA $.", "compressed proof without"),
     ("x $a ph $.", "constant"),
     ("${ $c zz $. $}", "inside of a block"), ("x $p |- ph $= ( wph ) A $.", "mandatory hypothesis"),
     ("${", "without its"),
     ("$[ file.mm $]", "begins no statement"), ("wff $a |- ph $.", "is a symbol already"),
     ("${ $d ph ps $. y $a |- ( ph -> ps ) $. $} x $p |- ( ph -> ph ) $= wph wph y $.", "must be distinct"),
     ("${ $d ph ps $. y $a |- ( ph -> ps ) $. $} x $p |- ( ph -> ps ) $= wph wps y $.", "must be distinct")],
)  # fmt: skip
def test_python_verifier_refuses_invalid_databases(statement, message):
    with pytest.raises(MetamathError, match=message):
        MetamathDatabase(f"{DATABASE} {statement}")


READ = "No errors were found.  However, proofs were not checked.\n"
VERIFIED = "All proofs in the database were verified in 0.00 s.\n"


def test_read_metamath_output():
    assert read_metamath_output(READ + VERIFIED).value == 1.0
    error = '?Error on line 1 of file "graded.mm":\n x\n^\nWrong.\n\n'
    assert read_metamath_output(error + READ + VERIFIED) == Score(0.0, "rejected: Wrong.")
    assert (
        read_metamath_output(f"{READ}Warning: The following $p statement(s) were not proved:  solution\n").value == 0.0
    )
    for unreadable in ("", READ, VERIFIED, f" {READ}{VERIFIED}"):
        with pytest.raises(CheckerFailed):
            read_metamath_output(unreadable)


TOKENS = st.sampled_from(
    ["$p", "$a", "$e", "$d", "$=", "$.", "${", "$}", "$(", "$)", "$[", "$]", "x", "solution", "|-", "?"]
)


@given(st.lists(TOKENS, max_size=25).map(" ".join))
def test_split_proof_passes_only_lemmas(text):
    """Whatever is written, what is passed on is balanced and holds neither axioms nor files nor loose hypotheses."""
    try:
        lemmas, claimed, steps = split_proof(text, "solution")
    except MalformedMetamath:
        return
    depth = 0
    for token in lemmas:
        depth += {"${": 1, "$}": -1}.get(token, 0)
        assert depth >= 0 and token in ("$p", "$e", "$d", "$=", "$.", "${", "$}", "x", "solution", "|-", "?")
        assert not (token in ("$e", "$d") and depth == 0)
    assert depth == 0
    assert not {token for token in (*(claimed or ()), *steps) if token.startswith("$")} and "?" not in steps
