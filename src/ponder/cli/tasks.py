"""`ponder tasks`: which tasks there are; of one, its settings, its levels, a problem and how answers are judged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any

from ponder.cli.options import Settings
from ponder.cli.progress import emit


def tasks(
    name: Annotated[str, "of which to say more"] = "",
    /,
    *,
    set: Settings = [],  # noqa: B006  never changed
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
    said = asyncio.run(_one(name, set))
    if json:
        emit(said)
    else:
        print("\n".join(_lines(said)))
    return 0


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
    verdict = said["verdict"]
    out = [said["about"], "", "settings (--set name=value):"]
    out += [f"  {name} = {value}" for name, value in said["settings"].items()]
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
