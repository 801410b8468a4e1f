"""What the small recipes share: a transformer from scratch that adds three numbers line by line, and its measure.

`47+85+9=` is answered by `47+85=132`, `132+9=141`, `#### 141`. A short imitation of worked answers teaches the notation
and much of the addition; what is left, about a third of the answers, is what the recipes learn by themselves.
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
TASK = Sums(terms=3, limit=100, prompt="{sum}=", forms=("hash",))
DRAW = Sampling(max_tokens=32)


def start(seed: int, steps: int = 300, width: int = 128, layers: int = 3) -> FineTune:
    """Imitation of worked answers, broken off early."""
    return FineTune(
        data=TASK,
        model=Fresh(ALPHABET, width=width, layers=layers, context=64, seed=seed),
        template=TEMPLATE,
        optimiser=AdamW(lr=1e-3, warmup=20, decay_steps=steps),
        steps=steps,
        batch=64,
        save_every=steps,
        seed=seed,
    )


def measure(model: str, seed: int, n: int = 8) -> Evaluate:
    """Right answers at temperature 1 on 300 held-out problems, with votes and coverage of n samples."""
    return Evaluate(TASK, model=model, strategy=Ensemble(n, DRAW), seed=seed)
