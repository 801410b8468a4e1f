"""Episodes: a policy and an environment take turns, and the trace grows by what each of them writes.

What the policy sampled is a step with log-probabilities; what the environment said is a step without, marked as a
turn. The tokens between two turns come from the policy (`Policy.bridge`), so that nothing is rendered or tokenised
again. Where a chat template rewrites what was said before, the conversation goes on from a further prompt.

A step is a turn, so that every strategy that grows a trace by `generate` and `expand` plays episodes: samples and votes
to their ends, searches turn by turn. An environment is a function of its seed and the actions. So a branch that forks
takes a copy of the environment, or a fresh one that the same actions are given.

Each turn's reward is the score `TURN_REWARD` of the step that earned it. A turn that could not be taken (the
environment raised, hung, or answered with something else) is undecided, with the reason, and ends the episode. Where a
limit ends it, an environment whose reward is only due at the end is asked for it (`truncate`).
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ponder import user_calls
from ponder.errors import BudgetExhausted, Interrupted, PonderError, UsageError
from ponder.pictures.message_parts import content_text, with_text
from ponder.protocols import Environment, Policy
from ponder.reason.concurrency import gather_within_budget
from ponder.reason.operators.generate import add_completion, another_seed, call_policy
from ponder.reason.tools.call_parser import parse_answer
from ponder.types import TURN_REWARD, Action, Completion, Ids, Message, Problem, Sampling, Score, Step, Trace, Turn
from ponder.user_errors import describe_error
from ponder.validate import short_repr

_MAX_CHARS_PER_TOKEN = 64  # a longer turn cannot fit the limit of read tokens, and is not tokenised to see it

History = tuple[str, ...]  # the texts of the policy's turns so far


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """What an episode may use; `Sampling.max_tokens` bounds what the policy writes in all of its turns."""

    max_turns: int = 16
    max_turn_tokens: int | None = None  # sampled in one turn
    max_read_tokens: int = 4096  # of the environment's turns, without the prompt
    max_seconds: float = 60.0  # inside the environment: beginning, turns and closing together

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_read_tokens", "max_seconds"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be positive")
        if self.max_turn_tokens is not None and self.max_turn_tokens < 1:
            raise UsageError(f"max_turn_tokens is {self.max_turn_tokens}; it must be positive")


class EnvironmentFailed(PonderError):
    """The environment raised, hung, or answered with something that is no turn."""


@dataclass(slots=True)
class _LiveEnvironment:
    """An environment in some state, and the seconds that its episode has left."""

    environment: Environment
    seconds: float

    async def call(self, name: str, *arguments: Any) -> Any:
        """Call a method, which may be a coroutine, within what is left of the deadline."""
        began = time.monotonic()
        what = f"environment {type(self.environment).__name__}.{name}"
        if self.seconds <= 0:
            raise EnvironmentFailed(f"{what} was not called: the environment has used its seconds up")
        try:
            with user_calls.track(what, sync=True):
                result = getattr(self.environment, name)(*arguments)
            if inspect.isawaitable(result):
                with user_calls.track(what):
                    result = await asyncio.wait_for(_awaited(result), self.seconds)
            return result
        except (Interrupted, EnvironmentFailed):
            raise
        except TimeoutError:
            raise EnvironmentFailed(f"{what} did not return within the {self.seconds:.3g} s that it had left") from None
        except (Exception, SystemExit) as error:
            raise EnvironmentFailed(f"{what} raised {describe_error(error)}") from error
        finally:
            self.seconds -= time.monotonic() - began


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


@dataclass(slots=True)
class _Branch:
    """One episode that is being extended: the trace's last step of it."""

    end: int  # a step of the policy, or the prompt
    history: History
    first: int | None = None  # the first step that was added
    done: bool = False
    cut: str = ""  # the limit that ended it before its environment did


@dataclass(slots=True)
class Episodes:
    """All episodes of one trace. `open_environment` makes an environment that has not begun."""

    problem: Problem
    open_environment: Callable[[], Environment]
    limits: EpisodeLimits = EpisodeLimits()
    seed: int = 0
    tools: tuple[Mapping[str, Any], ...] = ()
    _live: dict[History, list[_LiveEnvironment]] = field(default_factory=dict)
    _turns: dict[History, Turn] = field(default_factory=dict)  # what the environment said after these
    _acted: dict[History, Action] = field(default_factory=dict)  # the last action of these
    _read_tokens: dict[History, int] = field(default_factory=dict)  # in those turns
    _prompts: dict[bytes, tuple[Message, ...]] = field(default_factory=dict)  # by their tokens

    async def begin(self) -> tuple[Message, ...]:
        """Begin a first episode; the messages that the policy reads first. Some chat templates allow no two messages of
        the user in a row, so the environment's first one goes on with the problem's last."""
        live = await self._start()
        self._keep((), live)
        asked, said = self.problem.messages, self._turns[()].messages
        if asked and said and asked[-1]["role"] == said[0]["role"] == "user":
            content = asked[-1]["content"]
            text = "\n".join(filter(None, [content_text(content), str(said[0]["content"])]))
            return (*asked[:-1], {**asked[-1], "content": with_text(content, text)}, *said[1:])
        return (*asked, *said)

    def encode(self, messages: Sequence[Message], policy: Policy) -> Ids:
        """The tokens of a prompt, with the tools that are on offer."""
        encoded = policy.encode(messages, tools=self.tools) if self.tools else policy.encode(messages)  # type: ignore[call-arg]
        self._prompts[encoded.tobytes()] = tuple(messages)
        return encoded

    async def close(self) -> None:
        """Close every environment. One that fails to close is left to itself."""
        pools, self._live = self._live, {}
        await asyncio.gather(*(self._close(live) for pool in pools.values() for live in pool))

    async def extend(
        self, trace: Trace, parents: Sequence[int], counts: Sequence[int], policy: Policy, sampling: Sampling,
        whole: bool,
    ) -> list[list[int]]:  # fmt: skip
        """Sample `counts` turns after each of these steps and let the environment answer them; with `whole`, go on to
        the end of each episode. Returns the first new step of each branch, by parent.

        The branches go on together, turn by turn, so that the steps of a trace have the same order in every run.
        """
        groups = [
            [_Branch(parent, self._history(trace, parent)) for _ in range(count)]
            for parent, count in zip(parents, counts, strict=True)
        ]
        active, spent = [branch for group in groups for branch in group], None
        while active and spent is None:
            spent = await self._sample_turns(trace, active, policy, sampling, whole)
            await self._truncate(trace, [branch for branch in active if branch.cut])
            active = [branch for branch in active if not branch.done]
            await self._answer_turns(trace, active, policy, sampling)
            await self._truncate(trace, [branch for branch in active if branch.cut])
            active = [branch for branch in active if whole and not branch.done]
        if spent is not None:
            raise spent
        return [[branch.first for branch in group if branch.first is not None] for group in groups]

    async def _sample_turns(
        self, trace: Trace, branches: Sequence[_Branch], policy: Policy, sampling: Sampling, whole: bool
    ) -> BudgetExhausted | None:
        """Sample the next turn of each branch. Branches with the same prefix are one request."""
        requests: dict[tuple[bytes, int], list[_Branch]] = {}
        for branch in branches:
            at = _prefix_end(trace, branch.end)
            room = sampling.max_tokens - _sampled_tokens(trace, branch.end)
            room = room if self.limits.max_turn_tokens is None else min(room, self.limits.max_turn_tokens)
            requests.setdefault((trace.token_ids(at).tobytes(), room), []).append(branch)

        by_room = {
            room: sampling.with_max_tokens(room)
            if sampling.min_tokens <= room
            else replace(sampling, max_tokens=room, min_tokens=room)
            for room in {room for _, room in requests}
        }

        async def sample(room: int, group: Sequence[_Branch]) -> list[Completion] | PonderError:
            at = _prefix_end(trace, group[0].end)
            try:
                return await call_policy(
                    policy, trace.token_ids(at), another_seed(trace, at, by_room[room]), len(group)
                )
            except (Interrupted, BudgetExhausted):
                raise
            except PonderError as error:
                return error

        replies, spent = await gather_within_budget(*(sample(room, group) for (_, room), group in requests.items()))
        completions: dict[int, Completion | PonderError] = {}
        for reply, group in zip(replies, requests.values(), strict=True):
            for place, branch in enumerate(group):
                if isinstance(reply, PonderError):
                    completions[id(branch)] = reply
                elif reply is not None and place < len(reply):
                    completions[id(branch)] = reply[place]
        for branch in branches:
            self._add_turn(trace, branch, completions.get(id(branch)), whole)
        return spent

    def _add_turn(self, trace: Trace, branch: _Branch, reply: Completion | PonderError | None, whole: bool) -> None:
        if not isinstance(reply, Completion):  # no budget or no room for another turn: the episode ends before it
            branch.done = True
            if isinstance(reply, PonderError):
                end = _prefix_end(trace, branch.end)
                if trace.steps[end].parent is None and not trace.steps[end].turn:
                    raise reply  # not even a first turn
                trace.steps[end].last = True
                branch.cut = str(reply)
            return
        branch.end = add_completion(trace, _prefix_end(trace, branch.end), reply, last=whole)
        branch.first = branch.end if branch.first is None else branch.first
        branch.history = (*branch.history, reply.text)

    async def _answer_turns(
        self, trace: Trace, branches: Sequence[_Branch], policy: Policy, sampling: Sampling
    ) -> None:
        turns = await asyncio.gather(*(self._act(trace, branch) for branch in branches))
        for branch, turn in zip(branches, turns, strict=True):
            step = trace.steps[branch.end]
            if isinstance(turn, EnvironmentFailed):
                step.scores[TURN_REWARD] = Score(None, str(turn))
                branch.done = True
                _end_answer(step)
                continue
            if turn.reward is not None or turn.reason:
                step.scores[TURN_REWARD] = Score(0.0 if turn.reward is None else float(turn.reward), turn.reason)
            branch.cut = "" if turn.done else self._write_turn(trace, branch, turn, policy, sampling)
            if turn.done or branch.cut:
                branch.done = True
                _end_answer(step)

    async def _truncate(self, trace: Trace, branches: Sequence[_Branch]) -> None:
        """Score episodes that a limit ended: what they earned so far, and what their environments say is due. A turn
        without a reward earned nothing, so an episode without any has 0."""
        due = await asyncio.gather(*(self._due_reward(branch) for branch in branches))
        for branch, (score, is_known) in zip(branches, due, strict=True):
            step = trace.steps[branch.end]
            before = step.scores.get(TURN_REWARD)
            if not is_known and before is not None:
                continue
            if not is_known and turn_rewards(trace, branch.end):
                score = replace(score, value=0.0)
            if before is not None and before.value is not None and score.value is not None:
                score = replace(score, value=before.value + score.value)
            step.scores[TURN_REWARD] = score

    async def _due_reward(self, branch: _Branch) -> tuple[Score, bool]:
        """The reward that an environment gives for an episode that was cut, and whether it gave one."""
        pool = self._live.get(branch.history)
        if not pool or not callable(getattr(pool[-1].environment, "truncate", None)):
            return Score(0.0, branch.cut), False
        live = pool.pop()
        try:
            turn = await live.call("truncate")
            if turn is None:
                return Score(0.0, branch.cut), False
            reward = check_turn(turn, live.environment).reward
            reason = "; ".join(filter(None, [branch.cut, turn.reason]))
            return Score(None if reward is None else float(reward), reason), reward is not None
        except EnvironmentFailed as failure:
            return Score(None, str(failure)), True
        finally:
            await self._close(live)

    async def _act(self, trace: Trace, branch: _Branch) -> Turn | EnvironmentFailed:
        """Give the environment the policy's newest turn."""
        actions = self._actions(trace, branch.end)
        self._acted[branch.history] = actions[-1]
        try:
            live = await self._take(branch.history[:-1], actions[:-1])
        except EnvironmentFailed as failure:
            return failure
        try:
            turn = check_turn(await live.call("act", actions[-1]), live.environment)
        except EnvironmentFailed as failure:
            await self._close(live)
            return failure
        self._turns[branch.history] = turn
        if turn.done:
            await self._close(live)
        else:
            self._keep(branch.history, live)
        return turn

    def _write_turn(self, trace: Trace, branch: _Branch, turn: Turn, policy: Policy, sampling: Sampling) -> str:
        """Add what the environment said as a step; if the limits allow no further turn, the reason why not."""
        conversation = trace.conversation(branch.end)
        turns = sum(trace.steps[i].sampled for i in conversation)
        if turns >= self.limits.max_turns:
            return f"the episode was cut after its {turns} turns (max_turns)"
        if _sampled_tokens(trace, branch.end) >= sampling.max_tokens:
            return f"the episode was cut after its {sampling.max_tokens} sampled tokens (max_tokens)"
        history = branch.history
        left = self.limits.max_read_tokens - sum(self._read_tokens.get(history[:n], 0) for n in range(len(history)))
        most = self.limits.max_read_tokens
        cut = f"the episode was cut: its environment wrote more than {most} tokens (max_read_tokens)"
        if sum(len(str(message.get("content") or "")) for message in turn.messages) > left * _MAX_CHARS_PER_TOKEN:
            return cut
        step = trace.steps[branch.end]
        bridge = getattr(policy, "bridge", None)
        if bridge is None:
            raise UsageError(
                "this policy cannot take turns: it does not say which tokens stand between them; use a model in this"
                " process"
            )
        content = "\n".join(str(message.get("content") or "") for message in turn.messages)
        tokens: Ids | None = bridge(turn.messages, tools=self.tools, closed=step.stop == "eos")
        if tokens is not None:
            read = len(tokens)
            written = Step(branch.end, content, tokens, turn=True)
        else:
            read = len(policy.tokens(content))
            prompt = self.encode(self._whole_conversation(trace, branch.end, policy, turn), policy)
            written = Step(None, content, prompt, cites=(branch.end,), turn=True)
        if read > left:
            return cut
        self._read_tokens[history] = read
        trace.add(written)
        step.stop = "stop"  # the turn is over, the answer is not
        return ""

    def _whole_conversation(self, trace: Trace, end: int, policy: Any, turn: Turn) -> list[Message]:
        """The messages up to and with this turn, from the prompt on."""
        conversation = trace.conversation(end)
        messages = list(self._prompts[trace.steps[conversation[0]].token_ids.tobytes()])
        said: History = ()
        for i in conversation:
            if trace.steps[i].sampled:
                messages.append({"role": "assistant", "content": policy.turn_content(trace.steps[i].text)})
                said = (*said, trace.steps[i].text)
                if i != end:
                    messages += self._turns[said].messages
        return [*messages, *turn.messages]

    # Environments by history.

    async def _start(self) -> _LiveEnvironment:
        try:
            live = _LiveEnvironment(self.open_environment(), self.limits.max_seconds)
        except Interrupted:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFailed(f"the environment could not be made: {describe_error(error)}") from error
        try:
            self._check_first(check_turn(await live.call("reset", self.problem, self.seed), live.environment), live)
        except EnvironmentFailed:
            await self._close(live)
            raise
        return live

    def _check_first(self, turn: Turn, live: _LiveEnvironment) -> None:
        name = type(live.environment).__name__
        if turn.done:
            raise EnvironmentFailed(f"{name}.reset says done: an episode has at least one turn")
        first = self._turns.setdefault((), turn)
        if (first.messages, first.tools) != (turn.messages, turn.tools):
            raise EnvironmentFailed(
                f"{name}.reset gave two first turns for one problem and seed: what it does must be a function of them"
            )
        self.tools = turn.tools

    async def _take(self, history: History, actions: Sequence[Action]) -> _LiveEnvironment:
        """An environment after these turns: one that waits there, a copy, or a fresh one to which they are played."""
        pool = self._live.get(history)
        if pool:
            if len(pool) == 1 and callable(getattr(pool[0].environment, "copy", None)):
                return _LiveEnvironment(await pool[0].call("copy"), pool[0].seconds)
            return pool.pop()
        live = await self._start()
        try:
            await self._replay(live, history, actions)
        except EnvironmentFailed:
            await self._close(live)
            raise
        return live

    async def _replay(self, live: _LiveEnvironment, history: History, actions: Sequence[Action]) -> None:
        for at, action in enumerate(actions):
            turn = check_turn(await live.call("act", action), live.environment)
            known = self._turns.setdefault(history[: at + 1], turn)
            if (known.messages, known.done) != (turn.messages, turn.done):
                raise EnvironmentFailed(
                    f"{type(live.environment).__name__}.act answered the same turns in two ways: what it does must be"
                    " a function of the seed and the actions"
                )

    def _keep(self, history: History, live: _LiveEnvironment) -> None:
        self._live.setdefault(history, []).append(live)

    async def _close(self, live: _LiveEnvironment) -> None:
        try:
            live.seconds = max(live.seconds, 1.0)  # an episode that used its time up may still free what it holds
            await live.call("close")
        except EnvironmentFailed:
            pass

    # What a trace says of an episode.

    def _history(self, trace: Trace, end: int) -> History:
        return tuple(trace.steps[i].text for i in trace.conversation(end) if trace.steps[i].sampled)

    def _actions(self, trace: Trace, end: int) -> list[Action]:
        """The policy's turns, as the environment was given them."""
        steps = [trace.steps[i] for i in trace.conversation(end) if trace.steps[i].sampled]
        history = self._history(trace, end)
        return [
            self._acted.get(history[:number]) or self.action(step.text, step.token_ids, step.stop == "length")
            for number, step in enumerate(steps, 1)
        ]

    def action(self, text: str, token_ids: Ids, truncated: bool = False) -> Action:
        """What the policy wrote in a turn, with the calls in it of the tools on offer."""
        parsed = parse_answer(text, [tool["function"]["name"] for tool in self.tools])
        return Action(text, parsed.content, parsed.calls, token_ids, truncated)


def check_turn(turn: Any, environment: Any) -> Turn:
    """The turn, if it is one."""
    name = type(environment).__name__
    if not isinstance(turn, Turn):
        raise EnvironmentFailed(f"{name} answered with {short_repr(turn)}: it must return a Turn")
    if not isinstance(turn.messages, tuple | list) or not all(_is_message(message) for message in turn.messages):
        raise EnvironmentFailed(f'{name} gave messages of another form than {{"role": ..., "content": "..."}}')
    if turn.reward is not None and not isinstance(turn.reward, int | float):
        raise EnvironmentFailed(f"{name} gave the reward {short_repr(turn.reward)}: it is a number or None")
    if not turn.done and not turn.messages and turn.reward is None and not turn.tools and turn != Turn():
        raise EnvironmentFailed(f"{name} gave a turn that says nothing and does not end the episode")
    return replace(turn, messages=tuple(turn.messages), tools=tuple(turn.tools))


def turn_rewards(trace: Trace, step: int) -> list[Score]:
    """What the turns of an episode earned, up to this step."""
    steps = (trace.steps[i] for i in trace.conversation(step))
    return [s.scores[TURN_REWARD] for s in steps if TURN_REWARD in s.scores]


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        and len(message["role"]) <= 100
    )


def _end_answer(step: Step) -> None:
    """The answer ends with this step. In a search it is no rollout's, so `last` stays as it is."""
    if not step.done:
        step.stop = "eos"


def _prefix_end(trace: Trace, end: int) -> int:
    """The step that the policy's next turn continues."""
    turn = trace.next_turn(end)
    return end if turn is None else turn


def _sampled_tokens(trace: Trace, end: int) -> int:
    return sum(len(trace.steps[i].token_ids) for i in trace.conversation(end) if trace.steps[i].sampled)
