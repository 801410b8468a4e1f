"""Replicas whose engine is vLLM, against a server with vLLM's routes (tests/vllm_routes.py) in processes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, char_policy, perturb
from ponder.errors import ModelError, TaskError, UnknownName, UsageError
from ponder.models.replicas import vllm_replica_main
from ponder.models.replicas.ledger import LedgerCounts, read_ledger
from ponder.models.replicas.replica_policy import LEDGER_FILE, ReplicaPolicy
from ponder.models.replicas.vllm_server import COMMAND_VARIABLE, VLLMServer, device_settings
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.label import Label
from ponder.pipelines.rewards.step_labelling import MathShepherd
from ponder.pipelines.training.open_sampler import REPLICAS_FOLDER
from ponder.reason.strategies import Samples
from ponder.runs import read_traces
from ponder.types import Completion, Sampling

ROUTES = Path(__file__).parents[1] / "vllm_routes.py"
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="vLLM runs on Linux")


@dataclass
class Outcome:
    """What a scenario with real processes brought."""

    wrong_logprobs: float = 0.0  # the largest difference to the network's own
    versions: list[set[float]] = field(default_factory=list)
    unsorted: int = 0
    same_top: bool = True  # the likeliest first tokens are the network's own
    mixed: int = 0
    refused: str = ""
    stop: str = ""
    answers: int = 0
    ledger: LedgerCounts = LedgerCounts()
    same_twice: bool = False
    servers: set[int] = field(default_factory=set)  # processes with vLLM's routes
    alive: int = 0
    left: list[str] = field(default_factory=list)  # files of the servers after the end


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(COMMAND_VARIABLE, f"{sys.executable} {ROUTES}")
        scratch = tmp_path_factory.mktemp("s")
        patch.setattr(tempfile, "tempdir", str(scratch))
        outcome = asyncio.run(scenario(tmp_path_factory.mktemp("replicas")))
        outcome.left = [path.name for path in scratch.iterdir()]
        return outcome


async def scenario(folder: Path) -> Outcome:
    out, policy = Outcome(), char_policy(context=256)
    policy.net.requires_grad_(False)
    async with ReplicaPolicy(policy, 2, folder, engine="vllm") as replicas:
        prompt, plain = replicas.tokens("3+4="), Sampling(max_tokens=12, logprobs=2)
        await check(out, policy, prompt, await replicas.generate(prompt, plain, 3))
        seeded = Sampling(max_tokens=12, seed=5)
        first, second = [await replicas.generate(prompt, seeded, 2) for _ in range(2)]
        out.same_twice = [c.text for c in first] == [c.text for c in second]
        perturb(policy.net, 0.3)
        await replicas.publish(5)
        await check(out, policy, prompt, await replicas.generate(prompt, plain, 3))
        try:
            await replicas.generate(prompt, Sampling(token_stats=("entropy",)), 1)
        except UsageError as error:
            out.refused = str(error)
        await interrupt(out, policy, replicas)
        await kill(out, replicas)
    out.ledger = read_ledger(folder / LEDGER_FILE) or LedgerCounts()
    for _ in range(100):  # the kernel ends them
        out.alive = sum(Path(f"/proc/{pid}/cmdline").exists() for pid in out.servers)
        if not out.alive:
            break
        await asyncio.sleep(0.1)
    return out


async def check(out: Outcome, policy: object, prompt: np.ndarray, completions: list[Completion]) -> None:
    """Log-probabilities are those of the network whose version the tokens carry."""
    for c in completions:
        own = await policy.token_logprobs(prompt, c.token_ids)  # type: ignore[attr-defined]
        out.wrong_logprobs = max(out.wrong_logprobs, float(np.abs(own - c.logprobs).max()))
        out.versions.append({float(c.version), *c.notes.get("version", [])})
        assert c.top_logprobs is not None
        out.unsorted += any(row[0] < row[1] or len(row) != 2 for row in c.top_logprobs[1])
        greedy = (await policy.generate(prompt, Sampling(temperature=0, max_tokens=1, logprobs=2)))[0]  # type: ignore[attr-defined]
        out.same_top &= c.top_logprobs[0][0].tolist() == greedy.top_logprobs[0][0].tolist()


async def interrupt(out: Outcome, policy: object, replicas: ReplicaPolicy) -> None:
    """New weights in the middle of long answers, which go on with them."""
    banned = tuple((token, -100.0) for token in replicas.eos)
    long, prompt = Sampling(max_tokens=200, logit_bias=banned), replicas.tokens("1+2=")
    for version in range(6, 26):  # until an answer is in the middle
        tasks = [asyncio.create_task(replicas.generate(prompt, long, 2)) for _ in range(4)]
        await asyncio.sleep(0.02 * (version - 5))
        await replicas.publish(version)
        for c in [c for group in await asyncio.gather(*tasks) for c in group]:
            versions = c.notes.get("version", np.full(len(c.token_ids), float(c.version)))
            assert len(versions) == len(c.token_ids) and (np.diff(versions) >= 0).all()
            out.mixed += len(set(versions)) > 1
            out.stop = c.stop
        if out.mixed:
            return


async def kill(out: Outcome, replicas: ReplicaPolicy) -> None:
    """The process of a replica dies, and vLLM with it."""
    prompts = [replicas.tokens(f"{i}=") for i in range(8)]
    tasks = [asyncio.create_task(replicas.generate(p, Sampling(max_tokens=60), 2)) for p in prompts]
    await asyncio.sleep(0.05)
    out.servers = children_of({r.pid for r in replicas.replicas})
    os.kill(replicas.replicas[0].pid, signal.SIGKILL)
    out.answers = sum(len(group) for group in await asyncio.gather(*tasks))


def children_of(parents: set[int]) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found |= {int(path.parent.name)} if int(fields[1]) in parents else set()
    return found


def test_samples_have_the_published_networks_logprobs(outcome: Outcome) -> None:
    assert outcome.wrong_logprobs < 1e-4
    assert outcome.versions == [{0.0}] * 3 + [{5.0}] * 3
    assert outcome.same_top and not outcome.unsorted


def test_one_seed_gives_one_answer(outcome: Outcome) -> None:
    assert outcome.same_twice


def test_new_weights_interrupt_answers_that_go_on_with_them(outcome: Outcome) -> None:
    assert outcome.mixed > 0 and outcome.stop == "length"


def test_option_that_vllm_lacks_is_refused(outcome: Outcome) -> None:
    assert "token_stats" in outcome.refused


def test_requests_of_a_killed_replica_are_asked_again(outcome: Outcome) -> None:
    assert outcome.answers == 16
    assert outcome.ledger.doubled == 0 and outcome.ledger.open == 0 and outcome.ledger.deaths == 1


def test_no_server_outlives_its_replica(outcome: Outcome) -> None:
    assert len(outcome.servers) == 2 and outcome.alive == 0


def test_no_file_outlives_the_replicas(outcome: Outcome) -> None:
    assert outcome.left == []


def test_a_server_that_ends_is_named_with_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMAND_VARIABLE, f"{sys.executable} -c \"raise SystemExit('no GPU here')\"")

    async def start() -> None:
        async with ReplicaPolicy(char_policy(), 1, tmp_path, engine="vllm"):
            pass

    with pytest.raises(ModelError, match="no GPU here"):
        asyncio.run(start())


MODEL = ScratchModel(ALPHABET, width=32, layers=1, heads=2, context=64)
ANSWERS: dict[str, Any] = {
    "model": MODEL, "template": QUESTION_TEMPLATE, "strategy": Samples(2, Sampling(max_tokens=3)), "limit": 3,
    "replicas": 1, "replica_engine": "vllm", "device": "cpu", "dtype": "float32",
}  # fmt: skip


@pytest.mark.parametrize(
    "job",
    [
        Evaluate(DigitTask(), **ANSWERS),
        pytest.param(Collect(DigitTask(), **ANSWERS), marks=pytest.mark.nightly),
        pytest.param(
            Label(
                DigitTask(),
                **ANSWERS,
                labeller=MathShepherd(max_completions=2, sampling=Sampling(max_tokens=3)),
                separator=None,
            ),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=lambda job: type(job).__name__,
)
def test_jobs_that_do_not_train_sample_by_vllm(job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMAND_VARIABLE, f"{sys.executable} {ROUTES}")
    with contextlib.suppress(TaskError):  # labels of an untrained network are all 0
        job(tmp_path / "run")
    counts = read_ledger(tmp_path / "run" / REPLICAS_FOLDER / LEDGER_FILE)
    assert counts is not None and counts.answered == counts.asked >= 3
    traces = [trace for _, trace in read_traces(tmp_path / "run")]
    assert len(traces) == 3 and all(len(trace.answers()) == 2 for trace in traces)


def test_unknown_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="vllm"):
        ReplicaPolicy(char_policy(), 1, tmp_path, engine="sglang")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "may"),
    [
        (Sampling(), True),
        (Sampling(temperature=0.5, top_p=0.9, repetition_penalty=1.2), True),
        (Sampling(stop=("\n",)), False),
        (Sampling(regex="a*"), False),
        (Sampling(min_tokens=3), False),
        (Sampling(presence_penalty=0.5), False),
    ],
)
def test_only_answers_that_continue_alike_are_interrupted(sampling: Sampling, may: bool) -> None:
    assert vllm_replica_main.may_interrupt(sampling) == may


@pytest.mark.parametrize(
    ("given", "program"),
    [
        ("/opt/vllm serve --gpu-memory-utilization 0.5 --enforce-eager", ["/opt/vllm", "serve"]),
        ("python -m vllm serve --gpu-memory-utilization 0.5", ["python", "-m", "vllm", "serve"]),
        ("/opt/start-vllm --gpu-memory-utilization 0.5", ["/opt/start-vllm"]),
    ],
)
def test_model_stands_before_the_options_of_the_users_command(
    given: str, program: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """vLLM refuses `serve --option model`."""
    monkeypatch.setenv(COMMAND_VARIABLE, given)
    command = VLLMServer(tmp_path, dtype="bfloat16", context=128, gpu_memory=0.3, gpus=None).command()
    assert command[: len(program) + 1] == [*program, str(tmp_path)]
    assert command.count("--gpu-memory-utilization") == 1
    assert command[command.index("--gpu-memory-utilization") + 1] == "0.5"
    assert ("--enforce-eager" in command) == ("--enforce-eager" in given)
    assert json.loads(command[command.index("--weight-transfer-config") + 1]) == {"backend": "ponder"}


def test_option_given_with_an_equals_sign_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(COMMAND_VARIABLE, "/opt/vllm serve --max_model_len=64")
    command = VLLMServer(tmp_path, dtype="bfloat16", context=128, gpu_memory=0.3, gpus=None).command()
    assert "--max-model-len" not in command and "--max_model_len=64" in command


def test_vllm_splits_a_network_over_its_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(COMMAND_VARIABLE, raising=False)
    how = {"dtype": "bfloat16", "context": 128, "gpu_memory": 0.9, "gpus": "1,2,0"}
    command = VLLMServer(tmp_path, **how, tensor_parallel=2).command()  # type: ignore[arg-type]
    assert command[command.index("--tensor-parallel-size") + 1] == "2"
    assert "--tensor-parallel-size" not in VLLMServer(tmp_path, **how).command()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a GPU for each of 2 parts"):
        device_settings(["cuda:0", "cuda:0"], 0)


def test_vllm_of_this_environment_is_started_without_a_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(COMMAND_VARIABLE, raising=False)
    command = VLLMServer(tmp_path, dtype="bfloat16", context=128, gpu_memory=0.3, gpus=None).command()
    assert command[:5] == [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(tmp_path)]


@pytest.mark.parametrize(
    ("device", "learner", "shown", "wanted"),
    [
        ("cpu", None, "", (None, 0.9)),
        ("cuda:0", 0, "", ("0", 0.3)),
        ("cuda:2", 0, "", ("2,0", 0.9)),
        ("cuda:1", 0, "GPU-a,GPU-b", ("GPU-b,GPU-a", 0.9)),
        ("cuda:0", None, "", ("0", 0.9)),
        ("cuda:2 cuda:3", 0, "", ("2,3,0", 0.9)),
        ("cuda:0 cuda:1", 0, "", ("0,1", 0.3)),
    ],
)
def test_vllm_gets_the_replicas_gpu_first(
    device: str, learner: int | None, shown: str, wanted: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert device_settings(device.split(), learner) == wanted
