"""The host's work for many sequences on a GPU: scheduling, tables and answers, with a network that computes nothing.

The searches of engine_tree.py, or the groups of engine_groups.py, in the engine and the runner of a GPU, on a CPU. In
place of the network, each row's next token is a function of its random number. So what is left is the host's: processor
time of the callers' thread (requests, completions, the searches themselves) and of the engine's. A GPU waits for most
of it, since all searches ask at once; of groups, it waits for what comes before the first launch and after the last
tokens. The tokens do not depend on the code: runs with the same sizes print the same digest of them.

    python bench/host_work.py                     64 problems, 16 beams, 20 steps of 32 tokens
    python bench/host_work.py --groups 128        128 prompts x 8 completions x 256 tokens, all at once
    python bench/host_work.py --profile           where it goes, function by function (several times as slow)
"""

from __future__ import annotations

import cProfile
import hashlib
import pstats
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from engine_tree import search
from harness import make_parser
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
from sampling_backends import BackendSetting, CompletionGroup, Ponder, Search

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ponder.types import Ids

_SLOTS, _BYTES_PER_TOKEN = 1 << 20, 64  # of the cache: as many as 24 GiB hold of SmolLM2
_LISTED = 30  # functions of a profile


def sample_without_network(w: Any, cache: Any, b: GraphBuffers, rows: int, *_: Any, **__: Any) -> torch.Tensor:
    """In place of `fused_forward.decode`."""
    step = int(b.step)
    tokens = (b.uniforms[:rows, step] * w.config.vocab).int()
    b.tokens[:rows, step], b.logprobs[:rows, step] = tokens, -10 * b.uniforms[:rows, step]
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


@contextmanager
def without_network() -> Iterator[None]:
    """Engines made in here have a GPU's runner on the CPU, whose network computes nothing."""
    with (
        patch.object(fused_forward, "decode", sample_without_network),
        patch.object(fused_forward, "prefill", prefill_without_network),
        patch.object(engine, "make_runner", make_graph_runner),
    ):
        yield


class InstantPonder(Ponder):
    """ponder's policy as on a GPU, without the network."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.setting = BackendSetting("", "cpu", "float32", 1024, 8192, 1)
        shape = DecoderConfig("llama", tokenizer.vocab_size, 16, 1, 2, 1, 8, 16, context=8192)
        self.policy = PonderPolicy(init_decoder(shape, 0), tokenizer)
        self.policy.eos = self.policy.engine.eos = frozenset()
        self.policy.engine.cache_bytes = _SLOTS * _BYTES_PER_TOKEN


def digested(plain: Search, digest: Any) -> Search:
    """The same search; its tokens and log-probabilities go into the digest."""
    asks = next(plain)
    while True:
        answers: list[CompletionGroup] = yield asks
        for group in answers:
            for tokens, logprobs in group:
                digest.update(tokens.tobytes() + logprobs.tobytes())
        try:
            asks = plain.send(answers)
        except StopIteration:
            return


@contextmanager
def timed_engine_thread(profiles: list[cProfile.Profile] | None) -> Iterator[list[float]]:
    """Processor time of each run of the engine's thread, from its start to its end."""
    seconds: list[float] = []
    plain_run = Mailbox._run_thread

    def run(self: Mailbox) -> None:
        began = time.thread_time()
        try:
            if profiles is None:
                plain_run(self)
            else:
                profiles.append(cProfile.Profile(time.thread_time))
                profiles[-1].runcall(plain_run, self)
        finally:
            seconds.append(time.thread_time() - began)

    with patch.object(Mailbox, "_run_thread", run):
        yield seconds


@contextmanager
def marked_launches(began: list[float], collected: list[float]) -> Iterator[None]:
    """The process's processor time whenever a launch begins, and when its tokens are there."""
    plain = cuda_graph_runner.CudaGraphRunner.launch

    def launch(self: cuda_graph_runner.CudaGraphRunner, *given: Any, **named: Any) -> Any:
        began.append(time.process_time())
        results = plain(self, *given, **named)

        def marked() -> Any:
            done = results()
            collected.append(time.process_time())
            return done

        return marked

    with patch.object(cuda_graph_runner.CudaGraphRunner, "launch", launch):
        yield


def run_groups(side: InstantPonder, prompts: Sequence[Ids], n: int, tokens: int, digest: Any) -> str:
    """All prompts at once. Returns the processor time before the first launch and after the last tokens."""
    began, collected = list[float](), list[float]()
    with marked_launches(began, collected):
        first = time.process_time()
        groups = side.generate_all([(prompt, n) for prompt in prompts], tokens)
        last = time.process_time()
    for group in groups:
        for token_ids, logprobs in group:
            digest.update(token_ids.tobytes() + logprobs.tobytes())
    before, after = 1e3 * (began[0] - first), 1e3 * (last - collected[-1])
    return f"{before:.1f} ms before the first launch, {after:.1f} after the last tokens"


def main() -> None:
    own = make_parser(__doc__)
    own.add_argument("--groups", type=int, default=0, help="in place of searches: so many prompts at once")
    own.add_argument("--n", type=int, default=8, help="completions of each, with --groups")
    own.add_argument("--tokens", type=int, default=256, help="of each completion, with --groups")
    own.add_argument("--problems", type=int, default=64)
    own.add_argument("--beams", type=int, default=16)
    own.add_argument("--steps", type=int, default=20)
    own.add_argument("--tokens-per-step", type=int, default=32)
    own.add_argument("--repeats", type=int, default=2, help="turns after the first, which warms up")
    own.add_argument("--profile", action="store_true")
    args = own.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_folder(find_model("smollm2"))
    profiles: list[cProfile.Profile] | None = [] if args.profile else None
    with without_network(), timed_engine_thread(profiles) as engine_seconds:
        side = InstantPonder(tokenizer)
        ignore_imported_objects()
        for turn in range(1 + args.repeats):
            number = args.groups or args.problems
            problems = shuffled_problems(Addition().train, 0, turn * number, number)
            prompts = [chat_templates.encode_chat(tokenizer, p.messages) for p in problems]
            digest, callers = hashlib.sha256(), cProfile.Profile(time.thread_time)
            engine_seconds.clear()

            def work(prompts: Sequence[Ids] = prompts, digest: Any = digest) -> str:
                if args.groups:
                    return run_groups(side, prompts, args.n, args.tokens, digest)
                shape = (args.beams, args.steps, args.tokens_per_step)
                searches = [digested(search(p, *shape, i, []), digest) for i, p in enumerate(prompts)]
                side.run_searches(searches, args.tokens_per_step)
                return ""

            wall, began = time.perf_counter(), time.process_time()
            if profiles is None:
                where = work()
            else:
                profiles.clear()
                where = callers.runcall(work)
            wall, seconds = time.perf_counter() - wall, time.process_time() - began
            while (thread := side.policy.engine.mailbox._thread) is not None:  # it ends when it has waited for a while
                thread.join()
            own_seconds = sum(engine_seconds)
            print(
                f"turn {turn}: callers {seconds - own_seconds:.2f} s, engine {own_seconds:.2f} s of processor time"
                f"{where and ', '}{where}, {wall:.2f} s in all; tokens {digest.hexdigest()[:16]}",
                flush=True,
            )
        for profile in [] if profiles is None else [*profiles, callers]:
            for order in ("tottime", "cumtime"):
                pstats.Stats(profile).sort_stats(order).print_stats(_LISTED)
        side.close()


if __name__ == "__main__":
    main()
