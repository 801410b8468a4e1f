"""A strategy from flags, and a trace as a tree to look at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from fakes import char_policy
from ponder.cli import flags
from ponder.cli import shared_flags as opt
from ponder.cli.job_commands import evaluate
from ponder.cli.solve import answer_json, answer_lines, solve
from ponder.cli.strategy_flags import budget_from_flags, strategy_from_flags
from ponder.cli.tree_view import MAX_LINES, tree_lines
from ponder.errors import UnknownName, UsageError
from ponder.models.guides import load_guide
from ponder.pipelines.ask import decide
from ponder.reason.budget import Budget
from ponder.reason.effort import EFFORTS
from ponder.reason.operators.cut import CUTS, Cut
from ponder.reason.operators.self_evaluate import PTrue
from ponder.reason.operators.tree_policy import PUCT, UCT
from ponder.reason.presets import PRESETS
from ponder.reason.strategies import STRATEGIES, Cascade, Chain, MajorityVote
from ponder.runs import read_traces
from ponder.types import Problem, Sampling, Score, Step, Trace, ids, user_messages

Ponder = Callable[..., Any]


def test_flag_overrides_effort() -> None:
    settings = {"early_stopping": "decided", "chains_per_round": "2"}
    way, guide, budget = strategy_from_flags(
        "majority-vote", "high", n=4, max_tokens=100, temperature=0.5, settings=settings
    )
    assert (
        way
        == MajorityVote(
            4, early_stopping="decided", chains_per_round=2, sampling=Sampling(temperature=0.5, max_tokens=100)
        )
        and guide == ""
    )
    assert budget == Budget(32 * 2048)
    way, _, budget = strategy_from_flags(None, "none")
    assert (
        isinstance(way, Chain)
        and way.prompt.style == "direct"
        and way.sampling.max_tokens == 64 == (budget or Budget()).tokens
    )
    way, _, budget = strategy_from_flags("mcts", "medium")
    assert way.simulations == 8 and way.sampling.max_tokens == 1024  # type: ignore[attr-defined]
    way, _, budget = strategy_from_flags("cascade", max_tokens=9)
    assert isinstance(way, Cascade) and budget is None
    assert way.cheap.sampling.max_tokens == way.expensive.sampling.max_tokens == 9  # type: ignore[attr-defined]
    way, _, _ = strategy_from_flags("forest", max_tokens=9, temperature=0.3)
    assert way.strategy.sampling.max_tokens == 9 and way.strategy.sampling.temperature == 0.3  # type: ignore[attr-defined]
    assert strategy_from_flags("marco-o1")[1] == PRESETS["marco-o1"].guide


def test_selection_rule_is_chosen_by_name_and_set_by_dotted_flags() -> None:
    def rule(**settings: str) -> Any:
        named = {name.replace("_", ".", 1): value for name, value in settings.items()}
        return strategy_from_flags("mcts", settings=named)[0].selection  # type: ignore[attr-defined]

    assert rule(selection="uct") == UCT() and rule(selection="uct", selection_c="0.3") == UCT(0.3)
    assert rule(selection="puct", selection_c1="2") == rule(selection_c1="2") == PUCT(c1=2.0)
    assert strategy_from_flags("x1", settings={"selection": "uct", "selection.c": "2"})[0].selection == UCT(2.0)  # type: ignore[attr-defined]
    with pytest.raises(UnknownName, match=r"no selection rule named 'ucb'\. Did you mean 'uct'"):
        rule(selection="ucb")
    with pytest.raises(UsageError, match="majority-vote takes no selection rule"):
        strategy_from_flags("majority-vote", settings={"selection": "uct"})
    with pytest.raises(UnknownName, match="no strategy's selection setting named 'c'"):
        rule(selection="puct", selection_c="1")


def test_steps_end_where_the_named_cut_says() -> None:
    assert strategy_from_flags("beam-search", settings={"cut": "sentence"})[0].cut == CUTS["sentence"]  # type: ignore[attr-defined]
    assert strategy_from_flags("mcts", settings={"cut": "mark:<step>"})[0].cut == Cut(("<step>",))  # type: ignore[attr-defined]
    with pytest.raises(UnknownName, match="Did you mean 'sentence'"):
        strategy_from_flags("beam-search", settings={"cut": "sentense"})
    with pytest.raises(UsageError, match="takes no cut"):
        strategy_from_flags("majority-vote", settings={"cut": "line"})


@pytest.mark.parametrize("name", [*STRATEGIES, *PRESETS])
@pytest.mark.parametrize("effort", [None, *EFFORTS])
def test_every_strategy_takes_every_effort(name: str, effort: str | None) -> None:
    way, _, budget = strategy_from_flags(name, effort)
    assert callable(way)
    if effort:
        assert budget == EFFORTS[effort].budget


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'majority-vote'"):
        strategy_from_flags("majority-votes")
    with pytest.raises(UnknownName, match="Did you mean 'high'"):
        strategy_from_flags(None, "hgih")
    with pytest.raises(UsageError, match="takes no --n"):
        strategy_from_flags("cot", n=3)
    assert budget_from_flags(Budget(5), {}) == Budget(5) and budget_from_flags(None, {}) is None
    assert budget_from_flags(Budget(5), {"tokens": "7", "seconds": "2"}) == Budget(7, 2.0)


def searched_trace() -> Trace:
    trace = Trace(Problem("p", user_messages("How many?")), [Step(None, "How many?", ids([1]))])
    steps: list[dict[str, Any]] = [
        {"parent": 0, "text": "First,\n count.", "visits": 3, "value": 0.5},
        {"parent": 0, "text": "Guess.", "pruned": "too dull"},
        {"parent": 1, "text": "#### 7", "stop": "eos", "scores": {"prm": Score(0.25), "orm": Score(None, "broke")}},
        {"parent": 1, "text": "x" * 200, "stop": "eos"},
    ]
    for step in steps:
        trace.add(Step(token_ids=ids([1]), **step))
    trace.chosen = 3
    return trace


def test_a_tree() -> None:
    assert tree_lines(searched_trace(), 60) == [
        "● How many?",
        "├─● [0.50 in 3 visits] First, count.",
        "│ ├─● [prm 0.25, orm ?] #### 7",
        "│ └─○ " + "x" * 53 + "…",
        "└─○ [pruned: too dull] Guess.",
    ]


def test_a_tree_grown_by_the_gold_answer_says_so() -> None:
    trace = searched_trace()
    trace.oracle = True
    assert tree_lines(trace)[0].startswith("oracle: ") and tree_lines(trace)[1:] == tree_lines(searched_trace())


def test_a_tree_of_any_size() -> None:
    trace = searched_trace()
    for i in range(5000):
        trace.add(Step(len(trace.steps) - 1, f"{i}", ids([1])))
    shown = tree_lines(trace)
    assert len(shown) == MAX_LINES + 1 and shown[-1].endswith("more steps")


def test_solve_shows_keeps_and_goes_on(ponder: Ponder, here: Path, model: Path) -> None:
    asked = ("solve", "What is 3 + 4?", "--model", model, "--max-tokens", "3", "--show", "tree", "--run", "out")
    first = ponder(*asked, "--n", "2")
    assert first.code == 0 and first.out.count("─○") + first.out.count("─●") == 2 and "cost: " in first.out
    more = ponder(*asked, "--n", "5")
    assert more.code == 0 and more.out.count("─○") + more.out.count("─●") == 5, "the first two are still there"
    other = ponder("solve", "Another?", "--model", model, "--run", "out")
    assert other.code == 2 and "belongs to another job" in other.err


def test_solve_by_search(ponder: Ponder, model: Path) -> None:
    output = ponder(
        "solve", "What is 3 + 4?", "--model", model, "--strategy", "beam-search", "--guide", "likelihood",
        "--max-tokens", "6",
        "--strategy.n", "4", "--strategy.beam-width", "2", "--json",
    )  # fmt: skip
    assert output.code == 0, output.err
    asked = ("solve", "What is 3 + 4?", "--model", model, "--max-tokens", "6", "--strategy")
    for name in ("mcts", "forest", "rstar-style"):  # where none is given, the policy's own likelihood guides
        (done,) = (
            json.loads(line) for line in ponder(*asked, name, "--budget.tokens", "60", "--json").out.splitlines()
        )
        assert done["guide"] == "likelihood" and done["n"] > 0
    (done,) = (json.loads(line) for line in ponder(*asked, "chain", "--json").out.splitlines())
    assert done["guide"] == "" and done["failed"] == ""
    whole = ponder(*asked, "mcts", "--effort", "minimal", "--show", "tree")
    assert whole.code == 0 and "likelihood " in whole.out and " visits]" in whole.out and "cost: " in whole.out
    assert "guide: likelihood, since none was given" in whole.out


def test_eval_with_a_budget_and_an_oracle(ponder: Ponder, here: Path, model: Path) -> None:
    output = ponder(
        "eval", "addition", "--model", model, "--task.digits", "1", "--task.test_size", "4", "--strategy", "best-of-n",
        "--n", "4", "--guide", "oracle", "--budget.tokens", "10", "--run", "out",
    )  # fmt: skip
    assert output.code == 0, output.err
    assert "guided by the gold answers" in output.out


def test_dollars_by_a_table(ponder: Ponder, here: Path, model: Path) -> None:
    Path("prices.json").write_text(json.dumps({str(model): {"prompt": 1.0, "generated": 1e6}}))
    asked = ("solve", "What is 3 + 4?", "--model", model, "--max-tokens", "3", "--n", "1", "--prices", "prices.json")
    (done,) = (json.loads(line) for line in ponder(*asked, "--json").out.splitlines())
    cost = done["cost"]
    assert cost["dollars"] == pytest.approx(cost["generated_tokens"] + cost["prompt_tokens"] / 1e6)
    Path("prices.json").write_text(json.dumps({"another": {"prompt": 1.0}}))
    other = ponder(*asked)
    assert other.code == 2 and "no price named" in other.err


def test_strategies(ponder: Ponder) -> None:
    output = ponder("strategies")
    assert output.code == 0 and all(name in output.out for name in [*STRATEGIES, *PRESETS, *EFFORTS])
    for name in [*STRATEGIES, *PRESETS]:
        one = ponder("strategies", name)
        assert one.code == 0 and name in one.out
    assert ponder("strategies", "voted").code == 2


def test_why_there_is_no_answer_or_not_the_whole_way_is_said() -> None:
    trace = searched_trace()
    trace.failed = "the context is full"
    assert "it did not come to its end: the context is full" in answer_lines(decide(trace))
    bare = Trace(Problem("p", user_messages("?")), [Step(None, "?", ids([1]))], failed="the server is down")
    assert answer_lines(decide(bare))[0] == "no answer: none of 0 completions states one; the server is down"
    assert answer_json(decide(bare))["failed"] == "the server is down"


def test_what_was_thought_before_an_error_is_kept(
    ponder: Ponder, here: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide's scores are of no use to a filter: what they are about is paid for."""
    (here / "much.py").write_text(
        "from ponder.types import Score\nclass Guide:\n    name = 'much'\n"
        "    async def __call__(self, trace, steps):\n        return [Score(5.0) for _ in steps]\n"
    )
    monkeypatch.syspath_prepend(here)
    output = ponder(
        "solve", "What is 3 + 4?", "--model", model, "--max-tokens", "3", "--n", "2", "--strategy", "particle-filter",
        "--guide", "much:Guide", "--run", "out", "--strategy.cut", "tokens:1",
    )  # fmt: skip
    assert output.code == 2 and "between 0 and 1" in output.err, output
    ((_, trace),) = read_traces(here / "out")
    assert len(trace.children(0)) == 2


def test_guides_by_name() -> None:
    policy = char_policy()
    guide = load_guide("p_true", policy)
    assert isinstance(guide, PTrue) and guide.policy is policy
    with pytest.raises(UsageError, match="asks the policy"):
        load_guide("p_true", None)
    with pytest.raises(UnknownName, match="likelihood"):
        load_guide("likelyhood", policy)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["solve", "1 + 1?", "--n", "4", "--temperature", "0"], "  ! 4 chains of a vote at temperature 0"),
        (["solve", "1 + 1?", "--n", "2", "--budget.tokens", "2"], "  ! the budget of 2 tokens is less than one answer"),
        (["eval", "addition", "--limit", "2", "--n", "4", "--temperature", "0"], "  ! 4 samples of a problem at"),
        (["eval", "addition", "--limit", "2", "--n", "4"], ""),
    ],
)
def test_settings_that_cannot_do_what_they_say_are_told(
    ponder: Ponder, here: Path, model: Path, argv: list[str], message: str
) -> None:
    done = ponder(*argv, "--model", model, "--max-tokens", "3")
    assert done.code == 0 and (message in done.err if message else "  ! " not in done.err), done.err


def test_the_effort_none_is_an_effort_and_not_nothing() -> None:
    """As text it is what elsewhere leaves a flag out."""
    assert flags.parse_value(get_type_hints(solve, include_extras=True)["effort"], "none") == "none"
    assert tuple(EFFORTS) == get_args(get_args(get_args(opt.Effort)[0])[0]), "a name for each level"
    plain = flags.run_command(evaluate, ["addition"], "ponder eval").job
    assert flags.run_command(evaluate, ["addition", "--effort", "none"], "ponder eval").job != plain
