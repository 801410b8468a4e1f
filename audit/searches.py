"""Known answers about searches on a real small model (SmolLM2-135M-Instruct): trees have the steps that the model
writes, and ranks, votes, choices and visits are recounted here from what stands on the trace, without ponder's own
operators.

A process reward head is trained on the model first, for a few steps: it need not be good, only real.
"""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from audit.check_result import CheckResult
from ponder.measure.statistics.evaluation_report import evaluation_report
from ponder.models.guides import load_guide
from ponder.models.load import load_inference_policy
from ponder.models.load_scorer import load_scorer
from ponder.models.reward_models import PRM
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.solve import solve
from ponder.reason.answer_extraction import extract_answer
from ponder.reason.operators.auto_cut import chosen_cut
from ponder.reason.operators.cut import parse_cut
from ponder.reason.replay_policy import ReplayPolicy, ReplayScorer
from ponder.reason.scorers import Likelihood
from ponder.reason.strategies import (
    DVTS,
    MCTS,
    BeamSearch,
    BestOfN,
    LookaheadBeamSearch,
    MajorityVote,
    ParticleFilter,
    Rebase,
)
from ponder.train.optimizer import AdamW
from ponder.train.reward_objectives import ProcessReward as ProcessReward
from ponder.types import Problem, Sampling, Trace, user_messages

QUESTION = (
    "A pen costs 3 dollars. How much do 4 pens and a book for 5 dollars cost? Write each calculation on a new line."
)
SAMPLING = Sampling(temperature=0.8, max_tokens=64, seed=1)
REDUCTIONS: dict[Any, Callable[[Sequence[float]], float]] = {
    "min": lambda p: sorted(p)[0],
    "product": lambda p: math.exp(sum(math.log(x) for x in p)),
    "last": lambda p: p[len(p) - 1],
    "mean": lambda p: float(np.mean(p)),
}
SEARCHES: list[tuple[str, Any]] = [
    ("last", BeamSearch(4, 2, sampling=SAMPLING)),  # its default
    ("product", DVTS(4, 2, sampling=SAMPLING, reduce="product")),
    ("mean", Rebase(4, sampling=SAMPLING, reduce="mean")),
    ("min", LookaheadBeamSearch(2, 1, lookahead_steps=1, sampling=SAMPLING, reduce="min")),
    ("product", ParticleFilter(3, sampling=SAMPLING, reduce="product")),
    ("min", BestOfN(3, cut=parse_cut("line"), sampling=SAMPLING)),  # its default
]


def check() -> Iterator[CheckResult]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _train_prm(Path(folder))
        policy = load_inference_policy("smollm2")
        policy.reseed(0)
        guide = load_guide(f"reward:{folder}/judge", policy)
        apart = load_scorer(f"{folder}/judge")
        assert isinstance(apart, PRM)
        for how, strategy in SEARCHES:
            trace = _solve(strategy, policy, guide)
            yield from _check_depth(strategy, trace)
            yield _check_ranks(strategy, trace, how)
            yield _check_step_scores(strategy, trace, apart)
            yield _check_choice(strategy, trace)
            if isinstance(strategy, BeamSearch) and not isinstance(strategy, LookaheadBeamSearch):
                yield _check_beam(strategy, trace)
            if isinstance(strategy, BestOfN):
                yield from _check_reductions(strategy, trace)
        yield from _check_votes(policy)
        yield from _check_mcts(policy, guide)
        yield from _check_uncut_search(policy)


def _train_prm(folder: Path) -> None:
    """A head over the model's states, from sums with right and wrong steps."""
    rows = []
    for a in range(2, 14):
        steps = [f"{a} + 3 = {a + 3 + (a % 3 == 0)}", f"The answer is {a + 3 + (a % 2)}"]
        labels = [a % 3 != 0, a % 2 == 0]
        rows.append({"prompt": f"What is {a} + 3?", "completions": steps, "labels": labels})
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = TrainRewardModel(
        (str(folder / "steps.jsonl"),), "smollm2", ProcessReward(), head_only=True, steps=4, batch_size=6, save_every=4,
        optimizer=AdamW(lr=1e-2),
    )  # fmt: skip
    job(folder / "judge")


def _solve(strategy: Any, policy: Any, guide: Any) -> Trace:
    return asyncio.run(solve(Problem("audit", user_messages(QUESTION)), strategy, policy, guide=guide))


def _finished(trace: Trace) -> list[int]:
    """Answers that a search found and ranked: leaves that were not pruned."""
    parents = {s.parent for s in trace.steps}
    return [
        i for i, s in enumerate(trace.steps)
        if i not in parents and not s.pruned and not s.meta and s.sampled and (s.last or s.stop in ("eos", "length"))
    ]  # fmt: skip


def _path(trace: Trace, step: int) -> list[int]:
    """The policy's own steps on the way."""
    out = []
    at: int | None = step
    while at is not None and (parent := trace.steps[at].parent) is not None:
        out.append(at)
        at = parent
    return out[::-1]


def _check_depth(strategy: Any, trace: Trace) -> Iterator[CheckResult]:
    name, depths = type(strategy).__name__, [len(_path(trace, i)) for i in _finished(trace)]
    output = f"cut by {chosen_cut(trace) or 'line, which was given'}; steps on the ways to its answers: {depths}"
    yield CheckResult(f"{name} has steps where the model writes lines", max(depths, default=0) > 1, output)
    written = sum(len(s.token_ids) for s in trace.steps if s.sampled)
    output = f"{written} tokens on the trace, {trace.cost.generated_tokens} on the bill"
    yield CheckResult(f"{name} pays for all it writes", written == trace.cost.generated_tokens, output)


def _check_ranks(strategy: Any, trace: Trace, how: str) -> CheckResult:
    gaps = [abs(trace.steps[i].value - REDUCTIONS[how](trace.steps[i].scores["prm"].steps)) for i in _finished(trace)]
    sizes = [len(trace.steps[i].scores["prm"].steps) == len(_path(trace, i)) for i in _finished(trace)]
    right = bool(gaps) and max(gaps) < 1e-9 and all(sizes)
    output = f"{len(gaps)} ranks, at most {max(gaps, default=math.nan):.1e} from the {how} of their steps' raw scores"
    return CheckResult(f"{type(strategy).__name__} ranks by the {how}, reduced once", right, output)


def _check_step_scores(strategy: Any, trace: Trace, apart: PRM) -> CheckResult:
    """The raw scores, by the head in an engine of its own, from the tokens alone."""

    async def found() -> list[float]:
        gaps = []
        for i in _finished(trace):
            sizes = np.cumsum(
                [len(trace.steps[0].token_ids), *(len(trace.steps[j].token_ids) for j in _path(trace, i))]
            )
            tokens = np.concatenate([trace.steps[0].token_ids, *(trace.steps[j].token_ids for j in _path(trace, i))])
            probabilities, _ = await apart.reader(tokens, [int(end) - 1 for end in sizes[1:]])
            stored = trace.steps[i].scores["prm"].steps
            gaps += [abs(a - b) for a, b in zip(stored, probabilities, strict=True)]
        return gaps

    gaps = asyncio.run(found())
    output = f"{len(gaps)} probabilities, at most {max(gaps, default=math.nan):.1e} apart"
    return CheckResult(
        f"{type(strategy).__name__}: step scores are the head's at each step's last token",
        bool(gaps) and max(gaps) < 1e-3, output,
    )  # fmt: skip


def _check_choice(strategy: Any, trace: Trace) -> CheckResult:
    """Weighted votes, or the best rank; a particle that was drawn several times has as many votes."""
    ends = _finished(trace)
    name = f"{type(strategy).__name__} gives the answer of its {strategy.choose} vote"
    if strategy.choose == "best":
        best = max(ends, key=lambda i: (trace.steps[i].value, -i), default=None)
        return CheckResult(name, trace.chosen == best, f"step {trace.chosen}, the highest of {len(ends)} ranks")
    sums: dict[str, float] = defaultdict(float)
    for i in ends:
        if (text := extract_answer(trace.text(i))) is not None:
            sums[text] += trace.steps[i].value * trace.steps[i].visits
    given = None if trace.chosen is None else extract_answer(trace.text(trace.chosen))
    if not sums:
        return CheckResult(name, None, f"none of {len(ends)} texts states an answer")
    return CheckResult(name, given == max(sums, key=lambda a: sums[a]), f"{given!r} of {len(sums)} answers")


def _check_beam(strategy: BeamSearch, trace: Trace) -> CheckResult:
    """Of each level the n/m highest live ranks go on; a level's rivals are all steps at that depth."""
    levels: dict[int, list[int]] = defaultdict(list)
    for i, step in enumerate(trace.steps):
        if step.sampled and not step.meta and step.stop == "stop" and not step.last:
            levels[len(_path(trace, i))].append(i)
    wrong = 0
    for rivals in levels.values():
        kept = [trace.steps[i].value for i in rivals if trace.steps[i].visits]
        left = [trace.steps[i].value for i in rivals if not trace.steps[i].visits]
        wrong += len(kept) > strategy.n // strategy.beam_width or (bool(kept) and bool(left) and max(left) > min(kept))
    return CheckResult("Beam keeps the n/m best of each level", wrong == 0, f"{len(levels)} levels, {wrong} wrong")


def _check_reductions(strategy: BestOfN, stored: Trace) -> Iterator[CheckResult]:
    """The same samples, replayed and ranked by each reduction."""
    for how, count in REDUCTIONS.items():
        again = asyncio.run(
            solve(
                stored.problem,
                replace(strategy, reduce=how),
                ReplayPolicy([stored]),
                guide=ReplayScorer([stored], "prm"),
            )
        )
        ends = _finished(again)
        best = max(ends, key=lambda i: (count(again.steps[i].scores["prm"].steps), -i), default=None)
        output = f"step {again.chosen}, recounted {best}, of {len(ends)}"
        yield CheckResult(f"best of n by the {how}, replayed", again.chosen == best, output)


def _check_votes(policy: Any) -> Iterator[CheckResult]:
    trace = _solve(MajorityVote(5, weight="score", sampling=SAMPLING), policy, Likelihood())
    ends = _finished(trace)
    weight = {i: math.exp(float(np.mean(np.asarray(trace.steps[i].logprobs), dtype=np.float64))) for i in ends}
    gaps = [abs(weight[i] - (trace.score(i, "likelihood") or 0.0)) for i in ends]
    yield CheckResult(
        "a likelihood is exp of the mean log-probability", max(gaps) < 1e-6, f"at most {max(gaps):.1e} apart"
    )
    text = {i: extract_answer(trace.text(i)) for i in ends}
    yield _check_winner("a weighted vote", trace, text, weight)
    plain = asyncio.run(solve(trace.problem, MajorityVote(5), ReplayPolicy([trace])))
    yield _check_winner(
        "a majority of the same chains", plain, {i: extract_answer(plain.text(i)) for i in _finished(plain)}, None
    )
    top = asyncio.run(
        solve(trace.problem, BestOfN(5), ReplayPolicy([trace]), guide=ReplayScorer([trace], "likelihood"))
    )
    best = max(_finished(top), key=lambda i: (top.score(i, "likelihood") or 0.0, -i))
    yield CheckResult("best of n is the highest score", top.chosen == best, f"step {top.chosen}, recounted {best}")


def _check_winner(name: str, trace: Trace, text: dict[int, str | None], weight: dict[int, float] | None) -> CheckResult:
    sums: dict[str, float] = defaultdict(float)
    for i, answer in text.items():
        if answer is not None:
            sums[answer] += 1.0 if weight is None else weight[i]
    given = None if trace.chosen is None else text[trace.chosen]
    first = max(sums, key=lambda a: sums[a], default=None)  # of equals the one seen first
    return CheckResult(
        f"{name} gives what most say", given == first, f"{given!r}; {len(sums)} answers of {len(text)} chains"
    )


def _check_mcts(policy: Any, guide: Any) -> Iterator[CheckResult]:
    strategy = MCTS(simulations=8, width=2, sampling=SAMPLING, complete_answer=False)
    trace = _solve(strategy, policy, guide)
    below: dict[int, list[int]] = defaultdict(list)
    for i, step in enumerate(trace.steps):
        if step.parent is not None and not step.last and not step.meta:
            below[step.parent].append(i)
    depth = max(len(_path(trace, i)) for i, s in enumerate(trace.steps) if s.visits)
    yield CheckResult("MCTS goes deeper than one step", depth > 1, f"{depth} steps, cut by {chosen_cut(trace)}")
    yield CheckResult(
        "MCTS: the root's visits are the simulations", trace.steps[0].visits == 8, f"{trace.steps[0].visits}"
    )
    inner = [i for i, s in enumerate(trace.steps) if s.visits and below[i]]
    own = {i: trace.steps[i].visits - sum(trace.steps[k].visits for k in below[i]) for i in inner}
    right = all(count == (1 if i else 0) for i, count in own.items())
    yield CheckResult("MCTS: visits are the children's and one more", right, f"{len(inner)} steps with children")
    gaps = []
    for i in inner:
        sums = sum(trace.steps[k].visits * trace.steps[k].value for k in below[i])
        if i:
            sums += REDUCTIONS["min"](trace.steps[i].scores["prm"].steps)  # its own visit, by the judge's reduction
        gaps.append(abs(trace.steps[i].value - sums / trace.steps[i].visits))
    yield CheckResult("MCTS: values are means of what was found", max(gaps) < 1e-9, f"at most {max(gaps):.1e} apart")


def _check_uncut_search(policy: Any) -> Iterator[CheckResult]:
    """A mark that the model never writes."""
    strategy = BeamSearch(2, 1, cut=parse_cut("mark:@@@"), sampling=replace(SAMPLING, max_tokens=16))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        trace = _solve(strategy, policy, Likelihood())
    output = [str(w.message) for w in heard]
    yield CheckResult("a search that cuts no step says so", any("cut no step" in t for t in output), "; ".join(output))
    lines: Sequence[str] = evaluation_report([trace], "likelihood", None, strategy=strategy).lines()
    yield CheckResult("and so does its report", any("no step was cut" in line for line in lines), " | ".join(lines))
