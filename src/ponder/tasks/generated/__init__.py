"""Tasks whose problems are generated from a seed, without data files."""
