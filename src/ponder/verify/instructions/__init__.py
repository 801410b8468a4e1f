"""Verifiers of instructions: constraints on the text, JSON schemas and regular expressions."""
