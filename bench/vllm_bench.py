"""`vllm bench serve`, vLLM's own load generator, against `ponder serve` and `vllm serve`: the same random chats, and
answers of one length (`ignore_eos`), so many streams at a time.

It runs in this process, so vLLM must be installed beside ponder. A server is a command to start (`{port}`, `{folder}`
and `{python}` are filled in) or a URL where one runs already.

    python bench/vllm_bench.py --device cuda --streams 1 16 64 256
        --peer "vllm={python} -m vllm.entrypoints.cli.main serve {folder} --port {port} --served-model-name smollm2"
"""

from __future__ import annotations

import contextlib
import math
import shlex
from pathlib import Path
from typing import Any

from harness import RESULTS, make_parser, report
from serve_load import LEAST_REQUESTS, running_server

KEPT = ("output_throughput", "request_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "completed",
        "failed", "total_output_tokens", "duration")  # fmt: skip


def measure(url: str, folder: str, args: Any) -> dict[int, dict[str, float]]:
    """What the generator says of a server, at each number of streams."""
    from vllm.benchmarks.serve import add_cli_args, main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    out = {}
    for streams in args.streams:
        prompts = max(args.requests * streams, LEAST_REQUESTS)
        flags = (
            f"--backend openai-chat --base-url {url} --endpoint /v1/chat/completions --model {args.served_name}"
            f" --tokenizer {shlex.quote(folder)} --dataset-name random --random-input-len {args.input_tokens}"
            f" --random-output-len {args.tokens} --num-prompts {prompts} --max-concurrency {streams}"
            f" --num-warmups {2 * streams} --temperature 1.0 --disable-tqdm"
        )
        result = main(parser.parse_args(shlex.split(flags)))
        out[streams] = {name: result[name] for name in KEPT}
        print(f"{url}, {streams} streams: {out[streams]}", flush=True)
        if out[streams]["failed"] or not math.isfinite(out[streams]["output_throughput"]):
            raise SystemExit(f"{url}: {out[streams]['failed']} of {prompts} requests failed: see its log")
    return out


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--served-name", help="of the model, for both servers; default: the model's")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64, 256], help="requests at a time")
    parser.add_argument("--requests", type=int, default=4, help=f"for each stream; {LEAST_REQUESTS} in all at least")
    parser.add_argument("--input-tokens", type=int, default=64, help="random tokens of a question")
    parser.add_argument("--tokens", type=int, default=256, help="of an answer")
    parser.add_argument("--own", metavar="COMMAND|URL", help="default: ponder serve, started here")
    parser.add_argument("--peer", required=True, metavar="NAME=COMMAND|URL")
    parser.add_argument("--start-seconds", type=float, default=240.0, help="that a server may take to start")
    parser.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder that the results are written to")
    args = parser.parse_args()
    args.served_name = args.served_name or Path(args.model).name
    from ponder.models.model_paths import find_model

    folder = str(find_model(args.model))
    name, _, place = args.peer.partition("=")
    own = f"{{python}} -m ponder serve {args.served_name}={shlex.quote(args.model)} --port {{port}}"
    own += f" --device {args.device} --dtype {args.dtype}"
    sides = {"ponder": args.own or own, name: place}
    measured = {}
    for side, where in sides.items():
        with contextlib.ExitStack() as stack:
            started = not where.startswith("http")
            url = stack.enter_context(running_server(where, folder, args.start_seconds)) if started else where
            measured[side] = measure(url, folder, args)
    for streams in args.streams:
        one = {side: levels[streams] for side, levels in measured.items()}
        report(
            f"vllm_bench_{streams}",
            f"vllm bench serve, {args.served_name}, {args.dtype}: {streams} streams at a time, random chats of"
            f" {args.input_tokens} tokens, answers of {args.tokens}",
            one["ponder"]["output_throughput"], {name: one[name]["output_throughput"]}, promised=1.0, unit="tokens/s",
            device=args.device, packages=["vllm", "uvicorn", "starlette"],
            details={**one, "peer": args.peer, "note": args.note}, results=args.results,
        )  # fmt: skip


if __name__ == "__main__":
    main()
