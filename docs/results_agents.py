"""Which runs of agents docs/results.py does, which settings it chooses among, and how docs/results.md shows them."""

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Any

CALCULATOR = "calculator"
LM = "--cosine --max-tokens-per-microbatch 4096"
LM_STEP = f"{LM} --limit 150"
LM_SQL = "agent --task sql --max-tokens 160 --cold-start-steps"
AROUND = "agent --task grid-walk --task.level 2 --task.shown_as around"
TINY_SQL = "agent --task sql --task.level 1 --cosine --limit 150 --problems-per-step 128"
AGENT_RUNS: dict[str, tuple[str, ...]] = {
    "tiny": (
        "agent --task alphabet-sort --problems-per-step 128 --steps 45 --cosine --cold-start-steps 600 --lr 0.001",
        f"{AROUND} --problems-per-step 128 --steps 45 --cosine --cold-start-steps 160 --lr 0.001",
        f"{CALCULATOR} --cold-start-steps 500 --steps 20 --cosine --limit 150",
        f"{TINY_SQL} --steps 20 --lr 0.001 --cold-start-steps 220",
    ),
    "smollm2": (  # GRPO's rate rises for ten steps and then falls
        "agent --task alphabet-sort --task.level 3 --cold-start-steps 30 --cold-start-lr 0.0002 --problems-per-step 32"
        f" --steps 20 --lr 0.0001 {LM_STEP}",
        "agent --task mastermind --task.level 1 --cold-start-steps 16 --problems-per-step 64 --steps 28 --lr 3e-05"
        f" {LM}",
        f"{AROUND} --cold-start-steps 60 --problems-per-step 64 --steps 22 --lr 3e-05 {LM}",
        f"{LM_SQL} 15 --problems-per-step 48 --steps 20 --lr 4e-05 {LM_STEP}",
        f"{CALCULATOR} --cold-start-steps 13 --steps 8 --lr 8e-05 {LM_STEP}",
    ),
}
AGENTS_TRIED: dict[str, tuple[str, ...]] = {
    "tiny": (
        *(
            f"agent --task alphabet-sort --cold-start-steps {cold} --problems-per-step 32 --steps 150 --lr {lr}"
            " --dtype auto"
            for cold, lr in ((400, 0.0003), (200, 0.0003), (200, 0.001))
        ),
        "agent --task alphabet-sort --cold-start-steps 800 --problems-per-step 32 --steps 60 --lr 0.001 --dtype auto",
        "agent --task alphabet-sort --cold-start-steps 800 --problems-per-step 32 --steps 40 --lr 0.0003 --cosine"
        " --dtype auto",
        "agent --task grid-walk --steps 40 --lr 0.001 --problems-per-step 16 --dtype auto",
        "agent --task grid-walk --cold-start-steps 30 --steps 8 --lr 0.001 --problems-per-step 16 --dtype auto",
        "agent --task grid-walk --gold-episodes 512 --cold-start-steps 300 --steps 60 --lr 0.0005 --cosine"
        " --problems-per-step 16 --dtype auto",
        *(  # 1,024 episodes in each step
            f"agent --task {task} --problems-per-step 128 --steps 70 --cosine {more}"
            for task, more in (
                ("grid-walk", "--lr 0.001"),
                ("grid-walk", "--lr 0.0004"),
                ("grid-walk", "--lr 0.001 --algorithm gigpo"),
                ("alphabet-sort", "--cold-start-steps 600 --lr 0.001"),
                ("alphabet-sort", "--cold-start-steps 600 --lr 0.0003"),
                ("alphabet-sort", "--cold-start-steps 600 --lr 0.0007 --algorithm gigpo"),
            )
        ),
        *(
            f"{TINY_SQL} --steps 20 --lr {lr} --cold-start-steps {cold}"
            for lr, cold in ((0.001, 220), (0.001, 260), (0.0005, 260))
        ),
    ),
    "smollm2": (
        *(
            f"{LM_SQL} {more} {LM_STEP}"
            for more in (
                *(f"{cold} --problems-per-step 48 --steps 20 --lr 4e-05" for cold in (13, 15, 18)),
                "13 --problems-per-step 64 --steps 16 --lr 6e-05",
                "13 --problems-per-step 48 --dynamic-sampling-rounds 2 --steps 20 --lr 4e-05",
            )
        ),
        *(
            f"{AROUND} --cold-start-steps 14 --problems-per-step {more} {LM}"
            for more in (
                "64 --group-size 16 --steps 36 --lr 2e-05",
                "64 --group-size 16 --steps 36 --lr 2e-05 --algorithm gigpo",
                "32 --group-size 16 --dynamic-sampling-rounds 2 --steps 40 --lr 3e-05",
            )
        ),
        *(
            "agent --task alphabet-sort --task.level 3 --cold-start-steps 30 --cold-start-lr 0.0002"
            f" --problems-per-step 64 --steps {steps} --lr {lr} {LM}"
            for steps, lr in ((24, "4e-05"), (36, "2e-05"))
        ),
        "agent --task mastermind --task.level 1 --cold-start-steps 16 --problems-per-step 64 --group-size 16 --steps 30"
        f" --lr 2e-05 {LM}",
    ),
}
AGENT_ROWS = (  # a run, what its row is called, the stage it is measured at, and what it is to improve on
    ("agent --task grid-walk", "grid-walk", "after", "before"),
    ("agent --task mastermind", "mastermind", "after", "before"),
    ("agent --task alphabet-sort", "alphabet-sort", "after", "before"),
    ("agent --task sql", "sql", "after", "before"),
    (CALCULATOR, "with a calculator: cold start, GRPO", "tool-accuracy", "tool-start-accuracy"),
    (CALCULATOR, "without: cold start, GRPO", "plain-accuracy", "plain-start-accuracy"),
    (CALCULATOR, "a vote without, one answer with", "tool-accuracy", "plain-vote-accuracy"),
)

ABOUT_AGENTS = """\
Each run begins with its own cold start on the environment's gold play and goes on by GRPO on the reward of whole
episodes ([agent.py](../recipes/agent.py)). The share is the mean reward of four episodes of each held-out problem at
temperature 1. Tokens are those of GRPO and, of those trained, the cold start. Settings were tried with a further
seed on training problems; they are below, under "Settings that were tried"."""

ABOUT_CALCULATOR = """\
Sums, differences and products of three numbers with and without a calculator
([calculator.py](../recipes/calculator.py)). Both imitate gold answers for as many steps. Without the calculator an
answer is the number at once, and GRPO has `--answers-per-call` times as many answers in each step (16 where nothing
else is said), and that many vote at the end, so that it has at least as many sampled tokens."""


def best_tried(rows: Iterable[Mapping[str, Any]], runs: Iterable[str], share: Callable[[Any], float]) -> list[str]:
    """Of each of these runs the settings that were tried and gained most over their own start, in the mean of their
    seeds, on the training problems that they were measured on; a run that was not tried stays as it is."""
    tried = list(rows)
    chosen = []
    for run in runs:
        after, before = next((a, b) for name, _, a, b in AGENT_ROWS if run == name or run.startswith(f"{name} "))
        gains: dict[str, list[float]] = {}
        for row in tried:
            if row["run"] == run or row["run"].startswith(f"{run} "):
                reached = {stage["stage"]: share(stage) for stage in row["stages"] if "right" in stage}
                gains.setdefault(row["run"], []).append(reached[after] - reached[before])
        chosen.append(max(gains, key=lambda name: fmean(gains[name]), default=run))
    return chosen
