"""One whole GRPO step of a model that sees: sample groups about pictures, reward, credit, forward, backward, optimiser.

The model has the shape of SmolVLM-256M (a SigLIP-B tower over one tile of 512 pixels, 64 tokens to a picture, the
decoder of SmolLM2-135M) and random weights; both sides start from the same folder in Idefics3's layout. Each prompt is
one drawn picture and a question. Otherwise as in grpo_step.py: GRPO's loss, no KL term, one pass, AdamW, all parts
learn, every completion has exactly so many tokens, rewards are drawn from the completions' texts.

`rate`: FLOPs of the learner's passes (decoder and tower, without what is computed twice) by the time of learning, as a
share of what a large matrix product reaches here.

TRL is measured where it is installed (pip install 'trl==1.16.*' datasets); without it only ponder is.
"""

from __future__ import annotations

import importlib.util
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from grpo_step import INSTALL, LR, SampledStep, peak_memory_bytes, reward, synchronize_device
from harness import make_parser, report
from ponder import event_loop
from ponder.models.load import load_policy
from ponder.models.tokenizer import Tokenizer
from ponder.nets import hf
from ponder.nets.config import DecoderConfig, RopeConfig
from ponder.nets.vision_config import VisionConfig
from ponder.pictures.message_parts import content_pictures, content_text
from ponder.pictures.png import write_png
from ponder.pipelines.solve import solve_all
from ponder.reason.strategies import Samples
from ponder.tasks.vision.locate_shape import LocateShape
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Problem, Sampling
from training_harness import initialise_on, matmul_rate, trl_dataset

SPECIAL_TEXTS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
ALPHABET = "".join(map(chr, range(32, 127))) + "\n"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p['type'] == 'image' %}<image>{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
# Decoder: vocabulary, width, layers, heads, key heads, head size, MLP; tower: as `VisionConfig` has its fields.
SHAPES = {
    "smolvlm-256m": ((49280, 576, 30, 9, 3, 64, 1536), (768, 12, 12, 3072, 512, 16, 4)),
    "tiny": ((160, 32, 2, 2, 2, 16, 64), (32, 2, 2, 64, 64, 8, 2)),
}


def make_tokenizer(vocab: int) -> Tokenizer:
    """Each token of the vocabulary is a character, so that whatever is sampled has a text, from which the reward is
    drawn: of equal texts in a group nothing would be learned."""
    left = vocab - Tokenizer.from_alphabet(ALPHABET).vocab_size - len(SPECIAL_TEXTS)
    tokenizer = Tokenizer.from_alphabet(ALPHABET + "".join(chr(0x20000 + i) for i in range(max(0, left))))
    tokenizer.inner.add_special_tokens(list(SPECIAL_TEXTS))
    return tokenizer


def write_model(folder: Path, shape: str, device: str) -> None:
    """A folder with random weights that ponder and transformers read, with a processor."""
    text, vision = SHAPES[shape]
    tokenizer = make_tokenizer(text[0])
    image = tokenizer.inner.token_to_id("<image>")
    vocab, width, layers, heads, kv_heads, head_dim, mlp = text
    config = DecoderConfig(
        "llama", vocab, width, layers, heads, kv_heads, head_dim, mlp, context=8192, rope=RopeConfig(100000.0),
        bos=tokenizer.bos, eos=tuple(tokenizer.eos), pad=tokenizer.pad,
        vision=VisionConfig(*vision, image_token=image, family="idefics3"),
    )  # fmt: skip
    net = initialise_on(config, device, torch.float32)
    hf.save(net.to("cpu"), folder)
    from transformers import PreTrainedTokenizerFast

    def special(index: int | None) -> str | None:
        return None if index is None else tokenizer.inner.id_to_token(index)

    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.inner, bos_token=special(tokenizer.bos), eos_token=special(min(tokenizer.eos)),
        pad_token=special(tokenizer.pad), chat_template=TEMPLATE,
    )  # fmt: skip
    from transformers import Idefics3Processor

    if importlib.util.find_spec("torchvision") is None:
        from transformers.models.idefics3.image_processing_pil_idefics3 import (
            Idefics3ImageProcessorPil as Idefics3ImageProcessor,
        )
    else:
        from transformers import Idefics3ImageProcessor
    assert config.vision is not None and isinstance(config.vision, VisionConfig)
    edge = {"longest_edge": config.vision.image_size}
    images = Idefics3ImageProcessor(do_image_splitting=False, size=edge, max_image_size=edge)
    Idefics3Processor(images, fast, image_seq_len=config.vision.tokens, chat_template=TEMPLATE).save_pretrained(folder)


def tower_flops(vision: VisionConfig, width: int) -> float:
    """Of the forward pass over one tile: tower and connector."""
    patches = vision.patches_across**2
    matrices = (
        vision.layers * (4 * vision.width**2 + 2 * vision.width * vision.mlp_width) + 3 * vision.patch**2 * vision.width
    )
    attention = vision.layers * 4.0 * patches**2 * vision.width
    return 2.0 * patches * matrices + attention + 2.0 * vision.tokens * vision.connector_inputs * width


def ponder_steps(options: Any, dtype: str) -> Iterator[dict[str, float]]:
    """The body of `ponder.pipelines.rl`'s loop, without its files; seconds of each step."""
    policy = load_policy(str(options.folder), device=options.device, dtype=dtype)
    policy.engine.eos = frozenset()
    objective, scorer = GRPO(kl=None), SampledStep()
    learner = Learner(policy.net, objective, AdamW(lr=LR), max_tokens_per_microbatch=options.max_tokens_per_microbatch)
    strategy = Samples(options.n, Sampling(max_tokens=options.tokens))
    config = policy.net.config
    assert isinstance(config.vision, VisionConfig)
    for step in range(2 + options.steps):
        asked = problems(options, step)
        peak_memory_bytes(options.device, reset=True)
        began, worked = synchronize_device(options.device), time.process_time()
        policy.reseed(0, step)
        traces = event_loop.run(solve_all(asked, strategy, policy, scorer))
        policy.sleep()
        sampled = synchronize_device(options.device)
        objective.credit(traces, scorer.name, {})
        before = learner.flops
        learned = learner.step(traces)
        ended, cpu = synchronize_device(options.device), time.process_time() - worked
        assert learned["num_trained_tokens"] == options.prompts * options.n * options.tokens
        assert learned["grad_norm"] > 0 and all(
            (t.steps[0].token_ids < 0).sum() == config.vision.tokens for t in traces
        )
        flops = learner.flops - before + 3 * options.prompts * tower_flops(config.vision, config.width)
        rate = flops / (ended - sampled) / 1e12
        print(f"ponder step {step}: {ended - began:.2f} s ({sampled - began:.2f} s sampling), learning at {rate:.0f}"
              " TFLOP/s", flush=True)  # fmt: skip
        yield {"step": ended - began, "sample": sampled - began, "learn": ended - sampled, "cpu": cpu, "flops": flops,
               "bytes": peak_memory_bytes(options.device)}  # fmt: skip


def trl_steps(options: Any, dtype: str, between: Callable[[], None]) -> list[dict[str, float]]:
    """Seconds of each of TRL's steps; `between` is called after each."""
    from datasets import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    times: list[dict[str, float]] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began, self.worked = synchronize_device(options.device), time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            took, cpu = synchronize_device(options.device) - self.began, time.process_time() - self.worked
            times.append({"step": took, "cpu": cpu})
            print(f"TRL step {len(times) - 1}: {took:.2f} s", flush=True)
            between()

    def judge(completions: list[Any], **_: Any) -> list[float]:
        assert len(completions) == options.prompts * options.n
        return [reward(str(c[-1]["content"])) for c in completions]

    asked = [p for step in range(1 + options.steps) for p in problems(options, step)]
    rows = [{"prompt": [{"role": "user", "content": content_text(p.messages[-1]["content"])}], "image": _png(p)}
            for p in asked]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, max_steps=1 + options.steps, per_device_train_batch_size=options.trl_batch,
            gradient_accumulation_steps=options.prompts * options.n // options.trl_batch, num_generations=options.n,
            max_completion_length=options.tokens, temperature=1.0, top_p=1.0, top_k=0, beta=0.0, loss_type="grpo",
            num_iterations=1, learning_rate=LR, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
            optim="adamw_torch_fused", bf16=dtype == "bfloat16", fp16=False, gradient_checkpointing=False,
            generation_kwargs={"min_new_tokens": options.tokens, "suppress_tokens": [image_token(options.folder)]},
            use_cpu=options.device == "cpu",
            shuffle_dataset=False, report_to="none", save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=AutoModelForImageTextToText.from_pretrained(options.folder, dtype=torch.float32),
            processing_class=AutoProcessor.from_pretrained(options.folder, padding_side="left"),
            reward_funcs=judge,
            args=settings,
            train_dataset=trl_dataset(rows).cast_column("image", Image()),
            callbacks=[Clock()],
        )
        trainer.train()
    logged = [entry for entry in trainer.state.log_history if "completions/mean_length" in entry]
    assert logged and all(entry["completions/mean_length"] == options.tokens for entry in logged)
    return times


def image_token(folder: Path) -> int:
    """The token that stands for a picture. TRL would sample it from random weights, and then miss the picture; ponder
    never samples it."""
    return int(json.loads((folder / "config.json").read_text())["image_token_id"])


def _png(problem: Problem) -> dict[str, Any]:
    (picture,) = content_pictures(problem.messages[-1]["content"])
    return {"bytes": io.BytesIO(write_png(picture)).getvalue(), "path": None}


def problems(options: Any, step: int) -> list[Problem]:
    task = LocateShape(side=options.side)
    return list(task.train[step * options.prompts : (step + 1) * options.prompts])


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--prompts", type=int, default=8)
    flags.add_argument("--n", type=int, default=8, help="completions of each prompt")
    flags.add_argument("--tokens", type=int, default=64, help="tokens of each completion")
    flags.add_argument("--steps", type=int, default=3, help="measured steps of each, after one to warm up")
    flags.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on a GPU bfloat16")
    flags.add_argument("--max-tokens-per-microbatch", type=int, default=0, help="ponder's micro-batch, in tokens")
    flags.add_argument("--trl-batch", type=int, help="TRL's micro-batch, in completions; default: all of them")
    flags.add_argument("--shape", choices=sorted(SHAPES), help="default: tiny, on a GPU smolvlm-256m")
    flags.add_argument("--without-trl", action="store_true", help="measure ponder alone")
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    options = flags.parse_args()
    options.trl_batch = options.trl_batch or options.prompts * options.n
    options.shape = options.shape or ("smolvlm-256m" if options.device == "cuda" else "tiny")
    options.side = SHAPES[options.shape][1][4]
    dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    with tempfile.TemporaryDirectory() as place:
        options.folder = Path(place) / "model"
        write_model(options.folder, options.shape, options.device)
        measure(options, dtype)


def measure(options: Any, dtype: str) -> None:
    peak = matmul_rate("cuda", getattr(torch, dtype)) if options.device == "cuda" else None
    if peak is not None:
        print(f"large matrix products: {peak / 1e12:.0f} TFLOP/s", flush=True)
    steps = ponder_steps(options, dtype)
    times = {"ponder": [next(steps), next(steps)]}  # before TRL takes any memory
    if options.without_trl or importlib.util.find_spec("trl") is None:
        print(f"only ponder is measured; to measure both: {INSTALL}", flush=True)
    else:
        times["TRL"] = trl_steps(options, dtype, lambda: times["ponder"].extend(islice(steps, 1)))
    times["ponder"] += steps
    measured = {"ponder": times["ponder"][2:], **({"TRL": times["TRL"][1:]} if "TRL" in times else {})}
    step = {who: statistics.median(t["step"] for t in every) for who, every in measured.items()}
    share = None
    if peak is not None:
        share = statistics.median(t["flops"] / t["learn"] for t in measured["ponder"]) / peak
    sizes = f"{options.prompts} pictures x {options.n} completions x {options.tokens} tokens"
    report(
        "vision_step",
        f"{options.shape}, {dtype}: one GRPO step of {sizes}",
        step["ponder"],
        {"TRL": step.get("TRL")},
        unit="s",
        better="lower",
        device=options.device,
        packages=["trl", "transformers", "accelerate"],
        details={
            "seconds": measured,
            "learner_share_of_matrix_rate": share,
            "max_tokens_per_microbatch": options.max_tokens_per_microbatch,
            "trl_batch": options.trl_batch,
            "lr": LR,
            "note": options.note,
        },
    )


if __name__ == "__main__":
    main()
