"""Every field of a job, a strategy, an objective and of `Sampling` is read by the code that is to follow it.

A field that only its own `__post_init__` looks at changes nothing. A read is found in the source: of `self` in the
class itself or one it is made from, or of what such an object is usually called elsewhere. For each kind of object the
table says what that is.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ponder
from ponder.nets.lora import LoRA
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.label import Label
from ponder.pipelines.make_problems import MakeProblems
from ponder.pipelines.problems.curriculum import CURRICULA
from ponder.pipelines.problems.filters import Filters
from ponder.pipelines.quiet_star import QuietStar
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.rewards.step_labelling import FirstErrorSearch, MathShepherd
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.budget import Budget
from ponder.reason.operators.backpropagate import DiscountedBackup
from ponder.reason.operators.cut import Cut
from ponder.reason.operators.diverse_beams import DiverseBeamSearch
from ponder.reason.operators.tree_policy import PUCT, UCT, X1, DirichletNoise, ProgressiveWidening
from ponder.reason.presets import PRESETS
from ponder.reason.prompts import Prompt
from ponder.reason.strategies import STRATEGIES
from ponder.tasks import TASKS
from ponder.train.algorithms import ON_POLICY
from ponder.train.imitation import SFT
from ponder.train.objective import KL, Critic
from ponder.train.optimizer import AdamW
from ponder.train.ppo import AdaptiveKLController
from ponder.train.reward_objectives import REWARD_OBJECTIVES
from ponder.types import Sampling

SOURCE = Path(ponder.__file__).parent
NOT_FOLLOWED = ("__post_init__", "unused", "__init__", "check")  # what only looks whether a setting can be

JOBS = (RL, FineTune, TrainRewardModel, Label, Evaluate, Collect, Harvest, MakeProblems, QuietStar, Stages, Stage)
WAYS = {type(kind()) for kind in STRATEGIES.values()} | {type(p.strategy) for p in PRESETS.values()}
LEARNED = {*ON_POLICY.values(), SFT, *REWARD_OBJECTIVES.values()}
ASKED = {kind for kind in TASKS.values() if isinstance(kind, type) and is_dataclass(kind)}
# What such an object is called where others read it.
CALLED: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys(JOBS, ("job", "stage")),
    **dict.fromkeys(WAYS, ("how", "strategy")),
    **dict.fromkeys(LEARNED, ("objective", "algorithm", "rule")),
    **dict.fromkeys(ASKED, ("task", "found")),
    Sampling: ("sampling", "how", "s", "own"),
    Budget: ("budget", "b"),
    Cut: ("cut",),
    KL: ("kl", "term"),
    AdamW: ("optimizer", "s", "settings"),
    AdaptiveKLController: ("adaptive",),
    Critic: ("critic", "how"),
    LoRA: ("lora", "how", "adapter", "spec"),
    Filters: ("filters",),
    **dict.fromkeys((MathShepherd, FirstErrorSearch), ("labeller",)),
    **dict.fromkeys(
        (
            UCT,
            PUCT,
            X1,
            DirichletNoise,
            ProgressiveWidening,
            DiverseBeamSearch,
            DiscountedBackup,
            Prompt,
            *CURRICULA.values(),
        ),
        (),
    ),
}


@cache
def reads() -> dict[str, set[str]]:
    """By field: what it is read of, anywhere in ponder: the last name before the dot."""
    item: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for owner, name in _reads(node):
                item.setdefault(name, set()).add(owner)
    return item


def _reads(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield _last(node.value), node.attr
    if isinstance(node, ast.Call) and _last(node.func) == "getattr":
        yield from ((_last(node.args[0]), str(a.value)) for a in node.args[1:2] if isinstance(a, ast.Constant))


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@cache
def own_reads(kind: type) -> set[str]:
    """What the class's own methods read of `self`."""
    item: set[str] = set()
    for part in kind.__mro__[:-1]:
        if not part.__module__.startswith("ponder"):
            continue
        tree = ast.parse(Path(inspect.getfile(part)).read_text("utf-8"))
        body = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == part.__name__)
        for method in body.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.name not in NOT_FOLLOWED:
                item |= {name for node in ast.walk(method) for owner, name in _reads(node) if owner == "self"}
    return item


SETS_OTHERS = {"level"}  # of a task: its `__post_init__` sets the others by it


@pytest.mark.parametrize(
    "kind", sorted(CALLED, key=lambda kind: f"{kind.__module__}:{kind.__qualname__}"), ids=lambda kind: kind.__name__
)
def test_every_setting_is_read(kind: Any) -> None:
    own, known = own_reads(kind), reads()
    names = [f.name for f in fields(kind) if f.name not in SETS_OTHERS]
    idle = [n for n in names if n not in own and not known.get(n, set()) & set(CALLED[kind])]
    assert not idle, f"nothing reads {', '.join(idle)} of {kind.__name__}: they change nothing"


def test_a_field_that_nobody_reads_is_found() -> None:
    assert "rollout_weight" in own_reads(STRATEGIES["mcts"]) and "mixed_up" not in own_reads(STRATEGIES["mcts"])
    assert "job" in reads()["max_tokens_per_microbatch"] and "nobody_has_this" not in reads()
