"""Statements to prove in a formal language, with a gold proof each: Metamath, SMT (Z3) and Coq.

`task` draws the problems; one module for each language makes its statements.
"""

from ponder.tasks.proofs.proofs_task import LANGUAGES, ProofGrader, Proofs

__all__ = ["LANGUAGES", "ProofGrader", "Proofs"]
