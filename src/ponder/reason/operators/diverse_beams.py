"""Structure: diverse beam search, which finds several continuations of a step that differ in their tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ponder.errors import Interrupted, PonderError, UsageError
from ponder.protocols import Policy
from ponder.reason.concurrency import gather_within_budget
from ponder.reason.operators.cut import Cut
from ponder.types import Completion, Cost, Floats, Ids, Sampling, StopReason, Trace, ids

_Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DiverseBeamSearch:
    """Beam search in groups, one after the other at each token; a group pays `diversity_penalty` for a token as often
    as beams of earlier groups chose it at that place (Vijayakumar et al. 2016, with Hamming diversity).

    A beam's score is the sum of its tokens' log-probabilities, of the model's own distribution, minus those penalties.
    Beams of one group always differ, beams of two groups only where the penalty outweighs how sure the model is. A beam
    that has ended keeps its place and its score. One group is plain beam search.
    """

    groups: int | None = None  # None: one for each beam, as the authors advise
    diversity_penalty: float = 0.5  # their lambda; 0.2 to 0.8 did well in the paper

    def __post_init__(self) -> None:
        if self.groups is not None and self.groups < 1:
            raise UsageError(f"groups is {self.groups}; it must be at least 1")
        if not 0 <= self.diversity_penalty < float("inf"):
            raise UsageError(f"diversity_penalty is {self.diversity_penalty}; it must be 0 or positive, and finite")

    def check(self, beams: int, sampling: Sampling) -> None:
        """Refuse what cannot be searched for so."""
        if beams % (self.groups or beams):
            raise UsageError(f"{beams} beams cannot be split into {self.groups} equal groups: groups must divide them")
        if sampling.renormalises:
            raise UsageError(
                "diverse beam search ranks by the model's own log-probabilities: leave out top_p, top_k, min_p,"
                " penalties, biases, grammars and allowed, forced or least tokens"
            )

    async def search(
        self, trace: Trace, parent: int, policy: Policy, sampling: Sampling, beams: int, cut: Cut
    ) -> list[Completion]:
        """The best beams after a step, group by group. If the budget ends on the way, they are cut there."""
        self.check(beams, sampling)
        room = sampling.max_tokens - sum(len(trace.steps[i].token_ids) for i in trace.path(parent)[1:])
        if room < 1:
            raise UsageError(f"the answer has reached its {sampling.max_tokens} tokens (max_tokens)")
        asked = _NextTokens(trace.token_ids(parent), policy, sampling.token_stats, beams)
        ends = _StepEnds(policy, cut, cut.limit_sampling(sampling, room), room)
        groups = [[_Beam()] for _ in range(self.groups or beams)]
        while live := [beam.tokens for group in groups for beam in group if beam.stop is None]:
            if not await asked.ask(live):
                groups = [[replace(b, stop=b.stop or "length") for b in group] for group in groups]
                break
            groups = self._next_token(groups, asked, beams // len(groups))
            groups = [[b if b.stop else replace(b, stop=ends.reason(b.tokens)) for b in group] for group in groups]
        return asked.completions([beam for group in groups for beam in group])

    def _next_token(self, groups: Sequence[Sequence[_Beam]], asked: _NextTokens, size: int) -> list[list[_Beam]]:
        """One token for each live beam; each group keeps the `size` best."""
        chosen: Counter[int] = Counter()  # at this place, by earlier groups
        out: list[list[_Beam]] = []
        for group in groups:
            options: list[_Beam] = []
            for beam in group:
                if beam.stop is not None:
                    options.append(beam)
                    continue
                for token, logprob in asked.likeliest(beam.tokens):
                    score = beam.score + logprob - self.diversity_penalty * chosen[token]
                    options.append(_Beam((*beam.tokens, token), (*beam.logprobs, logprob), score))
            kept = sorted(options, key=lambda beam: -beam.score)[:size]
            chosen.update(beam.tokens[-1] for beam in kept if beam.stop is None)
            out.append(kept)
        return out


@dataclass(frozen=True, slots=True)
class _Beam:
    tokens: _Tokens = ()
    logprobs: tuple[float, ...] = ()
    score: float = 0.0
    stop: StopReason | None = None


@dataclass(slots=True)
class _NextTokens:
    """What the policy would write next after each sequence of tokens; each is asked for once.

    The `beams` likeliest tokens are enough: at most beams - size of them were chosen by other groups and are penalised,
    and a group of `size` beams takes no more than `size` of the others.
    """

    prefix: Ids
    policy: Policy
    token_stats: tuple[str, ...]
    beams: int
    replies: dict[_Tokens, Completion] = field(default_factory=dict)

    async def ask(self, sequences: Iterable[_Tokens]) -> bool:
        """Whether all could be asked for. If not even the first could, that is an error."""
        new = [tokens for tokens in dict.fromkeys(sequences) if tokens not in self.replies]
        first = not self.replies
        try:
            replies, spent = await gather_within_budget(*(self._reply(tokens) for tokens in new))
        except Interrupted:
            raise
        except PonderError:  # no room for more: keep what there is
            if first:
                raise
            return False
        self.replies |= {tokens: reply for tokens, reply in zip(new, replies, strict=True) if reply is not None}
        if spent is not None and first:
            raise spent
        return spent is None

    async def _reply(self, tokens: _Tokens) -> Completion:
        how = Sampling(temperature=0.0, max_tokens=1, logprobs=self.beams, token_stats=self.token_stats)
        replies = await self.policy.generate(np.concatenate([self.prefix, ids(tokens)]), how, 1)
        if not replies or replies[0].top_logprobs is None or not len(replies[0].top_logprobs[0]):
            raise UsageError(
                f"diverse beam search needs the {self.beams} likeliest tokens with their log-probabilities, and this"
                " policy gives none"
            )
        return replies[0]

    def likeliest(self, tokens: _Tokens) -> list[tuple[int, float]]:
        top = self.replies[tokens].top_logprobs
        assert top is not None
        pairs = zip(top[0][0].tolist(), top[1][0].tolist(), strict=True)
        return [(token, logprob) for token, logprob in pairs if np.isfinite(logprob)]

    def completions(self, beams: Sequence[_Beam]) -> list[Completion]:
        """The beams as completions; the first carries the cost of all."""
        used = {beam.tokens[:place] for beam in beams for place in range(len(beam.tokens))}
        cost = sum((reply.cost for reply in self.replies.values()), Cost())
        wasted = sum(r.cost.generated_tokens for tokens, r in self.replies.items() if tokens not in used)
        cost = replace(cost, wasted_tokens=cost.wasted_tokens + wasted)
        return [self._completion(beam, Cost() if i else cost) for i, beam in enumerate(beams)]

    def _completion(self, beam: _Beam, cost: Cost) -> Completion:
        path = [self.replies[beam.tokens[:place]] for place in range(len(beam.tokens))]
        notes: dict[str, Floats] = {
            name: np.concatenate([reply.notes[name][:1] for reply in path]) for name in self.token_stats
        }
        text = self.policy.text(ids(beam.tokens[:-1] if beam.stop == "eos" else beam.tokens))
        assert beam.stop is not None
        return Completion(
            text, ids(beam.tokens), np.asarray(beam.logprobs, np.float32), beam.stop, path[0].version, cost, notes
        )


@dataclass(frozen=True, slots=True)
class _StepEnds:
    """Where a step ends, by the same rules as when it is sampled."""

    policy: Policy
    cut: Cut
    limits: Sampling
    room: int

    def reason(self, tokens: _Tokens) -> StopReason | None:
        length, last = len(tokens), tokens[-1]
        if last in _end_tokens(self.policy):
            return "eos"
        text, before = self.policy.text(ids(tokens)), self.policy.text(ids(tokens[:-1]))
        counted = bool(self.cut.tokens) and length >= self.cut.tokens
        stopped = last in self.limits.stop_token_ids or any(
            text.find(stop, max(0, len(before) - len(stop) + 1)) >= 0 for stop in self.limits.stop
        )
        if (counted or stopped) and self.cut.is_complete(text):
            return "stop" if length < self.room else "length"
        return "length" if length >= min(self.room, self.cut.max_step_tokens) else None


def _end_tokens(policy: Policy) -> frozenset[int]:
    ends: frozenset[int] | None = getattr(policy, "eos", None)
    if ends is None:
        raise UsageError(
            "diverse beam search must know which tokens end an answer: give the policy an attribute `eos`, a frozenset"
            " of token ids"
        )
    return ends
