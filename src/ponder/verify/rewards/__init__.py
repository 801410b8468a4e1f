"""Rewards that combine or shape scores: weighted sums, gates, length, format, language and repetition."""
