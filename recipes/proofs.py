"""A small transformer learns to prove theorems in Metamath, first from gold proofs, then from the checker alone.

`start` imitates gold proofs and breaks off early. `grpo` samples proofs of new theorems; the Metamath verifier, which
checks every step, gives 1 or 0. Both are measured on the same held-out theorems. The axioms are not in the prompt:
the model has to learn them. No proof checker has to be installed.
"""

from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.tasks import Proofs
from ponder.tasks.proofs.metamath_statements import VARIABLES
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

TEMPLATE = "{{ bos_token }}{{ messages[-1].content }}\n"
WORDS = (
    "Given Prove solution Write the labels of the proof in order with spaces between them"
    " <answer> </answer> ax-mp a1i syl"
)
ALPHABET = "".join(sorted(set(f"{WORDS} {' '.join(VARIABLES)} wn wi |-.,:()->\n0123456789")))


def recipe(
    proof_steps: int = 1,
    start_steps: int = 400,
    steps: int = 60,
    problems_per_step: int = 16,
    group_size: int = 8,
    test_size: int = 200,
    lr: float = 1e-4,
    max_tokens: int = 160,
    seed: int = 0,
) -> Stages:
    task = Proofs(
        languages=("metamath",), steps=proof_steps, show_database=False, style="plain", test_size=test_size, seed=seed
    )
    model = ScratchModel(ALPHABET, width=96, layers=3, context=1024, seed=seed)
    sampling = Sampling(max_tokens=max_tokens)
    start = FineTune(
        task, model, TEMPLATE, optimizer=AdamW(lr=3e-3, warmup_steps=start_steps // 10, decay_steps=start_steps),
        steps=start_steps, batch_size=32, save_every=start_steps, seed=seed,
    )  # fmt: skip
    grpo = RL(
        task, "stage:start", TEMPLATE, group_size=group_size, sampling=sampling, algorithm=GRPO(kl=None),
        optimizer=AdamW(lr=lr, betas=(0.9, 0.95)), steps=steps, problems_per_step=problems_per_step, save_every=steps,
        seed=seed,
    )  # fmt: skip

    def accuracy(model: str) -> Evaluate:
        return Evaluate(task, model, strategy=Samples(1, sampling), max_concurrency=512, seed=seed)

    return Stages(
        (
            Stage("start", start),
            Stage("start-accuracy", accuracy("stage:start")),
            Stage("grpo", grpo),
            Stage("grpo-accuracy", accuracy("stage:grpo")),
        )
    )
