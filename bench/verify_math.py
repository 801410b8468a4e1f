"""The maths verifier beside plain math-verify in the same process: what each accepts, refuses and loses, how fast.

Exploits: the list in PONDER_DATA/../attacks and our own. Honest: MATH-500's golds rewritten, its own solutions,
GSM8K's, and our own list. Hostile: answers that hang a symbolic library, an honest one judged beside each. Labelled:
the logs of 100 problems x 8 samples. Times: plain numbers, typical comparisons (MATH-500's golds against rewrites and
against their neighbours; also with each of them sent to the jail), and comparisons that only the jail can make.
Without PONDER_DATA only what is written here is judged.
"""

from __future__ import annotations

import itertools
import json
import logging
import multiprocessing
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import make_parser, report
from maths_cases import EXPLOITS, HOSTILE, RIGHT, TEXT_FORMS
from ponder.verify import MathAnswer
from ponder.verify.maths import jail_client

Judge = Callable[[str, str], float | None]
PONDER_VERIFIER = MathAnswer()
RESTATED = ("sqrt sign", "sum of choices", "unevaluated")  # right in value; only `worked=False` takes them
SUM = r"\sum_{k=1}^{n} k^2"  # outside our grammar: what is compared with it goes to the jail


def grade_with_ponder(text: str, gold: str) -> float | None:
    return PONDER_VERIFIER.grade(text, gold).value


def grade_with_math_verify(text: str, gold: str) -> float | None:
    from math_verify import parse, verify

    return float(verify(parse(gold if "$" in gold else f"${gold}$", parsing_timeout=5), parse(text, parsing_timeout=5)))


def boxed(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


def folder(*parts: str) -> Path | None:
    root = os.environ.get("PONDER_DATA")
    path = Path(root, *parts) if root else None
    return path if path and path.exists() else None


def rows(*parts: str) -> list[dict[str, Any]]:
    path = folder(*parts)
    if path is None:
        return []
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def rewrite_answer(gold: str) -> list[str]:
    """The same answer as another hand would write it."""
    ways = {
        gold.replace(r"\frac", r"\dfrac"), re.sub(r"(?<![A-Za-z]) ", "", gold),
        gold.replace(r"\left", "").replace(r"\right", ""),
        f"{gold} ", f"${gold}$", gold.replace(", ", ",").replace(",", ", "), gold.replace(r"\sqrt{5}", r"\sqrt5"),
        gold.replace("pmatrix", "bmatrix"), gold.replace(r"\pi", " \\pi "), gold.replace(r"\text", r"\textbf"),
    }  # fmt: skip
    return sorted(way for way in ways if "\\ " not in way)


def exploits() -> list[tuple[str, str]]:
    listed = [(r["gold"], r["output"]) for r in rows("..", "attacks", "math_exploits.json") if r["correct"] is False]
    return [*listed, *((gold, boxed(answer)) for gold, answer in EXPLOITS), *(("42", text) for text in TEXT_FORMS)]


def honest() -> list[tuple[str, str]]:
    shared = [r for r in rows("..", "attacks", "math_exploits.json") if r["name"] not in RESTATED]
    listed = [(r["gold"], r["output"]) for r in shared if r["correct"] is True]
    listed += [(gold, boxed(answer)) for gold, answer in RIGHT]
    listed += [(r["answer"], boxed(way)) for r in rows("math500", "test.jsonl") for way in rewrite_answer(r["answer"])]
    grade = [r["answer"] for r in rows("gsm8k", "test.jsonl")]
    return [*listed, *((answer.rpartition("####")[2].strip(), answer) for answer in grade)]


def count_accepted(judge: Judge, pairs: Iterable[tuple[str, str]]) -> tuple[int, int, list[tuple[str, str]]]:
    """How many were accepted, how many undecided, and which were not accepted."""
    values = [(judge(text, gold), gold, text) for gold, text in pairs]
    not_right = [(gold, text[-60:]) for value, gold, text in values if value != 1.0]
    return len(values) - len(not_right), sum(value is None for value, _, _ in values), not_right


def count_labels(judge: Judge) -> Counter[str]:
    item: Counter[str] = Counter()
    for row in rows("logs", "qwen_math_rm", "math_cot_100.jsonl"):
        for text, label in zip(row["code"], row["score"], strict=True):
            value = judge(text, row["gt"])
            item["undecided" if value is None else "agree" if (value == 1.0) == label else f"label {label}"] += 1
    return item


def hostile(total: int) -> tuple[int, float, int]:
    """Judged from six threads, an honest one after each: how many, the longest, and honest verdicts lost."""
    wraps = ["%s", r"\boxed{%s}", "<answer>%s</answer>", "Answer: %s", r"\boxed{(%s, 1)}", r"\boxed{\{%s\}}"]
    named = [r["output"].strip("$") for r in rows("..", "attacks", "math_hostile.json")]
    texts = [(wrap.replace("%s", a), "5") for a, wrap in itertools.product([*named, *HOSTILE], wraps)]
    jailed = [(boxed(SUM.replace("k^2", f"({a})")), SUM) for a in [*named, *HOSTILE] if len(a) < 400]
    every = max(1, len(texts) // max(1, total - len(jailed)))
    attacks = (jailed + texts[::every])[:total]
    good = [(boxed(r"\sum_{j=1}^{n} j^2"), SUM), (boxed(r"\frac{1}{2}"), "0.5"), (boxed("x+1"), "1+x")]
    patient = MathAnswer(timeout_seconds=30)

    def one(number: int) -> tuple[float, bool]:
        text, gold = attacks[number]
        before = time.perf_counter()
        refused = PONDER_VERIFIER.grade(text, gold).value != 1.0
        took = time.perf_counter() - before
        kept = patient.grade(*good[number % 3]).value == 1.0
        return took, kept and refused

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: patient.grade(*good[0]), range(12)))  # every worker of the jail has started
        done = list(threads.map(one, range(len(attacks))))
    return len(done), max(took for took, _ in done), sum(not kept for _, kept in done)


def _theirs_in(pipe: Any, text: str, gold: str) -> None:
    try:
        pipe.send(grade_with_math_verify(text, gold))
    except BaseException as error:
        pipe.send(repr(error)[:80])


def peer_hostile(limit: float = 5.0) -> Counter[str]:
    """The listed hostile answers, each in a process of its own: within 2 s, later, or never."""
    item: Counter[str] = Counter()
    for row in rows("..", "attacks", "math_hostile.json"):
        receive, send = multiprocessing.Pipe(False)
        process = multiprocessing.get_context("fork").Process(
            target=_theirs_in, args=(send, row["output"], row["gold"])
        )
        before = time.perf_counter()
        process.start()
        answered = receive.poll(limit)
        took = time.perf_counter() - before
        process.kill()
        process.join()
        item["killed after 5 s" if not answered else "within 2 s" if took <= 2 else "later"] += 1
    return item


def mean_ms(judge: Judge, pairs: list[tuple[str, str]]) -> float:
    for gold, text in pairs[:20]:
        judge(text, gold)
    times = []
    for gold, text in pairs:
        before = time.perf_counter()
        judge(text, gold)
        times.append(time.perf_counter() - before)
    return 1000 * statistics.fmean(times)


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--hostile", type=int, default=500, help="hostile answers")
    flags.add_argument("--pairs", type=int, default=1000, help="typical comparisons")
    flags.add_argument("--no-peer", action="store_true", help="only ponder")
    args = flags.parse_args()
    logging.disable(logging.CRITICAL)

    golds = [r["answer"] for r in rows("math500", "test.jsonl")] or [gold for gold, _ in RIGHT]
    typical = [(gold, boxed(rewrite_answer(gold)[0])) for gold in golds]
    typical += [(gold, boxed(other)) for gold, other in itertools.pairwise(golds)]
    typical = typical[: args.pairs]
    numbers = [(str(n), f"So {n - 7} + 7 is what she has. The answer is {boxed(f'{n:,}')}.") for n in range(900, 1900)]
    jail = [(SUM, boxed(SUM.replace("k", letter))) for letter in "abcdfghjlmpqrstuvwxyz"]
    judges: dict[str, Judge] = (
        {"ponder": grade_with_ponder}
        if args.no_peer
        else {"ponder": grade_with_ponder, "math-verify": grade_with_math_verify}
    )
    details: dict[str, Any] = {}
    cheats, fair = exploits(), honest()
    for who, judge in judges.items():
        passed, _, _ = count_accepted(judge, cheats)
        kept, undecided, refused = count_accepted(judge, fair)
        details[who] = {
            "exploits": len(cheats), "false_positives": passed, "honest": len(fair), "undecided": undecided,
            "false_negatives": len(fair) - kept, "labelled": dict(count_labels(judge)),
            "typical_ms": mean_ms(judge, typical), "plain_number_us": 1000 * mean_ms(judge, numbers),
            "refused": refused[:20],
        }  # fmt: skip
        print(who, json.dumps(details[who], ensure_ascii=False), flush=True)
    own = [(row["answer"], row["solution"]) for row in rows("math500", "test.jsonl")]
    lenient = MathAnswer(allow_repeats=True)
    details["own_solutions"] = {
        "total": len(own),
        "refused": len(own) - count_accepted(grade_with_ponder, own)[0],
        "refused_with_repeats": len(own) - count_accepted(lambda text, gold: lenient.grade(text, gold).value, own)[0],
    }
    details["jailed_ms"] = mean_ms(grade_with_ponder, jail)
    bare = [(gold, text.removeprefix(r"\boxed{")[:-1]) for gold, text in typical]
    details["typical_all_jailed_ms"] = mean_ms(
        lambda text, gold: jail_client.call(5.0, "compare", gold, text).value, bare
    )
    count, longest, lost = hostile(args.hostile)
    details["hostile"] = {"answers": count, "longest_s": longest, "honest_lost": lost}
    if not args.no_peer:
        details["peer_hostile"] = dict(peer_hostile())
    print(json.dumps({k: v for k, v in details.items() if k not in judges}), flush=True)
    report(
        "verify_math",
        f"{len(typical)} comparisons of MATH-500 golds with rewrites and neighbours", details["ponder"]["typical_ms"],
        {"math-verify in process": None if args.no_peer else details["math-verify"]["typical_ms"]},
        unit="ms", better="lower", packages=("math-verify", "sympy"), details=details,
    )  # fmt: skip


if __name__ == "__main__":
    main()
