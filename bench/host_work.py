"""The host's work for many sequences on a GPU: scheduling, tables and answers, with a network that computes nothing.

The searches of engine_tree.py, in the engine and the runner of a GPU, on a CPU: in place of the network, each row's next
token is a function of its random number. What is left is the time that the device would wait for the host, together
with what it would not. Processor time of the whole process, and of the engine's thread alone.

    python bench/host_work.py                     64 problems, 16 beams, 20 steps of 32 tokens
    python bench/host_work.py --profile           where it goes, function by function (slower)
"""

from __future__ import annotations

import cProfile
import hashlib
import pstats
import threading
import time
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from engine_tree import search
from harness import make_parser, report
from ponder.engine import cuda_graph_runner, engine, fused_forward
from ponder.engine.graph_buffers import GraphBuffers
from ponder.engine.mailbox import Mailbox
from ponder.garbage_collector import ignore_imported_objects
from ponder.models import chat_templates
from ponder.models.model_paths import find_model
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.tasks.generated.addition import Addition
from sampling_backends import AsyncBackend, CompletionGroup, PromptRequest
from ponder.types import Sampling

_SLOTS = 1 << 20
_LOGPROB = -10.0  # of every token


def sample_without_network(w: Any, cache: Any, b: GraphBuffers, rows: int, *_: Any, **__: Any) -> torch.Tensor:
    """In place of `fused_forward.decode`."""
    step = int(b.step)
    tokens = (b.uniforms[:rows, step] * w.config.vocab).int()
    b.tokens[:rows, step], b.logprobs[:rows, step] = tokens, _LOGPROB
    b.last_tokens[:rows] = tokens
    b.positions[:rows] += 1
    b.step += 1
    return torch.empty(0)


def prefill_without_network(w: Any, cache: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
    return torch.zeros(len(inputs.tokens_T), w.config.width)


def make_graph_runner(net: Decoder, slots: int, max_num_seqs: int, *_: Any) -> cuda_graph_runner.CudaGraphRunner:
    runner = cuda_graph_runner.CudaGraphRunner(net, slots, max_num_seqs)
    assert runner.ready.wait(60)
    return runner


class InstantBackend(AsyncBackend):
    """ponder's policy as on a GPU, without the network."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        shape = DecoderConfig("llama", 49152, 16, 1, 2, 1, 8, 16, context=8192)
        self.policy = PonderPolicy(init_decoder(shape, 0), tokenizer)
        self.policy.eos = self.policy.engine.eos = frozenset()
        self.policy.engine.cache_bytes = _SLOTS * 64
        self.written = hashlib.sha256()

    async def generate_one(self, ask: PromptRequest, tokens: int) -> CompletionGroup:
        result = await self.policy.generate(ask[0], Sampling(max_tokens=tokens), ask[1])
        return [(c.token_ids, c.logprobs) for c in result]


def main() -> None:
    own = make_parser(__doc__)
    own.add_argument("--problems", type=int, default=64)
    own.add_argument("--beams", type=int, default=16)
    own.add_argument("--steps", type=int, default=20)
    own.add_argument("--tokens-per-step", type=int, default=32)
    own.add_argument("--repeats", type=int, default=2)
    own.add_argument("--profile", action="store_true")
    args = own.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_folder(find_model("smollm2"))
    engine_seconds = [0.0]
    profiles: list[cProfile.Profile] = []
    plain_run = Mailbox._run_thread

    def timed_run(self: Mailbox) -> None:
        began = time.thread_time()
        if args.profile:
            profiles.append(profile := cProfile.Profile(time.thread_time))
            profile.enable()
        try:
            plain_run(self)
        finally:
            if args.profile:
                profile.disable()
            engine_seconds[0] += time.thread_time() - began

    with (
        patch.object(fused_forward, "decode", sample_without_network),
        patch.object(fused_forward, "prefill", prefill_without_network),
        patch.object(engine, "make_runner", make_graph_runner),
        patch.object(Mailbox, "_run_thread", timed_run),
    ):
        side = InstantBackend(tokenizer)
        ignore_imported_objects()
        for turn in range(1 + args.repeats):
            problems = shuffled_problems(Addition().train, 0, turn * args.problems, args.problems)
            prompts = [chat_templates.encode_chat(tokenizer, p.messages) for p in problems]
            written = hashlib.sha256()
            text: list[float] = []
            searches = [
                _hashed(search(p, args.beams, args.steps, args.tokens_per_step, i, text), written)
                for i, p in enumerate(prompts)
            ]
            engine_seconds[0] = 0.0
            profiles.clear()
            main_profile = cProfile.Profile(time.thread_time)
            began, wall, own_began = time.process_time(), time.perf_counter(), time.thread_time()
            if args.profile:
                main_profile.enable()
            side.run_searches(searches, args.tokens_per_step)
            if args.profile:
                main_profile.disable()
            whole, wall, callers = (
                time.process_time() - began,
                time.perf_counter() - wall,
                time.thread_time() - own_began,
            )
            side.policy.engine.mailbox._condition.acquire()
            side.policy.engine.mailbox._condition.release()
            thread = side.policy.engine.mailbox._thread
            if thread is not None:
                thread.join()
            print(
                f"turn {turn}: {wall:.2f} s, processor {whole:.2f} s: callers {callers:.2f}, engine {engine_seconds[0]:.2f}; tokens {written.hexdigest()[:16]}",
                flush=True,
            )
        if args.profile:
            for profile in (*profiles, main_profile):
                pstats.Stats(profile).sort_stats("tottime").print_stats(32)
                pstats.Stats(profile).sort_stats("cumtime").print_stats(40)
        side.policy.engine.close()


def _hashed(plain: Any, written: Any) -> Any:
    asks = next(plain)
    while True:
        answers = yield asks
        for group in answers:
            for tokens, logprobs in group:
                written.update(tokens.tobytes())
                written.update(logprobs.tobytes())
        try:
            asks = plain.send(answers)
        except StopIteration:
            return


if __name__ == "__main__":
    main()
