"""`ponder tasks`: which tasks there are; of one, its settings, its levels, a problem and how answers are judged."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any

from ponder.cli.flags import When
from ponder.cli.options import Settings
from ponder.cli.progress import emit


def tasks(
    name: Annotated[str, "of which to say more"] = "",
    /,
    *,
    set: Annotated[Settings, When("name")] = [],  # noqa: B006  never changed
    json: Annotated[bool, "one JSON object"] = False,
) -> int:
    """All tasks; or one: its settings and levels, a problem, and what its verifier says of the gold answer."""
    from ponder.tasks import TASKS

    if not name:
        listed = {known: _headline(kind) for known, kind in TASKS.items()}
        if json:
            emit({"tasks": listed})
        else:
            width = max(map(len, listed))
            print("\n".join(f"{known:<{width}}  {said}" for known, said in listed.items()))
            print("\n`ponder tasks NAME` shows a problem of one; your own task is module:object.")
        return 0
    said = _asked(name, set) or asyncio.run(_one(name, set))
    if json:
        emit(said)
    else:
        print("\n".join(_lines(said)))
    return 0


def _asked(name: str, settings: Sequence[str]) -> dict[str, Any] | None:
    """What a task still has to be told before it has a problem to show; None where that is nothing."""
    from ponder.tasks import find

    kind, settings = find(name, settings)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return None
    known, given = {f.name: f for f in fields(kind) if f.init}, {setting.partition("=")[0] for setting in settings}
    needs = [f.name for f in known.values() if f.default is MISSING and f.default_factory is MISSING]
    if not set(needs) - given or given - known.keys():
        return None
    told = getattr(kind, "ASKS", {})
    return {
        "task": name,
        "about": _headline(kind),
        "needs": {need: told.get(need, "") for need in needs if need not in given},
        "settings": {n: _shown(f.default) for n, f in known.items() if f.default is not MISSING},
        "choices": kind.choices() if hasattr(kind, "choices") else [],
    }


async def _one(name: str, settings: Sequence[str]) -> dict[str, Any]:
    from ponder.cli.work import find_task
    from ponder.errors import TaskError
    from ponder.types import Step, ids, prompt_trace

    task = find_task(name, settings)
    try:
        problems = task.train
    except TaskError:  # a set to measure with only
        problems = task.test
    problem = problems[0]
    gold = task.gold(problem)
    trace = prompt_trace(problem, ids([0]))
    trace.add(Step(0, gold, ids([0]), stop="eos"))
    (score,) = await task.verifier(trace, [1])
    return {
        "task": name,
        "about": _headline(type(task)),
        "settings": {f.name: _shown(getattr(task, f.name)) for f in fields(task) if f.default is not MISSING},
        "levels": [dict(level) for level in getattr(task, "LEVELS", ())],
        "problem": problem.question,
        "gold": gold,
        "verifier": task.verifier.name,
        "verdict": {"value": score.value, "reason": score.reason},
    }


def _lines(said: dict[str, Any]) -> list[str]:
    out = [said["about"], ""]
    if needs := said.get("needs"):
        width = max(map(len, needs))
        out += [
            "needs (--set name=value):",
            *(f"  {name:<{width}}  {what}".rstrip() for name, what in needs.items()),
            "",
        ]
    out += ["settings (--set name=value):", *(f"  {name} = {value}" for name, value in said["settings"].items())]
    if needs:
        return out + (["", *textwrap.wrap(", ".join(said["choices"]), 100)] if said["choices"] else [])
    verdict = said["verdict"]
    if said["levels"]:
        out += ["", "levels (--set level=N):"]
        for i, level in enumerate(said["levels"], 1):
            out.append(f"  {i}  " + ", ".join(f"{k}={v}" for k, v in level.items()))
    out += ["", "a problem:", *("  " + line for line in said["problem"].splitlines())]
    out += ["", "its gold answer:", *("  " + line for line in said["gold"].splitlines())]
    value = "undecided" if verdict["value"] is None else f"{verdict['value']:g}"
    return [*out, "", f"the verifier ({said['verifier']}) gives it {value}: {verdict['reason']}"]


def _headline(kind: type) -> str:
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
