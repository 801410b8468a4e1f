"""`python -m audit.soak`: see the package."""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from pathlib import Path

import audit.soak
from audit.soak.resources import LeakDetector, resource_usage

KINDS = ("sandbox", "engine", "server", "serving")
WARM_SHARE = 0.2  # of the time, and some rounds in any case
WARM_ROUNDS = 3
MAX_LISTED_LOSSES = 20


def soak(kind: str, minutes: float, seed: int) -> list[str]:
    """What was lost or grew; nothing, where all is well."""
    work = importlib.import_module(f"audit.soak.{kind}").Workload()
    draw, watch, begun = random.Random(seed), LeakDetector(), time.monotonic()
    rounds = results = output = 0
    lost: list[str] = []
    try:
        while rounds <= WARM_ROUNDS or time.monotonic() - begun < minutes * 60:
            looked, trouble = work.round(draw)
            rounds, results, lost = rounds + 1, results + looked, lost + trouble
            spent, held = time.monotonic() - begun, resource_usage()
            if rounds <= WARM_ROUNDS or spent < WARM_SHARE * minutes * 60:
                watch.warm(held)
            if spent >= (output + 1) * 60:
                output = int(spent // 60)
                print(f"  {kind}, {output} min: {results:,} results, {len(lost)} lost; {held}", flush=True)
            if len(lost) >= MAX_LISTED_LOSSES:
                break
        lost += watch.settled()
        print(f"  {kind}: {results:,} results in {rounds} rounds; {resource_usage()} (warm: {watch.most})", flush=True)
    finally:
        work.close()
    return lost


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m audit.soak", description=audit.soak.__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"some of: {', '.join(KINDS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=5.0, help="for each (default: 5)")
    parser.add_argument("--seed", type=int, default=None, help="of what is mixed (default: another each time)")
    output = parser.parse_args(given)
    if unknown := [kind for kind in output.kinds if kind not in KINDS]:
        parser.error(f"there is no {unknown[0]!r} to soak; there are {', '.join(KINDS)}")
    if not output.minutes > 0:
        parser.error(f"--minutes is {output.minutes}; it must be positive")
    if not Path("/proc/self/status").exists():
        parser.error("what a process holds is read in /proc, which this system has not: soak on Linux")
    seed = random.randrange(2**32) if output.seed is None else output.seed
    failed = False
    for kind in output.kinds or KINDS:
        print(f"== {kind} (--seed {seed})", flush=True)
        lost = soak(kind, output.minutes, seed)
        for what in lost[:MAX_LISTED_LOSSES]:
            print(f"  LOST: {what}", flush=True)
        print(f"{kind}: {'FAILED' if lost else 'nothing lost, nothing grew'}", flush=True)
        failed = failed or bool(lost)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
