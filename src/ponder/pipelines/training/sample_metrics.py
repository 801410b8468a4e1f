"""Metrics of the samples of a step, under TRL's names. Undecided scores are counted, not averaged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ponder.measure.diagnostics.reflection import find_reflections
from ponder.reason.tools.tool_counts import episode_counts
from ponder.train.credit import are_equal, reward_std
from ponder.types import TURN_REWARD, Trace


def group_rewards(trace: Trace, scorer: str) -> list[float]:
    """The rewards of the scored answers of a trace."""
    return [r for i in trace.answers() if (r := trace.score(i, scorer)) is not None]


def has_reward_spread(trace: Trace, scorer: str) -> bool:
    """Do the rewards of the group differ, by more than rounding? If not, it has no gradient."""
    return not are_equal(group_rewards(trace, scorer))


def sample_metrics(traces: Sequence[Trace], scorer: str, episodes: bool = False) -> dict[str, float]:
    """`episodes`: they are played in turns with an environment."""
    groups = [group_rewards(t, scorer) for t in traces]
    every = [r for g in groups for r in g]
    spreads = [reward_std(g, bessel=True) for g in groups if len(g) > 1]  # as TRL, with Bessel's correction
    steps = [t.steps[i] for t in traces for i in t.answers()]
    lengths = [
        sum(len(t.steps[j].token_ids) for j in t.conversation(i)[1:] if not t.steps[j].turn)
        for t in traces
        for i in t.answers()
    ]
    ended = [n for n, s in zip(lengths, steps, strict=True) if s.stop == "eos"]
    reflects = [bool(find_reflections(t.text(i))) for t in traces for i in t.answers()]
    parts: dict[str, list[float]] = {}  # the terms of a reward that is a sum
    for step in steps:
        for name, score in step.scores.items():
            if name not in (scorer, TURN_REWARD) and score.value is not None:
                parts.setdefault(name, []).append(score.value)
    level = [max(g) for g in groups if g and are_equal(g)]  # the rewards of groups without a gradient
    return {
        "reward": float(np.mean(every)) if every else float("nan"),
        "reward_std": float(np.mean(spreads)) if spreads else 0.0,
        "frac_reward_zero_std": float(np.mean([are_equal(g) for g in groups])) if groups else 0.0,
        "frac_groups_solved": sum(r >= 1 for r in level) / max(1, len(groups)),
        "frac_groups_failed": sum(r <= 0 for r in level) / max(1, len(groups)),
        "frac_undecided": 1 - len(every) / max(1, len(steps)),
        "completions/mean_length": float(np.mean(lengths)) if lengths else 0.0,
        "completions/min_length": float(min(lengths, default=0)),
        "completions/max_length": float(max(lengths, default=0)),
        "completions/clipped_ratio": float(np.mean([s.stop == "length" for s in steps])) if steps else 0.0,
        "completions/mean_terminated_length": float(np.mean(ended)) if ended else 0.0,
        "completions/frac_reflecting": float(np.mean(reflects)) if reflects else 0.0,
        **{f"rewards/{name}/mean": float(np.mean(values)) for name, values in parts.items()},
        **(episode_metrics(traces) if episodes else {}),
        "num_tokens": float(sum(t.cost.prompt_tokens + t.cost.generated_tokens for t in traces)),
    }


def episode_metrics(traces: Sequence[Trace]) -> dict[str, float]:
    """Of episodes with an environment: turns (verl's names), and tool calls (TRL's)."""
    counts = [episode_counts(t, i) for t in traces for i in t.answers()]
    if not counts:
        return {}
    turns, calls = [c.turns for c in counts], sum(c.tool_calls for c in counts)
    return {
        "num_turns/mean": float(np.mean(turns)),
        "num_turns/max": float(max(turns)),
        "tools/call_frequency": calls / len(counts),
        "tools/failure_frequency": sum(c.failed_calls for c in counts) / max(1, calls),
        "episodes/extra_prompts": sum(c.extra_prompts for c in counts) / len(counts),
    }
