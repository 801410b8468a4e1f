"""`/v1/episodes/{id}`: what an outside agent's episode earned, and whether it is done (an extension of this server)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from ponder.serve.episode_recorder import EpisodeRecorder, OpenEpisode
from ponder.serve.errors import invalid, not_found
from ponder.serve.http_replies import Reply, read_fields
from ponder.serve.json_body import Fields
from ponder.serve.service import Service

EPISODE_HEADER = "x-ponder-episode"
MAX_ID_CHARS = 200
MAX_REASON_CHARS = 2000
MAX_REWARD = 1e9

Handler = Callable[[Service, Request], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class EpisodeUpdate:
    """What a client says of an episode. `has_reward` with `reward` None: the reward is undecided."""

    has_reward: bool
    reward: float | None
    reason: str
    done: bool
    group: str
    choice: int


def read_episode_update(fields: Fields, max_choices: int) -> EpisodeUpdate:
    has_reward = "reward" in fields.body
    update = EpisodeUpdate(
        has_reward=has_reward,
        reward=fields.number("reward", None, -MAX_REWARD, MAX_REWARD),
        reason=fields.text("reason", "", MAX_REASON_CHARS) or "",
        done=fields.flag("done", True),
        group=fields.text("group", "", MAX_ID_CHARS) or "",
        choice=fields.integer("choice", 0, 0, max_choices - 1) or 0,
    )
    fields.refuse_unread(())
    if not update.done and not has_reward:
        raise invalid("give a reward, or done: true", "reward", "missing_required_parameter")
    return update


def read_episode_header(http: Request) -> str:
    """The episode that a request names; empty: none."""
    id = http.headers.get(EPISODE_HEADER, "")
    if len(id) > MAX_ID_CHARS or not id.isascii() or not all(c.isprintable() for c in id):
        raise invalid(f"{EPISODE_HEADER} is an id of at most {MAX_ID_CHARS} printable ASCII characters", EPISODE_HEADER)
    return id.strip()


def episode_json(id: str, episodes: Sequence[OpenEpisode], done: bool) -> dict[str, Any]:
    """An episode as clients see it. With several models it has a trace for each."""
    records = [episode.record for episode in episodes]
    return {
        "id": records[0].id,
        "object": "episode",
        "models": [record.model for record in records],
        "done": done,
        "calls": sum(record.num_calls for record in records),
        "sampled_tokens": sum(record.num_sampled_tokens for record in records),
        "extra_prompts": sum(record.num_extra_prompts for record in records),
    }


def episode_routes(owner_of: Callable[[Request], str]) -> list[tuple[str, str, Handler]]:
    """Path, method and handler of each route."""

    async def get(service: Service, http: Request) -> Any:
        id = http.path_params["id"]
        return Reply(episode_json(id, _recorder(service).find(owner_of(http), id), done=False))

    async def update(service: Service, http: Request) -> Any:
        id, owner, recorder = http.path_params["id"], owner_of(http), _recorder(service)
        said = read_episode_update(await read_fields(http, service.limits), service.limits.max_choices)
        if said.has_reward:
            recorder.set_reward(owner, id, said.choice, said.reward, said.reason)
        episodes = recorder.find(owner, id)
        for episode in episodes:
            episode.record.group = said.group or episode.record.group
        if said.done:
            recorder.finish(owner, id)
        return Reply(episode_json(id, episodes, said.done))

    return [("/v1/episodes/{id}", "GET", get), ("/v1/episodes/{id}", "POST", update)]


def _recorder(service: Service) -> EpisodeRecorder:
    if service.recorder is None:
        raise not_found("this server records no episodes: start it with --traces DIR", "not_recording")
    return service.recorder
