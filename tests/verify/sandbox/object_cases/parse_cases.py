"""The format of the cases: programs whose tests use their objects.

Each case begins with `### name entry`, where the entry is optional. The program follows, then a line of dashes, then
its tests. A program that an earlier case of the same text has is given as `same program as NAME`.
"""

from __future__ import annotations

from typing import NamedTuple

SAME_PROGRAM = "same program as "


class Case(NamedTuple):
    name: str
    entry: str
    program: str
    tests: str


def parse_cases(text: str) -> list[Case]:
    cases: list[Case] = []
    for part in text.split("### ")[1:]:
        head, _, code = part.partition("\n")
        program, _, tests = code.partition("\n---\n")
        name, _, entry = head.partition(" ")
        if program.startswith(SAME_PROGRAM):
            program = next(case.program for case in cases if case.name == program.removeprefix(SAME_PROGRAM))
        cases.append(Case(name, entry, program, tests))
    return cases
