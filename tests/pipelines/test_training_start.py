"""What a training run imports before its first step, and what it must not wait for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fakes import tiny_decoder, trace_group
from ponder.nets import torch_compile
from ponder.pipelines.training import early_import
from ponder.pipelines.training.early_import import import_compiler_early
from ponder.train.learner import Learner
from ponder.train.policy_gradient import GRPO


def test_training_on_a_cpu_does_not_import_torchs_compiler(tmp_path: Path) -> None:
    """Its import takes seconds, and without a GPU nothing is compiled."""
    program = (
        "import sys\n"
        "from ponder.models.scratch_model import ScratchModel\n"
        "from ponder.pipelines import offline_rl, reward_model, sft\n"
        "from ponder.pipelines.rl import RL\n"
        "from ponder.tasks.generated.addition import Addition\n"
        "from ponder.types import Sampling\n"
        "alphabet = ''.join(map(chr, range(32, 127))) + '\\n'\n"
        "model = ScratchModel(alphabet, width=16, layers=1, heads=2, context=128)\n"
        "RL(task=Addition(), model=model, template=\"{{ messages[0]['content'] }}\", steps=1, problems_per_step=2,\n"
        "   group_size=2, sampling=Sampling(max_tokens=2), device='cpu', dtype='float32')(sys.argv[1])\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'sympy', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run")], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "[]", done.stderr
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("device", "adapter", "ranks", "expected"),
    [("cuda", None, 1, 1), ("cpu", None, 1, 0), ("cuda", "adapter", 1, 0), ("cuda", None, 2, 0)],
)
def test_compiler_is_imported_early_where_blocks_will_be_compiled(
    monkeypatch: pytest.MonkeyPatch, device: str, adapter: str | None, ranks: int, expected: int
) -> None:
    starts: list[int] = []
    monkeypatch.setattr(early_import, "start_importing_compiler", lambda: starts.append(1))
    monkeypatch.setattr(early_import, "pick_device", torch.device)
    monkeypatch.setattr(early_import, "current_group", lambda: SimpleNamespace(size=ranks))
    import_compiler_early(SimpleNamespace(device=device, lora=adapter))
    assert len(starts) == expected


def test_learner_waits_for_the_import_before_any_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a plain pass makes torch import its compiler; two such imports at once can fail."""
    joined: list[int] = []
    monkeypatch.setattr(torch_compile, "_imports", [SimpleNamespace(join=lambda: joined.append(1))])
    trace = trace_group([1, 5], [[6, 7, 8]], [1.0])
    trace.steps[1].advantages = np.ones(3, np.float32)
    learner = Learner(tiny_decoder(), GRPO(kl=None))
    assert not joined
    learner.gradient([trace])
    assert joined
