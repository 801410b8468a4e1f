"""Episodes of an evaluation: turns, tool calls and failed ones, from traces alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.reason.tools.tool_counts import episode_counts
from ponder.types import Trace


@dataclass(frozen=True)
class EpisodeSummary:
    num_episodes: int
    mean_turns: float  # of the policy
    max_turns: int
    tool_calls: int  # with those that were malformed
    failed_calls: int
    extra_prompts: int  # where the chat template rewrites what was said before

    def turn_line(self) -> str:
        more = f"; {self.extra_prompts:,} further prompts (the template rewrites history)" if self.extra_prompts else ""
        return f"{self.mean_turns:.1f} per episode, at most {self.max_turns}{more}"

    def tool_line(self) -> str:
        if not self.tool_calls:
            return ""
        calls = self.tool_calls
        return f"{calls / self.num_episodes:.2f} per episode, {self.failed_calls:,} of {calls:,} failed"


def episode_summary(traces: Sequence[Trace]) -> EpisodeSummary | None:
    """None where there is no episode."""
    counts = [episode_counts(t, i) for t in traces for i in t.answers()]
    if not counts:
        return None
    turns = [c.turns for c in counts]
    return EpisodeSummary(
        num_episodes=len(counts),
        mean_turns=sum(turns) / len(turns),
        max_turns=max(turns),
        tool_calls=sum(c.tool_calls for c in counts),
        failed_calls=sum(c.failed_calls for c in counts),
        extra_prompts=sum(c.extra_prompts for c in counts),
    )
