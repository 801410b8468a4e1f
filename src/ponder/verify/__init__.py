"""Verifiers: scorers that decide by rule. Each score has a reason; what cannot be decided is None, never 0."""

from ponder.verify.answers.extract import (
    ANSWER_FORMS,
    EXPLICIT_FORMS,
    AnswerForm,
    ExtractedAnswer,
    extract,
    format_answer,
    strip_thinking,
)
from ponder.verify.code.assert_tests import AssertTests
from ponder.verify.code.call_tests import CallTests
from ponder.verify.code.output_tests import OutputTests
from ponder.verify.code.property_tests import PropertyTests
from ponder.verify.final_answer.choice import MultipleChoice
from ponder.verify.final_answer.clock_time import ClockTime
from ponder.verify.final_answer.number import FinalNumber
from ponder.verify.final_answer.text import FinalList, FinalText
from ponder.verify.instructions.constraints import Constraints
from ponder.verify.instructions.json_schema import JsonSchema
from ponder.verify.llm_judge import LLMJudge
from ponder.verify.maths import MathAnswer
from ponder.verify.numeric.arithmetic import ArithmeticResult, evaluate_arithmetic
from ponder.verify.numeric.numbers import Number, numbers_equal, parse_plain_number
from ponder.verify.puzzles.countdown import CountdownVerifier, GameOf24Verifier
from ponder.verify.puzzles.knapsack import KnapsackVerifier
from ponder.verify.puzzles.maze import MazeVerifier
from ponder.verify.puzzles.sat import SatVerifier
from ponder.verify.puzzles.sudoku import SudokuVerifier
from ponder.verify.puzzles.tictactoe import TicTacToeVerifier
from ponder.verify.puzzles.zebra import ZebraVerifier
from ponder.verify.rewards.combine import GatedReward, WeightedSum
from ponder.verify.rewards.language_consistency import LanguageConsistency
from ponder.verify.rewards.repetition import RepetitionPenalty
from ponder.verify.rewards.reward_registry import REWARDS, parse_rewards, weighted_reward
from ponder.verify.rewards.step_arithmetic import StepArithmetic
from ponder.verify.rewards.think_format import ThinkFormat
from ponder.verify.rewards.token_length import CosineLengthReward, OverlongPenalty
from ponder.verify.undecided import VerdictCounts, count_verdicts, too_many_undecided
from ponder.verify.vision.segmentation_rewards import SegZero, VisionReasoner
from ponder.verify.vision.segmenter import FloodFill, SegmentedMaskIoU, Segmenter
from ponder.verify.vision.verifiers import BoxIoU, BoxSetIoU, DetectionAP, MaskIoU, PointInMask
from ponder.verify.vision.visual_rft import VisualRFTClass, VisualRFTDetection, VisualRFTGrounding

__all__ = [
    "ANSWER_FORMS",
    "EXPLICIT_FORMS",
    "REWARDS",
    "AnswerForm",
    "ArithmeticResult",
    "AssertTests",
    "BoxIoU",
    "BoxSetIoU",
    "CallTests",
    "ClockTime",
    "Constraints",
    "CosineLengthReward",
    "CountdownVerifier",
    "DetectionAP",
    "ExtractedAnswer",
    "FinalList",
    "FinalNumber",
    "FinalText",
    "FloodFill",
    "GameOf24Verifier",
    "GatedReward",
    "JsonSchema",
    "KnapsackVerifier",
    "LLMJudge",
    "LanguageConsistency",
    "MaskIoU",
    "MathAnswer",
    "MazeVerifier",
    "MultipleChoice",
    "Number",
    "OutputTests",
    "OverlongPenalty",
    "PointInMask",
    "PropertyTests",
    "RepetitionPenalty",
    "SatVerifier",
    "SegZero",
    "SegmentedMaskIoU",
    "Segmenter",
    "StepArithmetic",
    "SudokuVerifier",
    "ThinkFormat",
    "TicTacToeVerifier",
    "VerdictCounts",
    "VisionReasoner",
    "VisualRFTClass",
    "VisualRFTDetection",
    "VisualRFTGrounding",
    "WeightedSum",
    "ZebraVerifier",
    "count_verdicts",
    "evaluate_arithmetic",
    "extract",
    "format_answer",
    "numbers_equal",
    "parse_plain_number",
    "parse_rewards",
    "strip_thinking",
    "too_many_undecided",
    "weighted_reward",
]  # fmt: skip
