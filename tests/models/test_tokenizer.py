"""Tokenizers from folders and GGUF files, against other implementations on the same text."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ponder.errors import ModelError, UnknownName, UsageError
from ponder.models import gguf_tokenizer
from ponder.models.tokenizer import Tokenizer
from ponder.nets import gguf
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import init_decoder

TEXTS = [
    "It's 1234567 apples, isn't it?",
    "  two  spaces\n\n\tand a tab\r\n",
    "naïve café 東京 🙂 ﬁ",
    "x = [i**2 for i in range(10)]  # SQUARES'LL do",
    "<|im_start|>user\nhi<|im_end|>",
    "",
]
CORPUS = ["the naïve café sells apples, isn't it? 1234 東京 " * 3, "for i in range(10): x = i ** 2\n\n"] * 4


def config(vocab: int) -> DecoderConfig:
    return DecoderConfig("llama", vocab, width=8, layers=1, heads=1, kv_heads=1, head_dim=8, mlp_width=8)


def trained(pre: str) -> Tokenizer:
    """A small byte-level tokenizer with this pre-tokenizer, two special tokens and one of the user's."""
    inner = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    inner.pre_tokenizer = gguf_tokenizer.PRE_TOKENIZERS[pre]()
    inner.decoder = decoders.ByteLevel()
    if pre in gguf_tokenizer.NFC_PRE_TOKENIZERS:
        inner.normalizer = tokenizers.normalizers.NFC()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, special_tokens=specials, initial_alphabet=alphabet)
    )
    inner.add_tokens([tokenizers.AddedToken("<tool>", special=False, normalized=False)])
    return Tokenizer(inner, bos=1, eos=(2, 0), pad=0, chat_template="{{ messages[0].content }}")


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return trained("smollm")


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "qwen2", "llama-bpe", "deepseek-r1-qwen"])
def test_gguf_round_trip(pre: str, tmp_path: Path) -> None:
    before = trained(pre)
    size = before.vocab_size + 5  # embeddings often have spare rows
    gguf.save(init_decoder(config(size), seed=0), before, tmp_path / "m.gguf")
    after = Tokenizer.from_gguf(tmp_path / "m.gguf")
    for text in TEXTS:
        assert after.encode(text).tolist() == before.encode(text).tolist()
        assert after.decode(after.encode(text)) == before.decode(before.encode(text))
    assert (after.bos, after.eos, after.pad) == (1, (2, 0), 0)
    assert after.chat_template == before.chat_template
    assert after.vocab_size == before.vocab_size
    assert gguf.load(tmp_path / "m.gguf").config.eos == (2, 0)


def test_digits_are_single_tokens(small: Tokenizer) -> None:
    assert [small.token(i) for i in small.encode("2024 + 7")] == ["2", "0", "2", "4", "Ġ", "+", "Ġ", "7"]


def test_transformers_reads_a_saved_tokenizer(small: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    small.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == small.encode(text).tolist()
        ids = small.encode(text)
        assert theirs.decode(ids, skip_special_tokens=True) == small.decode(ids)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (1, 2, 0)
    assert theirs.chat_template == small.chat_template


def test_reads_what_ponder_and_transformers_save(small: Tokenizer, tmp_path: Path) -> None:
    small.save(tmp_path / "ours")
    again = Tokenizer.from_folder(tmp_path / "ours")
    assert (again.bos, again.eos, again.pad, again.chat_template) == (1, (2, 0), 0, small.chat_template)
    transformers = pytest.importorskip("transformers")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    theirs = Tokenizer.from_folder(tmp_path / "theirs")
    assert (theirs.bos, theirs.eos, theirs.pad, theirs.chat_template) == (1, (2,), 0, small.chat_template)
    for text in TEXTS:
        assert again.encode(text).tolist() == theirs.encode(text).tolist() == small.encode(text).tolist()


def test_ids_are_int32_and_special_tokens_are_optional(small: Tokenizer) -> None:
    ids = small.encode("<|im_start|>a<|im_end|>")
    assert ids.dtype == np.int32
    assert small.decode(ids) == "a"
    assert small.decode(ids, keep_special=True) == "<|im_start|>a<|im_end|>"
    assert small.encode("").shape == (0,)


def test_partial_character_is_replaced(small: Tokenizer) -> None:
    ids = small.encode("🙂")
    assert len(ids) > 1
    assert "\ufffd" in small.decode(ids[:-1])
    assert small.decode(ids) == "🙂"


def test_decoding_from_a_table_is_the_librarys(small: Tokenizer) -> None:
    """Random tokens: characters in pieces, bytes that are no character, special tokens, ids without a token."""
    draw, size = random.Random(0), small.vocab_size
    for _ in range(2000):
        ids = [draw.randrange(256 if draw.random() < 0.7 else size + 2) for _ in range(draw.randint(0, 12))]
        assert small.decode(ids, keep_special=True) == small.inner.decode(ids, skip_special_tokens=False)
    assert small.decode([-5, *small.encode("é")], keep_special=True) == "é"


def test_decoding_many_at_once_is_decoding_each(small: Tokenizer) -> None:
    """Few and many tokens, empty sequences, characters that are cut between two of them, ids that arrays cannot do."""
    draw, size = random.Random(0), small.vocab_size
    gap = Tokenizer.from_json(small.to_json(), "here")
    gap._token_bytes[7] = b""  # as of an id without a token
    outside = [(small, [[-5, 3]]), (small, [[size + 1, 3]]), (Tokenizer.from_alphabet("ab"), [[3, 4]])]
    for tokenizer, odd in [(small, []), (gap, [[7, 7], [7]]), *outside]:
        for count in (0, 1, 3, 200):
            sizes = [draw.choice((0, 1, draw.randint(0, 30))) for _ in range(count)]
            lists = [[draw.randrange(min(256, tokenizer.vocab_size)) for _ in range(n)] for n in sizes] + odd
            many = tokenizer.decode_many([np.asarray(tokens, np.int32) for tokens in lists])
            assert many == [tokenizer.decode(tokens, keep_special=True) for tokens in lists]


def test_special_tokens_from_a_published_folder(small: Tokenizer, tmp_path: Path) -> None:
    """Llama's spelling: objects for tokens, several ends, named templates, a first token, stale truncation."""
    small.inner.save(str(tmp_path / "tokenizer.json"))
    raw = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    raw["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    raw["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw), "utf-8")
    output = {
        "bos_token": {"content": "<|im_start|>"},
        "eos_token": "<|im_end|>",
        "chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "chat"}],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(output))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    (tmp_path / "config.json").write_text(json.dumps({"pad_token_id": 0, "bos_token_id": 7, "eos_token_id": 9}))
    result = Tokenizer.from_folder(tmp_path)
    assert (result.bos, result.eos, result.pad, result.chat_template) == (1, (0, 2), 0, "chat")
    assert result.encode("a b c").tolist()[0] == 1
    assert len(result.encode("a b c")) > 2
    assert result.encode("a b c", add_special_tokens=False).tolist()[0] != 1
    assert result.gguf_metadata(500)["tokenizer.ggml.add_bos_token"] is True


def test_a_tokenizer_must_fit_its_model(small: Tokenizer) -> None:
    small.check_fits(config(small.vocab_size))
    with pytest.raises(ModelError, match=r"does not fit the model.*use the tokenizer the model was trained with"):
        small.check_fits(config(small.vocab_size - 1))
    with pytest.raises(ModelError, match="does not fit"):
        small.gguf_metadata(10)


def test_from_alphabet(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_alphabet("0123456789+-=() \n")
    ids = tokenizer.encode("12 + (3\n)")
    assert len(ids) == 9
    assert tokenizer.decode(ids) == "12 + (3\n)"
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos) == (0, 1, (2,))
    assert tokenizer.vocab_size == 3 + 17
    assert tokenizer.encode("<bos>1<eos>").tolist() == [1, 4, 2]
    assert tokenizer.decode([1, 4, 2]) == "1"
    with pytest.raises(UsageError, match="cannot encode 'x'"):
        tokenizer.encode("x")
    tokenizer.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again.encode("12 + (3\n)").tolist() == ids.tolist()
    assert again.decode(ids) == "12 + (3\n)"
    assert (again.pad, again.bos, again.eos, again.vocab_size) == (0, 1, (2,), 20)
    with pytest.raises(ModelError, match="tokenizer=None"):
        tokenizer.gguf_metadata(20)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("12 + (3\n)")["input_ids"] == ids.tolist()
    assert theirs.decode(ids) == "12 + (3\n)"


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"abcde"]


def sentence_piece(seed: int, prefix: bool) -> dict[str, Any]:
    """A random SentencePiece vocabulary as GGUF writes one."""
    draw = random.Random(seed)
    pieces = list(PIECES)
    while len(pieces) < len(PIECES) + 60:
        joined = draw.choice(pieces[259:]) + draw.choice(pieces[259:])
        if joined not in pieces:
            pieces.append(joined)
    normal = len(pieces) - 259
    return {
        "model": "llama",
        "tokens": [*pieces, "<turn>", "▁▁▁▁▁"],
        "token_type": [2, 3, 3, *[6] * 256, *[1] * normal, 3, 4],
        "scores": [0.0] * 259 + [-float(i) for i in range(normal + 2)],
        "bos_token_id": 1,
        "add_space_prefix": prefix,
    }


def by_score(text: str, metadata: Mapping[str, Any]) -> list[str]:
    """SentencePiece's algorithm, word for word: join the neighbours that make the best piece, leftmost first."""
    scores = dict(zip(metadata["tokens"], metadata["scores"], strict=True))
    parts = list(text)
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
        if not pairs:
            return parts
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_piece_from_scores(prefix: bool) -> None:
    draw = random.Random(1)
    for seed in range(5):
        metadata = sentence_piece(seed, prefix)
        tokenizer = Tokenizer(gguf_tokenizer.tokenizer_from_gguf(metadata), bos=1)
        for _ in range(40):
            text = "".join(draw.choice("abcde ") for _ in range(draw.randint(1, 12)))
            if " " * 5 in text:
                continue
            expected = by_score(("▁" if prefix else "") + text.replace(" ", "▁"), metadata)
            ids = tokenizer.encode(text)
            assert [tokenizer.token(i) for i in ids[1:]] == expected
            assert tokenizer.decode(ids) == text
        assert tokenizer.encode("a").tolist()[0] == 1  # llama.cpp's default is to begin with the first token
        assert tokenizer.decode(tokenizer.encode("é")) == "é"  # through bytes
        turn = metadata["tokens"].index("<turn>")
        assert turn in tokenizer.encode("a<turn>b").tolist()
    if not prefix:
        spaces = metadata["tokens"].index("▁▁▁▁▁")
        assert spaces in tokenizer.encode("a     b").tolist()  # a user's token, found after spaces were marked


def test_bad_inputs(small: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json; save it"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json is damaged"):
        Tokenizer.from_folder(tmp_path)
    small.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json is not JSON"):
        Tokenizer.from_folder(tmp_path)
    gguf.save(init_decoder(config(8), seed=0), None, tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="has no tokenizer"):
        Tokenizer.from_gguf(tmp_path / "m.gguf")
    metadata = small.gguf_metadata(small.vocab_size)
    keys = {k.removeprefix("tokenizer.ggml."): v for k, v in metadata.items()}
    with pytest.raises(ModelError, match="of kind 'bert'"):
        gguf_tokenizer.tokenizer_from_gguf(keys | {"model": "bert"})
    with pytest.raises(UnknownName, match="'tekken'"):
        gguf_tokenizer.tokenizer_from_gguf(keys | {"pre": "tekken"})
    with pytest.raises(ModelError, match="merges do not fit"):
        gguf_tokenizer.tokenizer_from_gguf(keys | {"merges": ["never seen"]})


def test_words_of_an_alphabet_are_single_tokens_also_after_saving(tmp_path: Path) -> None:
    words = ('<call>\n{"x": "', '"}\n</call>')
    made = Tokenizer.from_alphabet('0123456789+<>/cal {}":x\n', words)
    text = f"{words[0]}1+2{words[1]}<c1"
    made.save(tmp_path)
    for tokenizer in (made, Tokenizer.from_folder(tmp_path), Tokenizer.from_json(made.to_json(), "a server")):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert [tokenizer.token(i) for i in ids] == [words[0], *"1+2", words[1], *"<c1"]
        assert tokenizer.decode(ids) == text
