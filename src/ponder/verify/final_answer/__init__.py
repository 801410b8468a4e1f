"""Verifiers of a final answer that is a number, a text, a list or a choice."""
