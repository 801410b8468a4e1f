"""Do half a million answers make a judge that chooses better than a vote? As `rl-judges`, with twelve times the answers
to learn from, most of them to GSM8K's problems."""

from __future__ import annotations

from typing import Any

from ponder.book.figure import SeedData
from ponder.book.rl_judges import RLJudges

# Every training problem of three sets, 60 answers to each; judges read each answer once. No other setting was tried.
ON_WORD_PROBLEMS: dict[str, Any] = {
    "rl_steps": 50, "more_tasks": ("svamp", "gsm8k"), "rl_tasks": ("svamp",), "problems": 8000, "samples": 60,
    "batch_size": 32, "steps": 240, "tuned_steps": 80, "warmup_steps": 10, "lr": 1e-4, "implicit_lr": 2e-5,
    "betas": (0.05,), "keep_best": True, "limit": 256, "n": 64, "validation_n": 16,
}  # fmt: skip


class ManyAnswers(RLJudges):
    name = "many-answers"
    title = "Which judge picks best of N, after half a million answers"
    source = (
        "Cobbe et al. 2021, arXiv:2110.14168 (a verifier gains more from further data than fine-tuning does);"
        " Yuan et al. 2024, arXiv:2412.01981 (an implicit reward model, from the same outcome labels, judges better)"
    )
    claim = "From half a million answers a judge learns to choose better than majority vote."
    on_word_problems = ON_WORD_PROBLEMS

    def _start_line(self, first: SeedData) -> str:
        return (
            f"{super()._start_line(first)} The answers to learn from are {self.on_word_problems['samples']} to every"
            f" training problem of {first['task']}, svamp and gsm8k but a tenth, most of them gsm8k's; each is read"
            " once."
        )


FIGURE = ManyAnswers()
