"""Find the one program that a completion gives, or say why there is none. Pure text, linear time."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from ponder.verify.answer import Found, after_thinking

LONGEST = 100_000  # characters
PYTHON = frozenset({"python", "py", "python3", "py3"})
_FENCE = re.compile(r"^([ \t]{0,12})(`{3,}|~{3,})[ \t]*([^\s`{]*)[^`\n]*$")


def program(text: str, tags: Collection[str] = PYTHON) -> Found:
    """The one fenced block in this language after the thinking; where none names it, the one that names none."""
    said = after_thinking(text)
    if said is None:
        return Found(None, "no program")
    blocks = list(_blocks(said))
    if any(source is None for _, source in blocks):
        return Found(None, "malformed: a code block without an end")
    found = [source for tag, source in blocks if tag in tags] or [source for tag, source in blocks if not tag]
    if len(found) != 1:
        return Found(None, "several programs" if found else "no program")
    (source,) = found
    if source is None or not source.strip():
        return Found(None, "no program")
    return Found(source) if len(source) <= LONGEST else Found(None, "too long")


def _blocks(text: str) -> Iterator[tuple[str, str | None]]:
    """Each fenced block: the language it names, in small letters, and its text; None where it never ends."""
    fence, tag, indent, held = "", "", "", list[str]()
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if not fence:
            if match:
                indent, fence, tag, held = match[1], match[2], match[3].lower(), []
        elif match and match[2][0] == fence[0] and len(match[2]) >= len(fence) and not line.strip(" \t" + fence[0]):
            yield tag, "\n".join(held) + "\n"
            fence = ""
        else:
            held.append(line.removeprefix(indent))
    if fence:
        yield tag, None
