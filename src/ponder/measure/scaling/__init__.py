"""Scaling laws and costs: extrapolation, FLOPs, Pareto frontiers, and how to spend a budget of samples or dollars."""
