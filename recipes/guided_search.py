"""Searches over steps against votes and best of N: beam search, REBASE and MCTS, led by the same judges.

The judges are the model's own likelihood, and an implicit reward model that learned from the verdicts on the model's
answers, read by the probability of its steps. The tiny model adds six numbers below 20, one line for each: one wrong
line spoils an answer, so whole answers are seldom right, and a search that sees a line can drop it. `ponder book
search` runs this with three seeds, sets each search beside votes and best of N of as many sampled tokens, and parts the
problems by difficulty. Results: docs/book/search.md.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
    MaxTokens,
    ModelName,
    RecipeBase,
    Start,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    Validation,
    find_base,
)

from ponder.models.scratch_model import ScratchModel
from ponder.nets.decoder_with_head import LogprobReading
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Strategy
from ponder.reason.operators.cut import CUTS
from ponder.reason.operators.evaluate import Reduction
from ponder.reason.strategies import MCTS, BeamSearch, Rebase, Samples
from ponder.settings import When
from ponder.tasks import Sums
from ponder.train.reward_objectives import ImplicitReward

TERMS, LIMIT = 6, 20
CONTEXT = 160  # tokens: six numbers and their lines
MAX_TOKENS = 100
WEIGHT_STD = 0.08  # sqrt(2 / (5 width)), from which a narrow model learns to copy
WIDTHS = (4, 16)  # answers that a beam or REBASE grows side by side
SIMULATIONS = (8, 32)  # of MCTS, about as many tokens
OWN_JUDGE = When("judge", None)
Reading = Annotated[LogprobReading, "of the implicit reward model's steps"]


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 96,
    problems: Annotated[Count, OWN_JUDGE] = 512, samples: Annotated[Count, OWN_JUDGE] = 8,
    n: Annotated[int, "samples to vote and choose among; as many again tell how hard a problem is"] = 64,
    judge_steps: Annotated[Steps, OWN_JUDGE] = 100,
    beta: Annotated[float, OWN_JUDGE] = 0.2, reading: Reading = "logprob",
    reduce: Annotated[Reduction | Literal["whole"], "of the steps' scores; whole: that of the path"] = "product",
    widths: tuple[int, ...] = WIDTHS, simulations: tuple[int, ...] = SIMULATIONS,
    judge: Annotated[str | None, "a run with an implicit reward model; None: the recipe trains its own"] = None,
    tuned: Annotated[str | None, "a run fine-tuned on right answers, whose likelihood is one more judge"] = None,
    cut: Annotated[Literal["line", "sentence"] | None, "where a step ends; None: what suits the model"] = None,
    validation: Annotated[bool, "measure on problems kept out of training, to choose settings"] = False,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    if task is None and model == "tiny":
        b = longer_sums(b, max_tokens, keep_task=bool(task_settings))
    b = replace(b, cut=CUTS[cut]) if cut else b
    learning = replace(b, task=Validation(b.task)) if validation else b
    stages, first = learning.cold_start_stages(seed, start)
    if judge is None:
        outcomes = learning.collect(first, Samples(samples, b.sampling), problems, seed)
        model_job = b.train_reward_model("stage:outcomes", first, ImplicitReward(beta), seed, judge_steps)
        stages += [Stage("outcomes", outcomes), Stage("implicit", model_job)]
    every = learning.evaluate_with(Samples(2 * n, b.sampling), first, seed, max_concurrency=32)
    stages.append(Stage("samples", every))
    steps: Reduction | None = None if reduce == "whole" else reduce
    read = "+".join(("reward", reading, *([steps] if steps else [])))
    guides = {"likelihood": "likelihood", "implicit": f"{read}:{judge or 'stage:implicit'}"}
    guides |= {"tuned": f"likelihood:{tuned}"} if tuned else {}
    for guide, name in guides.items():
        for way, strategy in searches(b, widths, simulations, steps if guide == "implicit" else None).items():
            stages.append(
                Stage(f"{way}-{guide}", learning.evaluate_with(strategy, first, seed, guide=name, max_concurrency=64))
            )
    return Stages(tuple(stages))


def longer_sums(b: RecipeBase, max_tokens: int | None, keep_task: bool) -> RecipeBase:
    """The tiny base on longer sums, or on the user's own."""
    assert isinstance(b.model, ScratchModel) and isinstance(b.task, Sums)
    return replace(
        b, model=replace(b.model, context=CONTEXT, weight_std=WEIGHT_STD),
        task=b.task if keep_task else replace(b.task, terms=TERMS, limit=LIMIT),
        sampling=replace(b.sampling, max_tokens=max_tokens or MAX_TOKENS),
    )  # fmt: skip


def searches(
    b: RecipeBase, widths: tuple[int, ...], simulations: tuple[int, ...], reduce: Reduction | None
) -> dict[str, Strategy]:
    """The searches by name and size. What scores steps reduces them in the same way everywhere."""
    shared: dict[str, Any] = {"sampling": b.sampling, "cut": b.cut, "reduce": reduce}
    out: dict[str, Strategy] = {}
    for width in widths:
        out[f"beam-{width}"] = BeamSearch(n=width, beam_width=min(4, width), **shared)
        out[f"rebase-{width}"] = Rebase(n=width, **shared)
    for count in simulations:
        out[f"mcts-{count}"] = MCTS(simulations=count, width=4, sampling=b.sampling, cut=b.cut, parallel_simulations=4)
    return out
