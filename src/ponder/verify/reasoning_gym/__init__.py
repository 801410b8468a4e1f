"""Answers to reasoning-gym's problems, scored by that library's own rules."""
