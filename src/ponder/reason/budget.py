"""Compute budgets, enforced to the token.

A `BudgetLedger` tracks how much of a `Budget` is left; a `BudgetedPolicy` charges its tokens to it. Several problems
can share one ledger.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated

from ponder.errors import BudgetExhausted, UsageError
from ponder.protocols import GenerateCall, GenerateMany, Policy, PolicyWrapper
from ponder.reason.price import Price
from ponder.types import Completion, Cost, Ids, Sampling, Trace
from ponder.validate import check_number

_FREE = Price()


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits; None: no limit. Generated tokens never exceed `tokens`. Seconds and dollars are checked before each call,
    so calls in flight finish; seconds count from when the ledger was created."""

    tokens: Annotated[int | None, "tokens to write at most"] = None
    seconds: Annotated[float | None, "seconds after which no new call starts"] = None
    dollars: Annotated[float | None, "dollars after which no new call starts, by --prices"] = None
    price: Price = Price()

    def __post_init__(self) -> None:
        for name in ("tokens", "seconds", "dollars"):
            value = getattr(self, name)
            if value is not None and not check_number(name, value) > 0:
                raise UsageError(f"a budget of {value} {name} buys nothing; leave it out for no bound")
        if self.dollars is not None and self.price == Price():
            raise UsageError("a budget in dollars needs a price: give what a million tokens cost")


@dataclass(eq=False, slots=True)
class BudgetLedger:
    """A call reserves tokens first; unused ones are returned when it is done, and other calls wait for them."""

    budget: Budget
    spent: Cost = Cost()
    _reserved: int = 0
    _started_at: float = field(default_factory=time.monotonic)
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)  # calls, until tokens are returned

    @property
    def tokens_left(self) -> float:
        """Tokens neither spent nor reserved."""
        most = self.budget.tokens
        return float("inf") if most is None else most - self.spent.generated_tokens - self._reserved

    async def reserve(self, max_tokens: int, n: int) -> int:
        """Tokens that each of n continuations may have: `max_tokens`, or fewer if the budget is nearly exhausted."""
        self._check_limits()
        if self.budget.tokens is None:
            return max_tokens
        while self.tokens_left < max_tokens * n and self._reserved:
            returned = asyncio.get_running_loop().create_future()
            self._waiting.append(returned)
            await returned
        self._check_limits()
        granted = int(min(max_tokens, self.tokens_left // n))
        if granted < 1:
            raise BudgetExhausted(f"the budget of {self.budget.tokens:,} tokens is used up")
        self._reserved += granted * n
        return granted

    def settle(self, reserved: int, cost: Cost) -> None:
        """A call is done: return what it had reserved, and charge what it cost."""
        self.spent += cost
        if self.budget.tokens is not None:
            self._reserved -= reserved
            waiting, self._waiting = self._waiting, []
            for returned in waiting:  # in the order in which they came
                if not returned.done():  # else its caller is gone
                    returned.set_result(None)

    def _check_limits(self) -> None:
        b = self.budget
        if b.seconds is not None and time.monotonic() - self._started_at >= b.seconds:
            raise BudgetExhausted(f"the budget of {b.seconds:g} s is used up")
        if b.dollars is not None and self.spent.dollars >= b.dollars:
            raise BudgetExhausted(f"the budget of ${b.dollars:g} is used up")


@dataclass(slots=True)
class BudgetedPolicy(PolicyWrapper):
    """A `Policy` that charges what it generates to a ledger."""

    policy: Policy
    ledger: BudgetLedger
    was_limited: bool = False  # at least one call got fewer tokens than it asked for

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        try:
            granted = await self.ledger.reserve(sampling.max_tokens, n)
        except BudgetExhausted:
            self.was_limited = True
            raise
        if granted < len(sampling.forced_token_ids):
            self.ledger.settle(granted * n, Cost())
            self.was_limited = True
            raise BudgetExhausted(f"{granted} tokens are left, and {len(sampling.forced_token_ids)} are forced")
        completions: list[Completion] = []
        try:
            how = sampling
            if granted < sampling.max_tokens:
                how = replace(sampling, max_tokens=granted, min_tokens=min(sampling.min_tokens, granted))
            completions = await self.policy.generate(prefix, how, n)
            self.was_limited |= granted < sampling.max_tokens and any(c.stop == "length" for c in completions)
            completions = self._priced(completions)
            return completions
        finally:
            self.ledger.settle(granted * n, sum((c.cost for c in completions), Cost()))

    @property
    def generate_many(self) -> GenerateMany | None:
        """Where the policy takes several calls at once, and the budget has no limit that one of them could reach."""
        budget = self.ledger.budget
        is_limited = (budget.tokens, budget.seconds, budget.dollars) != (None, None, None)
        return None if is_limited or getattr(self.policy, "generate_many", None) is None else self._generate_many

    async def _generate_many(self, calls: Sequence[GenerateCall]) -> list[list[Completion]]:
        groups: list[list[Completion]] = []
        try:
            groups = [self._priced(group) for group in await self.policy.generate_many(calls)]  # type: ignore[attr-defined]
            return groups
        finally:
            self.ledger.settle(0, sum((c.cost for group in groups for c in group), Cost()))

    def _priced(self, completions: list[Completion]) -> list[Completion]:
        """The completions, with what they cost in dollars."""
        price = self.ledger.budget.price
        if price == _FREE:
            return completions
        return [replace(c, cost=replace(c.cost, dollars=c.cost.dollars + price.dollars(c.cost))) for c in completions]


@contextmanager
def until_exhausted(trace: Trace) -> Iterator[None]:
    """Stop the block where the budget is exhausted and note that on the trace; the caller uses what there is so far."""
    try:
        yield
    except BudgetExhausted:
        trace.budget_exhausted = True
