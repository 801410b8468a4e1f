"""Puzzles: an answer is checked against the rules, whatever way it was found."""
