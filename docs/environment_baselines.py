"""What gold play and random play earn in each environment, kept as JSON for docs/environments.md.

    python docs/environment_baselines.py                        show what is kept, as the page's table
    python docs/environment_baselines.py --measure              measure all of it again, which takes some minutes
    python docs/environment_baselines.py --measure mastermind   measure this task again

Each number is a mean over held-out problems. Gold play takes the environment's own good actions. Tasks with tools are
measured with the calculator and with Python; of these, gsm8k and svamp need PONDER_DATA.
"""

from __future__ import annotations

import argparse
import json
import random
from itertools import product
from pathlib import Path
from typing import Any

from ponder.tasks import TASKS, EnvironmentTask
from ponder.tasks.environments.scripted_play import gold_play, random_play
from ponder.tasks.environments.tool_task import ToolTask

KEPT = Path(__file__).parent / "results" / "environment_baselines.json"
PROBLEMS = 100
FEW_PROBLEMS = 20  # where each move or each verdict takes long
# Tasks that ask another task's questions have its levels.
OTHERS = {"check-answer": (2, 3, 4), "code-feedback": (2, 4)}
SLOW = ("connect-four", "code-feedback")
WITH_TOOLS = (*(("arithmetic", level) for level in range(1, 6)), ("gsm8k", None), ("svamp", None))
TOOLS = ("calculator", "python")


def levels() -> list[tuple[str, int]]:
    """Every environment at every level."""
    own = [(name, n) for name, kind in TASKS.items() if issubclass(kind, EnvironmentTask) for n in _own_levels(kind)]
    return sorted([*own, *((name, n) for name, some in OTHERS.items() for n in some)])


def _own_levels(kind: Any) -> range:
    return range(1, len(kind.LEVELS) + 1)


def measure(name: str, level: int) -> dict[str, Any]:
    task = TASKS[name](level=level)
    settings = dict(task.LEVELS[level - 1]) if isinstance(task, EnvironmentTask) else {"task": task.task}
    return {"task": name, "level": level, "settings": settings, **_earned(task, name in SLOW)}


def measure_with_tool(name: str, level: int | None, tool: str) -> dict[str, Any]:
    task = TASKS[name]() if level is None else TASKS[name]().at_level(level)
    settings = {} if level is None else dict(task.LEVELS[level - 1])
    return {"task": name, "tool": tool, "level": level, "settings": settings, **_earned(ToolTask(task, (tool,)))}


def _earned(task: Any, slow: bool = False) -> dict[str, Any]:
    problems = task.test[: FEW_PROBLEMS if slow else PROBLEMS]
    rng = random.Random(0)
    gold = [gold_play(task, problem) for problem in problems]
    by_chance = [random_play(task, problem, rng) for problem in problems]
    return {
        "problems": len(problems),
        "gold": round(sum(episode.reward for episode in gold) / len(gold), 3),
        "gold_turns": round(sum(len(episode.actions) for episode in gold) / len(gold), 1),
        "random": round(sum(episode.reward for episode in by_chance) / len(by_chance), 3),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as the page shows them: environments, and then tasks with tools."""
    lines = ["| task | level | settings | random | gold | turns of gold |", "|---|---|---|---|---|---|"]
    with_tools = ["| task | tool | level | settings | random | gold | turns of gold |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        settings = ", ".join(f"{name} {value}" for name, value in row["settings"].items())
        numbers = f"{row['random']:.2f} | {row['gold']:.2f} | {row['gold_turns']:.1f}"
        if tool := row.get("tool"):
            with_tools.append(f"| `{row['task']}` | {tool} | {row['level'] or '-'} | {settings or '-'} | {numbers} |")
        else:
            lines.append(f"| `{row['task']}` | {row['level']} | {settings} | {numbers} |")
    return "\n".join([*lines, "", *with_tools])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="*", metavar="TASK", help="measure these tasks again, or all of them")
    chosen = parser.parse_args().measure
    if chosen is not None:
        kept = {(row["task"], row["level"], row.get("tool")): row for row in json.loads(KEPT.read_text())}
        rows = []
        for name, level in levels():
            again = name in chosen or not chosen
            rows.append(measure(name, level) if again else kept[name, level, None])
            print(json.dumps(rows[-1]), flush=True)
        for (name, some_level), tool in product(WITH_TOOLS, TOOLS):
            again = name in chosen or not chosen
            rows.append(measure_with_tool(name, some_level, tool) if again else kept[name, some_level, tool])
            print(json.dumps(rows[-1]), flush=True)
        KEPT.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(json.loads(KEPT.read_text())))


if __name__ == "__main__":
    main()
