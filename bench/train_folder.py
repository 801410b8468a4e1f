"""A 7B shape through the command line: `ponder train` from a Hugging Face folder, its memory beside `ponder plan`'s.

The folder has a published model's shape, random weights in bfloat16 and SmolLM2's tokenizer; it is written once, in
shards as such models come in. `ponder plan train ... --gpus 1` says what a step should take, and `ponder train` with
the same flags takes two steps of the task addition, rewarded also by a number drawn from the text, so that there is
something to learn. The process is ended after the second step's metrics: a checkpoint of all weights and states would
take 60 GB. The peak is what torch had allocated at most until then, the cache of sampled tokens not counted, as in the
plan; the GPU's memory in use is kept, too.

    python bench/train_folder.py --device cuda --folder /tmp/7b --way lora
    python bench/train_folder.py --device cuda --folder /tmp/7b --way int8
    python bench/train_folder.py --device cuda --folder /tmp/3b --shape qwen2.5-3b --way host

`lora` trains adapters of rank 16, `int8` all weights with 8-bit states, `host` all weights with master weights and
states in host memory (16 bytes for each weight: a 7B shape needs 114 GiB of it).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import commit, hardware, make_parser, versions

WAYS = {
    "lora": ["--lora.rank", "16"],
    "int8": ["--optimizer-states", "int8"],
    "host": ["--optimizer-states", "cpu"],
}
REWARD = '''import zlib


def drawn(completions, **columns):
    """Between 0 and 1, as good as random."""
    return [zlib.crc32(repr(c).encode()) / 2**32 for c in completions]
'''


def config_of(shape: str, layers: int) -> Any:
    from ponder.nets.config import DecoderConfig, RopeConfig
    from training_harness import SHAPES

    shapes = {
        "qwen2.5-3b": DecoderConfig(
            "qwen2", 151936, 2048, 36, 16, 2, 128, mlp_width=11008, context=4096, rope=RopeConfig(1e6), qkv_bias=True,
            eos=(2,),
        ),
        "qwen2.5-7b": DecoderConfig(
            "qwen2", 152064, 3584, 28, 28, 4, 128, mlp_width=18944, context=4096, rope=RopeConfig(1e6), qkv_bias=True,
            tied_embeddings=False, eos=(2,),
        ),
    }  # fmt: skip
    config = (SHAPES | shapes)[shape]
    return replace(config, layers=layers or config.layers, windows=(), context=4096)


def write_folder(folder: Path, shape: str, layers: int, device: str) -> None:
    """Weights are drawn on the device, one tensor after another: a CPU would take a minute."""
    import torch
    from safetensors.torch import save_file

    from ponder.models.model_paths import find_model
    from ponder.nets.config import to_hf
    from ponder.nets.decoder import Decoder

    config = config_of(shape, layers)
    work = folder.with_name(folder.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(find_model("smollm2") / name, work / name)
    (work / "config.json").write_text(json.dumps(to_hf(config, "bfloat16")), "utf-8")
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in Decoder(config).named_parameters()}
    torch.manual_seed(0)
    shards: dict[str, dict[str, Any]] = {}
    for name, size in shapes.items():
        part = name.split(".")[1] if name.startswith("layers.") else "outer"
        new = torch.ones(size, dtype=torch.bfloat16, device=device)
        if len(size) > 1:
            new.normal_(0, 0.02)
        elif name.endswith("bias"):
            new.zero_()
        public = name if name.startswith("lm_head") else f"model.{name}"
        shards.setdefault(part, {})[public] = new.cpu()
    index: dict[str, str] = {}
    for number, tensors in enumerate(shards.values(), 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(tensors, work / file, {"format": "pt"})
        index |= dict.fromkeys(tensors, file)
    total = sum(t.nbytes for tensors in shards.values() for t in tensors.values())
    (work / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}), "utf-8"
    )
    work.rename(folder)


def child(file: Path, words: list[str]) -> int:
    """`ponder` with these words, in this process; what memory it has taken at most is written to a file meanwhile, and
    when that rose: seconds, bytes then, bytes at most."""
    import torch

    from ponder.cli import main as command_line

    def watch() -> None:
        used, began, rises = 0, time.perf_counter(), []
        while True:
            time.sleep(0.05)
            if torch.cuda.is_initialized():
                free, whole = torch.cuda.mem_get_info()
                used = max(used, whole - free)
                peak = torch.cuda.max_memory_allocated()
                if not rises or peak > rises[-1][2] + (64 << 20):
                    rises.append([round(time.perf_counter() - began, 2), torch.cuda.memory_allocated(), peak])
                new = file.with_suffix(".new")
                new.write_text(json.dumps({"peak_bytes": peak, "gpu_bytes": used, "rises": rises}), "utf-8")
                new.rename(file)

    threading.Thread(target=watch, daemon=True).start()
    return command_line(words)


def train(words: list[str], steps: int, limit: float) -> dict[str, Any]:
    """The steps' metrics, when they came, and the memory that was taken."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memory.json"
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, __file__, "--child", str(file), *words, "--run", f"{folder}/run", "--json"],
            stdout=subprocess.PIPE, text=True, encoding="utf-8", env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        end = threading.Timer(limit, process.kill)
        end.start()
        assert process.stdout is not None
        rows: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        for line in process.stdout:
            event = json.loads(line)
            events.append({"seconds": time.perf_counter() - began} | {k: str(v)[:300] for k, v in event.items()})
            print(json.dumps(events[-1]), file=sys.stderr, flush=True)  # a run that is cut has said how far it came
            if event.get("event") == "step":
                rows.append({"after_seconds": time.perf_counter() - began, **event})
            if len(rows) == steps:
                time.sleep(0.3)
                break
        end.cancel()
        process.kill()
        process.wait()
        memory = json.loads(file.read_text("utf-8")) if file.exists() else {"peak_bytes": 0, "gpu_bytes": 0}
        return {**memory, "steps": rows, "events": [] if len(rows) == steps else events[-20:]}


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        return child(Path(sys.argv[2]), sys.argv[3:])
    flags = make_parser(__doc__)
    flags.add_argument("--folder", type=Path, required=True, help="of the model; written if it is not there")
    flags.add_argument("--shape", default="qwen2.5-7b")
    flags.add_argument("--layers", type=int, default=0, help="fewer than the shape has, to try it out")
    flags.add_argument("--only-folder", action="store_true", help="write the folder, and do nothing else")
    flags.add_argument("--way", choices=list(WAYS), default="lora")
    flags.add_argument("--steps", type=int, default=2)
    flags.add_argument("--limit", type=float, default=600.0, help="seconds after which the run is ended")
    flags.add_argument("--out", type=Path, help="file that the result is written to")
    args, more = flags.parse_known_args()  # the rest is for `ponder train`
    began = time.perf_counter()
    if not args.folder.exists():
        wrote = [sys.executable, "-c", "import sys, train_folder; train_folder.write_folder("]
        wrote[-1] += f"train_folder.Path({str(args.folder)!r}), {args.shape!r}, {args.layers}, {args.device!r})"
        subprocess.run(wrote, check=True, cwd=Path(__file__).parent)  # its GPU memory is given back with the process
    written = time.perf_counter() - began
    if args.only_folder:
        print(f"written in {written:.1f} s")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rewards = Path(folder) / "drawn.py"
        rewards.write_text(REWARD, "utf-8")
        words = [
            "train", "addition", "--model", str(args.folder), "--rewards", f"accuracy=1,{rewards}:drawn=0.5",
            "--steps", "1000", "--problems-per-step", "4", "--group-size", "8", "--max-tokens", "128",
            "--max-tokens-per-microbatch", "4096", "--gradient-checkpointing", "--beta", "0", "--save-every", "1000",
            "--device", args.device, *WAYS[args.way], *more,
        ]  # fmt: skip
        asked = [sys.executable, "-m", "ponder", "plan", *words, "--gpus", "1", "--gpu-memory", "140", "--json"]
        planning = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
        run = train(words, args.steps, args.limit)
        told, errors = planning.communicate()  # it needs no GPU, so it ran beside
        if '"rank_plan"' not in told:
            raise SystemExit(f"ponder plan failed: {errors}")
        plan = json.loads(told.splitlines()[-1])
    predicted = sum(plan["replicated"].values())
    shown = [word.replace(f"{folder}/", "").replace(str(args.folder), "FOLDER") for word in words]
    result = {
        "name": f"train_folder_{args.way}", "work": f"{args.shape} shape from a folder: ponder {' '.join(shown)}",
        "way": args.way, "shape": args.shape, "layers": args.layers or None, "predicted_bytes": predicted,
        "predicted_over_peak": predicted / run["peak_bytes"] if run["peak_bytes"] else None,
        "parts": plan["replicated"], **run, "folder_seconds": written, "hardware": hardware(args.device),
        "versions": versions(["peft", "safetensors"]), "commit": commit(),
    }  # fmt: skip
    text = json.dumps(result, indent=2) + "\n"
    if args.out:
        args.out.write_text(text, "utf-8")
    print(text)
    return 0 if len(run["steps"]) == args.steps else 1


if __name__ == "__main__":
    sys.exit(main())
