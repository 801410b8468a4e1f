"""Where a search that is told no cut ends its steps: as the model's own text shows, once, and for good."""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import replace
from typing import Any

import pytest

from ponder.cli.strategy_flags import strategy_from_flags
from ponder.errors import UsageError
from ponder.measure.statistics.evaluation_report import evaluation_report
from ponder.pipelines.solve import solve
from ponder.reason.budget import Budget
from ponder.reason.operators.auto_cut import (
    AUTO_CUT,
    CUT_PROBE_PREFIX,
    AutoCut,
    chosen_cut,
    count_without_steps,
    split_into_steps,
    uses_cut,
)
from ponder.reason.operators.cut import CUTS, Cut
from ponder.reason.replay_policy import ReplayPolicy, ReplayScorer
from ponder.reason.scorers import Likelihood
from ponder.reason.strategies import (
    DVTS,
    MCTS,
    BeamSearch,
    BestOfN,
    Chain,
    Forest,
    LookaheadBeamSearch,
    ParticleFilter,
    Rebase,
    SampleTree,
    TreeOfThoughts,
)
from ponder.runs.job_json import decode, encode
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Completion, Cost, Ids, Problem, Sampling, Trace, ids, user_messages

LINES = "3 + 4 = 7\n7 x 2 = 14\nso\n#### 14"
PARAGRAPHS = "First we add.\nThat is 7.\n\nThen we double.\nThat is 14.\n\nThe answer is 14."
SENTENCES = "We add both. That is seven. Then we double it. The answer is 14."


class Writer:
    """A `Policy` of characters that always writes the same text, from wherever it stands in it."""

    def __init__(self, text: str) -> None:
        self.whole, self.calls = text, list[Sampling]()

    def encode(self, messages: Any) -> Ids:
        return self.tokens("Q:")

    def tokens(self, text: str) -> Ids:
        return ids(map(ord, text))

    def text(self, tokens: Ids) -> str:
        return "".join(map(chr, tokens))

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        import numpy as np

        await asyncio.sleep(0)
        self.calls.append(sampling)
        rest = self.whole[len(prefix) - 2 :]
        ends = [rest.find(s) + len(s) for s in sampling.stop if s in rest]
        text, kind = (rest[: min(ends)], "stop") if ends else (rest, "eos")
        if len(text) > sampling.max_tokens:
            text, kind = text[: sampling.max_tokens], "length"
        logprobs = np.full(len(text), -1.0, np.float32)
        cost = Cost(generated_tokens=len(text))
        return [Completion(text, self.tokens(text), logprobs, kind, cost=cost) for _ in range(n)]  # type: ignore[arg-type]


def think(strategy: Any, policy: Any, trace: Trace | None = None, guide: Any = Likelihood(), **more: Any) -> Trace:
    problem = Problem("p", user_messages("?"))
    return asyncio.run(solve(problem, strategy, policy, guide=guide, trace=trace, **more))


def depth(trace: Trace) -> int:
    return max(sum(trace.steps[j].sampled for j in trace.path(i)) for i in trace.answers())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (LINES, "line"), (PARAGRAPHS, "paragraph"), (SENTENCES, "sentence"), ("", "line"), ("42", "line"),
        ("work\n\n42", "paragraph"), ("a\nb\n\nc\nd", "line"), ("one\ntwo", "line"),
        ("\n\n\n\na\nb", "line"), ("It is 3.5 now. Dr. Who left. See e.g. here", "sentence"),
    ],
)  # fmt: skip
def test_auto_cut_chooses_the_coarsest_cut_with_enough_steps(text: str, name: str) -> None:
    assert AUTO_CUT.choose(text) == name


def test_split_into_steps_cuts_like_sampling() -> None:
    assert len(split_into_steps(SENTENCES, CUTS["sentence"])) == 4
    assert split_into_steps("Dr. Who. 1. See", CUTS["sentence"]) == ["Dr. Who. ", "1. See"]
    assert split_into_steps(LINES, CUTS["paragraph"]) == [LINES] and len(split_into_steps(LINES, CUTS["line"])) == 4
    with pytest.raises(UsageError, match="min_steps of 2 or more"):
        AutoCut(min_steps=1)


SEARCHES = [
    BeamSearch(2, 1),
    DVTS(2, 1),
    Rebase(2),
    LookaheadBeamSearch(2, 1, lookahead_steps=1),
    ParticleFilter(2),
    MCTS(simulations=6, width=1),
    SampleTree((2, 2)),
    TreeOfThoughts(generation="sample", thoughts_per_step=2, beam_width=2),
    BestOfN(2, cut=AUTO_CUT),
    Forest(BeamSearch(2, 1), 2),
]
NAMES = [type(s).__name__ for s in SEARCHES]


@pytest.mark.parametrize("strategy", SEARCHES, ids=NAMES)
@pytest.mark.parametrize(("text", "name"), [(LINES, "line"), (PARAGRAPHS, "paragraph"), (SENTENCES, "sentence")])
def test_every_search_steps_at_the_chosen_cut(strategy: Any, text: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = think(strategy, Writer(text))
    assert depth(trace) > 1 and chosen_cut(trace) == name and uses_cut(strategy) and count_without_steps([trace]) == 0
    shown = [s for s in trace.steps if s.pruned.startswith(CUT_PROBE_PREFIX)]
    assert [s.text for s in shown] == [text] and shown[0].meta, "one look, which is no answer"
    assert trace.cost.generated_tokens == sum(len(s.token_ids) for s in trace.steps if s.sampled), "and it is paid for"
    assert decode(encode(strategy)) == strategy


@pytest.mark.parametrize("strategy", SEARCHES, ids=NAMES)
def test_resumed_search_keeps_its_cut(strategy: Any) -> None:
    """Its budget ends after the first level; the look is not repeated."""
    trace = think(strategy, Writer(LINES), budget=Budget(tokens=len(LINES) + 20))
    assert trace.budget_exhausted
    trace = trace_from_json(trace_to_json(trace))
    policy = Writer(LINES)
    think(strategy, policy, trace)
    assert chosen_cut(trace) == "line" and sum(s.pruned.startswith(CUT_PROBE_PREFIX) for s in trace.steps) == 1
    assert all("\n" in how.stop for how in policy.calls if how.stop) and depth(trace) > 1


@pytest.mark.parametrize("strategy", [s for s in SEARCHES if not isinstance(s, Forest)], ids=NAMES[:-1])
def test_explicit_cut_overrides_auto_cut(strategy: Any) -> None:
    policy = Writer(PARAGRAPHS)
    trace = think(replace(strategy, cut=Cut(tokens=8)), policy)
    assert chosen_cut(trace) is None and policy.calls[0].max_tokens == 8
    assert not any(s.pruned.startswith(CUT_PROBE_PREFIX) for s in trace.steps)


@pytest.mark.parametrize("strategy", [BeamSearch(2, 1), MCTS(simulations=4, width=1)], ids=["beam", "mcts"])
def test_auto_cut_probe_may_exhaust_the_budget(strategy: Any) -> None:
    trace = think(strategy, Writer(LINES), budget=Budget(tokens=4))
    assert trace.budget_exhausted and not trace.failed and trace.chosen is None and trace.cost.generated_tokens == 4


def test_cut_that_never_fires_is_warned_about_and_reported() -> None:
    with pytest.warns(UserWarning, match="cut no step"):
        flat = think(BeamSearch(2, 1, cut=CUTS["paragraph"]), Writer(LINES))
    assert depth(flat) == 1 and count_without_steps([flat]) == 1
    deep = think(BeamSearch(2, 1), Writer(LINES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = think(Chain(), Writer(LINES), guide=None)
    output = evaluation_report([flat, deep, flat], "likelihood", None, strategy=BeamSearch(2, 1))
    assert output.num_uncut == 2 and any("2 problems: no step was cut" in line for line in output.lines())
    none = evaluation_report([flat], "likelihood", None, strategy=Chain())
    assert depth(plain) == 1 and none.num_uncut == 0 and not any("no step" in line for line in none.lines())
    assert not uses_cut(TreeOfThoughts()) and not uses_cut(BestOfN(2)) and not uses_cut(None)


def test_a_stored_search_replays_with_its_cut() -> None:
    stored = trace_from_json(trace_to_json(think(BeamSearch(2, 1), Writer(LINES))))
    again = think(BeamSearch(2, 1), ReplayPolicy([stored]), guide=ReplayScorer([stored], "likelihood"))
    assert trace_to_json(again)["steps"] == trace_to_json(stored)["steps"] and again.chosen == stored.chosen
    other = think(
        BeamSearch(2, 1, cut=CUTS["line"]), ReplayPolicy([stored]), guide=ReplayScorer([stored], "likelihood")
    )
    assert depth(other) == depth(stored), "what was only looked at is no sample"


def test_auto_cut_has_a_name_on_the_command_line() -> None:
    strategy, _, _ = strategy_from_flags("beam-search", settings={"cut": "auto", "reduce": "product"})
    assert strategy == replace(BeamSearch(), reduce="product", sampling=strategy.sampling)  # type: ignore[attr-defined]
