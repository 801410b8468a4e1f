"""What a recipe starts from: a model, a task, and settings that suit both.

`--model tiny` is a transformer from scratch (minutes on two CPU cores), `--model smollm2` is SmolLM2-135M-Instruct
(minutes on one GPU). Without `--task` both add numbers line by line: `1+4+3+2+4=` is answered by `1+4=5`,
`5+3=8`, `8+2=10`, `10+4=14`, `#### 14`. A short fine-tuning on worked answers, stopped early, leaves the rest for the
recipes to learn.

With `--task gsm8k`, any other task or one of your own, a language model starts as it is, with its own chat template.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any

from ponder.cli.flags import build_with_settings
from ponder.cli.named_objects import build_task
from ponder.errors import NoGoldAnswer, UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage
from ponder.protocols import Strategy, Task
from ponder.reason.operators.auto_cut import AUTO_CUT, CutOrAuto
from ponder.reason.operators.cut import CUTS
from ponder.reason.strategies import MCTS, Samples
from ponder.settings import GreaterThan, Named, SettingsOf
from ponder.tasks import Sums
from ponder.tasks.lazy_problems import LazyProblems
from ponder.tasks.mixture import WeightedRewardTask
from ponder.tasks.reward_functions import RewardFunctions
from ponder.tasks.split import hashes_to_test
from ponder.tasks.wrapped_task import WrappedTask
from ponder.train.dpo import DPO
from ponder.train.objective import Objective
from ponder.train.optimizer import AdamW
from ponder.train.reward_objectives import ImplicitReward, OutcomeReward, RewardObjective, TokenOutcomeReward
from ponder.types import Problem, Sampling

ModelName = Annotated[str, "tiny, smollm2, a Hugging Face folder or hub name, or a run directory"]
TaskName = Annotated[
    str | None,
    Named("ponder.tasks:TASKS"),
    "gsm8k, countdown ... (ponder tasks lists them), module:object or file.py:object; None: sums",
]
TaskSettings = Annotated[dict[str, str], SettingsOf("task"), "a setting of the task (ponder tasks TASK lists them)"]
Template = Annotated[
    str | None, "plain, qa, r1 or jinja2 text; None: for sums what suits the model, else its own chat template"
]
MaxTokens = Annotated[int | None, "longest answer; None: 40 for sums, 256 for other tasks", GreaterThan(0)]
Limit = Annotated[int, "held-out problems to measure on, at most", GreaterThan(0)]
Start = Annotated[str | None, "a run directory or folder with a model to start from; None: the recipe makes its own"]
Lr = Annotated[float | None, "learning rate; None: what suits the model", GreaterThan(0)]
Steps = Annotated[int | None, "of training; None: what suits the model", GreaterThan(0)]
Problems = Annotated[
    int | None, "to sample answers of; None: as many as the model's budget of answers allows", GreaterThan(0)
]
Count = Annotated[int, GreaterThan(0)]
LEARN_FROM_VERDICTS = (OutcomeReward, TokenOutcomeReward, ImplicitReward)
NO_SETTINGS: dict[str, str] = {}
LIMIT = 300


@dataclass(frozen=True)
class MeasuredOnTraining(Sums):
    """The same sums, evaluated on training problems: to choose settings without the held-out ones."""

    @cached_property
    def test(self) -> Sequence[Problem]:
        late = self.train[self.size // 2 : self.size // 2 + 4 * self.test_size]
        return list({p.question: p for p in late}.values())[: self.test_size]


@dataclass(frozen=True)
class Validation(WrappedTask):
    """Any task with a tenth of its training problems taken out to evaluate on: to choose settings without the held-out
    ones."""

    task: Task

    @property
    def train(self) -> Sequence[Problem]:
        return _WithoutValidation(self.task.train)

    @cached_property
    def test(self) -> Sequence[Problem]:
        train, chosen = self.task.train, dict[str, Problem]()
        for index in range(max(0, len(train) - 40 * LIMIT), len(train)):
            if len(chosen) < LIMIT and _is_validation(problem := train[index]):
                chosen.setdefault(_identity(problem), problem)
        return list(chosen.values())


def _identity(problem: Problem) -> str:
    return f"{problem.question} {problem.answer}"


def _is_validation(problem: Problem) -> bool:
    return hashes_to_test(f"validation {_identity(problem)}", tenths=1)


class _WithoutValidation(LazyProblems):
    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = problems

    def __len__(self) -> int:
        return len(self.problems)

    def problem_at(self, index: int) -> Problem:
        """The next one that is no validation problem."""
        while _is_validation(problem := self.problems[index]):
            index = (index + 1) % len(self)
        return problem


@dataclass(frozen=True)
class StepsAndRate:
    """A number of training steps and a learning rate."""

    steps: int
    lr: float

    def optimizer(self, lr: float | None = None, steps: int | None = None) -> AdamW:
        return AdamW(lr=lr or self.lr, decay_steps=steps or self.steps)


@dataclass(frozen=True)
class RecipeBase:
    """A model and a task, with settings that suit them."""

    model: str | ScratchModel
    student: str | ScratchModel  # the model that learns from a teacher
    template: str | None
    task: Task
    sampling: Sampling
    answer_budget: int  # answers that a recipe may sample to learn from; the same for all, for a fair comparison
    cold_start: StepsAndRate  # the imitation at the start
    sft: StepsAndRate
    dpo: StepsAndRate
    dpo_objective: DPO
    rl: StepsAndRate
    reward_model: StepsAndRate  # reward and value models
    has_cold_start: bool = True  # the model must learn the notation first; a language model starts as it is
    cut: CutOrAuto = CUTS["line"]  # where a step of a search ends
    limit: int = LIMIT  # held-out problems to measure on, at most

    def cold_start_job(self, seed: int, steps: int | None = None, small: bool = False) -> FineTune:
        """Fine-tuning on worked answers, stopped early."""
        model, steps = self.student if small else self.model, steps or self.cold_start.steps
        return FineTune(
            self.task, replace(model, seed=seed) if isinstance(model, ScratchModel) else model, self.template,
            optimizer=AdamW(lr=self.cold_start.lr, warmup_steps=steps // 10, decay_steps=steps), steps=steps,
            batch_size=64,
            save_every=steps, seed=seed,
        )  # fmt: skip

    def require_gold(self, purpose: str) -> None:
        """Refuse a task without gold answers."""
        gold = getattr(self.task, "gold", None)
        try:
            if gold is None:
                raise NoGoldAnswer(f"the task {self.task.name!r} has no method gold(problem)")
            gold(self.task.train[0])
        except NoGoldAnswer as why:
            raise UsageError(f"{purpose}: {why}") from None

    def with_rewards(self, **parts: float) -> Task:
        """The task with further rewards by weight beside its verifier's; a sum of own rewards stays as it is."""
        name = self.task.verifier.name
        if isinstance(self.task.verifier, RewardFunctions):
            return self.task
        return WeightedRewardTask(self.task, ((name, 1.0), *parts.items()))

    def template_of(self, model: str) -> str | None:
        """The template of the model as it is; one that a stage has trained has its own."""
        return self.template if model == self.model else None

    def cold_start_stages(self, seed: int, start: str | None) -> tuple[list[Stage], str]:
        """The first stages and the model they train; no stages if there is a model to start from."""
        if start is not None:
            return [], start
        if not self.has_cold_start:
            assert isinstance(self.model, str)
            return [Stage("start-accuracy", self.evaluate(self.model, seed))], self.model
        made = [Stage("start", self.cold_start_job(seed)), Stage("start-accuracy", self.evaluate("stage:start", seed))]
        return made, "stage:start"

    def collect(
        self, model: str, strategy: Strategy, problems: int, seed: int, first: int = 0, guide: str = ""
    ) -> Collect:
        """Sample answers to training problems."""
        return Collect(
            self.task,
            model,
            self.template_of(model),
            strategy=strategy,
            guide=guide,
            limit=problems,
            start_index=first,
            max_concurrency=512,
            seed=seed,
        )

    def mcts(self, simulations: int, **more: Any) -> MCTS:
        """MCTS whose steps end where this model's do."""
        return MCTS(
            simulations=simulations, width=4, sampling=self.sampling, cut=self.cut, parallel_simulations=4, **more
        )

    def fine_tune(self, data: str, model: str, seed: int, steps: int | None, lr: float | None, **more: Any) -> FineTune:
        """Fine-tune on a file of answers; with another algorithm on pairs or with a teacher."""
        pace = self.dpo if isinstance(more.get("algorithm"), DPO) else self.sft
        steps = steps or pace.steps
        return FineTune(
            data, model, self.template, optimizer=pace.optimizer(lr, steps), steps=steps, save_every=steps, seed=seed,
            **{"batch_size": 64, **more},
        )  # fmt: skip

    def rl_job(
        self,
        model: str,
        group_size: int,
        objective: Objective,
        seed: int,
        steps: int | None,
        lr: float | None,
        **more: Any,
    ) -> RL:
        """RL with `group_size` samples of each problem, and as many problems a step as the answer budget allows."""
        steps = steps or self.rl.steps
        problems_per_step = more.pop("problems_per_step", None) or self.answer_budget // (steps * group_size)
        rollouts = {} if "strategy" in more else {"group_size": group_size, "sampling": self.sampling}
        given = {"task": self.task, "problems_per_step": problems_per_step, **rollouts, **more}
        return RL(
            model=model, template=self.template, algorithm=objective, steps=steps, save_every=steps, seed=seed,
            optimizer=AdamW(lr=lr or self.rl.lr, betas=(0.9, 0.95)), **given,
        )  # fmt: skip

    def train_reward_model(
        self, data: str, model: str, objective: RewardObjective, seed: int, steps: int | None = None,
        lr: float | None = None,
        **more: Any,
    ) -> TrainRewardModel:  # fmt: skip
        """Train a reward or value model."""
        steps = steps or self.reward_model.steps
        if isinstance(self.task.verifier, RewardFunctions) and type(objective) in LEARN_FROM_VERDICTS:
            more = {"scorer": self.task.verifier.name, **more}  # each function's own score stands beside the sum
        return TrainRewardModel(
            (data,), model, objective, self.template, optimizer=self.reward_model.optimizer(lr, steps), steps=steps,
            save_every=steps, seed=seed, **{"batch_size": 32, **more},
        )  # fmt: skip

    def evaluate(self, model: str, seed: int, n: int = 4) -> Evaluate:
        """Accuracy at temperature 1 on the held-out problems, with majority vote and pass@k of n samples."""
        return self.evaluate_with(Samples(n, self.sampling), model, seed, max_concurrency=512)

    def evaluate_with(self, strategy: Strategy, model: str, seed: int, **more: Any) -> Evaluate:
        """Accuracy of a strategy on the held-out problems."""
        given = {"limit": self.limit, **more}
        return Evaluate(self.task, model, self.template_of(model), strategy=strategy, seed=seed, **given)


CHARACTERS = ScratchModel("0123456789+=#\n ", width=64, layers=2, context=80)
BASES = {
    "tiny": RecipeBase(
        model=CHARACTERS, student=replace(CHARACTERS, width=48), template="{{ bos_token }}{{ messages[-1].content }}",
        task=Sums(terms=5, limit=5, prompt="{sum}=", forms=("hash",)), sampling=Sampling(max_tokens=40),
        answer_budget=16384, cold_start=StepsAndRate(300, 4e-3), sft=StepsAndRate(150, 1e-3),
        dpo=StepsAndRate(60, 5e-4), dpo_objective=DPO(beta=0.1, nll_weight=5),
        rl=StepsAndRate(64, 1e-4), reward_model=StepsAndRate(200, 1e-3),
    ),
    "smollm2": RecipeBase(
        model="smollm2", student="smollm2", template="qa",
        task=Sums(terms=3, limit=100, prompt="What is {sum}?", forms=("hash",)), sampling=Sampling(max_tokens=40),
        answer_budget=8192, cold_start=StepsAndRate(30, 5e-5), sft=StepsAndRate(50, 2e-5), dpo=StepsAndRate(30, 2e-5),
        dpo_objective=DPO(beta=0.5),
        rl=StepsAndRate(32, 3e-5), reward_model=StepsAndRate(100, 5e-5),
    ),
}  # fmt: skip


def require_alike(tasks: Sequence[Task], flag: str) -> None:
    """Refuse tasks that stages of one recipe cannot keep apart, or whose verdicts have several names."""
    names, verifiers = [task.name for task in tasks], {task.verifier.name for task in tasks}
    if len(set(names)) < len(names):
        raise UsageError(f"--{flag}: with the task these are {', '.join(names)}: give tasks with names of their own")
    if len(verifiers) > 1:
        raise UsageError(
            f"--{flag}: the verifiers of {', '.join(names)} are {', '.join(sorted(verifiers))}: give tasks whose"
            " verifier has one name, so that a judge learns one kind of verdict"
        )


def find_base(
    model: str = "tiny",
    task: str | Task | None = None,
    task_settings: Mapping[str, str] = NO_SETTINGS,
    template: str | None = None,
    max_tokens: int | None = None,
    limit: int = LIMIT,
) -> RecipeBase:
    """A base by the name of its model, on sums or on a given task; other models than tiny have SmolLM2's settings."""
    base = BASES[model] if model in BASES else replace(BASES["smollm2"], model=model, student=model)
    base = replace(base, limit=limit)
    if task is not None:
        base = _on_task(base, model, task, task_settings)
    elif task_settings:
        base = replace(base, task=build_with_settings("task", base.task, task_settings, "task"))
    if template is not None:
        base = replace(base, template=template)
    if max_tokens is not None:
        base = replace(base, sampling=replace(base.sampling, max_tokens=max_tokens))
    return base


def _on_task(base: RecipeBase, model: str, task: str | Task, settings: Mapping[str, str]) -> RecipeBase:
    """The same model on a given task, as it is."""
    if model == "tiny":
        name = task if isinstance(task, str) else task.name
        raise UsageError(f"the tiny model knows digits alone: for the task {name} take smollm2 or another model")
    built = build_task(task, settings) if isinstance(task, str) else task
    sampling = Sampling(max_tokens=256)
    return replace(base, task=built, template=None, sampling=sampling, has_cold_start=False, cut=AUTO_CUT)


_on_training: list[bool] = []  # whether recipes of this process evaluate on training problems


def measure_on_training_problems() -> None:
    """From now on, in this process, evaluate on training problems."""
    _on_training.append(True)
    for on, b in BASES.items():
        BASES[on] = replace(b, task=MeasuredOnTraining(**{f.name: getattr(b.task, f.name) for f in fields(b.task)}))


def measured(task: Task) -> Task:
    """The task, or where settings are being chosen, the same with training problems to evaluate on."""
    return Validation(task) if _on_training else task
