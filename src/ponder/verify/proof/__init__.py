"""Proof checkers as scorers: the statement is trusted, the proof is not, and the reason is feedback to refine from.

Each has `grade(text, gold)`, `check(proof, gold)` for a proof without a completion around it, and `ready()`, which
says what is not installed. None of them is Python that has to be imported: the checkers are programs of the machine.
"""

from ponder.verify.proof.coq import Coq
from ponder.verify.proof.lean import Lean
from ponder.verify.proof.metamath import Metamath
from ponder.verify.proof.proof_verifier import ProofVerifier, extract_proof
from ponder.verify.proof.run_checker import checker_limits
from ponder.verify.proof.smt import SmtAssignment, SmtInvariant

__all__ = [
    "Coq",
    "Lean",
    "Metamath",
    "ProofVerifier",
    "SmtAssignment",
    "SmtInvariant",
    "checker_limits",
    "extract_proof",
]
