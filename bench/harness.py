"""What every comparison shares: its flags, the machine's name, versions, timing, and how a result is kept.

A bench script measures ponder and its peers at the same work, then calls `report`. That prints a small table and, as
the last line of output, one JSON object; the same object is written to bench/results/NAME-HARDWARE.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
RESULT_KEYS = ("name", "work", "ours", "peers", "ratio", "promised", "hardware", "versions", "commit")


def make_parser(description: str | None = None) -> argparse.ArgumentParser:
    """The flags every script takes; a script may add its own before it parses."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where both sides run")
    return flags


def median_seconds(work: Callable[[], Any], *, repeats: int = 5, warmup: int = 1, device: str = "cpu") -> float:
    """The median time of `work`, after warming up. On a GPU it waits until the device is done."""
    wait: Callable[[], Any] = lambda: None  # noqa: E731
    if device == "cuda":
        import torch

        wait = torch.cuda.synchronize
    times = []
    for run in range(warmup + repeats):
        wait()
        start = time.perf_counter()
        work()
        wait()
        if run >= warmup:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def hardware(device: str = "cpu") -> str:
    """The processor's name and the cores this process may use, or the GPU's name; fit for a file: neoverse-n1-2.

    Many generations of Xeons give no better name than "Intel Xeon Processor": those with AVX-512 and without AMX, which
    multiply bfloat16 no faster than float32, are told apart from later ones.
    """
    if device == "cuda":
        import torch

        return slug(torch.cuda.get_device_name())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags = set(_output("lscpu").split())
    vectors = "avx512" if "avx512f" in flags and "amx_tile" not in flags else ""
    return slug(f"{_processor()} {vectors} {cores}")


def slug(name: str) -> str:
    name = re.sub(r"\((r|tm|c)\)|\bcpu\b|\bprocessor\b|@.*ghz", " ", name.lower())
    return re.sub(r"[^a-z0-9.]+", "-", name).strip("-")


def versions(packages: Iterable[str] = ()) -> dict[str, str]:
    """Of python, ponder, torch and the peers; "absent" where a package is not installed."""
    import ponder

    result = {"python": platform.python_version(), "ponder": ponder.__version__}
    for package in ("torch", *packages):
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = "absent"
    return result


def commit() -> str:
    """The commit that was measured; "-dirty" where the code differs from it.

    A copy of the tree on another machine has no history: PONDER_COMMIT can say there what was copied.
    """
    if named := os.environ.get("PONDER_COMMIT"):
        return named
    head = _output("git", "-C", str(HERE), "rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    changed = _output("git", "-C", str(HERE.parent), "status", "--porcelain", "--", "src", "bench/*.py")
    return head + ("-dirty" if changed else "")


def report(
    name: str,
    work: str,
    ours: float,
    peers: Mapping[str, float | None],
    ratio: float | None = None,
    promised: float | None = None,
    *,
    unit: str = "",
    better: Literal["higher", "lower"] = "higher",
    device: str = "cpu",
    packages: Iterable[str] = (),
    details: Mapping[str, Any] | None = None,
    results: Path = RESULTS,
    origin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Print one comparison, keep it if a peer was measured or `results` names another folder, and return it.

    `work` says in words what both sides did. A peer that could not be measured here is None, not 0. `ratio` is how
    many times better ponder is than the best peer (above 1: ponder wins, whichever way `better` points); it is worked
    out where it is not given. `promised` is the ratio that was promised, None where none was. `details` keeps what else
    a reader may ask for (all timings, memory, settings). `origin` has the hardware, versions and commit of runs that
    were made earlier, perhaps on another machine.
    """
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ValueError(f"a bench name is lower-case letters, digits and underscores, got {name!r}")
    if origin is None:
        origin = {"hardware": hardware(device), "versions": versions(packages), "commit": commit()}
    result: dict[str, Any] = {
        "name": name,
        "work": work,
        "unit": unit,
        "better": better,
        "ours": ours,
        "peers": dict(peers),
        "ratio": best_ratio(ours, peers, better) if ratio is None else ratio,
        "promised": promised,
        **{key: origin[key] for key in ("hardware", "versions", "commit")},
    }
    if details:
        result["details"] = dict(details)
    # without a peer there is no comparison for the page
    if any(value is not None for value in peers.values()) or results != RESULTS:
        results.mkdir(parents=True, exist_ok=True)
        path = results / f"{name}-{result['hardware']}.json"
        path.write_text(json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    _show(result)
    print(json.dumps(result, ensure_ascii=False, allow_nan=False), flush=True)
    return result


def best_ratio(ours: float, peers: Mapping[str, float | None], better: str = "higher") -> float | None:
    """ponder against the best of the peers that were measured; None where none was."""
    measured = [p for p in peers.values() if p is not None]
    if not measured:
        return None
    return ours / max(measured) if better == "higher" else min(measured) / ours


def format_number(value: float | None) -> str:
    """For people: three significant digits, thousands set apart; a dash where nothing was measured."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _show(result: Mapping[str, Any]) -> None:
    rows = {"ponder": result["ours"], **result["peers"]}
    width = max(map(len, rows))
    print(f"{result['name']}: {result['work']} ({result['hardware']}, {result['better']} is better)")
    for who, value in rows.items():
        measured = (
            f"{format_number(value):>12} {result['unit']}" if value is not None else f"{'–':>12} not measured here"
        )
        print(f"  {who:<{width}} {measured}".rstrip())
    if result["ratio"] is not None:
        promised = "" if result["promised"] is None else f" (promised: {result['promised']:g})"
        print(f"  {'ratio':<{width}} {result['ratio']:>12.2f}{promised}")


def _processor() -> str:
    if platform.system() == "Darwin":
        result = _output("sysctl", "-n", "machdep.cpu.brand_string")
    else:
        result = "".join(re.findall(r"^Model name:\s*(.+)$", _output("lscpu"), re.MULTILINE)[:1])
    return result or platform.processor() or platform.machine() or "unknown"


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
