"""Environments in processes of their own: what they do to their process fails their own episode, and no other."""

from __future__ import annotations

import asyncio
import os
import re
import string
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fakes import FakePolicy, run_async
from ponder.cluster.job_cluster import on_cluster
from ponder.errors import NoGoldAnswer, UsageError
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.solve import solve_all
from ponder.pipelines.training.gold_episodes import gold_traces
from ponder.reason.episodes import EnvironmentFailed
from ponder.reason.strategies import Chain, Samples
from ponder.tasks import Addition, EpisodeTask
from ponder.tasks.environments import worker_pool
from ponder.tasks.environments.process_environment import ProcessEnvironment
from ponder.tasks.environments.tool_task import ToolTask
from ponder.types import Action, FunctionCall, Problem, Sampling, Turn, user_messages
from sizes import size
from tasks.hostile_environments import KINDS
from turn_policy import TurnPolicy, call

FILE = Path(__file__).with_name("hostile_environments.py")
NAME = f"{FILE}:Hostile"
GOOD = size(100, 500)  # episodes beside the hostile ones


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Any:
    worker_pool.end_workers()  # of tests before
    yield
    worker_pool.end_workers()
    assert not children(), "a worker process was left behind"
    assert not [t.name for t in threading.enumerate() if t.name == "ponder-environment"]


def children(of: int | None = None) -> list[str]:
    """The processes whose parent is this one, zombies too."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            line = (stat.parent / "cmdline").read_bytes().decode()
        except OSError:
            continue
        if int(fields[1]) == (of or os.getpid()) and "environment_worker" in line:
            found.append(stat.parent.name)
    return found


def problem(kind: str = "good") -> Problem:
    return Problem(f"p/{kind}", user_messages("Play."), {"columns": {"kind": kind}, "conversational": False})


async def play(environment: ProcessEnvironment, of: Problem, turns: int = 3) -> list[Turn]:
    out = [await environment.reset(of, 0)]
    for at in range(turns):
        out.append(await environment.act(Action(str(at))))
    await environment.close()
    return out


def test_a_slow_import_is_no_slow_call(tmp_path: Path) -> None:
    """The example of docs/how-to/own-environment.md imports torch: more than 10 s on a busy machine."""
    slow = tmp_path / "slow_environment.py"
    slow.write_text(
        "import time\n\nfrom ponder.types import Turn\n\ntime.sleep(3)\n\n\nclass Slow:\n"
        "    def reset(self, problem, seed):\n        return Turn()\n\n"
        "    def act(self, action):\n        return Turn(reward=1.0, done=True)\n"
    )
    turns = run_async(play(ProcessEnvironment(f"{slow}:Slow", call_seconds=2.0), problem(), turns=1))
    assert turns[-1].reward == 1.0


def test_process_environment_answers_as_in_process() -> None:
    turns = run_async(play(ProcessEnvironment(NAME), problem()))
    assert turns == [
        Turn(({"role": "user", "content": "begin"},)),
        Turn(({"role": "user", "content": "turn 1"},)),
        Turn(({"role": "user", "content": "turn 2"},)),
        Turn(reward=1.0, done=True),
    ]
    assert len(children()) == 1


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("hang in reset", "did not return within 0.5 s"),
        ("hang in act", "did not return within 0.5 s"),
        ("crash in act", "RuntimeError: broken on purpose"),
        ("lie", "must return a Turn"),
        ("lie about done", "done of its turn is of type str"),
        ("10 MB", "bytes; 1,048,576 at most"),
        ("os._exit", "ended with code 3"),
        ("kill", "ended by signal 9"),
        ("garbage", "something else than a reply|more than a reply"),
        ("close the pipe", "ended with code|closed its pipe|within 0.5 s"),
    ],
)
def test_process_environment_fails_its_call_with_the_reason(kind: str, message: str) -> None:
    seconds = 0.5 if "within" in message else 30.0  # a busy machine is no failure of its own
    with pytest.raises(EnvironmentFailed, match=message):
        run_async(play(ProcessEnvironment(NAME, call_seconds=seconds), problem(kind)))


async def play_two(bad_kind: str, end: Any) -> tuple[list[Turn], list[str]]:
    """A good episode beside another in one worker, which `end` ends after two turns; and what the other one's failed
    with."""
    good, bad = ProcessEnvironment(NAME, 30.0), ProcessEnvironment(NAME, 30.0)
    turns, failed = [await good.reset(problem(), 0), await good.act(Action("0"))], []
    try:
        await bad.reset(problem(bad_kind), 0)
        end(good._worker)
        for at in range(2):
            await bad.act(Action(str(at)))
    except EnvironmentFailed as error:
        failed.append(str(error))
    turns += [await good.act(Action(str(at))) for at in (1, 2)]
    await good.close()
    await bad.close()
    return turns, failed


@pytest.mark.parametrize("how", ["os._exit", "killed", "cut off"])
def test_worker_in_a_slot_that_ends_is_replaced(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--cluster` a worker connects by TCP from its place; its episodes are played again in another place."""
    monkeypatch.setattr(worker_pool, "MAX_WORKERS", 1)

    def end(worker: Any) -> None:
        assert worker._placed is not None and worker._process is None
        if how == "killed":
            os.kill(worker._placed.pid, 9)
        elif how == "cut off":
            worker._placed._socket.shutdown(2)

    with on_cluster("local"):
        turns, failed = run_async(play_two("os._exit" if how == "os._exit" else "good", end))
        alone = run_async(play(ProcessEnvironment(NAME), problem()))
        worker_pool.end_workers()
    assert turns == alone and alone[-1].reward == 1.0
    wanted = {"os._exit": "exit code 3", "killed": "signal 9", "cut off": "connection broke|ended"}[how]
    assert len(failed) == 1 and re.search(wanted, failed[0])


def test_worker_in_a_slot_that_cannot_start_names_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_WORKER", "raise SystemExit('no environment here')")
    with on_cluster("local"):
        with pytest.raises(EnvironmentFailed, match=r"(?s)did not start.*exit code 1.*no environment here"):
            run_async(play(ProcessEnvironment(NAME), problem()))
        worker_pool.end_workers()


def test_other_episodes_of_a_lost_worker_are_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "MAX_WORKERS", 1)

    async def both() -> list[Turn]:
        good, bad = ProcessEnvironment(NAME, 30.0), ProcessEnvironment(NAME, 30.0)
        await good.reset(problem(), 0)
        await bad.reset(problem("os._exit"), 0)
        out = [await good.act(Action("a"))]
        await bad.act(Action("a"))
        before = children()
        with pytest.raises(EnvironmentFailed):
            await bad.act(Action("b"))
        out += [await good.act(Action("b")), await good.act(Action("c"))]
        assert children() != before
        await good.close()
        return out

    assert [turn.done for turn in run_async(both())] == [False, False, True]


def test_a_cancelled_call_is_closed_in_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "MAX_WORKERS", 1)

    async def work() -> list[Turn]:
        slow = ProcessEnvironment(NAME, 1.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow.reset(problem("hang in reset"), 0), 0.3)
        return await play(ProcessEnvironment(NAME, 30.0), problem())

    assert run_async(work())[-1].done


COUNTDOWN = f"{FILE}:Countdown"


def test_gold_comes_from_the_process() -> None:
    async def work() -> list[str]:
        environment = ProcessEnvironment(COUNTDOWN)
        await environment.reset(problem(), 0)
        said = [await environment.gold()]
        await environment.act(Action(said[0]))
        said.append(await environment.gold())
        await environment.close()
        return said

    assert run_async(work()) == ["2", "1"]


def test_environment_without_gold_says_so_and_goes_on() -> None:
    async def work() -> Turn:
        environment = ProcessEnvironment(NAME)
        await environment.reset(problem(), 0)
        with pytest.raises(NoGoldAnswer, match="Hostile has no gold"):
            await environment.gold()
        turn = await environment.act(Action("a"))
        await environment.close()
        return turn

    assert run_async(work()).messages[0]["content"] == "turn 1"


def test_copy_is_made_in_the_process_and_goes_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "MAX_WORKERS", 1)

    async def work() -> tuple[Turn, Turn]:
        one = ProcessEnvironment(COUNTDOWN)
        await one.reset(problem(), 0)
        await one.act(Action("2"))
        two = await one.copy()
        wrong, right = await one.act(Action("7")), await two.act(Action("1"))
        await one.close()
        await two.close()
        return wrong, right

    wrong, right = run_async(work())
    assert wrong.reason == "wrong" and right.messages[0]["content"] == "1: begun 1, copied 1"


@pytest.mark.parametrize("kind", ["without copy()", "lost worker"])
def test_copy_plays_the_actions_again_where_it_must(kind: str) -> None:
    async def work() -> Turn:
        one = ProcessEnvironment(NAME if kind == "without copy()" else COUNTDOWN)
        await one.reset(problem(), 0)
        await one.act(Action("2"))
        if kind == "lost worker":
            worker_pool.end_workers()
        two = await one.copy()
        turn = await two.act(Action("1"))
        await one.close()
        await two.close()
        return turn

    said = run_async(work()).messages[0]["content"]
    assert said == ("turn 2" if kind == "without copy()" else "1: begun 1, copied 0")


def test_gold_play_of_a_file_is_imitated() -> None:
    task = EpisodeTask(environment=COUNTDOWN, prompt="Count down.")
    policy = load_policy(ScratchModel(string.printable, context=256), template="qa", dtype="float32")
    (trace,) = gold_traces(policy, task.train[:1], task.verifier)
    (leaf,) = trace.answers()
    assert [trace.steps[i].text.strip() for i in trace.conversation(leaf) if trace.steps[i].sampled] == ["2", "1", "0"]
    assert trace.score(leaf, "reward") == 1.0


def test_idle_worker_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "IDLE_SECONDS", 0.1)
    run_async(play(ProcessEnvironment(NAME), problem()))
    for _ in range(100):
        if not children():
            break
        time.sleep(0.1)
    assert not children()
    assert run_async(play(ProcessEnvironment(NAME), problem()))[-1].done  # and another one starts


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal\n"
        "from ponder.tasks.environments.process_environment import ProcessEnvironment\n"
        "from ponder.types import Problem\n"
        "async def main():\n"
        f"    environment = ProcessEnvironment({NAME!r}, 500)\n"
        "    asyncio.get_running_loop().create_task(environment.reset("
        "Problem('p', (), {'columns': {'kind': 'hang in reset'}}), 0))\n"
        "    await asyncio.sleep(3)\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=dict(os.environ)) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
        for _ in range(600):
            if found := children(parent.pid):
                break
            time.sleep(0.1)
        (worker,) = found
        parent.kill()
    for _ in range(100):
        if not Path(f"/proc/{worker}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


def test_environment_that_cannot_start_fails_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\nclass Game: ...\n")
    with pytest.raises(EnvironmentFailed, match="nowhere_to_be_found"):
        run_async(play(ProcessEnvironment(f"{tmp_path}/broken.py:Game"), problem()))


def test_process_environment_needs_a_name() -> None:
    class Local:
        pass

    with pytest.raises(UsageError, match="put it into a file"):
        ProcessEnvironment(Local)


@pytest.mark.slow
def test_good_episodes_go_on_beside_hostile_ones() -> None:
    """Undecided episodes are counted, never 0; afterwards no process or thread is left (the fixture looks)."""
    rows = [{"prompt": "Play.", "kind": kind, "i": i} for i, kind in enumerate([*["good"] * GOOD, *KINDS])]
    task = EpisodeTask(
        environment=NAME, data=rows, test_data=[{"prompt": "Play.", "kind": "good", "i": -1}], call_seconds=3.0,
        max_seconds=600.0,
    )  # fmt: skip
    assert task.in_workers
    policy = TurnPolicy()
    traces = run_async(solve_all(task.train, Chain(Sampling(max_tokens=40)), policy, task.verifier))
    by_kind: dict[str, list[float | None]] = {}
    for trace in traces:
        kind = trace.problem.answer["columns"]["kind"]
        by_kind.setdefault(kind, []).extend(trace.score(i, "reward") for i in trace.answers())
    assert by_kind.pop("good") == [1.0] * GOOD
    for kind, rewards in by_kind.items():
        harmless = kind in ("hang in close", "raise in close")  # the episode was over
        assert rewards == [1.0 if harmless else None], kind


def test_tools_from_a_file_run_in_a_worker() -> None:
    task = ToolTask(Addition(digits=1), (f"{FILE}:double", "calculator"))
    script = [call("double", '{"x": 4}') + call("calculator", '{"expression": "1/4"}'), task.gold(task.train[0])]
    policy: FakePolicy = TurnPolicy(script)
    (trace,) = run_async(solve_all(task.train[:1], Samples(1, Sampling(max_tokens=400)), policy, task.verifier))
    assert trace.score(trace.answers()[0], task.verifier.name) == 1.0
    assert [line in policy.text(trace.steps[2].token_ids) for line in ("8", "0.25")] == [True, True]
    assert len(children()) == 1


def test_tools_in_a_worker_are_not_sent_the_answer() -> None:
    """A tool cannot reach the verdict: neither while it is made, where its callers have the problem, nor in a call."""
    problem = Problem("1", user_messages("Play."), "SECRET", {"solution": "SECRET"})

    async def peeked() -> str:
        environment = ProcessEnvironment.of_tools([f"{FILE}:Peek", f"{FILE}:double"])
        await environment.reset(problem, 0)
        try:
            turn = await environment.act(Action("", "", (FunctionCall("peek", "{}"),)))
        finally:
            await environment.close()
        return str(turn.messages[0]["content"])

    seen = run_async(peeked())
    assert "Play." in seen and "SECRET" not in seen
