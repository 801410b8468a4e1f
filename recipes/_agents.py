"""What the recipes of agents share: the tiny model, a cold start on gold play, GRPO on episodes, and measuring."""

import json
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.protocols import Task
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan
from ponder.tasks.environments.scripted_play import action_of, gold_play
from ponder.tasks.environments.tool_actions import call_text
from ponder.tasks.wrapped_task import WrappedTask
from ponder.train.gigpo import GiGPO
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Problem, Sampling

TINY = ScratchModel(string.printable[:95] + "\n", width=64, layers=2, heads=2, context=1024)
COPYING_WEIGHT_STD = 0.08  # sqrt(2 / (5 width)): from 0.02 the tiny model does not learn to copy in a few hundred steps
# The tiny model reads characters, so its template has few. It names no tools: the model knows them from gold play.
TINY_TEMPLATE = (
    "{%- for m in messages %}{{ '>' + m.content + eos_token if m.role == 'assistant' else m.content + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}>{% endif %}{# tools #}"
)

GoldEpisodes = Annotated[
    int | None,
    "problems whose gold play is imitated in each epoch; None: new ones in every step",
    GreaterThan(0),
]
ProblemsPerStep = Annotated[int | None, "of GRPO; None: 128 of the tiny model, else 16", GreaterThan(0)]
Cosine = Annotated[bool, "lower the learning rate of GRPO along a cosine, to 0 at its last step"]
Algorithm = Annotated[Literal["grpo", "gigpo"], "GRPO, or GiGPO, which also compares turns that begin in one state"]
EntropyCoef = Annotated[float, "weight of each token's entropy in the loss: it keeps the episodes of a group apart"]
Epochs = Annotated[int, "passes over the episodes of a step", GreaterThan(0)]
Minibatches = Annotated[int, "optimizer steps in each pass", GreaterThan(0)]
DynamicSamplingRounds = Annotated[
    int, "rounds of new problems in a step, at most, in place of groups of equal rewards; 0: all groups stay"
]
EvalEvery = Annotated[int, "steps of GRPO between evaluations on the held-out problems; 0: none"]
MicrobatchTokens = Annotated[
    int, "tokens per forward pass of the learner: memory only, not the result; 0: as many as suit the device"
]
Dtype = Annotated[
    str | None, "float32, bfloat16, float16 or auto; None: float32 of the tiny model, auto of a language model"
]
SAMPLES = 4  # episodes of each held-out problem
ALGORITHMS: dict[str, GRPO] = {"grpo": GRPO(kl=None), "gigpo": GiGPO(kl=None)}


@dataclass(frozen=True)
class FirstProblems(WrappedTask):
    """A task with so many of its training problems."""

    task: Task
    count: int

    @property
    def train(self) -> Sequence[Problem]:
        return self.task.train[: self.count]


@dataclass(frozen=True)
class Pace:
    """Steps and learning rates of the imitation and of GRPO, and problems in a step of GRPO."""

    cold_start_steps: int
    cold_start_lr: float
    steps: int
    lr: float
    problems_per_step: int


def compute_on(model: str, device: str, dtype: str | None) -> dict[str, Any]:
    """Where a job computes, and in which numbers. The tiny model has the same ones on every machine."""
    return {"device": device, "dtype": dtype or ("float32" if model == "tiny" else "auto")}


def pace_of(model: str) -> Pace:
    # One batch's gradient on the tiny model is mostly noise: with 128 episodes in a step it learned next to nothing.
    return Pace(200, 3e-3, 70, 1e-3, 128) if model == "tiny" else Pace(30, 5e-5, 30, 3e-5, 16)


def call_words(world: Task) -> tuple[str, ...]:
    """The text of a gold call before and after its argument, where gold begins with a call of one argument. They are
    single tokens of the tiny model: spelled in characters they are most of what it writes."""
    played = gold_play(world, world.train[0])
    calls = action_of(played.actions[0], played.turns[0].tools).tool_calls
    arguments = json.loads(calls[0].arguments) if calls else {}
    return tuple(call_text(calls[0].name, dict.fromkeys(arguments, "|")).split("|")) if len(arguments) == 1 else ()


def imitate_gold_play(
    world: Task, model: str, steps: int, lr: float, seed: int, episodes: int | None = None,
    words: tuple[str, ...] = (), weight_std: float = TINY.weight_std, **more: Any,
) -> FineTune:  # fmt: skip
    """Fine-tuning on the gold actions of the environment, in so many of its episodes. `words` are single tokens of the
    tiny model, `weight_std` that of its first weights."""
    tiny, world = model == "tiny", world if episodes is None else FirstProblems(world, episodes)
    base = replace(TINY, seed=seed, words=words, weight_std=weight_std) if tiny else model
    return FineTune(
        world, base, TINY_TEMPLATE if tiny else None,
        optimizer=AdamW(lr=lr, warmup_steps=steps // 10, decay_steps=steps), steps=steps, save_every=steps, seed=seed,
        **more,
    )  # fmt: skip


def train_agent(
    world: Task, model: str, sampling: Sampling, steps: int, lr: float, seed: int, cosine: bool = False,
    algorithm: str = "grpo", entropy_coef: float = 0.0, **more: Any,
) -> RL:  # fmt: skip
    """GRPO on whole episodes, or GiGPO, without a KL term."""
    optimizer = AdamW(lr=lr, betas=(0.9, 0.95), warmup_steps=10, cosine=cosine)
    rule = replace(ALGORITHMS[algorithm], entropy_coef=entropy_coef)
    return RL(
        task=world, model=model, algorithm=rule, optimizer=optimizer, steps=steps, save_every=steps, sampling=sampling,
        seed=seed, **more,
    )  # fmt: skip


def evaluate_agent(world: Task, model: str, sampling: Sampling, limit: int, seed: int, **more: Any) -> Evaluate:
    """The reward of held-out problems: four episodes of each, at temperature 1."""
    return Evaluate(
        world, model, strategy=Samples(SAMPLES, sampling), limit=limit, max_concurrency=512, seed=seed, **more
    )
