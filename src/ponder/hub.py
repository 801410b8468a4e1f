"""Files of the Hugging Face hub: a repository by its name, `Qwen/Qwen2.5-0.5B` or `Qwen/Qwen2.5-0.5B@REVISION`.

The local Hugging Face cache comes first: what lies there is used without a connection, at the commit it was downloaded
at. Anything else is downloaded into that cache, by the client `huggingface_hub`, which reads HF_HOME, HF_ENDPOINT,
HF_TOKEN and HF_HUB_OFFLINE. Imports no torch, and the client only when a repository is asked for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from ponder.errors import PonderError, UsageError
from ponder.terminal import raw_stream

RepoType = Literal["model", "dataset"]
DEFAULT_REVISION = "main"
MAX_REASON_CHARS = 300  # of the client's own message
_NAME_PATTERN = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95})(?:@([\w][\w./-]{0,199}))?", re.ASCII)
_COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")


class RepoNotFound(UsageError):
    """Neither the cache nor, where it may be asked, the hub has this repository."""


class HubError(PonderError):
    """A repository that cannot be downloaded."""


@dataclass(frozen=True, slots=True)
class RepoName:
    """A repository of the hub, at a branch, a tag or a commit."""

    id: str
    revision: str = DEFAULT_REVISION

    @classmethod
    def parse(cls, name: str) -> RepoName | None:
        """From `owner/name` or `owner/name@revision`; None if it has another form."""
        match = _NAME_PATTERN.fullmatch(name)
        if match is None or ".." in name or "--" in match[1]:
            return None
        return cls(match[1], match[2] or DEFAULT_REVISION)

    def __str__(self) -> str:
        return self.id if self.revision == DEFAULT_REVISION else f"{self.id}@{self.revision}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return _COMMIT_PATTERN.fullmatch(self.revision) is not None


@dataclass(frozen=True, slots=True)
class RepoFiles:
    """Which files of a repository are wanted: of those that match `include` and not `exclude`, first those that do not
    match `last`. A download that was cut short then lacks a file of `last`, which `is_complete` can tell."""

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    def select(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if _matches(name, self.include) and not _matches(name, self.exclude)]

    def in_order(self, names: Sequence[str]) -> list[list[str]]:
        chosen = self.select(names)
        late = [name for name in chosen if _matches(name, self.last)]
        return [part for part in ([name for name in chosen if name not in late], late) if part]


def cached_snapshot(
    repo: RepoName, files: RepoFiles, is_complete: Callable[[Path], bool], kind: RepoType = "model"
) -> Path | None:
    """The folder of a repository in the local cache, if all wanted files are there. Needs no connection."""
    client = _import_client()
    try:
        folder = client.snapshot_download(
            repo.id,
            repo_type=kind,
            revision=repo.revision,
            local_files_only=True,
            allow_patterns=list(files.include),
            ignore_patterns=list(files.exclude),
        )
    except (OSError, ValueError):  # not there, or only in part
        return None
    return Path(folder) if is_complete(Path(folder)) else None


def download(
    repo: RepoName,
    files: RepoFiles,
    is_complete: Callable[[Path], bool],
    kind: RepoType = "model",
    needs: str = "",
) -> Path:
    """The folder of a repository in the local cache, downloaded if it is not there. Its name is the commit.

    `needs`: what `is_complete` asks for, for the message about a repository that does not have it.
    """
    if (cached := cached_snapshot(repo, files, is_complete, kind)) is not None:
        return cached
    client = _import_client()
    if client.constants.HF_HUB_OFFLINE:
        raise RepoNotFound(
            f"{repo} is not in the local Hugging Face cache, and HF_HUB_OFFLINE forbids a download: unset it, or give a"
            " local path"
        )
    info = _ask(repo, lambda: client.HfApi().repo_info(repo.id, repo_type=kind, revision=repo.revision))
    names = [file.rfilename for file in info.siblings or ()]
    folder: Path | None = None
    for part in files.in_order(names):
        folder = _download_part(client, repo, kind, part)
    if folder is None or not is_complete(folder):
        raise HubError(f"{repo} on the Hugging Face hub has no {needs or 'such files'}: give another repository")
    return folder


def pin(repo: RepoName, folder: Path) -> str:
    """The repository's name at the commit that lies in this folder of the cache."""
    return str(RepoName(repo.id, folder.name))


def _download_part(client: Any, repo: RepoName, kind: RepoType, names: Sequence[str]) -> Path:
    exact = [re.sub(r"([*?[])", r"[\1]", name) for name in names]
    path = _ask(
        repo,
        lambda: client.snapshot_download(
            repo.id,
            repo_type=kind,
            revision=repo.revision,
            allow_patterns=exact,
            tqdm_class=_progress_bar(client),
        ),
    )
    return Path(path)


def _ask(repo: RepoName, request: Callable[[], Any]) -> Any:
    """The answer of the hub; its errors become ours. The client's network errors have no class of their own."""
    from huggingface_hub import errors

    try:
        return request()
    except errors.GatedRepoError:
        raise HubError(
            f"{repo} is gated: accept its terms on its page of the Hugging Face hub, and log in with `hf auth login` "
            "or set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise HubError(f"{repo.id} has no revision {repo.revision!r}: give a branch, tag or commit of it") from None
    except errors.RepositoryNotFoundError:
        raise RepoNotFound(
            f"the Hugging Face hub has no public repository {repo.id}: check the name, or if it is private log in with "
            "`hf auth login` or set HF_TOKEN"
        ) from None
    except PonderError:
        raise
    except OSError as reason:
        if getattr(reason, "errno", None) is not None and not isinstance(reason, ConnectionError | TimeoutError):
            raise  # of this machine's disk
        raise _unreachable(repo, reason) from None
    except Exception as reason:
        if not type(reason).__module__.partition(".")[0].startswith(("httpx", "httpcore", "requests", "huggingface")):
            raise
        raise _unreachable(repo, reason) from None


def _unreachable(repo: RepoName, reason: Exception) -> HubError:
    why = " ".join(str(reason.__cause__ or reason).split())[:MAX_REASON_CHARS] or type(reason).__name__
    return HubError(
        f"{repo} is not in the local Hugging Face cache and could not be downloaded ({why}): check the connection, or "
        "give a local path"
    )


def _import_client() -> Any:
    import huggingface_hub
    import huggingface_hub.constants

    return huggingface_hub


def _progress_bar(client: Any) -> Any:
    """The client's own bar on the terminal, and none where the output is a file."""
    usual: Any = client.utils.tqdm

    def start(bar: Any, *args: Any, **settings: Any) -> None:
        stream = raw_stream(sys.stderr)
        hidden = settings.pop("disable", False) or not stream.isatty()
        usual.__init__(bar, *args, **settings, file=stream, disable=hidden)

    return type("DownloadBar", (usual,), {"__init__": start})


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
