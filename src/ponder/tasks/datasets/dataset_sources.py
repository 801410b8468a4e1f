"""Where the public data sets come from, and how to fetch one into the folder that its task reads.

A file comes from a data-set repository of the Hugging Face hub or from a web address. Most are stored as they are; a
Parquet table becomes the JSON lines that the task reads. `ponder data` lists the sets and fetches one.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ponder import hub, staging, strict_parsing
from ponder.errors import TaskError, UnknownName, UsageError
from ponder.hub import RepoFiles, RepoName
from ponder.tasks.datasets.dataset_files import data_folder, find_data_folder

GITHUB = "https://raw.githubusercontent.com/"
TIMEOUT_SECONDS = 60
MAX_FILE_BYTES = 1 << 30  # of a file from a web address
BBH_PARTS = (
    "boolean_expressions", "causal_judgement", "date_understanding", "disambiguation_qa", "dyck_languages",
    "formal_fallacies", "geometric_shapes", "hyperbaton", "logical_deduction_five_objects",
    "logical_deduction_seven_objects", "logical_deduction_three_objects", "movie_recommendation",
    "multistep_arithmetic_two", "navigate", "object_counting", "penguins_in_a_table",
    "reasoning_about_colored_objects", "ruin_names", "salient_translation_error_detection", "snarks",
    "sports_understanding", "temporal_sequences", "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects", "tracking_shuffled_objects_three_objects", "web_of_lies",
    "word_sorting",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """`origin` is `owner/name` on the Hugging Face hub, or a web address that ends in /. `files`: the file there of
    each file here."""

    origin: str
    licence: str
    kilobytes: int  # as stored here, for the list
    files: Mapping[str, str]

    @property
    def repo(self) -> RepoName | None:
        return RepoName.parse(self.origin)


SOURCES: dict[str, DatasetSource] = {
    "gsm8k": DatasetSource("openai/gsm8k", "MIT", 4_700, {
        "train.jsonl": "main/train-00000-of-00001.parquet", "test.jsonl": "main/test-00000-of-00001.parquet"}),
    "math500": DatasetSource("HuggingFaceH4/MATH-500", "MIT; the problems belong to their authors", 450, {
        "test.jsonl": "test.jsonl"}),
    "processbench": DatasetSource("Qwen/ProcessBench", "Apache-2.0", 2_500, {
        "gsm8k.json": "gsm8k.json", "math.json": "math.json"}),
    "cruxeval": DatasetSource("cruxeval-org/cruxeval", "MIT", 190, {"cruxeval.jsonl": "test.jsonl"}),
    "svamp": DatasetSource(GITHUB + "arkilpatel/SVAMP/main/", "MIT", 340, {"SVAMP.json": "SVAMP.json"}),
    "mawps": DatasetSource(GITHUB + "microsoft/ToRA/main/src/data/mawps/", "MIT", 340, {
        f"{part}.jsonl": f"{part}.jsonl" for part in ("addsub", "multiarith", "singleeq", "singleop")}),
    "humaneval": DatasetSource(GITHUB + "openai/human-eval/master/data/", "MIT", 45, {
        "HumanEval.jsonl.gz": "HumanEval.jsonl.gz"}),
    "mbpp": DatasetSource(GITHUB + "google-research/google-research/master/mbpp/", "CC-BY-4.0", 820, {
        "mbpp.jsonl": "mbpp.jsonl", "sanitized-mbpp.json": "sanitized-mbpp.json"}),
    "bbh": DatasetSource(GITHUB + "suzgunmirac/BIG-Bench-Hard/main/", "MIT", 2_800, {
        file: file for part in BBH_PARTS for file in (f"bbh/{part}.json", f"cot-prompts/{part}.txt")}),
    "game24": DatasetSource(GITHUB + "princeton-nlp/tree-of-thought-llm/master/src/tot/data/24/", "MIT", 56, {
        "24.csv": "24.csv"}),
}  # fmt: skip

# Data sets of the hub that are a task here, by the id of their repository.
HUB_TASKS = {
    **{source.origin: name for name, source in SOURCES.items() if source.repo is not None},
    "openai/openai_humaneval": "humaneval",
    "google-research-datasets/mbpp": "mbpp",
    "allenai/ai2_arc": "arc",
}


def is_here(name: str) -> bool:
    """Whether all files of a data set are in the data folder."""
    folder = find_data_folder(name)
    return folder is not None and all((folder / file).is_file() for file in SOURCES[name].files)


def fetch_dataset(name: str) -> Path:
    """Fetch a data set into the data folder, whole or not at all. Returns its folder."""
    if name not in SOURCES:
        raise UnknownName("data set", name, SOURCES, "`ponder data` says where each comes from.")
    target = data_folder() / name
    if target.exists():
        raise UsageError(f"{target} exists already: remove it to fetch the data set again")
    with staging.staging_folder(target) as work:
        fetch_files(SOURCES[name], work / "new")
        os.replace(work / "new", target)
    return target


def fetch_files(source: DatasetSource, folder: Path) -> None:
    """Write the files of a source into a folder."""
    repo = source.repo
    snapshot = None if repo is None else download_repo_files(repo, tuple(source.files.values()))
    for here, there in source.files.items():
        place = folder / here
        place.parent.mkdir(parents=True, exist_ok=True)
        if snapshot is None:
            place.write_bytes(_download(source.origin + there))
        elif there.endswith(".parquet"):
            place.write_text(parquet_as_json_lines(snapshot / there), "utf-8")
        else:
            place.write_bytes((snapshot / there).read_bytes())


def download_repo_files(repo: RepoName, names: tuple[str, ...]) -> Path:
    """The folder of the local Hugging Face cache with these files of a data-set repository."""
    try:
        return hub.download(
            repo,
            RepoFiles(names),
            lambda folder: all((folder / name).is_file() for name in names),
            "dataset",
            needs=" and ".join(names[:3]),
        )
    except (hub.RepoNotFound, hub.HubError) as reason:
        raise TaskError(str(reason)) from None


def parquet_as_json_lines(path: Path) -> str:
    """The rows of a Parquet table, one JSON object per line."""
    try:
        rows = strict_parsing.read_parquet(path)
        return "".join(json.dumps(row, ensure_ascii=False, default=_as_base64) + "\n" for row in rows)
    except (ValueError, TypeError) as reason:
        raise TaskError(f"{path.name} cannot be read as rows of text and numbers ({reason!s:.200})") from None


def _as_base64(value: object) -> str:
    """The bytes of a picture as text."""
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} is neither text nor number")
    return base64.b64encode(value).decode()


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as reply:
            data: bytes = reply.read(MAX_FILE_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as reason:
        raise TaskError(f"{url} could not be downloaded ({reason!s:.200}): check the connection") from None
    if len(data) > MAX_FILE_BYTES:
        raise TaskError(f"{url} has more than {MAX_FILE_BYTES:,} bytes, which no data set here has")
    return data
