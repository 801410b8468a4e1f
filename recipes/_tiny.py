"""What the small recipes share: a transformer from scratch that adds three digits line by line, and its measure.

`7+8+9=` is answered by `7+8=15`, `15+9=24`, `#### 24`. A short imitation of worked answers, half a minute on two cores,
teaches the notation and some of the addition: 45 % of its samples are right (one seed, 100 problems). The rest is what
the recipes learn by themselves.
"""

from ponder.models.load import Fresh
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.sft import FineTune
from ponder.reason.strategies import Ensemble
from ponder.tasks import Sums
from ponder.train.optimiser import AdamW
from ponder.types import Sampling

ALPHABET = "0123456789+=#\n "
TEMPLATE = "{{ bos_token }}{{ messages[-1].content }}"
TASK = Sums(terms=3, limit=10, prompt="{sum}=", forms=("hash",))
DRAW = Sampling(max_tokens=32)


def start(seed: int, steps: int = 300, width: int = 64, layers: int = 2) -> FineTune:
    """Imitation of worked answers, broken off early."""
    return FineTune(
        data=TASK,
        model=Fresh(ALPHABET, width=width, layers=layers, context=64, seed=seed),
        template=TEMPLATE,
        optimiser=AdamW(lr=3e-3, warmup=20, decay_steps=steps),
        steps=steps,
        batch=64,
        save_every=steps,
        seed=seed,
    )


def measure(model: str, seed: int, n: int = 8) -> Evaluate:
    """Right answers at temperature 1 on the 123 held-out problems, with votes and coverage of n samples."""
    return Evaluate(TASK, model=model, strategy=Ensemble(n, DRAW), seed=seed)
