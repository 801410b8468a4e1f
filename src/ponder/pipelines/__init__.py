"""Whole jobs: the order of things and nothing else. Each is a frozen dataclass that runs in a run directory."""
