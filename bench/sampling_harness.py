"""What the engine's benches share: their flags, the model for every side, prompts, and taking turns."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness import RESULTS, make_parser, report, slug
from ponder.types import Ids, ids
from sampling_backends import BACKENDS, Backend, BackendSetting, default_backends, is_installed


def sampling_parser(description: str | None) -> argparse.ArgumentParser:
    own = make_parser(description)
    own.add_argument(
        "--model", default="smollm2", help="a model, or one of training_harness.py's shapes with random weights"
    )
    own.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on a GPU bfloat16")
    own.add_argument(
        "--backends", nargs="+", choices=list(BACKENDS), help="default: ponder and the peers installed here"
    )
    own.add_argument("--repeats", type=int, default=3, help="measurements of each side, after one to warm up")
    own.add_argument("--cache-gib", type=float, help="ponder's key-value cache; default: 4, on a GPU 32")
    own.add_argument("--gpu-memory-utilization", type=float, default=0.4, help="vLLM's share of the GPU's memory")
    own.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    own.add_argument("--results", type=Path, default=RESULTS, help="folder that the result is written to")
    return own


def fill_default_sizes(args: argparse.Namespace, cpu: dict[str, int], cuda: dict[str, int]) -> None:
    """Fill in the sizes that were not given, by the device."""
    for name, value in (cuda if args.device == "cuda" else cpu).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
        if getattr(args, name) < 1:
            raise SystemExit(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be at least 1")


@dataclass(frozen=True)
class PreparedModel:
    setting: BackendSetting
    sides: list[str]
    config: Any  # the decoder's shape
    encode: Callable[[int, int], list[Ids]]  # the first problem's number, and how many


@contextmanager
def prepare_model(args: argparse.Namespace, rows: int, new: int) -> Iterator[PreparedModel]:
    """A model in every form that a side reads, and where its prompts come from. `new` tokens follow a prompt at most.

    Prompts are chats of a task; for random weights, random tokens. Nobody has seen them before: a cache that outlives
    a turn does not help in the next.
    """
    import torch

    from ponder.errors import ModelError
    from ponder.models import chat_templates, smollm2
    from ponder.models.model_paths import find_model
    from ponder.models.tokenizer import Tokenizer
    from ponder.nets import gguf, hf
    from ponder.nets.config import from_hf
    from ponder.nets.hardware import set_threads
    from ponder.pipelines.problems.shuffled_order import shuffled_problems
    from ponder.tasks.generated.addition import Addition
    from training_harness import SHAPES, random_decoder

    dtype = args.dtype or ("bfloat16" if args.device == "cuda" else "float32")
    threads = torch.get_num_threads()
    if args.device == "cpu":
        threads = set_threads()
        os.environ["OMP_NUM_THREADS"] = str(threads)  # holds for every side, here and in other processes
    with tempfile.TemporaryDirectory(prefix="bench-") as work:
        files: dict[str, str] = {}
        if args.model in SHAPES:
            folder = Path(work) / "model"
            hf.save(random_decoder(args.model, args.device, getattr(torch, dtype)), folder)
            if args.device == "cuda":
                torch.cuda.empty_cache()
            Tokenizer.from_alphabet("0123456789").save(folder)
        else:
            folder = find_model(args.model)
            if folder.is_file():
                raise SystemExit(f"{args.model} is one file; the peers read a folder in Hugging Face's form")
        config = from_hf(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        tokenizer = Tokenizer.from_folder(folder)

        def encode(first: int, count: int) -> list[Ids]:
            if tokenizer.chat_template is not None:
                return [
                    chat_templates.encode_chat(tokenizer, p.messages)
                    for p in shuffled_problems(Addition().train, 0, first, count)
                ]
            return [ids(np.random.default_rng([first, i]).integers(3, config.vocab, 40)) for i in range(count)]

        wanted = [name for name in args.backends or BACKENDS if name.startswith("llama.cpp") and is_installed(name)]
        if args.device == "cpu" and args.model == "smollm2" and wanted:
            files["Q4_1"] = str(smollm2.packaged_gguf())
        for kind in ("F32", "BF16") if args.backends or dtype == "bfloat16" else ("F32",):
            if args.device != "cpu" or args.model in SHAPES or f"llama.cpp, {kind}" not in wanted:
                continue
            files[kind] = str(Path(work) / f"model-{kind.lower()}.gguf")
            try:
                gguf.save(hf.load(folder), tokenizer, files[kind], kind)
            except ModelError as why:  # a tokenizer that the format has no form for
                print(f"llama.cpp cannot run this model: {why}", flush=True)
                del files[kind]
        longest = max(map(len, encode(0, 256)))  # of prompts; those to come may be a little longer
        setting = BackendSetting(
            str(folder), args.device, dtype, rows, longest + 16 + new, threads, files,
            args.cache_gib or (32.0 if args.device == "cuda" else 4.0), args.gpu_memory_utilization,
        )  # fmt: skip
        yield PreparedModel(
            setting, list(dict.fromkeys(["ponder", *(args.backends or default_backends(setting))])), config, encode
        )


@dataclass
class Measurements:
    """What was measured of each side, turn by turn; the first, which warms up, is kept apart."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)  # which a shared machine changes less
    warmup_seconds: dict[str, float] = field(default_factory=dict)
    mean_logprob: dict[str, list[float]] = field(default_factory=dict)  # alike for all, if all do the same work
    load: list[float] = field(default_factory=list)  # processes that want to run on this machine, one of them ours

    def rates(self, total: int) -> dict[str, float]:
        """Of each side, per second: the median over its turns."""
        return {who: total / statistics.median(times) for who, times in self.seconds.items()}

    def details(self, total: int) -> dict[str, Any]:
        per_cpu = {who: total / statistics.median(times) for who, times in self.cpu_seconds.items()}
        return {**asdict(self), "tokens_per_cpu_second": per_cpu}


def measure_alternating(
    sides: dict[str, Backend], failed: dict[str, str], work: Callable[[Backend, int], float], repeats: int, device: str
) -> Measurements:
    """`work(side, turn)` for one side after the other, again and again; it returns the mean log-probability. A peer
    that raises has no later turn, and none that counts."""
    from training_harness import synchronize

    if repeats < 1:
        raise SystemExit(f"--repeats is {repeats}; it must be at least 1, since the first turn only warms up")
    done = Measurements()
    for turn in range(1 + repeats):
        for who in [name for name in sides if name not in failed]:
            done.load.append(round(os.getloadavg()[0], 2))
            worked, began = time.process_time(), synchronize(device)
            try:
                text = work(sides[who], turn)
            except Exception as why:  # whatever a peer raises, the others can still be compared
                _record_failure(who, why, failed)
                for kept in (done.seconds, done.cpu_seconds, done.warmup_seconds, done.mean_logprob):
                    kept.pop(who, None)
                continue
            took = synchronize(device) - began
            print(f"turn {turn}, {who}: {took:.2f} s", flush=True)
            if not turn:
                done.warmup_seconds[who] = took
                continue
            done.seconds.setdefault(who, []).append(took)
            done.cpu_seconds.setdefault(who, []).append(time.process_time() - worked)
            done.mean_logprob.setdefault(who, []).append(round(text, 4))
    return done


def _record_failure(who: str, why: Exception, failed: dict[str, str]) -> None:
    if who == "ponder":
        raise why
    failed[who] = f"{type(why).__name__}: {why}"[:300]
    print(f"{who} cannot be measured here: {failed[who]}", flush=True)


@contextmanager
def open_backends(names: Sequence[str], setting: BackendSetting) -> Iterator[tuple[dict[str, Backend], dict[str, str]]]:
    """The sides, in this process, and why those that are missing could not be opened."""
    sides: dict[str, Backend] = {}
    failed: dict[str, str] = {}
    try:
        for name in names:
            began = time.perf_counter()
            try:
                sides[name] = BACKENDS[name](setting)
            except Exception as why:
                _record_failure(name, why, failed)
                continue
            print(f"opened {name} in {time.perf_counter() - began:.1f} s", flush=True)
        yield sides, failed
    finally:
        for side in sides.values():
            side.close()


def result_name(script: str, model: str) -> str:
    """A result's name: the script's, with the model where it is not the usual one."""
    name = slug(Path(model).name)
    return script if name == "smollm2" else f"{script}_{re.sub(r'[^a-z0-9]+', '_', name)}"


def backend_packages(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(BACKENDS[name].package for name in names if BACKENDS[name].package))


def report_rates(
    name: str, work: str, args: argparse.Namespace, ready: PreparedModel, done: Measurements, total: int,
    failed: dict[str, str],
    sides: dict[str, Backend], promised: float | None = None, **more: Any,
) -> None:  # fmt: skip
    """Keep and show what a bench that counts tokens has found. `more` goes before the details that all have."""
    rates = done.rates(total)
    report(
        name,
        f"{Path(args.model).name}, {ready.setting.dtype}: {work}, with log-probabilities",
        rates.pop("ponder"),
        {**rates, **dict.fromkeys(failed)},
        promised=promised,
        unit="tokens/s",
        device=args.device,
        packages=backend_packages(ready.sides),
        results=args.results,
        details={
            **more,
            **done.details(total),
            "threads": ready.setting.threads,
            "notes": {who: side.note for who, side in sides.items() if side.note},
            "failed": failed,
            "note": args.note,
        },
    )
