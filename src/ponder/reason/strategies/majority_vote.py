"""Majority vote (self-consistency): sample many chains and take the most frequent answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ponder.errors import BudgetExhausted, Interrupted, PonderError, UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason import answer_extraction
from ponder.reason.operators import evaluate, generate, vote
from ponder.reason.operators.generate import chain_end, resume_truncated
from ponder.reason.operators.uncertainty import answer_confidence
from ponder.reason.operators.vote import is_vote_decided, leader_probability
from ponder.reason.prompts import PLAIN, Prompt
from ponder.types import Sampling, Trace
from ponder.validate import MAX_INT32, check_int, check_number

VoteWeight = Literal["count", "score", "likelihood", "entropy", "gini"]
EarlyStopping = Literal["", "decided", "beta"]


@dataclass(frozen=True, slots=True)
class MajorityVote:
    """The most frequent answer of n chains (self-consistency, Wang et al. 2023).

    A vote can weigh the guide's score of the chain, or the policy's confidence (`operators.uncertainty`). With
    `early_stopping`, `chains_per_round` chains are sampled at a time until the vote is `decided`: no chain that may
    still come can overturn it; or, with `beta`, until the leader is the likelier of the first two with
    `min_leader_probability` (Adaptive-Consistency, Aggarwal et al. 2023). A chain without an answer has no vote; ties
    go to the answer seen first.
    """

    n: int = 8
    weight: VoteWeight = "count"
    early_stopping: EarlyStopping = ""
    chains_per_round: int = 1
    min_leader_probability: float = 0.95
    sampling: Sampling = Sampling()
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        for name in ("n", "chains_per_round"):
            check_int(name, getattr(self, name), MAX_INT32)
        check_number("min_leader_probability", self.min_leader_probability)
        if self.n < 1:
            raise UsageError(f"n is {self.n}; a vote needs at least one chain")
        if self.chains_per_round < 1:
            raise UsageError(f"chains_per_round is {self.chains_per_round}; give at least 1")
        if not 0.5 < self.min_leader_probability < 1:
            raise UsageError(
                f"min_leader_probability is {self.min_leader_probability}; it is a probability between 0.5 and 1"
            )
        for name, kind in (("weight", VoteWeight), ("early_stopping", EarlyStopping)):
            if getattr(self, name) not in get_args(kind):
                raise UnknownName(name, getattr(self, name), [k for k in get_args(kind) if k])
        if self.early_stopping == "beta" and self.weight != "count":
            raise UsageError("the beta rule counts votes: take weight='count', or early_stopping='decided'")

    def unused(self) -> dict[str, str]:
        out = {} if self.weight == "score" else {"guide": f"votes are weighted by {self.weight}: give weight=score"}
        if not self.early_stopping:
            out["chains_per_round"] = (
                "all chains are sampled at once: give early_stopping=decided or early_stopping=beta"
            )
        if self.early_stopping != "beta":
            out["min_leader_probability"] = "only early_stopping=beta reads it"
        return out

    def missing_guide(self) -> str:
        needs = self.weight == "score"
        return "a vote weighted by score needs a guide: give a scorer, or weight by count" if needs else ""

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        if scorer is None and (why := self.missing_guide()):
            raise UsageError(why)
        sampling, spent, why = self.sampling, False, ""
        if self.weight in ("entropy", "gini") and self.weight not in sampling.token_stats:
            sampling = replace(sampling, token_stats=(*sampling.token_stats, self.weight))
        root = self.prompt.root_step(trace, policy)
        votes: dict[int, tuple[str | None, float | None]] = {}  # each chain's answer and its weight
        try:
            await resume_truncated(trace, _finished_chains(trace, root), policy, sampling)
            await self._collect_votes(trace, root, scorer, votes)
            while (left := self.n - len(_finished_chains(trace, root))) > 0 and not self._is_decided(votes, left):
                try:
                    n = min(left, self.chains_per_round) if self.early_stopping else left
                    await generate(trace, root, policy, sampling, n, last=True)
                except (Interrupted, BudgetExhausted):
                    raise
                except PonderError as error:  # the votes so far decide
                    if not votes:
                        raise
                    why = str(error)
                    break
                await self._collect_votes(trace, root, scorer, votes)
        except BudgetExhausted:
            spent = True
        answers, weights = [a for a, _ in votes.values()], [w for _, w in votes.values()]
        won = vote.weighted_answer(answers, weights)
        trace.chosen = next((i for i, (a, w) in votes.items() if won is not None and a == won and w is not None), None)
        if votes and not any(w is not None for w in weights):
            why = self._missing_weight_reason(trace, next(iter(votes)), scorer)
        trace.budget_exhausted, trace.failed = spent, why if won is None else ""

    async def _collect_votes(
        self, trace: Trace, root: int, guide: Scorer | None, votes: dict[int, tuple[str | None, float | None]]
    ) -> None:
        """Add the votes of chains that have not voted yet."""
        fresh = [i for i in _finished_chains(trace, root) if i not in votes and not trace.steps[i].pruned]
        if self.weight == "score" and guide is not None:
            await evaluate(trace, [i for i in fresh if guide.name not in trace.steps[i].scores], guide)
        votes |= {i: (answer_extraction.answer_of_step(trace, i), self._weight(trace, i, guide)) for i in fresh}

    def _weight(self, trace: Trace, step: int, guide: Scorer | None) -> float | None:
        if self.weight == "count":
            return 1.0
        if self.weight != "score":
            return answer_confidence(trace, step, self.weight)
        assert guide is not None
        score = trace.score(step, guide.name)
        if self.early_stopping and score is not None and not 0 <= score <= 1:
            raise UsageError(
                f"{guide.name} scored {score:g}; early_stopping needs scores between 0 and 1:"
                " leave out early_stopping, or take a guide that gives probabilities"
            )
        return score

    def _is_decided(self, votes: dict[int, tuple[str | None, float | None]], left: int) -> bool:
        answers, weights = [a for a, _ in votes.values()], [w for _, w in votes.values()]
        if self.early_stopping == "decided":
            return is_vote_decided(answers, weights, left)
        if self.early_stopping == "beta":
            (_, first), (_, second) = [*Counter(a for a in answers if a is not None).most_common(2), *_NO_VOTES][:2]
            return leader_probability(first, second) >= self.min_leader_probability
        return False

    def _missing_weight_reason(self, trace: Trace, step: int, guide: Scorer | None) -> str:
        if guide is not None and self.weight == "score":
            return f"no chain has a score: {trace.steps[step].scores[guide.name].reason}"
        return f"the policy returns nothing to weight votes by {self.weight}: give weight=count"


def _finished_chains(trace: Trace, root: int) -> list[int]:
    """The last steps of whole chains: another strategy may have added single steps to the prompt."""
    return [chain_end(trace, i) for i in trace.children(root) if trace.steps[i].done]


_NO_VOTES = [("", 0), ("", 0)]
