"""Models of the Hugging Face hub: which files of a repository are the model, and when all of them are there.

Only safetensors, the tokenizer and configurations are downloaded: no pickled weights and no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ponder import hub
from ponder.errors import ModelError, UnknownName
from ponder.hub import RepoFiles, RepoName
from ponder.nets import model_files

WEIGHTS_PATTERN, INDEX_SUFFIX = "*.safetensors", ".safetensors.index.json"
TOKENIZER_PATTERNS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
OTHER_COPIES = (
    "*/*",
    "consolidated*",
    "*.safetensors.index.*.json",
)  # the same weights in other formats, and subfolders
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")  # one of them is in every tokenizer
MODEL_FILES = RepoFiles((*TOKENIZER_PATTERNS, WEIGHTS_PATTERN), OTHER_COPIES, last=(WEIGHTS_PATTERN,))
TOKENIZER_ONLY = RepoFiles(TOKENIZER_PATTERNS, (*OTHER_COPIES, f"*{INDEX_SUFFIX}"), last=TOKENIZER_FILES)


def find_hub_model(name: str, known: Sequence[str], hint: str, weights: bool = True) -> Path | None:
    """The folder of a hub model in the local cache, downloaded if needed; None if the name has another form.

    `known`, `hint`: what a message about an unknown name lists. Without `weights`, the tokenizer is enough.
    """
    repo = RepoName.parse(name)
    if repo is None:
        return None
    files, is_complete = (MODEL_FILES, has_model) if weights else (TOKENIZER_ONLY, has_tokenizer)
    needs = "safetensors weights with a config.json and a tokenizer" if weights else "tokenizer"
    try:
        return hub.download(repo, files, is_complete, needs=needs)
    except hub.RepoNotFound as reason:
        raise UnknownName("model", name, known, f"{hint} As a name of the Hugging Face hub: {reason}.") from None
    except hub.HubError as reason:
        raise ModelError(str(reason)) from None


def pin_hub_model(name: str, folder: Path) -> str:
    """The name with the commit that `folder`, which `find_hub_model` gave, holds."""
    repo = RepoName.parse(name)
    return name if repo is None else hub.pin(repo, folder)


def is_same_repo(name: str, pinned: object) -> bool:
    """Whether `pinned` is a commit of the repository that `name` names without a revision."""
    repo, other = RepoName.parse(name), RepoName.parse(pinned) if isinstance(pinned, str) else None
    return "@" not in name and None not in (repo, other) and repo.id == other.id and other.is_pinned  # type: ignore[union-attr]


def has_model(folder: Path) -> bool:
    """Whether configuration, tokenizer and all weights of a model are in a folder."""
    if not (folder / "config.json").is_file() or not has_tokenizer(folder):
        return False
    index = next(iter(sorted(folder.glob(f"*{INDEX_SUFFIX}"))), None)
    if index is None:
        return any(folder.glob(WEIGHTS_PATTERN))
    shards = model_files.read_json(index).get("weight_map")
    return isinstance(shards, dict) and all((folder / str(shard)).is_file() for shard in set(map(str, shards.values())))


def has_tokenizer(folder: Path) -> bool:
    return any((folder / file).is_file() for file in TOKENIZER_FILES)
