"""Types of fields that take a name or the object: `RL(task="addition")`. When the job exists, they hold the object.

Type checkers read them as descriptors: what may be given differs from what is found there. mypy does so only for a
field that has a value in its class, hence `required()`.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from ponder.protocols import Strategy, Task

if TYPE_CHECKING:

    def required() -> Any: ...

    class TaskOrName:
        def __get__(self, job: Any, kind: Any = None) -> Task: ...
        def __set__(self, job: Any, value: Task | str) -> None: ...

    class StrategyOrName:
        def __get__(self, job: Any, kind: Any = None) -> Strategy: ...
        def __set__(self, job: Any, value: Strategy | str) -> None: ...

    class OptionalStrategyOrName:
        def __get__(self, job: Any, kind: Any = None) -> Strategy | None: ...
        def __set__(self, job: Any, value: Strategy | str | None) -> None: ...

else:
    required = field
    TaskOrName, StrategyOrName, OptionalStrategyOrName = Task, Strategy, Strategy | None
