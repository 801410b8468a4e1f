"""Problems, and the verifier that grades their answers. `TASKS` has every task by its name on the command line.

Generated tasks (`GeneratedTask`) need no data: problem i is a function of the settings, a seed and i. Data sets
(`DatasetTask`) are read from the folder that PONDER_DATA names; each module says which files. `CustomTask` takes your
own rows and reward functions, `CocoTask` and `RefCocoTask` photographs with boxes, `HubDataset` questions and answers
from the Hugging Face hub, `ReasoningGym` the generators of that library.
"""

from collections.abc import Mapping
from typing import Any

from ponder import registry
from ponder.errors import UsageError
from ponder.hub import RepoName
from ponder.tasks.datasets.arc import ARC
from ponder.tasks.datasets.bbh import BBH
from ponder.tasks.datasets.coco import CocoTask
from ponder.tasks.datasets.coding import MBPP, HumanEval
from ponder.tasks.datasets.cruxeval import CRUXEval
from ponder.tasks.datasets.custom import CustomTask
from ponder.tasks.datasets.dataset_sources import HUB_TASKS
from ponder.tasks.datasets.dataset_task import DatasetTask
from ponder.tasks.datasets.game24 import Game24
from ponder.tasks.datasets.hub_dataset import HubDataset
from ponder.tasks.datasets.math500 import MATH500
from ponder.tasks.datasets.processbench import ProcessBench
from ponder.tasks.datasets.question_file import QuestionFile
from ponder.tasks.datasets.refcoco import RefCocoTask
from ponder.tasks.datasets.word_problems import GSM8K, MAWPS, SVAMP
from ponder.tasks.environments.alphabet_sort import AlphabetSort
from ponder.tasks.environments.check_answer import CheckAnswer
from ponder.tasks.environments.code_feedback import CodeFeedback
from ponder.tasks.environments.connect_four import ConnectFourTask
from ponder.tasks.environments.environment_task import EnvironmentTask
from ponder.tasks.environments.episode_task import EpisodeTask
from ponder.tasks.environments.grid_walk import GridWalk
from ponder.tasks.environments.mastermind import Mastermind
from ponder.tasks.environments.sokoban import Sokoban
from ponder.tasks.environments.sql import Sql
from ponder.tasks.environments.textarena import TextArena
from ponder.tasks.environments.tic_tac_toe_game import TicTacToeGameTask
from ponder.tasks.environments.twenty_questions import TwentyQuestions
from ponder.tasks.generated.addition import Addition
from ponder.tasks.generated.algebra import Algebra
from ponder.tasks.generated.arithmetic import Arithmetic
from ponder.tasks.generated.boxes import Boxes
from ponder.tasks.generated.countdown import Countdown
from ponder.tasks.generated.counting import Counting
from ponder.tasks.generated.generated_task import GeneratedTask
from ponder.tasks.generated.instructions import Instructions
from ponder.tasks.generated.knapsack import Knapsack
from ponder.tasks.generated.knights_and_knaves import KnightsAndKnaves
from ponder.tasks.generated.maze import Maze
from ponder.tasks.generated.number_theory import NumberTheory
from ponder.tasks.generated.programs import Programs
from ponder.tasks.generated.satisfiability import SatisfiabilityTask
from ponder.tasks.generated.sorting import Sorting
from ponder.tasks.generated.strings import Strings
from ponder.tasks.generated.sudoku import Sudoku
from ponder.tasks.generated.sums import Sums
from ponder.tasks.generated.tictactoe import TicTacToe
from ponder.tasks.generated.twenty_four import TwentyFour
from ponder.tasks.generated.zebra import Zebra
from ponder.tasks.proofs import Proofs
from ponder.tasks.reasoning_gym import ReasoningGym
from ponder.tasks.reward_functions import RewardFunctions
from ponder.tasks.suite import Suite
from ponder.tasks.vision.count_shapes import CountShapes
from ponder.tasks.vision.locate_shape import LocateShape, LocateShapes
from ponder.tasks.vision.order_shapes import OrderShapes
from ponder.tasks.vision.picture_maze import PictureMaze
from ponder.tasks.vision.point_at_shape import PointAtShape
from ponder.tasks.vision.read_clock import ReadClock
from ponder.tasks.vision.refer_to_shape import ReferToShape
from ponder.tasks.vision.same_or_different import SameOrDifferent
from ponder.tasks.vision.segment_shape import SegmentShape

TASKS: dict[str, type] = {
    "addition": Addition,
    "algebra": Algebra,
    "arithmetic": Arithmetic,
    "boxes": Boxes,
    "countdown": Countdown,
    "counting": Counting,
    "instructions": Instructions,
    "knapsack": Knapsack,
    "knights": KnightsAndKnaves,
    "maze": Maze,
    "number-theory": NumberTheory,
    "programs": Programs,
    "proofs": Proofs,
    "sat": SatisfiabilityTask,
    "sorting": Sorting,
    "strings": Strings,
    "sudoku": Sudoku,
    "sums": Sums,
    "tic-tac-toe": TicTacToe,
    "twenty-four": TwentyFour,
    "zebra": Zebra,
    "count-shapes": CountShapes,
    "locate-shape": LocateShape,
    "locate-shapes": LocateShapes,
    "order-shapes": OrderShapes,
    "picture-maze": PictureMaze,
    "point-at-shape": PointAtShape,
    "read-clock": ReadClock,
    "refer-to-shape": ReferToShape,
    "same-or-different": SameOrDifferent,
    "segment-shape": SegmentShape,
    "alphabet-sort": AlphabetSort,
    "check-answer": CheckAnswer,
    "code-feedback": CodeFeedback,
    "connect-four": ConnectFourTask,
    "grid-walk": GridWalk,
    "mastermind": Mastermind,
    "sokoban": Sokoban,
    "sql": Sql,
    "tic-tac-toe-game": TicTacToeGameTask,
    "twenty-questions": TwentyQuestions,
    "arc": ARC,
    "bbh": BBH,
    "coco": CocoTask,
    "cruxeval": CRUXEval,
    "game24": Game24,
    "gsm8k": GSM8K,
    "humaneval": HumanEval,
    "math500": MATH500,
    "mawps": MAWPS,
    "mbpp": MBPP,
    "processbench": ProcessBench,
    "refcoco": RefCocoTask,
    "svamp": SVAMP,
    "suite": Suite,
    "questions": QuestionFile,
    "custom": CustomTask,
    "environment": EpisodeTask,
    "reasoning-gym": ReasoningGym,
    "textarena": TextArena,
}


def find(name: str, settings: Mapping[str, str] | None = None) -> tuple[Any, dict[str, str]]:
    """The task of this name, `name:part`, `module:object` or `owner/name` of the Hugging Face hub; and its settings,
    with the part or the repository among them."""
    name = HUB_TASKS.get(name, name)
    if name not in TASKS and RepoName.parse(name) is not None:
        return HubDataset, {"repo": name, **(settings or {})}
    family, _, part = name.partition(":")
    kind: Any = TASKS.get(family)
    if not part or not hasattr(kind, "PART_SETTING"):  # a task without parts leaves its name to a module of yours
        return registry.lookup("task", name, TASKS), dict(settings or {})
    if kind.PART_SETTING in (settings or {}):
        raise UsageError(f"{name} already names its {kind.PART_SETTING}: leave out --task.{kind.PART_SETTING}")
    return kind, {kind.PART_SETTING: part, **(settings or {})}


__all__ = [
    "ARC",
    "BBH",
    "GSM8K",
    "MATH500",
    "MAWPS",
    "MBPP",
    "SVAMP",
    "TASKS",
    "Addition",
    "Algebra",
    "AlphabetSort",
    "Arithmetic",
    "Boxes",
    "CRUXEval",
    "CheckAnswer",
    "CocoTask",
    "CodeFeedback",
    "ConnectFourTask",
    "CountShapes",
    "Countdown",
    "Counting",
    "CustomTask",
    "DatasetTask",
    "EnvironmentTask",
    "EpisodeTask",
    "Game24",
    "GeneratedTask",
    "GridWalk",
    "HubDataset",
    "HumanEval",
    "Instructions",
    "Knapsack",
    "KnightsAndKnaves",
    "LocateShape",
    "LocateShapes",
    "Mastermind",
    "Maze",
    "NumberTheory",
    "OrderShapes",
    "PictureMaze",
    "PointAtShape",
    "ProcessBench",
    "Programs",
    "Proofs",
    "QuestionFile",
    "ReadClock",
    "ReasoningGym",
    "RefCocoTask",
    "ReferToShape",
    "RewardFunctions",
    "SameOrDifferent",
    "SatisfiabilityTask",
    "SegmentShape",
    "Sokoban",
    "Sorting",
    "Sql",
    "Strings",
    "Sudoku",
    "Suite",
    "Sums",
    "TextArena",
    "TicTacToe",
    "TicTacToeGameTask",
    "TwentyFour",
    "TwentyQuestions",
    "Zebra",
    "find",
]  # fmt: skip
