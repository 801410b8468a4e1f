"""The built-in suite: four categories of reasoning, made or written here."""

from ponder.tasks.suite.task import Suite

__all__ = ["Suite"]
