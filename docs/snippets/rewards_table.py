"""A table of a run's rewards."""

from ponder import read_metrics

for step, row in enumerate(read_metrics("runs/sums"), 1):
    print(f"{step:4d}  reward {row['reward']:.3f}  tokens {row['completions/mean_length']:.0f}")
