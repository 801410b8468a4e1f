"""Flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

# The names in ponder.train.algorithms, which imports torch; a test holds them equal.
ONLINE_ALGORITHMS = (
    "reinforce", "rloo", "reinforce++", "grpo", "dr-grpo", "dapo", "gspo", "cispo", "ppo", "tree", "rejection",
)  # fmt: skip
OFFLINE_ALGORITHMS = ("sft", "dpo", "distill")

Model = Annotated[str, "smollm2, a Hugging Face folder, a .gguf file, a run directory, or openai:URL for a server"]
TaskName = Annotated[str, "addition, countdown, gsm8k ... (ponder tasks lists them) or module:object"]
TaskSettings = Annotated[list[str], "a setting of the task, as key=value; may be given again"]
Template = Annotated[str | None, "plain, qa, r1 or jinja2 text, in place of the model's own chat template"]
MaxTokens = Annotated[int, "longest completion"]
LearningRate = Annotated[float, "learning rate"]
FrozenLayers = Annotated[int, "the lowest so many layers stay as they are"]
SaveEvery = Annotated[int, "steps between checkpoints"]
MaxTokensPerMicrobatch = Annotated[
    int, "tokens per forward pass: memory only, not the result; 0: as many as suit the device"
]
Device = Annotated[str, "auto, cpu, cuda or mps"]
Dtype = Annotated[str, "auto, float32, bfloat16 or float16"]
RunDirectory = Annotated[Path | None, "the run directory; the same command goes on where it stopped"]
Json = Annotated[bool, "one JSON object per line on stdout, nothing else"]
NoResume = Annotated[bool, "refuse to go on with a run that is already there"]
LoraRank = Annotated[int, "train LoRA adapters of this rank instead of the weights"]
KeepCheckpoints = Annotated[int, "checkpoints to keep, besides the best"]
GradientCheckpointing = Annotated[bool, "keep no activations inside layers: less memory, a third more time"]
OptimizerStates = Annotated[Literal["float32", "int8", "cpu"], "how the optimiser's states are kept"]
Strategy = Annotated[str | None, "chain, majority-vote, best-of-n, beam-search, mcts ... or a preset (ponder strategies lists them)"]
Effort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "max"] | None,
    "bounds on answers and tokens; a server's chat is asked for it, too",
]
Guide = Annotated[
    str, "what guides a search: likelihood, p_true, reward:FOLDER, genrm:MODEL, module:object; oracle (eval only)"
]
TokenBudget = Annotated[int | None, "tokens to write at most, for each problem"]
Prices = Annotated[Path | None, "a JSON table of dollars per million tokens; the row with the model's name counts"]
SecondsBudget = Annotated[float | None, "seconds after which nothing new is begun, for each problem"]
