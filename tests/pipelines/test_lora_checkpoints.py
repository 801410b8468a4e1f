"""A LoRA run's checkpoints hold the adapter alone where the base model can be had again, and open as whole models."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, RecordingProgress
from models.policy_contract import save_gguf
from ponder.cli import export
from ponder.cli.plan import RunPlan, _describe_model
from ponder.errors import Interrupted, ModelError
from ponder.models.load import load_inference_policy, load_policy
from ponder.models.model_fingerprints import model_fingerprint
from ponder.models.scratch_model import ScratchModel
from ponder.models.weight_sharing import runs_model
from ponder.nets import hf, lora
from ponder.nets.base_model import BASE_FILE
from ponder.nets.lora import LoRA
from ponder.nets.weight_files import WEIGHTS_FILE
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune, build_sft_learner
from ponder.reason.strategies import Samples
from ponder.runs import newest_checkpoint
from ponder.train.objective import Critic
from ponder.train.optimizer import AdamW
from ponder.train.ppo import PPO
from ponder.types import Sampling

# Not imported here: that takes seconds, in every process that collects the tests.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="needs peft")

SCRATCH = ScratchModel(ALPHABET, width=16, layers=1, heads=2, context=32)
HERE: dict[str, Any] = {"device": "cpu", "dtype": "float32"}


def job(model: str | ScratchModel, **changes: Any) -> FineTune:
    settings = {"optimizer": AdamW(lr=1e-2), "steps": 2, "batch_size": 4, "lora": LoRA(2), **HERE, **changes}
    return FineTune(DigitTask(), model, QUESTION_TEMPLATE, **settings)


def make_base(folder: Path) -> Path:
    net, tokenizer = SCRATCH.build(torch.float32, torch.device("cpu"))
    hf.save(net, folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, a LoRA run on it, and its merged weights as they were in training."""
    home = tmp_path_factory.mktemp("home")
    make_base(home / "base")
    trained = job(str(home / "base"), save_every=1)(home / "run")
    torch.save(lora.merged_weights(trained.net), home / "merged.pt")
    return home


def newest(run: Path) -> Path:
    folder = newest_checkpoint(run)
    assert folder is not None
    return folder


@contextmanager
def moved(path: Path) -> Iterator[Path]:
    """While inside, the base model is elsewhere."""
    away = path.with_name("away")
    path.rename(away)
    try:
        yield away
    finally:
        away.rename(path)


def weights(model: str | Path) -> dict[str, Tensor]:
    return dict(load_policy(str(model), **HERE).net.named_parameters())


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(t, two[name]) for name, t in one.items())


def is_adapter_alone(run: Path) -> bool:
    model = newest(run) / "model"
    return (model / BASE_FILE).is_file() and not (model / WEIGHTS_FILE).exists()


def test_checkpoint_holds_the_adapter_and_opens_as_the_merged_model(home: Path) -> None:
    assert is_adapter_alone(home / "run")
    assert (newest(home / "run") / "adapter" / lora.ADAPTER_WEIGHTS_FILE).is_file()
    expected = torch.load(home / "merged.pt")
    assert same(weights(home / "run"), expected) and not same(weights(home / "base"), expected)
    assert not same(weights(home / "run" / "checkpoints" / "step-000001" / "model"), expected), "of another step"


def test_interrupted_run_resumes_to_the_same_adapter(home: Path, tmp_path: Path) -> None:
    again = job(str(home / "base"), save_every=1)
    with pytest.raises(Interrupted):
        again(tmp_path / "run", RecordingProgress("step", 1))
    again(tmp_path / "run")
    one, two = (newest(run) for run in (tmp_path / "run", home / "run"))
    for name in ("adapter/adapter_model.safetensors", "learner.safetensors", "model/base.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


MERGED: dict[str, Callable[[Path], tuple[str | ScratchModel, dict[str, Any]]]] = {
    "a scratch model": lambda home: (SCRATCH, {}),
    "a quantised base": lambda home: (str(home / "base"), {"lora": LoRA(2, base="int8")}),
    "a run's checkpoint, itself of LoRA": lambda home: (str(home / "run"), {}),
}


@pytest.mark.parametrize("case", MERGED)
def test_checkpoint_holds_the_merged_model_where_the_base_may_be_lost(case: str, home: Path, tmp_path: Path) -> None:
    model, changes = MERGED[case](home)
    trained = job(model, **changes)(tmp_path / "run")
    folder = newest(tmp_path / "run") / "model"
    assert (folder / WEIGHTS_FILE).is_file() and not (folder / BASE_FILE).exists()
    with moved(home / "base"):
        assert same(weights(tmp_path / "run"), lora.merged_weights(trained.net))


def test_critic_beside_an_adapter_is_whole(home: Path, tmp_path: Path) -> None:
    RL(
        DigitTask(answer="7"), str(home / "base"), QUESTION_TEMPLATE, Samples(2, Sampling(max_tokens=2)),
        PPO(critic=Critic(optimizer=AdamW(lr=1e-2))), AdamW(lr=1e-2), steps=1, problems_per_step=2, preflight=False,
        lora=LoRA(2), **HERE,
    )(tmp_path / "run")  # fmt: skip
    assert is_adapter_alone(tmp_path / "run")
    critic = newest(tmp_path / "run") / "critic"
    assert (critic / WEIGHTS_FILE).is_file() and not (critic / BASE_FILE).exists()


def test_gguf_base_is_referred_to(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    base = save_gguf(tmp_path / "base.gguf")
    trained = job(str(base), steps=1)(tmp_path / "run")
    assert is_adapter_alone(tmp_path / "run")
    assert same(weights(tmp_path / "run"), lora.merged_weights(trained.net))


def test_export_writes_the_merged_model_which_needs_no_base(home: Path, tmp_path: Path) -> None:
    export.write_model(str(home / "run"), tmp_path / "out")
    with moved(home / "base"):
        assert same(weights(tmp_path / "out"), torch.load(home / "merged.pt"))
    policy = load_policy(str(tmp_path / "out"), **HERE)
    assert runs_model(policy, str(home / "run")) and not runs_model(policy, str(home / "base"))


@pytest.mark.parametrize("prefix", ["transformers:", "vllm:"])
def test_other_libraries_refuse_the_folder_and_name_export(prefix: str, home: Path) -> None:
    with pytest.raises(ModelError, match=r"without weights of its own .*`ponder export \S+/model OUT`"):
        load_inference_policy(f"{prefix}{home / 'run'}", device="cpu")


def test_peft_loads_the_adapter_onto_the_base(home: Path) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(home / "base", dtype=torch.float32)
    merged = peft.PeftModel.from_pretrained(base, newest(home / "run") / "adapter").merge_and_unload()
    expected = torch.load(home / "merged.pt")
    theirs = {name.removeprefix("model."): p for name, p in merged.named_parameters()}
    assert all(torch.allclose(theirs[name], p, atol=1e-6) for name, p in expected.items())


def test_moved_base_is_found_by_its_name(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A project of a base and runs may be moved as a whole: the job names the base by a relative path."""
    monkeypatch.chdir(tmp_path)
    make_base(tmp_path / "one" / "base")
    monkeypatch.chdir(tmp_path / "one")
    job("base", steps=1)("run")
    before = weights("run")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").rename(tmp_path / "two")
    monkeypatch.chdir(tmp_path / "two")
    assert same(weights("run"), before)


def test_missing_base_is_reported_before_a_job_loads_anything(home: Path, tmp_path: Path) -> None:
    watcher = RecordingProgress()
    with moved(home / "base"):
        with pytest.raises(ModelError, match=r"base model .* is not found .*: put it back at"):
            load_policy(str(home / "run"), **HERE)
        with pytest.raises(ModelError, match=r"base model .* is not found .*: put it back at"):
            job(str(home / "run"))(tmp_path / "run", watcher)
    assert not watcher.calls and not (tmp_path / "run").exists()


def test_fingerprint_follows_adapter_and_base(home: Path) -> None:
    steps = [home / "run" / "checkpoints" / f"step-{i:06d}" / "model" for i in (1, 2)]
    one, two = map(model_fingerprint, steps)
    assert one and one != two, "another adapter"
    with moved(home / "base"):
        assert model_fingerprint(steps[1]) == two, "the weights that it was trained on"
        other = replace(SCRATCH, seed=5).build(torch.float32, torch.device("cpu"))[0]
        hf.save(other, home / "base")
        try:
            assert model_fingerprint(steps[1]) != two, "another base"
        finally:
            shutil.rmtree(home / "base")
    assert model_fingerprint(steps[1], "tokenizer or chat template") == model_fingerprint(
        steps[0], "tokenizer or chat template"
    )


def test_plan_counts_what_a_checkpoint_holds(home: Path) -> None:
    sizes = {}
    for name, model in {"adapter": str(home / "base"), "merged": SCRATCH}.items():
        planned = job(model)
        policy = load_policy(model, **HERE)
        plan = RunPlan(planned)
        _describe_model(plan, policy, build_sft_learner(planned, policy))
        sizes[name] = plan.checkpoint_bytes
        base_bytes = sum(p.nbytes for n, p in policy.net.named_parameters() if "lora_" not in n)
    assert sizes["merged"] - sizes["adapter"] == base_bytes
