"""How the settings that several figures share were chosen, for their pages."""

from __future__ import annotations

TINY_START = (
    "The tiny model's start, its sums and its 300 steps of imitation, is that of all recipes; it was chosen with a seed"
    " of its own by the share of training problems that it gets right, or by a look at what it writes, among a number"
    " of tries that was not kept"
)
SMOLLM2_START = "SmolLM2's start on sums is the first that was tried"
GSM8K_START = (
    "The start of SmolLM2 on GSM8K's solutions, 100 steps at 2e-4, came after 140 steps at 1e-4 and 120 at 2e-4; by"
    " what was not kept"
)
PRUNED = (
    "The layers of the smaller model were chosen by its divergence from the whole one on validation problems, with one"
    " seed, between even spacing and most influence; the 600 steps at 1.5e-3 that healed it were not compared"
)
MIXED_SUMS = (
    "The sums are those of the recipes after two tries, with less training and with two to eight numbers, which were"
    " dropped since their problems were about equally hard; on which problems that was seen was not kept"
)
