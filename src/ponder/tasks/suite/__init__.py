"""The built-in suite: four categories of reasoning, generated or written by hand."""

from ponder.tasks.suite.task import Suite

__all__ = ["Suite"]
