"""Effort levels: named bounds on test-time compute.

| level   | strategy      | answers | tokens each | tokens in all |
|---------|---------------|---------|-------------|---------------|
| none    | direct        |       1 |          64 |            64 |
| minimal | chain         |       1 |         256 |           256 |
| low     | chain         |       1 |       1,024 |         1,024 |
| medium  | majority-vote |       8 |       1,024 |         8,192 |
| high    | majority-vote |      32 |       2,048 |        65,536 |
| xhigh   | majority-vote |      48 |       4,096 |       196,608 |
| max     | majority-vote |      64 |       4,096 |       262,144 |

Another strategy takes the same bounds: as many answers, branches or simulations, and never more tokens in all. A chat
server also gets the level as its own reasoning effort.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponder.errors import UnknownName
from ponder.reason.budget import Budget


@dataclass(frozen=True, slots=True)
class Effort:
    strategy: str
    answers: int
    max_answer_tokens: int  # of one answer

    @property
    def budget(self) -> Budget:
        return Budget(self.answers * self.max_answer_tokens)


EFFORTS: dict[str, Effort] = {
    "none": Effort("direct", 1, 64),
    "minimal": Effort("chain", 1, 256),
    "low": Effort("chain", 1, 1024),
    "medium": Effort("majority-vote", 8, 1024),
    "high": Effort("majority-vote", 32, 2048),
    "xhigh": Effort("majority-vote", 48, 4096),
    "max": Effort("majority-vote", 64, 4096),
}


def get_effort(name: str) -> Effort:
    if name not in EFFORTS:
        raise UnknownName("effort", name, EFFORTS)
    return EFFORTS[name]
