"""A second size of SmolLM2's family, which no hub has to give: SmolLM2 with fewer layers, healed by distillation."""

from __future__ import annotations

from typing import Any

from ponder.book.figure import FigureRun

LAYERS = 15  # of 30
SETTINGS: dict[str, Any] = {  # chosen by the divergence from the whole model on validation problems (docs/tried.md)
    "task": "gsm8k", "more_tasks": ("mawps", "svamp"), "layers": LAYERS, "problems": 3600, "n": 4, "steps": 600,
    "lr": 1.5e-3, "limit": 64,
}  # fmt: skip
NAME = f"{LAYERS} of its 30 layers"


def pruned_model(run: FigureRun) -> str | None:
    """The model's folder, made once for all figures and seeds; None for other models than SmolLM2."""
    if run.model != "smollm2":
        return None
    folder = run.folder.parents[1] / "pruned-smollm2"
    run.run_job(run.build_recipe("prune", model=run.model, seed=0, **SETTINGS), folder)
    return str(folder / "healed")


def pruned_line() -> str:
    """What a page says of it."""
    heal, most = SETTINGS["steps"], SETTINGS["n"]
    return (
        f" The smaller model is SmolLM2 with {NAME}, those of most influence (`ponder run prune`), 81 of 134 million"
        f" weights. It was healed in {heal} steps of 64 answers: it learned the whole one's distribution over its"
        f" complete answers, at most {most} to each of {SETTINGS['problems']:,} training problems of GSM8K, MAWPS and"
        " SVAMP. It is made once on each machine; seeds differ in what comes after."
    )
