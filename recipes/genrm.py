"""A generative verifier against an outcome reward model on the same samples: which separates correct answers better?

The base model works out last digits (`3*7+5:16;=6`); sampled at a high temperature, it makes mistakes. An outcome
reward model learns from whether answers are correct; so does a generative verifier (Zhang et al. 2024,
arXiv:2408.15240), by fine-tuning on the word Yes or No, at once (`genrm`) or after another, correct answer to the same
question (`genrm-cot`, which then writes its own). All score the same answers to held-out questions: the line `guide` of
each `by-` stage is the area under the ROC curve.

Measured with seeds 0, 1 and 2 (some ten minutes each on one busy Neoverse-N1 class core; genrm-cot for seed 0 only), on
8 answers to each of 200 held-out problems, of which 38, 23 and 39 % were right:

    seed            0                       1                       2
    by-orm          0.823 [0.804, 0.845]    0.773 [0.748, 0.799]    0.790 [0.764, 0.814]
    by-genrm        0.782 [0.758, 0.806]    0.752 [0.717, 0.784]    0.812 [0.788, 0.832]
    by-genrm-cot    0.751 [0.726, 0.773]

So a generative verifier learns the signal about as well as an outcome model from the same samples, if it is trained for
a thousand steps: in the first hundred it learns the form, and its loss is that of the base rate. Its own working does
not help it here. The best of 8 answers is right in 46, 22 and 41 % (orm) and 36, 25 and 44 % (genrm); one drawn from
the different answers would be in 18, 13 and 18 %, since right ones are all alike; a vote is in 85 % (seed 0).
"""

from _last_digits import TEMPLATE, LastDigits

from ponder.models.scratch_model import ScratchModel
from ponder.models.tokenizer import Tokenizer
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import BestOfN, Samples
from ponder.train.optimizer import AdamW
from ponder.train.reward_objectives import OutcomeReward
from ponder.types import Sampling

ALPHABET = "0123456789+*=;:?\n \\VYN" + "abcdefghijklmnopqrstuvwxyz"
# What GenRM asks, without the words that this model has never read: 3*7+5:16;=6?
GENRM_TEMPLATE = (
    r"{{ bos_token }}{{ (messages[-1].content.split('PROBLEM: ') | last).split('\n\n') | first"
    r" | replace('\nSOLUTION: ', '') | replace('\"', '') }}?"
)


def hot_sampling(temperature: float, length: int) -> Sampling:
    """Hot, and only what an answer is made of: the wrong ones are wrong in a digit."""
    tokenizer = Tokenizer.from_alphabet(ALPHABET)
    allowed = tokenizer.encode("0123456789=:;", add_special_tokens=False).tolist()
    return Sampling(temperature=temperature, max_tokens=length, allowed_token_ids=(*tokenizer.eos, *allowed))


def recipe(
    operations: int = 3, base_steps: int = 600, problems: int = 4096, samples: int = 4, orm_steps: int = 500,
    steps: int = 1000, batch: int = 64, lr: float = 1e-3, temperature: float = 2.0, n: int = 8, rationales: int = 4,
    seed: int = 0,
) -> Stages:  # fmt: skip
    task, draw = LastDigits(operations, "worked", test_size=200), hot_sampling(temperature, operations + 5)

    def adam(lr: float, steps: int) -> AdamW:
        return AdamW(lr=lr, warmup_steps=20, decay_steps=steps)

    def verifier_job(data: str) -> FineTune:
        return FineTune(
            f"stage:{data}/data.jsonl", "stage:base", GENRM_TEMPLATE, optimizer=adam(lr, steps), steps=steps,
            batch_size=batch,
            save_every=steps, seed=seed,
        )  # fmt: skip

    def best(guide: str) -> Evaluate:
        return Evaluate(task, "stage:base", TEMPLATE, BestOfN(n, sampling=draw), guide, seed=seed)

    base = FineTune(
        task, ScratchModel(ALPHABET, width=64, layers=2, context=256, seed=seed), TEMPLATE,
        optimizer=adam(3e-3, base_steps),
        steps=base_steps, batch_size=64, save_every=base_steps, seed=seed,
    )  # fmt: skip
    orm = TrainRewardModel(
        ("stage:sample",), "stage:base", OutcomeReward(), TEMPLATE, optimizer=adam(lr, orm_steps), steps=orm_steps,
        batch_size=batch, save_every=orm_steps, seed=seed,
    )  # fmt: skip
    return Stages(
        (
            Stage("base", base),
            Stage("sample", Collect(task, "stage:base", TEMPLATE, Samples(samples, draw), limit=problems, seed=seed)),
            Stage("orm", orm),
            Stage("verdicts", Harvest(("stage:sample",), "verdicts")),
            Stage("rationales", Harvest(("stage:sample",), "rationales")),
            Stage("genrm", verifier_job("verdicts")),
            Stage("genrm-cot", verifier_job("rationales")),
            Stage("by-orm", best("reward:stage:orm")),
            Stage("by-genrm", best("genrm:stage:genrm")),
            Stage("by-genrm-cot", best(f"genrm+{rationales}:stage:genrm-cot")),
        )
    )
