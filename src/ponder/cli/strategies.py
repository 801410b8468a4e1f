"""`ponder strategies`: the ways to think, the presets with their sources, and what each effort allows."""

from __future__ import annotations

import textwrap
from dataclasses import fields, is_dataclass
from typing import Annotated, Any

from ponder.cli.progress import print_json
from ponder.settings import Named


def strategies(
    name: Annotated[
        str, Named("ponder.reason.strategies:STRATEGIES", "ponder.reason.presets:PRESETS"), "of which to say more"
    ] = "",
    /,
    *,
    json: Annotated[bool, "one JSON object"] = False,
) -> int:
    """All strategies, presets and efforts; or one strategy: what it does, and its settings."""
    from ponder import registry
    from ponder.reason.effort import EFFORTS
    from ponder.reason.presets import PRESETS
    from ponder.reason.strategies import STRATEGIES

    if name:
        entry = registry.lookup("strategy", name, {**STRATEGIES, **PRESETS})
        description = {"strategy": name, **describe(entry)}
        print_json(description) if json else print("\n".join(_description_lines(description)))
        return 0
    listed = {
        "strategies": {known: _first_paragraph(kind) for known, kind in STRATEGIES.items()},
        "presets": {known: preset.source for known, preset in PRESETS.items()},
        "efforts": {
            known: f"{e.strategy}, {e.answers} x {e.max_answer_tokens:,} tokens, {e.budget.tokens:,} in all"
            for known, e in EFFORTS.items()
        },
    }
    if json:
        print_json(listed)
        return 0
    width = max(len(known) for part in listed.values() for known in part)
    for part, rows in listed.items():
        print(f"{part}:")
        for known, about in rows.items():
            lines = textwrap.wrap(about, 118 - width)
            print(f"  {known:<{width}}  " + f"\n{'':{width + 4}}".join(lines))
        print()
    print("`ponder strategies NAME` lists one's settings; `ponder solve ... --strategy NAME` takes it.")
    return 0


def describe(entry: Any) -> dict[str, Any]:
    """A strategy's or preset's own words and settings."""
    from ponder.reason.presets import Preset

    extra = {"source": entry.source, "guide": entry.guide} if isinstance(entry, Preset) else {}
    strategy = entry.strategy if isinstance(entry, Preset) else entry()
    return {
        "about": " ".join((type(strategy).__doc__ or "").split()),
        **extra,
        "settings": {f.name: short_repr(getattr(strategy, f.name)) for f in fields(strategy)},
    }


def short_repr(value: Any) -> str:
    """A dataclass by what it does not have by default."""
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    values = ((f, getattr(value, f.name)) for f in fields(value))
    return f"{type(value).__name__}({', '.join(f'{f.name}={short_repr(v)}' for f, v in values if v != f.default)})"


def _first_paragraph(kind: Any) -> str:
    """The first paragraph of what a strategy, or where that says nothing its module, says of itself."""
    import sys

    own = kind.__doc__ or ""
    if not own or own.startswith(f"{kind.__name__}("):  # what dataclasses write
        own = sys.modules[kind.__module__].__doc__
    return " ".join((own or "").split("\n\n")[0].split())


def _description_lines(description: dict[str, Any]) -> list[str]:
    about = description["about"]
    out = [description["strategy"], "", *textwrap.wrap(about, 118)] if about else [description["strategy"]]
    out += [f"source    {description['source']}"] if description.get("source") else []
    out += [f"guide     {description['guide']}"] if description.get("guide") else []
    width = max(map(len, description["settings"]))
    return [*out, "", *(f"  {k:<{width}}  {v}" for k, v in description["settings"].items())]
