"""Games against a model that does not learn: what it reads, its illegal moves, its draws, and who loads it."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest

from fakes import run_async
from ponder.errors import UsageError
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf
from ponder.pipelines import frozen_opponent
from ponder.pipelines.solve import solve
from ponder.reason.strategies import Samples
from ponder.tasks import TicTacToeGameTask
from ponder.tasks.environments.model_opponent import ModelOpponent
from ponder.types import Action, Problem, Sampling, Trace
from turn_policy import TurnPolicy

TASK = TicTacToeGameTask(opponent="model:somewhere", show_rules=False)


def start(task: TicTacToeGameTask = TASK) -> Problem:
    return Problem("start", task.first_messages(()), {"opening": [], "opponent_seed": 0})


def played(ours: list[str], theirs: list[str]) -> Trace:
    verifier = TASK.verifier.against(TurnPolicy(theirs))
    return run_async(solve(start(), Samples(1, Sampling(max_tokens=64)), TurnPolicy(ours), verifier))


def result(trace: Trace) -> tuple[float | None, str]:
    (leaf,) = trace.answers()
    score = trace.steps[leaf].scores["reward"]
    return score.value, score.reason


def test_policy_plays_against_the_model_s_moves() -> None:
    trace = played(["1", "2", "3"], ["4", "5"])
    (leaf,) = trace.answers()
    assert [trace.steps[i].text for i in trace.conversation(leaf)] == [
        "1 2 3\n4 5 6\n7 8 9", "1", "I play O4.\nX 2 3\nO 5 6\n7 8 9", "2", "I play O5.\nX X 3\nO O 6\n7 8 9", "3",
    ]  # fmt: skip
    assert result(trace) == (1.0, "won")
    assert result(played(["1", "2", "7"], ["4", "5", "6"])) == (0.0, "lost")


def test_opponent_reads_the_game_from_its_own_side() -> None:
    opponent = ModelOpponent(TurnPolicy(["4", "9", "5"]), TASK, 0)
    assert run_async(opponent.move((0,), 2)) == 3
    copy = opponent.copy()
    assert run_async(opponent.move((0, 3, 8), 2)) == 4, "9 is taken, so it moves again"
    contents = [message["content"] for message in opponent.messages]
    assert contents == [
        "X 2 3\n4 5 6\n7 8 9", "4", "I play X9.\nX 2 3\nO 5 6\n7 8 X", "9",
        "9 cannot be played. You can play 2, 3, 5, 6, 7, 8.", "5",
    ]  # fmt: skip
    assert [m["role"] for m in opponent.messages] == ["user", "assistant"] * 3 and len(copy.messages) == 2


def test_two_illegal_moves_in_a_row_lose_the_opponent_s_game() -> None:
    value, reason = result(played(["1"], ["1", "no"]))
    assert value == 1.0 and "illegal" in reason


def test_job_loads_the_model_once_and_games_are_a_function_of_their_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScratchModel(string.printable[:95] + "\n", width=16, layers=1, heads=1, context=256)
    policy = load_policy(model, template="plain", device="cpu", dtype="float32")
    hf.save(policy.net, tmp_path / "other")
    policy.tokenizer.save(tmp_path / "other")
    loads: list[Any] = []
    real = frozen_opponent.load_inference_policy
    monkeypatch.setattr(frozen_opponent, "load_inference_policy", lambda *a, **k: (loads.append(a), real(*a, **k))[1])
    task = TicTacToeGameTask(opponent=f"model:{tmp_path / 'other'}", show_rules=False)
    games = []
    for _ in range(2):
        trace = run_async(
            solve(
                start(task), Samples(3, Sampling(max_tokens=64)), TurnPolicy(["1", "2", "3", "5", "9"]), task.verifier
            )
        )
        games.append([(step.text, step.scores) for step in trace.steps])
    assert games[0] == games[1] and len(loads) == 1


def test_environment_by_itself_has_no_model_to_ask() -> None:
    game: Any = TASK.environment()
    game.reset(start(), 0)
    with pytest.raises(UsageError, match="'model:somewhere' is a model, which plays only where a job loads it"):
        run_async(game.act(Action("1", "1")))


def test_opponent_without_a_model_is_refused() -> None:
    with pytest.raises(UsageError, match="write a model behind the colon"):
        TicTacToeGameTask(opponent="model:")
