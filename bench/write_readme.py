"""Write bench/README.md from bench/results/*.json. With --check: say whether it is current, and change nothing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import HERE, RESULT_KEYS, RESULTS, format_number

INTRODUCTION = """\
# Measured against peers

One script is one comparison with a peer at the same work; `make bench` runs them all, or run one:
`.venv/bin/python bench/NAME.py --device cpu`. The ratio is how many times better ponder is than the best peer that was
measured: above 1, ponder wins. "Promised" is the ratio we hold ourselves to. "Of the limit" is ponder's share of what
the hardware's memory bandwidth and matrix rate, both measured in the same run, allow. A dash was not measured there;
[NOTES.md](NOTES.md) says what holds each figure back.

This page is written by `bench/write_readme.py` from the files in `results/`; do not edit it.
"""


def load(results: Path = RESULTS) -> list[dict[str, Any]]:
    """Every kept result, by name and then hardware."""
    outcome = []
    for path in results.glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in RESULT_KEYS if key not in result]
        if missing:
            raise SystemExit(f"{path.name} lacks {', '.join(missing)}; run its bench script again")
        outcome.append(result)
    return sorted(outcome, key=lambda r: (r["name"], r["hardware"]))


def render(results: list[dict[str, Any]]) -> str:
    if not results:
        return INTRODUCTION + "\nNothing has been measured yet.\n"
    lines = [INTRODUCTION, "| comparison | work | ponder | peers | ratio | promised | of the limit | hardware |"]
    lines.append("|---|---|---:|---|---:|---:|---:|---|")
    lines += [_row(r) for r in results]
    lines += ["", "## With which versions", ""]
    lines += [f"- {r['name']} on {r['hardware']}: {_versions(r['versions'])}; commit {r['commit']}" for r in results]
    return "\n".join(lines) + "\n"


def _row(result: Mapping[str, Any]) -> str:
    unit = f" {result['unit']}" if result.get("unit") else ""
    peers = ", ".join(f"{who} {format_number(value)}" for who, value in result["peers"].items()) or "–"
    cells = [result["name"], result["work"], format_number(result["ours"]) + unit, peers]
    cells += ["–" if r is None else f"{r:.2f}" for r in (result["ratio"], result["promised"])]
    share = limit_share(result)
    cells += ["–" if share is None else f"{100 * share:.0f} %", result["hardware"]]
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def limit_share(result: Mapping[str, Any]) -> float | None:
    """ponder's share of what the hardware allows, where the bench measured that too."""
    if result["name"].startswith("trainer_rate"):  # whose figure it is
        return float(result["ours"])
    share = result.get("details", {}).get("share_of_limit", {}).get("ponder")
    return None if share is None else float(share)


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--check", action="store_true", help="exit with 1 when bench/README.md is out of date")
    check = flags.parse_args().check
    page, text = HERE / "README.md", render(load())
    if not check:
        page.write_text(text, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        sys.exit("bench/README.md is out of date; run: python bench/write_readme.py")


if __name__ == "__main__":
    main()
