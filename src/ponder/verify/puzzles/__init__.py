"""Verifiers of puzzles: each checks an answer against the rules, so any correct solution counts."""
