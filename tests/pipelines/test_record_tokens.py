"""Every job that samples keeps what its tokens write: joined, they are the texts of its traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from ponder.models import byte_tokenizer, gguf_tokenizer
from ponder.models.scratch_model import ScratchModel
from ponder.models.tokenizer import Tokenizer
from ponder.nets import gguf, hf
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import init_decoder
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.protocols import NoProgress
from ponder.reason.strategies import Samples
from ponder.runs import read_traces
from ponder.runs.token_texts import TOKEN_TEXTS_FILE, TokenBytes, read_token_texts
from ponder.types import Sampling

SCRATCH = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=64)
STRATEGY = Samples(4, Sampling(max_tokens=24, temperature=1.5))
CPU: dict[str, Any] = {"template": QUESTION_TEMPLATE, "device": "cpu", "dtype": "float32"}


def byte_level() -> Tokenizer:
    """Tokens of several words, of half a character, special ones, and one of the user's with a space in it."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = gguf_tokenizer.PRE_TOKENIZERS["smollm"]()
    inner.decoder = decoders.ByteLevel()
    specials, alphabet = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=specials, initial_alphabet=alphabet)
    inner.train_from_iterator(["naïve café 東京東京 🙂🙂 1 2 3 = the of and " * 3], trainer)
    inner.add_tokens([tokenizers.AddedToken("<a tool>", special=False, normalized=False)])
    return Tokenizer(inner, bos=1, eos=(2, 0), pad=0)


def sentence_pieces() -> Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁1", "1", "=", "▁▁", "é", "▁"]
    types = [2, 3, 3, *[6] * 256, *[1] * 6]
    data = {"model": "llama", "tokens": pieces, "token_type": types, "scores": [-float(i) for i in range(len(pieces))]}
    return Tokenizer(gguf_tokenizer.tokenizer_from_gguf({**data, "bos_token_id": 1}), bos=1, eos=(2,))


def words() -> Tokenizer:
    """Its decoder joins tokens with spaces: their texts are no pieces of the text."""
    inner = tokenizers.Tokenizer(models.WordLevel({"<eos>": 0, "1": 1, "=": 2, "2": 3}, unk_token="="))
    inner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    return Tokenizer(inner, eos=(0,))


def save_model(folder: Path, tokenizer: Tokenizer, as_gguf: bool = False) -> str:
    config = DecoderConfig("llama", tokenizer.vocab_size + 3, 32, 2, 4, 2, 8, mlp_width=64, context=128, eos=(2, 0))
    net = init_decoder(config, 0)
    if as_gguf:
        gguf.save(net, tokenizer, folder / "m.gguf")
        return str(folder / "m.gguf")
    hf.save(net, folder / "m")
    tokenizer.save(folder / "m")
    return str(folder / "m")


def joined(texts: TokenBytes, token_ids: Any) -> bytes:
    return b"".join(texts[i] for i in np.asarray(token_ids).tolist())


def check_run(folder: Path, tokenizer: Tokenizer) -> None:
    texts = read_token_texts(folder)
    assert texts is not None and len(texts) >= tokenizer.vocab_size
    num_sampled = 0
    for _, trace in read_traces(folder):
        for step in trace.steps:
            written = joined(texts, step.token_ids).decode("utf-8", "replace")
            assert written == tokenizer.decode(step.token_ids, keep_special=True)
            if step.sampled:
                num_sampled += 1
                without_end = step.token_ids[:-1] if step.stop == "eos" else step.token_ids
                assert joined(texts, without_end).decode("utf-8", "replace") == step.text
    assert num_sampled > 3


@pytest.mark.parametrize(
    "job",
    [
        RL(DigitTask(), SCRATCH, strategy=STRATEGY, steps=1, problems_per_step=2, preflight=False, **CPU),
        Evaluate(DigitTask(), SCRATCH, strategy=STRATEGY, limit=2, **CPU),  # type: ignore[arg-type]
        Collect(DigitTask(), SCRATCH, strategy=STRATEGY, limit=2, **CPU),  # type: ignore[arg-type]
    ],
    ids=lambda job: type(job).__name__,
)
def test_job_keeps_its_tokens(job: Any, tmp_path: Path) -> None:
    job(tmp_path / "run", NoProgress())
    check_run(tmp_path / "run", Tokenizer.from_alphabet(ALPHABET))


def test_fine_tuning_keeps_its_tokens_and_resumes(tmp_path: Path) -> None:
    job = FineTune(DigitTask(), SCRATCH, steps=1, batch_size=2, save_every=1, **CPU)
    job(tmp_path / "run", NoProgress())
    before = (tmp_path / "run" / TOKEN_TEXTS_FILE).stat().st_mtime_ns
    replace(job, steps=2)(tmp_path / "run", NoProgress())
    assert (tmp_path / "run" / TOKEN_TEXTS_FILE).stat().st_mtime_ns == before
    texts = read_token_texts(tmp_path / "run")
    assert texts is not None and texts[:4] == [b"<pad>", b"<bos>", b"<eos>", b"0"]


@pytest.mark.parametrize("as_gguf", [False, True])
def test_byte_level_tokens_of_a_model_file_are_exact(tmp_path: Path, as_gguf: bool) -> None:
    tokenizer = byte_level()
    model = save_model(tmp_path, tokenizer, as_gguf)
    Evaluate(DigitTask(), model, strategy=STRATEGY, limit=4, **CPU)(tmp_path / "run", NoProgress())
    check_run(tmp_path / "run", tokenizer)
    texts = read_token_texts(tmp_path / "run")
    assert texts is not None and texts[2] == b"<|im_end|>" and texts[tokenizer.vocab_size - 1] == b"<a tool>"
    assert any(t and t.decode("utf-8", "replace") != t.decode("utf-8", "ignore") for t in texts), "half characters"


@pytest.mark.parametrize("make", [byte_level, sentence_pieces, byte_tokenizer.make_tokenizer])
def test_joined_bytes_are_what_decode_gives(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    from ponder.models.vocabulary_bytes import vocabulary_bytes
    from ponder.runs.token_texts import write_token_texts

    tokenizer = make()
    write_token_texts(tmp_path, vocabulary_bytes(tokenizer, tokenizer.vocab_size))
    texts = read_token_texts(tmp_path)
    assert texts is not None
    start = tokenizer.encode("1", add_special_tokens=False).tolist()  # SentencePiece drops a first space
    prefix = tokenizer.decode(start)
    lead = b"" if joined(texts, start).decode() == prefix else b" "
    draw = np.random.default_rng(0)
    for _ in range(400):
        tokens = [*start, *draw.integers(0, tokenizer.vocab_size, draw.integers(1, 9)).tolist()]
        plain = joined(texts, tokens).removeprefix(lead)
        try:
            text = plain.decode()
        except UnicodeDecodeError:
            assert "\ufffd" in tokenizer.decode(tokens, keep_special=True)
        else:
            assert tokenizer.decode(tokens, keep_special=True) == text


def test_tokens_that_are_no_pieces_of_text_are_not_kept(tmp_path: Path) -> None:
    model = save_model(tmp_path, words())
    Evaluate(DigitTask(), model, strategy=STRATEGY, limit=2, **CPU)(tmp_path / "run", NoProgress())
    assert read_token_texts(tmp_path / "run") is None and not (tmp_path / "run" / TOKEN_TEXTS_FILE).exists()
