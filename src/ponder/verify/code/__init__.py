"""Verifiers of programs: extract the program from a completion, run it in the sandbox, grade it outside."""
