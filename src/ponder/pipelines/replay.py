"""Replay: grade stored attempts with another scorer, decide by another rule, and report what would change.

No model runs. The same traces show what another reward, or a smaller group, would have meant for training.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import comb
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ponder import event_loop, registry, verify
from ponder.errors import UnknownName, UsageError
from ponder.measure.readers import Attempts, ColumnMap, attempts_to_traces, read_logs
from ponder.measure.readers.attempts_to_traces import is_tree_of_thoughts_search, read_tree_of_thoughts_traces
from ponder.measure.readers.run_directory import answer_steps, is_run, read_run, run_task, run_traces, task_verifier
from ponder.measure.statistics.compare_systems import PairwiseResult, compare_pair
from ponder.measure.statistics.decision_rules import DecisionRule, accuracy_of_values, apply_rule
from ponder.measure.statistics.intervals import Accuracy, MeanInterval
from ponder.protocols import Scorer
from ponder.tasks.reward_functions import FunctionReward
from ponder.train.credit import group_relative, leave_one_out, unify_equal
from ponder.types import Cost, Score, Trace

NEW_SCORER = "new"  # the name of the new scores among those of an attempt
JUDGE_BATCH = 64  # traces graded together
NUM_RANDOM_SUBSETS = 200  # random groups of a smaller size, per problem
MAX_EXAMPLES = 3

Advantage = Literal["grpo", "dr-grpo", "rloo"]
ADVANTAGES: dict[Advantage, Callable[[Sequence[float]], NDArray[np.float64]]] = {
    "grpo": group_relative,
    "dr-grpo": lambda rewards: group_relative(rewards, divide_by_std=False),
    "rloo": leave_one_out,
}
# Verifiers by a short name; a task's own verifier goes by the name of the task.
VERIFIERS: dict[str, Callable[[], Scorer]] = {
    "choice": verify.MultipleChoice,
    "math": verify.MathAnswer,
    "number": verify.FinalNumber,
    "text": verify.FinalText,
}


@dataclass(frozen=True)
class StoredAttempts:
    """Attempts with their stored verdicts, and their traces if there are texts."""

    attempts: Attempts
    traces: tuple[Trace, ...]
    task: Any = None
    trees: tuple[Trace, ...] = ()  # where the log has whole searches beside their answers

    @classmethod
    def read(cls, source: str, columns: ColumnMap = ColumnMap()) -> StoredAttempts:
        path = Path(source)
        if path.is_dir() and is_run(path):
            return cls(read_run(path, columns), tuple(t for _, t in run_traces(path)), run_task(path))
        systems = read_logs([source], columns, texts=True)
        if len(systems) > 1:
            listed = ", ".join(s.name.rpartition(": ")[2] for s in systems)
            raise UsageError(f"{source} holds several systems ({listed}): replay one of them, as {source}::NAME")
        texts = all(g.texts is not None for g in systems[0].groups if g.size)
        flat = tuple(attempts_to_traces(systems[0])) if texts else ()  # another rule needs no texts
        trees = tuple(read_tree_of_thoughts_traces(path)) if is_tree_of_thoughts_search(path) else ()
        for tree, group in zip(trees, systems[0].groups, strict=True) if trees else ():
            tree.add_cost(group.cost or Cost())
        return cls(systems[0], flat, trees=trees)

    @property
    def searched(self) -> tuple[Trace, ...]:
        """What a strategy is replayed on: the stored trees, or the answers as flat ones."""
        return self.trees or self.traces


@dataclass(frozen=True)
class VerdictChanges:
    """How often the verdict on an attempt changed, with a few examples."""

    same: int = 0
    to_right: int = 0
    to_wrong: int = 0
    undecided: int = 0  # now, whatever the verdict was
    other: int = 0  # partial scores that changed, and attempts that were undecided before
    reasons: dict[str, int] = field(default_factory=dict)  # why some are undecided
    examples: tuple[tuple[str, str, float | None, float | None, str], ...] = ()  # problem, text, before, after, reason


@dataclass(frozen=True)
class GroupStatistics:
    """Groups of one size under one reward. Shares are expectations over all subsets of that size of what was stored."""

    size: int
    problems: int
    dead_share: float  # equal rewards: no gradient
    failed_share: float  # dead, at a reward of 0 or less
    solved_share: float  # dead, at 1 or more
    mean_advantage: float  # mean size of an attempt's advantage, over random subsets


@dataclass(frozen=True)
class ReplayReport:
    source: str
    score: str  # the new scorer; empty: none
    method: DecisionRule
    by: str  # the scorer behind `best` and `weighted`
    truth: str  # whose verdicts count in the accuracies
    before: Accuracy | MeanInterval
    after: Accuracy | MeanInterval
    pair: PairwiseResult
    change: VerdictChanges
    groups: tuple[tuple[GroupStatistics, GroupStatistics | None], ...]  # under the stored reward and the new one
    agreement: float | None  # correlation of the two rewards' advantages, attempt by attempt
    notes: tuple[str, ...] = ()


def find_scorer(name: str, stored: StoredAttempts, task: Callable[[str], Any]) -> tuple[Scorer, bool]:
    """A scorer by name, and whether it is a verifier, which says what is right, or only a reward.

    `task` builds a task from its name. `accuracy=1,format=0.2` is a weighted sum; the run's verifier goes by its own
    name.
    """
    from ponder.tasks import TASKS

    if "=" in name:
        return _weighted_scorer(name, stored), False
    if name in VERIFIERS:
        return VERIFIERS[name](), True
    if name in verify.REWARDS:
        return verify.REWARDS[name](), False
    if name.partition(":")[0] in TASKS:
        return in_stored_style(task(name), stored.traces).verifier, True
    if ":" not in name:
        raise UnknownName(
            "scorer", name, [*VERIFIERS, *verify.REWARDS, *TASKS], "Or give 'module:name' or 'file.py:name'."
        )
    imported = registry.import_object(name)
    scorer = imported() if isinstance(imported, type) else imported
    if hasattr(scorer, "verifier"):
        return in_stored_style(scorer, stored.traces).verifier, True
    if not isinstance(scorer, Scorer):
        raise UsageError(f"{name} is a {type(scorer).__name__}, neither a scorer (name, async call) nor a task")
    return scorer, False


def in_stored_style(task: Any, traces: Sequence[Trace]) -> Any:
    """The task in the prompt style of these traces, if they name one and the task has styles."""
    styles = {trace.problem.style for trace in traces if trace.problem.style}
    alone = len(styles) == 1 and getattr(task, "style", "") is None
    return task.restyle(styles.pop()) if alone else task


def _weighted_scorer(name: str, stored: StoredAttempts) -> Scorer:
    verifier = task_verifier(stored.task) or verify.MathAnswer()
    return verify.weighted_reward(dict(verify.parse_rewards(name)), verifier, FunctionReward)


def replay(
    stored: StoredAttempts,
    scorer: Scorer | None = None,
    name: str = "",
    method: DecisionRule = "mean",
    by: str | None = None,
    truth: Literal["stored", "new"] = "stored",
    sizes: Sequence[int] = (),
    advantage: Advantage = "grpo",
) -> ReplayReport:
    """What the rule decides on stored attempts, before and after they are graded again."""
    old = stored.attempts
    new, scores = (old, None) if scorer is None else _rescore(stored, scorer, truth == "new")
    by = by or (NEW_SCORER if scorer is not None and method in ("best", "weighted") else None)
    before = apply_rule(old, "mean" if by == NEW_SCORER else method, None if by == NEW_SCORER else by)
    after = apply_rule(new, method, by)
    pair = compare_pair((f"{method} now", after), ("mean" if by == NEW_SCORER else method, before))
    verdicts = [g.correct for g in old.groups]
    rewards = verdicts if scores is None else [tuple(s.value for s in group) for group in scores]
    groups = _compare_groups(verdicts, None if scores is None else rewards, sizes, advantage)
    notes = list(old.reading_notes)
    if by == NEW_SCORER:
        notes.append("before: one attempt at random, since the stored attempts have no scores of this scorer")
        notes.append("a score that reads the gold answer makes this a bound on what a choice can reach, not a method")
    return ReplayReport(
        source=old.name,
        score=name,
        method=method,
        by=name if by == NEW_SCORER else by or "",
        truth=name if truth == "new" and scorer else "stored verdicts",
        before=accuracy_of_values(before),
        after=accuracy_of_values(after),
        pair=pair,
        change=VerdictChanges() if scores is None else _verdict_changes(stored, scores),
        groups=groups,
        agreement=None if scores is None else _advantage_correlation(verdicts, rewards, advantage),
        notes=tuple(notes),
    )


def rescore(stored: StoredAttempts, verifier: Scorer) -> StoredAttempts:
    """The same attempts with the verdicts and answers of another verifier."""
    return replace(stored, attempts=_rescore(stored, verifier, truth=True)[0])


def _rescore(stored: StoredAttempts, scorer: Scorer, truth: bool) -> tuple[Attempts, list[list[Score]]]:
    scores = event_loop.run(_score_traces(stored.traces or attempts_to_traces(stored.attempts), scorer))
    if not any(s.value is not None for group in scores for s in group):
        why = verify.count_verdicts([s for group in scores for s in group]).reasons
        raise UsageError(
            f"no stored attempt could be judged by this scorer: {'; '.join(list(why)[:2]) or 'none is there'}"
        )
    read = getattr(scorer, "extract_answer", None)
    groups = []
    for g, group in zip(stored.attempts.groups, scores, strict=True):
        values = tuple(s.value for s in group)
        answers = tuple(read(t) for t in g.texts) if read is not None and g.texts is not None else g.answers
        named = {**g.scores, NEW_SCORER: values}
        groups.append(replace(g, correct=values if truth else g.correct, answers=answers, scores=named))
    return replace(stored.attempts, groups=tuple(groups)), scores


async def _score_traces(traces: Sequence[Trace], scorer: Scorer) -> list[list[Score]]:
    out: list[list[Score]] = []
    for first in range(0, len(traces), JUDGE_BATCH):
        some = traces[first : first + JUDGE_BATCH]
        out += await asyncio.gather(*(scorer(t, answer_steps(t)) for t in some))
    return out


def _verdict_changes(stored: StoredAttempts, scores: Sequence[Sequence[Score]]) -> VerdictChanges:
    same = right = wrong = other = 0
    examples: list[tuple[str, str, float | None, float | None, str]] = []
    for g, group in zip(stored.attempts.groups, scores, strict=True):
        for i, (was, now) in enumerate(zip(g.correct, group, strict=True)):
            if now.value is None or was == now.value:
                same += was == now.value and now.value is not None
                continue
            right += (was, now.value) == (0.0, 1.0)
            wrong += (was, now.value) == (1.0, 0.0)
            other += (was, now.value) not in ((0.0, 1.0), (1.0, 0.0))
            if len(examples) < MAX_EXAMPLES:
                examples.append((g.problem, (g.texts or ("",) * g.size)[i], was, now.value, now.reason))
    counts = verify.count_verdicts([s for group in scores for s in group])
    return VerdictChanges(same, right, wrong, counts.undecided, other, dict(counts.reasons), tuple(examples))


# Groups: the rewards that training would have seen


def _compare_groups(
    old: Sequence[Sequence[float | None]],
    new: Sequence[Sequence[float | None]] | None,
    sizes: Sequence[int],
    advantage: Advantage,
) -> tuple[tuple[GroupStatistics, GroupStatistics | None], ...]:
    most = max((len(_decided_rewards(g)) for g in old), default=0)
    if most < 2:
        return ()
    group_sizes = sizes or [k for k in (2, 4, 8, 16, 32, 64) if k < most] + [most]
    if too := [k for k in group_sizes if not 2 <= k <= most]:
        raise UsageError(f"a group of {too[0]} cannot be drawn: the stored ones have up to {most}; take 2 to {most}")
    return tuple(
        (group_statistics(old, k, advantage), None if new is None else group_statistics(new, k, advantage))
        for k in group_sizes
    )


def group_statistics(
    rewards: Sequence[Sequence[float | None]], size: int, advantage: Advantage = "grpo", seed: int = 0
) -> GroupStatistics:
    """Statistics of groups of this size, drawn from stored ones. Undecided rewards do not count, and a problem with
    fewer than `size` others is left out."""
    known = [k for g in rewards if len(k := _decided_rewards(g)) >= size]
    if not known:
        nothing = float("nan")
        return GroupStatistics(size, 0, nothing, nothing, nothing, nothing)
    dead, failed, solved = np.mean([equal_reward_share(g, size) for g in known], axis=0)
    return GroupStatistics(
        size, len(known), float(dead), float(failed), float(solved), _mean_advantage(known, size, advantage, seed)
    )


def equal_reward_share(rewards: Sequence[float], size: int) -> tuple[float, float, float]:
    """The share of subsets of this size with equal rewards: any, 0 or less, 1 or more. Exact: C(n_v, k) / C(n, k)."""
    total = comb(len(rewards), size)
    by_value = {v: comb(n, size) / total for v, n in Counter(unify_equal(rewards)).items()}
    low, high = sum(s for v, s in by_value.items() if v <= 0), sum(s for v, s in by_value.items() if v >= 1)
    return sum(by_value.values()), low, high


def _mean_advantage(groups: Sequence[Sequence[float]], size: int, advantage: Advantage, seed: int) -> float:
    rng, rule = np.random.default_rng(seed), ADVANTAGES[advantage]
    means = []
    for g in groups:
        r = np.asarray(g)
        whole = len(r) == size
        drawn = [r] if whole else [r[rng.permutation(len(r))[:size]] for _ in range(NUM_RANDOM_SUBSETS)]
        means.append(np.mean([np.abs(rule(d.tolist())).mean() for d in drawn]))
    return float(np.mean(means))


def _advantage_correlation(
    old: Sequence[Sequence[float | None]], new: Sequence[Sequence[float | None]], advantage: Advantage
) -> float | None:
    """The correlation of advantages; None if either reward gives none."""
    rule, pairs = ADVANTAGES[advantage], list[tuple[float, float]]()
    for a, b in zip(old, new, strict=True):
        both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
        if len(both) > 1:
            xs, ys = zip(*both, strict=True)
            pairs += zip(rule(xs).tolist(), rule(ys).tolist(), strict=True)
    if not pairs:
        return None
    x_A, y_A = np.array(pairs).T
    return None if x_A.std() == 0 or y_A.std() == 0 else float(np.corrcoef(x_A, y_A)[0, 1])


def _decided_rewards(rewards: Sequence[float | None]) -> list[float]:
    return [r for r in rewards if r is not None]
