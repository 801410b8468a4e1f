"""Estimators from Python: counts and chances in, numbers with intervals out."""

from ponder.measure import (
    ModelShape,
    allocate_samples,
    coverage_from_counts,
    coverage_from_rates,
    extrapolate_coverage,
    group_flops,
    hierarchical_bootstrap,
    mean_pass_at_k,
    plurality_accuracy,
    plurality_limit,
)

right = [1, 3, 12, 20, 28, 31]  # of 32 samples of each of six problems
print(f"pass@8 = {mean_pass_at_k(32, right, 8):.3f}")

guess = extrapolate_coverage([32] * 6, right, fit_to=[1, 2, 4, 8], predict=[16, 32])
print("pass@16 and 32, predicted from k up to 8:", guess.predicted.round(3))
print("and counted:", guess.observed.round(3))

# A vote is right more often with more samples, though each sample is mostly wrong.
chances = [0.4, 0.35, 0.25]  # of the right answer and of two wrong ones
print([round(plurality_accuracy(chances, n), 3) for n in (1, 9, 65)], "->", plurality_limit(chances))

samples = [[1.0] * c + [0.0] * (32 - c) for c in right]
mean = hierarchical_bootstrap(samples, level_to_resample="samples")
print(f"on these very problems: {mean.mean:.3f} [{mean.low:.3f}, {mean.high:.3f}]")

print("12 samples, chances known:", allocate_samples(coverage_from_rates([0.05, 0.3, 0.9], 12), 12))
print("12 samples, from a log:", allocate_samples(coverage_from_counts(32, [2, 10, 29], 12), 12))

llama_7b = ModelShape.from_decoder_config(layers=32, width=4096, hidden=11008, heads=32, vocab=32000)
shared = group_flops(llama_7b, prompt=1000, completions=[500] * 8, shared=True)
alone = group_flops(llama_7b, prompt=1000, completions=[500] * 8, shared=False)
print(f"8 answers to one prompt: {shared:.2g} FLOPs, without a shared prefix {alone:.2g}")
