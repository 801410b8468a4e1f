"""Settings that commands and jobs share, with their help."""

from __future__ import annotations

from typing import Annotated

TASK_HELP = "addition, countdown, gsm8k ... (ponder tasks lists them) or module:object"
MODEL_HELP = "smollm2, a Hugging Face folder or hub name, a .gguf file, a run directory, or openai:URL for a server"

Model = Annotated[str, MODEL_HELP]
Template = Annotated[
    str | None, "plain, qa, r1, deepseek-r1-zero or jinja2 text, in place of the model's own chat template"
]
Guide = Annotated[
    str, "what guides a search: likelihood, p_true, reward:FOLDER or URL, genrm:MODEL, module:object; oracle (eval)"
]
Device = Annotated[str, "auto, cpu, cuda or mps"]
Dtype = Annotated[str, "auto, float32, bfloat16 or float16"]
Steps = Annotated[int, "steps of training"]
SaveEvery = Annotated[int, "steps between checkpoints"]
KeepCheckpoints = Annotated[int, "checkpoints to keep, besides the best"]
MaxConcurrency = Annotated[int, "problems in flight; an interruption loses at most these"]
TOOLS_HELP = "functions that the model may call: calculator, python, or mine.py:search; between commas"
MAX_TURNS_HELP = "turns of an answer with tools, the last one included"
IncludeHeldOut = Annotated[bool, "also an evaluation's problems, which are left out otherwise"]
