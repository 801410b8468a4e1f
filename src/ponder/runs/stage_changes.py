"""Which stages may change when a run of stages resumes: those without a result that no other result was made from.

A stage is its job, with other stages by name, together with the stages that it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ponder.errors import RunError
from ponder.runs.cleanup import has_result
from ponder.runs.run_dir import describe_differences

StageDependencies = Callable[[str], Iterable[str]]  # from the name of a stage to the stages that it depends on


def check_stage_changes(
    folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], needs: StageDependencies
) -> None:
    """Raise if the stages `now` cannot resume from the stages before. Both hold encoded jobs, by name."""
    done = [name for name in before if has_result(folder / name)]
    for name in done:
        if name not in now:
            raise RunError(
                f"{folder} has a stage {name!r} that is none of these: leave it in, give another --run, or remove "
                f"{folder / name} to go on without it"
            )
    redone = {  # a stage, and the results that depend on it
        name: [name, *(n for n in done if name in _transitive_dependencies(n, needs))] for name in now
    }
    for name in done:
        if before[name] != now[name]:
            raise _refusal(
                folder, redone[name], f"began with other settings ({describe_differences(before[name], now[name])})"
            )
        for other in _transitive_dependencies(name, needs):
            if before.get(other) != now[other]:
                changes = describe_differences(before.get(other), now[other])
                how = f"was made from {other!r}, which is another now ({changes})"
                raise _refusal(folder, [n for n in redone[other] if n != other], how, name)
    order = [name for name in now if name in done]
    if order != done:
        raise RunError(
            f"the stages of {folder} began in the order {', '.join(done)}, and now come as {', '.join(order)}: give "
            "them in the old order, or another --run"
        )


def _transitive_dependencies(name: str, needs: StageDependencies) -> list[str]:
    """All stages that a stage depends on, direct ones first."""
    dependencies = list(dict.fromkeys(needs(name)))
    for stage in dependencies:  # the list grows in the loop
        dependencies += [other for other in dict.fromkeys(needs(stage)) if other not in dependencies]
    return dependencies


def _refusal(folder: Path, again: list[str], why: str, name: str = "") -> RunError:
    places = " ".join(str(folder / n) for n in again)
    do = "it" if len(again) == 1 else "these"
    return RunError(
        f"stage {name or again[0]!r} of {folder} {why}: give the old ones, or another --run; to do {do} again, remove "
        f"{places}"
    )
