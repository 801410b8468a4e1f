"""Errors of the viewer's API, each with its HTTP status."""

from __future__ import annotations

from ponder.errors import UsageError


class NotFound(UsageError):
    """A run, a trace or a path that is not there: 404."""
