"""Records the calls of outside agents: those of one episode become one trace.

A call belongs to the episode that its header names (`x-ponder-episode`). Without one it continues the call whose
messages and answer its own messages begin with, of the same key and model; else it begins an episode. An episode is
written when the client says that it is done, when it had no call for a while, when its key has too many others, or when
the server stops. Until then it is in memory.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from ponder.serve.episode_trace import EpisodeTrace, RecordedAnswer
from ponder.serve.errors import not_found
from ponder.serve.events import Finished
from ponder.serve.generation import GenerationRequest
from ponder.serve.message_digests import prefix_digests
from ponder.serve.recorded_call import RecordedCall
from ponder.serve.served_models import ServedModel
from ponder.types import Trace

DEFAULT_IDLE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class EpisodeBounds:
    """What the open episodes of one key may use; the oldest are written first."""

    max_episodes: int = 1024
    max_tokens: int = 16 << 20  # of all of them
    max_calls: int = 4096  # of an episode; the next call begins another
    idle_seconds: float = DEFAULT_IDLE_SECONDS  # without a call, after which an episode is written


@dataclass(eq=False)
class OpenEpisode:
    """An episode that may go on."""

    key: tuple[str, str]  # its id and its model's name
    record: EpisodeTrace
    running: int = 0  # calls without a reply yet
    num_tokens: int = 0
    answers: list[tuple[bytes, RecordedAnswer]] = field(default_factory=list)  # by digest
    replies: dict[str, list[RecordedAnswer | None]] = field(default_factory=dict)  # by request; one for each choice
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class _KeyEpisodes:
    """The open episodes of one key, the one with the oldest call first."""

    episodes: OrderedDict[tuple[str, str], OpenEpisode] = field(default_factory=OrderedDict)
    by_digest: dict[bytes, list[tuple[OpenEpisode, RecordedAnswer]]] = field(default_factory=dict)
    by_request: dict[str, OpenEpisode] = field(default_factory=dict)

    def find(self, id: str) -> list[OpenEpisode]:
        """Those of an episode's id (one for each model), or the one of a reply's id."""
        if (one := self.by_request.get(id)) is not None:
            return [one]
        return [episode for (name, _), episode in self.episodes.items() if name == id]


class EpisodeRecorder:
    """`write` gets the traces of finished episodes. All methods belong to the thread of the event loop; `close` may be
    called after it."""

    def __init__(self, write: Callable[[Trace], None], bounds: EpisodeBounds | None = None) -> None:
        self.write, self.bounds = write, bounds or EpisodeBounds()
        self.calls: Counter[str] = Counter()  # that were answered, by model
        self.extra_prompts: Counter[str] = Counter()  # of these, for which the conversation stands once more
        self._by_owner: dict[str, _KeyEpisodes] = {}

    # the calls of a request, in order

    def begin(self, request: GenerationRequest, model: ServedModel, request_id: str, owner: str = "") -> RecordedCall:
        """Find the episode that a request belongs to, and what it continues."""
        mine = self._by_owner.setdefault(owner, _KeyEpisodes())
        digests = prefix_digests(request.messages, model.name.encode()[:64])
        episode, after, shared = self._find_answer(mine, request, digests)
        if episode is None and request.episode:
            episode = mine.episodes.get((request.episode, model.name))
        if episode is not None and episode.record.num_calls >= self.bounds.max_calls and not episode.running:
            self._finish(owner, episode, f"the episode had {self.bounds.max_calls} calls (max_calls)")
            episode, after, shared = None, None, 0
        if episode is None:
            name = request.episode or request_id
            episode = OpenEpisode((name, model.name), EpisodeTrace(name, model.name))
            mine.episodes[episode.key] = episode
        mine.episodes.move_to_end(episode.key)
        if after is not None:
            after.continuations += 1
        episode.running += 1
        if episode.timer is not None:
            episode.timer.cancel()
        return RecordedCall(request, request_id, model, episode.record, after, request.messages[shared:])

    def record(self, call: RecordedCall, finished: Finished, owner: str = "") -> None:
        """Add a call that was answered to its episode."""
        mine = self._by_owner[owner]
        episode = self._episode_of(mine, call)
        prompt = call.prompt
        assert prompt is not None
        before = episode.record.num_extra_prompts
        answers = episode.record.add_call(prompt, finished.traces, call.thoughts, call.request)
        self.calls[call.model.name] += 1
        self.extra_prompts[call.model.name] += episode.record.num_extra_prompts - before
        messages, start = call.request.messages, call.model.name.encode()[:64]
        for answer, message in zip(answers, call.answers, strict=True):
            if answer is not None:
                digest = prefix_digests([*messages, message], start)[-1]
                episode.answers.append((digest, answer))
                mine.by_digest.setdefault(digest, []).append((episode, answer))
        episode.replies[call.request_id] = answers
        mine.by_request[call.request_id] = episode
        episode.num_tokens = episode.record.num_tokens

    def end(self, call: RecordedCall, owner: str = "") -> None:
        """A call is over, with an answer or without."""
        mine = self._by_owner[owner]
        episode = mine.episodes.get((call.record.id, call.model.name))
        if episode is None or episode.record is not call.record:
            return
        episode.running -= 1
        if not episode.running:
            loop, seconds = asyncio.get_running_loop(), self.bounds.idle_seconds
            why = f"the episode had no call for {seconds:g} s"
            episode.timer = loop.call_later(seconds, self._finish, owner, episode, why)
        self._keep_bounds(owner, mine)

    # what clients do with an episode

    def set_reward(self, owner: str, id: str, choice: int, reward: float | None, reason: str = "") -> None:
        """What the newest call of an episode earned, or the call with this id."""
        for episode in self.find(owner, id):
            answers = episode.replies.get(id) or [episode.record.newest]
            if choice >= len(answers) or (answer := answers[choice]) is None:
                raise not_found(f"{id[:100]!r} has no answer {choice}", "answer_not_found", "choice")
            episode.record.set_reward(answer, reward, reason)

    def finish(self, owner: str, id: str) -> None:
        """The client says that the episode is done."""
        for episode in self.find(owner, id):
            self._finish(owner, episode)

    def find(self, owner: str, id: str) -> list[OpenEpisode]:
        """The open episode of this id, one for each model; or that of the reply with this id."""
        episodes = self._by_owner.get(owner, _KeyEpisodes()).find(id)
        if not any(episode.record.num_calls for episode in episodes):
            raise not_found(
                f"no episode {id[:100]!r} is open: it is unknown, or was written already", "episode_not_found", "id"
            )
        return [episode for episode in episodes if episode.record.num_calls]

    def close(self) -> None:
        """Write all that is open."""
        for owner, mine in self._by_owner.items():
            for episode in list(mine.episodes.values()):
                episode.timer = None  # the event loop may be closed
                self._finish(owner, episode, "the server stopped before the episode was done")

    # inside

    def _find_answer(
        self, mine: _KeyEpisodes, request: GenerationRequest, digests: list[bytes]
    ) -> tuple[OpenEpisode | None, RecordedAnswer | None, int]:
        """The answer that a request continues, and how many of its messages lead up to it. Of several with the same
        words the first that nobody continued, else the newest."""
        for shared in range(len(request.messages) - 1, 0, -1):
            if request.messages[shared - 1]["role"] != "assistant":
                continue
            known = mine.by_digest.get(digests[shared], ())
            fits = [pair for pair in known if request.episode in ("", pair[0].record.id)]
            if fits:
                episode, answer = next((pair for pair in fits if not pair[1].continuations), fits[-1])
                return episode, answer, shared
        return None, None, 0

    def _episode_of(self, mine: _KeyEpisodes, call: RecordedCall) -> OpenEpisode:
        """The call's episode; if it was finished while the call ran, a new one of the same id."""
        key = (call.record.id, call.model.name)
        episode = mine.episodes.get(key)
        if episode is not None and episode.record is call.record:
            return episode
        if episode is None:
            episode = mine.episodes[key] = OpenEpisode(key, EpisodeTrace(*key))
        episode.running += 1
        call.start_again(episode.record)
        return episode

    def _keep_bounds(self, owner: str, mine: _KeyEpisodes) -> None:
        total = sum(episode.num_tokens for episode in mine.episodes.values())
        for episode in list(mine.episodes.values()):
            if len(mine.episodes) <= self.bounds.max_episodes and total <= self.bounds.max_tokens:
                return
            if not episode.running:
                total -= episode.num_tokens
                self._finish(owner, episode, "there were too many open episodes")

    def _finish(self, owner: str, episode: OpenEpisode, unfinished: str = "") -> None:
        """Write an episode and forget it."""
        mine = self._by_owner[owner]
        if mine.episodes.get(episode.key) is not episode:
            return
        del mine.episodes[episode.key]
        if episode.timer is not None:
            episode.timer.cancel()
        for digest, answer in episode.answers:
            left = [pair for pair in mine.by_digest.get(digest, ()) if pair[1] is not answer]
            if left:
                mine.by_digest[digest] = left
            else:
                mine.by_digest.pop(digest, None)
        for request_id in episode.replies:
            mine.by_request.pop(request_id, None)
        trace = episode.record.finish(unfinished)
        if trace is not None:
            self.write(trace)
