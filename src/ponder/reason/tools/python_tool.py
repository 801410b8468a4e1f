"""A Python interpreter in the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.reason.tools.tool import ToolCall
from ponder.verify.code.model_tools import run_python

# Results of cells that must not be run again: they would take the same time or memory again.
_NOT_RERUN_MARKS = ("[timed out", "[out of memory", "[too much output", "[crashed", "[lost", "[refused")

_RERUN_TEMPLATE = """import contextlib, io
for _cell in {cells!r}:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(_cell, globals())
    except BaseException:
        pass
"""


@dataclass(frozen=True, slots=True)
class PythonTool:
    """Returns what a cell prints, and the value of its last line. `session`: earlier cells run again first, without
    output, so that their names are defined; nothing else is kept between runs."""

    start_marker: str = "```python\n"
    end_marker: str = "```"
    result_template: str = "\n```output\n{result}\n```\n"
    session: bool = True
    description: str = (
        "You have a Python interpreter: write code between ```python and ```, and what it prints follows as "
        "```output. Never write an output yourself."
    )

    async def __call__(self, arguments: str, earlier: Sequence[ToolCall]) -> str:
        cells = (
            [c.arguments for c in earlier if not any(mark in c.result for mark in _NOT_RERUN_MARKS)]
            if self.session
            else []
        )
        before = f"exec({_RERUN_TEMPLATE.format(cells=cells)!r})\n" if cells else ""
        result = await asyncio.to_thread(run_python, before + arguments)
        return result.strip("\n") or "[nothing was printed]"
