"""Which stages may change when they go on: those that have no result yet, and nothing was made from.

A stage is what its job says, with other stages by their names, and what the stages say that it takes something from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ponder.errors import RunError
from ponder.runs.cleanup import has_result
from ponder.runs.run_dir import describe_differences

StageDependencies = Callable[[str], Iterable[str]]  # of a stage, by name: the stages that it takes something from


def check_stage_changes(folder: Path, was: Mapping[str, Any], now: Mapping[str, Any], needs: StageDependencies) -> None:
    """Raise where stages cannot go on from what others did in this folder. Their jobs are encoded, and by name."""
    done = [name for name in was if has_result(folder / name)]
    for name in done:
        if name not in now:
            raise RunError(
                f"{folder} has a stage {name!r} that is none of these: leave it in, give another --run, or remove "
                f"{folder / name} to go on without it"
            )
    made = {
        name: [name, *(n for n in done if name in _transitive_dependencies(n, needs))] for name in now
    }  # with what came of it
    for name in done:
        if was[name] != now[name]:
            raise _refusal(
                folder, made[name], f"began with other settings ({describe_differences(was[name], now[name])})"
            )
        for other in _transitive_dependencies(name, needs):
            if was.get(other) != now[other]:
                how = f"was made from {other!r}, which is another now ({describe_differences(was.get(other), now[other])})"
                raise _refusal(folder, [n for n in made[other] if n != other], how, name)
    order = [name for name in now if name in done]
    if order != done:
        raise RunError(
            f"the stages of {folder} began in the order {', '.join(done)}, and now come as {', '.join(order)}: give "
            "them in the old order, or another --run"
        )


def _transitive_dependencies(name: str, needs: StageDependencies) -> list[str]:
    """All that a stage was made from, near ones first."""
    found = list(dict.fromkeys(needs(name)))
    for one in found:  # grows as it goes
        found += [other for other in dict.fromkeys(needs(one)) if other not in found]
    return found


def _refusal(folder: Path, again: list[str], why: str, name: str = "") -> RunError:
    places = " ".join(str(folder / n) for n in again)
    do = "it" if len(again) == 1 else "these"
    return RunError(
        f"stage {name or again[0]!r} of {folder} {why}: give the old ones, or another --run; to do {do} again, remove "
        f"{places}"
    )
