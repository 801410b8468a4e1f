"""`ponder attack`: what cheap answers earn under a task's reward, before anything is trained on it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from ponder import event_loop
from ponder.cli import shared_flags as opt
from ponder.cli.compare import format_table
from ponder.cli.progress import one_line, print_json
from ponder.cli.reward_flags import Rewards, build_rewarded_task

if TYPE_CHECKING:
    from ponder.pipelines.attack_rewards import AnswerEarnings, AttackReport

MAX_EXAMPLE_CHARS = 60


def attack(
    task: opt.TaskName,
    /,
    *,
    rewards: Rewards = "",
    limit: Annotated[int, "the first so many problems"] = 20,
    template: opt.Template = None,
    json: Annotated[bool, "one JSON object"] = False,
    task_settings: opt.TaskSettings = {},  # noqa: B006 (never changed)
) -> int:
    """What answers that took no thought earn: nothing, an echo of the prompt, many answers at once, the format alone, a
    repetition, another problem's answer, a very long text. The exit code is 1 where one of them earns as much as an
    honest answer on half of the problems. No model is needed."""
    from ponder.pipelines.attack_rewards import attack_rewards
    from ponder.pipelines.problems.prompt_style import apply_style

    attacked = apply_style(build_rewarded_task(task, task_settings, rewards), None, template)
    report = event_loop.run(attack_rewards(attacked, limit))
    if json:
        print_json({**asdict(report), "flagged": [earnings.kind for earnings in report.flagged]})
    else:
        print("\n".join(report_lines(report)))
    return 1 if report.flagged else 0


def report_lines(report: AttackReport) -> list[str]:
    """The report for people."""
    earned = [*([report.honest] if report.honest else []), *report.cheap]
    parts = list(dict.fromkeys(name for earnings in earned for name in earnings.parts))
    head = ["answer", "reward", *parts, *(["as good as honest"] if report.honest else []), "undecided", ""]
    rows = [head, *(_row(earnings, parts, report.honest) for earnings in earned)]
    out = [f"{report.task}: {report.num_problems} problems", "", *format_table(rows), ""]
    if report.honest is None:
        return [*out, "The task has no gold answers, so nothing says what an honest answer earns."]
    for earnings in report.flagged:
        example = one_line(earnings.example, MAX_EXAMPLE_CHARS)
        out.append(f"!! {earnings.kind} earns as much as an honest answer: {example!r}")
        out.append(f"   {one_line(earnings.reason, 110)}")
    return out if report.flagged else [*out, "No cheap answer earns as much as an honest one."]


def _row(earnings: AnswerEarnings, parts: list[str], honest: AnswerEarnings | None) -> list[str]:
    cells = [earnings.kind, _number(earnings.reward), *(_number(earnings.parts.get(name)) for name in parts)]
    if honest is not None:
        cells.append("" if earnings is honest else f"{earnings.num_as_good} of {earnings.num_problems}")
    return [*cells, str(earnings.num_undecided or ""), "!!" if earnings.flagged and earnings is not honest else ""]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
