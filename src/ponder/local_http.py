"""What every local HTTP server here needs: names of this machine, the host of a request, and a listening socket."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from ponder.errors import UsageError

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
_BACKLOG = 2048


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def is_loopback(hosts: Sequence[str]) -> bool:
    return all(host in LOOPBACK_HOSTS for host in hosts)


def is_same_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names the server that the Host header names. What is no origin never does."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: any that is free.

    Its connections send each piece at once. With Nagle's algorithm the second piece of a stream would wait for the
    client's acknowledgement of the first, which Linux delays by 40 ms; asyncio turns it off only where the socket names
    its protocol.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as reason:
        listener.close()
        if isinstance(reason, OverflowError):
            raise UsageError(f"the port is {port}; it must be from 0 (any free one) to 65535") from None
        how = "; give another port, or 0 for any free one" if reason.errno == errno.EADDRINUSE else ""
        raise UsageError(f"cannot listen on {host}:{port}: {reason.strerror or reason}{how}") from None
    listener.listen(_BACKLOG)
    return listener
