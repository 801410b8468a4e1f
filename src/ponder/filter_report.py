"""How many came through each filter, and why the others did not: what a data factory shows of its work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from ponder.errors import TaskError

T = TypeVar("T")

MAX_REASONS = 3  # reasons that a line names; the rest are counted together
MAX_REASON_CHARS = 60  # characters of a reason


@dataclass
class FilterReport:
    """Stages stand in the order in which they were first met. A stage may count other things than the one before."""

    stages: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, stage: str, count: int, dropped: Mapping[str, int] | None = None) -> None:
        """So many more came through, and so many did not."""
        self.stages[stage] = self.stages.get(stage, 0) + count
        for why, missing in (dropped or {}).items():
            if missing:
                self.dropped.setdefault(stage, Counter())[why[:MAX_REASON_CHARS]] += missing

    def record(self, stage: str, ok: bool, why: str = "") -> bool:
        """Count one at a stage; `ok` again, so that it can be asked in an `if`."""
        self.add(stage, int(ok), {} if ok else {why: 1})
        return ok

    def require_some(self, stage: str, left: Sequence[T], dropped: Mapping[str, int] | None = None) -> Sequence[T]:
        """What is left after a stage; where that is nothing, the work ends here, with the funnel in the message."""
        self.add(stage, len(left), dropped)
        if not left:
            self.fail(f"nothing is left at the stage {stage!r}")
        return left

    def fail(self, why: str) -> NoReturn:
        """End the work, and say what came of it so far."""
        raise TaskError("\n".join([f"{why}:", *self.lines()]))

    def lines(self) -> list[str]:
        """For people: one aligned line a stage, with what was lost there."""
        wide = max(map(len, self.stages), default=0)
        figures = {stage: f"{count:,}" for stage, count in self.stages.items()}
        digits = max(map(len, figures.values()), default=0)
        rows = ((f"{stage:<{wide}}  {figures[stage]:>{digits}}", self._dropped_text(stage)) for stage in self.stages)
        return [f"  {row}   {lost}".rstrip() for row, lost in rows]

    def _dropped_text(self, stage: str) -> str:
        reasons = self.dropped.get(stage, Counter()).most_common()
        named = [f"{count:,} {why}".rstrip() for why, count in reasons[:MAX_REASONS]]
        more = sum(count for _, count in reasons[MAX_REASONS:])
        return ("- " + ", ".join([*named, *([f"{more:,} others"] if more else [])])) if named else ""

    @classmethod
    def from_json(cls, rows: Sequence[Mapping[str, Any]]) -> FilterReport:
        lost = {row["stage"]: Counter(row["dropped"]) for row in rows if "dropped" in row}
        return cls({row["stage"]: row["count"] for row in rows}, lost)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "stage": stage,
                "count": count,
                **({"dropped": dict(self.dropped[stage])} if stage in self.dropped else {}),
            }
            for stage, count in self.stages.items()
        ]
