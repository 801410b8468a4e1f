"""Do a run's rewards teach it anything? Where they have been equal since its first step, every advantage is 0."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ponder.errors import TaskError
from ponder.pipelines.keeping import Keeper
from ponder.pipelines.summary import rewards
from ponder.train.objective import Memory
from ponder.types import Trace

SEEN, LIVE = "flat/answers", "flat/live"  # in a run's memory: rewards so far, and whether any differed
LOWEST, HIGHEST = "flat/lowest", "flat/highest"


def note(memory: Memory, step: int, traces: Sequence[Trace], scorer: str, alone: bool) -> None:
    """Count a step's rewards in. `alone`: an answer is compared with those to other problems too, not only with its
    group. A run from before this was kept is taken to have had a signal."""
    if memory.get(LIVE) or (step and SEEN not in memory):
        memory[LIVE] = 1.0
        return
    groups = [rewards(t, scorer) for t in traces]
    every = [r for group in groups for r in group]
    memory[SEEN] = memory.get(SEEN, 0.0) + len(every)
    if every:
        memory[LOWEST] = min([*every, memory.get(LOWEST, every[0])])
        memory[HIGHEST] = max([*every, memory.get(HIGHEST, every[0])])
    differ = memory.get(LOWEST) != memory.get(HIGHEST) if alone else any(len(set(group)) > 1 for group in groups)
    memory[LIVE] = float(differ)


def check(keeper: Keeper, patience: int) -> None:
    """Say so soon; and after so many steps stop, with all that was done kept. Whoever goes on is asked again."""
    why, done, total = lacking(keeper.state.memory), keeper.state.step, keeper.job.steps
    if why and done == min(2, total):
        warnings.warn(f"after step {done} {why}", stacklevel=2)
    if why and patience and done % patience == 0:
        keeper.save(None)
        left = min(patience, total - done)
        on = f"tries {left} more steps" if left else "goes on with the model as it is"
        raise TaskError(f"stopped after {done} of {total} steps: {why}. All is kept, and the same command {on}")


def lacking(memory: Memory) -> str:
    """What is wrong with the rewards, and what to do; empty where some differed, or none is known."""
    if memory.get(LIVE) or not memory.get(SEEN):
        return ""
    low, high, count = memory[LOWEST], memory[HIGHEST], int(memory[SEEN])
    said = f"all {count} rewards are {high:g}"
    if low < high:
        said = f"{count} rewards lie from {low:g} to {high:g}, but never differ for one problem"
        cure = "problems that are neither hopeless nor sure, more samples of each (--n), or a higher temperature"
    elif high <= 0:
        cure = (
            "an easier task, a better start (fine-tune first), more samples (--n), or a reward that pays for parts too"
        )
    else:
        cure = "a harder task, or a reward that still tells answers apart"
    return f"{said}, so nothing is learned from them: what helps is {cure}"
