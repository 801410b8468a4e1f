"""Truth: scorers that decide by rule. Each score says why; what cannot be decided is None, never 0."""

from ponder.verify.answer import EXPLICIT_FORMS, ANSWER_FORMS, AnswerForm, ExtractedAnswer, strip_thinking, extract, format_answer
from ponder.verify.choice import MultipleChoice
from ponder.verify.code.verdicts import AssertTests, CallTests, OutputTests, PropertyTests
from ponder.verify.combine import GatedReward, WeightedSum
from ponder.verify.expression import ArithmeticResult, evaluate_arithmetic
from ponder.verify.final import FinalNumber
from ponder.verify.form.constraints import Constraints
from ponder.verify.form.format import ThinkFormat
from ponder.verify.form.language import LanguageConsistency
from ponder.verify.form.length import CosineLengthReward, OverlongPenalty
from ponder.verify.form.repetition import RepetitionPenalty
from ponder.verify.form.schema import JsonSchema
from ponder.verify.form.steps import StepArithmetic
from ponder.verify.judge import LLMJudge
from ponder.verify.maths import MathAnswer
from ponder.verify.numbers import Number, numbers_equal, parse_plain_number
from ponder.verify.puzzles.countdown import CountdownVerifier, GameOf24Verifier
from ponder.verify.puzzles.knapsack import KnapsackVerifier
from ponder.verify.puzzles.maze import MazeVerifier
from ponder.verify.puzzles.sat import SatVerifier
from ponder.verify.puzzles.sudoku import SudokuVerifier
from ponder.verify.puzzles.tictactoe import TicTacToeVerifier
from ponder.verify.puzzles.zebra import ZebraVerifier
from ponder.verify.rewards import REWARDS, weighted_reward
from ponder.verify.text import FinalList, FinalText
from ponder.verify.undecided import VerdictCounts, count_verdicts, too_many_undecided
from ponder.verify.vision import BoxIoU, DetectionAP, MaskIoU, PointInMask

__all__ = [
    "EXPLICIT_FORMS", "ANSWER_FORMS", "REWARDS", "AssertTests", "BoxIoU", "CallTests", "MultipleChoice", "Constraints", "CosineLengthReward",
    "CountdownVerifier", "DetectionAP", "FinalList", "FinalNumber", "FinalText", "AnswerForm", "ExtractedAnswer", "GameOf24Verifier", "GatedReward",
    "JsonSchema", "LLMJudge", "KnapsackVerifier", "LanguageConsistency", "MaskIoU", "MathAnswer", "MazeVerifier", "Number", "OutputTests",
    "OverlongPenalty", "PointInMask", "PropertyTests", "RepetitionPenalty", "SatVerifier", "StepArithmetic", "SudokuVerifier", "VerdictCounts",
    "ThinkFormat", "TicTacToeVerifier", "ArithmeticResult", "WeightedSum", "ZebraVerifier", "strip_thinking", "numbers_equal", "evaluate_arithmetic", "extract", "parse_plain_number",
    "format_answer", "count_verdicts", "too_many_undecided", "weighted_reward",
]  # fmt: skip
