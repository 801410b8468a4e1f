"""From scored traces to better weights: credit, losses, packing, the learner and its checkpoints."""
