"""Problems, and which verifier judges them."""

from ponder.tasks.addition import Addition
from ponder.tasks.arithmetic import Arithmetic
from ponder.tasks.countdown import Countdown
from ponder.tasks.words import GSM8K, MAWPS, SVAMP

TASKS: dict[str, type] = {
    "addition": Addition,
    "arithmetic": Arithmetic,
    "countdown": Countdown,
    "gsm8k": GSM8K,
    "svamp": SVAMP,
    "mawps": MAWPS,
}

__all__ = ["GSM8K", "MAWPS", "SVAMP", "TASKS", "Addition", "Arithmetic", "Countdown"]
