"""Self-play: both sides of a game are episodes of the policy, each with its own view and its own result."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import run_async
from ponder.errors import UsageError
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.models.tokenizer import Tokenizer
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.solve import solve
from ponder.pipelines.training.gold_episodes import gold_traces
from ponder.reason.scorers import FunctionScorer
from ponder.reason.strategies import BeamSearch, Chain, Samples
from ponder.runs import read_metrics, read_traces
from ponder.tasks import ConnectFourTask, TicTacToeGameTask
from ponder.train.policy_gradient import GRPO
from ponder.types import Problem, Sampling, Trace
from turn_policy import TurnPolicy

TASK = TicTacToeGameTask(opponent="self", show_rules=False)
X_WINS = ["1", "4", "2", "5", "3"]  # X has the first row
DRAW = ["1", "2", "3", "5", "4", "6", "8", "7", "9"]


def start(task: TicTacToeGameTask = TASK) -> Problem:
    """The empty board."""
    return Problem("start", task.first_messages(()), {"opening": [], "opponent_seed": 0})


def played(script: list[str], n: int = 1, max_tokens: int = 64, task: Any = TASK, **policy: Any) -> Trace:
    strategy = Samples(n, Sampling(max_tokens=max_tokens))
    return run_async(solve(start(task), strategy, TurnPolicy(script, **policy), task.verifier))


def talk(trace: Trace, leaf: int) -> list[str]:
    return [("> " if trace.steps[i].sampled else "< ") + trace.steps[i].text for i in trace.conversation(leaf)]


def test_each_side_has_a_conversation_of_its_own() -> None:
    trace = played(X_WINS)
    second, first = trace.answers()
    assert talk(trace, first) == [
        "< 1 2 3\n4 5 6\n7 8 9", "> 1", "< I play O4.\nX 2 3\nO 5 6\n7 8 9", "> 2",
        "< I play O5.\nX X 3\nO O 6\n7 8 9", "> 3",
    ]  # fmt: skip
    assert talk(trace, second) == ["< X 2 3\n4 5 6\n7 8 9", "> 4", "< I play X2.\nX X 3\nO 5 6\n7 8 9", "> 5"]
    root = trace.steps[trace.conversation(second)[0]]
    assert root.parent is None and not root.turn and root.cites == (1,)


@pytest.mark.parametrize(
    ("moves", "results"), [(X_WINS, (1.0, 0.0)), (DRAW, (0.5, 0.5)), (["1", "x", "1"], (1.0, 0.0))]
)
def test_each_side_has_its_own_result(moves: list[str], results: tuple[float, float]) -> None:
    trace = played(moves)
    first, second = (next(i for i in trace.answers() if trace.conversation(i)[0] == root) for root in (0, 2))
    assert (trace.score(first, "reward"), trace.score(second, "reward")) == results


def test_result_is_of_the_side_that_wins_as_second() -> None:
    trace = played(["1", "4", "2", "5", "9", "6"])  # O has the second row
    scores = {trace.conversation(i)[0]: trace.score(i, "reward") for i in trace.answers()}
    assert scores == {0: 0.0, 2: 1.0}


def test_prefix_of_a_turn_is_what_the_side_read_and_wrote() -> None:
    policy = TurnPolicy(X_WINS)
    trace = run_async(solve(start(), Chain(Sampling(max_tokens=64)), policy, TASK.verifier))
    texts = [policy.text(prefix) for prefix, _, _ in policy.calls]
    assert texts[4].count("I play") == 2 and "I play O4." in texts[4] and texts[3].count("I play") == 1
    for leaf in trace.answers():
        last = trace.path(leaf)[-2]
        assert policy.text(trace.token_ids(last)) in texts


def test_games_of_a_group_add_two_answers_each_and_are_credited_by_side() -> None:
    trace = played(["1", "9", "4", "1", "2", "2", "5", "4", "3", "3", "5", "6", "7"], n=2)
    assert len(trace.answers()) == 4 and len(trace.children(0)) == 2
    rewards = [trace.score(i, "reward") for i in trace.answers()]
    assert sorted(r for r in rewards if r is not None) == [0.0, 0.0, 1.0, 1.0]
    GRPO(kl=None).credit([trace], "reward", {})
    for leaf, result in zip(trace.answers(), rewards, strict=True):
        own = [trace.steps[i].advantages for i in trace.conversation(leaf) if trace.steps[i].sampled]
        assert all(np.all(a == (1.0 if result else -1.0)) for a in own)


def test_template_that_rewrites_history_begins_further_prompts() -> None:
    trace = played(X_WINS, rewrites=True)
    first = next(i for i in trace.answers() if trace.conversation(i)[0] == 0)
    assert [trace.steps[i].parent for i in trace.conversation(first) if trace.steps[i].turn] == [None, None]
    assert TurnPolicy().text(trace.token_ids(first)).count("I play") == 2


@pytest.mark.parametrize(
    ("limits", "max_tokens", "why"),
    [({"max_turns": 1}, 64, "max_turns"), ({}, 2, "max_tokens")],
    ids=["turns", "tokens"],
)
def test_side_that_is_cut_has_0_and_the_other_is_undecided(limits: Any, max_tokens: int, why: str) -> None:
    task = TicTacToeGameTask(opponent="self", show_rules=False, **limits)
    trace = played(DRAW, max_tokens=max_tokens, task=task)
    scores = {trace.conversation(i)[0]: trace.steps[i].scores["reward"] for i in trace.answers()}
    assert scores[0].value == 0.0 and scores[2].value is None and why in scores[2].reason


def test_search_over_moves_is_refused() -> None:
    with pytest.raises(UsageError, match="self-play plays each game to its end"):
        beam = BeamSearch(beam_width=2, sampling=Sampling(max_tokens=64))
        run_async(solve(start(), beam, TurnPolicy(["1"] * 40), TASK.verifier, guide=LENGTH))


LENGTH = FunctionScorer(len)
MODEL = ScratchModel(string.printable, width=16, layers=1, heads=1, context=1024)
DIGITS = Tokenizer.from_alphabet(string.printable).encode("1234", add_special_tokens=False).tolist()


def test_gold_play_of_both_sides_draws() -> None:
    policy = load_policy(MODEL, template="qa", dtype="float32")
    (trace,) = gold_traces(policy, [start()], TASK.verifier)
    assert [trace.score(i, "reward") for i in trace.answers()] == [0.5, 0.5]


def test_preflight_plays_games_of_gold_and_of_wrong_moves() -> None:
    job = RL(
        task=TASK, model=MODEL, template="qa", steps=1, problems_per_step=2, group_size=2, dtype="float32",
        sampling=Sampling(max_tokens=40), algorithm=GRPO(kl=None),
    )  # fmt: skip
    report = job.preflight_report(load_policy(MODEL, template="qa", dtype="float32"))
    grader = next(check for check in report.checks if check.name == "grader")
    assert grader.passed and "wrong 0" in grader.value
    assert all(check.passed is not False for check in report.checks), report.checks


def test_fine_tuning_imitates_gold_moves_of_both_sides(tmp_path: Path) -> None:
    FineTune(TASK, MODEL, "qa", steps=1, batch_size=2, dtype="float32")(tmp_path / "a")
    for _, trace in read_traces(tmp_path / "a"):
        assert len(trace.answers()) == 2
        assert all((s.advantages is not None) == s.sampled for s in trace.steps)


def test_training_credits_both_sides(tmp_path: Path) -> None:
    task = ConnectFourTask(opponent="self", show_rules=False, columns=4, rows=4, max_turn_tokens=1)
    digits = Sampling(max_tokens=40, allowed_token_ids=tuple(DIGITS))
    with pytest.warns(UserWarning, match="renormalise"):
        job = RL(
            task=task, model=MODEL, template="qa", steps=1, problems_per_step=2, group_size=4, dtype="float32",
            sampling=digits, preflight=False, algorithm=GRPO(kl=None),
        )  # fmt: skip
    job(tmp_path / "a")
    (row,) = read_metrics(tmp_path / "a")
    assert row["num_turns/mean"] > 1 and np.isfinite(row["loss"])
    for _, trace in read_traces(tmp_path / "a"):
        assert len(trace.answers()) == 8
        scores = [trace.score(i, "reward") for i in trace.answers()]
        assert sum(s for s in scores if s is not None) == 4.0  # of each game 1
