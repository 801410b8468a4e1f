"""The words that a Coq proof may not contain. A first filter with clear reasons; the kernel and the sandbox follow it.

Comments are blanked out before Coq sees the text, so nothing hides in what only one of the two takes for a comment.
Words are searched for in strings too, because a notation can make Coq see a string where this module sees none.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class CoqSource(NamedTuple):
    source: str  # the text with comments blanked and line numbers unchanged
    fault: str  # why the text is refused; empty if it is accepted


_MARK = re.compile(r'\(\*|\*\)|"')


def without_comments(source: str) -> str | None:
    """The text with comments replaced by blanks; None where a comment never ends."""
    pieces: list[str] = []
    depth = at = 0
    while mark := _MARK.search(source, at):
        if mark[0] == '"':
            closed = source.find('"', mark.end())  # a doubled quote reads as two strings, which does no harm
            end = len(source) if closed < 0 else closed + 1
        else:
            end = mark.end()
        if depth == 0 and mark[0] != "(*":
            pieces.append(source[at:end])
        else:
            pieces.append(_blank(source[at : mark.start()]) if depth else source[at : mark.start()])
            pieces.append(_blank(source[mark.start() : end]))
            depth += {"(*": 1, "*)": -1}.get(mark[0], 0)
        at = end
    return None if depth else "".join(pieces) + source[at:]


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


# Refused words, by what they would do.
_REFUSED = {
    "leaves something unproved": (
        r"Admitted|admit|give_up|Axioms?|Parameters?|Conjectures?|Admit\s+Obligations|Declare\s+Module"
    ),
    "turns off a check of the kernel": (
        r"bypass_check|(?:Guard|Positivity|Universe)\s+Checking|Typing\s+Flags|Definitional\s+UIP|Register"
        r"|Primitive(?!\s+Projections)"
    ),
    "reaches outside the proof": (
        r"Load|LoadPath|ML|Cd|Drop|Quit|Redirect|Extract|Extraction|Dump|(?:Write|Restore)\s+State"
        r"|Print\s+(?:Sorted\s+)?Universes|Add\s+Rec"
    ),
}
_EDGES = r"(?:(?<![A-Za-z_])|(?<=[0-9]_))(?:{})(?![A-Za-z0-9_'])"
_FENCES = {why: re.compile(_EDGES.format(words)) for why, words in _REFUSED.items()}


def check_coq_source(source: str, trusted: str = "") -> CoqSource:
    """The text that Coq will see, or why it is refused. Words that the trusted part uses are allowed in the proof."""
    if "\x00" in source:
        return CoqSource("", "malformed: a null character")
    stripped = without_comments(source)
    if stripped is None:
        return CoqSource("", "malformed: a comment is never closed")
    for why, fence in _FENCES.items():
        trusted_words = {_joined(word) for word in fence.findall(trusted)}
        match = next((word for word in fence.finditer(stripped) if _joined(word[0]) not in trusted_words), None)
        if match:
            line = stripped.count("\n", 0, match.start()) + 1
            return CoqSource("", f"refused: line {line}: {_joined(match[0])!r} {why}; leave it out")
    return CoqSource(stripped, "")


def _joined(words: str) -> str:
    return " ".join(words.split())
