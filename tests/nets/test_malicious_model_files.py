"""Model files from somebody who means harm: each is refused in one sentence, at once, and in little memory."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import hostile_models
from hostile_models import BASE, DATA, FIELDS, HUGE, TENSORS, gguf_bytes, text
from ponder.models import chat_templates
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf, lora
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead
from ponder.nets.lora import LoRA
from ponder.nets.weight_files import WEIGHTS_FILE, WEIGHTS_INDEX_FILE

pytest.importorskip("gguf")

MAX_EXTRA_MEGABYTES = 400  # that a process may take beyond what an honest model took
TIMEOUT_SECONDS = 280  # for all of them on a busy machine; one that loops takes hours
Change = Callable[[Path], None]


def config(**settings: Any) -> Change:
    return edit("config.json", **settings)


def edit(file: str, **settings: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / file
        data = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(data | settings))

    return change


def write(file: str, data: str | bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / file).write_bytes(data.encode() if isinstance(data, str) else data)

    return change


def sparse(file: str, size: int) -> Change:
    def change(folder: Path) -> None:
        with (folder / file).open("wb") as out:
            out.truncate(size)

    return change


def header(change_entry: Callable[[dict[str, Any]], Any], file: str = WEIGHTS_FILE) -> Change:
    """A safetensors file whose header was changed, with the bytes of the old one behind it."""

    def change(folder: Path) -> None:
        data = (folder / file).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        parsed = json.loads(data[8 : 8 + length])
        parsed.pop("__metadata__", None)
        new = change_entry(parsed)
        message = (new if isinstance(new, str) else json.dumps(new or parsed)).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(message)) + message + data[8 + length :])

    return change


def entry(**about: Any) -> Change:
    return header(lambda told: told[sorted(told)[0]].update(about))


def filled(value: float, file: str = WEIGHTS_FILE) -> Change:
    def change(folder: Path) -> None:
        tensors = load_file(folder / file)
        next(iter(tensors.values())).view(-1)[-1] = value
        save_file(tensors, folder / file)

    return change


def retyped(dtype: torch.dtype) -> Change:
    def change(folder: Path) -> None:
        save_file(
            {n: t.to(dtype) for n, t in load_file(folder / WEIGHTS_FILE).items()},
            folder / WEIGHTS_FILE,
        )

    return change


def tokenizer(**parts: Any) -> Change:
    def change(folder: Path) -> None:
        data = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(data | parts))

    return change


def outside(folder: Path) -> None:
    (folder / WEIGHTS_FILE).rename(folder.parent / f"{folder.name}-outside.safetensors")


def index(*names: Any) -> Change:
    return write(WEIGHTS_INDEX_FILE, json.dumps({"weight_map": {f"t{i}": name for i, name in enumerate(names)}}))


def escape(folder: Path) -> None:
    outside(folder)
    index(f"../{folder.name}-outside.safetensors")(folder)


def escape_by_root(folder: Path) -> None:
    outside(folder)
    index(str(folder.parent / f"{folder.name}-outside.safetensors"))(folder)


def linked(file: str) -> Change:
    def change(folder: Path) -> None:
        away = folder.parent / f"{folder.name}-{file}"
        (folder / file).rename(away)
        (folder / file).symlink_to(away)

    return change


def circle(folder: Path) -> None:
    (folder / WEIGHTS_FILE).unlink()
    (folder / WEIGHTS_FILE).symlink_to(WEIGHTS_FILE)


def twice(folder: Path) -> None:
    shutil.copy(folder / WEIGHTS_FILE, folder / "b.safetensors")
    index(WEIGHTS_FILE, "b.safetensors")(folder)


def template(source: str) -> Change:
    return write("chat_template.jinja", source)


MANY = {str(i): i for i in range(99)}
DEEP = "[" * 200_000 + "]" * 200_000
GROW = {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 60}
LOOP = "{% for i in range(99999) %}"
DOUBLE = "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = OP %}{% endfor %}{{ ns.x }}"

CONFIGS: dict[str, Change] = {
    **{f"{n} layers": config(num_hidden_layers=n) for n in (10**7, 10**18, 0, -1, 1.5, "2", True, None, [], 1e308)},
    "4000 layers": config(num_hidden_layers=4000),
    **{f"{n} heads": config(num_attention_heads=n, num_key_value_heads=n) for n in (0, -2, 10**9, 3)},
    **{f"{n} key heads": config(num_key_value_heads=n) for n in (0, -1, 10**12, 5, "x")},
    **{f"heads of {n}": config(head_dim=n) for n in (10**12, 2**40, 7, -8, 60_000, {})},
    **{f"width {n}": config(hidden_size=n) for n in (10**15, 0, -16, 1 << 20, float("nan"), float("inf"))},
    **{f"hidden {n}": config(intermediate_size=n) for n in (10**15, 0, -1)},
    **{f"vocabulary {n}": config(vocab_size=n) for n in (10**15, 0, -1, 1 << 24, 3)},
    **{f"context {n}": config(max_position_embeddings=n) for n in (10**15, 0, -1, "long")},
    **{f"rope base {n}": config(rope_theta=n) for n in (float("nan"), float("inf"), -1e4, 1e-320, [1], "x")},
    **{f"epsilon {n}": config(rms_norm_eps=n) for n in (float("nan"), float("inf"), -1.0, [], "x")},
    **{f"eos {n}": config(eos_token_id=n) for n in (10**12, "x", [[1]], {}, 1.5)},
    "rope factor 0": config(rope_scaling={"rope_type": "linear", "factor": 0}),
    "rope factor missing": config(rope_scaling={"rope_type": "llama3"}),
    "rope factor a list": config(rope_scaling={"rope_type": "yarn", "factor": []}),
    "rope factor nan": config(rope_scaling={"rope_type": "linear", "factor": float("nan")}),
    "yarn without context": config(
        rope_scaling={"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": -1}
    ),
    "rope type of a megabyte": config(rope_scaling={"rope_type": "x" * 1_000_000}),
    "rope no object": config(rope_scaling="linear"),
    "family of a megabyte": config(model_type="x" * 1_000_000),
    "family a list": config(model_type=["llama"]),
    "windows": config(model_type="mistral", sliding_window=-5),
    "windows of text": config(model_type="mistral", sliding_window="wide"),
    "pattern 0": config(model_type="gemma3_text", sliding_window_pattern=0),
    "text config": config(model_type="gemma3", text_config=[1]),
    "deep": write("config.json", DEEP),
    "deep inside": write("config.json", '{"a": ' + DEEP + "}"),
    "a long number": write("config.json", '{"hidden_size": ' + "9" * 10_000 + "}"),
    "not text": write("config.json", b"\xff\xfe\x00\x01" * 100),
    "empty": write("config.json", b""),
    "terabyte": sparse("config.json", 1 << 40),
    "linked": linked("config.json"),
}  # fmt: skip


def poke(folder: Path) -> None:
    """A header of 64 GB, in a file that has as many."""
    sparse(WEIGHTS_FILE, 1 << 40)(folder)
    with (folder / WEIGHTS_FILE).open("r+b") as out:
        out.write(struct.pack("<Q", 1 << 36))


def overlap(message: dict[str, Any]) -> None:
    for about in message.values():
        if about["shape"] == [16]:
            about["data_offsets"] = [0, 64]


WEIGHTS: dict[str, Change] = {
    "header of 2^62 bytes": write(WEIGHTS_FILE, struct.pack("<Q", HUGE) + b"{}"),
    "header longer than the file": write(WEIGHTS_FILE, struct.pack("<Q", 100) + b"{}"),
    "header in a sparse file": poke,
    "empty": write(WEIGHTS_FILE, b""),
    "seven bytes": write(WEIGHTS_FILE, b"1234567"),
    "terabyte of nothing": sparse(WEIGHTS_FILE, 1 << 40),
    "deep header": header(lambda told: DEEP),
    "header a list": header(lambda told: "[1, 2]"),
    "entries numbers": header(lambda told: '{"a": 1}'),
    "entry without shape": header(lambda told: '{"a": {"dtype": "F32", "data_offsets": [0, 4]}}'),
    "names twice": header(lambda told: '{"a": {}, "a": {}}'),
    "offsets outside": entry(data_offsets=[0, HUGE]),
    "offsets backwards": entry(data_offsets=[4, 0]),
    "offsets negative": entry(data_offsets=[-4, 0]),
    "offsets of text": entry(data_offsets=["0", "4"]),
    "three offsets": entry(data_offsets=[0, 4, 8]),
    "a shape of 2^62": entry(shape=[HUGE]),
    "a shape that overflows": entry(shape=[1 << 33, 1 << 33]),
    "a negative shape": entry(shape=[-1, -1]),
    "a million dimensions": entry(shape=[1] * 1_000_000),
    "an unknown type": entry(dtype="Q4"),
    "a type a list": entry(dtype=["F32"]),
    "a lie of type": entry(dtype="F16"),
    "overlap": header(overlap),
    "integers": retyped(torch.int64),
    "bytes": retyped(torch.uint8),
    "eight bit floats": retyped(torch.float8_e4m3fn),
    "nan": filled(float("nan")),
    "infinite": filled(float("-inf")),
    "a link away": linked(WEIGHTS_FILE),
    "a link to itself": circle,
    "index to the folder above": escape,
    "index to a whole path": escape_by_root,
    "index to a device": index("/dev/zero"),
    "index to a folder": index("."),
    "index to numbers": index(1, None),
    "index to lists": index(["a"]),
    "index deep": write(WEIGHTS_INDEX_FILE, DEEP),
    "index of a list": write(WEIGHTS_INDEX_FILE, "[1]"),
    "index of a terabyte": sparse(WEIGHTS_INDEX_FILE, 1 << 40),
    "the same tensors twice": twice,
}  # fmt: skip


def numbered(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    edit("tokenizer_config.json", chat_template=7)(folder)


TOKENIZERS: dict[str, Change] = {
    "deep": write("tokenizer.json", DEEP),
    "terabyte": sparse("tokenizer.json", 1 << 40),
    "a list": write("tokenizer.json", "[]"),
    "empty": write("tokenizer.json", ""),
    "not text": write("tokenizer.json", b"\xff" * 100),
    "grows": tokenizer(normalizer=GROW),
    "grows by patterns": tokenizer(normalizer={"type": "Replace", "pattern": {"Regex": ""}, "content": "a" * 100_000}),
    "decoder grows": tokenizer(decoder={"type": "Sequence", "decoders": GROW["normalizers"]}),
    "unknown model": tokenizer(model={"type": "Alien"}),
    "a unigram without its unknown": tokenizer(model={"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]}),
    "an id far out": tokenizer(model={"type": "WordLevel", "vocab": {"a": 4_000_000_000}, "unk_token": "a"}),
    "a negative id": tokenizer(model={"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "a"}),
    "more tokens than rows": tokenizer(model={"type": "WordLevel", "vocab": MANY, "unk_token": "0"}),
    "merges of strangers": tokenizer(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["b c"]}),
    "settings deep": write("tokenizer_config.json", DEEP),
    "settings of a terabyte": sparse("tokenizer_config.json", 1 << 40),
    "a special token of half a pair": edit("tokenizer_config.json", bos_token="\ud800"),
    "a first id of text": lambda f: ((f / "tokenizer_config.json").unlink(), config(bos_token_id="x")(f))[0],
    "an end id of text": edit("generation_config.json", eos_token_id="x"),
    "an end id far out": edit("generation_config.json", eos_token_id=10**9),
    "a linked template": lambda f: (template("a")(f), linked("chat_template.jinja")(f))[0],
    "a template of a terabyte": sparse("chat_template.jinja", 1 << 40),
    "a template that is no text": write("chat_template.jinja", b"\xff\xff"),
    "a template that is a number": numbered,
}  # fmt: skip

TEMPLATES: dict[str, Change] = {
    name: template(source)
    for name, source in {
        "nested loops": LOOP * 3 + "{% endfor %}" * 3,
        "loops that pass nothing": LOOP + "{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "a loop in a loop's condition": "{% for i in range(99999) if range(99999)|sum %}{% endfor %}",
        "loops that only search": "{% set l = range(99999)|list %}" + LOOP + "{% if -1 in l %}{% endif %}{% endfor %}",
        "a long product": "{{ 'a' * 10**11 }}",
        "a long list": "{{ ([0] * 10**10)|length }}",
        "a power": "{{ 7 ** (10 ** 10) }}",
        "doubling": DOUBLE.replace("OP", "ns.x + ns.x"),
        "nesting": DOUBLE.replace("OP", "[ns.x, ns.x]"),
        "nesting in dicts": DOUBLE.replace("OP", "{'a': ns.x, 'b': ns.x}"),
        "joining": "{% set ns = namespace(x='a') %}" + LOOP + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "comparing": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
        "a block of itself": "{% set ns = namespace(x='a') %}" + LOOP
        + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
        "a wide format": "{{ '%9999999999d' % 1 }}",
        "a wide format by argument": "{{ '%*d' % (10**10, 1) }}",
        "a wide field": "{{ '{:9999999999}'.format(1) }}",
        "a wide field by argument": "{{ '{:{w}}'.format(1, w=10**10) }}",
        "a wide field of a map": "{{ '{a:9999999999}'.format_map({'a': 1}) }}",
        "justified": "{{ 'a'.ljust(10**11) }}",
        "replaced": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
        "replaced by a filter": "{{ ('a' * 100000)|replace('', 'b' * 100000) }}",
        "joined by a method": "{{ ('b' * 100000).join(['a'] * 100000) }}",
        "joined by a filter": "{{ ('a' * 100000)|map('upper')|join('b' * 100000) }}",
        "tabs": "{{ ('\t' * 100000).expandtabs(1000000) }}",
        "indented": "{{ ('a\n' * 100000)|indent(1000000) }}",
        "indented JSON": "{{ ([1] * 100000)|tojson(indent=1000000) }}",
        "summed lists": "{{ ([[0] * 1000] * 100000)|sum(start=[]) }}",
        "translated": "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
        "a macro of macros": "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(60) }}",
        "a recursive loop": "{% for x in [[1]] recursive %}{{ loop([x, x]) }}{% endfor %}",
        "a deep expression": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
        "a long expression": "{{ " + "+".join(["1"] * 50_000) + " }}",
        "many statements": "{{ a }}" * 100_000,
        "many long texts": "".join(f"{{% set a{i} = 'x' * 4000000 %}}" for i in range(1000)),
        "Python's own": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "another file": "{% include '/etc/passwd' %}",
        "no jinja": "{% for %}",
    }.items()
}  # fmt: skip


def file(**changes: Any) -> Change:
    """A GGUF file with other fields, tensors, data, counts or version."""

    def change(path: Path) -> None:
        fields = FIELDS | changes.pop("fields", {})
        fields = {key: value for key, value in fields.items() if value is not None}
        path.write_bytes(gguf_bytes(fields, changes.pop("tensors", TENSORS), changes.pop("data", DATA), **changes))

    return change


def field(key: str, value: Any) -> Change:
    return file(fields={key: value})


def tensor(name: str, shape: tuple[int, ...] = (32,), kind: int = 0, offset: int | None = None) -> Change:
    return file(tensors=[*TENSORS[1:], TENSORS[0], (name, shape, kind, offset)])


def listing(kind: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IIQ", hostile_models.LISTS, kind, count) + items


def stretched(path: Path) -> None:
    """A terabyte that is not there, of a tensor that is said to fill it."""
    path.write_bytes(gguf_bytes(FIELDS, [*TENSORS, ("big", (1 << 20, 1 << 17), 0, None)], b""))
    os.truncate(path, 1 << 40)


def many_strings(path: Path) -> None:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + listing(8, 1 << 34))
    os.truncate(path, 1 << 40)


def embedding(**data: Any) -> Change:
    numbers = bytearray(DATA)
    numbers[:4] = struct.pack("<f", data["first"])
    return file(data=bytes(numbers))


GGUFS: dict[str, Change] = {
    "lists of lists": field("a", listing(9, HUGE, struct.pack("<IQ", 9, HUGE) * 4)),
    "a list of nothing": field("a", listing(0, HUGE)),
    "a list of strings": field("a", listing(8, HUGE)),
    "a list of strange things": field("a", listing(77, 3)),
    "a sparse list of strings": many_strings,
    "a string of 2^62": field("a", struct.pack("<IQ", 8, HUGE)),
    "a strange value": field("a", struct.pack("<I", 99)),
    "a string that is no text": field("general.architecture", struct.pack("<I", 8) + text(b"\xff\xfe")),
    "2^62 keys": file(counts=(0, HUGE)),
    "2^62 tensors": file(counts=(HUGE, len(FIELDS))),
    "more keys than there are": file(counts=(0, 60_000)),
    "more tensors than there are": file(counts=(60_000, len(FIELDS))),
    "version 1": file(version=1),
    "version 2^31": file(version=1 << 31),
    "the other byte order": lambda p: p.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, HUGE, HUGE)) and None,
    "alignment 0": field("general.alignment", struct.pack("<II", 4, 0)),
    "alignment 3": field("general.alignment", struct.pack("<II", 4, 3)),
    "alignment 2^31": field("general.alignment", struct.pack("<II", 4, 1 << 31)),
    "alignment of text": field("general.alignment", "x"),
    "a key twice": lambda p: p.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (text("a") + struct.pack("<IB", 0, 1)) * 2
    ) and None,
    "a tensor twice": tensor("output_norm.weight"),
    "a strange tensor": tensor("x" * 60_000),
    "an unknown quant": tensor("a", kind=999),
    "no dimensions": tensor("a", ()),
    "2^31 dimensions": lambda p: p.write_bytes(
        gguf_bytes(FIELDS, TENSORS, b"", (len(TENSORS) + 1, len(FIELDS))) + text("a") + struct.pack("<I", 1 << 31)
    ) and None,
    "dimensions of 2^62": tensor("a", (HUGE, HUGE)),
    "a dimension of 0": tensor("a", (0, 5)),
    "no whole blocks": tensor("a", (33,), kind=2),
    "an offset of 2^62": tensor("a", offset=HUGE),
    "on the same bytes": tensor("a", offset=0),
    "a terabyte": stretched,
    "cut short": file(data=DATA[:-64]),
    **{f"{n} layers": field("llama.block_count", n) for n in (10**7, 1 << 62, 0, 3, "x", 1.5, [1, 2], float("inf"))},
    **{f"{n} heads": field("llama.attention.head_count", n) for n in (0, 10**9, 3, "x", [1])},
    **{f"{n} key heads": field("llama.attention.head_count_kv", n) for n in (10**9, 5, "x")},
    **{f"heads of {n}": field("llama.attention.key_length", n) for n in (1 << 40, 7, "x", [1])},
    **{f"width {n}": field("llama.embedding_length", n) for n in (0, 1 << 50, 31, "x", None)},
    **{f"hidden {n}": field("llama.feed_forward_length", n) for n in (0, 1 << 50, 31)},
    **{f"context {n}": field("llama.context_length", n) for n in (0, 1 << 50, "x")},
    **{f"rope base {n}": field("llama.rope.freq_base", n) for n in (float("nan"), float("inf"), -1.0, "x", [1.0])},
    **{f"rope factor {n}": file(fields={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": n})
       for n in (None, 0.0, float("nan"), "x")},
    "rope scaling of a megabyte": field("llama.rope.scaling.type", "x" * 1_000_000),
    "epsilon nan": field("llama.attention.layer_norm_rms_epsilon", float("nan")),
    "a window of text": field("llama.attention.sliding_window", "x"),
    "an architecture of a megabyte": field("general.architecture", "x" * 1_000_000),
    "an architecture a list": field("general.architecture", ["llama"]),
    "rope factors of another size": tensor("rope_freqs.weight", (4,)),
    "no embedding": file(tensors=TENSORS[1:]),
    "a flat embedding": file(tensors=[("token_embd.weight", (512,), 0, None), *TENSORS[1:]]),
    "an embedding of integers": file(tensors=[("token_embd.weight", (32, 16), 26, None), *TENSORS[1:]]),
    "nan": embedding(first=float("nan")),
    "no tokens": field("tokenizer.ggml.tokens", None),
    "tokens of numbers": field("tokenizer.ggml.tokens", [1, 2]),
    "tokens a string": field("tokenizer.ggml.tokens", "abc"),
    "more tokens than rows": file(fields={"tokenizer.ggml.tokens": [str(i) for i in range(99)],
                                          "tokenizer.ggml.token_type": [1] * 99}),
    "fewer types than tokens": field("tokenizer.ggml.token_type", [1]),
    "types of text": field("tokenizer.ggml.token_type", ["x"] * 16),
    "merges of strangers": field("tokenizer.ggml.merges", ["x y"]),
    "merges of one": field("tokenizer.ggml.merges", ["ab"]),
    "merges of numbers": field("tokenizer.ggml.merges", [1, 2]),
    "a tokenizer of a megabyte": field("tokenizer.ggml.model", "x" * 1_000_000),
    "pieces without scores": field("tokenizer.ggml.model", "llama"),
    "pieces with few scores": file(fields={"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [1.0]}),
    "a piece of a megabyte": file(fields={"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [1.0] * 16,
                                          "tokenizer.ggml.tokens": [*map(str, range(15)), "x" * 1_000_000]}),
    "a first token far out": file(fields={"tokenizer.ggml.bos_token_id": 99, "tokenizer.ggml.add_bos_token": True}),
    "a first token of text": file(fields={"tokenizer.ggml.bos_token_id": "x", "tokenizer.ggml.add_bos_token": True}),
    "a last token of text": field("tokenizer.ggml.eos_token_id", "x"),
    "a last token far out": field("tokenizer.ggml.eos_token_id", 1 << 40),
    "a template that loops": field("tokenizer.chat_template", LOOP * 3 + "{% endfor %}" * 3),
    "a template that is a number": field("tokenizer.chat_template", 7),
}  # fmt: skip

ADAPTERS: dict[str, Change] = {
    **{f"rank {n}": edit(lora.ADAPTER_CONFIG_FILE, r=n) for n in (10**12, 0, -4, "x", None, 1.5, float("inf"), [2])},
    **{
        f"alpha {n}": edit(lora.ADAPTER_CONFIG_FILE, lora_alpha=n)
        for n in (float("nan"), float("inf"), -1, "x", None, [1])
    },
    "a negative rank and its root": edit(lora.ADAPTER_CONFIG_FILE, r=-4, use_rslora=True),
    "a kind of a megabyte": edit(lora.ADAPTER_CONFIG_FILE, peft_type="x" * 1_000_000),
    "deep": write(lora.ADAPTER_CONFIG_FILE, DEEP),
    "a list": write(lora.ADAPTER_CONFIG_FILE, "[1]"),
    "terabyte": sparse(lora.ADAPTER_CONFIG_FILE, 1 << 40),
    "weights of a terabyte": sparse(lora.ADAPTER_WEIGHTS_FILE, 1 << 40),
    "nan": filled(float("nan"), lora.ADAPTER_WEIGHTS_FILE),
    "a shape of 2^62": header(lambda told: told[sorted(told)[0]].update(shape=[HUGE]), lora.ADAPTER_WEIGHTS_FILE),
    "a link away": linked(lora.ADAPTER_WEIGHTS_FILE),
}

HEADS: dict[str, Change] = {
    **{f"{n} bins": config(score_head={"of": "outcome", "form": "two-hot", "bins": n})
       for n in (10**12, 1 << 19, "x", -1)},
    **{f"hidden {n}": config(score_head={"of": "outcome", "form": "logit", "hidden": n})
       for n in ([10**12], [1 << 19], "x", [0], 7, [1] * 10_000)},
    "of something": config(score_head={"of": "everything"}),
    "a form of its own": config(score_head={"of": "outcome", "form": "song"}),
    "a list": config(score_head=[1]),
    "no temperature": config(score_head={"of": "outcome", "form": "logit", "temperature": "hot"}),
    "strange settings": config(score_head={"of": "outcome", "evil": 1}),
}  # fmt: skip

# What is loaded: a group's name, what its cases are made of, how they are loaded, and the cases.
GROUPS: dict[str, list[tuple[str, str, str, dict[str, Change]]]] = {
    "folders": [
        ("config", "model", "model", CONFIGS),
        ("weights", "model", "model", WEIGHTS),
        ("tokenizer", "model", "model", TOKENIZERS),
    ],
    "templates": [("template", "model", "model", TEMPLATES)],
    "gguf": [("gguf", "", "model", GGUFS)],
    "adapters and judges": [
        ("adapter", "adapter", "adapter", ADAPTERS),
        ("judge", "judge", "judge", HEADS),
        ("shared", "judge", "shared judge", HEADS),
    ],
}


@pytest.fixture(scope="module")
def valid_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, an adapter, a judge and a GGUF file in which nothing is wrong."""
    home = tmp_path_factory.mktemp("honest")
    policy, base = (load_policy(ScratchModel(**BASE), device="cpu", dtype="float32") for _ in range(2))
    for name, net in (
        ("model", policy.net),
        ("judge", DecoderWithHead.from_decoder(base.net, ScoreHead("outcome", "logit"))),
    ):
        hf.save(net, home / name)
        chat_templates.with_chat_template(policy.tokenizer, "{{ messages[0].content }}").save(home / name)
    lora.attach(base.net, LoRA(2), seed=0)
    lora.save(base.net, LoRA(2), home / "adapter", "base")
    (home / "model.gguf").write_bytes(gguf_bytes(FIELDS, TENSORS, DATA))
    return home


@pytest.fixture(scope="module")
def outcomes(valid_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What became of each file, by group. One process loads them all, since its start takes longer than they do."""
    groups = {"valid": [{"name": way, "way": way, "path": str(valid_model / way)}
                        for way in ("model", "adapter", "judge")]}  # fmt: skip
    groups["valid"].append({"name": "gguf", "way": "model", "path": str(valid_model / "model.gguf")})
    for group in GROUPS:
        groups[group] = write_cases(group, valid_model, tmp_path_factory.mktemp("cases"))
    warm = {"name": "warm", "way": "model", "path": str(valid_model / "model")}
    results = iter(attempts([warm, *(case for cases in groups.values() for case in cases)]))
    return {group: [next(results) for _ in cases] for group, cases in groups.items()}


def write_cases(group: str, valid_model: Path, folder: Path) -> list[dict[str, str]]:
    cases = []
    for kind, source, way, changes in GROUPS[group]:
        for number, (name, change) in enumerate(changes.items()):
            path = folder / (f"{kind}-{number}" if source else f"{number}.gguf")
            if source:
                shutil.copytree(valid_model / source, path)
            change(path)
            cases.append({"name": f"{kind}: {name}", "way": way, "path": str(path)})
    return cases


def attempts(cases: list[dict[str, str]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, hostile_models.__file__, str(MAX_EXTRA_MEGABYTES)], input="\n".join(map(json.dumps, cases)),
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, f"{lines[-1:]} ended the process: {done.stderr[-2000:]}"
    results = [line for line in lines if "said" in line]
    assert [result["name"] for result in results] == [case["name"] for case in cases[1:]]
    return results


def test_valid_models_load(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    assert [result["said"] for result in outcomes["valid"]] == ["loaded"] * 4


@pytest.mark.parametrize("group", GROUPS)
def test_malicious_files_are_refused_in_one_sentence(group: str, outcomes: dict[str, list[dict[str, Any]]]) -> None:
    assert {case["name"]: case["said"][:200] for case in outcomes[group] if not is_refused(case)} == {}


def is_refused(case: dict[str, Any]) -> bool:
    message = case["said"]
    kinds = ("ModelError: ", "ChatTemplateError: ", "UnknownName: ", "UsageError: ")
    sentence = message.startswith(kinds) and "\n" not in message.strip()
    return (
        sentence
        and len(message) < 2500
        and "Unable to allocate" not in message
        and case["megabytes"] < MAX_EXTRA_MEGABYTES
    )


def test_symlinks_of_the_hub_cache_are_allowed(valid_model: Path, tmp_path: Path) -> None:
    snapshot = Path(shutil.copytree(valid_model / "model", tmp_path / "models--x" / "snapshots" / "0a1b"))
    blobs = tmp_path / "models--x" / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(blobs / str(number))
        path.symlink_to(Path("../../blobs") / str(number))
    load_policy(str(snapshot), device="cpu")
