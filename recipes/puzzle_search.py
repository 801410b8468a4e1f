"""Searches over steps led by better judges: countdown, 4 x 4 sudokus or sums with the judges of `step_judges`, on the
tiny model or a language model.

In countdown checking a line is easier than solving, and judges that learned from labels of lines or of answers choose
far better than a vote. Beam search, DVTS, REBASE and MCTS are led by a process reward model, an implicit reward model,
and a perfect judge of steps, which no one has and which shows what a search can gain at most. `ponder book search
--task countdown` runs this with three seeds and sets each search beside votes and best of N of as many sampled tokens
and of as many FLOPs. Results: docs/book/search.md.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

import step_judges
from _bases import Count, Limit, ModelName, RecipeBase, Validation
from _checked_steps import ORACLES, PuzzleName, ReorderedTest, SteppedCountdown, puzzle_base

from ponder.nets.decoder_with_head import LogprobReading
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Strategy
from ponder.reason.operators.evaluate import Reduction
from ponder.reason.strategies import DVTS, MCTS, BeamSearch, Rebase, Samples
from ponder.reason.strategies.stepwise import AnswerChoice
from ponder.settings import When

WIDTHS = (4, 16)  # answers that a beam, DVTS or REBASE grows side by side
SIMULATIONS = (8, 32)  # of MCTS, about as many tokens
NEEDED = ("start", "outcomes", "steps", "prm", "implicit")  # of step_judges: the policy and what leads searches here
FinalChoice = Literal["visits", "value", "selection", "score"]


def recipe(
    model: ModelName = "tiny", puzzle: PuzzleName = "countdown",
    judges: Annotated[str | None, "a run of step_judges on this puzzle; None: its stages come first"] = None,
    limit: Limit = 108,
    orders: Annotated[Count, "of the numbers of each held-out problem, at most", When("puzzle", "countdown")] = 1,
    n: Annotated[Count, "samples to vote and choose among; as many again tell how hard a problem is"] = 32,
    widths: tuple[int, ...] = WIDTHS, simulations: tuple[int, ...] = SIMULATIONS,
    beam_width: Annotated[Count, "continuations of each step that a beam or DVTS keeps"] = 4,
    filter_duplicates: Annotated[bool, "of equal paths a beam keeps one"] = True,
    temperature: Annotated[float, "of REBASE's softmax"] = 0.2,
    prm_reduce: Annotated[Reduction, "of the process reward model's steps"] = "product",
    reading: Annotated[LogprobReading, "of the implicit reward model"] = "logprob",
    choose: Annotated[AnswerChoice, "how a step-wise search chooses among its answers"] = "weighted",
    final_choice: Annotated[FinalChoice, "how MCTS chooses its answer"] = "visits",
    validation: Annotated[bool, "measure on problems kept out of training, to choose settings"] = False,
    seed: int = 0,
) -> Stages:  # fmt: skip
    stages: list[Stage] = []
    if judges is None:
        stages += [
            stage for stage in step_judges.recipe(model, puzzle=puzzle, seed=seed).stages if stage.name in NEEDED
        ]
    first, prm, implicit = (f"{judges}/{name}" if judges else f"stage:{name}" for name in ("start", "prm", "implicit"))
    b, _ = puzzle_base(puzzle, limit, model=model)
    task = b.task
    if validation:
        task = Validation(task)
    elif isinstance(task, SteppedCountdown):
        task = ReorderedTest(task, orders)
    b = replace(b, task=task)
    stages.append(Stage("samples", b.evaluate_with(Samples(2 * n, b.sampling), first, seed, max_concurrency=32)))
    guides = {
        "prm": f"reward+{prm_reduce}:{prm}", "implicit": f"reward+{reading}:{implicit}",
        "oracle": f"oracle+_checked_steps:{ORACLES[puzzle].__name__}",
    }  # fmt: skip
    for guide, name in guides.items():
        shared: dict[str, Any] = {"reduce": prm_reduce if guide == "prm" else None, "choose": choose}
        tree = searches(b, widths, simulations, beam_width, filter_duplicates, temperature, shared, final_choice)
        for way, strategy in tree.items():
            job = b.evaluate_with(strategy, first, seed, guide=name, max_concurrency=64)
            stages.append(Stage(f"{way}-{guide}", job))
    return Stages(tuple(stages))


def searches(
    b: RecipeBase, widths: tuple[int, ...], simulations: tuple[int, ...], beam_width: int, filter_duplicates: bool,
    temperature: float, shared: dict[str, Any], final_choice: FinalChoice,
) -> dict[str, Strategy]:  # fmt: skip
    """The searches by name and size; `shared` are settings of those that are step-wise."""
    shared = {"sampling": b.sampling, "cut": b.cut, **shared}
    out: dict[str, Strategy] = {}
    for width in widths:
        kept = min(beam_width, width)
        out[f"beam-{width}"] = BeamSearch(n=width, beam_width=kept, filter_duplicates=filter_duplicates, **shared)
        if width > kept:  # of one subtree DVTS is that beam
            out[f"dvts-{width}"] = DVTS(n=width, beam_width=kept, **shared)
        out[f"rebase-{width}"] = Rebase(n=width, temperature=temperature, **shared)
    for count in simulations:
        out[f"mcts-{count}"] = MCTS(
            simulations=count, width=4, sampling=b.sampling, cut=b.cut, parallel_simulations=4,
            final_choice=final_choice,
        )  # fmt: skip
    return out
