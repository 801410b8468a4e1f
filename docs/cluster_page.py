"""The table of measured figures in docs/how-to/several-gpus.md, from docs/results/cluster.json.

    python docs/cluster_page.py --keep kills=kills.json faults=faults.json   # takes results over into the kept file
    python docs/cluster_page.py --write                                      # writes the page's table again

The results are those of bench/faults.py, demo_ranks.py, vllm_replica.py, tensor_parallel.py, step_memory.py and
sampling_ahead.py; `step_memory_update` has the peak of bench/trainer_rate.py, and what `ponder plan` says of its shape.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KEPT, PAGE = HERE / "results" / "cluster.json", HERE / "how-to" / "several-gpus.md"
BEGIN, END = "<!-- measured: docs/cluster_page.py --write -->\n", "<!-- end of what was measured -->\n"
GIB = 1 << 30
LINES = (
    "accuracy",
    "accuracy_replicas",
    "sampling_ahead",
    "step_memory_full",
    "step_memory_lora",
)  # whose result is the last line of a log


def kills_row(r: dict[str, Any]) -> tuple[str, str]:
    lost = sum(c["open"] + c["doubled"] for c in r["ledgers"].values())
    ways = defaultdict[str, list[str]](list)
    for kind, n in sorted(r["by_kind"].items()):
        process, _, way = kind.partition(", ")
        ways[process].append(f"{n} {way}")
    by_kind = "; ".join(f"{process}s: {', '.join(counts)}" for process, counts in ways.items())
    asked = sum(c["asked"] for c in r["ledgers"].values())
    result = (
        f"{lost} of {asked:,} requests lost or doubled, {r['steps']:,} steps in order, oldest token"
        f" {r['oldest_token']:g}"
    )
    runs = len(r.get("runs", [r]))
    if "longest_until_noticed_seconds" in r:
        result += f"; the longest was noticed after {r['longest_until_noticed_seconds']:.1f} s"
    live = "a live run" if runs == 1 else f"{runs} live runs"
    if r.get("weight_transport") == "broadcast":
        live += ", new weights by broadcast,"
        result += f"; {r['failed_broadcasts']} broadcasts failed, whose versions went by a file"
    return f"{r['kills']} processes ended in {live} at staleness 4 ({by_kind})", result


def faults_row(r: dict[str, Any]) -> tuple[str, str]:
    result = f"{r['named']} named errors, {r['hung']} hung, the longest after {r['longest_seconds']:.1f} s"
    return f"{r['faults']} injected faults of {len(r['by_kind'])} kinds, deadlines of 1 to 2 s", result


def ages_row(r: dict[str, Any]) -> tuple[str, str]:
    oldest = ", ".join(f"{v['oldest']} at S = {s}" for s, v in r["by_staleness"].items())
    runs = sum(v["resumed"] for v in r["by_staleness"].values())
    return f"{r['samples']:,} samples, speeds at random, {runs} runs in a row", f"oldest token {oldest}"


def memory_row(r: dict[str, Any]) -> tuple[str, str]:
    way = {
        "full": "all weights, 8-bit states; gradients of a micro-batch were held together",
        "lora": "LoRA of rank 16",
        "update": "all weights, 8-bit states, without gradient checkpointing; gradients are summed as they come",
    }[r["way"]]
    predicted, peak = r["predicted_bytes"] / GIB, r["peak_bytes"] / GIB
    says = "says" if r["way"] == "update" else "said then"
    result = f"{peak:.1f} GiB at most; `ponder plan` {says} {predicted:.1f}, {100 * (predicted / peak - 1):+.1f} %"
    what = "GRPO's update" if r["way"] == "update" else "a GRPO step"
    return f"{what} of a {r['parameters'] / 1e9:.1f}B shape, {way}", result


def vllm_row(r: dict[str, Any]) -> tuple[str, str]:
    v = r["vllm"]
    if "error" in v:
        return "vLLM as a replica", f"failed: {v['error'][:120]}"
    new, old = v["gap_after_publish"]["mean"], v["gap_of_old_samples_to_new_weights"]["mean"]
    result = (
        f"log-probabilities {new:.4f} nats from the learner's after four versions (older samples: {old:.4f}); a version"
        f" in {1000 * v['publish_median_seconds']:.0f} ms"
    )
    if (cut := v.get("interrupted")) is not None:
        result += f"; {cut['of_two_versions']} of {cut['answers']} long answers of two versions"
        if "gap_of_new_tokens_to_new_weights" in cut:
            names = ("old_tokens_to_old_weights", "new_tokens_to_new_weights", "new_tokens_to_old_weights")
            ours, theirs, wrong = (cut[f"gap_of_{name}"]["mean"] for name in names)
            result += (
                f", their tokens {ours:.4f} nats from the old weights before the interruption and {theirs:.4f} from the"
                f" new ones after it (from the old ones: {wrong:.4f})"
            )
    lost = "the kill was not run to its end"
    if "ledger" in v:
        lost = f"{v['ledger']['open'] + v['ledger']['doubled']} requests lost or doubled by a kill"
    if (back := v.get("after_restart")) is not None:
        lost += (
            f", {back['answered_by_restarted']} of {back['requests']} answered by the restarted replica afterwards,"
            f" {back['gap']['mean']:.4f} nats from the learner's"
        )
    result += f"; {lost}"
    count = r["settings"].get("replicas", 1)
    what = "a replica" if count == 1 else f"{count} replicas"
    return f"vLLM {r['versions']['vllm']} as {what} of {r['settings']['model']}", result


def vllm_jobs_row(r: dict[str, Any]) -> tuple[str, str]:
    parts = []
    for name, job in r["vllm"].items():
        if "error" in job:
            parts.append(f"{name}: failed, {job['error'][:120]}")
            continue
        right = "{:.1f} [{:.1f}, {:.1f}] % right".format(*(100 * x for x in job["accuracy"]))
        counts = job["ledger"]
        lost = "" if counts is None else f", {counts['open'] + counts['doubled']} requests lost or doubled"
        parts.append(f"{name.replace('_', ' ')}: {job['traces']} problems, {job['answers']} answers, {right}{lost}")
    s = r["settings"]
    return f"`ponder eval` and `collect` of {s['model']} through {s['replicas']} replicas of vLLM", "; ".join(parts)


def split_row(r: dict[str, Any]) -> tuple[str, str]:
    s, parts = r["settings"], []
    for row in r["rows"]:
        gap = row["gap"]
        part = (
            f"{row['shape']} in {row['dtype']}: log-probabilities {gap['mean']:.1e} nats apart in the mean and"
            f" {gap['largest']:.1e} at most"
        )
        if (own := row.get("own_gap")) is not None:
            part += f" (one process, decoding and reading: {own['mean']:.1e} and {own['largest']:.1e})"
            part += f", {gap['same_answers']} of {gap['answers']} answers the same"
        else:
            part += f" ({gap['answers']} of them, read in float32 by one process, {row['read_on']})"
        if (rounding := row.get("rounding")) is not None:
            part += f"; one process there in {row['dtype']}: {rounding['mean']:.1e} and {rounding['largest']:.1e}"
        if (after := row.get("gap_after_publish")) is not None:
            part += f"; after new weights {after['mean']:.1e} and {after['largest']:.1e}"
        rates = [("split", "speed"), ("one process", "one_process"), ("without graphs", "one_process_without_graphs")]
        shown = [f"{name} {row[key]['tokens_per_second']:,.0f}" for name, key in rates if key in row]
        other = f" ({row['commit'][:12]})" if row.get("commit", r["commit"]) != r["commit"] else ""
        parts.append(f"{part}; tokens/s: {', '.join(shown)}{other}")
    answers = s["prompts"] * s["n"]
    what = (
        f"a replica split over {s['shards']} processes on one GPU, by gloo, against one process: random weights,"
        f" {answers} answers of {s['tokens']} tokens"
    )
    return what, ". ".join(parts)


def ahead_row(r: dict[str, Any]) -> tuple[str, str]:
    s = r["by_staleness"]
    result = f"{s['1']['step_seconds']:.2f} s a step, in turn in one process {s['0']['step_seconds']:.2f} s"
    return "the demo, learner and sampler as two processes on one GPU, S = 1", result


def processes_row(r: dict[str, Any]) -> tuple[str, str]:
    s = r["settings"]
    what = (
        f"a GRPO step of {s['model']}, {s['problems']} problems, {s['group_size']} answers of at most"
        f" {s['max_tokens']} tokens, all on one GPU"
    )
    return what, "; ".join(f"{name}: {1000 * way['step_seconds']:.0f} ms" for name, way in r["ways"].items())


def mps_row(r: dict[str, Any]) -> tuple[str, str]:
    what, result = processes_row(r)
    return f"{what}, under MPS", result


def accuracy_row(r: dict[str, Any]) -> tuple[str, str]:
    gaps = ", ".join(
        f"{100 * g['difference']:+.1f} [{100 * g['low']:+.1f}, {100 * g['high']:+.1f}] points at S = {s}"
        for s, g in r["against_in_turn"].items()
    )
    by = f"{r['replicas']} replicas" if r["replicas"] else "a copy of the weights in the learner's process"
    mean = 100 * sum(r["reward"]["0"]) / len(r["reward"]["0"])
    what = f"mean reward at the end of {r['steps']} steps of a tiny model from scratch, {r['seeds']} seeds, {by}"
    return what, f"{mean:.1f} % at S = 0; {gaps}"


def demo_lines(rows: list[dict[str, Any]]) -> list[str]:
    head = ["ranks", "replicas", "staleness", "seeds", "right answers, by seed", "against one process", "by seeds"]
    head += ["oldest token", "mean age", "effective samples", "of"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        accuracy = ", ".join(f"{100 * a:.1f}" for a in row["accuracy"])
        gap = row["difference"]
        shown = "–" if gap is None else "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * x for x in gap))
        seeds = row["difference_over_seeds"]
        spread = "–" if seeds is None else "[{:+.1f}, {:+.1f}]".format(*(100 * x for x in seeds))
        numbers = ", ".join(map(str, row["seeds"]))
        cells = [row["ranks"], row["replicas"], row["staleness"], numbers, f"{accuracy} %", shown, spread]
        cells += [f"{row['oldest']:g}", mean_of(row.get("mean_age"), 1), mean_of(row.get("ess"), 3)]
        cells += [", ".join(commit[:12] for commit in row["commit"].split(", "))]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def demo_text(demo: dict[str, Any], what: str = "GRPO of `ponder run countdown`") -> str:
    rows, seeds = demo["rows"], max(len(row["seeds"]) for row in demo["rows"])
    text = (
        f"\n{what} ({demo['steps']} steps, {seeds} seeds, {demo['problems']} held-out"
        f" problems of 8 samples each; {demo['hardware']}), in percentage\npoints, with"
        " bootstrap intervals over the problems of all seeds, and Student's over seeds"
    )
    before: list[float] = next((row["before"] for row in rows if None not in row["before"]), [])
    text += f"; {', '.join(f'{100 * a:.1f}' for a in before)} % before it:\n\n" if before else ":\n\n"
    return text + "\n".join(demo_lines(rows)) + "\n"


def mean_of(values: list[float] | None, digits: int) -> str:
    return "–" if not values else f"{sum(values) / len(values):.{digits}f}"


TRIALS = {
    "s0": "in turn", "s0again": "in turn, with other samples", "s1": "S = 1", "s4": "S = 4", "paced": "S = 4, `tis`",
    "forced1": "age 1, `tis`", "forced2": "age 2, `tis`", "forced4": "age 4, `tis`", "aged": "age 4, `icepop`",
    "icepop": "age 4, `icepop`", "decoupled": "age 4, `decoupled`", "agedtis": "age 4, `tis`",
    "agedtis5": "age 4, `tis` with a cap of 5", "agedtis20": "age 4, `tis` with a cap of 20",
    "ageddecoupled": "age 4, `decoupled`", "aged8": "age 8, `icepop`",
    "sequence": "age 4, ratios of whole sequences, capped at 2", "prefix": "age 4, ratios up to a token, capped at 2",
    "none": "age 4, no correction", "rate": "age 4, `tis`, 0.447 times the learning rate",
    "warmup": "age 4, `tis`, 10 steps of warm-up", "ratewarmup": "age 4, `tis`, 0.7 times the rate and warm-up",
    "fast": "age 4, `tis`, twice the rate", "s0rate": "in turn, 0.447 times the rate", "s0warmup": "in turn, warm-up",
}  # fmt: skip


def trial_lines(trials: dict[str, Any]) -> list[str]:
    head = ["setting", "right answers, by seed", "against in turn", "by seeds", "mean age", "effective samples"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    order = list(TRIALS)
    for row in sorted(trials["rows"], key=lambda row: order.index(row["name"])):
        accuracy = ", ".join(f"{100 * a:.1f}" for a in row["accuracy"])
        gap, seeds = row["difference"], row["difference_over_seeds"]
        shown = "–" if gap is None else "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * x for x in gap))
        spread = "–" if seeds is None else "[{:+.1f}, {:+.1f}]".format(*(100 * x for x in seeds))
        age = "0" if row["age"] is None else f"{row['age']:.1f}"
        ess = "1" if row["ess"] is None else f"{row['ess']:.2f}"
        lines.append(f"| {TRIALS[row['name']]} | {accuracy} % | {shown} | {spread} | {age} | {ess} |")
    return lines


def trials_text(trials: dict[str, Any], what: str) -> str:
    seeds = max(len(row["seeds"]) for row in trials["rows"])
    size = f"{trials['steps']} steps, {seeds} seeds, {trials['problems']} {what} of 8 samples each"
    where = f"{trials['hardware']}, {trials['commit'][:12]}"
    table = "\n".join(trial_lines(trials))
    return f"\nThe same GRPO in one process on a GPU ({size};\n{where}):\n\n{table}\n"


ROWS = {
    "kills": kills_row, "kills_broadcast": kills_row, "faults": faults_row, "ages": ages_row,
    "step_memory_full": memory_row, "step_memory_update": memory_row, "step_memory_lora": memory_row,
    "vllm_replica": vllm_row,
    "vllm_jobs": vllm_jobs_row, "tensor_parallel": split_row,
    "sampling_ahead": ahead_row, "processes": processes_row, "processes_mps": mps_row,
    "accuracy": accuracy_row, "accuracy_replicas": accuracy_row,
}  # fmt: skip


def measured_text(kept: dict[str, Any]) -> str:
    """What stands between the marks of the page."""
    lines = ["| what | result | where |", "|---|---|---|"]
    for name, row in ROWS.items():
        if name in kept:
            what, result = row(kept[name])
            lines.append(f"| {what} | {result} | {kept[name]['hardware']}, {kept[name]['commit'][:12]} |")
    text = "\n".join(lines) + "\n"
    if "demo" in kept:
        text += demo_text(kept["demo"])
    if "demo_second_machine" in kept:
        text += demo_text(kept["demo_second_machine"], "The same GRPO on another machine")
    if "demo_before" in kept:
        text += "\nBefore a prompt without a token was read again with new weights, older code (S = 1 with `tis`):\n\n"
        text += "\n".join(demo_lines(kept["demo_before"]["rows"])) + "\n"
    if "staleness" in kept:
        text += trials_text(kept["staleness"], "held-out problems")
    if "staleness_trials" in kept:
        text += trials_text(kept["staleness_trials"], "other held-out problems, on which settings were tried,")
    return text


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--keep", nargs="+", default=[], help="NAME=FILE of a result")
    flags.add_argument("--write", action="store_true")
    args = flags.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for given in args.keep:
        name, _, path = given.partition("=")
        text = Path(path).read_text().strip()
        kept[name] = json.loads(text.splitlines()[-1] if name in LINES else text)
    if args.keep:
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    if args.write:
        page = PAGE.read_text()
        before, rest = page.split(BEGIN)
        PAGE.write_text(before + BEGIN + measured_text(kept) + rest[rest.index(END) :])


if __name__ == "__main__":
    main()
