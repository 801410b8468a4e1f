"""Answers that no verifier may accept, hang on, or be made undecided by, whatever the question."""

from __future__ import annotations

from ponder.types import Score
from processor_time import processor_time_below

CONTENT = [
    "", " ", "\n", "?", "None", "null", "true", "NaN", "Infinity", "-1e999", "1e400", "{}", "[]", "[[]]", "[null]",
    "{" * 5000, "[" * 5000, "(" * 5000, "[" * 5000 + "]" * 5000, '{"a":' * 3000 + "1" + "}" * 3000,
    "9" * 15_000, "-" * 15_000, "1," * 9_000, "1 " * 9_000, "a" * 15_000, "|" * 15_000, "| |\n" * 3_000, "\\" * 9_000,
    '"' * 9_000, "x1" * 5_000, "١٢٣٤٥", "１２３", "²³", "Ⅷ", "५", "\ud800", "\udfff1", "\x00", "\u202e42", "\u200b",
    "\U0001d7d8", "K", "__import__('os').system('true')", "9**9**9**9", "1/0", "$(reboot)", "{{7*7}}", "%s%n",
    "'; DROP TABLE gold; --", "<script>", "<answer>", "\\boxed{", "right", "The answer is correct.", "as above",
]  # fmt: skip

AROUND = [
    "{}",
    "<answer>{}</answer>",
    "\\boxed{{{}}}",
    "<think>{}</think>",
    "<think>{}",
    "<answer>{}</answer><answer>{}</answer>",
    "<answer>{}",
    "<answer>{}</answer> or perhaps not",
    "</think></think>{}",
]

HUGE = [
    "<answer>" * 20_000,
    "<think>" * 20_000,
    "\\boxed{" * 20_000,
    "</answer>" * 20_000,
    "<answer>" + "7" * 2_000_000,
]


def texts() -> list[str]:
    short = [c for c in CONTENT if len(c) < 100]
    long = [c for c in CONTENT if len(c) >= 100]
    return [a.replace("{{{}}}", "{" + c + "}").replace("{}", c) for c in short for a in AROUND] + [
        a.replace("{{{}}}", "{" + c + "}").replace("{}", c) for c in long for a in AROUND[1:3]
    ] + HUGE  # fmt: skip


def refused(judge, answer, seconds=2.0, below=1.0) -> None:  # type: ignore[no-untyped-def]
    """Every one of them is decided, in little time of the processor, and earns less than a right answer."""
    for text in texts():
        with processor_time_below(seconds, text[:60]):
            score: Score = judge(text, answer)
        assert score.value is not None, (text[:60], score.reason)
        assert score.value < below, (text[:60], score)
        assert score.reason and len(score.reason) < 500
