"""Reinforcement learning on a toy: it learns, it resumes to the bit, and readers see each step once."""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, FirstCharVerifier, RecordingProgress, char_policy, trace_group
from ponder.engine.cpu_decode_library import compile_library
from ponder.errors import Interrupted, PonderError, RunError, TaskError, UsageError, VerifierError
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.lora import LoRA
from ponder.pipelines.problems.curriculum import Frontier
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.pipelines.rl import RL, encode_next
from ponder.pipelines.training.sample_metrics import has_reward_spread, sample_metrics
from ponder.pipelines.training.session import TrainingState
from ponder.pipelines.training.teachers import load_value_model
from ponder.reason.strategies import Chain, Samples
from ponder.runs import Run, checkpoints, newest_checkpoint, read_job, read_metrics, read_traces
from ponder.runs.block_file import ITEMS, BlockReader
from ponder.runs.records import raw_records, read_records
from ponder.runs.trace_store import TRACES_FILE
from ponder.trace_json import trace_to_json
from ponder.train import checkpoint, host_buffers
from ponder.train.distill import Distill
from ponder.train.host_buffers import HostBuffers, HostCopy
from ponder.train.imitation import SFT
from ponder.train.optimizer import AdamW, MasterWeights
from ponder.train.policy_gradient import GRPO, RLOO
from ponder.train.ppo import PPO
from ponder.types import Cost, Sampling, Score

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
JOB = RL(
    DigitTask(), MODEL, QUESTION_TEMPLATE, Samples(4, Sampling(max_tokens=2)), GRPO(), AdamW(lr=3e-3, warmup_steps=2),
    steps=6, problems_per_step=3,
    max_tokens_per_microbatch=20, preflight=False, save_every=2, device="cpu", dtype="float32",
)  # fmt: skip


NORM = "layers.1.input_layernorm.weight"


def newest_model(folder: Path) -> Path:
    newest = newest_checkpoint(folder)
    assert newest is not None
    return newest / "model" / "model.safetensors"


def told(folder: Path) -> list[dict[str, float]]:
    """The metrics, without those that tell the time."""
    return [{k: v for k, v in m.items() if "time" not in k} for m in read_metrics(folder)]


def thought(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    out = []
    for step, trace in read_traces(folder):
        trace.cost = replace(trace.cost, seconds=0.0)
        out.append((step, trace_to_json(trace)))
    return out


def weights(policy: PonderPolicy) -> dict[str, torch.Tensor]:
    return policy.net.state_dict()


def same_run(folder: Path, policy: PonderPolicy, whole: Path, expected: PonderPolicy) -> None:
    assert told(folder) == told(whole)
    assert thought(folder) == thought(whole)
    assert all(torch.equal(w, weights(policy)[n]) for n, w in weights(expected).items())
    last, theirs = newest_checkpoint(folder), newest_checkpoint(whole)
    assert last is not None and theirs is not None and last.name == theirs.name
    for name in ("model/model.safetensors", "learner.safetensors", "state.json", "model/tokenizer.json"):
        assert (last / name).read_bytes() == (theirs / name).read_bytes(), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PonderPolicy]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, JOB(folder)


def test_prompts_that_may_be_others_are_not_encoded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a curriculum that weighs problems, and of environments, which give the first words themselves."""
    asked: list[Any] = []
    policy: Any = SimpleNamespace(encode_ahead=lambda conversations: asked.append(list(conversations)))
    state = TrainingState()
    encode_next(JOB, policy, state)
    assert len(asked.pop()) == JOB.problems_per_step
    encode_next(replace(JOB, curriculum=Frontier()), policy, state)
    monkeypatch.setattr(type(JOB.task.verifier), "episodes", None, raising=False)
    encode_next(JOB, policy, state)
    assert not asked


def test_prompts_of_the_next_step_are_encoded_while_a_gpu_would_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Path, PonderPolicy]
) -> None:
    """They are those that it asks; where encoding fails, the run is the same."""
    ahead: list[list[Any]] = []
    plain = PonderPolicy.encode_ahead

    def encode_ahead(self: PonderPolicy, conversations: Any) -> None:
        ahead.append(list(conversations))
        plain(self, ahead[-1])
        if len(ahead) == 2:
            self._encoded_ahead = {}
            raise UsageError("no")

    monkeypatch.setattr(PonderPolicy, "encode_ahead", encode_ahead)
    policy = JOB(tmp_path / "run")
    same_run(tmp_path / "run", policy, *whole)
    asked: dict[int, list[Any]] = {}
    for step, trace in read_traces(tmp_path / "run"):
        asked.setdefault(step, []).append(trace.problem.messages)
    assert ahead == [asked[step] for step in range(1, JOB.steps)]


def test_training_with_compiled_sampling_is_that_in_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU a small network samples by compiled code, which the other tests leave out."""
    if compile_library() is None:
        pytest.skip("there is no C compiler")
    first = {}
    for kernels in ("0", "1"):
        monkeypatch.setenv("PONDER_CPU_KERNELS", kernels)
        replace(JOB, preflight=True)(tmp_path / kernels)
        first[kernels] = [trace.steps for step, trace in read_traces(tmp_path / kernels) if step == 0]
    assert len(first["0"]) == JOB.problems_per_step
    for torch_steps, compiled_steps in zip(first["0"], first["1"], strict=True):
        assert [s.token_ids.tolist() for s in torch_steps] == [s.token_ids.tolist() for s in compiled_steps]
    rewards = [[row["reward"] for row in read_metrics(tmp_path / kernels)] for kernels in ("0", "1")]
    assert len(rewards[1]) == JOB.steps and rewards[0][0] == rewards[1][0]


def test_run_records_metrics_and_traces(whole: tuple[Path, PonderPolicy]) -> None:
    folder, policy = whole
    metrics = read_metrics(folder)
    assert [m["step"] for m in metrics] == list(range(6))
    assert policy.version == 6 and policy.tokenizer.chat_template == QUESTION_TEMPLATE
    best = max((m["reward"], m["step"] + 1) for m in metrics if m["step"] % 2)[1]
    assert {p.name for p in checkpoints(folder)} == {f"step-{s:06d}" for s in (4, 6, best)}, "two, and the best"
    traces = list(read_traces(folder))
    assert [s for s, _ in traces] == [s for s in range(6) for _ in range(3)]
    asked = [t.problem.id for _, t in traces]
    assert asked == [p.id for p in shuffled_problems(DigitTask().train, 0, 0, 18)]
    for step, trace in traces:
        assert {s.version for s in trace.steps[1:]} == {step}, "each step was written by the weights of its time"
        assert len(trace.answers()) == 4
        assert all("wanted" in trace.steps[i].scores for i in trace.answers())
    for m, step in zip(metrics, range(6), strict=True):
        scores = [t.score(i, "wanted") for s, t in traces if s == step for i in t.answers()]
        judged = [s for s in scores if s is not None]
        assert m["reward"] == pytest.approx(np.mean(judged))
        assert m["frac_undecided"] == pytest.approx(1 - len(judged) / len(scores))
        assert m.get("sampling/sampling_logp_difference/max", 0.0) < 1e-5, "sampler and learner agree"
        if "kl" in m:
            assert (m["kl"] == 0) == (step == 0)


def test_same_seed_gives_same_run(whole: tuple[Path, PonderPolicy], tmp_path: Path) -> None:
    same_run(tmp_path / "run", JOB(tmp_path / "run"), *whole)


def test_other_seed_gives_other_run(whole: tuple[Path, PonderPolicy], tmp_path: Path) -> None:
    replace(JOB, seed=1, steps=1)(tmp_path / "run")
    assert thought(tmp_path / "run") != thought(whole[0])[:3]


STOPS = {
    "sampling": ("tokens", 7), "learning": ("share", 8), "the first step": ("tokens", 1), "a phase": ("phase", 5),
    "between steps": ("step", 3), "the last step": ("step", 6), "saving": ("phase", 6),
}  # fmt: skip


@pytest.mark.parametrize("where", STOPS)
def test_interrupted_run_resumes_exactly(where: str, whole: tuple[Path, PonderPolicy], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    watcher = RecordingProgress(*STOPS[where])
    with pytest.raises(Interrupted):
        JOB(folder, watcher)
    done = len(told(folder))
    saved = newest_checkpoint(folder)
    assert saved is not None and saved.name == f"step-{done:06d}", "nothing that was done is lost"
    again = RecordingProgress()
    policy = JOB(folder, again)
    assert sum(s[0] == "step" for s in again.calls) == 6 - done, "and nothing is done twice"
    same_run(folder, policy, *whole)


def test_interrupt_at_every_step_resumes_exactly(whole: tuple[Path, PonderPolicy], tmp_path: Path) -> None:
    for done in range(1, 6):
        with pytest.raises(Interrupted, match=f"stopped after {done} of 6 steps; the same command goes on"):
            JOB(tmp_path / "run", RecordingProgress("tokens", 3))  # two tokens each: in its second step
    same_run(tmp_path / "run", JOB(tmp_path / "run"), *whole)


class Killed(BaseException):
    """As SIGKILL would: nothing is caught, nothing is saved."""


@pytest.mark.parametrize(("kind", "at", "kept"), [("step", 1, 0), ("step", 5, 4), ("share", 8, 2)])
def test_killed_run_resumes_from_last_checkpoint(
    kind: str, at: int, kept: int, whole: tuple[Path, PonderPolicy], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        JOB(folder, RecordingProgress(kind, at, Killed))
    assert len(told(folder)) > kept, "there are records past the checkpoint"
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "rew')  # and a line that was being written
    assert told(folder) == told(whole[0])[: len(told(folder))]
    again = RecordingProgress()
    policy = JOB(folder, again)
    assert sum(s[0] == "step" for s in again.calls) == 6 - kept
    same_run(folder, policy, *whole)
    assert [m["step"] for m in read_metrics(folder)] == list(range(6)), "each step once"
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert kept in [json.loads(line).get("resumed") for line in lines if line.endswith("}")]


def test_finished_run_does_nothing(whole: tuple[Path, PonderPolicy], tmp_path: Path) -> None:
    watcher = RecordingProgress()
    policy = JOB(whole[0], watcher)
    assert not any(s[0] == "step" for s in watcher.calls)
    same_run(whole[0], policy, *whole)
    assert policy.version == 6


@pytest.mark.parametrize("file", ["learner.safetensors", "state.json", "model/model.safetensors", "manifest.json"])
def test_damaged_checkpoint_is_named(file: str, tmp_path: Path) -> None:
    """More kinds of damage: tests/train/test_checkpoint_damage.py."""
    short = replace(JOB, steps=1, problems_per_step=1)
    short(tmp_path / "run")
    newest = newest_checkpoint(tmp_path / "run")
    assert newest is not None
    (newest / file).write_bytes((newest / file).read_bytes()[:-20])
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match="step-000001"):
        short(tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_damaged_checkpoint_falls_back_to_previous(whole: tuple[Path, PonderPolicy], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    newest = checkpoints(folder)[-1]
    content = bytearray((newest / "learner.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "learner.safetensors").write_bytes(content)
    with pytest.warns(UserWarning, match="step-000006 is damaged .* goes on from step-000004, which is whole"):
        policy = JOB(folder)
    same_run(folder, policy, *whole)
    marks = [row for row in raw_records(folder / "metrics.jsonl") if "resumed" in row]
    assert marks[-1]["resumed"] == 4 and marks[-1]["because"].startswith("step-000006 is damaged")
    assert [p.name for p in sorted((folder / "checkpoints").iterdir())][-1] == "step-000006"


DAMAGE = ["digit", "gone", "twice", "moved", "last"]


def damaged(parts: list[bytes], damage: str) -> bytes:
    """Records of a file, one of them changed, missing, doubled or in another place."""
    middle = len(parts[2]) // 2
    changed = parts[2][:middle] + bytes([parts[2][middle] ^ 1]) + parts[2][middle + 1 :]
    return b"".join({
        "digit": [*parts[:2], changed, *parts[3:]], "gone": [*parts[:2], *parts[3:]], "twice": [*parts[:3], *parts[2:]],
        "moved": [*parts[:2], parts[3], parts[2], *parts[4:]], "last": parts[:-1],
    }[damage])  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_resume_verifies_metrics(damage: str, whole: tuple[Path, PonderPolicy], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(damaged([line for line in lines if b'"resumed"' not in line[:12]], damage))
    expected = r"metrics\.jsonl, line [34] is damaged" if damage != "last" else r"metrics\.jsonl lacks 1 records"
    with pytest.raises(RunError, match=expected):
        JOB(folder)


@pytest.mark.parametrize("damage", DAMAGE)
def test_resume_verifies_traces(damage: str, whole: tuple[Path, PonderPolicy], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    path = folder / TRACES_FILE
    content = path.read_bytes()
    with BlockReader(path) as reader:
        blocks = [block for block, _ in reader.scan() if block.kind == ITEMS]
    path.write_bytes(damaged([content[block.offset : block.end] for block in blocks], damage))
    expected = r"traces\.bin, block [345] is damaged" if damage != "last" else rf"run lacks {blocks[-1].count} traces"
    with pytest.raises(RunError, match=expected):
        JOB(folder)


@pytest.mark.parametrize("what", ["weight", "exp_avg", "exp_avg_sq", "frozen"])
def test_nonfinite_checkpoint_is_not_written(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = MasterWeights.step

    def step(masters: MasterWeights, norm: torch.Tensor) -> bool:
        taken = real(masters, norm)
        if masters.steps == 4:
            place = masters.net.embed_tokens.weight if what == "frozen" else masters.tensors()[f"{what}.{NORM}"]
            place.detach().view(-1)[0] = math.inf
        return taken

    monkeypatch.setattr(MasterWeights, "step", step)
    job = replace(JOB, frozen_layers=1 if what == "frozen" else 0, save_every=2)
    said = "embed_tokens" if what == "frozen" else rf"policy:{what}\.{NORM} of the optimiser"
    with pytest.raises(PonderError, match=f"{said}.* holds a number that is not finite"):
        job(tmp_path / "run")
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000002"]
    assert all(t.isfinite().all() for t in load_file(newest_model(tmp_path / "run")).values())


class LateCopy(HostCopy):
    """A copy that is made when it is waited for, as a GPU's may be; the writer waits for it late."""

    def __init__(self, sources: Mapping[str, torch.Tensor]) -> None:
        super().__init__({name: torch.full_like(t, math.nan, memory_format=torch.contiguous_format)
                          for name, t in sources.items()})  # fmt: skip
        self._from, self._lock, self._made = {n: t.detach() for n, t in sources.items()}, threading.Lock(), False

    def wait(self) -> None:
        if threading.current_thread().name.startswith("checkpoint"):
            time.sleep(0.1)
        with self._lock:
            for name, t in self._from.items() if not self._made else ():
                self.tensors[name].copy_(t)
            self._made = True


def test_copies_for_a_checkpoint_are_made_before_the_next_step_learns(
    whole: tuple[Path, PonderPolicy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = checkpoint.CheckpointWriter
    monkeypatch.setattr(checkpoint, "CheckpointWriter", lambda run, keep, background: writer(run, keep=keep))
    monkeypatch.setattr(HostBuffers, "start", lambda self, tensors: LateCopy(tensors))
    JOB(tmp_path / "run")
    for step in (4, 6):
        expected, result = ((f / "checkpoints" / f"step-00000{step}") for f in (whole[0], tmp_path / "run"))
        for name in ("learner.safetensors", "model/model.safetensors"):
            mine, theirs = load_file(result / name), load_file(expected / name)
            assert mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


def test_checkpoints_are_the_same_where_memory_has_no_room_for_copies(
    whole: tuple[Path, PonderPolicy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each save waits until it is written, so that no step changes what is written."""
    writer, start, save_file = checkpoint.CheckpointWriter, HostBuffers.start, checkpoint.save_file
    copies: list[HostCopy] = []

    def late(*args: Any) -> None:
        time.sleep(0.1)
        save_file(*args)

    def watch(self: HostBuffers, tensors: Mapping[str, torch.Tensor]) -> HostCopy:
        copies.append(start(self, tensors))
        assert all(copies[-1].tensors[name].data_ptr() == t.data_ptr() for name, t in tensors.items())
        return copies[-1]

    monkeypatch.setattr(checkpoint, "CheckpointWriter", lambda run, keep, background: writer(run, keep=keep))
    monkeypatch.setattr(host_buffers, "free_memory", lambda: 0)
    monkeypatch.setattr(HostBuffers, "start", watch)
    monkeypatch.setattr(checkpoint, "save_file", late)
    JOB(tmp_path / "run")
    assert len(copies) == 6 and not any(copy.is_copy for copy in copies), "model and optimiser, three times"
    for step in (4, 6):
        expected, result = ((f / "checkpoints" / f"step-00000{step}") for f in (whole[0], tmp_path / "run"))
        for name in ("learner.safetensors", "model/model.safetensors", "state.json"):
            assert (result / name).read_bytes() == (expected / name).read_bytes(), name


def test_a_model_without_room_for_a_copy_is_written_before_the_next_step(
    whole: tuple[Path, PonderPolicy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimiser's tensors are copied, since they fit."""
    writer, start, snapshot = checkpoint.CheckpointWriter, HostBuffers.start, hf.snapshot

    def start_copy(self: HostBuffers, tensors: Mapping[str, torch.Tensor]) -> HostCopy:
        is_model = not any(name.startswith("policy:") for name in tensors)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host_buffers, "free_memory", lambda: 0 if is_model else 1 << 40)
            copy = start(self, tensors)
        assert copy.is_copy != is_model
        return copy

    def late_snapshot(*args: Any, **settings: Any) -> Any:
        write = snapshot(*args, **settings)
        return lambda folder: (time.sleep(0.3), write(folder))

    monkeypatch.setattr(checkpoint, "CheckpointWriter", lambda run, keep, background: writer(run, keep=keep))
    monkeypatch.setattr(HostBuffers, "start", start_copy)
    monkeypatch.setattr(hf, "snapshot", late_snapshot)
    JOB(tmp_path / "run")
    for step in (4, 6):
        expected, result = ((f / "checkpoints" / f"step-00000{step}") for f in (whole[0], tmp_path / "run"))
        for name in ("learner.safetensors", "model/model.safetensors"):
            assert (result / name).read_bytes() == (expected / name).read_bytes(), name


def test_full_disk_pauses_run(
    whole: tuple[Path, PonderPolicy],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from ponder import full_disk

    real, tries = checkpoint.save_file, []

    def full(*args: Any) -> None:
        tries.append(1)
        if len(tries) in (2, 3):
            raise OSError(28, "No space left on device")
        real(*args)

    monkeypatch.setattr(checkpoint, "save_file", full)
    monkeypatch.setattr(full_disk, "FIRST_RETRY_SECONDS", 0.01)
    same_run(tmp_path / "run", JOB(tmp_path / "run"), *whole)
    assert "the disk is full" in capsys.readouterr().err


def test_partial_checkpoint_is_ignored(whole: tuple[Path, PonderPolicy], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        JOB(folder, RecordingProgress("tokens", 6))
    (folder / "checkpoints" / "step-000099.new").mkdir()
    same_run(folder, JOB(folder), *whole)


def test_failed_save_keeps_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = checkpoint.save_file
    count = []

    def broken(*args: Any) -> None:
        count.append(1)
        if len(count) > 1:
            raise OSError(5, "Input/output error")
        real(*args)

    monkeypatch.setattr(checkpoint, "save_file", broken)
    with pytest.raises(RunError, match="the previous checkpoint is kept"):
        JOB(tmp_path / "run")
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000002"]


def test_trained_model_loads_from_run_directory(whole: tuple[Path, PonderPolicy]) -> None:
    from ponder.models.load import load_policy

    loaded = load_policy(str(whole[0]), device="cpu", dtype="float32")
    assert all(torch.equal(w, weights(loaded)[n]) for n, w in weights(whole[1]).items())
    assert (
        loaded.encode(DigitTask().train[3].messages).tolist() == whole[1].encode(DigitTask().train[3].messages).tolist()
    )


# what cannot work is refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strategy": Samples(1, Sampling(max_tokens=2))}, "group of one"),
        ({"group_size": 3}, "Samples has its own n: leave out the job's group_size"),
        ({"sampling": Sampling(max_tokens=3)}, "Samples has its own sampling: leave out"),
        ({"strategy": Samples(4, Sampling(temperature=0.0))}, "positive"),
        ({"strategy": None, "group_size": 0}, "at least 1"),
        ({"steps": 0}, "at least 1"), ({"save_every": 0}, "at least 1"), ({"problems_per_step": -1}, "at least 1"),
        ({"epochs_per_batch": 0}, "at least 1"), ({"minibatches": 0}, "at least 1"),
        ({"keep_checkpoints": 0}, "at least 1"),
    ],
)  # fmt: skip
def test_invalid_jobs_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replace(JOB, **change)


def test_other_job_in_same_run_directory_is_refused(whole: tuple[Path, PonderPolicy]) -> None:
    with pytest.raises(RunError, match=r"seed: 0 -> 7"):
        replace(JOB, seed=7)(whole[0])


def test_verifier_bug_stops_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: FirstCharVerifier, trace: Any, steps: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(FirstCharVerifier, "__call__", broken)
    with pytest.raises(VerifierError, match="crashed: ZeroDivisionError: a bug"):
        JOB(tmp_path / "run")
    assert not checkpoints(tmp_path / "run")


# the data stream


def test_shuffled_problems_are_a_new_permutation_each_epoch() -> None:
    problems = DigitTask(7).train
    stream = [p.id for p in shuffled_problems(problems, 3, 0, 35)]
    epochs = [stream[i : i + 7] for i in range(0, 35, 7)]
    assert all(sorted(e) == sorted(p.id for p in problems) for e in epochs)
    assert len({tuple(e) for e in epochs}) > 3
    for first, count in ((0, 1), (5, 4), (6, 15), (13, 22)):
        assert [p.id for p in shuffled_problems(problems, 3, first, count)] == stream[first : first + count]
    assert [p.id for p in shuffled_problems(problems, 4, 0, 35)] != stream
    with pytest.raises(TaskError, match="no problems"):
        shuffled_problems([], 0, 0, 1)


# the numbers of a step, by hand


def test_sample_metrics() -> None:
    first = trace_group([5, 6, 7], [[1, 2], [3, 4, 5, 2], [6, 7]], [1.0, 0.0, None])
    first.steps[3].stop = "length"
    first.cost = Cost(prompt_tokens=3, generated_tokens=8)
    second = trace_group([5], [[2], [9, 9, 2]], [0.5, 0.5])
    second.cost = Cost(prompt_tokens=1, cached_tokens=1, generated_tokens=4)
    first.steps[1].text = "Wait, that is wrong."
    first.steps[1].scores["format"], first.steps[2].scores["format"] = Score(1.0), Score(0.0)
    first.steps[3].scores["format"] = Score(None, "broke")
    assert sample_metrics([first, second], "wanted") == pytest.approx({
        "reward": (1 + 0 + 0.5 + 0.5) / 4,
        "reward_std": (0.5**0.5 + 0.0) / 2,  # of [1, 0], with Bessel's correction
        "frac_reward_zero_std": 0.5,
        "frac_groups_solved": 0.0,
        "frac_groups_failed": 0.0,  # halves are neither solved nor failed
        "frac_undecided": 1 / 5,
        "completions/mean_length": (2 + 4 + 2 + 1 + 3) / 5,
        "completions/min_length": 1.0,
        "completions/max_length": 4.0,
        "completions/clipped_ratio": 1 / 5,
        "completions/mean_terminated_length": (2 + 4 + 1 + 3) / 4,
        "completions/frac_reflecting": 1 / 5,
        "rewards/format/mean": 0.5,
        "num_tokens": 3 + 8 + 1 + 4,
    })  # fmt: skip


def test_sample_metrics_without_scores() -> None:
    found = sample_metrics([trace_group([5], [[1, 2], [3]], [None, None])], "wanted")
    assert math.isnan(found["reward"]) and found["frac_undecided"] == 1.0 and found["reward_std"] == 0.0


def test_rewards_that_differ_by_rounding_have_no_spread() -> None:
    sums = trace_group([5], [[1, 2], [3]], [0.1 + 0.2, 0.3])
    ones = trace_group([5], [[1, 2], [3]], [0.7 + 0.2 + 0.1, 1.0])
    assert not has_reward_spread(sums, "wanted") and not has_reward_spread(ones, "wanted")
    assert has_reward_spread(trace_group([5], [[1, 2], [3]], [0.3, 0.3 + 1e-9]), "wanted")
    metrics = sample_metrics([sums, ones], "wanted")
    assert metrics["frac_reward_zero_std"] == 1.0 and metrics["reward_std"] == 0.0
    assert metrics["frac_groups_solved"] == 0.5


def test_sampling_settings_that_bias_the_gradient_are_refused_or_warned() -> None:
    with pytest.raises(UsageError, match="job's seed"):
        replace(JOB, strategy=Samples(4, Sampling(max_tokens=2, seed=1)))
    with pytest.warns(UserWarning, match="ratio"):
        replace(JOB, strategy=Samples(4, Sampling(top_p=0.9, max_tokens=2)))
    with pytest.warns(UserWarning, match="RLOO has no ratio"):
        replace(JOB, algorithm=RLOO(), epochs_per_batch=2)


def test_stop_string_ends_an_answer(tmp_path: Path) -> None:
    job = replace(JOB, steps=1, strategy=Samples(4, Sampling(max_tokens=4, stop=tuple("0123456789"))))
    job(tmp_path / "run")
    traces = [t for _, t in read_traces(tmp_path / "run")]
    stops = {t.steps[i].stop for t in traces for i in t.answers()}
    assert "stop" in stops and all(len(t.answers()) == 4 for t in traces)


def test_settings_without_gradient_are_refused() -> None:
    for changes, said in (
        ({"dynamic_sampling_rounds": -1}, "dynamic_sampling_rounds"),
        ({"lora": LoRA(2), "frozen_layers": 1}, "either lora or frozen_layers"),
        ({"algorithm": SFT()}, "RejectionSampling"),
        ({"algorithm": Distill()}, "needs a teacher"),
        ({"strategy": Chain(Sampling(max_tokens=2))}, "group of one"),
    ):
        with pytest.raises(UsageError, match=said):
            replace(JOB, **changes)
    replace(JOB, algorithm=PPO(), strategy=Chain(Sampling(max_tokens=2)))  # a critic needs no group


def test_nonfinite_score_is_undecided(tmp_path: Path) -> None:
    trace = trace_group([5], [[1, 2], [3]], [math.nan, math.inf])
    assert [trace.score(i, "wanted") for i in trace.answers()] == [None, None]
    assert "nan" in trace.steps[1].scores["wanted"].reason
    with Run(tmp_path / "run", JOB) as run:
        trace.steps[1].advantages = np.array([math.nan, math.inf], np.float32)
        run.write_traces(0, [trace])
    ((_, again),) = read_traces(tmp_path / "run")
    np.testing.assert_array_equal(again.steps[1].advantages, [math.nan, math.inf])


def test_critic_loads_from_run_directory(tmp_path: Path) -> None:
    policy = char_policy()
    hf.save(policy.net, tmp_path / "model")
    policy.tokenizer.save(tmp_path / "model")
    other = DecoderWithHead.from_decoder(policy.net)
    torch.nn.init.ones_(other.score.weight)
    hf.save(other, tmp_path / "critic")
    assert not load_value_model(str(tmp_path / "model"), policy).score.weight.any(), (
        "a folder beside it is not its critic"
    )
    job = replace(JOB, algorithm=PPO(), steps=1)
    job(tmp_path / "run")
    assert load_value_model(str(tmp_path / "run"), policy).score.weight.any(), "a run's is what it learned"


def findings_by_step(folder: Path) -> dict[int, list[str]]:
    rows = (row for _, row in read_records(folder / "metrics.jsonl"))
    return {row["step"]: row["findings"] for row in rows if "findings" in row}


def test_diagnosis_is_in_metrics(tmp_path: Path) -> None:
    hopeless = replace(JOB, task=DigitTask(answer="x"), steps=8, save_every=4, max_steps_without_signal=0)
    with pytest.raises(Interrupted):
        hopeless(tmp_path / "run", RecordingProgress("phase", 12))
    hopeless(tmp_path / "run")
    found = findings_by_step(tmp_path / "run")
    assert 7 in found and any("equal rewards" in text for text in found[7]) and 0 not in found
    assert all("findings" not in row for row in read_metrics(tmp_path / "run"))
    replace(hopeless, save_every=8)(tmp_path / "whole")
    assert findings_by_step(tmp_path / "whole") == found, "a resumed run remembers"


def test_resume_uses_pinned_start_weights(tmp_path: Path) -> None:
    first = replace(JOB, steps=2, save_every=1, keep_checkpoints=3)
    first(tmp_path / "first")
    second = replace(JOB, model=str(tmp_path / "first"), template=None, steps=4, save_every=1)
    with pytest.raises(Interrupted):
        second(tmp_path / "second", RecordingProgress("step", 2))
    began = read_job(tmp_path / "second")["model"]
    shutil.copytree(tmp_path / "first/checkpoints/step-000002", tmp_path / "first/checkpoints/step-000009")
    second(tmp_path / "second")
    assert read_job(tmp_path / "second")["model"] == began and began.endswith("step-000002/model")
    shutil.rmtree(tmp_path / "first/checkpoints/step-000002")
    with pytest.raises(PonderError, match="its run went on"):
        replace(second, steps=4)(tmp_path / "second")


class Mute(FirstCharVerifier):
    """It decides for a while, and then about nothing."""

    asked = 0

    def grade(self, text: str, wanted: str) -> Score:
        Mute.asked += 1
        return super().grade(text, wanted) if Mute.asked <= 24 else Score(None, f"timed out after {Mute.asked} s")


class Undecidable(DigitTask):
    @property
    def verifier(self) -> FirstCharVerifier:
        return Mute()


def test_run_stops_if_answers_stay_undecided(tmp_path: Path) -> None:
    Mute.asked = 0
    with pytest.raises(VerifierError, match=r"12 of the last 12 answers.*12 x timed out after N s.*time limit"):
        replace(JOB, task=Undecidable())(tmp_path / "run")
    assert [m["frac_undecided"] for m in read_metrics(tmp_path / "run")][-1] == 1.0, "what happened is recorded"
    assert [step for step, _ in read_traces(tmp_path / "run")][-1] == 2
