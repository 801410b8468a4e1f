"""Functions as tools: hints and docstring are what the model reads of them."""

from typing import Literal

from ponder import ask


def convert(amount: float, unit: Literal["km", "kg"]) -> str:
    """Convert to imperial units.

    Args:
        amount: how much
        unit: of what
    """
    return f"{amount * 0.621371:.1f} miles" if unit == "km" else f"{amount * 2.204623:.1f} pounds"


answer = ask("How many miles are 40 km?", tools=[convert, "calculator"], n=1, max_tokens=64)
print(answer.text)
