"""ProcessBench by a judge whose every number is known: what is found, what is missed, what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, run_async
from ponder.errors import TaskError, UsageError
from ponder.measure.statistics.verifier_metrics import score_first_errors
from ponder.models.load import load_policy
from ponder.models.load_scorer import make_head_reader
from ponder.models.logprob_reader import LogprobReader
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.reward_models import PRM, ImplicitRewardModel
from ponder.models.scratch_model import ScratchModel
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead
from ponder.pipelines.processbench import evenly_spaced, process_bench
from ponder.pipelines.rewards.labelled_traces import tokenize_trace
from ponder.tasks.step_labels import processbench_labels
from ponder.types import Trace


def judge(**head: Any) -> PRM:
    """Finds a step with a "b" in it wrong, by an embedding that says so; everything else passes through."""
    policy = load_policy(
        ScratchModel(ALPHABET + "\n", width=32, layers=1, heads=4, context=64), QUESTION_TEMPLATE, "cpu", "float32"
    )
    net = DecoderWithHead.from_decoder(policy.net, ScoreHead("process", "logit", **head))
    assert isinstance(net.score, torch.nn.Linear)
    good, bad = (int(policy.tokens(c)[0]) for c in "ab")
    with torch.no_grad():
        for block in net.layers:
            block.self_attn.o_proj.weight.zero_()  # type: ignore[union-attr,operator]
            block.mlp.down_proj.weight.zero_()  # type: ignore[union-attr,operator]
        net.embed_tokens.weight.zero_()
        net.embed_tokens.weight[good, 0], net.embed_tokens.weight[bad, 0] = 1.0, -1.0
        net.score.weight[0, 0] = 1.0
    return PRM(make_head_reader(PonderPolicy(net, policy.tokenizer)))


def solutions(folder: Path, *rows: tuple[list[str], int]) -> list[Trace]:
    path = folder / "part.json"
    path.write_text(json.dumps([{"problem": "1+1=", "steps": steps, "label": label} for steps, label in rows]))
    traces = processbench_labels.read_processbench(str(path))
    for trace in traces:  # the last letter of a step is what this judge reads
        for step in trace.steps[1:]:
            step.text, step.last = step.text.removesuffix("\n"), False
    return traces


def test_first_wrong_steps_are_found(tmp_path: Path) -> None:
    rows = [(["a", "b", "a"], 1), (["a", "a"], -1), (["b"], 0), (["a", "b"], 0), (["a", "b"], -1), (["a"], -1)]
    result = process_bench(judge(), solutions(tmp_path, *rows))
    assert (result.result.error_accuracy, result.result.correct_accuracy) == (2 / 3, 2 / 3)
    assert result.result.f1 == pytest.approx(2 / 3) and result.result.solutions == 6 and not result.num_unread
    assert result.best_result.f1 >= result.result.f1
    low = process_bench(judge(), solutions(tmp_path, *rows), threshold=0.001)
    assert (low.result.error_accuracy, low.result.correct_accuracy) == (
        0.0,
        1.0,
    ) and low.best_result.f1 == result.best_result.f1


def test_solutions_that_do_not_fit_stay_in_the_denominator(tmp_path: Path) -> None:
    rows = [(["a" * 80], -1), (["a"], -1), (["b"], 0)]
    message: list[int] = []
    result = process_bench(judge(), solutions(tmp_path, *rows), watch=message.append)
    assert result.num_unread == 1 and result.result.solutions == 3 and message == [3]
    assert (result.result.error_accuracy, result.result.correct_accuracy) == (1.0, 0.5), (
        "of two without an error one was read"
    )
    with pytest.raises(TaskError, match="none of 1 solutions fits"):
        process_bench(judge(), solutions(tmp_path, rows[0]))


def test_implicit_reward_models_are_read_by_each_steps_own_tokens(tmp_path: Path) -> None:
    policy = load_policy(
        ScratchModel(ALPHABET + "\n", width=32, layers=1, heads=4, context=64), QUESTION_TEMPLATE, "cpu", "float32"
    )
    model = ImplicitRewardModel(LogprobReader(policy, None, ScoreHead("implicit", "logit", reading="likelihood")))
    rows = [(["ab", "ba", "a"], 1), (["aab", "a"], -1), (["b"], 0)]
    traces = solutions(tmp_path, *rows)
    found = []
    for trace in traces:
        read = tokenize_trace(trace, policy)
        means = []
        for i in range(1, len(read.steps)):
            begin = len(read.token_ids(i)) - len(read.steps[i].token_ids)
            tokens = read.token_ids(i)
            means.append(float(np.exp(run_async(policy.token_logprobs(tokens[:begin], tokens[begin:])).mean())))
        found.append(means)
    limit = float(np.median([x for means in found for x in means]))
    expected = score_first_errors(
        [next((i for i, x in enumerate(means) if x < limit), -1) for means in found], [1, -1, 0]
    )
    assert process_bench(model, traces, limit).result == expected


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    traces = solutions(tmp_path, (["a"], -1), (["b"], 0))
    with pytest.raises(UsageError, match="between 0 and 1"):
        process_bench(judge(), traces, threshold=1.0)
    with pytest.raises(UsageError, match="per step"):
        process_bench(PRM(judge().reader, granularity="line"), traces)
    with pytest.raises(UsageError, match="without reads_logprobs"):
        process_bench(judge(logprob_weights=(1.0, 0.0, 0.0, 0.0)), traces)
    with pytest.raises(UsageError, match="auto, step or line"):
        PRM(judge().reader, granularity="word")  # type: ignore[arg-type]


def test_limit_takes_solutions_from_the_whole_file() -> None:
    assert evenly_spaced(list(range(10)), 4) == [0, 2, 5, 7]
    assert evenly_spaced(list(range(3)), 4) == evenly_spaced(list(range(3)), None) == [0, 1, 2]
