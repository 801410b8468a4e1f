"""Fit the loss law of Hoffmann et al. (2022) to runs, and ask it for the best model of a budget."""

from itertools import product

from ponder.measure import ChinchillaLaw, fit_chinchilla_law

# Stand-ins for measured losses: the paper's own law at 5 model sizes and 4 numbers of training tokens.
paper = ChinchillaLaw(e=1.69, a=406.4, alpha=0.34, b=410.7, beta=0.28)
sizes, data = (1e8, 3e8, 1e9, 3e9, 1e10), (2e9, 1e10, 5e10, 2.5e11)
runs = [(n, d, float(paper(n, d))) for n, d in product(sizes, data)]
law = fit_chinchilla_law(*zip(*runs, strict=True))
parameters, tokens = law.compute_optimal(flops=1e21)
print(f"loss = {law.e:.2f} + {law.a:.0f} / N^{law.alpha:.2f} + {law.b:.0f} / D^{law.beta:.2f}")
print(f"for 1e21 FLOPs: {parameters:.2g} parameters, {tokens:.2g} tokens")
