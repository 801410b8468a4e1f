"""Calls of outside agents become one trace per episode: by header or by prefix, in the tokens that were sampled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ponder.models import chat_templates
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.reason.tools.tool_counts import episode_counts
from ponder.runs import read_traces
from ponder.serve.episode_recorder import EpisodeBounds, EpisodeRecorder
from ponder.serve.guard import GuardSettings
from ponder.serve.served_models import ServedModel, ServedModels, ThinkMarkers
from ponder.serve.trace_log import ServeJob, TraceLog
from ponder.types import TURN_REWARD, Trace
from serve.live_server import ALPHABET, LiveServer, Reply, live_server, wait_until
from serve.scripted_policy import tool_models

APPEND_ONLY = (
    "{% for m in messages %}({{ m.role[0] }}){{ m.content }};{% endfor %}{% if add_generation_prompt %}(a){% endif %}"
)
# Only the last answer keeps what stands in angle brackets, as Qwen3's template keeps thoughts.
REWRITES = (
    "{% for m in messages %}({{ m.role[0] }}){{ m.content if loop.last or m.role == 'user' else '-' }};{% endfor %}"
    "{% if add_generation_prompt %}(a){% endif %}"
)
THINKS = (
    "{% for m in messages %}({{ m.role[0] }}){% if m.reasoning_content %}<{{ m.reasoning_content }}>\n\n{% endif %}"
    "{{ m.content }};{% endfor %}{% if add_generation_prompt %}(a)"
    "{% if enable_thinking is defined and enable_thinking %}<{% endif %}{% endif %}"
)


@lru_cache
def policy(template: str) -> PonderPolicy:
    fresh = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=1024, seed=5)
    net, tokenizer = fresh.build(torch.float32, torch.device("cpu"))
    return PonderPolicy(net, chat_templates.with_chat_template(tokenizer, template), 5, cache_bytes=64 << 20)


@contextmanager
def recording(
    template: str = APPEND_ONLY, bounds: EpisodeBounds | None = None, models: ServedModels | None = None, **how: Any
) -> Iterator[tuple[LiveServer, list[Trace]]]:
    """A server, and the traces of finished episodes."""
    traces: list[Trace] = []
    models = models or ServedModels([ServedModel("m", policy(template))])
    with live_server(models, **how) as server:
        server.service.recorder = EpisodeRecorder(traces.append, bounds)
        yield server, traces
        server.service.recorder.close()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ask(server: LiveServer, messages: list[Any], episode: str = "", **fields: Any) -> Reply:
    headers = {"x-ponder-episode": episode} if episode else {}
    body = {"model": "m", "messages": messages, "max_tokens": 6, "return_token_ids": True, **fields}
    reply = server.post("/v1/chat/completions", body, **headers)
    assert reply.status == 200, reply.body
    return reply


def said(reply: Reply, choice: int = 0) -> dict[str, Any]:
    message: dict[str, Any] = reply.json["choices"][choice]["message"]
    return message


def play(server: LiveServer, question: str, answers: list[str], episode: str = "", **fields: Any) -> list[Reply]:
    """An agent that answers each reply with the next of these texts."""
    messages, replies = [user(question)], [ask(server, [user(question)], episode, **fields)]
    for answer in answers:
        messages += [said(replies[-1]), user(answer)]
        replies.append(ask(server, messages, episode, **fields))
    return replies


def test_calls_with_one_prefix_are_one_trace_in_the_sampled_tokens() -> None:
    with recording() as (server, traces):
        replies = play(server, "2+2?", ["no", "again"], seed=3, logprobs=True)
        done = server.post(f"/v1/episodes/{replies[-1].json['id']}", {"reward": 0.5, "reason": "half"})
        assert (done.status, done.json["calls"], done.json["extra_prompts"]) == (200, 3, 0)
    (trace,) = traces
    assert [(s.sampled, s.turn) for s in trace.steps] == [
        (False, False), (True, False), (False, True), (True, False), (False, True), (True, False),
    ]  # fmt: skip
    sampled = [s for s in trace.steps if s.sampled]
    for step, reply in zip(sampled, replies, strict=True):
        choice = reply.json["choices"][0]
        assert step.token_ids.tolist() == choice["token_ids"]
        told = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert step.logprobs is not None and np.allclose(step.logprobs, told)
    for i, reply in zip((0, 2, 4), replies, strict=True):  # each prompt begins with all tokens before it
        assert trace.token_ids(i).tolist() == reply.json["prompt_token_ids"]
    (leaf,) = trace.answers()
    assert trace.steps[leaf].scores["reward"].value == 0.5 and trace.steps[leaf].scores["reward"].reason == "half"
    assert episode_counts(trace, leaf).turns == 3 and trace.steps[2].text == "no"
    assert trace.problem.tags == {"model": "m", "temperatures": [1.0]}


def test_prompt_of_a_continued_call_says_what_the_template_renders() -> None:
    with recording() as (server, _):
        replies = play(server, "2+2?", ["no"], seed=3)
        text = policy(APPEND_ONLY).text(np.array(replies[1].json["prompt_token_ids"], np.int32))
        rendered = chat_templates.render_chat(APPEND_ONLY, [user("2+2?"), said(replies[0]), user("no")])
        assert text == rendered


def test_sampled_tokens_are_not_tokenised_again() -> None:
    """The answer in other tokens than the tokenizer would take: the episode keeps those that were sampled."""
    with recording() as (server, traces):
        first = ask(server, [user("a")], seed=1)
        record = next(iter(server.service.recorder._by_owner[""].episodes.values())).record  # type: ignore[union-attr]
        assert record.trace is not None
        other = record.trace.steps[1].token_ids[::-1].copy()
        record.trace.steps[1].token_ids = other
        second = ask(server, [user("a"), said(first), user("b")])
        before = [*first.json["prompt_token_ids"], *other.tolist()]
        assert second.json["prompt_token_ids"][: len(before)] == before
    assert len(traces) == 1


def test_header_puts_parallel_episodes_of_one_prompt_into_two_traces() -> None:
    with recording() as (server, traces):
        for name in ("one", "two"):
            play(server, "go", ["x"], episode=name, seed=4)
        for name, reward in (("one", 1.0), ("two", 0.0)):
            assert server.post(f"/v1/episodes/{name}", {"reward": reward}).status == 200
    assert [(t.problem.id, t.score(t.answers()[0], "reward")) for t in traces] == [("one", 1.0), ("two", 0.0)]
    assert all(episode_counts(t, t.answers()[0]).turns == 2 for t in traces)


def test_equal_answers_without_header_stay_in_their_own_episodes() -> None:
    with recording() as (server, traces):
        a, b = (ask(server, [user("go")], seed=4) for _ in range(2))
        assert said(a)["content"] == said(b)["content"]
        for text in ("x", "y"):
            ask(server, [user("go"), said(a), user(text)], seed=1)
    assert sorted(t.steps[2].text for t in traces) == ["x", "y"] and all(len(t.steps) == 4 for t in traces)


def test_answer_that_is_continued_twice_is_a_fork() -> None:
    with recording() as (server, traces):
        first = ask(server, [user("go")], "e", seed=4)
        left, right = (ask(server, [user("go"), said(first), user(text)], "e") for text in ("x", "y"))
        server.post(f"/v1/episodes/{left.json['id']}", {"reward": 1, "done": False})
        server.post(f"/v1/episodes/{right.json['id']}", {"reward": 0})
    (trace,) = traces
    assert [s.parent for s in trace.steps] == [None, 0, 1, 2, 1, 4]
    assert {trace.steps[i].scores["reward"].value for i in trace.answers()} == {0.0, 1.0}
    assert list(trace.children(1)) == [3, 5]


def test_branch_without_reward_is_pruned_where_another_has_one() -> None:
    with recording() as (server, traces):
        for _ in range(2):
            last = ask(server, [user("go")], "e")
        server.post(f"/v1/episodes/{last.json['id']}", {"reward": 1})
    (trace,) = traces
    assert [s.parent for s in trace.steps] == [None, 0, 0] and trace.answers() == [2]
    assert trace.steps[1].pruned and not trace.steps[2].pruned


def test_template_that_rewrites_history_begins_a_further_prompt() -> None:
    with recording(REWRITES) as (server, traces):
        replies = play(server, "2+2?", ["no"], "e")
        assert server.get("/v1/episodes/e").json["extra_prompts"] == 1
        counted = server.get("/metrics").body.decode()
        calls = server.get("/v1/episodes/e").json["calls"]
        assert re.search(rf'^ponder:episode_calls_total{{model_name="[^"]+"}} {calls}(\.0)?$', counted, re.MULTILINE)
        assert re.search(r'^ponder:episode_extra_prompts_total{model_name="[^"]+"} 1(\.0)?$', counted, re.MULTILINE)
        server.post("/v1/episodes/e", {"reward": 1})
    (trace,) = traces
    root = trace.steps[2]
    assert root.parent is None and root.cites == (1,) and root.turn
    assert root.token_ids.tolist() == replies[1].json["prompt_token_ids"]
    (leaf,) = trace.answers()
    assert trace.conversation(leaf) == [0, 1, 2, 3]


def test_edited_history_begins_a_further_prompt_with_header_and_an_episode_without() -> None:
    for episode, count in (("e", 1), ("", 2)):
        with recording() as (server, traces):
            ask(server, [user("go")], episode)
            ask(server, [user("go"), {"role": "assistant", "content": "other words"}, user("x")], episode)
        assert len(traces) == count


@pytest.mark.parametrize("seed", [3, 4])  # its answer ends with the end-of-sequence token, or at the limit
@pytest.mark.parametrize(("sends_thoughts", "extra"), [(True, 0), (False, 1)])
def test_thoughts_stay_in_the_prompt_only_if_the_client_sends_them(sends_thoughts: bool, extra: int, seed: int) -> None:
    models = ServedModels([ServedModel("m", policy(THINKS), ThinkMarkers("<", ">"))])
    with recording(models=models) as (server, traces):
        first = ask(server, [user("go")], "e", max_tokens=40, thinking_token_budget=4, seed=seed)
        message = said(first)
        assert message["reasoning_content"]
        if not sends_thoughts:
            message = {"role": "assistant", "content": message["content"]}
        second = ask(server, [user("go"), message, user("x")], "e", max_tokens=40, thinking_token_budget=4)
        server.post("/v1/episodes/e", {"reward": 1})
    (trace,) = traces
    (leaf,) = trace.answers()
    assert episode_counts(trace, leaf).extra_prompts == extra
    last_prompt = max(i for i, s in enumerate(trace.steps) if s.turn)
    assert trace.token_ids(last_prompt).tolist() == second.json["prompt_token_ids"]


def test_tool_calls_and_results_are_turns() -> None:
    add = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    with recording(models=tool_models()) as (server, traces):
        fields: dict[str, Any] = {"model": "caller", "tools": [add], "max_tokens": 200}
        first = ask(server, [user("add 2 and 3")], **fields)
        result = {"role": "tool", "content": "5", "tool_call_id": said(first)["tool_calls"][0]["id"]}
        second = ask(server, [user("add 2 and 3"), said(first), result], **fields)
        assert said(second)["content"] == "The sum is 5."
        server.post(f"/v1/episodes/{second.json['id']}", {"reward": 1})
    (trace,) = traces
    counts = episode_counts(trace, trace.answers()[0])
    assert (counts.turns, counts.tool_calls) == (2, 1)


CALLS = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}({{ m.role[0] }})"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %};"
    "{% endfor %}{% if add_generation_prompt %}(a){% endif %}"
)


@pytest.mark.parametrize(("later_tools", "extra"), [(("f",), 0), (("f", "g"), 1)], ids=["same tools", "other tools"])
def test_call_of_a_tool_stays_in_the_tokens_that_were_sampled(later_tools: tuple[str, ...], extra: int) -> None:
    """Without the spaces that the template writes into the JSON of a call; other tools are another prompt."""
    pytest.importorskip("llguidance")

    def fields(*names: str) -> dict[str, Any]:
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
        tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in names]
        pattern = r'<tool_call>\{"name":"f","arguments":\{"x":[0-9]\}\}</tool_call>'
        return {"tools": tools, "max_tokens": 80, "response_format": {"type": "regex", "pattern": pattern}}

    with recording(CALLS) as (server, _):
        first = ask(server, [user("go")], **fields("f"))
        result = {"role": "tool", "content": "5", "tool_call_id": said(first)["tool_calls"][0]["id"]}
        second = ask(server, [user("go"), said(first), result], **fields(*later_tools))
        before = [*first.json["prompt_token_ids"], *first.json["choices"][0]["token_ids"]]
        assert (second.json["prompt_token_ids"][: len(before)] == before) == (not extra)
        assert policy(CALLS).text(np.array(second.json["prompt_token_ids"], np.int32)).endswith(";(t)5;(a)")
        shown = server.get(f"/v1/episodes/{second.json['id']}").json
        assert (shown["calls"], shown["extra_prompts"]) == (2, extra)


def test_streamed_calls_are_recorded_like_whole_ones() -> None:
    with recording() as (server, traces):
        first = ask(server, [user("go")], "e", seed=4, stream=True)
        content = "".join(choice["delta"].get("content") or "" for chunk in first.chunks for choice in chunk["choices"])
        ask(server, [user("go"), {"role": "assistant", "content": content}, user("x")], "e")
    (trace,) = traces
    assert [s.parent for s in trace.steps] == [None, 0, 1, 2]


def test_rewards_of_turns_are_summed_and_replaced() -> None:
    with recording() as (server, traces):
        replies = play(server, "go", ["x"], "e")
        for reward in (5, 0.25):  # the second replaces the first
            server.post(f"/v1/episodes/{replies[0].json['id']}", {"reward": reward, "done": False})
        server.post("/v1/episodes/e", {"reward": 0.5})
    (trace,) = traces
    assert [trace.score(i, TURN_REWARD) for i in (1, 3)] == [0.25, 0.5]
    assert trace.score(trace.answers()[0], "reward") == 0.75


def test_undecided_and_missing_rewards_are_no_zeros() -> None:
    with recording() as (server, traces):
        for name, body in (("null", {"reward": None, "reason": "the judge crashed"}), ("none", {"done": True})):
            ask(server, [user("go")], name)
            server.post(f"/v1/episodes/{name}", body)
        ask(server, [user("go")], "open")
        server.post("/v1/episodes/open", {"reward": 1, "done": False})
    scores = {t.problem.id: t.steps[t.answers()[0]].scores["reward"] for t in traces}
    assert all(score.value is None for score in scores.values())
    assert scores["null"].reason == "the judge crashed" and "stopped" in scores["open"].reason


def test_choices_of_a_call_are_branches_with_rewards_of_their_own() -> None:
    with recording() as (server, traces):
        reply = ask(server, [user("go")], n=3)
        for choice in range(3):
            body = {"reward": choice, "choice": choice, "done": choice == 2}
            assert server.post(f"/v1/episodes/{reply.json['id']}", body).status == 200
    (trace,) = traces
    assert sorted(trace.score(i, "reward") or 0.0 for i in trace.answers()) == [0.0, 1.0, 2.0]


def test_idle_episodes_are_written_after_their_seconds() -> None:
    with recording(bounds=EpisodeBounds(idle_seconds=0.05)) as (server, traces):
        ask(server, [user("go")], "e")
        wait_until(lambda: len(traces) == 1)
        assert server.get("/v1/episodes/e").status == 404
    assert not traces[0].steps[1].scores  # nobody rewards a plain request


def test_each_key_has_a_bounded_number_of_open_episodes() -> None:
    guard = GuardSettings(("key-1", "key-2"))
    with recording(bounds=EpisodeBounds(max_episodes=2), guard=guard) as (server, traces):
        server.headers = {"authorization": "Bearer key-1"}
        for name in "abc":
            ask(server, [user("go")], name)
        assert [t.problem.id for t in traces] == ["a"]
        server.headers = {"authorization": "Bearer key-2"}
        assert server.get("/v1/episodes/b").status == 404  # another key's
        ask(server, [user("go")], "b")
        assert len(traces) == 1


def test_call_that_ends_after_its_episode_begins_another() -> None:
    with recording(bounds=EpisodeBounds(max_calls=1)) as (server, traces):
        play(server, "go", ["x"], "e")
    assert [len(t.steps) for t in traces] == [2, 2]


def test_responses_are_recorded_too() -> None:
    with recording() as (server, traces):
        body = {"model": "m", "input": "go", "max_output_tokens": 6}
        first = server.post("/v1/responses", body).json
        more = {**body, "input": "x", "previous_response_id": first["id"]}
        second = server.post("/v1/responses", more).json
        assert server.post(f"/v1/episodes/{second['id']}", {"reward": 1}).json["calls"] == 2
    assert [s.parent for s in traces[0].steps] == [None, 0, 1, 2]


@pytest.mark.parametrize(
    ("body", "param"),
    [({"done": False}, "reward"), ({"reward": "1"}, "reward"), ({"rewards": 1}, "rewards"), ({"choice": 9}, "choice")],
)
def test_bad_updates_are_refused(body: dict[str, Any], param: str) -> None:
    with recording() as (server, traces):
        ask(server, [user("go")], "e")
        refused = server.post("/v1/episodes/e", {"reward": 1, **body} if param == "choice" else body)
        assert refused.status in (400, 404) and refused.json["error"]["param"] == param
        assert not traces


def test_routes_without_recording_and_bad_headers_are_refused() -> None:
    with live_server(ServedModels([ServedModel("m", policy(APPEND_ONLY))])) as server:
        unknown = server.post("/v1/episodes/e", {"reward": 1})
        assert unknown.status == 404 and "--traces" in unknown.json["error"]["message"]
        body = {"model": "m", "messages": [user("go")], "max_tokens": 1}
        long = server.post("/v1/chat/completions", body, **{"x-ponder-episode": "x" * 201})
        assert long.status == 400 and long.json["error"]["param"] == "x-ponder-episode"


def test_written_episodes_are_read_back_as_they_were(tmp_path: Path) -> None:
    with TraceLog(tmp_path / "served", ServeJob(("m",)), [policy(APPEND_ONLY)]) as log:
        with recording() as (server, _):
            assert server.service.recorder is not None
            server.service.recorder.write = log.write
            play(server, "go", ["x", "y"], "e")
            server.post("/v1/episodes/e", {"reward": 1, "group": "g"})
    ((_, trace),) = read_traces(tmp_path / "served")
    (leaf,) = trace.answers()
    assert episode_counts(trace, leaf).turns == 3 and trace.problem.tags["group"] == "g"
    assert trace.score(leaf, "reward") == 1.0
