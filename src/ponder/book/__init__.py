"""The book: claims of the field's papers and lectures, each made from scratch by one command, `ponder book FIGURE`."""

from __future__ import annotations

from importlib import import_module

from ponder.book.figure import BookFigure
from ponder.errors import UnknownName

# The command line reads this table from the source: keep it literal.
FIGURES: dict[str, str] = {
    "judges": "ponder.book.judges",
    "rl-judges": "ponder.book.rl_judges",
    "judge-scale": "ponder.book.judge_scale",
    "judge-answers": "ponder.book.judge_answers",
    "step-judges": "ponder.book.step_judges",
    "step-labels": "ponder.book.step_labels",
    "search": "ponder.book.search",
    "falling": "ponder.book.falling",
    "bandits": "ponder.book.bandits",
    "gradient-noise": "ponder.book.gradient_noise",
    "poker": "ponder.book.poker",
    "votes": "ponder.book.votes",
    "monkeys": "ponder.book.monkeys",
    "tokens": "ponder.book.tokens",
    "forks": "ponder.book.forks",
    "effort": "ponder.book.effort",
    "two-axes": "ponder.book.two_axes",
    "connect-four": "ponder.book.connect_four",
    "r1-zero": "ponder.book.r1_zero",
    "self-improvement": "ponder.book.self_improvement",
    "quiet-star": "ponder.book.quiet_star",
    "synthetic": "ponder.book.synthetic",
    "algorithms": "ponder.book.algorithms",
    "reward-hacking": "ponder.book.reward_hacking",
    "over-optimisation": "ponder.book.over_optimisation",
    "chain-of-thought": "ponder.book.chain_of_thought",
    "s1": "ponder.book.s1",
    "tictactoe": "ponder.book.tictactoe",
    "r1-pipeline": "ponder.book.r1_pipeline",
}


def find_figure(name: str) -> BookFigure:
    """A figure by its name."""
    if name not in FIGURES:
        raise UnknownName("figure", name, FIGURES)
    figure: BookFigure = import_module(FIGURES[name]).FIGURE
    return figure
