"""Adapters: weights, tokenizers and chat templates as policies and scorers."""
