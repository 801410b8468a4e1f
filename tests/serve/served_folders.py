"""Small models in folders, for servers that are real processes: a policy, and scorers over its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from models.policy_contract import TOKENIZER, save_folder, small_net
from ponder.nets import hf
from ponder.nets.decoder_with_head import DecoderWithHead, HeadPrediction, ScoreHead


def save_policy(folder: Path) -> Path:
    return save_folder(folder)


def save_scorer(folder: Path, predicts: HeadPrediction = "value", **head: Any) -> Path:
    """A model with a random head over the policy's weights."""
    form = "number" if predicts in ("value", "reward") else "logit"
    net = DecoderWithHead.from_decoder(small_net(), ScoreHead(predicts, form, **head))
    with torch.no_grad():
        draw = torch.Generator().manual_seed(7)
        for p in net.score.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) * 0.2)
    hf.save(net, folder)
    TOKENIZER.save(folder)
    return folder
