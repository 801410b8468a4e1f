"""`TransformersPolicy` samples what `PonderPolicy` samples from the same weights, and runs other architectures."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ponder.errors import MissingExtra, ModelError, UnknownName, UsageError
from ponder.models import model_paths
from ponder.models.base_policy import BasePolicy
from ponder.models.load import load_inference_policy, load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.models.tokenizer import Tokenizer
from ponder.models.transformers_policy import TransformersPolicy
from ponder.nets import hf
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import init_decoder
from ponder.protocols import Policy
from ponder.types import Completion, Ids, Sampling, ids, user_messages

transformers = pytest.importorskip("transformers")

ALPHABET = "abcdefghijklmnopqrstuvwxyzQUA :?.+0123456789\n"
SIZE = Tokenizer.from_alphabet(ALPHABET).vocab_size
PREFIXES = [ids([1, 5, 9, 14]), ids([1, 7]), ids([1, 30, 31, 32, 33, 34, 6])]  # padded when run together
SHAPE = {"width": 16, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp_width": 32, "context": 64}

# Architectures that ponder has no network of: learned positions, rotary in parallel blocks, none at all, recurrent.
FOREIGN: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}),
    "gpt-neox": (
        "GPTNeoX",
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    ),
    "bloom": ("Bloom", {"hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "mamba": ("Mamba", {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
}


def draw(model: torch.nn.Module, seed: int = 3) -> None:
    """Weights large enough that the likeliest token changes along the way."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape, generator=generator) * 0.4)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "llama"
    net = init_decoder(DecoderConfig("llama", SIZE, **SHAPE, bos=1, eos=(2,), pad=0), seed=0)
    draw(net)
    hf.save(net, folder)
    Tokenizer.from_alphabet(ALPHABET).save(folder)
    return folder


@pytest.fixture(scope="module")
def twins(llama: Path) -> tuple[PonderPolicy, TransformersPolicy]:
    tokenizer = Tokenizer.from_folder(llama)
    return PonderPolicy(hf.load(llama), tokenizer), TransformersPolicy.load(llama, torch.float32)


def build(name: str, folder: Path) -> Path:
    kind, settings = FOREIGN[name]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=SIZE, bos_token_id=1, eos_token_id=2, pad_token_id=0, **settings
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    draw(model)
    model.save_pretrained(folder)
    Tokenizer.from_alphabet(ALPHABET).save(folder)
    return folder


@pytest.fixture(scope="module", params=FOREIGN)
def foreign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TransformersPolicy:
    folder = build(request.param, tmp_path_factory.mktemp("models") / request.param)
    policy = load_inference_policy(f"transformers:{folder}", device="cpu", dtype="float32")
    assert isinstance(policy, TransformersPolicy)
    return policy


def written(
    policy: BasePolicy, sampling: Sampling, n: int = 1, prefixes: Sequence[Ids] = PREFIXES
) -> list[list[Completion]]:
    """All prefixes at once, so that they share a batch."""

    async def all_of_them() -> list[list[Completion]]:
        return await asyncio.gather(*(policy.generate(p, sampling, n) for p in prefixes))

    return asyncio.run(all_of_them())


def same(ours: list[list[Completion]], theirs: list[list[Completion]]) -> None:
    assert [len(group) for group in ours] == [len(group) for group in theirs]
    for a, b in zip((c for g in ours for c in g), (c for g in theirs for c in g), strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert np.abs(a.logprobs - b.logprobs).max() < 1e-4
        assert (a.text, a.stop, a.version) == (b.text, b.stop, b.version)
        for cost in (a.cost, b.cost):  # what was in the cache differs: native has a tree of prefixes
            assert cost.prompt_tokens + cost.cached_tokens == a.cost.prompt_tokens + a.cost.cached_tokens
            assert cost.generated_tokens == len(a.token_ids) and cost.flops > 0


SAMPLINGS = {
    "greedy": Sampling(temperature=0, max_tokens=20),
    "plain": Sampling(seed=5, max_tokens=20),
    "the policy's own stream": Sampling(max_tokens=20),
    "warm": Sampling(temperature=1.7, seed=6, max_tokens=20),
    "top-k": Sampling(top_k=4, seed=7, max_tokens=20),
    "top-p": Sampling(top_p=0.6, seed=8, max_tokens=20),
    "min-p": Sampling(min_p=0.2, seed=9, max_tokens=20),
    "all": Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, seed=10, max_tokens=20),
    "a stop string": Sampling(seed=11, max_tokens=20, stop=("e", "ab")),
    "a stop token": Sampling(seed=12, max_tokens=20, stop_token_ids=(9, 10, 11, 12)),
    "to the context's end": Sampling(seed=13, max_tokens=500),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_samples_what_ponder_policy_samples(name: str, twins: tuple[PonderPolicy, TransformersPolicy]) -> None:
    for policy in twins:
        policy.reseed(0)
    ours, theirs = (written(policy, SAMPLINGS[name], n=4) for policy in twins)
    same(ours, theirs)
    if name != "greedy":
        assert len({tuple(c.token_ids) for c in theirs[0]}) > 1
    stops = {c.stop for group in theirs for c in group}
    assert ("stop" in stops) == name.startswith("a stop")


def test_stop_reasons_and_versions_are_recorded(llama: Path, twins: tuple[PonderPolicy, TransformersPolicy]) -> None:
    policy = TransformersPolicy.load(llama, torch.float32)
    policy.version = 7
    result = [c for g in written(policy, Sampling(seed=1, max_tokens=62), n=8) for c in g]
    assert {c.stop for c in result} == {"eos", "length"}
    assert {c.version for c in result} == {7}
    ended = next(c for c in result if c.stop == "eos")
    assert ended.token_ids[-1] == 2
    assert len(ended.text) == len(ended.token_ids) - 1
    assert ended.cost.seconds > 0


def test_other_architectures_generate(foreign: TransformersPolicy) -> None:
    assert isinstance(foreign, Policy)
    sampling = Sampling(seed=4, max_tokens=12)
    together = written(foreign, sampling, n=3)
    alone = [written(foreign, sampling, n=3, prefixes=[p])[0] for p in PREFIXES]
    same(together, alone)  # padding and neighbours change nothing
    assert len({tuple(c.token_ids) for c in together[0]}) == 3


@torch.inference_mode()
def test_logprobs_match_a_full_forward_pass(foreign: TransformersPolicy) -> None:
    for prefix, group in zip(PREFIXES, written(foreign, Sampling(seed=4, max_tokens=12), n=2), strict=True):
        for c in group:
            whole = torch.tensor([[*prefix.tolist(), *c.token_ids.tolist()]])
            expected = foreign.model(whole).logits[0, len(prefix) - 1 : -1].log_softmax(-1)
            picked = expected.gather(-1, torch.from_numpy(c.token_ids.astype(np.int64))[:, None])[:, 0]
            assert np.abs(picked.numpy() - c.logprobs).max() < 1e-4


def test_greedy_equals_generate(foreign: TransformersPolicy) -> None:
    for prefix, (ours,) in zip(PREFIXES, written(foreign, Sampling(temperature=0, max_tokens=12)), strict=True):
        given = torch.from_numpy(prefix.astype(np.int64))[None]
        theirs = foreign.model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=12
        )
        assert ours.token_ids.tolist() == theirs[0, len(prefix) :].tolist()


def test_small_batches_sample_the_same(
    twins: tuple[PonderPolicy, TransformersPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = twins[1]
    sampling = Sampling(seed=5, max_tokens=20)
    expected = written(policy, sampling, n=4)
    monkeypatch.setattr(policy, "_max_batch_rows", lambda requests: 3)
    same(written(policy, sampling, n=4), expected)


def test_on_tokens_counts_every_token_and_may_raise(twins: tuple[PonderPolicy, TransformersPolicy]) -> None:
    policy = twins[1]
    heard: list[int] = []
    policy.on_tokens = heard.append
    try:
        result = written(policy, Sampling(seed=3, max_tokens=9), n=2)
        assert sum(heard) == sum(len(c.token_ids) for g in result for c in g)

        def enough(tokens: int) -> None:
            raise UsageError("enough")

        policy.on_tokens = enough
        with pytest.raises(UsageError, match="enough"):
            written(policy, Sampling(max_tokens=9))
    finally:
        policy.on_tokens = lambda tokens: None


def test_chats_encode_as_with_ponder_policy(llama: Path, tmp_path: Path) -> None:
    messages = user_messages("what is 2 + 3?")
    text = Tokenizer.from_folder(llama).decode(TransformersPolicy.load(llama).encode(messages), keep_special=True)
    assert text == "User: what is 2 + 3?\n\nAssistant:"  # it has no template: "plain"
    shutil.copytree(llama, tmp_path / "chat")
    (tmp_path / "chat/chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}Q: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}A:{% endif %}"
    )
    ours = load_policy(str(tmp_path / "chat"), device="cpu", dtype="float32").encode(messages)
    theirs = load_inference_policy(f"transformers:{tmp_path / 'chat'}", device="cpu", dtype="float32").encode(messages)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "chat").apply_chat_template(
        list(messages), add_generation_prompt=True, return_dict=False
    )
    assert ours.tolist() == theirs.tolist() == list(reference)
    adopted = load_inference_policy(f"transformers:{llama}", template="qa", device="cpu", dtype="float32")
    assert adopted.tokenizer.decode(adopted.encode(user_messages("is it?"))) == "Question: is it?\nAnswer:"


def test_all_eos_tokens_are_known(llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "m")
    (tmp_path / "m/generation_config.json").write_text('{"eos_token_id": [9, 2]}')
    assert TransformersPolicy.load(tmp_path / "m").eos == {2, 9}
    assert Tokenizer.from_folder(tmp_path / "m").eos == TransformersPolicy.load(tmp_path / "m").tokenizer.eos == (9, 2)


def test_model_names(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_paths.NAMED_MODELS, "tiny", lambda: llama)
    on = {"device": "cpu", "dtype": "float32"}
    assert isinstance(load_inference_policy("tiny", **on), PonderPolicy)
    assert isinstance(load_inference_policy(str(llama), **on), PonderPolicy)
    assert isinstance(load_inference_policy(ScratchModel("ab", width=8, layers=1, heads=1), **on), PonderPolicy)
    assert isinstance(load_inference_policy("transformers:tiny", **on), TransformersPolicy)
    with pytest.raises(UsageError, match=r"only ponder's own networks can be trained"):
        load_policy("transformers:tiny", **on)
    with pytest.raises(UnknownName, match="tiny"):
        load_inference_policy("tyny", **on)


def test_load_errors_give_the_reason(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twins: tuple[PonderPolicy, TransformersPolicy]
) -> None:
    with pytest.raises(UnknownName, match=r"no model named .*nowhere"):
        load_inference_policy(f"transformers:{tmp_path / 'nowhere'}", device="cpu", dtype="float32")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="transformers cannot load") as error:
        TransformersPolicy.load(tmp_path / "empty")
    assert "\n" not in str(error.value)
    with pytest.raises(ModelError, match="does not fit the model"):
        TransformersPolicy(twins[1].model, Tokenizer.from_alphabet(ALPHABET + "XYZ"))
    with pytest.raises(UsageError, match="context only 64"):
        written(twins[1], Sampling(), prefixes=[ids([1] * 64)])
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ponder\[hf\]'"):
        TransformersPolicy.load(llama)


def test_failing_request_affects_no_other_in_the_batch(twins: tuple[PonderPolicy, TransformersPolicy]) -> None:
    """Rules that leave no token, beside calls that share the batch."""
    policy = twins[1]
    none_left = Sampling(allowed_token_ids=(7,), no_repeat_ngram_size=1, max_tokens=6)

    async def together(*more: Sampling) -> list[Any]:
        rules = [Sampling(max_tokens=6, seed=i) for i in range(3)]
        calls = (policy.generate(ids([1, 5]), rule, 2) for rule in (*rules, *more))
        return await asyncio.gather(*calls, return_exceptions=True)

    *others, failed = asyncio.run(together(none_left))
    assert isinstance(failed, UsageError) and "loosen the options" in str(failed)
    alone = asyncio.run(together())
    assert [[c.text for c in group] for group in others] == [[c.text for c in group] for group in alone]
