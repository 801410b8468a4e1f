"""`ponder export`: a model or a run as files that other programs load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ponder import staging
from ponder.cli import shared_flags as opt
from ponder.errors import UsageError
from ponder.runs import manifest


def export(
    model: opt.Model,
    out: Annotated[Path, "the folder, or .gguf file, to write; nothing is overwritten"],
    /,
    *,
    gguf: Annotated[str | None, "write a GGUF file of this type: F32, F16, BF16, Q8_0, Q4_0, ..."] = None,
) -> int:
    """Write a model, or a run's newest checkpoint, as a Hugging Face folder or a GGUF file."""
    if gguf is None and out.suffix == ".gguf":
        gguf = "F16"
    if gguf is not None and out.suffix != ".gguf":
        raise UsageError(f"a GGUF file's name ends in .gguf, unlike {out}")
    if out.exists() and (gguf is not None or not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not overwritten: name another")
    write_model(model, out, gguf)
    size = sum(f.stat().st_size for f in ([out] if out.is_file() else out.iterdir()))
    print(f"wrote {out} ({size / 1e6:,.0f} MB)")
    return 0


def write_model(model: str, out: Path, kind: str | None = None, end_texts: Sequence[str] = ()) -> None:
    """Whole or not at all, and in the weights' own type. `end_texts`: at which the model was trained to end; those that
    are a token become end tokens, so that whatever loads the model ends there, too."""
    from ponder.models.model_paths import find_base, find_model
    from ponder.models.tokenizer import Tokenizer
    from ponder.nets import gguf, hf

    path = find_model(model)
    if path.is_file():
        file = gguf.open_gguf(path)
        net, tokenizer = gguf.load(file), Tokenizer.from_gguf(file)
    else:
        judge = hf.is_score_model(path)  # one number per token, not a language model
        net = hf.load_with_head(path, None, find_base=find_base) if judge else hf.load(path, None, find_base=find_base)
        tokenizer = Tokenizer.from_folder(path)
        if judge and kind is not None:
            raise UsageError("a GGUF file has no place for a judge's head: write a Hugging Face folder")
    tokenizer.check_fits(net.config)
    if end_texts:
        encoded = [tokenizer.encode(text, add_special_tokens=False) for text in end_texts]
        ends = [int(ids[0]) for ids in encoded if len(ids) == 1]
        tokenizer = replace(tokenizer, eos=(*dict.fromkeys((*tokenizer.eos, *ends)),))
        net.config = replace(net.config, eos=tokenizer.eos)
    if kind is not None:
        gguf.save(net, tokenizer, out, kind.upper())
        return
    with staging.staging_folder(out) as work:
        hf.save(net, work / "model")
        tokenizer.save(work / "model")
        manifest.write(work / "model")
        (work / "model").rename(out)
