"""Cut a smaller model out of a trained one: fewer layers, narrower MLPs (see nets/prune.py)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, get_args

from ponder.common_settings import Model
from ponder.errors import TaskError, UnknownName, UsageError
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.nets import hf
from ponder.nets.config import DecoderConfig
from ponder.nets.prune import LayerRule, choose_layers, choose_neurons, measure_blocks, prune
from ponder.pipelines.job.base_job import BaseJob
from ponder.pipelines.job.open_run import open_run
from ponder.pipelines.job.shared_fields import ComputeFields
from ponder.protocols import NoProgress, Progress
from ponder.runs import Run, manifest, read_traces, write_json
from ponder.runs.trace_store import has_traces
from ponder.types import Ids

MODEL_FOLDER = "model"  # in the run directory: a Hugging Face folder
REPORT_FILE = "pruned.json"


@dataclass(frozen=True)
class Prune(ComputeFields, BaseJob):
    """The job: `model` without the layers and neurons that matter least to texts of the run directories `runs`, which
    the model itself sampled or read. Writes a Hugging Face folder, `model`, in float32, and `pruned.json`."""

    runs: Annotated[tuple[str, ...], "run directories with texts to measure on, in the model's own tokens"]
    model: Model = "smollm2"
    layers: Annotated[int | None, "to keep; None: all where the MLPs become narrower, else half of them"] = None
    mlp_width: Annotated[int | None, "neurons of each MLP to keep; None: all"] = None
    keep: Annotated[LayerRule, "the layers of most influence, or evenly spaced ones"] = "influence"
    texts: Annotated[int, "texts to measure on, at most"] = 256

    def __post_init__(self) -> None:
        self.check_shared_fields()
        self.check_at_least_one("texts")
        if not self.runs or isinstance(self.runs, str):
            raise UsageError("name at least one run directory with texts to measure on")
        if self.keep not in get_args(LayerRule):
            raise UnknownName("rule", str(self.keep), get_args(LayerRule))

    def __call__(self, folder: str | Path, progress: Progress | None = None) -> Path:
        job, run = open_run(self, folder)
        with run:
            if not (run.folder / REPORT_FILE).exists():
                job.write_model(run, progress or NoProgress())
        return run.folder / MODEL_FOLDER

    def write_model(self, run: Run, progress: Progress) -> None:
        progress.phase("load")
        policy = load_policy(self.model, device=self.device, dtype=self.dtype)
        self.check_sizes(policy.net.config)
        texts = self._read_texts(policy)
        progress.phase("measure")
        found = measure_blocks(policy.net, texts)
        width, total = self.mlp_width, len(found.influence)
        count = self.layers or (total if width is not None else max(1, total // 2))
        layers = choose_layers(found.influence, count, self.keep)
        neurons = None if width is None else [choose_neurons(found.neurons[i], width) for i in layers]
        del policy
        progress.phase("save")
        whole = load_policy(self.model, device="cpu", dtype="float32")  # its weights, not rounded to the dtype
        net = prune(whole.net, layers, neurons)
        hf.save(net, run.folder / MODEL_FOLDER, overwrite=True)
        whole.tokenizer.save(run.folder / MODEL_FOLDER)
        manifest.write(run.folder / MODEL_FOLDER)
        write_json(
            run.folder / REPORT_FILE,
            {
                "texts": len(texts), "tokens": sum(map(len, texts)),
                "influence": [round(x, 6) for x in found.influence], "kept layers": layers,
                "mlp width": net.config.mlp_width, "parameters": net.config.parameter_count,
                "parameters before": whole.net.config.parameter_count,
            },
        )  # fmt: skip

    def check_sizes(self, c: DecoderConfig) -> None:
        """Refuse to keep more than a model of this shape has."""
        for name, given, most in (("layers", self.layers, c.layers), ("mlp_width", self.mlp_width, c.mlp_width)):
            if given is not None and not 1 <= given <= most:
                raise UsageError(f"{name} is {given}; the model has {most:,}")
        if self.layers == c.layers and self.mlp_width in (None, c.mlp_width):
            raise UsageError(f"layers is {self.layers}, which is all that the model has: nothing would be left out")

    def _read_texts(self, policy: PonderPolicy) -> list[Ids]:
        """Prompts with their answers, the first of each trace."""
        found: list[Ids] = []
        for run in self.runs:
            traces = islice(read_traces(run), self.texts - len(found)) if has_traces(run) else ()
            found += [trace.token_ids(trace.answers()[0]) for _, trace in traces if trace.answers()]
        if not found:
            raise TaskError(f"the runs {', '.join(self.runs)} hold no answers to measure on")
        if max(int(text.max()) for text in found) >= policy.net.config.vocab:
            raise TaskError("the texts have tokens that the model has not: give a run of the model itself")
        return [text[: policy.net.config.context] for text in found]

    def summary_lines(self, folder: Path, result: Any) -> list[str]:
        import json

        about = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
        return [
            f"layers    {len(about['kept layers'])} of {len(about['influence'])}: "
            + ", ".join(map(str, about["kept layers"])),
            f"weights   {about['parameters'] / 1e6:,.1f} of {about['parameters before'] / 1e6:,.1f} million",
            f"model     {folder / MODEL_FOLDER}",
        ]

    def summary_json(self, folder: Path, result: Any) -> dict[str, Any]:
        import json

        return dict(json.loads((folder / REPORT_FILE).read_text(encoding="utf-8")))
