"""Structural tags: free text in which marked parts follow a JSON schema, such as calls of tools.

The form is vLLM's: `{"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}`. As soon
as the text has a trigger, it goes on with the `begin` of a structure that starts with that trigger, JSON that its
schema allows, and its `end`; then the text is free again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ponder.errors import UsageError

MAX_STRUCTURES = 128
MAX_MARK_CHARS = 1000  # of a trigger, a begin or an end


@dataclass(frozen=True, slots=True)
class Structure:
    """A marked part of a text."""

    begin: str
    schema: Any
    end: str

    def to_json(self) -> dict[str, Any]:
        return {"begin": self.begin, "schema": self.schema, "end": self.end}


def structural_tag(structures: list[Structure], triggers: list[str]) -> str:
    """The text of a structural tag."""
    return json.dumps(
        {"type": "structural_tag", "structures": [one.to_json() for one in structures], "triggers": triggers}
    )


def structural_tag_rule(text: str, json_rule: Callable[[str], str]) -> str:
    """The rule of llguidance's `start`, followed by those that it needs. `json_rule` makes one of a JSON schema."""
    structures, triggers = _parse(text)
    rules = [f"({' | '.join(f'tag_{i}' for i in range(len(structures)))})* TEXT", "TEXT: /(.|\\n)*/"]
    rules += [f"trigger_{i}[lazy]: TEXT {_literal(trigger)}" for i, trigger in enumerate(triggers)]
    for i, one in enumerate(structures):
        at = next((k for k, trigger in enumerate(triggers) if one.begin.startswith(trigger)), None)
        if at is None:
            raise UsageError(f"no trigger is the start of {one.begin[:100]!r}: give one in `triggers`")
        begin, end = _literal(one.begin[len(triggers[at]) :]), _literal(one.end)
        rules += [f"tag_{i}: trigger_{at} {begin} json_{i} {end}", f"json_{i}: {json_rule(json.dumps(one.schema))}"]
    return "\n".join(rules)


def _parse(text: str) -> tuple[list[Structure], list[str]]:
    try:
        tag = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise UsageError(f"the structural tag is not JSON, or too deep ({str(reason)[:200]})") from None
    structures, triggers = (tag.get("structures"), tag.get("triggers")) if isinstance(tag, dict) else (None, None)
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures or not triggers:
        raise UsageError(
            "a structural tag is an object with `structures`, each with `begin`, `schema` and `end`, and `triggers`"
        )
    if max(len(structures), len(triggers)) > MAX_STRUCTURES:
        raise UsageError(f"a structural tag may have at most {MAX_STRUCTURES} structures and triggers")
    return [_parse_structure(one) for one in structures], [_parse_mark("trigger", one) for one in triggers]


def _parse_structure(value: Any) -> Structure:
    if not isinstance(value, dict) or not {"begin", "schema", "end"} <= value.keys():
        raise UsageError("each structure of a structural tag has `begin`, `schema` and `end`")
    begin, end = _parse_mark("begin", value["begin"]), _parse_mark("end", value["end"])
    return Structure(begin, value["schema"], end)


def _parse_mark(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_MARK_CHARS:
        raise UsageError(f"the {name} of a structural tag must be a text of 1 to {MAX_MARK_CHARS} characters")
    return value


def _literal(text: str) -> str:
    """A text as llguidance's Lark writes it; nothing for an empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""
