"""`Tokenizer`: a `tokenizers.Tokenizer` with the special ids and the chat template of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers

from ponder.errors import ModelError, UsageError
from ponder.models import gguf_tokenizer, tokenizer_json
from ponder.models.tokenizer_json import RustPanic, catch_rust_panics
from ponder.nets import gguf, model_files
from ponder.nets.config import DecoderConfig, parse_token_id, parse_token_ids
from ponder.runs import manifest
from ponder.types import Ids


def byte_level_alphabet() -> dict[int, str]:
    """GPT-2's character for each byte: printable Latin-1 bytes are themselves, the others characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in printable)
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


_MANY_TOKENS = 128  # that are decoded faster as arrays
_BYTE_OF_CHARACTER = {char: byte for byte, char in byte_level_alphabet().items()}


@dataclass(frozen=True)
class Tokenizer:
    inner: tokenizers.Tokenizer
    bos: int | None = None
    eos: tuple[int, ...] = ()  # any of these ends an answer
    pad: int | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        self.inner.no_truncation()  # some files contain settings of their training
        self.inner.no_padding()

    def encode(self, text: str, add_special_tokens: bool = True) -> Ids:
        """`add_special_tokens`: add what the model expects around a text, such as BOS. False for rendered chats."""
        try:
            with catch_rust_panics():
                encoded = self.inner.encode(text, add_special_tokens=add_special_tokens)
        except Exception as reason:  # tokenizers raises nothing narrower
            raise UsageError(f"the tokenizer cannot encode {text[:80]!r}: {reason}") from None
        return np.asarray(encoded.ids, dtype=np.int32)

    def decode(self, ids: Iterable[int], keep_special: bool = False) -> str:
        """Half a character at either end becomes U+FFFD. Ids below 0, which stand for pictures, have no text."""
        if keep_special and (written := self._token_bytes):
            try:
                tokens = ids if isinstance(ids, list) else list(ids)
                if tokens and min(tokens) < 0:
                    tokens = [i for i in tokens if i >= 0]
                return b"".join(map(written.__getitem__, tokens)).decode(errors="replace")
            except IndexError:  # an id without a token, which the library leaves out
                pass
        try:
            with catch_rust_panics():
                return self.inner.decode([int(i) for i in ids if i >= 0], skip_special_tokens=not keep_special)
        except RustPanic as reason:
            raise ModelError(f"the tokenizer cannot decode these tokens: {reason}") from None

    def decode_many(self, sequences: Sequence[Ids]) -> list[str]:
        """`decode` of each, special tokens kept: of many tokens in a third of the time."""
        if sum(map(len, sequences)) >= _MANY_TOKENS and (written := self.written_bytes(sequences)) is not None:
            return [text.decode(errors="replace") for text in written]
        return [self.decode(tokens.tolist(), keep_special=True) for tokens in sequences]

    def written_bytes(self, sequences: Sequence[Ids]) -> list[bytes] | None:
        """The bytes of each text. None where a text is more than the bytes of its tokens, or an id has no token."""
        if not self.joins_bytes or not sequences:
            return None
        whole, starts, lengths = self._joined_bytes
        tokens = np.concatenate(sequences)
        if len(tokens) and (tokens.min() < 0 or tokens.max() >= len(starts)):
            return None
        written = lengths[tokens]
        ends = np.cumsum(written)
        places = np.repeat(starts[tokens] - (ends - written), written)  # of each byte, less its index
        places += np.arange(len(places))
        text = whole[places].tobytes()
        cuts = [0, *np.concatenate([[0], ends])[np.cumsum([len(tokens) for tokens in sequences])].tolist()]
        return [text[start:end] for start, end in pairwise(cuts)]

    @cached_property
    def _joined_bytes(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """The bytes of all tokens one after the other, and where each token's begin and how many they are."""
        lengths = np.asarray([len(written) for written in self._token_bytes], np.int64)
        return np.frombuffer(b"".join(self._token_bytes), np.uint8), np.cumsum(lengths) - lengths, lengths

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        """What each token writes, where a text is no more than that: many times as fast as the library's `decode`."""
        if not self.joins_bytes:
            return []
        known = self.inner.get_vocab(with_added_tokens=True)
        written = [b""] * (1 + max(known.values(), default=-1))
        for name, index in known.items():
            is_bytes = all(char in _BYTE_OF_CHARACTER for char in name)
            written[index] = bytes(_BYTE_OF_CHARACTER[char] for char in name) if is_bytes else name.encode()
        return written

    @cached_property
    def joins_bytes(self) -> bool:
        """Whether a text is the bytes of its tokens in a row, as in byte-level BPE: what a token adds to a text does
        not depend on the tokens before it, except within a character."""
        return isinstance(self.inner.decoder, decoders.ByteLevel)

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return 1 + max(self.inner.get_vocab().values(), default=-1)

    def token(self, index: int | None) -> str | None:
        return None if index is None else self.inner.id_to_token(index)

    def check_fits(self, config: DecoderConfig) -> None:
        """Raise unless every id has a row in the model's embedding (which may have more rows than ids)."""
        highest = max([self.vocab_size - 1, self.bos or 0, self.pad or 0, *self.eos])
        if highest >= config.vocab:
            raise ModelError(
                f"the tokenizer does not fit the model: its highest id is {highest}, but the model has "
                f"{config.vocab} tokens; use the tokenizer the model was trained with"
            )

    @classmethod
    def from_folder(cls, folder: Path | str) -> Tokenizer:
        """From the tokenizer.json of a Hugging Face folder, with the special tokens from its other files."""
        folder = Path(folder)
        path = model_files.path_inside(folder, "tokenizer.json")
        if not path.is_file():
            raise ModelError(
                f"{folder} has no tokenizer.json; save it there with "
                "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        manifest.verify(folder)
        names = ("tokenizer_config.json", "generation_config.json", "config.json")
        settings, generation, config = (_json(model_files.path_inside(folder, name)) for name in names)
        written = model_files.path_inside(folder, "chat_template.jinja")
        try:
            inner = tokenizer_json.load_tokenizer_json(path)
            eos = (*parse_token_ids("eos_token_id", generation.get("eos_token_id", config.get("eos_token_id"))),)
            return cls(
                inner,
                bos=_special(inner, settings, config, "bos"),
                eos=parse_token_ids("eos_token", [*eos, _token_id_of(inner, settings.get("eos_token"))]),
                pad=_special(inner, settings, config, "pad"),
                chat_template=model_files.read_text(written)
                if written.is_file()
                else _default_template(settings.get("chat_template")),
            )
        except ModelError as reason:
            raise reason if str(folder) in str(reason) else ModelError(f"{folder}: {reason}") from None

    @classmethod
    def from_gguf(cls, path: Path | str | gguf.GGUFFile) -> Tokenizer:
        file = path if isinstance(path, gguf.GGUFFile) else gguf.open_gguf(path)
        keys = ("model", "pre", "tokens", "token_type", "merges", "scores", "bos_token_id")
        flags = ("add_bos_token", "add_space_prefix")
        metadata = {k: v for k in keys + flags if (v := file.get(f"tokenizer.ggml.{k}")) is not None}
        if "tokens" not in metadata:
            raise ModelError(f"{file.path} has no tokenizer; take it from the model's Hugging Face folder")
        eos = [file.get(f"tokenizer.ggml.{key}_token_id") for key in gguf.END_TOKEN_KEYS]
        try:
            return cls(
                gguf_tokenizer.tokenizer_from_gguf(metadata),
                bos=parse_token_id("bos_token_id", metadata.get("bos_token_id")),
                eos=parse_token_ids("eos_token_id", eos),
                pad=parse_token_id("padding_token_id", file.get("tokenizer.ggml.padding_token_id")),
                chat_template=_default_template(file.get("tokenizer.chat_template")),
            )
        except ModelError as reason:
            raise ModelError(f"{file.path}: {reason}") from None

    @classmethod
    def from_alphabet(cls, alphabet: str, words: Sequence[str] = ()) -> Tokenizer:
        """One id per character after <pad>, <bos> and <eos>; any other character is an error when encoding. Then one id
        for each of `words`, wherever a text has it."""
        specials = ["<pad>", "<bos>", "<eos>"]
        vocab = {t: i for i, t in enumerate([*specials, *dict.fromkeys(alphabet)])}
        # The unknown token is not in the vocabulary, so an unknown character raises.
        inner = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<none>"))
        inner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
        inner.decoder = decoders.Fuse()
        inner.add_special_tokens(specials)
        inner.add_tokens([tokenizers.AddedToken(word, special=False, normalized=False) for word in words])
        return cls(inner, bos=1, eos=(2,), pad=0)

    def save(self, folder: Path | str) -> None:
        """Files that `from_folder` and transformers' AutoTokenizer read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.inner.save(str(folder / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.token(self.bos),
            "eos_token": self.token(self.eos[0]) if self.eos else None,
            "pad_token": self.token(self.pad),
            "clean_up_tokenization_spaces": False,
            "model_max_length": 10**30,  # transformers' "no limit"
        }
        _write(folder / "tokenizer_config.json", settings)
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template, "utf-8")
        generation = folder / "generation_config.json"
        if not generation.exists():  # the only file that can name several end tokens
            _write(generation, {"bos_token_id": self.bos, "eos_token_id": list(self.eos), "pad_token_id": self.pad})

    def to_json(self) -> dict[str, Any]:
        """Plain data, as a server hands its tokenizer to clients. `from_json` restores the same tokenizer."""
        return {
            "tokenizer_json": self.inner.to_str(),
            "bos_token_id": self.bos,
            "eos_token_id": list(self.eos),
            "pad_token_id": self.pad,
            "chat_template": self.chat_template,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], source: str) -> Tokenizer:
        """What `to_json` wrote. `source` names who sent it, for errors."""
        text = data.get("tokenizer_json")
        if not isinstance(text, str):
            raise ModelError(f"{source} sent no tokenizer: give the model's own, as ?tokenizer=FOLDER")
        try:
            return cls(
                tokenizer_json.parse_tokenizer_json(text, f"the tokenizer of {source}", "restart that server"),
                bos=parse_token_id("bos_token_id", data.get("bos_token_id")),
                eos=parse_token_ids("eos_token_id", data.get("eos_token_id")),
                pad=parse_token_id("pad_token_id", data.get("pad_token_id")),
                chat_template=_default_template(data.get("chat_template")),
            )
        except ModelError as reason:
            raise reason if source in str(reason) else ModelError(f"{source}: {reason}") from None

    def gguf_metadata(self, size: int) -> dict[str, Any]:
        """The tokenizer metadata of a GGUF file, for a model with `size` tokens."""
        if self.vocab_size > size:
            raise ModelError(f"the tokenizer does not fit the model: {self.vocab_size} ids, {size} tokens")
        ids = {"bos": self.bos, "padding": self.pad} | dict(zip(gguf.END_TOKEN_KEYS, self.eos, strict=False))
        out = gguf_tokenizer.gguf_metadata_of(self.inner, size)
        out |= {f"{name}_token_id": index for name, index in ids.items() if index is not None}
        out["add_bos_token"] = self.bos is not None and self.encode("").tolist()[:1] == [self.bos]
        ggml = {f"tokenizer.ggml.{k}": v for k, v in out.items()}
        return ggml if self.chat_template is None else ggml | {"tokenizer.chat_template": self.chat_template}


def _json(path: Path) -> Mapping[str, Any]:
    return model_files.read_json(path) if path.is_file() else {}


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _special(
    inner: tokenizers.Tokenizer, settings: Mapping[str, Any], config: Mapping[str, Any], name: str
) -> int | None:
    if f"{name}_token" in settings:
        return _token_id_of(inner, settings[f"{name}_token"])
    return parse_token_id(f"{name}_token_id", config.get(f"{name}_token_id"))


def _token_id_of(inner: tokenizers.Tokenizer, token: Any) -> int | None:
    if isinstance(token, Mapping):
        token = token.get("content")
    try:
        return None if token is None else inner.token_to_id(str(token))
    except ValueError:  # half of a surrogate pair
        raise ModelError(f"the special token {token!r:.60} is not text") from None


def _default_template(template: Any) -> str | None:
    """A string, or a list of named templates, of which the one named `default` is for chats."""
    if isinstance(template, list):
        named = {
            t.get("name"): t.get("template") for t in template if isinstance(t, dict) and isinstance(t.get("name"), str)
        }
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"the chat template is {template!r:.60}, which is not text")
    return template


def answer_end_token(tokenizer: Tokenizer) -> int:
    """The end-of-sequence token that the chat template writes after an answer, else the tokenizer's first."""
    if not tokenizer.eos:
        raise ModelError("the tokenizer names no end-of-sequence token, so answers cannot end: add eos_token to it")
    written = tokenizer.chat_template or ""
    return next((e for e in tokenizer.eos if (tokenizer.token(e) or "") in written), tokenizer.eos[0])
