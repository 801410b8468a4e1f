"""llama.cpp's own HTTP server over a model folder (package xllamacpp): a peer of bench/serve_load.py.

    python bench/llama_server.py FOLDER --port 8080 --slots 64

The weights are written to a GGUF file first, as they are (F32, or BF16). It serves until SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("folder", type=Path, help="a model in Hugging Face's form")
    flags.add_argument("--port", type=int, required=True)
    flags.add_argument("--slots", type=int, default=64, help="sequences at a time")
    flags.add_argument("--slot-tokens", type=int, default=512, help="context of each")
    flags.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = flags.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the library's own end may wait for connections
    with tempfile.TemporaryDirectory(prefix="llama-") as work:  # the file is mapped into memory from then on
        server = start(args, convert(args.folder, Path(work), args.dtype))
    print(f"llama.cpp serves at {server.listening_address}", flush=True)
    while True:
        signal.pause()


def convert(folder: Path, work: Path, dtype: str) -> str:
    from ponder.models.tokenizer import Tokenizer
    from ponder.nets import gguf, hf

    path = work / "model.gguf"
    gguf.save(hf.load(folder), Tokenizer.from_folder(folder), path, {"float32": "F32", "bfloat16": "BF16"}[dtype])
    return str(path)


def start(args: argparse.Namespace, path: str) -> Any:
    """With plain sampling at the temperature of a request, as the other sides have it."""
    import xllamacpp

    from ponder.nets.hardware import set_threads

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames, params.port = ["127.0.0.1"], args.port
    params.n_parallel, params.n_ctx = args.slots, args.slots * args.slot_tokens
    params.n_batch = params.n_ubatch = max(512, args.slots)
    params.cont_batching = params.cache_prompt = True
    params.cache_ram_mib = 0
    params.n_threads_http = args.slots + 4  # a connection holds its thread
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = set_threads()
    params.sampling.top_k, params.sampling.top_p, params.sampling.min_p = 0, 1.0, 0.0
    params.verbosity = 1  # errors only
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
