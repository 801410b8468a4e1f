"""`FilterReport`: how many items passed each filter of a data pipeline, and why the others were dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from ponder.errors import TaskError

T = TypeVar("T")

MAX_REASONS = 3  # listed per line; the rest are counted together
MAX_REASON_CHARS = 60  # of a reason


@dataclass
class FilterReport:
    """Stages are in the order of their first use. A stage may count other items than the one before."""

    stages: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, stage: str, count: int, dropped: Mapping[str, int] | None = None) -> None:
        """Add to a stage: `count` items passed, the others were dropped, by reason."""
        self.stages[stage] = self.stages.get(stage, 0) + count
        for reason, number in (dropped or {}).items():
            if number:
                self.dropped.setdefault(stage, Counter())[reason[:MAX_REASON_CHARS]] += number

    def record(self, stage: str, ok: bool, reason: str = "") -> bool:
        """Count one item at a stage. Returns `ok`, for use in an `if`."""
        self.add(stage, int(ok), {} if ok else {reason: 1})
        return ok

    def require_some(self, stage: str, left: Sequence[T], dropped: Mapping[str, int] | None = None) -> Sequence[T]:
        """Record a stage and return what is left. Where nothing is, raise with the report in the message."""
        self.add(stage, len(left), dropped)
        if not left:
            self.fail(f"nothing is left at the stage {stage!r}")
        return left

    def fail(self, reason: str) -> NoReturn:
        """Raise, with the report so far in the message."""
        raise TaskError("\n".join([f"{reason}:", *self.lines()]))

    def lines(self) -> list[str]:
        """One aligned line per stage, with the reasons for what was dropped."""
        wide = max(map(len, self.stages), default=0)
        figures = {stage: f"{count:,}" for stage, count in self.stages.items()}
        digits = max(map(len, figures.values()), default=0)
        rows = ((f"{stage:<{wide}}  {figures[stage]:>{digits}}", self._dropped_text(stage)) for stage in self.stages)
        return [f"  {row}   {dropped}".rstrip() for row, dropped in rows]

    def _dropped_text(self, stage: str) -> str:
        reasons = self.dropped.get(stage, Counter()).most_common()
        named = [f"{count:,} {reason}".rstrip() for reason, count in reasons[:MAX_REASONS]]
        more = sum(count for _, count in reasons[MAX_REASONS:])
        return ("- " + ", ".join([*named, *([f"{more:,} others"] if more else [])])) if named else ""

    @classmethod
    def from_json(cls, rows: Sequence[Mapping[str, Any]]) -> FilterReport:
        dropped = {row["stage"]: Counter(row["dropped"]) for row in rows if "dropped" in row}
        return cls({row["stage"]: row["count"] for row in rows}, dropped)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "stage": stage,
                "count": count,
                **({"dropped": dict(self.dropped[stage])} if stage in self.dropped else {}),
            }
            for stage, count in self.stages.items()
        ]
