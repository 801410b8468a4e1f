"""One episode of an outside agent as one trace: its calls become turns, in the form that `reason.episodes` has.

What was sampled keeps its tokens and log-probabilities; what the client wrote after it is a step without, marked as a
turn. A call that continues an earlier one in other words than its tokens say (the template or the client rewrote what
was there before) is a further prompt, which cites the step that it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ponder.serve.generation import GenerationRequest
from ponder.serve.message_digests import tools_digest
from ponder.types import TURN_REWARD, Ids, Message, Problem, Score, Step, Trace

EPISODE_REWARD = "reward"  # the score of an episode's last step, as that of tasks with an environment
NOT_CONTINUED = "the agent did not go on from here"
NO_REWARD = "no reward was posted"


@dataclass(eq=False)
class RecordedAnswer:
    """An answer that a client was given: where it ends in the trace, and how often it was continued."""

    end: int
    stop: str | None  # why sampling ended
    tools: bytes  # a digest of those on offer
    thought: str = ""
    continuations: int = 0


@dataclass(frozen=True, slots=True)
class NewPrompt:
    """What a call adds before its answer. `after`: the answer that it continues. `added`: the tokens that follow its
    tokens; None if the whole prompt has to stand again."""

    messages: tuple[Message, ...]  # the new ones
    whole: Ids
    after: RecordedAnswer | None = None
    added: Ids | None = None


@dataclass(eq=False)
class EpisodeTrace:
    """The trace of an episode while it grows. `id`: the client's own, or that of its first reply."""

    id: str
    model: str
    trace: Trace | None = None
    num_calls: int = 0
    newest: RecordedAnswer | None = None
    group: str = ""  # episodes of one group are compared with each other
    _prompts: dict[tuple[int | None, bytes], int] = field(default_factory=dict)  # steps, by parent and tokens
    _rewarded: list[int] = field(default_factory=list)  # steps with a reward that the client posted
    _temperatures: set[float] = field(default_factory=set)
    _changes_distribution: bool = False
    _was_searched: bool = False

    @property
    def num_tokens(self) -> int:
        return 0 if self.trace is None else sum(len(step.token_ids) for step in self.trace.steps)

    @property
    def num_extra_prompts(self) -> int:
        """Prompts after the first: the conversation did not go on with the tokens that were there."""
        return 0 if self.trace is None else sum(step.turn and step.parent is None for step in self.trace.steps)

    @property
    def num_sampled_tokens(self) -> int:
        return 0 if self.trace is None else sum(len(s.token_ids) for s in self.trace.steps if s.sampled)

    def token_ids(self, answer: RecordedAnswer) -> Ids:
        """All tokens up to the end of an answer."""
        assert self.trace is not None
        return self.trace.token_ids(answer.end)

    def add_call(
        self, prompt: NewPrompt, replies: Sequence[Trace], thoughts: Sequence[str], request: GenerationRequest
    ) -> list[RecordedAnswer | None]:
        """Add a finished call: its prompt, and all that was sampled for each of its choices. Returns the end of each
        choice's answer; None for a choice without one."""
        self._temperatures.add(request.sampling.temperature)
        self._changes_distribution |= request.sampling.renormalises
        self._was_searched |= request.strategy is not None or any(map(_is_search, replies))
        at = self._add_prompt(prompt, request.messages)
        assert self.trace is not None
        answers: list[RecordedAnswer | None] = []
        for reply, thought in zip(replies, thoughts, strict=True):
            places = self._add_steps(reply, at)
            self.trace.add_cost(reply.cost)
            if reply.chosen is None:
                answers.append(None)
                continue
            end = places[reply.chosen]
            answers.append(RecordedAnswer(end, self.trace.steps[end].stop, tools_digest(request), thought))
        self.num_calls += 1
        self.newest = next((answer for answer in answers if answer is not None), self.newest)
        if self.newest is not None:
            self.trace.chosen = self.newest.end
        return answers

    def set_reward(self, answer: RecordedAnswer, reward: float | None, reason: str) -> None:
        """What a call earned. A second reward replaces the first. None: undecided."""
        assert self.trace is not None
        self.trace.steps[answer.end].scores[TURN_REWARD] = Score(reward, reason)
        if answer.end not in self._rewarded:
            self._rewarded.append(answer.end)

    def finish(self, unfinished: str = "") -> Trace | None:
        """The trace to keep. An episode's reward is the sum over its calls; it is undecided if the episode did not
        finish, for this reason. Where rewards were posted, branches without one are marked as not continued."""
        trace = self.trace
        if trace is None:
            return None
        tags: dict[str, Any] = {"model": self.model, "temperatures": sorted(self._temperatures)}
        tags |= {"renormalised": True} if self._changes_distribution else {}
        tags |= {"searched": True} if self._was_searched else {}
        tags |= {"group": self.group} if self.group else {}
        trace.problem = replace(trace.problem, tags=tags)
        if not self._rewarded and unfinished:
            return trace  # nobody rewards these calls
        ends = [] if self.newest is None else [self.newest.end]
        ends += [end for end in self._rewarded if end not in ends and trace.next_turn(end) is None]
        for end in ends:
            trace.steps[end].scores[EPISODE_REWARD] = self._total(end, unfinished)
        kept = {i for end in ends for i in trace.conversation(end)}
        for i, step in enumerate(trace.steps):
            if i not in kept and not step.pruned:
                step.pruned = NOT_CONTINUED
        return trace

    def _total(self, end: int, unfinished: str) -> Score:
        assert self.trace is not None
        steps = [self.trace.steps[i] for i in self.trace.conversation(end)]
        turns = [step.scores[TURN_REWARD] for step in steps if TURN_REWARD in step.scores]
        if undecided := next((turn for turn in turns if turn.value is None), None):
            return undecided
        if unfinished or not turns:
            return Score(None, unfinished or NO_REWARD)
        return Score(sum(turn.value or 0.0 for turn in turns), turns[-1].reason)

    def _add_prompt(self, prompt: NewPrompt, messages: tuple[Message, ...]) -> int:
        """The step that the answers of a call follow. A prompt that is there already gets another branch."""
        if self.trace is None:
            self.trace = Trace(Problem(self.id, messages))
            self._prompts[None, prompt.whole.tobytes()] = 0
            return self.trace.add(Step(None, self.trace.problem.question, prompt.whole))
        after = None if prompt.after is None else prompt.after.end
        parent, tokens = (None, prompt.whole) if prompt.added is None else (after, prompt.added)
        known = self._prompts.get((parent, tokens.tobytes()))
        if known is not None:
            return known
        before = after if after is not None else None if self.newest is None else self.newest.end
        if before is not None:
            self.trace.steps[before].stop = "stop"  # the turn is over, the answer is not
        text = "\n".join(str(message.get("content") or "") for message in prompt.messages)
        cites = () if parent is not None or before is None else (before,)
        step = self.trace.add(Step(parent, text, tokens, cites=cites, turn=before is not None))
        self._prompts[parent, tokens.tobytes()] = step
        return step

    def _add_steps(self, reply: Trace, at: int) -> dict[int, int]:
        """Add what a choice sampled after its prompt. Returns where each of its steps is now."""
        assert self.trace is not None
        places, before = {0: at}, self.trace.step_before(at)
        for i, step in enumerate(reply.steps[1:], 1):
            parent = None if step.parent is None else places[step.parent]
            cites = tuple(places[cited] for cited in step.cites)
            copy = replace(step, parent=parent, cites=cites, scores=dict(step.scores), notes=dict(step.notes))
            if parent is None and not cites and before is not None:  # a strategy's own prompt
                copy = replace(copy, cites=(before,), turn=True)
            places[i] = self.trace.add(copy)
        return places


def _is_search(reply: Trace) -> bool:
    """Whether more was sampled than the answer that was chosen."""
    path = set() if reply.chosen is None else set(reply.path(reply.chosen))
    return any(step.sampled and i not in path for i, step in enumerate(reply.steps))
