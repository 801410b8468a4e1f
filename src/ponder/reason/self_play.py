"""Self-play: a policy plays both sides of a game for two, and each side is an episode of its own.

A side reads the game as it would against any opponent: its own prompt, its own moves, and what the other side did. Its
turns are sampled and its conversation ends in an answer of its own, scored with its own result. So a game adds two
answers to the trace, and every algorithm credits each side with what it earned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ponder.errors import BudgetExhausted, Interrupted, PonderError, UsageError
from ponder.protocols import Policy
from ponder.reason.concurrency import gather_within_budget
from ponder.reason.episodes import EpisodeLimits
from ponder.reason.operators.generate import add_completion, another_seed, call_policy
from ponder.types import TURN_REWARD, Action, Completion, Ids, Message, Problem, Sampling, Score, Step, Trace, Turn


class TwoPlayerGame(Protocol):
    """An environment for two. `act` takes the move of the side that is to move, and its turn is for the next one."""

    @property
    def player(self) -> int:
        """Who moves next: 0, who moved first, or 1."""
        ...

    @property
    def results(self) -> tuple[float, float] | None:
        """What each side earned, when the game is over."""
        ...

    def prompt(self) -> tuple[Message, ...]:
        """What a side reads that makes its first move now."""
        ...

    def reset(self, problem: Problem, seed: int) -> Turn: ...

    def act(self, action: Action) -> Turn: ...


@dataclass(slots=True)
class _Side:
    """One side of a game, as far as it has come."""

    at: int  # the step that its next turn continues
    messages: list[Message]  # its conversation
    end: int | None = None  # its last turn
    turns: int = 0


@dataclass(slots=True)
class _Match:
    game: TwoPlayerGame
    sides: dict[int, _Side] = field(default_factory=dict)
    first: int | None = None  # the first step that was added
    is_over: bool = False

    @property
    def side(self) -> _Side:
        """Who is to move."""
        return self.sides[self.game.player]


@dataclass(slots=True)
class SelfPlay:
    """All games of one trace; it stands in the place of `Episodes`. `open_environment` makes a game."""

    problem: Problem
    open_environment: Callable[[], Any]
    limits: EpisodeLimits = EpisodeLimits()
    seed: int = 0
    tools: tuple[Any, ...] = ()

    async def begin(self) -> tuple[Message, ...]:
        """What the side that moves first reads."""
        return self.problem.messages

    def encode(self, messages: Sequence[Message], policy: Policy) -> Ids:
        return policy.encode(messages)

    async def close(self) -> None:
        pass

    def action(self, text: str, token_ids: Ids, truncated: bool = False) -> Action:
        return Action(text, text, (), token_ids, truncated)

    async def extend(
        self, trace: Trace, parents: Sequence[int], counts: Sequence[int], policy: Policy, sampling: Sampling,
        whole: bool,
    ) -> list[list[int]]:  # fmt: skip
        """Play so many games from the prompt to their ends. Returns the first move of each, by parent."""
        if not whole or any(trace.steps[parent].sampled for parent in parents):
            raise UsageError("self-play plays each game to its end, so no search goes on from a move: take samples")
        groups = [[self._open(parent) for _ in range(count)] for parent, count in zip(parents, counts, strict=True)]
        active, spent = [match for group in groups for match in group], None
        while active and spent is None:
            spent = await self._move(trace, active, policy, sampling)
            active = [match for match in active if not match.is_over]
        if spent is not None:
            raise spent
        return [[match.first for match in group if match.first is not None] for group in groups]

    def _open(self, parent: int) -> _Match:
        game = self.open_environment()
        game.reset(self.problem, self.seed)
        return _Match(game, {game.player: _Side(parent, list(self.problem.messages))})

    async def _move(
        self, trace: Trace, matches: Sequence[_Match], policy: Policy, sampling: Sampling
    ) -> BudgetExhausted | None:
        """Sample the next move of each game. Equal prefixes are one request."""
        requests: dict[tuple[bytes, int], list[_Match]] = {}
        for match in matches:
            if match.side.turns >= self.limits.max_turns:
                self._cut(trace, match, UsageError(f"a side had its {self.limits.max_turns} turns (max_turns)"))
                continue
            room = self._room(trace, match.side, sampling)
            requests.setdefault((trace.token_ids(match.side.at).tobytes(), room), []).append(match)

        async def sample(room: int, group: Sequence[_Match]) -> list[Completion] | PonderError:
            if room < 1:
                return UsageError(f"a side has used its {sampling.max_tokens} tokens (max_tokens)")
            how = replace(sampling, max_tokens=room, min_tokens=min(sampling.min_tokens, room))
            at = group[0].side.at
            try:
                return await call_policy(policy, trace.token_ids(at), another_seed(trace, at, how), len(group))
            except (Interrupted, BudgetExhausted):
                raise
            except PonderError as error:
                return error

        replies, spent = await gather_within_budget(*(sample(room, group) for (_, room), group in requests.items()))
        for reply, group in zip(replies, requests.values(), strict=True):
            for place, match in enumerate(group):
                if isinstance(reply, PonderError):
                    self._cut(trace, match, reply)
                elif reply is not None and place < len(reply):
                    self._play(trace, match, reply[place], policy)
        return spent

    def _room(self, trace: Trace, side: _Side, sampling: Sampling) -> int:
        used = 0 if side.end is None else _sampled_tokens(trace, side.end)
        room = sampling.max_tokens - used
        return room if self.limits.max_turn_tokens is None else min(room, self.limits.max_turn_tokens)

    def _play(self, trace: Trace, match: _Match, reply: Completion, policy: Policy) -> None:
        side = match.side
        side.end = add_completion(trace, side.at, reply, last=True)
        match.first = side.end if match.first is None else match.first
        side.turns += 1
        content = getattr(policy, "turn_content", str)(reply.text)
        side.messages.append({"role": "assistant", "content": content})
        turn = match.game.act(self.action(reply.text, reply.token_ids, reply.stop == "length"))
        if (results := match.game.results) is not None:
            self._finish(trace, match, [Score(result, turn.reason) for result in results])
        else:
            self._tell(trace, match, turn, policy)

    def _tell(self, trace: Trace, match: _Match, turn: Turn, policy: Policy) -> None:
        """Add what the side that moves next reads: its first prompt, or what the other side did."""
        side = match.sides.get(match.game.player)
        if side is None:
            messages, other = match.game.prompt(), match.sides[1 - match.game.player].end
            assert other is not None
            text = str(messages[-1]["content"])
            at = trace.add(Step(None, text, self.encode(messages, policy), cites=(other,)))
            match.sides[match.game.player] = _Side(at, list(messages))
            return
        assert side.end is not None
        side.messages += turn.messages
        text = "\n".join(str(message["content"]) for message in turn.messages)
        last = trace.steps[side.end]
        tokens = policy.bridge(turn.messages, tools=(), closed=last.stop == "eos")  # type: ignore[attr-defined]
        if tokens is not None:
            written = Step(side.end, text, tokens, turn=True)
        else:
            written = Step(None, text, self.encode(side.messages, policy), cites=(side.end,), turn=True)
        side.at = trace.add(written)
        last.stop = "stop"  # the turn is over, the answer is not

    def _cut(self, trace: Trace, match: _Match, why: PonderError) -> None:
        """The side to move has no turn left: it loses, and nobody knows what the other would have earned."""
        mover = match.game.player
        if match.sides[mover].end is None and len(match.sides) == 1:
            raise why  # not even a first move
        self._finish(trace, match, [Score(0.0 if one == mover else None, f"the game was cut: {why}") for one in (0, 1)])

    def _finish(self, trace: Trace, match: _Match, scores: Sequence[Score]) -> None:
        match.is_over = True
        for player, side in match.sides.items():
            if side.end is not None:
                step = trace.steps[side.end]
                step.scores[TURN_REWARD] = scores[player]
                if (turn := trace.next_turn(side.end)) is not None:
                    trace.steps[turn].last = True  # it was told of a move that it cannot answer any more
                elif not step.done:
                    step.stop = "eos"


def _sampled_tokens(trace: Trace, end: int) -> int:
    return sum(len(trace.steps[i].token_ids) for i in trace.conversation(end) if trace.steps[i].sampled)
