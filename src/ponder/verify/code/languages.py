"""Languages other than Python: how this machine compiles and runs them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ponder.errors import UnknownName
from ponder.verify.sandbox import Limits, Ran, Sandbox, SandboxError

WHERE = "/usr/local/bin:/usr/bin:/bin"  # what is visible inside the jail
COMPILING = Limits(seconds=30, memory=2 << 30, disk=128 << 20, output=32 << 20, processes=64)


@dataclass(frozen=True)
class Language:
    """`run` takes the source where {source} stands; with `compiler`, the program it made, from a file of this name."""

    tags: frozenset[str]
    run: tuple[str, ...]
    compiler: tuple[str, ...] = ()
    file: str = ""
    reserves: bool = False  # takes far more address space than it uses

    @property
    def needs(self) -> str:
        """The program that must be installed."""
        return (self.compiler or self.run)[0]


def _interpreted(tags: Sequence[str], *run: str, reserves: bool = False) -> Language:
    return Language(frozenset(tags), run, reserves=reserves)


def _compiled(tags: Sequence[str], file: str, *compiler: str) -> Language:
    return Language(frozenset(tags), ("./program",), compiler, file)


LANGUAGES = {
    "bash": _interpreted(["bash", "sh", "shell"], "bash", "-c", "{source}"),
    "perl": _interpreted(["perl", "pl"], "perl", "-e", "{source}"),
    "ruby": _interpreted(["ruby", "rb"], "ruby", "-e", "{source}"),
    "lua": _interpreted(["lua"], "lua", "-e", "{source}"),
    "javascript": _interpreted(["javascript", "js", "node"], "node", "-e", "{source}", reserves=True),
    "c": _compiled(["c"], "main.c", "gcc", "-O2", "-o", "program", "main.c", "-lm"),
    "c++": _compiled(["c++", "cpp", "cc", "cxx"], "main.cc", "g++", "-O2", "-std=c++17", "-o", "program", "main.cc"),
    "rust": _compiled(["rust", "rs"], "main.rs", "rustc", "-O", "-o", "program", "main.rs"),
}


def language(name: str) -> Language:
    if name not in LANGUAGES:
        raise UnknownName("language", name, [*LANGUAGES, "python"])
    return LANGUAGES[name]


def find(program: str) -> str:
    """Where a program lies, or `SandboxError`."""
    if program.startswith("./"):
        return program
    found = shutil.which(program, path=WHERE)
    if found is None:
        raise SandboxError(
            f"{program} is not installed where the jail can see it ({WHERE}); install it, or leave the language out"
        )
    return found


def build(jail: Sandbox, spoken: Language, source: str) -> tuple[dict[str, bytes], Ran | None]:
    """What has to lie beside a program so that it can run, and how the compiler failed, if it did.

    The compiler reads text that nobody trusts, so it works in the jail too, and hands its program out over stdout.
    """
    if not spoken.compiler:
        return {}, None
    compiler = " ".join([find(spoken.compiler[0]), *spoken.compiler[1:]])
    command = ["/bin/sh", "-c", f"{compiler} && exec cat program"]
    made, ran = jail.program(command, b"", {spoken.file: source.encode("utf-8", "replace")}, COMPILING)
    return {"program": made}, None if ran.end == "done" and made else ran


def run(jail: Sandbox, spoken: Language, source: str, beside: dict[str, bytes], stdin: str, limits: Limits) -> Ran:
    """One run of a program that `build` made ready."""
    command = [find(spoken.run[0]), *(part.replace("{source}", source) for part in spoken.run[1:])]
    bounds = replace(limits, disk=max(limits.disk, 2 * sum(map(len, beside.values()))))
    return jail.program(command, stdin.encode("utf-8", "surrogateescape"), beside, bounds, spoken.reserves)[1]
