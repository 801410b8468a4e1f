"""An implicit reward model behind a server: the same scores as in this process, of parts and of a search's traces."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import perturb, run_async
from models.policy_contract import TOKENIZER, small_net
from ponder.models.load_scorer import load_scorer
from ponder.models.ponder_server import _parse_head
from ponder.models.reward_models import ImplicitRewardModel
from ponder.nets import hf
from ponder.nets.decoder_with_reference import DecoderWithReference
from ponder.serve.api.score import score
from ponder.serve.api.tokenize import tokenizer
from ponder.serve.errors import ApiError
from ponder.serve.json_body import Fields
from ponder.serve.load_models import load_served_models
from ponder.train.reward_objectives import ImplicitReward


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("implicit") / "judge"
    net = DecoderWithReference.from_decoder(small_net(), ImplicitReward(0.5).head)
    hf.save(perturb(net, 0.05), home)
    TOKENIZER.save(home)
    TOKENIZER.save(home / hf.REFERENCE_FOLDER)
    return home


def call(models: Any, **body: Any) -> Any:
    return json.loads(json.dumps(run_async(score(Fields(body), models)), allow_nan=False))


def test_served_scores_are_those_of_this_process(folder: Path) -> None:
    models = load_served_models([f"judge={folder}"], device="cpu", dtype="float32")
    here = load_scorer(str(folder), "cpu", "float32")
    assert isinstance(here, ImplicitRewardModel)
    head = json.loads(json.dumps(run_async(tokenizer(Fields({}), models))))["head"]
    assert head == {"predicts": "implicit", "separator": "\n", "reading": "ratio", "temperature": 2.0}
    assert _parse_head(head) == here.reader.head, "what a client makes of it"
    reply = call(models, prompt="12+3=", steps=["1", "5"])
    prompt, parts = TOKENIZER.encode("12+3="), [TOKENIZER.encode(p) for p in ("1", "5")]
    tokens = np.array([*prompt, *parts[0], *parts[1]], np.int32)
    ends = [len(prompt) + len(parts[0]), len(tokens)]
    sums, _ = run_async(here.reader(tokens, [len(prompt) - 1, *(e - 1 for e in ends)]))
    expected = [1 / (1 + math.exp(-0.5 * (b - a))) for a, b in itertools.pairwise(sums)]
    assert reply["scores"] == pytest.approx(expected, rel=1e-5) and reply["predicts"] == "implicit"
    raw = call(models, token_ids=tokens.tolist(), positions=[len(prompt) - 1, *(e - 1 for e in ends)])
    assert raw["scores"] == pytest.approx(sums, rel=1e-5), "what a remote reader asks for"
    with pytest.raises(ApiError) as error:
        call(models, prompt="12+3=")
    assert "what follows a prompt" in error.value.message
