"""Real runs of a tiny model, made once per process: fine-tuning, reinforcement learning, evaluations with four samples,
and two searches.

`real_runs()` returns a folder with the run directories `sft`, `rl` (which goes on from it), `before` and `after`
(evaluations of the model before and after `rl`, on the same problems), `search` (beam search) and `mcts`. It must not
be changed: `copy_runs` makes a copy.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from fakes import QUESTION_TEMPLATE
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.reason.operators.cut import Cut
from ponder.reason.strategies import MCTS, BeamSearch, MajorityVote, Samples
from ponder.tasks import Addition
from ponder.train.objective import KL
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

RUN_NAMES = ("after", "before", "mcts", "rl", "search", "sft")
NUM_PROBLEMS, NUM_SAMPLES, GROUP_SIZE, STEPS = 4, 4, 4, 6  # of one-digit sums only four are held out
MODEL = ScratchModel("0123456789+= ", width=32, layers=2, heads=4, context=48)
TASK = Addition(digits=1, prompt="{a}+{b}=", test_size=20)
_SAMPLING = Sampling(max_tokens=3, token_stats=("entropy",))
_SFT = FineTune(
    TASK, MODEL, QUESTION_TEMPLATE, optimizer=AdamW(lr=1e-2), steps=40, batch_size=32, save_every=40, device="cpu",
    dtype="float32",
)  # fmt: skip
_RL = RL(
    TASK, "", QUESTION_TEMPLATE, Samples(GROUP_SIZE, _SAMPLING), GRPO(kl=KL(0.01)), AdamW(lr=1e-3),
    steps=STEPS, problems_per_step=4, preflight=False, save_every=3, eval_every=3, eval_limit=8, device="cpu",
    dtype="float32",
)  # fmt: skip
_EVAL = Evaluate(
    TASK, template=QUESTION_TEMPLATE, strategy=MajorityVote(NUM_SAMPLES, sampling=_SAMPLING), limit=NUM_PROBLEMS,
    device="cpu", dtype="float32",
)  # fmt: skip


@lru_cache
def real_runs() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ponder-runs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _SFT(folder / "sft")
    replace(_RL, model=str(folder / "sft"))(folder / "rl")
    replace(_EVAL, model=str(folder / "sft"))(folder / "before")
    replace(_EVAL, model=str(folder / "rl"))(folder / "after")
    search = replace(_EVAL, model=str(folder / "rl"), limit=3, guide="likelihood")
    sampling = Sampling(max_tokens=12)
    replace(search, strategy=BeamSearch(n=6, beam_width=3, cut=Cut(tokens=1), sampling=sampling))(folder / "search")
    replace(search, strategy=MCTS(12, cut=Cut(tokens=1), sampling=sampling))(folder / "mcts")
    return folder


def copy_runs(target: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(real_runs(), target))
