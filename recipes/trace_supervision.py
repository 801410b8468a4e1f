"""Trace-based supervision: a model learns to write whole searches, operator by operator (Besta et al. 2025, x1).

MCTS searches for answers to training problems, guided by the gold answer at the ends of rollouts. Each search that came
to a right answer becomes one text (`ponder harvest --kind operators`): `[generate 1 -> 2 3]` with the new steps,
`[backtrack 3 -> 0]`, `[prune 2]`, `[answer 4]`, all as a thought, and after it that step. The fine-tuned model then
writes such a search by itself, without a guide. Beside it, the same model learns from the right chains of the same
searches: the difference is what the operators teach.

A result of one seed, on which it does harm, is in docs/results.md. 150 steps at 1e-3 were too few for the tiny model to
learn the notation.
"""

from dataclasses import replace

from _bases import (
    LIMIT,
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    Problems,
    Start,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.stages import Stage, Stages

OPERATOR_CHARACTERS = "[]-></abcdefghijklmnopqrstuvwxyz"  # what the names and arrows of operators are written in
TEXT_PER_ANSWER = 10  # a search is up to so many times as long as an answer


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    problems: Problems = None, simulations: Count = 4, width: Count = 2, steps: Steps = None, lr: Lr = None,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    longest = TEXT_PER_ANSWER * b.sampling.max_tokens
    if isinstance(b.model, ScratchModel):
        b = replace(b, model=replace(b.model, alphabet=b.model.alphabet + OPERATOR_CHARACTERS, context=2 * longest))
    stages, first = b.cold_start_stages(seed, start)
    notation = b.cold_start if isinstance(b.model, ScratchModel) else b.sft  # new to a model that has seen sums alone
    learn = replace(b, sft=notation)
    search = replace(b.mcts(simulations, rollouts=1), width=width)
    stages += [
        Stage("search", b.collect(first, search, problems or b.answer_budget // 16, seed, guide="oracle")),
        Stage("operators", Harvest(("stage:search",), "operators")),
        Stage("tune", learn.fine_tune("stage:operators/data.jsonl", first, seed, steps, lr, batch_size=32)),
        Stage(
            "accuracy",
            replace(b, sampling=replace(b.sampling, max_tokens=longest)).evaluate("stage:tune", seed),
        ),
        Stage("chains", Harvest(("stage:search",), "chains", tokenizer=first)),
        Stage("tune-chains", b.fine_tune("stage:chains/data.jsonl", first, seed, steps, lr, batch_size=32)),
        Stage("chains-accuracy", b.evaluate("stage:tune-chains", seed)),
    ]
    return Stages(tuple(stages))
