"""How long the demo trains on two cores, and how well its model then adds, over several seeds.

`run` trains the recipe `addition` once, as `ponder demo` does, and writes one JSON file: seconds, where they went, the
machine's matrix rate, and greedy accuracy. On the split `choice` settings are chosen; `validation` has the demo's own
held-out problems, `test` others on which no setting was chosen. Training never sees those of its split, and with
`choice` those of none; `both` holds `validation` and `test` out, to compare them by one model. `--before` trains with
the recipe's earlier settings. `table` keeps the seeds of the test split in bench/results, `draw` draws
docs/demo_curve.png from them.

    taskset -c 0,1 env OMP_NUM_THREADS=2 python bench/demo_training.py run --split test --seed 0 --out kept
    taskset -c 0,1 env OMP_NUM_THREADS=2 python bench/demo_training.py run --split test --before --out kept
    python bench/demo_training.py table --out kept
    python bench/demo_training.py draw
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch

from harness import HERE, RESULTS, commit, hardware, make_parser, report, versions
from ponder.cli.recipe_files import find_recipe, load_recipe
from ponder.measure import Accuracy, plot_reward_curve
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.protocols import NoProgress
from ponder.reason.strategies import Chain
from ponder.runs import read_metrics, read_traces
from ponder.tasks import Addition
from ponder.tasks.split import hashes_to_test, stable_hash
from ponder.types import Sampling
from roofline import cpu_matmul_rate

# What the recipe was when it asked a question in the template qa.
BEFORE: dict[str, Any] = {"steps": 24, "problems_per_step": 64, "group_size": 4, "lr": 6e-5, "frozen_layers": 12}
BEFORE_MAX_TOKENS, BEFORE_PROMPT, BEFORE_TEMPLATE = 10, "What is {a} + {b}?", "qa"


@dataclass(frozen=True)
class OtherSplit(Addition):
    """Addition with other held-out problems, none of which is among the demo's."""

    @property
    def name(self) -> str:
        return "addition-other-split"

    def _test_items(self) -> Iterator[tuple[int, int]]:
        demo = Addition(digits=self.digits)
        return (item for item in super()._test_items() if not demo._is_test_item(item))


@dataclass(frozen=True)
class BothSplits(Addition):
    """The demo's training problems less those of the other split, and the held-out problems of both."""

    def _test_items(self) -> Iterator[tuple[int, int]]:
        return chain(Addition(digits=self.digits)._test_items(), self._other()._test_items())

    def _is_test_item(self, item: tuple[int, int]) -> bool:
        return super()._is_test_item(item) or self._other()._is_test_item(item)

    def _other(self) -> OtherSplit:
        return OtherSplit(digits=self.digits, test_size=5000)


@dataclass(frozen=True)
class ChoiceSplit(BothSplits):
    """Held-out problems to choose settings on, a fifth of all less those of the other splits."""

    def _test_items(self) -> Iterator[tuple[int, int]]:
        numbers = range(10 ** (self.digits - 1), 10**self.digits)
        sums = product(numbers, numbers)
        return (item for item in sums if item == self._listed(item) and self._is_choice(item))

    def _listed(self, item: tuple[int, int]) -> tuple[int, int]:
        """Of a + b and b + a the one that is asked, so that each problem is asked once."""
        return tuple(sorted(item, reverse=stable_hash(self.key(item)) % 2 == 1))  # type: ignore[return-value]

    def _is_choice(self, item: tuple[int, int]) -> bool:
        return hashes_to_test(f"choice {self.key(item)}", tenths=2) and not super()._is_test_item(item)

    def _is_test_item(self, item: tuple[int, int]) -> bool:
        return super()._is_test_item(item) or self._is_choice(item)


TASKS: dict[str, Callable[[], Addition]] = {
    "validation": Addition, "test": partial(OtherSplit, test_size=5000), "both": BothSplits, "choice": ChoiceSplit,
}  # fmt: skip


def make_job(args: Any) -> RL:
    settings = {name: value for name in BEFORE if (value := getattr(args, name)) is not None}
    job: RL = load_recipe(find_recipe("addition"))(
        **(BEFORE if args.before else {}) | settings, seed=args.seed, device=args.device
    )
    assert isinstance(job.task, Addition)
    if args.before:
        task = replace(job.task, prompt=BEFORE_PROMPT)
        sampling = replace(job.sampling, max_tokens=BEFORE_MAX_TOKENS)
        job = replace(job, task=task, sampling=sampling, template=BEFORE_TEMPLATE)
    sampling = job.sampling
    if args.max_tokens is not None:
        sampling = replace(sampling, max_tokens=args.max_tokens)
    if args.no_stop:
        sampling = replace(sampling, stop=())
    if args.temperature is not None:
        sampling = replace(sampling, temperature=args.temperature)
    optimizer = replace(job.optimizer, **json.loads(args.optimizer))
    algorithm = replace(job.algorithm, **json.loads(args.algorithm))
    job = replace(job, sampling=sampling, optimizer=optimizer, algorithm=algorithm, **json.loads(args.more))
    prompt = job.task.prompt if args.prompt is None else args.prompt.encode().decode("unicode_escape")
    task = replace(TASKS[args.split](), digits=job.task.digits, prompt=prompt, forms=job.task.forms)
    return replace(job, task=task, template=job.template if args.template is None else args.template)


class StepLines(NoProgress):
    """A line for each step, so that a run that is cut short has shown something."""

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Any]) -> None:
        print(f"step {done}: {metrics['step_time']:.1f} s, reward {metrics['reward']:.3f}", flush=True)


def train_once(args: Any) -> None:
    job = make_job(args)
    rate = cpu_matmul_rate(torch.float32) if args.device == "cpu" else None
    with tempfile.TemporaryDirectory(dir=args.runs) as home:
        began, worked = time.perf_counter(), time.process_time()
        job(Path(home, "train"), StepLines())
        seconds, processor_seconds = time.perf_counter() - began, time.process_time() - worked
        rows = read_metrics(Path(home, "train"))
        accuracy, right = evaluate(job, str(Path(home, "train")), None, Path(home, "after"))
    sums = {name: sum(row[name] for row in rows) for name in ("time/sample", "time/learn")}
    result = {
        "split": args.split, "seed": args.seed, "before": args.before, "seconds": seconds, "parts": sums,
        "processor_seconds": processor_seconds,
        "accuracy": accuracy.mean, "low": accuracy.low, "high": accuracy.high, "problems": len(right), "right": right,
        "start": {},
        "rewards": [row["reward"] for row in rows], "step_seconds": [row["step_time"] for row in rows],
        "num_tokens": rows[-1]["num_tokens"], "flops": rows[-1].get("flops"), "matrix_rate": rate,
        "threads": torch.get_num_threads(), "steps": job.steps, "problems_per_step": job.problems_per_step,
        "group_size": job.group_size, "frozen_layers": job.frozen_layers, "max_tokens": job.sampling.max_tokens,
        "stop": list(job.sampling.stop), "temperature": job.sampling.temperature,
        "prompt": getattr(job.task, "prompt", None), "template": job.template, "optimizer": asdict(job.optimizer),
        "algorithm": json.loads(args.algorithm), "more": json.loads(args.more),
        "hardware": hardware(args.device), "versions": versions(), "commit": commit(),
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    name = args.name or f"{args.split}-{'before' if args.before else 'now'}-seed{args.seed}"
    path = args.out / f"{name}.json"
    path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    shown = f"{100 * accuracy.mean:.1f} % [{100 * accuracy.low:.1f}, {100 * accuracy.high:.1f}] of {len(right)}"
    print(f"{name}: {seconds:.0f} s, {shown}", flush=True)
    if args.evaluate_start:  # last, so that a run that is cut short has kept the rest
        with tempfile.TemporaryDirectory(dir=args.runs) as home:
            first, at_start = evaluate(job, str(job.model), job.template, Path(home, "before"))
        result["start"] = {"accuracy": first.mean, "low": first.low, "high": first.high, "right": at_start}
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")


def evaluate(job: RL, model: str, template: str | None, folder: Path) -> tuple[Accuracy, dict[str, float]]:
    """Greedy accuracy, as `ponder demo` measures it, and whether the answer to each held-out problem is right."""
    greedy = Chain(Sampling(temperature=0.0, max_tokens=32, stop=job.sampling.stop))
    evaluation = Evaluate(
        job.task, model, template, greedy, max_concurrency=512, seed=job.seed, device=job.device, dtype=job.dtype
    )
    accuracy = evaluation(folder).accuracy
    assert isinstance(accuracy, Accuracy)
    name = job.task.verifier.name
    traces = [trace for _, trace in read_traces(folder)]
    return accuracy, {t.problem.id: float((t.score(leaf, name) or 0) >= 1) for t in traces for leaf in t.answers()}


def keep(args: Any) -> None:
    """The seeds of the test split: accuracy beside that before training, and seconds beside the earlier settings'."""
    every = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(args.out.rglob("*.json"))]
    now, before = ([r for r in every if r["split"] == "test" and r["before"] is kind] for kind in (False, True))
    settings = (
        "steps", "problems_per_step", "group_size", "frozen_layers", "max_tokens", "stop", "temperature", "prompt",
        "template", "optimizer", "algorithm", "more",
    )  # fmt: skip
    assert now and all(row[name] == now[0][name] for row in now for name in (*settings, "hardware", "commit"))
    shown = (
        "seed", "accuracy", "low", "high", "problems", "rewards", "seconds", "processor_seconds", "threads", "parts",
        "num_tokens", "flops", "matrix_rate", "hardware", "commit",
    )  # fmt: skip
    starts = [{"problems": row["problems"], **row["start"]} for row in now if row["start"]]
    details = {
        "seconds": statistics.mean(row["seconds"] for row in now),
        "processor_seconds": statistics.mean(row["processor_seconds"] for row in now),
        "settings": {name: now[0][name] for name in settings},
        "now": [{name: row[name] for name in shown} | {"by_carry": accuracy_by_carry(row)} for row in now],
        "before": [{name: row[name] for name in shown} for row in before],
        "start": [{name: value for name, value in start.items() if name != "right"} for start in starts],
        "tried_on_validation": [
            {name: row[name] for name in (*settings, *shown)} | {"by_carry": accuracy_by_carry(row)}
            for row in every
            if row["split"] == "validation"
        ],
        "both_splits": [
            {name: row[name] for name in shown}
            | {"by_split": accuracy_by_split(row), "by_carry": accuracy_by_carry(row)}
            for row in every
            if row["split"] == "both"
        ],
        "note": args.note,
    }
    report(
        "demo_training_accuracy",
        f"smollm2, float32: greedy accuracy after the demo on {now[0]['problems']} test problems, {len(now)} seeds",
        100 * statistics.mean(row["accuracy"] for row in now),
        {"before training": 100 * starts[0]["accuracy"] if starts else None},
        unit="%",
        details=details,
        origin=now[0],
    )
    if before:
        share = statistics.mean(r["flops"] / r["seconds"] / r["matrix_rate"] for r in now)
        report(
            "demo_training",
            f"smollm2, float32: the demo's training on two cores, {len(now)} seeds",
            details["seconds"],
            {"earlier settings": statistics.mean(row["seconds"] for row in before)},
            unit="s",
            better="lower",
            details=details | {"share_of_limit": {"ponder": share}},
            origin=now[0],
        )


def accuracy_by_carry(row: Mapping[str, Any]) -> dict[str, str]:
    """Whether the units of the two numbers come to ten or more makes a sum hard; splits differ in how many do."""
    task = TASKS[row["split"]]()
    carries = {p.id: sum(int(n[-1]) for n in re.findall("[0-9]+", p.question)) >= 10 for p in task.test}
    both = {"carry": True, "no carry": False}
    return {
        name: str(Accuracy.from_outcomes(right for id, right in row["right"].items() if carries[id] is kind))
        for name, kind in both.items()
    }


def accuracy_by_split(row: Mapping[str, Any]) -> dict[str, str]:
    """Of a run that held the problems of both splits out."""
    right = {int(id.rsplit("/", 1)[1]): value for id, value in row["right"].items()}
    first = len(Addition().test)
    splits = {"validation": range(first), "test": range(first, len(right))}
    return {name: str(Accuracy(int(sum(right[i] for i in ids)), len(ids))) for name, ids in splits.items()}


def draw(args: Any) -> None:
    """docs/demo_curve.png: rewards and accuracy of seed 0 of the kept seeds."""
    kept = json.loads(next(RESULTS.glob("demo_training_accuracy-*.json")).read_text(encoding="utf-8"))["details"]
    rewards = kept["now"][0]["rewards"]
    before, after = (
        Accuracy(round(row["accuracy"] * row["problems"]), row["problems"])
        for row in (kept["start"][0], kept["now"][0])
    )
    plot_reward_curve(
        HERE.parent / "docs/demo_curve.png", range(1, len(rewards) + 1), rewards,
        before=before, after=after, title="smollm2 learns addition",
    )  # fmt: skip


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("part", choices=["run", "table", "draw"])
    flags.add_argument("--out", type=Path, default=Path("kept"), help="folder of the JSON files")
    flags.add_argument("--runs", type=Path, help="where the run directory is made; default: the system's temporary one")
    flags.add_argument("--split", choices=list(TASKS), default="choice")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--before", action="store_true", help="the recipe's earlier settings")
    flags.add_argument("--name", help="of the JSON file")
    flags.add_argument("--evaluate-start", action="store_true", help="measure the model before training, too")
    flags.add_argument("--steps", type=int)
    flags.add_argument("--problems-per-step", type=int)
    flags.add_argument("--group-size", type=int)
    flags.add_argument("--lr", type=float)
    flags.add_argument("--frozen-layers", type=int)
    flags.add_argument("--max-tokens", type=int)
    flags.add_argument("--no-stop", action="store_true")
    flags.add_argument("--temperature", type=float)
    flags.add_argument("--prompt", help="such as 'Addition: {a} + {b} ='")
    flags.add_argument("--template", help="around the prompt: a name or jinja2 text")
    flags.add_argument("--algorithm", default="{}", help='settings of GRPO as JSON, such as {"entropy_coef": 0.01}')
    flags.add_argument("--optimizer", default="{}", help='settings of AdamW as JSON, such as {"betas": [0.9, 0.99]}')
    flags.add_argument("--more", default="{}", help='fields of RL as JSON, such as {"minibatches": 2}')
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    args = flags.parse_args()
    {"run": train_once, "table": keep, "draw": draw}[args.part](args)


if __name__ == "__main__":
    import demo_training  # so that the task's class has the name under which a run's job is read again

    demo_training.main()
