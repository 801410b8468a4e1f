from __future__ import annotations

import pytest
import torch

from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchModel


def test_first_weights_have_the_std_that_was_asked_for() -> None:
    for std in (0.02, 0.08):
        net, _ = ScratchModel("0123456789+=", width=64, layers=2, heads=2, weight_std=std).build(
            torch.float32, torch.device("cpu")
        )
        found = {name: p.std().item() for name, p in net.named_parameters() if p.dim() == 2 and p.numel() > 1000}
        residual = {name for name in found if name.endswith(("o_proj.weight", "down_proj.weight"))}
        assert len(residual) == 4 and len(found) > 10
        for name, measured in found.items():
            assert measured == pytest.approx(std / 2 if name in residual else std, rel=0.05), name


@pytest.mark.parametrize("std", [0.0, -0.02, 1.0, float("nan")])
def test_an_impossible_std_is_refused(std: float) -> None:
    with pytest.raises(UsageError, match="weight_std"):
        ScratchModel("ab", weight_std=std)
