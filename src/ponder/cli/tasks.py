"""`ponder tasks`: which tasks there are; of one, its settings, its levels, a problem and how answers are judged."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ponder import event_loop
from ponder.cli import shared_flags as opt
from ponder.cli.progress import print_json
from ponder.pictures.message_parts import describe_content
from ponder.settings import Named, When

if TYPE_CHECKING:
    from ponder.types import Message


def tasks(
    name: Annotated[str, Named("ponder.tasks:TASKS"), "of which to say more"] = "",
    /,
    *,
    strategy: Annotated[opt.Strategy, When("name")] = None,
    effort: Annotated[opt.Effort, When("name")] = None,
    template: Annotated[opt.Template, When("name")] = None,
    json: Annotated[bool, "one JSON object"] = False,
    task_settings: Annotated[opt.TaskSettings, When("name")] = {},  # noqa: B006 (never changed)
) -> int:
    """All tasks; or one: its settings and levels, a problem, and what its verifier says of the gold answer.

    The problem is shown as it is sent: as a strategy or an effort asks it, where one is given.
    """
    from ponder.tasks import TASKS

    if not name:
        listed = {known: _headline(kind) for known, kind in TASKS.items()}
        if json:
            print_json({"tasks": listed})
        else:
            width = max(map(len, listed))
            print("\n".join(f"{known:<{width}}  {description}" for known, description in listed.items()))
            print("\n`ponder tasks NAME` shows a problem of one; your own task is module:object.")
        return 0
    description = _missing_settings(name, task_settings) or event_loop.run(
        _describe(name, task_settings, strategy, effort, template)
    )
    if json:
        print_json(description)
    else:
        print("\n".join(_description_lines(description)))
    return 0


def _missing_settings(name: str, settings: Mapping[str, str]) -> dict[str, Any] | None:
    """What a task has to be told before it has a problem to show; None where that is nothing. Where only some of it was
    given, that is an error."""
    from ponder.errors import UsageError
    from ponder.tasks import find

    kind, settings = find(name, settings)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return None
    known, given = {f.name: f for f in fields(kind) if f.init}, {setting.partition(".")[0] for setting in settings}
    needs = [f.name for f in known.values() if f.default is MISSING and f.default_factory is MISSING]
    if not set(needs) - given or given - known.keys():
        return None
    texts = getattr(kind, "REQUIRED_SETTINGS", {})
    if given:
        missing = "; ".join(
            f"--task.{n} ({texts[n]})" if n in texts else f"--task.{n}" for n in needs if n not in given
        )
        raise UsageError(f"the task {name!r} also needs {missing}")
    return {
        "task": name,
        "about": _headline(kind),
        "needs": {need: texts.get(need, "") for need in needs},
        "settings": {n: _short_repr(f.default) for n, f in known.items() if f.default is not MISSING},
        "choices": kind.choices() if hasattr(kind, "choices") else [],
    }


async def _describe(
    name: str, settings: Mapping[str, str], strategy: str | None, effort: str | None, template: str | None
) -> dict[str, Any]:
    from ponder.cli.named_objects import build_task
    from ponder.cli.strategy_flags import strategy_from_flags
    from ponder.errors import NoGoldAnswer, TaskError
    from ponder.pipelines.problems.prompt_style import apply_style
    from ponder.reason.first_prompt import first_messages
    from ponder.tasks.environments.scripted_play import gold_play
    from ponder.types import Score, Step, ids, prompt_trace

    thinking, _, _ = strategy_from_flags(strategy, effort, default_name="chain")
    task: Any = apply_style(build_task(name, settings), thinking, template)
    try:
        problems = task.train
    except TaskError:  # a set to measure with only
        problems = task.test
    problem = problems[0]
    try:
        gold = task.gold(problem)
    except NoGoldAnswer:
        gold = None
    episode = gold_play(task, problem) if hasattr(task, "environment") else None
    if episode is None:
        trace = prompt_trace(problem, ids([0]))
        trace.add(Step(0, gold or "", ids([0]), stop="eos"))
        (score,) = await task.verifier(trace, [1])
    else:
        score = Score(episode.reward, episode.turns[-1].reason)
    return {
        "task": name,
        "about": _headline(type(task)),
        "settings": {f.name: _short_repr(getattr(task, f.name)) for f in fields(task) if f.default is not MISSING},
        "levels": [dict(level) for level in getattr(task, "LEVELS", ())],
        "style": problem.style,
        **_rendered_prompt(await first_messages(thinking, problem), template),
        "gold": gold,
        "episode": [] if episode is None else episode.messages(),
        "verifier": task.verifier.name,
        "verdict": {"value": score.value, "reason": score.reason},
    }


def _rendered_prompt(messages: Sequence[Message], template: str | None) -> dict[str, Any]:
    """A conversation as it is sent; as text, where the template is known without a model."""
    if template is not None:
        from ponder.models.chat_templates import render_chat

        shown = [{**m, "content": describe_content(m["content"])} for m in messages]
        return {"problem": render_chat(template, shown), "messages": list(messages)}
    contents = [describe_content(m["content"]) for m in messages]
    texts = (
        [f"[{m['role']}] {text}" for m, text in zip(messages, contents, strict=True)] if len(messages) > 1 else contents
    )
    return {"problem": "\n".join(texts), "messages": list(messages)}


def _description_lines(description: dict[str, Any]) -> list[str]:
    out = [description["about"], ""]
    if needs := description.get("needs"):
        width = max(map(len, needs))
        out += [
            "needs (--task.NAME VALUE):",
            *(f"  {name:<{width}}  {text}".rstrip() for name, text in needs.items()),
            "",
        ]
    out += [
        "settings (--task.NAME VALUE):",
        *(f"  {name} = {value}" for name, value in description["settings"].items()),
    ]
    if needs:
        return out + (["", *textwrap.wrap(", ".join(description["choices"]), 100)] if description["choices"] else [])
    verdict = description["verdict"]
    if description["levels"]:
        out += ["", "levels (--task.level N):"]
        for i, level in enumerate(description["levels"], 1):
            out.append(f"  {i}  " + ", ".join(f"{k}={v}" for k, v in level.items()))
    style = f", in style {description['style']}" if description["style"] else ""
    out += ["", f"a problem, as it is sent{style}:", *("  " + line for line in description["problem"].splitlines())]
    graded = "an empty answer" if description["gold"] is None and not description["episode"] else "it"
    if description["episode"]:
        out += ["", "an episode of gold actions:"]
        for message in description["episode"]:
            lines = describe_content(message["content"]).splitlines() or [""]
            out += [f"  [{message['role']}] {lines[0]}"] if len(lines) == 1 else [f"  [{message['role']}]"]
            out += [f"    {line}" for line in lines if len(lines) > 1]
    if description["gold"] is not None:
        out += ["", "its gold answer:", *("  " + line for line in description["gold"].splitlines())]
    value = "undecided" if verdict["value"] is None else f"{verdict['value']:g}"
    return [*out, "", f"the verifier ({description['verifier']}) gives {graded} {value}: {verdict['reason']}"]


def _headline(kind: type) -> str:
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0]


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
