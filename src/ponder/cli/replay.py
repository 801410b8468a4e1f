"""`ponder replay`: what stored attempts would have earned under another judge, rule, reward, group size or strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ponder.cli.compare import Column, ScorerName, format_table, shorten_name
from ponder.cli.progress import print_json
from ponder.cli.shared_flags import BudgetSettings, StrategySettings, TaskSettings
from ponder.errors import UsageError
from ponder.settings import Named, When
from ponder.terminal import escape_controls

if TYPE_CHECKING:
    from ponder.measure.statistics.compare_systems import PairwiseResult
    from ponder.pipelines.replay import GroupStatistics, ReplayReport, StoredAttempts
    from ponder.pipelines.replay_search import SearchReplayReport


def replay(
    run: Annotated[str, "a run directory, or a log with texts (LOG::SYSTEM where it holds several)"],
    /,
    *,
    score: Annotated[
        str | None,
        "judge again by: a task's verifier (gsm8k), math, number, choice, text, a reward (format), a weighted sum"
        " (accuracy=1,format=0.2) or module:object",
    ] = None,
    select: Annotated[
        Literal["mean", "first", "majority", "weighted", "best", "logprob", "logprob_sum", "any", "chosen"] | None,
        "how attempts become one answer (mean)",
    ] = None,
    scorer: ScorerName = None,
    truth: Annotated[
        Literal["stored", "new"] | None,
        "whose verdicts are right; new where --score names a verifier, else stored",
        When("score"),
    ] = None,
    group_sizes: Annotated[tuple[int, ...], "group sizes to show, up to the stored one"] = (),
    advantage: Annotated[Literal["grpo", "dr-grpo", "rloo"] | None, "whose advantages (grpo)"] = None,
    strategy: Annotated[
        str | None,
        Named("ponder.reason.strategies:STRATEGIES", "ponder.reason.presets:PRESETS"),
        "run this strategy on the stored steps, in place of --select",
    ] = None,
    guide: Annotated[str, "the stored score that guides the strategy, or likelihood", When("strategy")] = "",
    when_exhausted: Annotated[
        Literal["error", "cycle"] | None,
        "when a strategy asks for more continuations than are stored: not replayable (error), or the first ones again",
        When("strategy"),
    ] = None,
    column: Column = [],  # noqa: B006 (never changed)
    json: Annotated[bool, "one JSON object"] = False,
    task_settings: Annotated[TaskSettings, When("score")] = {},  # noqa: B006
    strategy_settings: Annotated[StrategySettings, When("strategy")] = {},  # noqa: B006
    budget_settings: Annotated[BudgetSettings, When("strategy")] = {},  # noqa: B006
) -> int:
    """Judge stored attempts again, decide by another rule, or run another strategy on them; all offline."""
    from ponder.measure.readers import ColumnMap
    from ponder.pipelines.replay import StoredAttempts, find_scorer, rescore
    from ponder.pipelines.replay import replay as again

    stored = StoredAttempts.read(run, ColumnMap.from_flags(column))
    scorers: list[Any] = []
    rescorer, verifies = (
        (None, False) if score is None else find_scorer(score, stored, _task_builder(task_settings, scorers))
    )
    if task_settings and not scorers:
        setting = next(iter(task_settings))
        raise UsageError(f"--task.{setting} is a task's setting, and --score {score} is no task: leave it out")
    whose = truth or ("new" if verifies else "stored")
    if strategy is not None:
        if flag := next((k for k, v in {"select": select, "scorer": scorer, "group-sizes": group_sizes,
                                        "advantage": advantage}.items() if v), None):  # fmt: skip
            raise UsageError(f"--strategy decides by itself, and --{flag} is of replays without one: leave one out")
        if rescorer is not None and whose == "stored":
            raise UsageError(f"--score {score} is no verifier: with --strategy, --score names who is right")
        if rescorer is not None:
            stored = rescore(stored, rescorer)
        return _replay_strategy(
            stored, strategy, guide, when_exhausted or "error", score, strategy_settings, budget_settings, json=json
        )
    report = again(stored, rescorer, score or "", select or "mean", scorer, whose, group_sizes, advantage or "grpo")
    if not report.groups and (advantage or group_sizes):
        raise UsageError(
            "a group needs two attempts at a problem, and here is one: leave out --group-sizes and --advantage"
        )
    if json:
        print_json(replay_json(report))
    else:
        print("\n".join(replay_lines(report, advantage or "grpo")))
    return 0


def _replay_strategy(
    stored: StoredAttempts, name: str, guide: str, when_exhausted: Literal["error", "cycle"], score: str | None,
    strategy_settings: Mapping[str, str], budget_settings: Mapping[str, str], *, json: bool,
) -> int:  # fmt: skip
    from ponder.cli.strategy_flags import budget_from_flags, refuse_unused_guide, strategy_from_flags
    from ponder.pipelines.replay_search import longest_stored_answer, replay_search

    room = {"max_tokens": float(longest_stored_answer(stored))}
    strategy, own_guide, _ = strategy_from_flags(name, settings=strategy_settings, sampling_defaults=room)
    refuse_unused_guide(strategy, guide)
    budget = budget_from_flags(None, budget_settings)
    report = replay_search(
        stored, strategy, name, guide or own_guide, budget, when_exhausted, score or "stored verdicts"
    )
    if json:
        out = asdict(report)
        for side in ("before", "after"):
            out[side] |= {"mean": getattr(report, side).mean}
        print_json(out)
    else:
        print("\n".join(search_replay_lines(report)))
    return 0


def search_replay_lines(report: SearchReplayReport) -> list[str]:
    guided = f" guided by {report.guide}" if report.guide else ""
    out = [f"{report.source}: {report.strategy}{guided}, replayed; right by {report.truth}", ""]
    out += [
        f"stored      {report.before} ({report.before_rule})",
        f"replayed    {report.after}",
        _difference_line(report.pair),
    ]
    out += [f"tokens      {report.replayed_tokens:,.0f} per problem; stored: {report.stored_tokens:,.0f}"]
    if report.not_replayable:
        count = sum(report.not_replayable.values())
        out += [
            "",
            f"{count:,} of {report.problems:,} problems are not replayable, and count neither before nor after:",
        ]
        out += [f"  {n:,} times: {escape_controls(why)}" for why, n in list(report.not_replayable.items())[:3]]
    return [*out, "", *(f"read: {note}" for note in report.notes)]


def _difference_line(p: PairwiseResult) -> str:
    points = f"{100 * p.difference:+.1f} points [{100 * p.low:+.1f}, {100 * p.high:+.1f}]"
    return f"difference  {points} ({p.wins} won, {p.losses} lost of {p.total}; {p.test}, p = {p.p_value:.3g})"


def _task_builder(settings: Mapping[str, str], tasks: list[Any]) -> Callable[[str], Any]:
    """A maker of tasks with these settings; `made` then has them."""

    def make(name: str) -> Any:
        from ponder.cli.named_objects import build_task

        tasks.append(build_task(name, settings))
        return tasks[-1]

    return make


def replay_json(report: ReplayReport) -> dict[str, Any]:
    out = asdict(report)
    for side in ("before", "after"):
        out[side] |= {"mean": getattr(report, side).mean}
    out["groups"] = [
        {"size": old.size, "stored": asdict(old), "new": new and asdict(new)} for old, new in report.groups
    ]
    return out


def replay_lines(report: ReplayReport, advantage: str) -> list[str]:
    by = f" by {report.by}" if report.by else ""
    out = [f"{report.source}: {report.method}{by}; right by {report.truth}", ""]
    if report.score or report.by:
        out += [f"before      {report.before}", f"now         {report.after}"]
        out += [_difference_line(report.pair)]
    else:
        out += [f"accuracy    {report.after}"]
    if report.score:
        out += _verdict_change_lines(report)
    if report.groups:
        out += ["", f"groups ({advantage}): shares without a gradient, and the mean size of an advantage", ""]
        out += format_table(_group_rows(report))
        if report.agreement is not None:
            out.append(f"correlation of old and new advantages: {report.agreement:.3f}")
    return [*out, "", *(f"read: {note}" for note in report.notes)]


def _verdict_change_lines(report: ReplayReport) -> list[str]:
    c = report.change
    parts = {
        "the same": c.same, "wrong -> right": c.to_right, "right -> wrong": c.to_wrong, "others": c.other,
        "undecided": c.undecided,
    }  # fmt: skip
    head = (
        f"verdicts by {report.score}"
        if report.truth == report.score
        else f"scores by {report.score} beside the verdicts"
    )
    out = ["", f"{head}: " + ", ".join(f"{n:,} {label}" for label, n in parts.items() if n)]
    out += [f"  undecided, {count} times: {escape_controls(why)}" for why, count in list(c.reasons.items())[:3]]
    for problem, text, was, now, reason in c.examples:
        ending = " ".join(text.split())[-70:]
        change = f"{_format_score(was)} -> {_format_score(now)} ({escape_controls(reason)})"
        out.append(f"  {change}  {shorten_name(problem, 30)}: {escape_controls(ending)}")
    return out


def _format_score(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def _group_rows(report: ReplayReport) -> list[list[str]]:
    both = report.groups[0][1] is not None
    head = ["size", "problems", "dead", "failed", "solved", "advantage"]
    rows = [head + (["", *(f"{h}, new" for h in head[2:])] if both else [])]
    for old, new in report.groups:
        rows.append([str(old.size), str(old.problems), *_group_cells(old), *(["", *_group_cells(new)] if new else [])])
    return rows


def _group_cells(g: GroupStatistics) -> list[str]:
    return [f"{100 * x:.1f} %" for x in (g.dead_share, g.failed_share, g.solved_share)] + [f"{g.mean_advantage:.3f}"]
