"""What samples would cost at an API, in dollars, as Brown et al. 2024 table them (arXiv:2407.21787, table 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ponder.book.figure import SeedData, markdown_table
from ponder.reason.price import Price
from ponder.types import Cost

PRICED = {"large": "model", "small": "smaller"}  # the models' names in a table of prices
# Not the prices of any API: some dollars, half of them for the smaller model.
EXAMPLE_PRICES = {"model": Price(prompt=0.2, generated=0.8), "smaller": Price(prompt=0.1, generated=0.4)}
PRICES_FILE = '`{"model": {"prompt": 0.2, "generated": 0.8}, "smaller": {"prompt": 0.1, "generated": 0.4}}`'
PROBLEMS = 1000  # that the table's dollars are for


def dollar_lines(
    data: Sequence[SeedData], sizes: Sequence[tuple[str, str]], samples: Sequence[int],
    prices: Mapping[str, Price] | None,
) -> list[str]:  # fmt: skip
    """A table of so many samples of each size and of all, at `prices`, or where there are none at the example's."""
    table = EXAMPLE_PRICES if prices is None else prices
    priced = [(size, label, table[PRICED[size]]) for size, label in sizes if PRICED[size] in table]
    if not priced:
        return []
    k = data[0]["large"]["k"]
    rows: list[list[str]] = []
    first = float("nan")
    for size, label, price in priced:
        for n in [n for n in (*samples, k[-1]) if n in k]:
            dollars = float(np.mean([dollars_of_samples(d[size], n, price) for d in data]))
            first = dollars if not rows else first
            covered = float(np.mean([d[size]["coverage"][k.index(n)] for d in data]))
            rows.append([
                label, _amount(dollars / n), f"{n:,}", f"{100 * covered:.1f}", _amount(dollars),
                _amount(dollars / first), _amount(dollars / covered) if covered else "",
            ])  # fmt: skip
    head = [f"{PROBLEMS:,} problems", "an attempt, $", "attempts", "covered, %", "all attempts, $", "relative"]
    head.append(f"{PROBLEMS:,} covered problems, $")
    asked = "; ".join(f"{label} {price.prompt:g} and {price.generated:g}" for _, label, price in priced)
    known = all("prompt tokens" in d[size] for d in data for size, _, _ in priced)
    prompt = (
        "A prompt is charged once for all samples of a problem."
        if known
        else "Prompts are left out: these runs did not keep their lengths; a new run does, and charges one once for"
        " all samples of a problem."
    )
    mark = "given prices" if prices is not None else "an example, which is the price of no API"
    own = "" if prices is not None else f" Your own: `--prices FILE`, with {PRICES_FILE}."
    return [
        f"In dollars, at {mark}: per million prompt and generated tokens, {asked}. {prompt}{own}",
        *markdown_table(head, rows),
    ]


def dollars_of_samples(size: SeedData, n: int, price: Price) -> float:
    """For n samples of each of `PROBLEMS` problems."""
    generated = round(PROBLEMS * n * size["tokens per sample"])
    return price.dollars(Cost(round(PROBLEMS * size.get("prompt tokens", 0.0)), generated_tokens=generated))


def _amount(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"
