"""GGUF's tokenizer metadata as a `tokenizers.Tokenizer`, and back.

GGUF names a pre-tokenizer and lists tokens, types and merges (byte-level BPE) or scores (SentencePiece). What a
name means is written down only in llama.cpp's source; the table here says it for the families ponder runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ponder.errors import ModelError, PonderError, UnknownName
from ponder.models.tokenizer_json import catch_rust_panics, one_line

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # GGUF's token types

MAX_TOKEN_CHARS = 1 << 12  # to find what a piece was joined of takes the square of its length

_SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_PATTERN = _SPLIT_PATTERN.replace("DIGITS", "{1,3}")
QWEN2_PATTERN = _SPLIT_PATTERN.replace("DIGITS", "")


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


# Of names that mean the same, the first is the one written.
PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": _smollm,
    "gpt-2": _gpt2,
    "default": _gpt2,
    "qwen2": lambda: _split(QWEN2_PATTERN),
    "deepseek-r1-qwen": lambda: _split(QWEN2_PATTERN),
    "llama-bpe": lambda: _split(LLAMA3_PATTERN),
}
NFC_PRE_TOKENIZERS = ("qwen2",)  # these compose accents first


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """From metadata keys without their `tokenizer.ggml.` (tokens, token_type, merges, ...)."""
    try:
        with catch_rust_panics():
            return _parse(metadata)
    except PonderError:
        raise
    except Exception as reason:  # tokenizers raises nothing narrower
        raise ModelError(
            f"the GGUF file's tokenizer makes no sense ({one_line(reason)}); convert the model anew"
        ) from None


def _parse(metadata: Mapping[str, Any]) -> Tokenizer:
    kind = metadata.get("model")
    if kind not in ("gpt2", "llama"):
        raise ModelError(
            f"the GGUF file's tokenizer is of kind {kind!r:.60}; ponder builds 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece): take the tokenizer from the model's Hugging Face folder"
        )
    tokens: list[str] = list(metadata["tokens"])
    types: list[int] = list(metadata.get("token_type") or [NORMAL] * len(tokens))
    _check_consistent(tokens, types, metadata)
    while types and types[-1] == UNUSED:  # rows that only pad the embedding
        types.pop()
    tokens = tokens[: len(types)]
    out = _byte_level(tokens, metadata) if kind == "gpt2" else _sentence_piece(tokens, types, metadata)
    added = [(t, k) for t, k in zip(tokens, types, strict=True) if k in (CONTROL, USER)]
    # SentencePiece finds its user's tokens after spaces became "▁", byte-level models in the text as it is
    spaced = kind == "llama" and not metadata.get("add_space_prefix", True)
    out.add_tokens([AddedToken(t, special=k == CONTROL, normalized=spaced and k == USER) for t, k in added])
    bos = metadata.get("bos_token_id")
    if metadata.get("add_bos_token", _adds_bos(metadata)) and bos is not None:
        first = tokens[bos]
        out.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first}:1 $B:1", special_tokens=[(first, bos)]
        )
    return out


def _check_consistent(tokens: Sequence[str], types: Sequence[int], metadata: Mapping[str, Any]) -> None:
    if not all(isinstance(t, str) for t in tokens) or not all(type(t) is int for t in types):
        raise ModelError("the GGUF file's tokens are no texts, or their types no numbers; convert the model anew")
    if longest := max((t for t in tokens if len(t) > MAX_TOKEN_CHARS), key=len, default=""):
        raise ModelError(
            f"the GGUF file's tokenizer has a token of {len(longest):,} characters; convert the model anew"
        )
    for name, many in (("types", types), ("scores", metadata.get("scores") or tokens)):
        if len(many) != len(tokens):
            raise ModelError(
                f"the GGUF file has {len(tokens):,} tokens and {len(many):,} {name}; convert the model anew"
            )
    bos = metadata.get("bos_token_id")
    if bos is not None and not (type(bos) is int and 0 <= bos < len(tokens)):
        raise ModelError(f"the GGUF file's first token is {bos!r:.40} of {len(tokens):,}; convert the model anew")


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    """What llama.cpp does where a file does not say."""
    return metadata.get("model") == "llama" or metadata.get("pre") == "llama-bpe"


def _byte_level(tokens: Sequence[str], metadata: Mapping[str, Any]) -> Tokenizer:
    pre = metadata.get("pre") or "default"
    if pre not in PRE_TOKENIZERS:
        hint = "Take the tokenizer from the model's Hugging Face folder."
        raise UnknownName("GGUF pre-tokenizer", str(pre), PRE_TOKENIZERS, hint)
    merges = [tuple(m.split(" ", 1)) for m in metadata.get("merges") or ()]
    vocab = {t: i for i, t in enumerate(tokens)}
    try:
        model = models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe")
    except Exception as reason:  # tokenizers raises nothing narrower
        raise ModelError(
            f"the GGUF file's merges do not fit its tokens ({one_line(reason)}); convert the model anew"
        ) from None
    out = Tokenizer(model)
    if pre in NFC_PRE_TOKENIZERS:
        out.normalizer = normalizers.NFC()
    out.pre_tokenizer = PRE_TOKENIZERS[pre]()
    out.decoder = decoders.ByteLevel()
    return out


def _sentence_piece(tokens: Sequence[str], types: Sequence[int], metadata: Mapping[str, Any]) -> Tokenizer:
    """SentencePiece BPE keeps no merges: the pair whose joint piece has the best score is joined first."""
    scores, vocab = metadata["scores"], {t: i for i, t in enumerate(tokens)}
    pairs = []
    for piece, index in vocab.items():
        if types[index] != NORMAL:
            continue
        for cut in range(1, len(piece)):
            left, right = vocab.get(piece[:cut]), vocab.get(piece[cut:])
            if left is not None and right is not None:
                pairs.append((-scores[index], left, right))
    merges = [(tokens[left], tokens[right]) for _, left, right in sorted(pairs)]
    unknown = tokens[types.index(UNKNOWN)] if UNKNOWN in types else None
    out = Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in types))
    space = normalizers.Replace(" ", "▁")
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("add_space_prefix", True):
        out.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        out.normalizer = space
    out.decoder = decoders.Sequence(steps)
    return out


def gguf_metadata_of(tokenizer: Tokenizer, size: int) -> dict[str, Any]:
    """The same keys for a byte-level BPE tokenizer; `size` is the model's vocabulary, filled up with padding."""
    state = json.loads(tokenizer.to_str())
    composed = state["normalizer"] is not None
    pre = next(
        (
            name
            for name in PRE_TOKENIZERS
            if (name in NFC_PRE_TOKENIZERS) == composed and _uses_pre_tokenizer(state, name)
        ),
        None,
    )
    if state["model"]["type"] != "BPE" or pre is None or state["normalizer"] not in (None, {"type": "NFC"}):
        raise ModelError(
            "GGUF has no way to write this tokenizer (only byte-level BPE with a known pre-tokenizer); "
            "save the weights alone with tokenizer=None"
        )
    tokens, types = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    for text, index in state["model"]["vocab"].items():
        tokens[index], types[index] = text, NORMAL
    for added in state["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], CONTROL if added["special"] else USER
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["model"]["merges"]]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges}


def _uses_pre_tokenizer(state: Mapping[str, Any], name: str) -> bool:
    probe = Tokenizer(models.BPE())
    probe.pre_tokenizer = PRE_TOKENIZERS[name]()
    return bool(
        _without_offsets(json.loads(probe.to_str())["pre_tokenizer"]) == _without_offsets(state["pre_tokenizer"])
    )


def _without_offsets(state: Any) -> Any:
    """Without `trim_offsets`, which moves offsets but no tokens."""
    if isinstance(state, dict):
        return {k: _without_offsets(v) for k, v in state.items() if k != "trim_offsets"}
    return [_without_offsets(s) for s in state] if isinstance(state, list) else state
