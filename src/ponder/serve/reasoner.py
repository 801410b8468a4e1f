"""Run a request and yield its events."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from ponder.errors import ModelError, UsageError
from ponder.models.engine_policy import EnginePolicy
from ponder.models.replicas.model_replicas import ModelReplicas
from ponder.serve.choice_run import ChoiceRun
from ponder.serve.errors import ApiError, cancelled, invalid
from ponder.serve.event_queue import EventQueue
from ponder.serve.events import Event, Finished, Reasoning, Started
from ponder.serve.generation import GenerationRequest
from ponder.serve.limits import Limits
from ponder.serve.named_tokens import check_named_token_ids, check_token_ids
from ponder.serve.recorded_call import RecordedCall
from ponder.serve.running_requests import Control
from ponder.serve.served_models import ServedModel
from ponder.serve.strategy_choice import Approach, choose_approach
from ponder.serve.streaming_policy import StreamingPolicy
from ponder.serve.thinking_policy import ANSWER_SEPARATOR
from ponder.serve.usage import Usage
from ponder.types import Ids, Message, Problem, Trace, ids, prompt_trace

_LONG_PROMPT_CHARS = 1 << 16  # tokenised in a thread, while others are served
_TAIL_TOKENS = 16  # of a prompt, in which an opening think marker is looked for


async def reason(
    request: GenerationRequest,
    model: ServedModel,
    control: Control,
    limits: Limits,
    suffix: str = "",
    call: RecordedCall | None = None,
) -> AsyncGenerator[Event]:
    """Events of a request, from `Started` to `Finished`. Closing the generator ends all that it runs.

    `suffix`: the strategy in the model's name. The bound on tokens holds for each of the request's choices. `call`:
    gives the prompt of a request that is recorded, which may go on from the tokens of an earlier one.
    """
    thinks = _thinks(request, model)
    encode = partial(_encode, request, model, thinks)
    encode_prompt = encode if call is None else partial(call.encode, encode)
    if request.prompt_token_ids is not None:
        prompt = ids(request.prompt_token_ids)
    elif sum(len(str(message.get("content", ""))) for message in request.messages) > _LONG_PROMPT_CHARS:
        prompt = await asyncio.to_thread(encode_prompt, request.messages)
    else:
        prompt = encode_prompt(request.messages)
    approach = choose_approach(request, model, limits, suffix, _room(request, model, prompt, thinks))
    await _check_sampling(request, model, prompt, approach)
    yield Started(prompt.tolist(), searches=approach.strategy is not None)
    events = EventQueue()
    seed = secrets.randbits(64) if request.seed is None else request.seed
    problem = Problem("request", request.messages)
    runs = [
        ChoiceRun(
            request, model, approach, StreamingPolicy(model, encode, _choice_seed(seed, choice), control), thinks,
            partial(_is_open, model), events.put, choice,
        )
        for choice in range(request.n)
    ]  # fmt: skip
    work = asyncio.ensure_future(_run_all(runs, problem, prompt))
    work.add_done_callback(events.close)
    control.on_cancel = events.close
    if control.is_cancelled:
        events.close()
    try:
        async for event in events:
            if request.include_reasoning or not isinstance(event, Reasoning):
                yield event
        if not work.done():
            raise cancelled()
        yield _finished(runs, work.result(), len(prompt))
    finally:
        control.on_cancel = None
        if not work.done():
            work.cancel()
            await asyncio.wait({work})


async def _run_all(runs: Sequence[ChoiceRun], problem: Problem, prompt: Ids) -> list[Trace]:
    if len(runs) == 1:
        return [await runs[0].run(problem, prompt_trace(problem, prompt))]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.run(problem, prompt_trace(problem, prompt))) for run in runs]
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


def _finished(runs: Sequence[ChoiceRun], traces: Sequence[Trace], prompt_tokens: int) -> Finished:
    usage = Usage.from_traces(
        traces,
        prompt_tokens,
        cached_tokens=max(0, runs[0].policy.cached_tokens),
        sampled_tokens=sum(run.policy.sampled_tokens for run in runs),
        content_tokens=sum(run.content_tokens for run in runs),
    )
    return Finished(tuple(run.finish_reason for run in runs), usage, tuple(traces))


def _thinks(request: GenerationRequest, model: ServedModel) -> bool:
    if model.think is None:
        if request.thinking_token_budget is not None:
            raise invalid(f"{model.name} does not think before it answers: leave out thinking_token_budget",
                          "thinking_token_budget")  # fmt: skip
        return False
    wanted = request.thinking if request.thinking is not None else request.effort != "none"
    return wanted and request.thinking_token_budget != 0


def _encode(request: GenerationRequest, model: ServedModel, thinks: bool, messages: Sequence[Message]) -> Ids:
    template_fields = dict(request.template_fields)
    if model.think is not None:
        template_fields.setdefault("enable_thinking", thinks)  # Qwen's word, and so most templates'
        template_fields.setdefault("open_think", thinks)  # ponder's own r1
    try:
        return model.encode(messages, request.tools if request.tool_choice != "none" else (), **template_fields)
    except (ModelError, UsageError) as reason:
        raise invalid(f"the messages cannot be encoded: {reason}", request.prompt_field) from None


def _room(request: GenerationRequest, model: ServedModel, prompt: Ids, thinks: bool) -> int:
    """Tokens that the context has after the prompt and the markers around the thinking."""
    room = model.context_length - len(prompt)
    if thinks and model.think is not None:
        markers = model.think.start + "\n" + model.think.end + ANSWER_SEPARATOR
        room -= len(model.policy.tokens(markers))
    if not len(prompt):
        raise invalid("the prompt is empty", request.prompt_field)
    if room < 1:
        raise invalid(
            f"the prompt has {len(prompt):,} tokens, and {model.name} takes {model.context_length:,} with the answer:"
            " shorten it",
            request.prompt_field,
            "context_length_exceeded",
        )
    return room


async def _check_sampling(request: GenerationRequest, model: ServedModel, prompt: Ids, approach: Approach) -> None:
    """Raise for what the engine would refuse, before the reply begins. A grammar is compiled in a thread, since it may
    take a while; the engine finds it compiled."""
    has_grammar = request.sampling.has_grammar
    if has_grammar and approach.strategy and not approach.is_flat:
        name = request.strategy.name if request.strategy else "this strategy"
        field = "tools" if request.sampling.structural_tag else "response_format"
        what = "strict tools" if field == "tools" else field
        raise ApiError(
            400, f"{name} builds an answer from steps, so {what} cannot hold for it: take chain, majority-vote or"
            " best-of-n", param=field,
        )  # fmt: skip
    if isinstance(base := model.base, EnginePolicy | ModelReplicas):
        if request.prompt_token_ids is not None:
            check_token_ids(request.prompt_field, request.prompt_token_ids, base.vocab_size)
        check_named_token_ids(request.sampling, base.vocab_size)
        check = partial(base.check_call, prompt, approach.sampling)
        await asyncio.to_thread(check) if has_grammar else check()


def _is_open(model: ServedModel, prompt: Ids) -> bool:
    """Whether a prompt ends inside the thinking: its template wrote the opening marker."""
    assert model.think is not None
    tail = model.text(prompt[-_TAIL_TOKENS:].tolist())
    return tail.rstrip().endswith(model.think.start)


def _choice_seed(seed: int, choice: int) -> int:
    """The first choice has the request's own seed, so it does not depend on n."""
    if not choice:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed} {choice}".encode(), digest_size=8).digest())
