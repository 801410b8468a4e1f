"""A connection to a Ray cluster, always with token authentication: Ray runs the code of whoever reaches its ports."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ponder.errors import PonderError, UsageError

MIN_RAY = (2, 52)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ClusterError(PonderError):
    """A cluster that cannot be reached, is too small, or is not protected."""


def require_ray() -> Any:
    """The ray package, new enough to have token authentication."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError("a cluster needs Ray: pip install 'ponder[ray]'")
    set_ray_environment()
    import ray

    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version < MIN_RAY:
        raise UsageError(
            f"Ray {ray.__version__} has no token authentication: pip install 'ponder[ray]' for a newer one"
        )
    return ray


def set_ray_environment(host: str = "") -> None:
    """What Ray reads from the environment when it is imported, and when its processes start."""
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # a process without a GPU sees none
    if host in _LOOPBACK:
        # Ray takes a loopback address for that of the machine, and listens on all of them. This setting, which is the
        # default on macOS, makes it stay on the loopback.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def token_path() -> Path:
    """Where Ray looks for its token."""
    if given := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return Path(given)
    return Path.home() / ".ray" / "auth_token"


def ensure_token() -> Path | None:
    """Make a token, unless there is one. None: it is in the environment."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return None
    path = token_path()
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_hex(32))
    return path


def connect(address: str, namespace: str) -> Any:
    """The ray package, connected as a driver of its own namespace. Connected already: as it is."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{address!r} is no address of a cluster: give HOST:PORT, as `ponder cluster up` prints it")
    set_ray_environment(host.strip("[]"))
    if not os.environ.get("RAY_AUTH_TOKEN") and not token_path().is_file():
        raise UsageError(f"Ray's token is missing: copy {token_path()} from the machine of the cluster's head")
    ray = require_ray()
    if ray.is_initialized():
        return ray
    with _kept_signal_handlers():
        try:
            ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise ClusterError(f"cannot join the cluster at {address}: {first:.300}") from None
    return ray


@contextlib.contextmanager
def _kept_signal_handlers() -> Iterator[None]:
    """Ray takes SIGTERM for itself, with which a run is asked to save and stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
