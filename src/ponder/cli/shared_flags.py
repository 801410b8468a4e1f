"""Flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from ponder.settings import Named, SettingsOf

Model = Annotated[str, "smollm2, a Hugging Face folder, a .gguf file, a run directory, or openai:URL for a server"]
TaskName = Annotated[
    str, Named("ponder.tasks:TASKS"), "addition, countdown, gsm8k ... (ponder tasks lists them) or module:object"
]
TaskSettings = Annotated[dict[str, str], SettingsOf("task"), "a setting of the task (ponder tasks TASK lists them)"]
StrategySettings = Annotated[
    dict[str, str], SettingsOf("strategy"), "a setting of the strategy (ponder strategies NAME lists them)"
]
AlgorithmSettings = Annotated[
    dict[str, str], SettingsOf("algorithm"), "a setting of the algorithm, such as clip_high or kl.estimator"
]
LoraSettings = Annotated[
    dict[str, str], SettingsOf("lora", "ponder.nets.lora:LoRA"), "train adapters in place of the weights"
]
OptimizerSettings = Annotated[
    dict[str, str],
    SettingsOf("optimizer", "ponder.train.optimizer:AdamW", ("lr", "warmup_steps", "decay_steps", "states")),
    "settings of AdamW",
]
BudgetSettings = Annotated[
    dict[str, str], SettingsOf("budget", "ponder.reason.budget:Budget"), "what each problem may cost at most"
]
Template = Annotated[
    str | None, "plain, qa, r1, deepseek-r1-zero or jinja2 text, in place of the model's own chat template"
]
MaxTokens = Annotated[int, "longest completion"]
LearningRate = Annotated[float, "learning rate"]
FrozenLayers = Annotated[int, "the lowest so many layers stay as they are"]
SaveEvery = Annotated[int, "steps between checkpoints"]
MaxTokensPerMicrobatch = Annotated[
    int, "tokens per forward pass: memory only, not the result; 0: as many as suit the device"
]
Device = Annotated[str, "auto, cpu, cuda or mps"]
Dtype = Annotated[str, "auto, float32, bfloat16 or float16"]
RunDirectory = Annotated[Path | None, "the run directory; the same command resumes where it stopped"]
Json = Annotated[bool, "one JSON object per line on stdout, nothing else"]
NoResume = Annotated[bool, "refuse to continue a run that is already there"]
KeepCheckpoints = Annotated[int, "checkpoints to keep, besides the best"]
GradientCheckpointing = Annotated[bool, "recompute activations in the backward pass: less memory, a third more time"]
OptimizerStates = Annotated[Literal["float32", "int8", "cpu"], "how the optimizer's states are kept"]
Strategy = Annotated[
    str | None,
    Named("ponder.reason.strategies:STRATEGIES", "ponder.reason.presets:PRESETS"),
    "chain, majority-vote, best-of-n, beam-search, mcts ... or a preset (ponder strategies lists them)",
]
Effort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "max"] | None,
    "bounds on answers and tokens; a server's chat is asked for it, too",
]
Guide = Annotated[
    str, "what guides a search: likelihood, p_true, reward:FOLDER, genrm:MODEL, module:object; oracle (eval only)"
]
Prices = Annotated[Path | None, "a JSON table of dollars per million tokens; the row with the model's name counts"]
