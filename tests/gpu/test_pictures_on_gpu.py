"""Vision-language models on a GPU: graphs sample what the learner computes, and both equal the processor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fakes import run_async
from models.picture_policies import MODEL, a_picture, asked, credited, qwen_net, sample
from ponder.engine.cuda_graph_runner import CudaGraphRunner
from ponder.models.ponder_policy import PonderPolicy
from ponder.nets.decoder import Decoder
from ponder.train.learner import Learner
from ponder.train.policy_gradient import GRPO
from ponder.types import Trace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
KINDS = ["tiles", "qwen"]


def policy_on(kind: str, device: str, dtype: torch.dtype = torch.float32) -> PonderPolicy:
    """The same weights on every device, with a connector by which pictures matter."""
    net, tokenizer = MODEL.build(torch.float32, torch.device("cpu"))
    net = qwen_net(tokenizer) if kind == "qwen" else net
    with torch.no_grad():
        connector = net.visual.merger.mlp[2] if kind == "qwen" else net.connector.modality_projection.proj
        connector.weight.mul_(30)
    return PonderPolicy(net.to(device, dtype), tokenizer)


def wait_for_graphs(policy: PonderPolicy) -> bool:
    """Whether the policy is sampled with graphs, once their kernels are there."""
    sample(policy, policy.encode(asked(a_picture())), n=1)
    runner = policy.engine._runner
    assert runner is not None
    runner.wait_for_kernels()
    return isinstance(runner, CudaGraphRunner) and runner.ready.is_set()


def traces_of(policy: PonderPolicy) -> list[Trace]:
    return [credited(policy, asked(a_picture(), a_picture(96, 64))), credited(policy, asked(a_picture(48, 128))),
            credited(policy, [{"role": "user", "content": "no picture"}])]  # fmt: skip


def largest_gap(net: Decoder, traces: list[Trace]) -> float:
    steps = [step for trace in traces for step in trace.steps[1:]]
    Learner(net, GRPO(kl=None)).write_notes(traces, steps, "again", net)
    return max(float(np.abs(step.notes["again"] - step.logprobs).max()) for step in steps)


@pytest.mark.parametrize("kind", KINDS)
def test_sampler_and_learner_agree_about_pictures(kind: str) -> None:
    policy = policy_on(kind, "cuda")
    assert wait_for_graphs(policy) == (kind == "tiles")
    traces = traces_of(policy)
    assert largest_gap(policy.net, traces) < 1e-4
    policy.engine.close()


def test_graphs_hear_of_new_weights_of_the_tower() -> None:
    policy = policy_on("tiles", "cuda")
    assert wait_for_graphs(policy)
    prompt, target = policy.encode(asked(a_picture())), policy.tokens("[12, 30]")
    before = run_async(policy.token_logprobs(prompt, target))
    with torch.no_grad():
        policy.net.vision_model.embeddings.patch_embedding.weight.mul_(3)
    policy.version += 1
    after = run_async(policy.token_logprobs(prompt, target))
    assert np.abs(before - after).max() > 1e-3
    trace = credited(policy, asked(a_picture()))
    assert largest_gap(policy.net, [trace]) < 1e-4
    policy.engine.close()


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_all_parts_equals_the_processors(kind: str) -> None:
    here = policy_on(kind, "cpu")
    traces = traces_of(here)
    expected = Learner(here.net, GRPO(kl=None)).gradient(traces)
    there = policy_on(kind, "cuda")
    found = Learner(there.net, GRPO(kl=None)).gradient(traces)
    assert expected.keys() == found.keys()
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        assert (found[name].cpu() - gradient).abs().max() < 1e-4 * largest, name
    here.engine.close()


def test_image_token_is_never_sampled_by_graphs() -> None:
    policy, token = policy_on("tiles", "cuda"), 7
    net = policy.net
    net.config = replace(net.config, vision=replace(net.config.vision, image_token=token))
    with torch.no_grad():  # it would be the likeliest token by far
        net.lm_head.weight[token] = 50 * net.lm_head.weight[9]
    policy = PonderPolicy(net, policy.tokenizer)
    assert wait_for_graphs(policy)
    done = sample(policy, policy.encode(asked(a_picture())), n=256)
    assert not any(token in completion.token_ids for completion in done)
    policy.engine.close()
