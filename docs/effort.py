"""What each effort buys: accuracy and tokens of one served model at every effort, asked by OpenAI's own client.

    python docs/effort.py tiny                         train the tiny model (a minute), serve it, ask, keep, draw
    python docs/effort.py smollm2 --device cuda        the same with SmolLM2-135M-Instruct; PONDER_DATA names the data
    python docs/effort.py --render                     write docs/effort.md and the figures from what is kept

Kept in docs/results/effort-NAME.json after every effort: which problems were answered right, and how many tokens each
took. A stopped script asks only what is missing when it is started again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ponder.measure.statistics.intervals import Accuracy, paired_difference
from ponder.reason.effort import EFFORTS
from ponder.tasks import TASKS, Sums

DOCS = Path(__file__).resolve().parent
PAGE, FIGURES, RESULTS = DOCS / "effort.md", DOCS / "figures", DOCS / "results"
PONDER = [sys.executable, "-m", "ponder"]
ORDER = ("none", "max", "medium", "low", "high", "minimal", "xhigh")  # what is compared comes first


@dataclass(frozen=True)
class Case:
    """A model and the tasks that it is asked."""

    title: str
    model: str  # what `ponder serve` takes
    tasks: Mapping[str, Callable[[], Any]]
    fields: Mapping[str, Any] = field(default_factory=dict)  # of every request
    train: tuple[str, ...] = ()  # makes the model, where it is not there yet
    concurrency: int = 16


def sums(limit: int) -> Callable[[], Any]:
    return lambda: Sums(terms=5, limit=limit, prompt="{sum}=", forms=("hash",))


CASES = {
    "tiny": Case(
        "A transformer from scratch, on a CPU",
        "runs/effort/start",
        {"sums of five numbers below 5": sums(5), "sums of five numbers below 4": sums(4)},
        train=("run", "cold_start", "--model", "tiny", "--run", "runs/effort"),
    ),
    "smollm2": Case(
        "SmolLM2-135M-Instruct, on one GPU", "smollm2", {"mawps": TASKS["mawps"], "svamp": TASKS["svamp"]},
        fields={"temperature": 0.7}, concurrency=256,
    ),
}  # fmt: skip


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("case", nargs="?", choices=[*CASES], help="the model to serve")
    flags.add_argument("--limit", type=int, default=200, help="problems of each task")
    flags.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    flags.add_argument("--out", type=Path, default=RESULTS, help="folder of the kept results")
    flags.add_argument("--render", action="store_true", help="write the page and the figures from what is kept")
    args = flags.parse_args()
    if args.case is None and not args.render:
        flags.error("name a model to serve, or give --render")
    if args.case is not None:
        measure_case(args.case, args.limit, args.device, args.out)
    if args.render:
        render(args.out)


def measure_case(name: str, limit: int, device: str, out: Path) -> None:
    case, kept = CASES[name], out / f"effort-{name}.json"
    if case.train and not Path(case.model).exists():
        subprocess.run([*PONDER, *case.train], check=True)
    command = f"python docs/effort.py {name} --limit {limit} --device {device}"
    result = {"case": name, "command": command, "machine": machine(device), "tasks": {}}
    if kept.exists() and (earlier := json.loads(kept.read_text()))["command"] == command:
        result = earlier
    tasks: dict[str, Any] = result["tasks"]
    with served(name, case.model, device) as url:
        for effort in ORDER:
            for title, make_task in case.tasks.items():
                efforts = tasks.setdefault(title, {})
                if effort in efforts:
                    continue
                efforts[effort] = asyncio.run(ask_all(url, name, make_task(), effort, limit, case))
                out.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(result, separators=(",", ":")) + "\n")
                print(f"{title}, {effort}: {line(efforts[effort])}", flush=True)


@contextmanager
def served(name: str, model: str, device: str) -> Iterator[str]:
    """The address of a server of this model, while the block lasts."""
    command = [*PONDER, "serve", f"{name}={model}", "--port", "0", "--device", device]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


async def ask_all(url: str, model: str, task: Any, effort: str, limit: int, case: Case) -> dict[str, Any]:
    """Every problem once, by OpenAI's client, some at a time."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="none", timeout=600)
    problems, room, start = task.test[:limit], asyncio.Semaphore(case.concurrency), time.monotonic()

    async def ask(index: int) -> tuple[bool, int]:
        async with room:
            reply = await client.chat.completions.create(
                model=model, messages=list(problems[index].messages), reasoning_effort=effort, seed=index, **case.fields
            )
        text = reply.choices[0].message.content or ""
        right = task.verifier.grade(text, problems[index].answer).value == 1
        return right, reply.usage.completion_tokens

    async with client:
        answers = await asyncio.gather(*(ask(i) for i in range(len(problems))))
    return {
        "right": [int(right) for right, _ in answers],
        "tokens": [tokens for _, tokens in answers],
        "seconds": round(time.monotonic() - start, 1),
    }


def line(one: Mapping[str, Any]) -> str:
    return f"{Accuracy.from_outcomes(map(bool, one['right']))}, {mean(one['tokens']):,.0f} tokens, {one['seconds']} s"


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def machine(device: str) -> str:
    import torch

    where = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    return f"{where}, torch {torch.__version__}"


# the page


def render(out: Path) -> None:
    """The page and its figures, from all results that are kept."""
    results = [json.loads(path.read_text()) for name in CASES if (path := out / f"effort-{name}.json").exists()]
    for result in results:
        draw(result, FIGURES / f"effort-{result['case']}.png")
    PAGE.write_text(page(results))


def page(results: Sequence[Mapping[str, Any]]) -> str:
    head = """# What each effort buys

Written by `python docs/effort.py --render` from the answers kept in `docs/results`; no number is typed by hand.

A client of [`ponder serve`](serving.md) says how hard to think by `reasoning_effort`. Here one model is asked the same
held-out problems at every effort, by OpenAI's own Python client, each problem once with a seed of its own. **Tokens**
are what `usage` counts for a problem: everything that was sampled. **Accuracy** has Wilson's 95 % interval, the
**gain** over `none` Newcombe's paired one. These models write no thoughts apart from their answers, so `none`,
`minimal` and `low` are one answer, of at most 64, 256 and 1,024 tokens, and the other efforts are votes of 8 to 64
answers.
"""
    return head + "".join(map(section, results))


def section(result: Mapping[str, Any]) -> str:
    case = CASES[result["case"]]
    settings = "".join(f", {name} {value}" for name, value in case.fields.items())
    text = f"\n## {case.title}\n\n"
    text += f"![accuracy against tokens of a problem for each effort](figures/effort-{result['case']}.png)\n\n"
    text += f"`{result['command']}`{settings}; {result['machine']}.\n"
    for title, efforts in result["tasks"].items():
        text += f"\n### {title[0].upper() + title[1:]}\n\n"
        text += "| effort | accuracy | tokens | gain over `none`, points |\n|---|---|---:|---|\n"
        for effort in (name for name in EFFORTS if name in efforts):
            one = efforts[effort]
            gain = "" if effort == "none" else format_gain(one["right"], efforts["none"]["right"])
            a = Accuracy.from_outcomes(map(bool, one["right"]))
            text += f"| `{effort}` | {a.share} ({a.correct} of {a.total}) | {mean(one['tokens']):,.0f} | {gain} |\n"
    return text


def format_gain(right: Sequence[int], base: Sequence[int]) -> str:
    one = paired_difference(list(map(bool, right)), list(map(bool, base)))
    return f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]; {one.wins} won, {one.losses} lost"


def draw(result: Mapping[str, Any], path: Path) -> None:
    from ponder.measure.figures.canvas import add_footnotes, make_panels, set_cost_axis, set_headline, set_percent_axis
    from ponder.measure.figures.theme import LINE_COLOUR

    def paint(figure: Any, panels: list[Any]) -> None:
        for axes, (title, kept) in zip(panels, result["tasks"].items(), strict=True):
            names = [name for name in EFFORTS if name in kept]
            tokens = [mean(kept[name]["tokens"]) for name in names]
            shares = [Accuracy.from_outcomes(map(bool, kept[name]["right"])) for name in names]
            spread = [[one.mean - one.low for one in shares], [one.high - one.mean for one in shares]]
            axes.errorbar(
                tokens, [one.mean for one in shares], spread, marker="o", color=LINE_COLOUR, capsize=2, linewidth=1
            )
            low, high = min(one.low for one in shares), max(one.high for one in shares)
            for label, at, is_above in labels(names, tokens):
                end = shares[at].high if is_above else shares[at].low
                axes.annotate(
                    label, (tokens[at], end), xytext=(0, 4 if is_above else -4), textcoords="offset points", fontsize=8,
                    ha="center" if at else "left", va="bottom" if is_above else "top",
                )  # fmt: skip
            set_cost_axis(axes, min(tokens), max(tokens) * 1.3, "tokens sampled per problem")
            set_percent_axis(axes, low - 0.1 * (high - low), high + 0.1 * (high - low))
            set_headline(axes, f"{title}: accuracy, %")
        add_footnotes(figure, ["bars: 95 % intervals over problems"])

    figure = make_panels(len(result["tasks"]), paint, size=(4.4, 3.4))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, facecolor="white")


def labels(names: Sequence[str], tokens: Sequence[float]) -> Iterator[tuple[str, int, bool]]:
    """A label for each point: its text, whose point it stands at, and whether above it. Efforts that took about as many
    tokens share one, and those of near points stand above and below in turns."""
    group: list[int] = []
    last, is_above = 0.0, True
    for i in range(len(names)):
        group.append(i)
        if i + 1 == len(names) or tokens[i + 1] > 1.2 * tokens[group[0]]:
            is_above = not is_above and tokens[group[0]] < 1.8 * last
            yield ", ".join(names[j] for j in group), group[0], is_above
            last, group = tokens[group[0]], []


if __name__ == "__main__":
    main()
