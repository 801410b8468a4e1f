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

With `--model` a language model answers sums or `--task`, and judges by the same question in its own chat template.
"""

from dataclasses import replace
from typing import Annotated

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    Problems,
    Steps,
    StepsAndRate,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)
from _last_digits import TEMPLATE, LastDigits

from ponder.models.scratch_model import ScratchModel
from ponder.models.tokenizer import Tokenizer
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Task
from ponder.reason.strategies import BestOfN, Samples
from ponder.settings import When
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
    model: ModelName = "tiny", task: TaskName = None,
    task_settings: Annotated[TaskSettings, When("model", other_than=("tiny",))] = NO_SETTINGS,
    template: Annotated[Template, When("model", other_than=("tiny",))] = None,
    max_tokens: Annotated[MaxTokens, When("model", other_than=("tiny",))] = None, limit: Limit = 200,
    operations: Annotated[Count, "of the tiny model's problems", When("model", "tiny")] = 3,
    base_steps: Annotated[Count, "of the tiny model's imitation", When("model", "tiny")] = 600,
    problems: Problems = None, samples: Count = 4, orm_steps: Steps = None, steps: Steps = None, batch: Count = 64,
    lr: Lr = None, temperature: Annotated[float | None, "of samples; None: 2 of the tiny model, 1 of others"] = None,
    n: Count = 8, rationales: Count = 4, seed: int = 0,
) -> Stages:  # fmt: skip
    if model == "tiny" and task is None:
        last_digits = LastDigits(operations, "worked", test_size=limit)
        base = FineTune(
            last_digits, ScratchModel(ALPHABET, width=64, layers=2, context=256, seed=seed), TEMPLATE,
            optimizer=_adam(3e-3, base_steps), steps=base_steps, batch_size=64, save_every=base_steps, seed=seed,
        )  # fmt: skip
        prompt: str | None = TEMPLATE
        judge_prompt: str | None = GENRM_TEMPLATE
        stages, first = [Stage("base", base)], "stage:base"
        asked: Task = last_digits
        draw = hot_sampling(temperature or 2.0, operations + 5)
        orm_pace, pace, problems = StepsAndRate(500, 1e-3), StepsAndRate(1000, 1e-3), problems or 4096
    else:
        b = find_base(model, task, task_settings, template, max_tokens, limit)
        stages, first = b.cold_start_stages(seed, None)
        asked, prompt, judge_prompt = b.task, b.template_of(first), b.template
        draw = replace(b.sampling, temperature=temperature or 1.0)
        orm_pace, pace, problems = b.reward_model, StepsAndRate(200, b.sft.lr), problems or b.answer_budget // samples
    orm_steps, steps = orm_steps or orm_pace.steps, steps or pace.steps

    def verifier_job(data: str) -> FineTune:
        return FineTune(
            f"stage:{data}/data.jsonl", first, judge_prompt, optimizer=_adam(lr or pace.lr, steps), steps=steps,
            batch_size=batch, save_every=steps, seed=seed,
        )  # fmt: skip

    def best(guide: str) -> Evaluate:
        return Evaluate(asked, first, prompt, BestOfN(n, sampling=draw), guide, limit=limit, seed=seed)

    orm = TrainRewardModel(
        ("stage:sample",), first, OutcomeReward(), prompt, optimizer=_adam(lr or orm_pace.lr, orm_steps),
        steps=orm_steps, batch_size=batch, save_every=orm_steps, seed=seed,
    )  # fmt: skip
    stages += [
        Stage("sample", Collect(asked, first, prompt, Samples(samples, draw), limit=problems, seed=seed)),
        Stage("orm", orm),
        Stage("verdicts", Harvest(("stage:sample",), "verdicts")),
        Stage("rationales", Harvest(("stage:sample",), "rationales")),
        Stage("genrm", verifier_job("verdicts")),
        Stage("genrm-cot", verifier_job("rationales")),
        Stage("by-orm", best("reward:stage:orm")),
        Stage("by-genrm", best("genrm:stage:genrm")),
        Stage("by-genrm-cot", best(f"genrm+{rationales}:stage:genrm-cot")),
    ]
    return Stages(tuple(stages))


def _adam(lr: float, steps: int) -> AdamW:
    return AdamW(lr=lr, warmup_steps=20, decay_steps=steps)
