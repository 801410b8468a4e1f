"""Malicious model files, and a process that loads many of them under a memory limit.

As a program: `hostile_models.py MEGABYTES`, with lines of {"name", "way", "path"} on the standard input.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HUGE = 1 << 62
BASE: dict[str, Any] = {"alphabet": "0123456789+= ab", "width": 16, "layers": 1, "heads": 2, "context": 64}
LISTS = 9  # GGUF's type of a list


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def scalar(value: Any) -> bytes:
    """A value of GGUF's metadata, its type before it. Bytes stand for themselves."""
    match value:
        case bytes():
            return value
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<IQ", 10, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + text(value)
    first = value[0] if value else 0
    kind, form = (8, "") if isinstance(first, str) else (6, "f") if isinstance(first, float) else (5, "i")
    items = b"".join(text(v) if kind == 8 else struct.pack(f"<{form}", v) for v in value)
    return struct.pack("<IIQ", LISTS, kind, len(value)) + items


def gguf_bytes(
    fields: Mapping[str, Any],
    tensors: Sequence[tuple[str, Sequence[int], int, int | None]],
    data: bytes,
    counts: tuple[int, int] | None = None,
    version: int = 3,
) -> bytes:
    """A file. Tensors: name, shape, type, and offset (None: behind the one before)."""
    out = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(fields))))
    out += b"".join(text(key) + scalar(value) for key, value in fields.items())
    at = 0
    for name, shape, kind, offset in tensors:
        place = at if offset is None else offset
        out += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, place)
        size = 4
        for n in shape:
            size *= n
        at = place + -(-size // 32) * 32
    return out + b"\0" * (-len(out) % 32) + data


FIELDS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.embedding_length": 32,
    "llama.attention.head_count": 2,
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.feed_forward_length": 32,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [chr(97 + i) for i in range(16)],
    "tokenizer.ggml.token_type": [1] * 16,
    "tokenizer.ggml.merges": [],
    "tokenizer.ggml.eos_token_id": 1,
}
TENSORS: list[tuple[str, Sequence[int], int, int | None]] = [
    ("token_embd.weight", (32, 16), 0, None),
    ("output_norm.weight", (32,), 0, None),
    *[(f"blk.0.{n}.weight", (32, 32), 0, None) for n in ("attn_q", "attn_k", "attn_v", "attn_output")],
    *[(f"blk.0.{n}.weight", (32, 32), 0, None) for n in ("ffn_gate", "ffn_up", "ffn_down")],
    *[(f"blk.0.{n}.weight", (32,), 0, None) for n in ("attn_norm", "ffn_norm")],
]
DATA = bytes(4 * (32 * 16 + 7 * 32 * 32 + 3 * 32))


def load(way: str, path: Path) -> None:
    from ponder.models import chat_templates
    from ponder.models.load import load_policy
    from ponder.models.load_scorer import load_scorer, load_shared_scorer
    from ponder.models.scratch_model import ScratchModel
    from ponder.nets import lora

    base = ScratchModel(**BASE)
    if way == "model":
        policy = load_policy(str(path), device="cpu", dtype="float32")
        policy.text(chat_templates.encode_chat(policy.tokenizer, [{"role": "user", "content": "abab"}]))
    elif way == "adapter":
        lora.read_adapter(load_policy(base, device="cpu", dtype="float32").net, path)
    elif way == "judge":
        load_scorer(str(path), device="cpu", dtype="float32")
    else:
        load_shared_scorer(load_policy(base, device="cpu", dtype="float32"), str(path))


def try_load(way: str, path: Path) -> dict[str, Any]:
    from ponder.errors import PonderError

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        load(way, path)
        message = "loaded"
    except PonderError as error:
        message = f"{type(error).__name__}: {error}"
    except BaseException as error:
        message = f"TRACEBACK {type(error).__mro__}: {error}"
    return {"said": message, "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10}


def main() -> None:
    from ponder.models import template_sandbox

    template_sandbox.MAX_SECONDS = 0.5  # shows the same as three seconds for each template that never ends
    asked = [json.loads(line) for line in sys.stdin]
    load("model", Path(asked.pop(0)["path"]))  # an honest one first, so that all libraries are loaded
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = used + (int(sys.argv[1]) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for case in asked:
        print(json.dumps({"name": case["name"]}), flush=True)  # whoever hangs is known
        print(json.dumps({"name": case["name"], **try_load(case["way"], Path(case["path"]))}), flush=True)


if __name__ == "__main__":
    main()
