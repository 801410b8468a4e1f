"""Truth: scorers that decide by rule. Each score says why; what cannot be decided is None, never 0."""

from ponder.verify.answer import EXPLICIT, ANSWER_FORMS, AnswerForm, ExtractedAnswer, after_thinking, extract, format_answer
from ponder.verify.choice import MultipleChoice
from ponder.verify.code.verdicts import AssertTests, CallTests, OutputTests, PropertyTests
from ponder.verify.combine import Gated, WeightedSum
from ponder.verify.expression import ArithmeticResult, evaluate_arithmetic
from ponder.verify.final import FinalNumber
from ponder.verify.form.constraints import Constraints
from ponder.verify.form.format import ThinkFormat
from ponder.verify.form.language import LanguageConsistency
from ponder.verify.form.length import CosineLength, Overlong
from ponder.verify.form.repetition import Repetition
from ponder.verify.form.schema import JsonSchema
from ponder.verify.form.steps import StepArithmetic
from ponder.verify.judge import LLMJudge
from ponder.verify.maths import MathAnswer
from ponder.verify.numbers import Number, numbers_equal, parse_plain_number
from ponder.verify.puzzles.countdown import CountdownVerifier, GameOf24
from ponder.verify.puzzles.knapsack import KnapsackVerifier
from ponder.verify.puzzles.maze import MazeVerifier
from ponder.verify.puzzles.sat import Satisfiability
from ponder.verify.puzzles.sudoku import SudokuVerifier
from ponder.verify.puzzles.tictactoe import TicTacToeVerifier
from ponder.verify.puzzles.zebra import ZebraVerifier
from ponder.verify.rewards import REWARDS, weighted_reward
from ponder.verify.text import FinalList, FinalText
from ponder.verify.undecided import VerdictCounts, count_verdicts, too_many_undecided
from ponder.verify.vision import BoxOverlap, Detection, MaskOverlap, PointInMask

__all__ = [
    "EXPLICIT", "ANSWER_FORMS", "REWARDS", "AssertTests", "BoxOverlap", "CallTests", "MultipleChoice", "Constraints", "CosineLength",
    "CountdownVerifier", "Detection", "FinalList", "FinalNumber", "FinalText", "AnswerForm", "ExtractedAnswer", "GameOf24", "Gated",
    "JsonSchema", "LLMJudge", "KnapsackVerifier", "LanguageConsistency", "MaskOverlap", "MathAnswer", "MazeVerifier", "Number", "OutputTests",
    "Overlong", "PointInMask", "PropertyTests", "Repetition", "Satisfiability", "StepArithmetic", "SudokuVerifier", "VerdictCounts",
    "ThinkFormat", "TicTacToeVerifier", "ArithmeticResult", "WeightedSum", "ZebraVerifier", "after_thinking", "numbers_equal", "evaluate_arithmetic", "extract", "parse_plain_number",
    "format_answer", "count_verdicts", "too_many_undecided", "weighted_reward",
]  # fmt: skip
