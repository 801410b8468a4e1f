"""A step token: added to the vocabulary, learned, saved with the model, and cut at exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, run_async
from ponder.errors import TaskError, UsageError
from ponder.models.added_tokens import add_tokens
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf
from ponder.nets.lora import LoRA
from ponder.pipelines.problems.step_tokens import mark_steps
from ponder.pipelines.sft import FineTune
from ponder.pipelines.solve import solve
from ponder.reason.operators.cut import TokenCut, parse_cut
from ponder.reason.scorers import Likelihood
from ponder.reason.strategies import BeamSearch
from ponder.train.optimizer import AdamW
from ponder.types import Problem, Sampling, user_messages

STEP = "<step>"
MODEL = ScratchModel(ALPHABET + "\n", width=32, layers=1, heads=4, context=64)


def test_mark_steps_puts_the_token_after_each_step_but_the_last() -> None:
    assert mark_steps("1\n2\n3", STEP, "\n") == "1\n<step>2\n<step>3"
    assert mark_steps("1\n\n2", STEP, "\n") == "1\n<step>\n2", "an empty line is no step"
    assert mark_steps("1\n2\n", STEP, "\n") == "1\n<step>2\n", "the end of the answer ends the last step"
    assert mark_steps("12", STEP, "\n") == "12" and mark_steps("", STEP, "\n") == ""
    for text in ("1\n2\n3", "\n1\n", "1;2;3", "1\n\n2"):
        assert mark_steps(text, STEP, "\n").replace(STEP, "") == text


@pytest.mark.parametrize("tied", [True, False])
def test_added_token_gets_the_mean_row_and_leaves_the_others(tied: bool) -> None:
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    net, before = policy.net, policy.net.embed_tokens.weight.detach().clone()
    if tied:
        net.lm_head.weight = net.embed_tokens.weight
    else:
        net.lm_head.weight = torch.nn.Parameter(torch.randn_like(before))
    head = net.lm_head.weight.detach().clone()
    tokenizer = add_tokens(net, policy.tokenizer, [STEP])
    new = tokenizer.inner.token_to_id(STEP)
    assert new == len(before) and net.config.vocab == new + 1 == tokenizer.vocab_size
    for now, old in ((net.embed_tokens.weight, before), (net.lm_head.weight, head)):
        torch.testing.assert_close(now[:-1], old, rtol=0, atol=0)
        torch.testing.assert_close(now[-1], old.double().mean(0).float())
    assert policy.tokenizer.inner.token_to_id(STEP) is None, "the old tokenizer is as it was"
    assert add_tokens(net, tokenizer, [STEP]).vocab_size == new + 1, "a token that is there is not added again"
    assert tokenizer.encode(f"1{STEP}2", False).tolist().count(new) == 1
    with pytest.raises(UsageError, match="no token to add"):
        add_tokens(net, tokenizer, [" step"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learned to answer 9 with two steps and an end."""
    folder = tmp_path_factory.mktemp("steps")
    rows = [{"prompt": "9", "completion": "12\n34\n5"}]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    FineTune(
        str(folder / "data.jsonl"), MODEL, QUESTION_TEMPLATE, optimizer=AdamW(lr=2e-2), batch_size=1, steps=60,
        step_token=STEP, device="cpu", dtype="float32",
    )(folder / "run")  # fmt: skip
    return folder / "run"


def test_step_token_round_trip_through_a_saved_model(trained: Path, tmp_path: Path) -> None:
    policy = load_policy(str(trained), device="cpu", dtype="float32")
    new = policy.tokenizer.inner.token_to_id(STEP)
    assert new == policy.net.config.vocab - 1
    (completion,) = run_async(policy.generate(policy.encode(user_messages("9")), Sampling(0.0, max_tokens=20)))
    assert completion.text == "12\n<step>34\n<step>5" and completion.token_ids.tolist().count(new) == 2
    hf.save(policy.net, tmp_path / "again")
    policy.tokenizer.save(tmp_path / "again")
    again = load_policy(str(tmp_path / "again"), device="cpu", dtype="float32")
    assert (
        again.tokens(STEP).tolist() == [new]
        and json.loads((tmp_path / "again/config.json").read_text())["vocab_size"] == again.net.config.vocab
    )
    torch.testing.assert_close(again.net.lm_head.weight, policy.net.lm_head.weight, rtol=0, atol=0)


def test_search_cuts_at_exactly_the_step_token(trained: Path) -> None:
    policy = load_policy(str(trained), device="cpu", dtype="float32")
    cut = parse_cut(f"token:{STEP}")
    assert cut == TokenCut(STEP)
    search = BeamSearch(n=2, beam_width=2, cut=cut, choose="best", sampling=Sampling(0.01, max_tokens=20))
    trace = run_async(solve(Problem("p", user_messages("9"), "5"), search, policy, guide=Likelihood()))
    (new,) = policy.tokens(STEP)
    assert trace.chosen is not None
    texts = [trace.steps[i].text for i in trace.path(trace.chosen)[1:]]
    assert texts == ["12\n<step>", "34\n<step>", "5"]
    for i in trace.path(trace.chosen)[1:-1]:
        assert np.flatnonzero(trace.steps[i].token_ids == new).tolist() == [len(trace.steps[i].token_ids) - 1]


def test_cut_at_a_token_that_the_model_lacks_says_how_to_get_it() -> None:
    policy = load_policy(replace(MODEL, alphabet=ALPHABET + "<step>"), QUESTION_TEMPLATE, "cpu", "float32")
    with pytest.raises(UsageError, match=r"6 tokens of this model, not one.*--step-token.*mark:<step>"):
        TokenCut(STEP).resolve(policy)


def test_step_token_refuses_what_cannot_learn_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="learned in the embeddings"):
        FineTune("x.jsonl", MODEL, step_token=STEP, lora=LoRA(2))
    with pytest.raises(UsageError, match="step_separator is empty"):
        FineTune("x.jsonl", MODEL, step_token=STEP, step_separator="")
    (tmp_path / "data.jsonl").write_text('{"prompt": "1", "completion": "2", "token_ids": [3]}\n')
    job = FineTune(str(tmp_path / "data.jsonl"), MODEL, QUESTION_TEMPLATE, step_token=STEP, device="cpu")
    with pytest.raises(TaskError, match=r"leave out 'token_ids', or step_token"):
        job(tmp_path / "run")
