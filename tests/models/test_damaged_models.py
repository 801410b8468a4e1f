"""A model that ponder wrote is verified byte by byte by every loader."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_checkpoints import Job
from ponder.cli import export, main
from ponder.errors import ModelError
from ponder.models.load import load_inference_policy, load_policy, load_tokenizer
from ponder.models.load_scorer import load_scorer, load_shared_scorer
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf, lora
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead
from ponder.nets.lora import LoRA
from ponder.nets.weight_files import WEIGHTS_FILE
from ponder.pipelines.training import teachers
from ponder.runs import Run, manifest
from ponder.train.checkpoint import CheckpointWriter

FRESH = ScratchModel("0123456789+=", width=16, layers=1, heads=2, context=64)
FLIPS = 60 if os.environ.get("PONDER_FUZZ") else 16


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory as training leaves it, with a critic and an adapter."""
    policy = load_policy(FRESH, device="cpu", dtype="float32")
    net, tokenizer = policy.net, policy.tokenizer
    judge, adapted = (
        DecoderWithHead.from_decoder(net, ScoreHead("outcome", "logit")),
        load_policy(FRESH, device="cpu", dtype="float32").net,
    )

    def write(decoder: hf.Decoder) -> Callable[[Path], None]:
        def fill(folder: Path) -> None:
            hf.snapshot(decoder)(folder)
            tokenizer.save(folder)

        return fill

    lora.attach(adapted, LoRA(2), seed=0)
    folders = {"model": write(net), "critic": write(DecoderWithHead.from_decoder(net)), "judge": write(judge)}
    folders["adapter"] = lora.snapshot(adapted, LoRA(2), "base")
    folder = tmp_path_factory.mktemp("runs") / "run"
    with Run(folder, Job()) as kept, CheckpointWriter(kept, background=False) as saver:
        saver.save(1, {}, {}, folders)
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def checkpoint(run: Path) -> Path:
    return run / "checkpoints" / "step-000001"


def test_every_flipped_bit_of_a_checkpoint_is_detected(copy: Path) -> None:
    files = sorted((checkpoint(copy) / "model").iterdir())
    draw = random.Random(0)
    load_policy(str(copy), device="cpu")
    for number in range(FLIPS):
        path = files[number % len(files)] if number % 2 else checkpoint(copy) / "model" / WEIGHTS_FILE
        bit = draw.randrange(8 * path.stat().st_size)
        flip(path, bit)
        with pytest.raises(ModelError, match=rf"step-000001 is damaged \(model/{path.name}: its checksum differs\)"):
            load_policy(str(copy), device="cpu")
        flip(path, bit)
    load_policy(str(copy), device="cpu")


def test_command_line_reports_damage_in_one_sentence(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(checkpoint(copy) / "model" / WEIGHTS_FILE, 8 * 2000 + 3)
    assert main(["solve", "1+1=", "--model", str(copy)]) == 2
    output = capsys.readouterr().err
    assert "model.safetensors: its checksum differs" in output and "Traceback" not in output


def last_bit(folder: Path, name: str = WEIGHTS_FILE) -> None:
    flip(folder / name, 8 * (folder / name).stat().st_size - 1)


def test_every_loader_verifies_the_manifest(copy: Path) -> None:
    part = checkpoint(copy)
    policy = load_policy(str(copy), device="cpu")
    last_bit(part / "model")
    last_bit(part / "judge")
    last_bit(part / "adapter", lora.ADAPTER_WEIGHTS_FILE)
    shutil.copytree(part / "model", part.parent.parent / "elsewhere")  # without a manifest: anybody's folder
    uses: dict[str, Callable[[], object]] = {
        "a model folder": lambda: load_policy(str(part / "model"), device="cpu"),
        "a tokenizer": lambda: load_tokenizer(str(copy)),
        "a teacher": lambda: teachers.load_teacher(str(copy), policy),
        "a judge": lambda: load_scorer(str(part / "judge"), device="cpu"),
        "a judge in the policy's engine": lambda: load_shared_scorer(policy, str(part / "judge")),
        "an adapter": lambda: lora.read_adapter(policy.net, part / "adapter"),
        "an adapter of an engine": lambda: policy.engine.adapters.add("a", part / "adapter"),
        "an export": lambda: export.write_model(str(copy), copy / "out"),
    }
    for use, load in uses.items():
        with pytest.raises(ModelError, match="its checksum differs"):
            load()
            pytest.fail(f"{use} was loaded")
    load_policy(str(part.parent.parent / "elsewhere"), device="cpu")


def test_critic_is_verified(copy: Path) -> None:
    policy = load_policy(str(copy), device="cpu")
    last_bit(checkpoint(copy) / "critic")
    with pytest.raises(ModelError, match=r"critic/model.safetensors: its checksum differs"):
        teachers.load_value_model(str(copy), policy)


def test_transformers_policy_verifies_the_manifest(copy: Path) -> None:
    pytest.importorskip("transformers")
    last_bit(checkpoint(copy) / "model")
    with pytest.raises(ModelError, match="its checksum differs"):
        load_inference_policy(f"transformers:{copy}", device="cpu")


def test_missing_file_and_missing_manifest(copy: Path) -> None:
    (checkpoint(copy) / "model" / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match=r"model/tokenizer_config.json: No such file"):
        load_policy(str(copy), device="cpu")
    (checkpoint(copy) / manifest.MANIFEST_FILE).unlink()
    with pytest.raises(ModelError, match=r"manifest.json: No such file"):
        load_policy(str(copy), device="cpu")


def test_symlink_to_a_checkpoint_is_verified(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "best").symlink_to(checkpoint(copy) / "model")
    load_policy(str(tmp_path / "best"), device="cpu")
    last_bit(checkpoint(copy) / "model")
    with pytest.raises(ModelError, match="its checksum differs"):
        load_policy(str(tmp_path / "best"), device="cpu")


def test_exported_folder_is_verified(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export.write_model(str(run), out)
    assert (out / manifest.MANIFEST_FILE).is_file()
    load_policy(str(out), device="cpu")
    last_bit(out)
    with pytest.raises(ModelError, match=r"if you changed the file yourself, remove .*manifest.json"):
        load_policy(str(out), device="cpu")
    (out / manifest.MANIFEST_FILE).unlink()
    load_policy(str(out), device="cpu")


def test_flipped_bits_of_an_exported_manifest(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export.write_model(str(run), out)
    path = out / manifest.MANIFEST_FILE
    for bit in random.Random(1).sample(range(8 * path.stat().st_size), FLIPS):
        flip(path, bit)
        with pytest.raises(ModelError, match="is damaged"):
            load_tokenizer(str(out))
        flip(path, bit)


def test_foreign_manifest_is_ignored(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export.write_model(str(run), out)
    (out / manifest.MANIFEST_FILE).write_text('{"manifest_version": 3, "name": "an extension"}')
    load_policy(str(out), device="cpu")


def test_older_manifest_with_sha256_only(copy: Path) -> None:
    folder = checkpoint(copy)
    output = manifest.read(folder)
    for kept in output["files"].values():
        del kept["crc32"]
    (folder / manifest.MANIFEST_FILE).write_text(manifest.to_checked_json(output))
    load_policy(str(copy), device="cpu")
    last_bit(folder / "model")
    with pytest.raises(ModelError, match="its checksum differs"):
        load_policy(str(copy), device="cpu")


def test_unchanged_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"12345678")
    os.utime(path, (1e9, 1e9))
    first = manifest.file_checksums(path)
    monkeypatch.setattr(manifest.hashlib, "file_digest", lambda *_: pytest.fail("it was read again"))
    monkeypatch.setattr(manifest.zlib, "crc32", lambda *_: pytest.fail("it was read again"))
    assert manifest.file_checksums(path) == first
    monkeypatch.undo()
    path.write_bytes(b"12345679")
    assert manifest.file_checksums(path) != first
