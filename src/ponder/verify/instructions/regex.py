"""Match a task's regular expressions against a model's text, in time linear in the text.

The engine is RE2, which never backtracks. A time limit on a backtracking engine is not a hard one: the `regex`
package checks the clock only while it matches, and fills the memory while it compiles `a{100000000}`. RE2 has no
look-around and no back-references; `absent` in `constraints` covers most of their uses.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from typing import Any, Literal

from ponder.errors import MissingExtra
from ponder.verify.base import bad_data, repr_for_reason

MAX_REGEX_TEXT_CHARS = 100_000
MAX_REGEX_INSTRUCTIONS = 1_000  # instructions of a compiled pattern; both together are at most about a second of work

_SURROGATE = re.compile("[\ud800-\udfff]")


def regex_matches(pattern: str, text: str, how: Literal["search", "fullmatch"] = "search") -> bool:
    """Whether the pattern is found in the text (or is all of it). A text past the bound matches nothing."""
    if len(text) > MAX_REGEX_TEXT_CHARS:
        return False
    compiled = compile_re2(pattern)
    # Half of a surrogate pair is no character: RE2 reads UTF-8, which has none.
    return getattr(compiled, how)(_SURROGATE.sub("\ufffd", text)) is not None


@lru_cache(maxsize=512)
def compile_re2(pattern: str) -> Any:
    """RE2's program for this pattern; a pattern it does not know, or too large a one, is the task's fault."""
    try:
        re2 = importlib.import_module("re2")
    except ImportError:
        raise MissingExtra("a regular expression", "google-re2", "constraints") from None
    options = re2.Options()
    options.log_errors = False  # the reason of the score has the message
    try:
        compiled = re2.compile(_SURROGATE.sub("\ufffd", pattern), options=options)
    except re2.error as error:
        message = (
            error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        )
        bad_data(
            f"the pattern {repr_for_reason(pattern)} cannot be used: {message} (RE2 syntax: no look-around, no \\1)"
        )
    if compiled.programsize > MAX_REGEX_INSTRUCTIONS:
        bad_data(
            f"the pattern {repr_for_reason(pattern)} compiles to {compiled.programsize} instructions,"
            f" above {MAX_REGEX_INSTRUCTIONS}"
        )
    return compiled
