"""Estimators and tests: accuracy with intervals, pass@k, votes, best-of-k, paired tests, power, calibration, Elo."""
