"""New weights for vLLM's workers as ponder publishes them, through vLLM's own routes for that.

vLLM imports this module in each worker process (`--worker-extension-cls`), which registers a weight-transfer backend
with it. What `/update_weights` is sent is then a `WeightManifest` as JSON, and the worker itself reads the tensors from
where they lie: CUDA IPC, shared memory, a file, or TCP. vLLM's own backends want pickled handles.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from ponder.errors import ModelError
from ponder.models.replicas.vllm_server import BACKEND, OWNER_VARIABLE
from ponder.nets.hf import stored_name
from ponder.nets.publish_weights import WeightManifest, WeightReader


@dataclass
class PonderInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on before the first version."""


@dataclass
class PonderUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    manifest: dict[str, Any] = field(default_factory=dict)


class PonderWeightTransfer(WeightTransferEngine):  # type: ignore[misc]
    init_info_cls, update_info_cls = PonderInitInfo, PonderUpdateInfo

    def init_transfer_engine(self, init_info: PonderInitInfo) -> None:
        self._reader = WeightReader()

    def receive_weights(
        self, update_info: PonderUpdateInfo, load_weights: Callable[[list[tuple[str, Tensor]]], Any]
    ) -> None:
        """Check a version whole, then load it: vLLM merges, splits and quantises as from a file."""
        tensors = self._reader.read(WeightManifest.from_json(update_info.manifest))
        load_weights([(stored_name(name), tensor) for name, tensor in tensors.items()])

    def shutdown(self) -> None:
        pass

    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, Tensor]], trainer_args: Any) -> None:
        raise ModelError("ponder's learner publishes weights itself (ponder.nets.publish_weights)")


class PonderWorkerExtension:
    """What vLLM adds to its worker class. Importing this module was all that is needed."""


def end_with_owner(pid: int) -> None:
    """End this process when the replica process that started vLLM ends, however that ends."""
    try:
        owner = os.pidfd_open(pid)
    except OSError:  # a kernel without it, or a process that is gone: look every second
        owner = -1

    def wait() -> None:
        if owner >= 0:
            select.select([owner], [], [])
        while owner < 0 and os.path.exists(f"/proc/{pid}"):
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=wait, name="owner", daemon=True).start()


WeightTransferEngineFactory.register_engine(BACKEND, PonderWeightTransfer)
if OWNER_VARIABLE in os.environ:
    end_with_owner(int(os.environ[OWNER_VARIABLE]))
