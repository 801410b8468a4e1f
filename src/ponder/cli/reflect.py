"""`ponder reflect`: how often a run's answers doubt themselves, and the first ones that take something back."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated

from ponder.cli.progress import print_json
from ponder.errors import RunError, UnknownName, UsageError
from ponder.terminal import escape_controls


def reflect(
    run: Annotated[Path, "a run directory with traces"],
    /,
    *,
    scorer: Annotated[str, "whose 1 means right; empty: the only one there is"] = "",
    show: Annotated[int, "corrections to show"] = 3,
    json: Annotated[bool, "one JSON object"] = False,
) -> int:
    """Words of doubt by training step, and the first right answers in which an earlier one is taken back."""
    from ponder.measure.diagnostics.reflection import find_corrections, find_reflections
    from ponder.pipelines.harvest import check_has_traces, choose_scorer, count_scorers
    from ponder.reason.answer_extraction import extract_answer
    from ponder.runs import read_traces

    if show < 0:
        raise UsageError(f"--show is {show}; it is a number of corrections, 0 or more")
    check_has_traces(str(run))
    name = scorer or choose_scorer((str(run),))
    if name not in (known := count_scorers((str(run),))):
        raise UnknownName("scorer of these answers", name, known)
    answers: Counter[int] = Counter()
    doubting: Counter[int] = Counter()
    words: Counter[str] = Counter()
    for step, trace in read_traces(run):
        for i in trace.answers():
            reflections = find_reflections(trace.text(i))
            answers[step] += 1
            doubting[step] += bool(reflections)
            words.update(reflections)
    if not answers:
        raise RunError(f"{run} holds no answers yet")
    first = list(islice(find_corrections(read_traces(run), name, extract_answer), show))
    shares = {step: doubting[step] / answers[step] for step in sorted(answers)}
    if json:
        summary = {"shares": shares, "words": dict(words.most_common(20)), "corrections": [asdict(c) for c in first]}
        print_json(summary)
        return 0
    early, late = _first_and_last_tenth(list(shares.values()))
    print(f"answers that doubt   {100 * early:.1f} % in the first tenth of the steps, {100 * late:.1f} % in the last")
    print(f"words                {', '.join(f'{w} ({c})' for w, c in words.most_common(8)) or 'none'}")
    if show:
        print(
            f"taken back           {f'{len(first)} shown below' if first else 'none, with a right answer in the end'}"
        )
    for one in first:
        print(f"\nstep {one.step}, {one.problem}: {one.before}, then {one.word!r}, then {one.after}\n")
        print(escape_controls(one.text.strip()))
    return 0


def _first_and_last_tenth(shares: list[float]) -> tuple[float, float]:
    tenth = max(1, len(shares) // 10)
    return sum(shares[:tenth]) / tenth, sum(shares[-tenth:]) / tenth
