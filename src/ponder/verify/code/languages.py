"""Languages other than Python: how to compile and run them on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ponder.errors import UnknownName
from ponder.verify.sandbox import ProgramResult, Sandbox, SandboxError, SandboxLimits

JAIL_PATH = "/usr/local/bin:/usr/bin:/bin"  # folders of programs inside the jail
COMPILER_LIMITS = SandboxLimits(
    cpu_seconds=30, memory_bytes=2 << 30, disk_bytes=128 << 20, output_bytes=32 << 20, max_processes=64
)


@dataclass(frozen=True)
class ProgrammingLanguage:
    """`run` is a command with {source} in place of the source text. With a `compiler`, the source is written to `file`
    and `run` starts the compiled program."""

    fence_tags: frozenset[str]
    run: tuple[str, ...]
    compiler: tuple[str, ...] = ()
    file: str = ""
    reserves_address_space: bool = False  # reserves far more address space than it uses

    @property
    def required_program(self) -> str:
        """The program that must be installed."""
        return (self.compiler or self.run)[0]


def _interpreted(tags: Sequence[str], *run: str, reserves: bool = False) -> ProgrammingLanguage:
    return ProgrammingLanguage(frozenset(tags), run, reserves_address_space=reserves)


def _compiled(tags: Sequence[str], file: str, *compiler: str) -> ProgrammingLanguage:
    return ProgrammingLanguage(frozenset(tags), ("./program",), compiler, file)


PROGRAMMING_LANGUAGES = {
    "bash": _interpreted(["bash", "sh", "shell"], "bash", "-c", "{source}"),
    "perl": _interpreted(["perl", "pl"], "perl", "-e", "{source}"),
    "ruby": _interpreted(["ruby", "rb"], "ruby", "-e", "{source}"),
    "lua": _interpreted(["lua"], "lua", "-e", "{source}"),
    "javascript": _interpreted(["javascript", "js", "node"], "node", "-e", "{source}", reserves=True),
    "c": _compiled(["c"], "main.c", "gcc", "-O2", "-o", "program", "main.c", "-lm"),
    "c++": _compiled(["c++", "cpp", "cc", "cxx"], "main.cc", "g++", "-O2", "-std=c++17", "-o", "program", "main.cc"),
    "rust": _compiled(["rust", "rs"], "main.rs", "rustc", "-O", "-o", "program", "main.rs"),
}


def find_language(name: str) -> ProgrammingLanguage:
    if name not in PROGRAMMING_LANGUAGES:
        raise UnknownName("language", name, [*PROGRAMMING_LANGUAGES, "python"])
    return PROGRAMMING_LANGUAGES[name]


def find_program(program: str) -> str:
    """The path of a program inside the jail; raises `SandboxError` where it is not installed."""
    if program.startswith("./"):
        return program
    path = shutil.which(program, path=JAIL_PATH)
    if path is None:
        raise SandboxError(
            f"{program} is not installed where the jail can see it ({JAIL_PATH}); install it, or leave the language out"
        )
    return path


def build(jail: Sandbox, lang: ProgrammingLanguage, source: str) -> tuple[dict[str, bytes], ProgramResult | None]:
    """The files that the program needs at run time, and the compiler's result if it failed.

    The compiler reads untrusted text, so it runs in the sandbox too, and returns its program over stdout.
    """
    if not lang.compiler:
        return {}, None
    compiler = " ".join([find_program(lang.compiler[0]), *lang.compiler[1:]])
    command = ["/bin/sh", "-c", f"{compiler} && exec cat program"]
    binary, result = jail.run_program(command, b"", {lang.file: source.encode("utf-8", "replace")}, COMPILER_LIMITS)
    return {"program": binary}, None if result.run_status == "done" and binary else result


def run(
    jail: Sandbox, lang: ProgrammingLanguage, source: str, files: dict[str, bytes], stdin: str, limits: SandboxLimits
) -> ProgramResult:
    """Run a program once, with the files from `build`."""
    command = [find_program(lang.run[0]), *(part.replace("{source}", source) for part in lang.run[1:])]
    bounds = replace(limits, disk_bytes=max(limits.disk_bytes, 2 * sum(map(len, files.values()))))
    return jail.run_program(
        command, stdin.encode("utf-8", "surrogateescape"), files, bounds, lang.reserves_address_space
    )[1]
