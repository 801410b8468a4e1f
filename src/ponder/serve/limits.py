"""What a server allows: sizes, counts and times."""

from __future__ import annotations

from dataclasses import dataclass

from ponder.serve.json_body import MAX_BODY_BYTES


@dataclass(frozen=True, slots=True)
class Limits:
    max_body_bytes: int = MAX_BODY_BYTES
    max_concurrent: int = 1024  # requests that run at the same time; more get a 429
    max_connections: int = 4096  # HTTP requests that are open at the same time; more get a 503
    max_choices: int = 128  # `n` of a request
    default_max_tokens: int = 4096  # tokens sampled for a choice, where neither the request nor its effort has a bound
    max_tokens: int = 1 << 20  # that a request may ask for
    max_count: int = 1024  # answers, beams or simulations that a request may ask of a strategy
    max_total_body_bytes: int = 512 << 20  # of all requests that are open; more get a 503
    head_seconds: float = 15.0  # in which the head of a request must arrive
    body_seconds: float = 30.0  # in which a body must arrive
    stall_seconds: float = 60.0  # that a client may leave a reply unread
    request_seconds: float = 3600.0  # in which an answer must be complete
    keepalive_seconds: float = 10.0  # between comments on a stream that has nothing to say
    drain_seconds: float = 3600.0  # that running requests get after the first signal: as long as an answer may take
