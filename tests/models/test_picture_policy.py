"""A policy that sees: prompts with pictures in the engine and in the learner."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fakes import run_async
from models.picture_policies import ALPHABET, MODEL, TASK, a_picture, asked, credited, qwen_net, sample
from ponder.errors import PonderError, UsageError
from ponder.models.picture_prompt import encode_tiles, split_into_tiles, without_pictures
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.models.tokenizer import Tokenizer
from ponder.nets import lora
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import init_decoder
from ponder.nets.model_parts import MODEL_PARTS, part_of
from ponder.nets.picture_table import table_for
from ponder.nets.vision_config import VisionConfig
from ponder.pictures.message_parts import content_pictures, text_part
from ponder.pictures.picture import Picture
from ponder.pictures.resize import resize
from ponder.train.credit import assign_imitation
from ponder.train.imitation import SFT
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling, Step, prompt_trace


@pytest.fixture(params=["tiles", "qwen"])
def policy(request):
    net, tokenizer = MODEL.build(torch.float32, torch.device("cpu"))
    if request.param == "qwen":
        net = qwen_net(tokenizer)
    with torch.no_grad():  # so that pictures matter
        (net.visual.merger.mlp[2] if request.param == "qwen" else net.connector.modality_projection.proj).weight.mul_(
            30
        )
    return PonderPolicy(net, tokenizer)


def tower(net):
    return net.visual if hasattr(net, "visual") else net.vision_model


TOWERS = ("vision_model.", "visual.")


def test_prompt_holds_a_run_below_zero_for_each_picture(policy):
    one, other = a_picture(), a_picture()
    encoded = policy.encode(asked(one, other))
    negative = np.flatnonzero(encoded < 0)
    assert len(negative) == 2 * 16 and (np.diff(negative) == 1).sum() == 31
    assert (encoded == policy.encode(asked(one, other))).all()
    assert not np.array_equal(encoded, policy.encode(asked(other, one)))
    assert "Where is it?" in policy.text(encoded)


def test_text_alone_is_encoded_as_by_a_model_that_reads_text(policy):
    messages = [{"role": "user", "content": "Where?"}]
    assert (policy.encode(messages) >= 0).all()
    assert (policy.encode([{"role": "user", "content": [text_part("Where?")]}]) == policy.encode(messages)).all()


def test_model_that_reads_text_refuses_a_picture():
    blind = ScratchModel(ALPHABET, width=32, layers=1, heads=2)
    policy = PonderPolicy(*blind.build(torch.float32, torch.device("cpu")))
    with pytest.raises(UsageError, match="take a vision-language model"):
        policy.encode(asked(a_picture()))


@pytest.mark.parametrize("messages", [
    asked(a_picture(), text="what is <image>?"),
    [{"role": "system", "content": "<image>"}, *asked(a_picture())],
])  # fmt: skip
def test_placeholder_in_the_text_is_refused(policy, messages):
    if hasattr(policy.net, "visual"):
        messages = json.loads(json.dumps(messages).replace("<image>", "<|image_pad|>"))
    with pytest.raises(UsageError, match="write it otherwise"):
        policy.encode(messages)


def test_cut_prompt_is_refused(policy):
    encoded = policy.encode(asked(a_picture()))
    inside = int(np.flatnonzero(encoded < 0)[5])
    for prefix in (encoded[:inside], encoded[inside:]):
        with pytest.raises(UsageError, match="cut no prompt inside a picture"):
            policy.request(prefix, Sampling(max_tokens=3))


def test_sampler_and_learner_agree(policy):
    traces = [credited(policy, asked(a_picture(), a_picture(96, 64))), credited(policy, asked(a_picture(48, 128)))]
    learner = Learner(policy.net, GRPO(kl=None))
    steps = [step for trace in traces for step in trace.steps[1:]]
    learner.write_notes(traces, steps, "again", policy.net)
    gap = max(float(np.abs(step.notes["again"] - step.logprobs).max()) for step in steps)
    assert gap < 3e-6


def test_gradient_does_not_depend_on_microbatches(policy):
    traces = [credited(policy, asked(a_picture(), text=f"Where is {i}?")) for i in range(3)]
    traces.append(credited(policy, [{"role": "user", "content": "no picture"}]))
    together = Learner(policy.net, GRPO(kl=None), max_tokens_per_microbatch=4096).gradient(traces)
    apart = Learner(policy.net, GRPO(kl=None), max_tokens_per_microbatch=1).gradient(traces)
    largest = max(g.abs().max() for g in together.values())
    assert together.keys() == apart.keys() and any(n.startswith(TOWERS) for n in together)
    assert all((together[n] - apart[n]).abs().max() < 1e-5 * largest for n in together)


def test_reference_sees_the_same_pictures(policy):
    trace = credited(policy, asked(a_picture()))
    learner = Learner(policy.net, GRPO())
    learner.write_reference_logprobs([trace])
    assert all(np.abs(step.notes["reference"] - step.logprobs).max() < 3e-6 for step in trace.steps[1:])


@pytest.mark.parametrize("chunk", [5, 16, 512])
def test_cache_never_mixes_pictures(policy, chunk):
    """Prompts that differ only in their picture, in turns, with a cache that keeps all of them."""
    policy.engine.prefill_chunk_tokens = chunk  # also less than a picture
    prompts = [policy.encode(asked(a_picture())) for _ in range(4)]
    target = policy.tokens("[12, 30, 40, 50]")
    for _ in range(2):
        read = [run_async(policy.token_logprobs(prompt, target)) for prompt in prompts]
        alone = []
        for prompt in prompts:
            policy.engine.refresh_weights()
            alone.append(run_async(policy.token_logprobs(prompt, target)))
        np.testing.assert_allclose(read, alone, atol=1e-5)
    assert all(np.abs(a - b).max() > 1e-3 for i, a in enumerate(read) for b in read[:i])


def test_same_picture_is_computed_once(policy, monkeypatch):
    calls = []
    plain = tower(policy.net).forward
    monkeypatch.setattr(tower(policy.net), "forward", lambda pixels, *_: calls.append(len(pixels)) or plain(pixels))
    picture = a_picture()
    for text in ("Where?", "What?", "Why?"):
        sample(policy, policy.encode(asked(picture, picture, text=text)))
    assert calls == [1]
    policy.version += 1  # other weights
    sample(policy, policy.encode(asked(picture)))
    assert calls == [1, 1]


def test_pictures_of_many_prompts_stay_in_memory(policy, monkeypatch):
    """Those that requests in flight and traces show, however many: the table keeps no others here."""
    monkeypatch.setattr(policy.net.picture_table, "max_unused_bytes", 0)
    prompts = [policy.encode(asked(a_picture(), text=f"Where is {i}?")) for i in range(12)]
    done = run_async(policy.generate_many([(prompt, Sampling(max_tokens=2), 2) for prompt in prompts]))
    assert len(done) == 12
    policy.version += 1  # features are computed again
    request = policy.request(prompts.pop(), Sampling(max_tokens=2))  # which alone keeps the picture
    assert len(run_async(policy.complete(request))) == 1
    traces = [credited(policy, asked(a_picture(), a_picture())) for _ in range(3)]
    policy.version += 1
    assert Learner(policy.net, GRPO(kl=None), AdamW(lr=1e-3)).step(traces)


def test_prompt_may_end_with_a_picture(policy):
    prompt = policy.encode(asked(a_picture()))
    ending = prompt[: int(np.flatnonzero(prompt < 0)[-1]) + 1]
    assert all(len(completion.token_ids) for completion in sample(policy, ending, n=3))


def test_penalties_leave_pictures_alone(policy):
    prompt = policy.encode(asked(a_picture()))
    assert sample(policy, prompt, repetition_penalty=1.3, no_repeat_ngram_size=2, logprobs=2)


def test_training_step_changes_what_is_seen(policy):
    """Imitation of another answer for each of two pictures: the loss falls below what text alone allows."""
    pictures, answers = [Picture(64, 64, bytes([value]) * 12288) for value in (0, 255)], ["[1, 2]", "[8, 9]"]
    learner = Learner(policy.net, SFT(), AdamW(lr=1e-2, warmup_steps=0))
    traces = []
    for picture, answer in zip(pictures, answers, strict=True):
        trace = prompt_trace(TASK.train[0], policy.encode(asked(picture)))
        trace.add(Step(0, answer, np.append(policy.tokens(answer), np.int32(2)), stop="eos"))
        assign_imitation(trace)
        traces.append(trace)
    for _ in range(60):
        metrics = learner.step(traces)
    policy.version += 1
    assert metrics["loss"] < 0.05
    for picture, answer in zip(pictures, answers, strict=True):
        (greedy,) = sample(policy, policy.encode(asked(picture)), n=1, temperature=0.0)
        assert greedy.text == answer


IMAGE_TOKEN = 5


@pytest.fixture
def with_image_token():
    _, tokenizer = MODEL.build(torch.float32, torch.device("cpu"))
    vision = VisionConfig(24, 1, 2, 48, image_size=64, patch=8, shuffle=2, image_token=IMAGE_TOKEN)
    config = DecoderConfig("llama", tokenizer.vocab_size, 32, 1, 2, 2, 16, 64, context=512, vision=vision, eos=(2,))
    return PonderPolicy(init_decoder(config, 0), tokenizer)


def test_image_token_is_never_sampled(with_image_token):
    policy = with_image_token
    prompt = policy.encode(asked(a_picture()))
    with torch.no_grad():  # it would be the likeliest token by far
        policy.net.embed_tokens.weight[IMAGE_TOKEN] = 50 * policy.net.embed_tokens.weight[7]
    done = [c for n in range(4) for c in sample(policy, prompt, n=64, seed=n)]
    assert len(done) == 256 and not any(IMAGE_TOKEN in c.token_ids for c in done)
    traces = [credited(policy, asked(a_picture()))]
    learner = Learner(policy.net, GRPO(kl=None))
    learner.write_notes(traces, traces[0].steps[1:], "again", policy.net)
    assert all(np.abs(s.notes["again"] - s.logprobs).max() < 3e-6 for s in traces[0].steps[1:])


@pytest.mark.parametrize("sampling", [
    {"forced_token_ids": (IMAGE_TOKEN,)}, {"allowed_token_ids": (IMAGE_TOKEN, 7)}, {"logit_bias": ((IMAGE_TOKEN, 5.0),)}
])  # fmt: skip
def test_named_image_token_is_refused(with_image_token, sampling):
    with pytest.raises(UsageError, match="stands for pictures"):
        sample(with_image_token, with_image_token.encode(asked(a_picture())), **sampling)


def test_adapters_are_for_the_decoder(policy):
    pytest.importorskip("peft")
    lora.attach(policy.net, lora.LoRA(rank=2), 0)
    assert not [n for n, _ in policy.net.named_parameters() if "lora" in n and n.startswith(TOWERS)]
    traces = [credited(policy, asked(a_picture()))]
    assert all("lora" in name for name in Learner(policy.net, GRPO(kl=None)).gradient(traces))


def test_only_named_parts_learn(policy):
    traces = [credited(policy, asked(a_picture()))]
    for parts in (("vision",), ("connector",), ("text",), ("vision", "connector"), ("connector", "text"), MODEL_PARTS):
        before = {name: p.detach().clone() for name, p in policy.net.named_parameters()}
        learner = Learner(policy.net, GRPO(kl=None), AdamW(lr=1e-3, warmup_steps=0), train_parts=parts)
        assert {part_of(name) for name in learner.gradient(traces)} == set(parts)
        learner.step(traces)
        moved = {part_of(name) for name, p in policy.net.named_parameters() if not torch.equal(p, before[name])}
        assert moved == set(parts)


def test_gradient_of_parts_is_that_of_the_whole(policy):
    """And does not depend on micro-batches or on where features come from."""
    traces = [credited(policy, asked(a_picture(), text=f"Where is {i}?")) for i in range(2)]
    whole = Learner(policy.net, GRPO(kl=None)).gradient(traces)
    largest = max(g.abs().max() for g in whole.values())
    for parts in (("text",), ("connector", "text"), ("vision",)):
        for tokens in (4096, 1):
            learner = Learner(policy.net, GRPO(kl=None), train_parts=parts, max_tokens_per_microbatch=tokens)
            for name, gradient in learner.gradient(traces).items():
                assert (gradient - whole[name]).abs().max() < 1e-5 * largest


@pytest.mark.parametrize("parts", [("text",), ("connector", "text"), ("connector",)])
def test_features_of_a_frozen_tower_are_kept_over_steps(policy, monkeypatch, parts):
    calls = []
    plain = tower(policy.net).forward
    monkeypatch.setattr(tower(policy.net), "forward", lambda pixels, *_: calls.append(len(pixels)) or plain(pixels))
    learner = Learner(policy.net, GRPO(kl=None), AdamW(lr=1e-3, warmup_steps=0), train_parts=parts)
    picture = a_picture()
    for step in range(3):
        traces = [credited(policy, asked(picture, text=f"Where is {step}?"))]
        learner.step(traces)
        policy.version += 1
    assert calls == [1]  # by the engine; the learner takes it over
    with torch.no_grad():
        next(policy.net.picture_encoder.tower_parameters()).mul_(1.5)
    policy.version += 1
    sample(policy, policy.encode(asked(picture)))
    assert calls == [1, 1]


def test_adapters_beside_a_connector_that_learns(policy):
    pytest.importorskip("peft")
    lora.attach(policy.net, lora.LoRA(rank=2), 0)
    with pytest.raises(UsageError, match="adapters are for the decoder"):
        Learner(policy.net, GRPO(), train_parts=("vision",))
    traces = [credited(policy, asked(a_picture()))]
    learner = Learner(policy.net, GRPO(), AdamW(lr=1e-2, warmup_steps=0), train_parts=("connector", "text"))
    free = {(part_of(n), "lora" in n) for n in learner.gradient(traces)}
    assert free == {("connector", False), ("text", True)}
    learner.step(traces)
    learner.write_reference_logprobs(traces)  # the reference is the model as it was, connector included
    assert all(np.abs(step.notes["reference"] - step.logprobs).max() < 3e-6 for step in traces[0].steps[1:])


def test_parts_that_cannot_learn_are_refused():
    blind = ScratchModel(ALPHABET, width=32, layers=1, heads=2).build(torch.float32, torch.device("cpu"))[0]
    with pytest.raises(UsageError, match="reads text only"):
        Learner(blind, GRPO(), train_parts=("vision", "text"))
    with pytest.raises(PonderError, match="part of a model"):
        Learner(blind, GRPO(), train_parts=("eyes",))


def test_grey_pictures_keep_their_size():
    (message,) = without_pictures(asked(a_picture(20, 30)))
    (grey,) = content_pictures(message["content"])
    assert grey.size == (20, 30) and set(grey.rgb) == {128}


# tiles


SPLIT = VisionConfig(24, 1, 2, 48, image_size=64, patch=8, shuffle=2, split_pixels=256)


@pytest.mark.parametrize(
    ("width", "height", "rows", "columns"), [(256, 256, 4, 4), (512, 256, 2, 4), (100, 400, 4, 1), (256, 70, 2, 4)]
)
def test_split_covers_the_picture(width, height, rows, columns):
    tiles = split_into_tiles(a_picture(width, height), SPLIT)
    assert (len(tiles.rows), len(tiles.rows[0])) == (rows, columns) and tiles.whole.size == (64, 64)
    assert all(tile.size == (64, 64) for row in tiles.rows for tile in row)
    if (width, height) == (256, 256):  # no pixel was changed
        picture = np.block([[[tile.pixels] for tile in row] for row in tiles.rows])
        assert picture.shape == (256, 256, 3)


def test_split_text_is_that_of_idefics3():
    processing = pytest.importorskip("transformers.models.idefics3.processing_idefics3")
    import tokenizers

    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<none>": 0}, unk_token="<none>"))
    marks = [f"<row_{r}_col_{c}>" for r in range(1, 5) for c in range(1, 5)]
    inner.add_special_tokens(["<fake_token_around_image>", "<global-img>", "<image>", "\n", *marks])
    tokenizer = Tokenizer(inner)
    n = SPLIT.tokens
    for size, rows, columns in [((256, 128), 2, 4), ((64, 64), 4, 4), ((256, 60), 1, 4)]:
        runs = encode_tiles(tokenizer, split_into_tiles(a_picture(*size), SPLIT), SPLIT)
        ours = "".join("<image>" * n if run.min(initial=0) < 0 else tokenizer.decode(run, True) for run in runs)
        fake, image, whole = "<fake_token_around_image>", "<image>", "<global-img>"
        expected = _their_text(processing, n, rows, columns, fake, image, whole)
        assert ours.replace(" ", "") == expected


def _their_text(processing, tokens, rows, columns, fake, image, whole):
    """The layout in Idefics3's documentation; by their own function, where this release has it."""
    function = getattr(processing, "_prompt_split_image", None)
    if function is not None:
        return function(tokens, rows, columns, fake, image, whole)
    lines = ["".join(f"{fake}<row_{r}_col_{c}>{image * tokens}" for c in range(1, columns + 1)) + "\n"
             for r in range(1, rows + 1)]  # fmt: skip
    return "".join(lines) + f"\n{fake}{whole}{image * tokens}{fake}"


@pytest.mark.parametrize("size", [(64, 64), (200, 100), (31, 97), (640, 480)])
@pytest.mark.parametrize("kernel", ["lanczos", "bicubic"])
def test_resize_equals_pillow(size, kernel):
    image = pytest.importorskip("PIL.Image")
    picture = a_picture(90, 70)
    theirs = np.asarray(image.fromarray(picture.pixels).resize(size, image.Resampling[kernel.upper()])).astype(int)
    apart = np.abs(resize(picture, *size, kernel).pixels.astype(int) - theirs)
    assert apart.max() <= 2 and apart.mean() < 0.01  # Pillow's weights have 22 bits


def test_tiles_of_one_picture_share_the_table():
    tiles = split_into_tiles(Picture(256, 256, bytes(256 * 256 * 3)), SPLIT)
    table = table_for(SPLIT.tokens)
    runs = {table.add(tile).tobytes() for row in tiles.rows for tile in row}
    assert len(runs) == 1  # all are black
