"""Truth: scorers that decide by rule. Each score says why; what cannot be decided is None, never 0."""

from ponder.verify.answers.extract import EXPLICIT_FORMS, ANSWER_FORMS, AnswerForm, ExtractedAnswer, strip_thinking, extract, format_answer
from ponder.verify.final_answer.choice import MultipleChoice
from ponder.verify.code.verifiers import AssertTests, CallTests, OutputTests, PropertyTests
from ponder.verify.rewards.combine import GatedReward, WeightedSum
from ponder.verify.numeric.arithmetic import ArithmeticResult, evaluate_arithmetic
from ponder.verify.final_answer.number import FinalNumber
from ponder.verify.instructions.constraints import Constraints
from ponder.verify.rewards.think_format import ThinkFormat
from ponder.verify.rewards.language_consistency import LanguageConsistency
from ponder.verify.rewards.token_length import CosineLengthReward, OverlongPenalty
from ponder.verify.rewards.repetition import RepetitionPenalty
from ponder.verify.instructions.json_schema import JsonSchema
from ponder.verify.rewards.step_arithmetic import StepArithmetic
from ponder.verify.llm_judge import LLMJudge
from ponder.verify.maths import MathAnswer
from ponder.verify.numeric.numbers import Number, numbers_equal, parse_plain_number
from ponder.verify.puzzles.countdown import CountdownVerifier, GameOf24Verifier
from ponder.verify.puzzles.knapsack import KnapsackVerifier
from ponder.verify.puzzles.maze import MazeVerifier
from ponder.verify.puzzles.sat import SatVerifier
from ponder.verify.puzzles.sudoku import SudokuVerifier
from ponder.verify.puzzles.tictactoe import TicTacToeVerifier
from ponder.verify.puzzles.zebra import ZebraVerifier
from ponder.verify.rewards.registry import REWARDS, weighted_reward
from ponder.verify.final_answer.text import FinalList, FinalText
from ponder.verify.undecided import VerdictCounts, count_verdicts, too_many_undecided
from ponder.verify.vision.verifiers import BoxIoU, DetectionAP, MaskIoU, PointInMask

__all__ = [
    "EXPLICIT_FORMS", "ANSWER_FORMS", "REWARDS", "AssertTests", "BoxIoU", "CallTests", "MultipleChoice", "Constraints", "CosineLengthReward",
    "CountdownVerifier", "DetectionAP", "FinalList", "FinalNumber", "FinalText", "AnswerForm", "ExtractedAnswer", "GameOf24Verifier", "GatedReward",
    "JsonSchema", "LLMJudge", "KnapsackVerifier", "LanguageConsistency", "MaskIoU", "MathAnswer", "MazeVerifier", "Number", "OutputTests",
    "OverlongPenalty", "PointInMask", "PropertyTests", "RepetitionPenalty", "SatVerifier", "StepArithmetic", "SudokuVerifier", "VerdictCounts",
    "ThinkFormat", "TicTacToeVerifier", "ArithmeticResult", "WeightedSum", "ZebraVerifier", "strip_thinking", "numbers_equal", "evaluate_arithmetic", "extract", "parse_plain_number",
    "format_answer", "count_verdicts", "too_many_undecided", "weighted_reward",
]  # fmt: skip
