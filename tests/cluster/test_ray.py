"""Ray, with a real cluster of two nodes on this machine: slots, replicas, ranks, lost processes, tokens, two jobs.

Starting Ray takes about 20 seconds, so all of this is for the night.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.slot_end import SECONDS, wait_for_end
from fakes import DigitTask, char_policy, perturb
from ponder.cluster.job_cluster import on_cluster
from ponder.cluster.places import LOST
from ponder.errors import ModelError, UsageError
from ponder.models.replicas.ledger import read_ledger
from ponder.models.replicas.replica import Replica
from ponder.models.replicas.replica_policy import LEDGER_FILE, ReplicaPolicy
from ponder.models.replicas.replica_process import SlotProcess
from ponder.pipelines.rewards.verifier_workers import VerifierWorkers
from ponder.reason.episodes import EnvironmentFailed
from ponder.runs import read_metrics, read_traces
from ponder.tasks.environments import worker_pool
from ponder.tasks.environments.process_environment import ProcessEnvironment
from ponder.types import Action, Problem, Sampling, Step, Trace, ids, user_messages

pytestmark = [
    pytest.mark.nightly,
    # Not by importing it: Ray reads its environment then.
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray here: pip install 'ponder[ray]'"),
]

SAMPLING = Sampling(max_tokens=12)
RECIPE = '''
"""A very small model learns to add."""
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rl import RL
from ponder.reason.strategies import Samples
from ponder.tasks import Addition
from ponder.types import Sampling

def recipe(steps: int = 3, replicas: int = 0) -> RL:
    """One digit, one layer."""
    model = ScratchModel(alphabet="0123456789+-*/()=? \\nWhatis<>answer.QueonA:", width=32, layers=1, heads=2)
    strategy = Samples(n=8, sampling=Sampling(max_tokens=3))
    return RL(Addition(digits=1), model, template="qa", strategy=strategy, steps=steps, problems_per_step=4,
              save_every=5, replicas=replicas, device="cpu", max_steps_without_signal=1000)
'''


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from ponder.cluster.ray_session import ensure_token, require_ray, set_ray_environment

    before = dict(os.environ)
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(tmp_path_factory.mktemp("ray") / "token")
    set_ray_environment("127.0.0.1")
    ensure_token()
    ray = require_ray()
    from ray.cluster_utils import Cluster

    sizes = {"object_store_memory": 80 << 20, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, **sizes})
    made.add_node(num_cpus=1, **sizes)
    yield made
    ray.shutdown()
    made.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def place(cluster: Any) -> Iterator[Any]:
    from ponder.cluster.ray_place import RayPlace

    made = RayPlace(cluster.address, "test")
    yield made
    made.close()


def test_slots_run_processes_on_both_nodes(place: Any, tmp_path: Path) -> None:
    slots = place.reserve(2, gpu=False, spread=True)
    nodes = place.ray.util.placement_group_table(slots[0]._group)["bundles_to_node_id"]
    assert len(set(nodes.values())) == 2 and {s.host for s in slots} == {"127.0.0.1"}
    slots[0].start(["-c", "import os, sys; print(os.getcwd()); sys.exit('no ink')"], {}, str(tmp_path))
    slots[1].start(["-c", "import time; time.sleep(600)"], {"WORD": "x"})
    assert slots[1].poll() is None
    slots[1].send_signal(signal.SIGTERM)
    assert wait_for_end(slots[0]) == (1, f"{tmp_path}\n".encode(), b"no ink\n")
    assert wait_for_end(slots[1])[0] == -15
    with pytest.raises(UsageError, match="no folder"):
        slots[0].start(["-c", ""], {}, str(tmp_path / "nowhere"))
    for slot in slots:
        slot.release()
    deadline = time.monotonic() + SECONDS
    while place.ray.available_resources().get("CPU") != 4.0:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_cluster_that_is_too_small_is_refused(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ponder.cluster import ray_place

    with pytest.raises(UsageError, match=r"9 processes need 9 CPUs, and the cluster at .* has 4"):
        place.reserve(9, gpu=False)
    with pytest.raises(UsageError, match=r"1 processes need 1 GPUs, and the cluster at .* has 0"):
        place.reserve(1, gpu=True)
    slots = place.reserve(3, gpu=False)
    monkeypatch.setattr(ray_place, "RESERVE_SECONDS", 1.0)
    with pytest.raises(ray_place.ClusterError, match="no room for 2 processes within 1 seconds"):
        place.reserve(2, gpu=False)
    for slot in slots:
        slot.release()


def test_stranger_without_the_token_is_refused(cluster: Any) -> None:
    program = f"from ponder.cluster.ray_session import connect; connect({cluster.address!r}, 'stranger')"
    path = os.pathsep.join(p for p in sys.path if p)
    env = {**os.environ, "PYTHONPATH": path, "RAY_AUTH_TOKEN": "0" * 64}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1 and "cannot join the cluster" in done.stderr, done.stderr[-2000:]


async def ready_again(replica: Replica) -> None:
    async with asyncio.timeout(SECONDS):
        while not replica.ready:
            await asyncio.sleep(0.05)


async def replica_scenario(place: Any, folder: Path) -> list[str]:
    """Samples equal to one process's, through a kill of the process and of its Ray actor. Returns the loss reasons."""
    policy, reasons = char_policy(context=256), list[str]()
    async with ReplicaPolicy(policy, 1, folder, place=place) as remote:
        replica, prompt = remote.replicas[0], remote.tokens("3+4=")
        for version, kill in enumerate(("process", "actor", "")):
            for each in (policy, remote):
                each.reseed(7)
            found, wanted = await remote.generate(prompt, SAMPLING, 3), await policy.generate(prompt, SAMPLING, 3)
            assert [c.text for c in found] == [c.text for c in wanted] and {c.version for c in found} == {version}
            lost, process = replica.lost, replica._process
            assert isinstance(process, SlotProcess)
            if kill == "process":
                os.kill(replica.pid, signal.SIGKILL)
            elif kill == "actor":
                place.ray.kill(process._slot._actor)  # type: ignore[attr-defined]
            if kill:
                await asyncio.wait_for(lost.wait(), SECONDS)
                reasons.append(replica._ended)
                await ready_again(replica)
                perturb(policy.net, 0.3)
                policy.version = version + 1
                await remote.publish(version + 1)
    return reasons


def test_replicas_sample_the_same_and_are_replaced(place: Any, tmp_path: Path) -> None:
    killed, gone = asyncio.run(replica_scenario(place, tmp_path))
    assert killed == "signal 9" and "is gone" in gone
    counts = read_ledger(tmp_path / LEDGER_FILE)
    assert counts is not None and counts.deaths == 2 and counts.asked == counts.answered == 3


async def verifier_scenario(place: Any, folder: Path) -> list[float | None]:
    """Answers graded by a worker that Ray placed, whose process is killed, and then its Ray actor."""
    workers = VerifierWorkers(DigitTask(), 1, folder, place=place)
    trace = Trace(Problem("p", user_messages("3="), "3"), [Step(None, "3=", ids([1]))])
    for text in ("3", "4"):
        trace.add(Step(0, text, ids([2]), last=True))
    await workers.start()
    try:
        values = [s.value for s in await workers(trace, [1, 2])]
        for strike in ("process", "actor"):
            worker = workers.pool.replicas[0]
            await ready_again(worker)
            lost, process = worker.lost, worker._process
            assert isinstance(process, SlotProcess)
            if strike == "process":
                os.kill(worker.pid, signal.SIGKILL)
            else:
                place.ray.kill(process._slot._actor)  # type: ignore[attr-defined]
            await asyncio.wait_for(lost.wait(), SECONDS)
            values += [s.value for s in await workers(trace, [1, 2])]
        return values
    finally:
        await workers.close()


def test_verifier_workers_grade_on_the_cluster_and_are_replaced(place: Any, tmp_path: Path) -> None:
    assert asyncio.run(verifier_scenario(place, tmp_path)) == [1.0, 0.0] * 3
    counts = read_ledger(tmp_path / LEDGER_FILE)
    assert counts is not None and (counts.asked, counts.answered, counts.doubled, counts.deaths) == (3, 3, 0, 2)


def test_environment_workers_play_on_the_cluster_and_are_replaced(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "MAX_WORKERS", 1)
    name = f"{Path(__file__).parents[1] / 'tasks' / 'hostile_environments.py'}:Hostile"
    problem = Problem("p", user_messages("Play."), {"columns": {"kind": "good"}, "conversational": False})

    async def play() -> list[bool]:
        good, struck = ProcessEnvironment(name, 60.0), ProcessEnvironment(name, 60.0)
        done = [(await good.reset(problem, 0)).done, (await good.act(Action("0"))).done]
        await struck.reset(problem, 0)
        assert good._worker is not None and good._worker._placed is not None and good._worker is struck._worker
        good._worker._placed.kill()
        with pytest.raises(EnvironmentFailed, match="signal 9"):
            await struck.act(Action("0"))
        done += [(await good.act(Action(str(at)))).done for at in (1, 2)]
        await good.close()
        return done

    with on_cluster(cluster.address):
        try:
            assert asyncio.run(play()) == [False, False, False, True]
        finally:
            worker_pool.end_workers()


def test_split_replica_has_its_cpus_on_one_machine(cluster: Any, tmp_path: Path) -> None:
    from ponder.cluster.ray_place import RayPlace

    policy = char_policy(context=256)

    async def run(place: RayPlace, shards: int) -> None:
        async with ReplicaPolicy(policy, 1, tmp_path / str(shards), place=place, tensor_parallel=shards) as split:
            assert place.ray.available_resources().get("CPU", 0) <= 2  # of four
            for each in (policy, split):
                each.reseed(7)
            prompt = split.tokens("3+4=")
            found, wanted = await split.generate(prompt, SAMPLING, 3), await policy.generate(prompt, SAMPLING, 3)
            assert [c.text for c in found] == [c.text for c in wanted]

    asyncio.run(run(RayPlace(cluster.address, "split"), 2))
    with pytest.raises(ModelError, match=r"needs 4 CPUs of one machine, and none .* has more than 3"):
        asyncio.run(run(RayPlace(cluster.address, "too-wide"), 4))


def test_two_jobs_do_not_meet(cluster: Any, tmp_path: Path) -> None:
    from ponder.cluster.ray_node import cluster_state
    from ponder.cluster.ray_place import RayPlace

    places = [RayPlace(cluster.address, "same-name") for _ in range(2)]
    policies = [char_policy(seed) for seed in (1, 2)]

    async def run() -> None:
        jobs = [ReplicaPolicy(policy, 1, tmp_path / str(i), place=places[i]) for i, policy in enumerate(policies)]
        await asyncio.gather(*(job.start() for job in jobs))
        assert len(cluster_state(cluster.address)["jobs"]) == 2
        for job, policy in zip(jobs, policies, strict=True):
            for each in (job, policy):
                each.reseed(3)
            mine, alone = (
                await job.generate(job.tokens("1+1="), SAMPLING),
                await policy.generate(job.tokens("1+1="), SAMPLING),
            )
            assert mine[0].text == alone[0].text
        await jobs[0].close()
        assert [j["processes"] for j in cluster_state(cluster.address)["jobs"]] == [1]
        assert len(await jobs[1].generate(jobs[1].tokens("2+2="), SAMPLING, 2)) == 2
        await jobs[1].close()

    asyncio.run(run())


def run_ponder(folder: Path, *argv: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ponder", *argv]
    return subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rank_pids(folder: Path) -> dict[str, int]:
    """The ranks whose working directory this is, by number."""
    found = {}
    for path in Path("/proc").iterdir():
        try:
            variables = dict(v.split("=", 1) for v in (path / "environ").read_text().split("\0") if "=" in v)
            if (path / "cwd").resolve() == folder.resolve() and variables.get("PONDER_PLACED_RANK"):
                found[variables["RANK"]] = int(path.name)
        except (OSError, ValueError, KeyError):
            continue
    return found


def test_recipe_on_the_cluster_is_the_same_training(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(RECIPE)
    runs = {
        "plain": [],
        "ranks": ["--ranks", "2", "--cluster", cluster.address],
        "replicas": ["--replicas", "2", "--cluster", cluster.address],
    }
    texts = {}
    for name, words in runs.items():
        with run_ponder(tmp_path, "run", "tiny.py", "--run", name, *words) as job:
            out, err = job.communicate(timeout=400)
        assert job.returncode == 0, (name, out, err)
        assert "step 3/3" in err and f"ponder view {name}" in out
        texts[name] = [[step.text for step in trace.steps] for _, trace in read_traces(tmp_path / name)]
    assert texts["plain"] == texts["ranks"] == texts["replicas"] and len(texts["plain"]) == 12
    counts = read_ledger(tmp_path / "replicas" / "replicas" / LEDGER_FILE)
    assert counts is not None and counts.asked == counts.answered > 0 and counts.open == 0


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the ranks are found in /proc")
def test_killed_rank_goes_on_from_the_last_checkpoint(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(RECIPE)
    words = ["run", "tiny.py", "--run", "killed", "--steps", "80", "--ranks", "2", "--cluster", cluster.address]
    with run_ponder(tmp_path, *words) as job:
        assert job.stderr is not None
        while not (line := job.stderr.readline()).startswith("step 8/"):
            assert line, "it ended early"
        os.kill(rank_pids(tmp_path)["1"], signal.SIGKILL)
        out, err = job.communicate(timeout=400)
    assert job.returncode == 0, (out, err)
    assert "rank 1 ended with exit code -9" in err and "starting all again from the last checkpoint (1 of 3)" in err
    assert [row["step"] for row in read_metrics(tmp_path / "killed")] == list(range(80))
    assert (tmp_path / "killed" / "ranks" / "rank-1.log").exists()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_slot_on_a_lost_node_says_so(cluster: Any, place: Any) -> None:
    """The last test but one: the second node does not come back."""
    slots = place.reserve(2, gpu=False, spread=True)
    nodes = place.ray.util.placement_group_table(slots[0]._group)["bundles_to_node_id"]
    second = next(n for n in cluster.list_all_nodes() if n is not cluster.head_node)
    index = next(i for i, node in nodes.items() if node == second.node_id)
    program = "from ponder.cluster.process_host import end_with_launcher as e; import time; e(); time.sleep(600)"
    pids = [slot.start(["-c", program], {}) for slot in slots]
    cluster.remove_node(second)
    deadline = time.monotonic() + SECONDS
    while slots[index].poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert slots[index].poll() == LOST and "is gone" in slots[index].lost_reason
    assert slots[1 - index].poll() is None
    while is_running(pids[index]):  # it has yet to see that its actor is gone
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for slot in slots:
        slot.release()


def test_cluster_up_status_down(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ponder.cluster.process_host import free_port

    monkeypatch.setenv("PONDER_CACHE", str(tmp_path))
    port = free_port("127.0.0.1")

    def ponder(*words: str) -> dict[str, Any]:
        with run_ponder(tmp_path, "cluster", *words, "--json") as job:
            out, err = job.communicate(timeout=300)
        assert job.returncode == 0, (words, out, err)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    assert ponder("up", "--port", str(port), "--cpus", "3")["address"] == f"127.0.0.1:{port}"
    state = ponder("status")
    assert state["machines"] == [{"host": "127.0.0.1", "cpus": 3, "gpus": 0}] and state["jobs"] == []
    pid = json.loads((tmp_path / "cluster" / "node.json").read_text())["pid"]
    ponder("down")
    left = subprocess.run(["ps", "-o", "stat=", "-g", str(pid)], capture_output=True, text=True, check=False)
    assert all(state.startswith("Z") for state in left.stdout.split())  # ended, and not yet waited for
