"""A training job in several processes is the same training: samples, metrics, weights; stopped, resumed, and failed.

Run as a program, this file imports once and forks the ranks of every scenario.
"""

from __future__ import annotations

import json
import shutil
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from fork_ranks import fork_ranks, import_peft, run_program
from ponder import rank_env
from ponder.errors import Interrupted, PonderError, UsageError
from ponder.models.replicas.ledger import read_ledger
from ponder.models.replicas.replica_policy import LEDGER_FILE
from ponder.models.scratch_model import ScratchModel, ScratchVision
from ponder.nets.lora import LoRA
from ponder.pictures.message_parts import image_part, text_part
from ponder.pictures.picture import Picture
from ponder.pipelines.collect import Collect
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.training.open_sampler import REPLICAS_FOLDER
from ponder.pipelines.training.sampling_ahead import token_ages
from ponder.pipelines.training.shared_rollouts import _read_pictures, indices_by_rank
from ponder.protocols import NoProgress
from ponder.reason.strategies import Chain, Samples
from ponder.runs import checkpoints, newest_checkpoint, read_metrics, read_traces
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.ppo import PPO
from ponder.train.ranks import join_ranks
from ponder.types import Problem, Sampling, Step, Trace, ids, user_messages
from sizes import NIGHTLY


@dataclass(frozen=True)
class PictureDigitTask(DigitTask):
    """The digit to write is in a picture, as its grey."""

    def _problem(self, part: str, i: int) -> Problem:
        plain = super()._problem(part, i)
        picture = Picture(16, 16, bytes([25 * i]) * (3 * 16 * 16))
        return replace(plain, messages=[{"role": "user", "content": [image_part(picture), text_part("?")]}])


MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
SEEING_MODEL = replace(MODEL, vision=ScratchVision(image_size=16, patch=4, width=16, layers=1, heads=2))
COMMON: Any = {
    "optimizer": AdamW(lr=3e-3, warmup_steps=2), "steps": 4, "save_every": 2, "max_tokens_per_microbatch": 20,
    "device": "cpu", "dtype": "float32",
}  # fmt: skip
JOB = RL(
    DigitTask(), MODEL, QUESTION_TEMPLATE, Samples(8, Sampling(max_tokens=2)), GRPO(), problems_per_step=6,
    preflight=False, eval_every=4, eval_limit=5, eval_samples=2, **COMMON,
)  # fmt: skip
JOBS: dict[str, Any] = {
    "grpo": replace(JOB, preflight=True),
    "ppo": replace(JOB, algorithm=PPO(), epochs_per_batch=2, steps=2, eval_every=0),
    "pictures": replace(
        JOB, task=PictureDigitTask(), model=SEEING_MODEL, steps=2, eval_every=0, max_tokens_per_microbatch=1000
    ),
    "lora": replace(JOB, lora=LoRA(rank=4), steps=2, eval_every=0),
    "sft": FineTune(DigitTask(), MODEL, QUESTION_TEMPLATE, batch_size=6, **COMMON),
}


@dataclass(frozen=True)
class FailingSamples(Samples):
    """Fails on rank 1."""

    async def __call__(self, trace: Trace, policy: Any, scorer: Any = None) -> None:
        if rank_env.rank() == 1:
            raise UsageError("out of ink")
        await super().__call__(trace, policy, scorer)


class StopsOnRank1(NoProgress):
    """Asks to stop in the middle of the second step, on rank 1 alone."""

    steps = 0

    def share(self, done: float) -> None:
        if rank_env.rank() == 1 and self.steps == 1:
            raise Interrupted("stopped")

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Trace]) -> None:
        self.steps = done


def train_to_end(*jobs: tuple[Any, Path]) -> Callable[[int, int], None]:
    """One job after the other, in one process group."""

    def work(rank: int, size: int) -> None:
        with join_ranks("cpu"):
            for job, folder in jobs:
                job(folder, NoProgress())

    return work


def expect_error(job: Any, folder: Path, kind: type[BaseException], progress: Any) -> Callable[[int, int], None]:
    """Run a job that must end with this error on every rank, and keep what it says."""

    def work(rank: int, size: int) -> None:
        try:
            job(folder, progress())
        except kind as error:
            (folder.parent / f"{folder.name}-{rank}.txt").write_text(str(error))
        except BaseExceptionGroup as group:
            found = group.subgroup(kind)
            assert found is not None
            (folder.parent / f"{folder.name}-{rank}.txt").write_text(str(found.exceptions[0]))
        else:
            raise AssertionError("no error")

    return work


def main(folder: Path) -> int:
    """All scenarios, each in its own run directory."""
    import_peft()
    torch.set_num_threads(1)
    replicated = [(job, folder / f"{name}-replicated") for name, job in JOBS.items()]
    failed = fork_ranks(2, train_to_end(*replicated))
    failed |= fork_ranks(
        2, train_to_end(*((replace(j, fsdp=True), folder / f"{name}-fsdp") for name, j in JOBS.items()))
    )
    # Resumed on another number of ranks: 2, then 3, then 1.
    sharded = replace(JOB, fsdp=True)
    for size, steps in ((2, 2), (3, 3), (1, 4)):
        failed |= fork_ranks(size, train_to_end((replace(sharded, steps=steps, eval_every=0), folder / "resumed")))
    failed |= fork_ranks(2, expect_error(sharded, folder / "stopped", Interrupted, StopsOnRank1))
    failed |= fork_ranks(2, train_to_end((sharded, folder / "stopped")))
    failed |= fork_ranks(2, train_to_end((replace(JOB, staleness=2, eval_every=0), folder / "ahead")))
    failing = replace(JOB, strategy=FailingSamples(8, Sampling(max_tokens=2)), eval_every=0)
    failed |= fork_ranks(2, expect_error(failing, folder / "failed", PonderError, NoProgress))
    uneven = replace(JOB, replicas=3, eval_every=0)
    failed |= fork_ranks(2, expect_error(uneven, folder / "uneven", PonderError, NoProgress))
    if NIGHTLY:
        failed |= fork_ranks(2, train_to_end((replace(JOB, replicas=2), folder / "replicas")))
    collect = Collect(DigitTask(), MODEL, QUESTION_TEMPLATE, strategy=Chain(Sampling(max_tokens=2)))
    failed |= fork_ranks(2, expect_error(collect, folder / "collect", PonderError, NoProgress))
    return failed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_program(__file__, folder)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a job in one process."""
    folder = tmp_path_factory.mktemp("alone")

    def run(name: str) -> Path:
        if not (folder / name).exists():
            {**JOBS, "plain": JOB}[name](folder / name, NoProgress())
        return folder / name

    return run


def test_ranks_sample_ahead(runs: Path, alone: Callable[[str], Path]) -> None:
    def asked(folder: Path) -> list[tuple[int, str]]:
        return sorted((step, t.problem.id) for step, t in read_traces(folder) if t.problem)

    ages = [age for step, trace in read_traces(runs / "ahead") for age in token_ages([trace], step)]
    assert asked(runs / "ahead") == asked(alone("grpo")) and 1 <= max(ages) <= 2


def test_ranks_that_cannot_share_replicas_say_so(runs: Path) -> None:
    assert "2 ranks cannot share 3 replicas: give a multiple of 2" in (runs / "uneven-0.txt").read_text()


@pytest.mark.nightly
def test_two_ranks_with_two_replicas_train_as_one_process(runs: Path, alone: Callable[[str], Path]) -> None:
    run, expected = runs / "replicas", alone("plain")
    ours, theirs = ([list(t.token_ids(i)) for _, t in read_traces(f) for i in t.answers()] for f in (run, expected))
    assert ours == theirs
    for name, w in model_weights(expected).items():
        torch.testing.assert_close(model_weights(run)[name], w, rtol=1e-4, atol=1e-5)
    assert {row["cluster/replicas"] for row in read_metrics(runs / "replicas")} == {2.0}
    for rank in range(2):
        counts = read_ledger(runs / "replicas" / REPLICAS_FOLDER / f"rank-{rank}" / LEDGER_FILE)
        assert counts is not None and counts.answered == counts.asked > 0


def model_weights(run: Path) -> dict[str, torch.Tensor]:
    newest = newest_checkpoint(run)
    assert newest is not None
    return load_file(newest / "model" / "model.safetensors")


def assert_same_training(run: Path, expected: Path) -> None:
    ours, theirs = ([list(t.token_ids(i)) for _, t in read_traces(f) for i in t.answers()] for f in (run, expected))
    assert ours == theirs, "the samples"
    for mine, row in zip(read_metrics(run), read_metrics(expected), strict=True):
        for name, value in row.items():
            if "time" not in name:
                assert mine[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for name, w in model_weights(expected).items():
        torch.testing.assert_close(model_weights(run)[name], w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["replicated", "fsdp"])
@pytest.mark.parametrize("name", JOBS)
def test_two_ranks_train_as_one_process(name: str, kind: str, runs: Path, alone: Callable[[str], Path]) -> None:
    assert_same_training(runs / f"{name}-{kind}", alone(name))


def test_fsdp_run_resumes_on_other_numbers_of_ranks(runs: Path, alone: Callable[[str], Path]) -> None:
    files = [sorted(p.name for p in c.glob("learner*")) for c in checkpoints(runs / "resumed")][-2:]
    assert files == [[f"learner.rank-{r:05d}-of-00003.safetensors" for r in range(3)], ["learner.safetensors"]]
    ours, theirs = (model_weights(f) for f in (runs / "resumed", runs / "grpo-fsdp"))
    for name, w in theirs.items():
        torch.testing.assert_close(ours[name], w, rtol=1e-4, atol=1e-5)
    assert len(read_metrics(runs / "resumed")) == 4


@pytest.mark.parametrize("damage", ["byte", "gone"])
def test_damaged_rows_of_one_rank_fall_back_to_the_checkpoint_before(
    damage: str, runs: Path, alone: Callable[[str], Path], tmp_path: Path
) -> None:
    run, name = tmp_path / "run", "learner.rank-00001-of-00002.safetensors"
    shutil.copytree(runs / "grpo-fsdp", run)
    path = run / "checkpoints" / "step-000004" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink() if damage == "gone" else path.write_bytes(content)
    text = rf"^step-000004 is damaged \({name}: .*goes on from step-000002, which is whole"
    with pytest.warns(UserWarning, match=text):
        replace(JOBS["grpo"], fsdp=True)(run, NoProgress())  # in one process
    assert_same_training(run, alone("grpo"))


def test_stop_on_one_rank_stops_all_between_steps_and_resumes(runs: Path, alone: Callable[[str], Path]) -> None:
    for rank in range(2):
        assert "stopped after 2 of 4 steps" in (runs / f"stopped-{rank}.txt").read_text()
    assert_same_training(runs / "stopped", alone("grpo"))


def test_error_on_one_rank_ends_all(runs: Path) -> None:
    assert "out of ink" in (runs / "failed-1.txt").read_text()
    assert (runs / "failed-0.txt").read_text() == "rank 1: out of ink"


@pytest.mark.parametrize("others", [[], [7, 8]])
def test_pictures_of_another_ranks_trace_stay_as_long_as_its_prompt(others: list[int]) -> None:
    """Also where the prompt says more than its problem does, as in an environment."""
    seen: list[Any] = []

    class Seeing:
        def encode(self, messages: Any) -> Any:
            encoded = ids([-3, -4, 5])
            seen.append(weakref.ref(encoded))
            return encoded

    trace = Trace(Problem("a", user_messages("?")), [Step(None, "", ids([*others, -3, -4, 5]))])
    _read_pictures(trace, Seeing())  # type: ignore[arg-type]
    assert len(seen) == 1 and seen[0]() is not None
    trace.steps[0].token_ids = ids([1])
    assert seen[0]() is None


def test_job_that_does_not_train_over_ranks_is_refused(runs: Path) -> None:
    for rank in range(2):
        assert "Collect runs in one process" in (runs / f"collect-{rank}.txt").read_text()


def test_only_rank_0_writes_the_run_directory(runs: Path) -> None:
    status = json.loads((runs / "grpo-replicated" / "status.json").read_text())
    assert [row["cluster/ranks"] for row in read_metrics(runs / "grpo-replicated")] == [2.0] * 4
    assert status and [len(list(checkpoints(runs / f"grpo-{kind}"))) for kind in ("replicated", "fsdp")] == [2, 2]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_equal_prompts_stay_on_one_rank(ranks: int) -> None:
    questions = ["a", "b", "a", "c", "d", "b", "a"]
    problems = [Problem(str(i), ({"role": "user", "content": q},)) for i, q in enumerate(questions)]
    parts = indices_by_rank(problems, ranks)
    assert sorted(i for part in parts for i in part) == list(range(len(problems)))
    for question in set(questions):
        assert sum(any(questions[i] == question for i in part) for part in parts) == 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
