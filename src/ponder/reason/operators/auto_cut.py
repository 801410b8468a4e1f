"""Structure: choose the cut that fits how a model writes: blank lines, lines, or sentences.

Before the search starts, the policy answers the problem once, greedily. `AutoCut` takes the coarsest cut that splits
this text into enough steps. The probe stays in the trace as a meta step that names the cut, so a resumed search keeps
it; its cost is part of the trace's cost.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ponder.errors import UsageError
from ponder.protocols import Policy
from ponder.reason.inner_strategies import inner_strategies
from ponder.reason.operators.cut import CUTS, Cut, TokenCut
from ponder.reason.operators.generate import add_completion, call_policy
from ponder.types import Sampling, Step, Trace

CUT_PROBE_PREFIX = "written to see where steps end: "  # and the name of the cut
CUTS_COARSE_TO_FINE = ("paragraph", "line", "sentence")
FALLBACK_CUT = "line"  # if the text is a single step by all of them
NO_STEPS_WARNING = (
    "a search cut no step, so it chose among whole answers as best-of-n does: give a finer cut (--strategy.cut "
    "sentence, or tokens:32), if the answers have steps at all"
)


@dataclass(frozen=True, slots=True)
class AutoCut:
    """The coarsest of blank lines, lines and sentences that splits the probe into `min_steps` steps; if none does, the
    one with the most steps."""

    min_steps: int = 3
    max_probe_tokens: int = 512  # length limit of the probe

    def __post_init__(self) -> None:
        if self.min_steps < 2 or self.max_probe_tokens < 1:
            raise UsageError("give min_steps of 2 or more, and max_probe_tokens of 1 or more")

    def choose(self, text: str) -> str:
        """The name of the cut for a model that writes like this text."""
        counts = {name: len(split_into_steps(text, CUTS[name])) for name in CUTS_COARSE_TO_FINE}
        most = max(counts.values())
        if most < 2:
            return FALLBACK_CUT
        return next(name for name, count in counts.items() if count >= min(self.min_steps, most))


AUTO_CUT = AutoCut()
CutOrAuto = Cut | TokenCut | AutoCut


def split_into_steps(text: str, cut: Cut) -> list[str]:
    """Split a text at the stop strings of a cut; blank steps are dropped."""
    out, begin, at = list[str](), 0, 0
    while stops := [(place, len(s)) for s in cut.stop if (place := text.find(s, at)) >= 0]:
        place, size = min(stops)
        at = place + size
        if cut.is_complete(text[begin:at]):
            out.append(text[begin:at])
            begin = at
    return [piece for piece in (*out, text[begin:]) if any(map(str.isalnum, piece))]


async def resolve_cut(cut: CutOrAuto, trace: Trace, root: int, policy: Policy, sampling: Sampling) -> Cut:
    """The cut itself; for `TokenCut`, one at the policy's token; for `AutoCut`, the one chosen for this trace before,
    or chosen now by a probe."""
    if isinstance(cut, Cut):
        return cut
    if trace.episodes is not None:  # a step is a turn
        return CUTS[FALLBACK_CUT]
    if isinstance(cut, TokenCut):
        return cut.resolve(policy)
    if (name := chosen_cut(trace, root)) is None:
        most = min(sampling.max_tokens, cut.max_probe_tokens)
        greedy = replace(
            sampling, temperature=0.0, max_tokens=most, min_tokens=min(sampling.min_tokens, most), logprobs=0,
            token_stats=(),
        )  # fmt: skip
        completion = (await call_policy(policy, trace.token_ids(root), greedy))[0]
        name = cut.choose(completion.text)
        prompt = trace.steps[root]
        again = trace.add(Step(None, prompt.text, prompt.token_ids, cites=(root,)))  # not a branch of the search
        trace.steps[add_completion(trace, again, completion, meta=True)].pruned = CUT_PROBE_PREFIX + name
    return CUTS[name]


def chosen_cut(trace: Trace, root: int = 0) -> str | None:
    """The name of the cut chosen for a search from this prompt; None if there is none yet."""
    for step in trace.steps:
        if is_cut_probe(step) and step.parent is not None and trace.steps[step.parent].cites == (root,):
            return step.pruned.removeprefix(CUT_PROBE_PREFIX)
    return None


def is_cut_probe(step: Step) -> bool:
    """Is this step the probe that chose a cut?"""
    return step.pruned.startswith(CUT_PROBE_PREFIX)


def uses_cut(strategy: Any) -> bool:
    """Does a strategy, or one inside it, use a cut?"""
    own = getattr(strategy, "cut", None) is not None and getattr(strategy, "generation", "sample") == "sample"
    return own or any(map(uses_cut, inner_strategies(strategy).values()))


def count_without_steps(traces: Sequence[Trace]) -> int:
    """How many searches have answers and no cut step; searches that exhausted their budget do not count."""
    return sum(bool(t.answers()) and not t.budget_exhausted and not any(map(_ends_at_a_cut, t.steps)) for t in traces)


def warn_if_no_steps(trace: Trace) -> None:
    """Warn once per process, as Python's warnings do by default."""
    if count_without_steps([trace]):
        warnings.warn(NO_STEPS_WARNING, stacklevel=2)


def _ends_at_a_cut(step: Step) -> bool:
    return step.sampled and step.stop == "stop" and not step.last and not step.meta
