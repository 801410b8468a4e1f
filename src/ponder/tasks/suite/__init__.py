"""The built-in suite: four categories of reasoning, generated or written by hand."""

from ponder.tasks.suite.suite_task import Suite

__all__ = ["Suite"]
