"""The guest side of a run: what it does once confined, by mode. It talks to the host over descriptor 3, in frames.

A frame is its length (4 bytes), a letter for its kind, and a tree as JSON. The program itself may have written any of
these bytes, so the host takes them for the program's answer and nothing more.
"""

from __future__ import annotations

import _sitebuiltins
import ast
import atexit
import builtins
import contextlib
import importlib
import io
import linecache
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

from ponder.verify.sandbox.codec import NotPlainData, Tree, decode, dumps, encode, loads
from ponder.verify.sandbox.crossing_types import standard_name
from ponder.verify.sandbox.operations import PROGRAM_OPERATIONS
from ponder.verify.sandbox.peer import Peer

CHANNEL = 3


def frame(letter: str, tree: Tree) -> bytes:
    body = letter.encode() + dumps(tree)
    return len(body).to_bytes(4, "big") + body


def send(letter: str, tree: Tree, write: Callable[[int, memoryview], int] = os.write) -> None:
    data = memoryview(frame(letter, tree))
    while data:
        data = data[write(CHANNEL, data) :]


def receive(read: Callable[[int, int], bytes] = os.read) -> Tree:
    """The tree of the next frame. Exits the process where the host has closed its end."""
    size = int.from_bytes(_exactly(4, read), "big")
    return loads(_exactly(size, read)[1:])


_buffer, _offset = b"", 0  # bytes read so far, and how many were consumed: one read may return several frames


def _exactly(count: int, read: Callable[[int, int], bytes]) -> bytes:
    global _buffer, _offset
    missing = count - (len(_buffer) - _offset)
    if missing > 0:
        pieces = [_buffer[_offset:]]
        while missing > 0:
            piece = read(CHANNEL, min(max(missing, 1 << 14), 1 << 20))
            if not piece:
                os._exit(0)
            pieces.append(piece)
            missing -= len(piece)
        _buffer, _offset = b"".join(pieces), 0
    _offset += count
    return _buffer[_offset - count : _offset]


def load(preload: list[str]) -> None:
    """Import modules before any run. An entry "module:function" also calls the function, to warm it up."""
    for target in preload:
        module, _, function = target.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
    for name in ("exit", "quit"):  # scripts expect them; the `site` module, which would add them, is left out
        setattr(builtins, name, _sitebuiltins.Quitter(name, "end of file"))


def calls() -> None:
    """Call trusted functions on untrusted data, until the host has no more."""
    while True:
        name, arguments = receive()
        try:
            module, _, function = name.partition(":")
            value = getattr(sys.modules[module], function)(*decode(arguments, safe=False))
            answer = ["ok", encode(value)]
        except NotPlainData as error:
            answer = ["not plain", str(error)]
        except BaseException as error:
            answer = _raised(error)
        send("a", answer)


def candidate() -> None:
    """Run a program as a module, then serve calls of what it defines, until the host has no more."""
    source, entry = receive()
    try:
        module = execute(source, "solution")
        tested = _find(module, entry) if entry else None
        send("r", ["ok", "function" if isinstance(tested, types.FunctionType) else ""])
    except BaseException as error:
        send("r", _raised(error))
        os._exit(1)
    peer: Peer | None = None
    while True:
        request = receive()
        if request[0] != "plain":  # from tests, which use the peer protocol
            if peer is None:
                sys.setrecursionlimit(3 * sys.getrecursionlimit())  # each call back and forth takes several frames
                peer = Peer(lambda tree: send("a", tree), receive, {**PROGRAM_OPERATIONS, "names": _names(module)})
                if isinstance(tested, types.FunctionType):
                    peer.introduce(tested)
            peer.serve(request)
            continue
        try:
            answer = ["ok", _call_plain(module, *request[1:])]
        except NotPlainData as error:
            answer = ["not plain", str(error)]
        except BaseException as error:
            answer = _raised(error)
        send("a", answer)


def execute(source: str, name: str) -> types.ModuleType:
    """Run source text as a module of this name."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    file = f"{name.strip('_')}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
    return module


def _raised(error: BaseException) -> Tree:
    """An error as a tree, with the name of its first builtin class."""
    kind = next((k.__name__ for k in type(error).__mro__ if k.__module__ == "builtins"), "Exception")
    try:
        text = str(error)[:300]
    except BaseException:
        text = ""
    return ["raised", kind, text if kind == type(error).__name__ else f"{type(error).__name__}: {text}"[:300]]


def _find(module: types.ModuleType, path: str) -> Any:
    """Resolve a dotted name. A method of a class is taken from a new instance."""
    value: Any = module
    for part in path.split("."):
        if isinstance(value, type):
            value = value()
        try:
            value = getattr(value, part)
        except AttributeError:
            raise NameError(f"the program defines no {path!r}") from None
    return value


def _call_plain(module: types.ModuleType, name: str, arguments: Tree, kwargs: Tree) -> Tree:
    """Call a function whose result must be plain data."""
    return encode(_find(module, name)(*decode(arguments, safe=False), **decode(kwargs, safe=False)))


def _names(module: types.ModuleType) -> Callable[..., Any]:
    """The operation that gives the tests the program's values for the names they ask for."""

    def find(peer: Peer, names: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
        return tuple(_kind(module, name) for name in names)

    return find


def _kind(module: types.ModuleType, name: str) -> tuple[str, Any]:
    try:
        value = _find(module, name)
    except NameError:
        return "missing", None
    if not isinstance(value, type) and not callable(value):
        return "other", value
    if standard_name(value) is not None:  # f = str: the tests must ask here, not use one of their own
        return "function", lambda *arguments, **kwargs: value(*arguments, **kwargs)
    return "class" if isinstance(value, type) else "function", value


def script() -> None:
    """Run a script that reads stdin and writes stdout."""
    (source,) = receive()
    os.close(CHANNEL)
    _open_streams()
    sys.argv = ["main.py"]
    status = 0
    try:
        execute(source, "__main__")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException as error:
        status = 1
        _print_traceback(error)
    _flush_and_exit_handlers()
    os._exit(status & 255)


def notebook() -> None:
    """Run a cell for a model that uses tools: what it prints, and the value of its last line, if it has one."""
    (source,) = receive()
    os.close(CHANNEL)
    _open_streams()
    sys.stderr = sys.stdout  # in the order of printing
    status = 0
    try:
        tree = ast.parse(source, "main.py")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        module = execute(ast.unparse(tree) if last else source, "__main__")
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "main.py", "eval"), module.__dict__)
            if value is not None:
                print(repr(value))
    except SystemExit:
        pass
    except BaseException as error:
        status = 1
        _print_traceback(error)
    _flush_and_exit_handlers()
    os._exit(status)


def program(environment: dict[str, str]) -> None:
    """Write the given files to the working directory, then replace this process by another program."""
    command, files = decode(receive(), safe=False)
    for name, data in files.items():
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    os.set_inheritable(CHANNEL, False)
    os.execve(command[0], command, environment)


class _NullStream(io.RawIOBase):
    """A stream that discards what is written to it."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(memoryview(data).cast("B"))

    def fileno(self) -> int:
        return 1


def discard_output() -> None:
    """For runs whose output is not read: drop what they print, so that it fills no file."""
    for name in ("stdout", "stderr"):
        stream = io.TextIOWrapper(io.BufferedWriter(_NullStream()), "utf-8", "backslashreplace")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _open_streams() -> None:
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), "utf-8", "surrogateescape")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "surrogateescape")
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w", closefd=False)), "utf-8", "backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _print_traceback(error: BaseException) -> None:
    """Print the traceback without the frames of this file."""
    try:
        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        traceback.print_exception(type(error), error, frames, limit=20, file=sys.stderr)
    except BaseException:
        pass


def _flush_and_exit_handlers() -> None:
    """End as an interpreter does: join threads, run exit handlers, flush the output."""
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            step()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()


MODES: dict[str, Callable[[], None]] = {
    "calls": calls, "candidate": candidate, "script": script, "notebook": notebook,
}  # fmt: skip
