"""Stops a run whose rewards have been equal since its first step: then every advantage is 0."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ponder.errors import TaskError
from ponder.pipelines.training.sample_metrics import group_rewards
from ponder.pipelines.training.session import TrainingSession
from ponder.train.credit import are_equal
from ponder.train.objective import ObjectiveState
from ponder.types import Trace

# In the objective's state: the number of rewards so far, and whether any differed
NUM_REWARDS_KEY, HAS_SPREAD_KEY = "flat/answers", "flat/live"
MIN_REWARD_KEY, MAX_REWARD_KEY = "flat/lowest", "flat/highest"


def update_flat_rewards(
    memory: ObjectiveState, step: int, traces: Sequence[Trace], scorer: str, compare_across_problems: bool
) -> None:
    """Add a step's rewards. `compare_across_problems`: answers to different problems are compared too, not only those
    of a group. A run without these keys after its first step counts as having had a signal."""
    if memory.get(HAS_SPREAD_KEY) or (step and NUM_REWARDS_KEY not in memory):
        memory[HAS_SPREAD_KEY] = 1.0
        return
    groups = [group_rewards(t, scorer) for t in traces]
    every = [r for group in groups for r in group]
    memory[NUM_REWARDS_KEY] = memory.get(NUM_REWARDS_KEY, 0.0) + len(every)
    if every:
        memory[MIN_REWARD_KEY] = min([*every, memory.get(MIN_REWARD_KEY, every[0])])
        memory[MAX_REWARD_KEY] = max([*every, memory.get(MAX_REWARD_KEY, every[0])])
    differ = (
        not are_equal([memory[key] for key in (MIN_REWARD_KEY, MAX_REWARD_KEY) if key in memory])
        if compare_across_problems
        else not all(map(are_equal, groups))
    )
    memory[HAS_SPREAD_KEY] = float(differ)


def stop_if_flat(session: TrainingSession, patience: int) -> None:
    """Warn after two steps, and stop after every `patience` steps without a signal; the run can be resumed."""
    why, done, total = describe_flat_rewards(session.state.objective_state), session.state.step, session.job.steps
    if why and done == min(2, total):
        warnings.warn(f"after step {done} {why}", stacklevel=2)
    if why and patience and done % patience == 0:
        session.save(None)
        left = min(patience, total - done)
        on = f"tries {left} more steps" if left else "goes on with the model as it is"
        raise TaskError(f"stopped after {done} of {total} steps: {why}. All is kept, and the same command {on}")


def describe_flat_rewards(memory: ObjectiveState) -> str:
    """What is wrong with the rewards and what to do; empty if some differed, or there are none."""
    if memory.get(HAS_SPREAD_KEY) or not memory.get(NUM_REWARDS_KEY):
        return ""
    low, high, count = memory[MIN_REWARD_KEY], memory[MAX_REWARD_KEY], int(memory[NUM_REWARDS_KEY])
    summary = f"all {count} rewards are {high:g}"
    if not are_equal((low, high)):
        summary = f"{count} rewards lie from {low:g} to {high:g}, but never differ for one problem"
        cure = (
            "problems that are neither hopeless nor sure, more samples of each (--group-size), or a higher temperature"
        )
    elif high <= 0:
        cure = (
            "an easier task, a better start (fine-tune first), more samples (--group-size), or a reward that pays for "
            "parts too"
        )
    else:
        cure = "a harder task, or a reward that still tells answers apart"
    return f"{summary}, so nothing is learned from them: what helps is {cure}"
