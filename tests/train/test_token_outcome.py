"""The outcome reward model that learns at every token: loss and gradient against float64, dropout, the best weights,
and fewer questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fakes import ALPHABET, QUESTION_TEMPLATE, mixed_groups, perturb, tiny_decoder, trace_group
from float64_losses import gap
from ponder import full_disk, signals
from ponder.errors import RunError, UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.nets.decoder import Block
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.pipelines import reward_model
from ponder.pipelines.reward_model import BestWeights, TrainRewardModel
from ponder.runs import read_metrics
from ponder.runs.data_files import FILTER_REPORT_FILE
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.reward_learner import make_reward_learner, predict
from ponder.train.reward_objectives import LM_SHARE_NOTE, TokenOutcomeReward
from ponder.types import Score, Step, Trace, ids
from reference_decoder import plain_hidden, plain_logprobs, weights64


def learner_of(rule: TokenOutcomeReward, micro: int = 10**9, **compute: Any) -> Learner:
    net = perturb(DecoderWithHead.from_decoder(tiny_decoder(scale=0.1), rule.head), 0.05, seed=4)
    assert isinstance(net, DecoderWithHead)
    return make_reward_learner(net, rule, AdamW(lr=1e-9), max_tokens_per_microbatch=micro, **compute)


def labelled() -> list[Trace]:
    """Answers of one step, of one token, undecided ones, and one of two steps with a tool's output between them."""
    long = trace_group([5, 9], [[7, 8, 2]], [1.0])
    likely = np.full(2, -1.0, np.float32)
    at = long.add(Step(0, "", ids([11, 12]), likely, "stop"))
    at = long.add(Step(at, "", ids([30, 31, 32])))
    last = Step(at, "", ids([13, 2]), likely, "eos")
    last.scores["wanted"] = Score(1.0)
    long.add(last)
    return [*mixed_groups(tool=False), long]


def sampled_spans(trace: Trace, leaf: int) -> list[tuple[int, int]]:
    own = [i for i in trace.path(leaf)[1:] if trace.steps[i].sampled]
    return [(len(trace.token_ids(i)) - len(trace.steps[i].token_ids), len(trace.token_ids(i))) for i in own]


@pytest.mark.parametrize("lm_weight", [0.0, 0.7])
def test_loss_and_gradient_match_the_formula_in_any_microbatches(lm_weight: float) -> None:
    rule, traces = TokenOutcomeReward(lm_weight=lm_weight), labelled()
    net = learner_of(rule).net
    w = weights64(net)
    judged, written, ends = [], [], []
    for trace in traces:
        for leaf in trace.answers():
            if (y := trace.score(leaf, "wanted")) is None:
                continue
            tokens = trace.token_ids(leaf).tolist()
            z = plain_hidden(w, net.config, tokens) @ w["score.weight"][0]
            ends.append(float(z[-1].detach()))
            read = torch.cat([z[a:b] for a, b in sampled_spans(trace, leaf)])
            judged.append((torch.log1p(torch.exp(-read)) * y + torch.log1p(torch.exp(read)) * (1 - y)).mean())
            if y > 0.5:
                written += [plain_logprobs(net, w, tokens[:b], b - a) for a, b in sampled_spans(trace, leaf)]
    total = torch.stack(judged).mean() - lm_weight * torch.cat(written).mean()
    total.backward()
    expected = {n: x.grad for n, x in w.items() if x.grad is not None}
    assert rule.credit(traces, "wanted", {}) == {"labels": len(judged)}
    for micro in (1, 30, 10**9):
        assert gap(learner_of(rule, micro).gradient(traces), expected) < 1e-5, micro
    learner = learner_of(rule, 30)
    read_at_ends = [float(z[0]) for _, _, numbers in predict(learner, traces) for z in numbers]
    assert sorted(read_at_ends) == pytest.approx(sorted(ends), abs=1e-5), "it is read at the end"
    metrics = learner.step(traces)
    assert metrics["loss"] == pytest.approx(float(total.detach()), rel=1e-5)
    if lm_weight:
        assert metrics["loss/lm"] == pytest.approx(-float(torch.cat(written).mean().detach()), rel=1e-5)


def test_answers_that_share_steps_are_refused() -> None:
    trace = trace_group([5, 9], [[7, 8]], [None])
    trace.steps[1].stop = "stop"
    for label, token in ((1.0, 11), (0.0, 12)):
        step = Step(1, "", ids([token, 2]), np.full(2, -1.0, np.float32), "eos")
        step.scores["wanted"] = Score(label)
        trace.add(step)
    with pytest.raises(UsageError, match="share steps"):
        TokenOutcomeReward().credit([trace], "wanted", {})
    with pytest.raises(UsageError, match="lm_weight"):
        TokenOutcomeReward(lm_weight=-1)


def test_without_a_right_answer_there_is_no_language_model_loss() -> None:
    traces = [trace_group([5, 9], [[7, 2], [8, 2]], [0.0, 0.0])]
    TokenOutcomeReward().credit(traces, "wanted", {})
    assert all(not s.notes[LM_SHARE_NOTE].any() for s in traces[0].steps[1:])


def test_dropout_is_only_of_the_gradient_and_a_function_of_the_step() -> None:
    rule, traces = TokenOutcomeReward(), labelled()
    rule.credit(traces, "wanted", {})
    plain, dropped = learner_of(rule), learner_of(rule, residual_dropout=0.5, dropout_seed=3)
    state = torch.get_rng_state()
    first, again = dropped.gradient(traces), dropped.gradient(traces)
    assert gap(again, first) == 0.0 and torch.equal(torch.get_rng_state(), state)
    assert gap(first, plain.gradient(traces)) > 0.01
    other = learner_of(rule, residual_dropout=0.5, dropout_seed=4).gradient(traces)
    assert gap(other, first) > 0.01
    assert gap(dropped.probe_gradient(traces, list(dropped.net.parameters())).grads, plain.gradient(traces)) == 0.0
    blocks = [m for m in dropped.net.modules() if isinstance(m, Block)]
    assert blocks and all(b.residual_dropout == 0.0 for b in blocks)
    scores = [np.concatenate([numbers for _, _, numbers in predict(learner, traces)]) for learner in (plain, dropped)]
    assert np.array_equal(*scores)


def test_dropout_keeps_what_a_block_adds_in_the_mean() -> None:
    block = tiny_decoder().layers[0]
    assert isinstance(block, Block)
    x = torch.ones(200_000)
    block.residual_dropout = 0.25
    torch.manual_seed(0)
    dropped = block._drop(x)
    assert dropped.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert float(dropped.mean()) == pytest.approx(1, abs=0.01)


def test_best_weights_are_those_of_the_lowest_loss(tmp_path: Path) -> None:
    rule, traces = TokenOutcomeReward(), labelled()
    rule.credit(traces, "wanted", {})
    learner = learner_of(rule)
    learner.master_weights.settings = AdamW(lr=1e-2)
    best, memory, kept = BestWeights(tmp_path / "best.safetensors", learner), {"temperature": 1.0}, {}
    for loss, temperature in ((0.6, 1.5), (0.4, 2.5), (0.5, 3.5)):
        learner.step(traces)
        memory["temperature"] = temperature
        best.keep_if_better({"test/nll": loss}, memory)
        if loss == 0.4:
            kept = learner.copy_weights()
    assert best.load(memory) == 2.0 and memory["temperature"] == 2.5
    now = dict(learner.net.named_parameters())
    assert all(torch.equal(now[name].detach(), w) for name, w in kept.items())


FULL = "Error while serializing: I/O error: No space left on device (os error 28)"


def fill_disk(monkeypatch: pytest.MonkeyPatch, times: int, message: str = FULL) -> list[Path]:
    """Saving fails so many times as safetensors does, with half a file; returns the paths that were tried."""
    real, tries = reward_model.save_file, []

    def save(weights: dict[str, torch.Tensor], path: Path) -> None:
        tries.append(path)
        if len(tries) <= times:
            path.write_bytes(b"half")
            raise SafetensorError(message)
        real(weights, path)

    monkeypatch.setattr(reward_model, "save_file", save)
    monkeypatch.setattr(full_disk, "FIRST_RETRY_SECONDS", 0.01)
    return tries


def test_best_weights_wait_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = fill_disk(monkeypatch, 2)
    best, memory = BestWeights(tmp_path / "best.safetensors", learner_of(TokenOutcomeReward())), {"temperature": 1.0}
    best.keep_if_better({"test/nll": 0.5}, memory)
    assert len(tries) == 3 and [p.name for p in tmp_path.iterdir()] == ["best.safetensors"]
    weights = best.learner.copy_weights()
    assert all(torch.equal(w, weights[name]) for name, w in load_file(best.path).items())
    output = capsys.readouterr().err
    assert "the disk is full: " in output and "best.safetensors needs at least " in output
    assert "there is room again" in output


@pytest.mark.parametrize("message", [FULL, "Error while serializing: I/O error: Input/output error (os error 5)"])
def test_failed_save_of_best_weights_is_one_sentence_and_keeps_the_previous_ones(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, memory = BestWeights(tmp_path / "best.safetensors", learner_of(TokenOutcomeReward())), {"temperature": 1.0}
    best.keep_if_better({"test/nll": 0.5}, memory)
    before = best.path.read_bytes(), dict(memory)
    fill_disk(monkeypatch, 9, message)
    wants = lambda: True  # noqa: E731
    signals.add_stop_check(wants)  # the user stops a run that waits for space
    try:
        with pytest.raises(RunError, match=r"cannot save .*best\.safetensors \(Error .*: fix this and run again"):
            best.keep_if_better({"test/nll": 0.4}, memory)
    finally:
        signals.remove_stop_check(wants)
    assert (best.path.read_bytes(), memory) == before and len(list(tmp_path.iterdir())) == 1


def write_labels(path: Path, questions: int) -> Path:
    rows = [
        {"prompt": f"{i}+{i % 7}?", "completion": f"{i + i % 7 + wrong}", "label": not wrong}
        for i in range(questions)
        for wrong in (0, 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_job_keeps_the_best_and_learns_from_fewer_questions(tmp_path: Path) -> None:
    data = write_labels(tmp_path / "labels.jsonl", 80)
    model = ScratchModel(ALPHABET, width=16, layers=1, heads=2, context=24)
    job = TrainRewardModel(
        (str(data),), model, TokenOutcomeReward(), QUESTION_TEMPLATE, optimizer=AdamW(lr=3e-2), batch_size=16,
        residual_dropout=0.1, keep_best=True, eval_every=2, steps=8, save_every=8, train_tenths=3, held_out_tenths=3,
        device="cpu", dtype="float32",
    )  # fmt: skip
    job(tmp_path / "run")
    rows = read_metrics(tmp_path / "run")
    measured = {row["step"]: row["test/nll"] for row in rows if "test/nll" in row}
    assert len(measured) == 4 and not list((tmp_path / "run").glob("best*"))
    best = int(rows[-1]["best_step"])
    assert measured[rows[best - 1]["step"]] == min(measured.values())
    assert "in 3 tenths of the training questions" in (tmp_path / "run" / FILTER_REPORT_FILE).read_text()


def test_wrong_settings_are_refused() -> None:
    for wrong in (
        {"train_tenths": 0},
        {"residual_dropout": 1.0},
        {"eval_every": -1},
        {"keep_best": True, "held_out_tenths": 0},
    ):
        with pytest.raises(UsageError):
            TrainRewardModel(("x",), **wrong)
