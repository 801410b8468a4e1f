"""Quiet-STaR at a small scale: a model learns to think before the next tokens of a text, from the text alone.

The base model has read sums of last digits, half of them worked out (`3*7+5:16;=6`), half plain (`3*7+5=6`). It then
reads plain ones only, and before each answer it samples two thoughts between marks that begin as copies of `:` and `;`.
A head mixes what it predicts with the thought and without; a thought that predicted the answer better than the other is
made likelier (Zelikman et al. 2024, arXiv:2403.09629; here once before an answer and not after every token).

quiet           thoughts, learned by REINFORCE
untaught        thoughts, which only the text's likelihood reaches (beta 0)
without         the same texts, no thoughts; `without-longer` reads `more` times as many of them
unread          as quiet, with marks that mean nothing yet: can it find working by itself?

Measured with seeds 0, 1 and 2 (some six minutes each on one busy Neoverse-N1 class core), on 500 held-out plain
problems: answers of which every token is the likeliest, and nats a token, with one sampled thought where there are any.

    seed            0                  1                  2                  nats, by seed
    quiet           92.6 % [90, 95]    32.6 % [28, 37]    98.4 % [97, 99]    0.13, 0.50, 0.04
    untaught        62.4 % [58, 67]    23.8 % [20, 28]    77.8 % [74, 81]    0.39, 0.53, 0.29
    without         17.8 % [15, 21]    20.8 % [17, 24]    20.4 % [17, 24]    0.53, 0.54, 0.58
    without-longer  23.0 % [19, 27]    23.2 % [20, 27]    20.0 % [17, 24]    0.52, 0.52, 0.53
    unread          17.4 % [14, 21]    21.6 % [18, 25]    21.8 % [18, 25]    0.54, 0.54, 0.57

Thoughts help as far as the base can work things out: of its samples, 93 %, 28 % and 99 % of the workings were right
before (seed 1 broke off too early). REINFORCE keeps them right, and makes them little better; without it they are
forgotten. From marks that mean nothing, thinking is not found in so short a time.

With `--model` and `--task` a language model reads the gold answers of that task: their first `--lookahead-tokens`. Its
marks begin as copies of `---`, as in the paper, and must each be one token that the answers do not use. A model that
works things out already has thoughts to begin with: give `--model` a run of `cold_start` or `grpo`. Results on
SmolLM2: docs/book/quiet-star.md, and what was seen beside its numbers docs/quiet_thoughts.md.
"""

from typing import Annotated, Any

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    ModelName,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)
from _last_digits import TEMPLATE, LastDigits

from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.quiet_star import QuietStar
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.settings import When
from ponder.tasks.mixture import TaskMixture
from ponder.train.optimizer import AdamW


def recipe(
    model: ModelName = "tiny", task: TaskName = None,
    task_settings: Annotated[TaskSettings, When("model", other_than=("tiny",))] = NO_SETTINGS,
    template: Annotated[Template, When("model", other_than=("tiny",))] = None, limit: Limit = 500,
    operations: Annotated[Count, "of the tiny model's problems", When("model", "tiny")] = 3,
    base_steps: Annotated[Count, "of the tiny model's reading", When("model", "tiny")] = 1000,
    max_thought_tokens: Annotated[Count, "of a language model's thought", When("model", other_than=("tiny",))] = 12,
    lookahead_tokens: Annotated[
        Count, "of a language model's answer that a thought should help to predict", When("model", other_than=("tiny",))
    ] = 16,
    thought_tokens: Annotated[
        str, "a language model's marks, with a comma between", When("model", other_than=("tiny",))
    ] = "[,]",
    thought_tokens_like: Annotated[
        str, "tokens that these begin as copies of", When("model", other_than=("tiny",))
    ] = "---,---",
    steps: Count = 200, thoughts: Count = 2, batch: Count = 32, lr: Lr = None,
    more: Annotated[int, "times as many texts for the longest run without thoughts"] = 4, seed: int = 0,
) -> Stages:  # fmt: skip
    stages: list[Stage] = []
    if model == "tiny" and task is None:
        plain, worked = LastDigits(operations, test_size=500), LastDigits(operations, "worked")
        base = FineTune(
            TaskMixture((worked, plain)), ScratchModel("0123456789+*=:;[]", width=64, layers=2, context=48, seed=seed),
            TEMPLATE, optimizer=AdamW(lr=3e-3, warmup_steps=50, decay_steps=base_steps), steps=base_steps,
            batch_size=64, save_every=base_steps, seed=seed,
        )  # fmt: skip
        stages.append(Stage("base", base))
        lr, copied = lr or 5e-4, (":", ";")
        read: dict[str, Any] = {"data": plain, "model": "stage:base", "max_thought_tokens": operations}
    else:
        b = find_base(model, task, task_settings, template, None, limit)
        b.require_gold("Quiet-STaR reads given answers")
        lr, copied = lr or b.sft.lr, _two_tokens("thought-tokens-like", thought_tokens_like)
        read = {"data": b.task, "model": b.model, "max_thought_tokens": max_thought_tokens, "template": b.template}
        read["thought_tokens"] = _two_tokens("thought-tokens", thought_tokens)
        read["lookahead_tokens"] = lookahead_tokens

    def job(steps: int, thoughts: int, beta: float = 1.0, like: tuple[str, str] | None = copied) -> QuietStar:
        return QuietStar(
            thought_tokens_like=like, num_thoughts=thoughts, at_every_token=False, beta=beta, steps=steps,
            batch_size=batch, optimizer=AdamW(lr=lr, warmup_steps=20, decay_steps=steps), save_every=steps,
            eval_limit=limit, seed=seed, **read,
        )  # fmt: skip

    stages += [
        Stage("quiet", job(steps, thoughts)),
        Stage("untaught", job(steps, thoughts, beta=0.0)),
        Stage("without", job(steps, 0)),
        Stage("without-longer", job(steps * more, 0)),
        Stage("unread", job(steps, thoughts, like=None)),
    ]
    return Stages(tuple(stages))


def _two_tokens(flag: str, text: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise UsageError(f"--{flag} {text} must be two tokens with a comma between, such as [,]")
    return first, second
