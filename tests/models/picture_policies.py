"""A tiny policy that sees, questions about pictures, and traces with advantages, for tests of engine and learner."""

from __future__ import annotations

import numpy as np

from fakes import run_async
from ponder.models.scratch_model import ScratchModel, ScratchVision
from ponder.nets.config import DecoderConfig, RopeConfig
from ponder.nets.decoder import init_decoder
from ponder.nets.qwen_vision_config import QwenVisionConfig
from ponder.pictures.message_parts import image_part, text_part
from ponder.pictures.picture import Picture
from ponder.tasks import LocateShape
from ponder.types import Sampling, Step, prompt_trace

ALPHABET = "".join(map(chr, range(32, 127))) + "\n"
MODEL = ScratchModel(
    ALPHABET, width=32, layers=2, heads=2, context=512, vision=ScratchVision(width=24, layers=1, heads=2)
)
TASK = LocateShape(style="direct")
RNG = np.random.default_rng(0)


def a_picture(width=64, height=64):
    return Picture.from_pixels(RNG.integers(0, 256, (height, width, 3), dtype=np.uint8))


def asked(*pictures, text="Where is it?"):
    return [{"role": "user", "content": [*map(image_part, pictures), text_part(text)]}]


def qwen_net(tokenizer):
    vision = QwenVisionConfig(24, 2, 2, 48, patch=8, merge=2, window=32, full_layers=(1,), out_width=32)
    rope = RopeConfig(1e6, sections=(2, 3, 3))
    return init_decoder(
        DecoderConfig("qwen2", tokenizer.vocab_size, 32, 2, 2, 2, 16, 64, context=512, rope=rope, qkv_bias=True,
                      vision=vision, eos=tuple(tokenizer.eos), bos=tokenizer.bos), 0,
    )  # fmt: skip


def sample(policy, prompt, n=4, seed=0, **more):
    return run_async(policy.generate(prompt, Sampling(max_tokens=12, seed=seed, **more), n))


def credited(policy, messages, advantages=(1.0, -1.0, 0.5, 0.0)):
    prompt = policy.encode(messages)
    problem = TASK.train[0]
    trace = prompt_trace(problem, prompt)
    for completion, advantage in zip(sample(policy, prompt), advantages, strict=True):
        step = Step(0, completion.text, completion.token_ids, completion.logprobs, stop=completion.stop)
        step.advantages = np.full(len(completion.token_ids), advantage, np.float32)
        trace.add(step)
    return trace
