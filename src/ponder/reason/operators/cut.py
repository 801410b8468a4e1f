"""Structure: where a step ends: at a sentence, a line, a blank line, a mark, a code block, or after some tokens.

A cut only decides when sampling stops, so sampled text is never tokenised again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Policy
from ponder.types import Sampling

# "1. ", "Dr. ", "e.g. ": a full stop that ends no sentence.
_ABBREVIATION_END = re.compile(r"(?:^|\s|\()(?:\d+|[A-Z]|Mr|Mrs|Ms|Dr|St|vs|cf|e\.g|i\.e|approx|Eq|Fig|No)\.\s*$")


@dataclass(frozen=True, slots=True)
class Cut:
    """A step ends at a stop string or stop token, or after `tokens`; and never inside a character."""

    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    tokens: int = 0  # 0: no limit
    max_step_tokens: int = 512  # a step that does not end within these is pruned
    ignore_abbreviations: bool = False  # a stop after an abbreviation or a list number does not count
    fence: str = ""  # a step must hold an even number of these: whole code blocks

    def __post_init__(self) -> None:
        if not (self.stop or self.stop_token_ids or self.tokens):
            raise UsageError("a cut needs a stop string, a stop token or a number of tokens: it would never fire")
        if self.tokens < 0 or self.max_step_tokens < 1:
            raise UsageError("tokens must be 0 or positive, and max_step_tokens at least 1")

    def limit_sampling(self, sampling: Sampling, room: int) -> Sampling:
        """Sampling settings for one step, with `room` tokens left for the whole answer."""
        most = min(room, self.tokens or self.max_step_tokens)
        return replace(
            sampling,
            max_tokens=most,
            min_tokens=min(sampling.min_tokens, most),
            stop=(*sampling.stop, *self.stop),
            stop_token_ids=(*sampling.stop_token_ids, *self.stop_token_ids),
        )

    def is_complete(self, text: str) -> bool:
        """Can a step end with this text?"""
        if text.endswith("\ufffd") or (self.fence and text.count(self.fence) % 2):
            return False
        return not (self.ignore_abbreviations and _ABBREVIATION_END.search(text))


CUTS: dict[str, Cut] = {
    "token": Cut(tokens=1),
    "tokens": Cut(tokens=64),
    "sentence": Cut(stop=(". ", "? ", "! ", ".\n", "?\n", "!\n", "\n\n"), ignore_abbreviations=True),
    "line": Cut(stop=("\n",)),
    "paragraph": Cut(stop=("\n\n",)),
    "code": Cut(stop=("```",), fence="```"),
}


@dataclass(frozen=True, slots=True)
class TokenCut:
    """A step ends at this token of the model's vocabulary, such as one that it was trained to end its steps with."""

    token: str
    max_step_tokens: int = 512

    def resolve(self, policy: Policy) -> Cut:
        token_ids = policy.tokens(self.token)
        if len(token_ids) != 1:
            raise UsageError(
                f"{self.token!r} is {len(token_ids)} tokens of this model, not one: train it (ponder sft --step-token),"
                f" or cut at the text (mark:{self.token})"
            )
        return Cut(stop_token_ids=(int(token_ids[0]),), max_step_tokens=self.max_step_tokens)


def parse_cut(name: str) -> Cut | TokenCut:
    """Parse `line`, `tokens:32`, `mark:TEXT` or `token:TEXT`, where TEXT is what a model was trained to end its steps
    with: as a text, or as a single token."""
    kind, _, rest = name.partition(":")
    if kind == "token" and rest:
        return TokenCut(rest)
    if kind == "mark" and rest:
        return Cut(stop=(rest,))
    if kind == "tokens" and rest:
        if not rest.isdigit() or not int(rest):
            raise UsageError(f"tokens:{rest} is no number of tokens; write tokens:32, say")
        return Cut(tokens=int(rest))
    if name not in CUTS:
        raise UnknownName("cut", name, ["auto", *CUTS, "tokens:N", "mark:TEXT", "token:TEXT"])
    return CUTS[name]


WHOLE_ANSWER = Cut(tokens=1 << 30, max_step_tokens=1 << 30)  # one step to the end of the answer, as for rollouts
