"""From the start of a process to its first token, and to its first full group: ponder against its peers.

Each side gets a fresh process in every turn, which is told the prompts' tokens and the model's folder, opens the side,
asks for one token of one prompt, and then for groups. Times are from the moment the process was started to the moment
the answer was there: interpreter, imports, weights, whatever a side compiles or captures. The files are read once
before the first turn, so no side pays for a cold disk, and the number of threads is chosen before, for all. Whatever is
kept compiled between processes is kept here as well, by Python (for every side, also where its packages were installed
without) and by peers: what they took in the first turn is kept apart. Processes take turns.

    python bench/engine_start.py                   then 8 prompts x 8 x 32 tokens on a CPU
    python bench/engine_start.py --device cuda     then 32 x 8 x 256
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import report
from ponder.types import ids
from sampling_backends import BACKENDS, BackendSetting, PromptRequest, check_completions
from sampling_harness import backend_packages, fill_default_sizes, prepare_model, result_name, sampling_parser

GOAL_SECONDS = {"cuda": 5.0}  # seconds to the first token
MILESTONES = ("opened", "first_token", "first_group")


def child() -> None:
    """In the fresh process: what to do comes as JSON, when it was done goes back as the last line."""
    output = json.load(sys.stdin)
    asks: list[PromptRequest] = [(ids(prompt), output["n"]) for prompt in output["prompts"]]
    side = BACKENDS[output["side"]](BackendSetting(**output["setting"]))
    times = [time.monotonic()]
    for some, tokens in (([(asks[0][0], 1)], 1), (asks, output["tokens"])):
        check_completions(side.generate_all(some, tokens), some, tokens)
        times.append(time.monotonic())
    print(json.dumps(dict(zip(MILESTONES, times, strict=True))), flush=True)
    side.close()


def time_start(
    side: str, setting: BackendSetting, prompts: list[list[int]], n: int, tokens: int, kept: str
) -> dict[str, float]:
    """Seconds after its start at which a fresh process had done each thing. Bytecode is kept in the folder `kept`."""
    output = {"side": side, "setting": asdict(setting), "prompts": prompts, "n": n, "tokens": tokens}
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": kept}
    began = time.monotonic()  # a clock that all processes of a machine share
    done = subprocess.run(
        [sys.executable, __file__, "--child"], input=json.dumps(output), capture_output=True, text=True, env=env
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr, flush=True)
        raise RuntimeError((done.stderr.strip() or "no reason was given").splitlines()[-1][:300])
    last = next(line for line in reversed(done.stdout.splitlines()) if line.startswith('{"opened"'))
    return {what: when - began for what, when in json.loads(last).items()}


def main() -> None:
    own = sampling_parser(__doc__)
    own.add_argument("--prompts", type=int, help="default: 8, on a GPU 32")
    own.add_argument("--n", type=int, default=8, help="completions of each prompt")
    own.add_argument("--tokens", type=int, help="of each completion; default: 32, on a GPU 256")
    output = own.parse_args()
    fill_default_sizes(output, cpu={"prompts": 8, "n": 8, "tokens": 32}, cuda={"prompts": 32, "n": 8, "tokens": 256})

    times: dict[str, list[dict[str, float]]] = {}
    failed: dict[str, str] = {}
    load: list[float] = []
    with (
        prepare_model(output, output.prompts * output.n, output.tokens) as ready,
        tempfile.TemporaryDirectory() as kept,
    ):
        prompts = [p.tolist() for p in ready.encode(0, output.prompts)]
        for file in [*Path(ready.setting.folder).iterdir(), *map(Path, ready.setting.gguf.values())]:
            file.read_bytes()

        def median(side: str, what: str) -> float | None:
            return None if side in failed else statistics.median(t[what] for t in times[side][1:] or times[side])

        def tell() -> None:
            first = {side: median(side, "first_token") for side in ready.sides}
            ours: Any = first.pop("ponder")
            report(
                result_name("engine_start", output.model),
                f"{Path(output.model).name}, {ready.setting.dtype}: process start to first token",
                ours,
                first,
                unit="s",
                better="lower",
                device=output.device,
                packages=backend_packages(ready.sides),
                results=output.results,
                details={
                    "goal": GOAL_SECONDS.get(output.device),
                    "first_group": {side: median(side, "first_group") for side in ready.sides},
                    "group": f"{output.prompts} prompts x {output.n} completions x {output.tokens} tokens",
                    "seconds": {side: every[1:] for side, every in times.items()},
                    "first_turn": {side: every[0] for side, every in times.items()},
                    "threads": ready.setting.threads,
                    "load": load,
                    "notes": {side: BACKENDS[side].note for side in ready.sides if BACKENDS[side].note},
                    "failed": failed,
                    "note": output.note,
                },
            )

        for turn in range(1 + output.repeats):
            for side in ready.sides:
                if side in failed:
                    continue
                load.append(round(os.getloadavg()[0], 2))
                try:
                    took = time_start(side, ready.setting, prompts, output.n, output.tokens, kept)
                except RuntimeError as why:  # whatever a peer raises, the others can still be compared
                    if side == "ponder":
                        raise
                    failed[side] = str(why)
                    print(f"{side} cannot be measured here: {failed[side]}", flush=True)
                    continue
                times.setdefault(side, []).append(took)
                print(f"turn {turn}, {side}: {_format_times(took)}", flush=True)
            tell()  # after every turn: one that is stopped early keeps what it has


def _format_times(took: dict[str, float]) -> str:
    return ", ".join(f"{what.replace('_', ' ')} {seconds:.2f} s" for what, seconds in took.items())


if __name__ == "__main__":
    child() if sys.argv[1:] == ["--child"] else main()
