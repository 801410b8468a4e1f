"""Truth: scorers that decide by rule. Each score says why; what cannot be decided is None, never 0."""

from ponder.verify.answer import EXPLICIT, FORMS, Form, Found, after_thinking, extract, state
from ponder.verify.choice import Choice
from ponder.verify.code.verdicts import AssertTests, CallTests, OutputTests, PropertyTests
from ponder.verify.combine import Gated, Weighted
from ponder.verify.expression import Value, evaluate
from ponder.verify.final import FinalNumber
from ponder.verify.form.constraints import Constraints
from ponder.verify.form.format import ThinkFormat
from ponder.verify.form.language import Language
from ponder.verify.form.length import CosineLength, Overlong
from ponder.verify.form.repetition import Repetition
from ponder.verify.form.schema import JsonSchema
from ponder.verify.form.steps import StepArithmetic
from ponder.verify.judge import Judge
from ponder.verify.maths import MathAnswer
from ponder.verify.numbers import Number, equal, parse
from ponder.verify.puzzles.countdown import Countdown, GameOf24
from ponder.verify.puzzles.knapsack import Knapsack
from ponder.verify.puzzles.maze import Maze
from ponder.verify.puzzles.sat import Satisfiability
from ponder.verify.puzzles.sudoku import Sudoku
from ponder.verify.puzzles.tictactoe import TicTacToe
from ponder.verify.puzzles.zebra import Zebra
from ponder.verify.rewards import REWARDS, weighted
from ponder.verify.text import FinalList, FinalText
from ponder.verify.undecided import Tally, tally, too_many_undecided
from ponder.verify.vision import BoxOverlap, Detection, MaskOverlap, PointInMask

__all__ = [
    "EXPLICIT", "FORMS", "REWARDS", "AssertTests", "BoxOverlap", "CallTests", "Choice", "Constraints", "CosineLength",
    "Countdown", "Detection", "FinalList", "FinalNumber", "FinalText", "Form", "Found", "GameOf24", "Gated",
    "JsonSchema", "Judge", "Knapsack", "Language", "MaskOverlap", "MathAnswer", "Maze", "Number", "OutputTests",
    "Overlong", "PointInMask", "PropertyTests", "Repetition", "Satisfiability", "StepArithmetic", "Sudoku", "Tally",
    "ThinkFormat", "TicTacToe", "Value", "Weighted", "Zebra", "after_thinking", "equal", "evaluate", "extract", "parse",
    "state", "tally", "too_many_undecided", "weighted",
]  # fmt: skip
