"""Extract the one program that a completion gives, or the reason there is none. Pure text, linear time."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from ponder.verify.answers.extract import ExtractedAnswer, strip_thinking

MAX_PROGRAM_CHARS = 100_000
PYTHON_TAGS = frozenset({"python", "py", "python3", "py3"})
_FENCE = re.compile(r"^([ \t]{0,12})(`{3,}|~{3,})[ \t]*([^\s`{]*)[^`\n]*$")


def extract_program(text: str, tags: Collection[str] = PYTHON_TAGS) -> ExtractedAnswer:
    """The one fenced block with one of these tags after the thinking; if there is none, the one block without a tag."""
    reply = strip_thinking(text)
    if reply is None:
        return ExtractedAnswer(None, "no program")
    blocks = list(_blocks(reply))
    if any(source is None for _, source in blocks):
        return ExtractedAnswer(None, "malformed: a code block without an end")
    sources = [source for tag, source in blocks if tag in tags] or [source for tag, source in blocks if not tag]
    if len(sources) != 1:
        return ExtractedAnswer(None, "several programs" if sources else "no program")
    (source,) = sources
    if source is None or not source.strip():
        return ExtractedAnswer(None, "no program")
    return ExtractedAnswer(source) if len(source) <= MAX_PROGRAM_CHARS else ExtractedAnswer(None, "too long")


def _blocks(text: str) -> Iterator[tuple[str, str | None]]:
    """Each fenced block: its language tag in lower case, and its text; None where it never ends."""
    fence, tag, indent, lines = "", "", "", list[str]()
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if not fence:
            if match:
                indent, fence, tag, lines = match[1], match[2], match[3].lower(), []
        elif match and match[2][0] == fence[0] and len(match[2]) >= len(fence) and not line.strip(" \t" + fence[0]):
            yield tag, "\n".join(lines) + "\n"
            fence = ""
        else:
            lines.append(line.removeprefix(indent))
    if fence:
        yield tag, None
