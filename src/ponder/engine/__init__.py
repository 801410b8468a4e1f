"""Sampling from the learner's own weights: continuous batching over a key-value cache."""
