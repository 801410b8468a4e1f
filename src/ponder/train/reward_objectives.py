"""Objectives of reward and value models: preferences, outcomes, steps, values. The number is read at the token itself
(a critic's value is read before its token); that of an implicit reward model is a sum over the answer's tokens.

`credit` finds where a number is read and its target, and gives each target its share of the optimiser step's loss, so
that splitting into micro-batches does not change the gradient.
Shapes: N trained tokens of a micro-batch, M targets among them, O numbers of the head, B bins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ponder.errors import UsageError
from ponder.nets.decoder_with_head import LogprobReading, ScoreHead
from ponder.reason.operators.logprob_features import LOGPROB_FEATURES
from ponder.train.credit import has_branches, unify_equal
from ponder.train.equal_answers import answer_count
from ponder.train.losses import sum_per_sequence
from ponder.train.objective import BaseObjective, ObjectiveState, Stats, Tokens
from ponder.train.readouts import (
    LM_LOGPROBS_NOTE,
    LogRatioReadout,
    PrefixLogRatioReadout,
    Readout,
    RewardReadout,
)
from ponder.types import Step, Trace

TARGET_NOTE = "target"  # the note with the number to predict at a token; NaN: none
SHARE_NOTE = "share"  # the note with its share of the loss
LM_SHARE_NOTE = "lm_share"  # the note with the share of a token in the language-model loss

RewardTarget = tuple[int, float]  # a step, at whose last token the number is read, and its target


@dataclass(frozen=True)
class RewardObjective(BaseObjective, ABC):
    """An objective of a reward or value model: where a number is read, what it should be, and its loss."""

    predicts: ClassVar[Literal["preference", "label", "value"]] = "label"  # which metrics it gets on held-out data
    needs_both_labels: ClassVar[bool] = False  # are labels that are all right, or all wrong, useless?
    reads_whole_answers: ClassVar[bool] = False  # every token of an answer is read, so no two answers may share a step
    merges_equal_answers: ClassVar[bool] = False  # may one answer stand for all with its tokens and label?
    needs_group = False
    learns_from_samples = False
    learns_from_given = True
    pairwise: ClassVar[bool] = False
    metric_name: ClassVar[str] = "rewards/accuracies"

    @property
    @abstractmethod
    def head(self) -> ScoreHead:
        """The head that the network needs."""

    @property
    def readout(self) -> Readout:
        """What the learner reads."""
        return RewardReadout()

    @abstractmethod
    def targets(self, trace: Trace, scorer: str) -> list[RewardTarget]:
        """The targets of a trace."""

    @abstractmethod
    def loss_per_target(self, numbers_MO: Tensor, target_M: Tensor) -> Tensor:
        """The loss of each target [M]."""

    @property
    def needs_scores(self) -> bool:
        """Are the targets a scorer's scores? Else they are what a search found."""
        return True

    @property
    def trains_zero_advantage(self) -> bool:
        return True

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        for trace in traces:
            _clear_targets(trace)
        targets_by_trace = [(trace, places) for trace in traces if (places := self.targets(trace, scorer))]
        total = sum(answer_count(trace.steps[i]) for trace, places in targets_by_trace for i, _ in places)
        for trace, places in targets_by_trace:
            for i, target in places:
                share = answer_count(trace.steps[i]) / total
                part = 1 / (len(targets_by_trace) * len(places)) if self.pairwise else share
                _write_target(trace.steps[i], target, part)
        return {"labels": float(total)}

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        return np.ones(len(lengths))  # the shares are the weights

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        target_N, share_N = tokens.notes[TARGET_NOTE], tokens.notes[SHARE_NOTE]
        at = (~target_N.isnan()).nonzero()[:, 0]
        loss_M, metric_M = self.loss_and_metric(tokens.values_N[at], target_N[at], tokens.tree_N[at])
        empty_N, share_M = loss_M.new_zeros(len(share_N)), share_N[at].to(loss_M)
        metric_N = empty_N.index_put((at,), metric_M.to(loss_M) * share_M)
        return empty_N.index_put((at,), loss_M * share_M), {self.metric_name: metric_N}

    def loss_and_metric(self, numbers_MO: Tensor, target_M: Tensor, tree_M: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each target of a micro-batch [M], and its metric: is the prediction correct?"""
        with torch.no_grad():
            right_M = (numbers_MO[:, 0] > 0) == (target_M > 0.5)
        return self.loss_per_target(numbers_MO, target_M), right_M


@dataclass(frozen=True)
class BradleyTerry(RewardObjective):
    """A reward from preferences: -log sigmoid(r_better - r_worse), the mean over all pairs of a prompt's answers.

    Each prompt has the same weight, however many answers it has.
    """

    paper: ClassVar[str] = "Bradley and Terry 1952; Ouyang et al. 2022, arXiv:2203.02155"
    pairwise: ClassVar[bool] = True
    predicts = "preference"

    @property
    def head(self) -> ScoreHead:
        return ScoreHead("reward")

    @property
    def needs_whole_trace(self) -> bool:
        return True

    def targets(self, trace: Trace, scorer: str) -> list[RewardTarget]:
        targets = _answer_targets(trace, scorer)
        scores = unify_equal(score for _, score in targets)
        kinds = np.unique(np.asarray(scores, np.float32))  # a target is kept in float32
        return [(i, score) for (i, _), score in zip(targets, scores, strict=True)] if len(kinds) > 1 else []

    def loss_per_target(self, numbers_MO: Tensor, target_M: Tensor) -> Tensor:
        raise NotImplementedError("a reward is compared with others, not with a number")

    def loss_and_metric(self, numbers_MO: Tensor, target_M: Tensor, tree_M: Tensor) -> tuple[Tensor, Tensor]:
        reward_M = numbers_MO[:, 0]
        better_MM = (tree_M[:, None] == tree_M[None]) & (target_M[:, None] > target_M[None])
        margin_MM = reward_M[:, None] - reward_M[None]
        pairs_M = _sum_per_tree(better_MM.to(reward_M.dtype).sum(1), tree_M)
        loss_M = _sum_per_tree(torch.where(better_MM, -F.logsigmoid(margin_MM), 0.0).sum(1), tree_M) / pairs_M
        with torch.no_grad():
            won_M = (
                _sum_per_tree(torch.where(better_MM, (margin_MM > 0).to(reward_M.dtype), 0.0).sum(1), tree_M) / pairs_M
            )
        return loss_M, won_M


@dataclass(frozen=True)
class OutcomeReward(RewardObjective):
    """Outcome reward model: one logit at the end of a solution, binary cross-entropy with its correctness.

    `reads_logprobs`: the logit is the head's number plus that of a logistic regression on the log-probabilities that
    the solution was sampled with. The regression is fitted first; the network learns what it leaves open.
    """

    paper: ClassVar[str] = "Cobbe et al. 2021, arXiv:2110.14168; Uesato et al. 2022, arXiv:2211.14275"
    needs_both_labels = True
    merges_equal_answers = True
    bias: bool = False
    reads_logprobs: bool = False

    @property
    def head(self) -> ScoreHead:
        return ScoreHead("outcome", "logit", self.bias, logprob_weights=self._first_logprob_weights)

    @property
    def _first_logprob_weights(self) -> tuple[float, ...]:
        return (0.0,) * (len(LOGPROB_FEATURES) + 1) if self.reads_logprobs else ()

    def targets(self, trace: Trace, scorer: str) -> list[RewardTarget]:
        return _check_range(_answer_targets(trace, scorer), trace, 0.0, 1.0)

    def loss_per_target(self, numbers_MO: Tensor, target_M: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(numbers_MO[:, 0], target_M.to(numbers_MO), reduction="none")


@dataclass(frozen=True)
class TokenOutcomeReward(OutcomeReward):
    """Outcome reward model that predicts at every token of a solution whether it will be right, as a value function
    does: binary cross-entropy, the mean over the solution's tokens. It is read at the end.

    Beside it, `lm_weight` times the language-model loss of the right solutions, the mean over their tokens, so that the
    network keeps what it knows of writing them. (In the paper that loss is of the data's own solutions.)
    """

    paper: ClassVar[str] = "Cobbe et al. 2021, arXiv:2110.14168"
    reads_whole_answers = True
    lm_weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.lm_weight < float("inf"):
            raise UsageError(f"lm_weight is {self.lm_weight}; the weight of a loss is 0 or more, and finite")

    @property
    def readout(self) -> Readout:
        return RewardReadout(with_logprobs=self.lm_weight > 0)

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        metrics = super().credit(traces, scorer, state)
        written: dict[bool, list[tuple[Step, int]]] = {True: [], False: []}  # steps of right answers, and of others
        for trace, leaf in _credited_answers(traces):
            before, end = _steps_before(trace, leaf), trace.steps[leaf]
            for step in before:
                _write_target(step, float("nan"), 0.0)
            written[bool(end.notes[TARGET_NOTE][-1] > 0.5)] += [(step, answer_count(end)) for step in (*before, end)]
        total = sum(count * len(step.token_ids) for step, count in written[True])
        for right, steps in written.items():
            for step, count in steps:
                share = count / total if right else 0.0
                step.notes[LM_SHARE_NOTE] = np.full(len(step.token_ids), share, np.float32)
        return metrics

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        target_N, share_N, sequence_N = tokens.notes[TARGET_NOTE], tokens.notes[SHARE_NOTE], tokens.sequence_N
        known_N = ~target_N.isnan()
        target_S = sum_per_sequence(torch.where(known_N, target_N, 0.0), sequence_N)
        size_S = sum_per_sequence(torch.ones_like(share_N), sequence_N)
        part_N = (sum_per_sequence(share_N, sequence_N) / size_S)[sequence_N]
        loss_N = self.loss_per_target(tokens.values_N, target_S[sequence_N]) * part_N
        with torch.no_grad():
            right_N = (tokens.values_N[:, 0] > 0) == (target_N > 0.5)
        stats = {self.metric_name: torch.where(known_N, right_N.to(loss_N) * share_N, 0.0)}
        if self.lm_weight:
            lm_N = -tokens.notes[LM_LOGPROBS_NOTE] * tokens.notes[LM_SHARE_NOTE]
            stats["loss/lm"] = lm_N.detach()
            loss_N = loss_N + self.lm_weight * lm_N
        return loss_N, stats


@dataclass(frozen=True)
class ProcessReward(OutcomeReward):
    """Process reward model: sigmoid(w h + b) at the last token of each step, binary cross-entropy with its label, which
    is hard (0, 1) or soft."""

    paper: ClassVar[str] = "Lightman et al. 2023, arXiv:2305.20050; Wang et al. 2024, arXiv:2312.08935"
    merges_equal_answers = False
    bias: bool = True

    @property
    def head(self) -> ScoreHead:
        return ScoreHead("process", "logit", self.bias, logprob_weights=self._first_logprob_weights)

    def targets(self, trace: Trace, scorer: str) -> list[RewardTarget]:
        return _check_range(_step_targets(trace, scorer, trace.step_score), trace, 0.0, 1.0)


@dataclass(frozen=True)
class ImplicitReward(RewardObjective):
    """Implicit reward model: binary cross-entropy of sigmoid(beta (log pi(y|x) - log pi_ref(y|x))) with an answer's
    correctness, where pi_ref is the model at the start. No head is trained: the model itself is the judge, and the
    ratio over the tokens of a step is the reward of that step.

    `reading`: what the trained model judges by. "ratio" is what it was trained for, "logprob" the sum of log pi alone,
    "likelihood" its mean over the tokens.
    """

    paper: ClassVar[str] = "Yuan et al. 2024, arXiv:2412.01981; Cui et al. 2025, arXiv:2502.01456"
    needs_both_labels = True
    reads_whole_answers = True
    merges_equal_answers = True
    beta: float = 0.05
    reading: LogprobReading = "ratio"

    def __post_init__(self) -> None:
        if not 0 < self.beta < float("inf"):
            raise UsageError(f"beta is {self.beta}; an implicit reward needs one that is positive and finite")
        _ = self.head  # checks the reading

    @property
    def head(self) -> ScoreHead:
        return ScoreHead("implicit", "logit", temperature=1 / self.beta, reading=self.reading)

    @property
    def readout(self) -> Readout:
        return LogRatioReadout(beta=self.beta)

    @property
    def needs_reference(self) -> bool:
        return True

    def targets(self, trace: Trace, scorer: str) -> list[RewardTarget]:
        return _check_range(_answer_targets(trace, scorer), trace, 0.0, 1.0)

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        metrics = super().credit(traces, scorer, state)
        for trace, leaf in _credited_answers(traces):
            self._mark_answer(trace, _steps_before(trace, leaf))
        return metrics

    def _mark_answer(self, trace: Trace, own: Sequence[Step]) -> None:
        """The steps before an answer's end, without a tool's output, are read, too."""
        for step in own:
            _write_target(step, float("nan"), 0.0)

    def loss_per_target(self, numbers_MO: Tensor, target_M: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(numbers_MO[:, 0], target_M.to(numbers_MO), reduction="none")


@dataclass(frozen=True)
class ImplicitProcessReward(ImplicitReward):
    """Implicit reward model that learns from labels of steps: at the end of each step, binary cross-entropy of
    sigmoid(beta (log pi - log pi_ref)) over the answer up to there with the step's label, which is about that prefix.
    An answer's score is the one at its end."""

    merges_equal_answers = False

    def targets(self, trace: Trace, scorer: str) -> list[RewardTarget]:
        return _check_range(_step_targets(trace, scorer, trace.step_score), trace, 0.0, 1.0)

    @property
    def readout(self) -> Readout:
        return PrefixLogRatioReadout(beta=self.beta)

    def _mark_answer(self, trace: Trace, own: Sequence[Step]) -> None:
        super()._mark_answer(trace, [step for step in own if TARGET_NOTE not in step.notes])


@dataclass(frozen=True)
class StateValue(RewardObjective):
    """Expected return of a prefix, at the last token of each step: a scorer's score or, with `target_source="value"`,
    the value that a search found (`Step.value` of visited steps).

    mse: 1/2 (v - y)^2. two-hot: cross-entropy of a distribution over `bins` with y spread on the two bins about it.
    x1: (2 sigmoid(z) - 1 - y)^2 over three layers, y from -1 to 1: `signed_outcomes` makes such targets of a
    verifier's 0 and 1.
    """

    metric_name: ClassVar[str] = "rewards/errors"
    predicts = "value"
    paper: ClassVar[str] = "Besta et al. 2025, arXiv:2501.11223; Farebrother et al. 2024, arXiv:2403.03950"
    kind: Literal["mse", "two-hot", "x1"] = "mse"
    target_source: Literal["score", "value"] = "score"
    bins: int = 51
    low: float = 0.0
    high: float = 1.0
    hidden: tuple[int, ...] = ()  # x1's are 1024 and 256 wide
    signed_outcomes: bool = False  # a verifier's scores of 0 to 1 become x1's targets of -1 to 1

    def __post_init__(self) -> None:
        if self.kind not in ("mse", "two-hot", "x1") or self.target_source not in ("score", "value"):
            raise UsageError(
                f"a value is mse, two-hot or x1, of a score or value; not {self.kind} of {self.target_source}"
            )
        if self.kind == "x1" and (self.low, self.high) == (0.0, 1.0):
            object.__setattr__(self, "low", -1.0)
        if self.kind == "x1" and (self.low, self.high) != (-1.0, 1.0):
            raise UsageError("x1's values lie between -1 and 1: leave out low and high")
        _ = self.head  # checks bins, low and high

    def unused(self) -> dict[str, str]:
        why = "values of a search are taken as they are: give target_source=score"
        out = {"signed_outcomes": why} if self.target_source == "value" else {}
        if self.kind != "two-hot":
            out |= dict.fromkeys(("bins", "low", "high"), f"kind={self.kind} has no bins: give kind=two-hot")
        return out

    @property
    def needs_scores(self) -> bool:
        return self.target_source == "score"

    @classmethod
    def x1(cls) -> StateValue:
        return cls("x1", target_source="value", hidden=(1024, 256))

    @property
    def head(self) -> ScoreHead:
        form: dict[str, Literal["number", "two-hot", "squashed"]]
        form = {"mse": "number", "two-hot": "two-hot", "x1": "squashed"}
        bins = self.bins if self.kind == "two-hot" else 1
        return ScoreHead("value", form[self.kind], True, self.hidden, bins, self.low, self.high)

    def targets(self, trace: Trace, scorer: str) -> list[RewardTarget]:
        if self.target_source == "value":
            visited = [i for i, step in enumerate(trace.steps) if step.visits and _has_tokens(step)]
            targets = [(i, trace.steps[i].value) for i in visited]
        else:
            targets = _step_targets(trace, scorer, trace.score)
            if self.signed_outcomes:
                targets = [(i, 2 * score - 1) for i, score in _check_range(targets, trace, 0.0, 1.0)]
        return targets if self.kind == "mse" else _check_range(targets, trace, self.low, self.high)

    def loss_per_target(self, numbers_MO: Tensor, target_M: Tensor) -> Tensor:
        target_M = target_M.to(numbers_MO)
        if self.kind == "two-hot":
            target_MB = two_hot(target_M, self.bins, self.low, self.high)
            return -(target_MB * numbers_MO.log_softmax(-1)).sum(-1)
        off_M = (self.head.interpret(numbers_MO) - target_M).square()
        return off_M / 2 if self.kind == "mse" else off_M

    def loss_and_metric(self, numbers_MO: Tensor, target_M: Tensor, tree_M: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            off_M = (self.head.interpret(numbers_MO) - target_M).abs()
        return self.loss_per_target(numbers_MO, target_M), off_M


REWARD_OBJECTIVES: dict[str, type[RewardObjective]] = {
    "pairs": BradleyTerry,
    "orm": OutcomeReward,
    "token-orm": TokenOutcomeReward,
    "prm": ProcessReward,
    "implicit": ImplicitReward,
    "implicit-prm": ImplicitProcessReward,
    "value": StateValue,
}


def two_hot(target_M: Tensor, bins: int, low: float, high: float) -> Tensor:
    """[M, B]: all weight on the two bins around a value, so that their mean is the value."""
    place_M = (target_M - low) / (high - low) * (bins - 1)
    below_M = place_M.floor().clamp(0, bins - 2)
    above_M = place_M - below_M
    out_MB = target_M.new_zeros(len(target_M), bins)
    out_MB.scatter_(1, below_M.long()[:, None], (1 - above_M)[:, None])
    return out_MB.scatter_(1, below_M.long()[:, None] + 1, above_M[:, None])


def _sum_per_tree(values_M: Tensor, tree_M: Tensor) -> Tensor:
    """The sum over the targets of a tree, at each of them."""
    count = int(tree_M.max()) + 1 if len(tree_M) else 0
    return values_M.new_zeros(count).index_add(0, tree_M, values_M)[tree_M]


def _answer_targets(trace: Trace, scorer: str) -> list[RewardTarget]:
    scored = ((i, trace.score(i, scorer)) for i in trace.answers() if _has_tokens(trace.steps[i]))
    return [(i, score) for i, score in scored if score is not None]


def _step_targets(trace: Trace, scorer: str, score_of: Callable[[int, str], float | None]) -> list[RewardTarget]:
    scored = ((i, score_of(i, scorer)) for i, step in enumerate(trace.steps) if _has_tokens(step))
    return [(i, score) for i, score in scored if score is not None]


def _credited_answers(traces: Sequence[Trace]) -> Iterator[tuple[Trace, int]]:
    """The answers that have a target. An objective that reads whole answers cannot learn from any that share steps."""
    for trace in traces:
        for leaf in [i for i in trace.answers() if TARGET_NOTE in trace.steps[i].notes]:
            if has_branches(trace, leaf):
                raise UsageError(
                    f"{trace.problem.id}: answers share steps, and this reward is of a whole answer:"
                    " separate them first (`labelled_traces.separate_answers`)"
                )
            yield trace, leaf


def _steps_before(trace: Trace, leaf: int) -> list[Step]:
    """The written steps on the path to an answer's end, without a tool's output."""
    before = [trace.steps[i] for i in trace.path(leaf)[1:-1] if len(trace.steps[i].token_ids)]
    return [step for step in before if step.sampled] if trace.steps[leaf].sampled else before


def _has_tokens(step: Step) -> bool:
    return step.parent is not None and len(step.token_ids) > 0


def _check_range(places: list[RewardTarget], trace: Trace, low: float, high: float) -> list[RewardTarget]:
    for i, target in places:
        if not low <= target <= high:
            raise UsageError(f"{trace.problem.id}, step {i}: the label {target:g} does not lie in [{low:g}, {high:g}]")
    return places


def _clear_targets(trace: Trace) -> None:
    for step in trace.steps:
        step.advantages = None
        for name in (TARGET_NOTE, SHARE_NOTE, LM_SHARE_NOTE):
            step.notes.pop(name, None)


def _write_target(step: Step, target: float, share: float) -> None:
    size = len(step.token_ids)
    step.advantages = np.zeros(size, np.float32)  # marks the step as trained
    step.notes[TARGET_NOTE] = np.full(size, np.nan, np.float32)
    step.notes[SHARE_NOTE] = np.zeros(size, np.float32)
    step.notes[TARGET_NOTE][-1], step.notes[SHARE_NOTE][-1] = target, share
