"""`ponder serve`: models behind OpenAI's HTTP APIs, with ponder's strategies as effort."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ponder.cli import shared_flags as opt
from ponder.errors import MissingExtra, UsageError
from ponder.garbage_collector import ignore_imported_objects
from ponder.settings import When

if TYPE_CHECKING:
    from ponder.serve.guard import GuardSettings
    from ponder.serve.limits import Limits
    from ponder.serve.service import Service

API_KEY_VARIABLE = "PONDER_API_KEY"


def serve(
    *models: Annotated[str, "MODEL or NAME=MODEL: a policy, a LoRA adapter, or a reward, process or value model"],
    host: Annotated[str, "address to listen on; one that other machines reach needs a key"] = "127.0.0.1",
    port: Annotated[int, "0: any free one"] = 8000,
    api_key: Annotated[str, "what clients must send; better in the variable PONDER_API_KEY, which no list shows"] = "",
    traces: Annotated[
        Path | None, "write what is sampled into this run directory, the calls of one episode as one trace"
    ] = None,
    episode_seconds: Annotated[float, "without a call, after which an episode is written", When("traces")] = 600.0,
    max_tokens: Annotated[int, "tokens that a request may sample where neither it nor its effort says so"] = 4096,
    max_concurrent: Annotated[int, "requests that run at the same time; more get a 429"] = 1024,
    drain_seconds: Annotated[
        float, "that running requests have to finish after the first Ctrl-C or SIGTERM; 0: they end at once"
    ] = 3600.0,
    allowed_host: Annotated[list[str], "another name that clients address the server by; may be given again"] = [],  # noqa: B006
    allowed_origin: Annotated[list[str], "a web page that may use it, as https://example.org; may be given again"] = [],  # noqa: B006
    template: opt.Template = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    replicas: Annotated[
        int | None, "sampler processes of each model, on the GPUs in turn; 0: this process samples; default: 1 on a GPU"
    ] = None,
    tensor_parallel: Annotated[
        int, "GPUs, or processes on the CPU, over which the network of each sampler process is split"
    ] = 1,
    access_log: Annotated[bool, "write a line for each request to stderr"] = False,
) -> int:  # fmt: skip
    """Serve models over HTTP: chat, responses, completions, tokens and scores. Ctrl-C or SIGTERM lets requests finish.

    A request says how hard to think: `reasoning_effort`, or `strategy` by name, also after the model's name with a
    colon. docs/serving.md has all fields.
    """
    if not models:
        raise UsageError("say what to serve: ponder serve MODEL")
    check_extra()
    keys = _api_keys(api_key)
    from ponder.local_http import bind, is_loopback
    from ponder.serve.guard import GuardSettings
    from ponder.serve.load_models import load_served_models
    from ponder.serve.service import Service

    if not is_loopback([host]) and not keys:
        raise UsageError(
            f"{host} can be reached from other machines, and anyone there could use the model: give a key in"
            f" {API_KEY_VARIABLE}, or leave out --host"
        )
    hosts = () if not is_loopback([host]) and not allowed_host else (*GuardSettings().hosts, host, *allowed_host)
    guard = GuardSettings(keys, hosts, tuple(allowed_origin))
    listener = bind(host, port)
    with ExitStack() as stack:
        stack.callback(listener.close)
        limits = _limits(max_tokens, max_concurrent, drain_seconds)
        if replicas is not None and replicas < 0:
            raise UsageError(f"--replicas is {replicas}; it must be 0 or more")
        if not episode_seconds > 0:  # nor NaN
            raise UsageError(f"--episode-seconds is {episode_seconds}; it must be above 0")
        if tensor_parallel < 1:
            raise UsageError(f"--tensor-parallel is {tensor_parallel}; it must be 1 or more")
        served = load_served_models(models, template, device, dtype, replicas=replicas, tensor_parallel=tensor_parallel)
        service = Service(served, limits)
        if traces is not None:
            _record(service, traces, models, template, episode_seconds, stack)
        ignore_imported_objects()
        _run(service, guard, listener, access_log)
    return 0


def check_extra() -> None:
    """Raise where the packages of the extra `serve` are missing."""
    try:
        import starlette
        import uvicorn
    except ImportError as reason:
        raise MissingExtra("ponder serve", str(reason.name), "serve") from None
    del starlette, uvicorn


def _api_keys(flag: str) -> tuple[str, ...]:
    keys = tuple(key for key in (flag, os.environ.get(API_KEY_VARIABLE, "")) if key)
    if any(not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise UsageError("a key is made of ASCII letters, digits and signs, without spaces")
    return keys


def _limits(max_tokens: int, max_concurrent: int, drain_seconds: float) -> Limits:
    from ponder.serve.limits import Limits

    if max_tokens < 1 or max_concurrent < 1:
        raise UsageError("--max-tokens and --max-concurrent must be at least 1")
    if not drain_seconds >= 0:  # nor NaN
        raise UsageError(f"--drain-seconds is {drain_seconds}; it must be 0 or more")
    return Limits(default_max_tokens=max_tokens, max_concurrent=max_concurrent, drain_seconds=drain_seconds)


def _record(
    service: Service, folder: Path, models: tuple[str, ...], template: str | None, idle_seconds: float, stack: ExitStack
) -> None:
    """Write what the service samples into a run directory, until the stack closes."""
    from ponder.serve.episode_recorder import EpisodeBounds, EpisodeRecorder
    from ponder.serve.trace_log import ServeJob, TraceLog

    policies = [model.base for model in service.models.models.values() if model.base is not None]
    log = stack.enter_context(TraceLog(folder, ServeJob(models, template), policies))
    service.keep_trace = log.keep
    service.recorder = EpisodeRecorder(log.write, EpisodeBounds(idle_seconds=idle_seconds))
    stack.callback(service.recorder.close)


def _run(service: Service, guard: GuardSettings, listener: Any, access_log: bool) -> None:
    from ponder.serve.app import make_app
    from ponder.serve.server import run_server

    host, port = listener.getsockname()[:2]
    names = ", ".join([*service.models.models, *service.models.scorers])

    def ready() -> None:
        shown = f"[{host}]" if ":" in host else host
        print(f"serving {names} at http://{shown}:{port}/v1", flush=True)

    run_server(make_app(service, guard), service, listener, ready, access_log)
