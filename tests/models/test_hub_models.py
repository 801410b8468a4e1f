"""Models of the Hugging Face hub by name, with the real client against a mirror on the loopback interface."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import DigitTask, char_policy
from hub_mirror import HubMirror, serve_mirror, use_hub
from ponder.cli import main
from ponder.errors import ModelError, RunError, UnknownName
from ponder.hub import RepoName
from ponder.models.load import load_inference_policy, load_policy, load_tokenizer
from ponder.models.model_fingerprints import model_fingerprints
from ponder.models.model_paths import find_model, is_hub_name, pin_checkpoint
from ponder.nets import hf
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.job.open_run import pin_models
from ponder.reason.strategies import Samples
from ponder.runs import read_job
from ponder.types import Sampling

NAME = "tiny-org/Tiny-0.1B"
HERE: dict[str, Any] = {"device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as it lies on the hub: with a card, pickled weights, code and another copy beside it."""
    place = tmp_path_factory.mktemp("hub") / "model"
    policy = char_policy()
    hf.save(policy.net, place)
    policy.tokenizer.save(place)
    for name in ("README.md", "pytorch_model.bin", "modeling_tiny.py", "consolidated.safetensors", "original/x.json"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(b"not wanted")
    return place


@pytest.fixture
def mirror(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubMirror]:
    with serve_mirror() as served:
        served.add(NAME, folder)
        use_hub(monkeypatch, served.url, tmp_path / "cache")
        yield served


def main_commit(mirror: HubMirror) -> str:
    return mirror.repos["models", NAME].refs["main"]


def test_hub_model_is_downloaded_and_computes_what_its_folder_does(mirror: HubMirror, folder: Path) -> None:
    there, here = load_policy(NAME, **HERE), load_policy(str(folder), **HERE)
    assert all(torch.equal(a, b) for a, b in zip(there.net.parameters(), here.net.parameters(), strict=True))
    assert there.tokenizer.vocab_size == here.tokenizer.vocab_size
    assert find_model(NAME).name == main_commit(mirror)


def test_only_weights_tokenizer_and_configurations_are_downloaded(mirror: HubMirror) -> None:
    find_model(NAME)
    assert sorted(set(mirror.downloads)) == sorted(
        {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
        | ({"chat_template.jinja"} & set(mirror.repos["models", NAME].commits[main_commit(mirror)]))
        | ({"manifest.json"} & set(mirror.downloads))
    )


def test_cached_model_needs_no_connection(mirror: HubMirror, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = find_model(NAME)
    before = len(mirror.requests)
    assert find_model(NAME) == result
    assert len(mirror.requests) == before
    use_hub(monkeypatch, mirror.url, tmp_path / "cache", offline=True)
    assert find_model(NAME) == find_model(f"{NAME}@{main_commit(mirror)}") == result
    assert len(mirror.requests) == before


def test_download_that_was_cut_short_is_completed(mirror: HubMirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # the client's pauses between attempts
    mirror.cut_off = "model.safetensors"
    with pytest.raises(ModelError, match="could not be downloaded"):
        find_model(NAME)
    mirror.cut_off = ""
    assert (find_model(NAME) / "model.safetensors").is_file()


def test_model_in_shards_is_complete_only_with_all_of_them(mirror: HubMirror, folder: Path) -> None:
    result = find_model(NAME)
    index = result / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}))
    before = len(mirror.requests)
    with pytest.raises(ModelError, match="has no safetensors weights"):  # asked again: the hub has no second shard
        find_model(NAME)
    assert len(mirror.requests) > before


def test_revision_names_a_tag_or_a_commit(mirror: HubMirror, folder: Path) -> None:
    repo = mirror.repos["models", NAME]
    first = main_commit(mirror)
    repo.refs["v1"] = first
    second = repo.commit({**repo.commits[first], "generation_config.json": b'{"eos_token_id": 3}'})
    assert find_model(f"{NAME}@v1").name == find_model(f"{NAME}@{first}").name == first
    assert find_model(NAME).name == second != first
    with pytest.raises(ModelError, match="has no revision 'v9': give a branch, tag or commit of it"):
        find_model(f"{NAME}@v9")


def test_local_folder_of_the_same_name_wins(
    mirror: HubMirror, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NAME).parent.mkdir()
    Path(NAME).symlink_to(folder)
    assert find_model(NAME) == Path(NAME)
    assert not mirror.requests


@pytest.mark.parametrize("name", ["no/such/model", "smolm2", "./tiny-org/Tiny-0.1B", "a/../b"])
def test_name_of_another_form_is_not_asked_for(mirror: HubMirror, name: str) -> None:
    with pytest.raises(UnknownName, match=r"no model named .* Known: smollm2\. Or give a Hugging Face folder"):
        find_model(name)
    assert not mirror.requests


def test_missing_repository_lists_known_models(mirror: HubMirror) -> None:
    with pytest.raises(UnknownName, match=r"Known: smollm2.*the Hugging Face hub has no public repository no/such"):
        find_model("no/such")


def test_gated_repository_says_what_to_do(mirror: HubMirror) -> None:
    mirror.repos["models", NAME].gated = True
    with pytest.raises(ModelError, match=r"is gated: accept its terms .* set HF_TOKEN$"):
        find_model(NAME)


def test_repository_without_safetensors_is_refused_before_the_download_of_weights(mirror: HubMirror) -> None:
    mirror.repos["models", "a/pickled"] = repo = type(mirror.repos["models", NAME])()
    repo.commit({"config.json": b"{}", "tokenizer.json": b"{}", "pytorch_model.bin": b"x"})
    with pytest.raises(ModelError, match="a/pickled on the Hugging Face hub has no safetensors weights"):
        find_model("a/pickled")
    assert "pytorch_model.bin" not in mirror.downloads


def test_offline_mode_makes_no_request(mirror: HubMirror, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_hub(monkeypatch, mirror.url, tmp_path / "cache", offline=True)
    with pytest.raises(UnknownName, match=r"Known: smollm2.*HF_HUB_OFFLINE forbids a download"):
        find_model(NAME)
    assert not mirror.requests


def test_unreachable_hub_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr("time.sleep", lambda _: None)
    use_hub(monkeypatch, url, tmp_path / "cache")
    with pytest.raises(ModelError, match=r"could not be downloaded \(.*\): check the connection, or give a local path"):
        find_model(NAME)


def test_tokenizer_alone_leaves_the_weights(mirror: HubMirror, folder: Path) -> None:
    assert load_tokenizer(NAME).vocab_size == load_tokenizer(str(folder)).vocab_size
    assert "model.safetensors" not in mirror.downloads
    load_policy(NAME, **HERE)  # its snapshot has no weights yet
    assert "model.safetensors" in mirror.downloads


def test_transformers_runs_a_hub_model(mirror: HubMirror) -> None:
    pytest.importorskip("transformers")
    policy = load_inference_policy(f"transformers:{NAME}", **HERE)
    assert policy.tokenizer.vocab_size == load_tokenizer(NAME).vocab_size


def test_job_is_pinned_to_the_commit_and_keeps_it(mirror: HubMirror, tmp_path: Path) -> None:
    repo, first = mirror.repos["models", NAME], main_commit(mirror)
    assert pin_checkpoint(NAME) == f"{NAME}@{first}"
    assert pin_checkpoint(f"transformers:{NAME}") == f"transformers:{NAME}@{first}"
    second = repo.commit({**repo.commits[first], "generation_config.json": b'{"eos_token_id": 3}'})
    assert pin_checkpoint(NAME) == f"{NAME}@{first}", "the cache comes first"
    assert pin_checkpoint(f"{NAME}@{second}", f"{NAME}@{first}") == f"{NAME}@{second}"
    find_model(f"{NAME}@{second}")
    assert pin_checkpoint(NAME, f"{NAME}@{second}") == f"{NAME}@{second}", "a job that resumes keeps its commit"


def test_run_stores_the_commit_and_refuses_another(mirror: HubMirror, tmp_path: Path) -> None:
    job = Collect(DigitTask(), NAME, None, Samples(2, Sampling(max_tokens=2)), limit=2, **HERE)
    first = main_commit(mirror)
    job(tmp_path / "run")
    assert read_job(tmp_path / "run")["model"] == f"{NAME}@{first}"  # type: ignore[index]
    assert pin_models(job, tmp_path / "run").model == f"{NAME}@{first}"
    other = mirror.repos["models", NAME].commit({**mirror.repos["models", NAME].commits[first], "added.json": b"{}"})
    with pytest.raises(RunError):
        replace(job, model=f"{NAME}@{other}")(tmp_path / "run")


def test_fingerprints_of_a_hub_model_are_those_of_its_files(mirror: HubMirror) -> None:
    job = Evaluate(DigitTask(), pin_checkpoint(NAME))
    marks = model_fingerprints(job)
    assert sorted(name.partition(" of ")[0] for name in marks) == ["the tokenizer or chat template", "the weights"]
    assert all(main_commit(mirror) in name for name in marks)


def test_command_line_answers_with_a_hub_model(mirror: HubMirror, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "1", "--model", NAME, "--max-tokens", "2", "--device", "cpu"]) == 0, capsys.readouterr().err
    assert main(["solve", "1", "--model", "tiny-org/other"]) == 2
    output = capsys.readouterr().err
    assert "no public repository tiny-org/other" in output and "Traceback" not in output


@pytest.mark.parametrize(
    "name, parsed",
    [
        ("Qwen/Qwen2.5-0.5B", RepoName("Qwen/Qwen2.5-0.5B")),
        ("Qwen/Qwen2.5-0.5B@refs/pr/1", RepoName("Qwen/Qwen2.5-0.5B", "refs/pr/1")),
        ("a/b@" + "0" * 40, RepoName("a/b", "0" * 40)),
        ("gpt2", None), ("a/b/c", None), ("/a/b", None), ("~/a", None), ("a/b@", None), ("a/..", None),
        ("a/b@../c", None),
    ],
)  # fmt: skip
def test_repo_name_is_owner_name_and_revision(name: str, parsed: RepoName | None) -> None:
    assert RepoName.parse(name) == parsed


def test_a_missing_run_directory_does_not_ask_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert not is_hub_name("runs/trian")
    with pytest.raises(ModelError, match="there is no run directory runs/trian"):
        find_model("runs/trian")
