"""Say where in the user's own code an error was raised: `ValueError: bad row (rewards.py, line 12)`."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

MAX_MESSAGE_CHARS = 200  # of the error's own text
_PONDER_FOLDER = Path(__file__).resolve().parent
_LIBRARY_FOLDERS = tuple(
    Path(path).resolve()
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name))
)


def describe_error(error: BaseException) -> str:
    """The type and message of an error, with the file and line of the user's code that raised it."""
    message = " ".join(str(error).split())[:MAX_MESSAGE_CHARS]
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    place = error_location(error)
    return f"{text} ({place})" if place else text


def error_location(error: BaseException) -> str:
    """`file.py, line 12` of the innermost frame that is neither ponder's nor a library's; empty if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_file(frame.filename)]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""


def _is_user_file(filename: str) -> bool:
    if filename.startswith("<frozen"):
        return False
    if filename.startswith("<"):  # a shell or a notebook's cell
        return True
    path = Path(filename).resolve()
    return not any(path.is_relative_to(folder) for folder in (_PONDER_FOLDER, *_LIBRARY_FOLDERS))
