"""A job that memory cannot hold is refused in one sentence before anything of its size is made."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ponder import memory_check
from ponder.errors import UsageError
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.label import Label
from ponder.pipelines.make_problems import MakeProblems
from ponder.pipelines.problems.shuffled_order import shuffled_indices
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.reason.strategies import Samples
from ponder.tasks import Addition, Countdown, Maze, Sorting
from ponder.tasks.generated.programs import Programs
from ponder.types import Sampling, ids

MANY = 100_000_000
MANY_TIMES_MORE = 10**12
TASK = Addition()


@pytest.mark.parametrize(
    "job",
    [
        RL(TASK, problems_per_step=MANY),
        RL(TASK, strategy=Samples(MANY)),
        FineTune(TASK, batch_size=MANY),
        Collect(TASK, limit=MANY),
        Collect(TASK, strategy=Samples(MANY)),
        Label(TASK, strategy=Samples(MANY)),
        MakeProblems(source="templates", file="x.json", count=MANY),
    ],
    ids=lambda job: type(job).__name__,
)
def test_a_job_that_does_not_fit_is_refused_before_it_begins(job: Any, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match=r"100,000,000.* would take at least .* GB of memory, and .* are free: lower"):
        job(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


@pytest.mark.parametrize(
    "make",
    [
        lambda: replace(TASK, test_size=MANY_TIMES_MORE).test,
        lambda: shuffled_indices(MANY_TIMES_MORE, 0, 0, 4),
        lambda: Addition(digits=MANY),
        lambda: Countdown(largest=MANY),
        lambda: Countdown(highest=MANY),
        lambda: Maze(extra_openings=MANY),
        lambda: Sorting(digits=MANY),
        lambda: Programs(examples=MANY),
    ],
)
def test_task_too_large_for_memory_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=r"lower|at most"):
        make()


def test_too_many_completions_are_refused() -> None:
    net, tokenizer = ScratchModel("ab", width=16, layers=1, heads=2, context=8).build(
        torch.float32, torch.device("cpu")
    )
    with pytest.raises(UsageError, match=r"^n 100,000,000,000 would take at least"):
        asyncio.run(PonderPolicy(net, tokenizer).generate(ids([1]), Sampling(max_tokens=2), 1000 * MANY))


def test_sizes_that_fit_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "free_memory", lambda: 10**9)
    memory_check.require_trace_memory({"prompts": 1000}, {"n": 64})
    memory_check.require_memory(10**9, n=1)
    with pytest.raises(UsageError, match=r"^prompts 2,000, n 1,000 would take at least 2 GB .* 1.0 GB are free: lower"):
        memory_check.require_trace_memory({"prompts": 2000}, {"n": 1000})


def test_limit_above_the_number_of_problems_is_accepted(tmp_path: Path) -> None:
    Evaluate(TASK, limit=MANY)
    with pytest.raises(Exception, match="model"):  # it goes on to load one
        Label(TASK, model="/no such model", limit=MANY)(tmp_path / "run")
