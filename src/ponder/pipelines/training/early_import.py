"""When torch's compiler is imported beside the reading of weights."""

from __future__ import annotations

from typing import Any

from ponder.nets.hardware import pick_device
from ponder.nets.torch_compile import start_importing_compiler
from ponder.train.distributed import current_group


def import_compiler_early(job: Any) -> None:
    """Where the learner will compile its blocks. Not where adapters or FSDP import modules of torch meanwhile."""
    if job.lora is None and current_group().size == 1 and pick_device(job.device).type == "cuda":
        start_importing_compiler()
