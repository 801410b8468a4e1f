"""A judge by name sits on the policy's engine where it was trained on its weights, and reads the same as anywhere."""

from __future__ import annotations

import gc
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, run_async
from models.policy_contract import save_gguf
from ponder.engine.kv_cache import KVCache
from ponder.engine.request import ReadRequest
from ponder.errors import ModelError
from ponder.models.genrm import GenRM
from ponder.models.guides import load_guide
from ponder.models.head_reader import HeadReader
from ponder.models.load import load_policy
from ponder.models.load_scorer import load_scorer
from ponder.models.model_paths import find_model
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.reward_models import LearnedScorer
from ponder.models.scratch_model import ScratchModel
from ponder.models.weight_sharing import find_head_adapter
from ponder.nets import hf, lora
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.lora import LoRA
from ponder.pipelines import stages
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.rewards import reward_model_task
from ponder.pipelines.rewards.reward_model_task import RewardModelTask
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import BestOfN, Samples
from ponder.runs import read_traces
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.reward_objectives import OutcomeReward
from ponder.types import Sampling, Trace

HERE: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
DRAW = Sampling(max_tokens=6)
WAYS: dict[str, dict[str, Any]] = {"head": {"head_only": True}, "lora": {"lora": LoRA(4)}, "all": {}}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, what it sampled, and judges of that which learned with more or less of its weights."""
    home = tmp_path_factory.mktemp("home")
    fresh = ScratchModel(ALPHABET, width=16, layers=2, heads=2, context=32)
    FineTune(DigitTask(), fresh, QUESTION_TEMPLATE, optimizer=AdamW(lr=1e-2), steps=8, batch_size=5, **HERE)(
        home / "policy"
    )
    Collect(DigitTask(), str(home / "policy"), QUESTION_TEMPLATE, Samples(8, DRAW), limit=10, **HERE)(home / "sample")
    for way, changes in WAYS.items():
        judge(home, **changes)(home / way)
    return home


def judge(home: Path, **changes: Any) -> TrainRewardModel:
    job = TrainRewardModel(
        (str(home / "sample"),),
        str(home / "policy"),
        OutcomeReward(),
        QUESTION_TEMPLATE,
        held_out_tenths=0,
        steps=6,
        batch_size=4,
        **HERE,
    )
    return replace(job, optimizer=AdamW(lr=1e-2), **changes)


def policy_of(home: Path, name: str = "policy") -> PonderPolicy:
    return load_policy(str(home / name), QUESTION_TEMPLATE, "cpu", "float32")


def guide(home: Path, way: str, policy: PonderPolicy | None) -> LearnedScorer:
    result = load_guide(f"reward:{home / way}", policy, None, "cpu", "float32")
    assert isinstance(result, LearnedScorer)
    return result


def sampled(home: Path, few: int = 4) -> list[Trace]:
    return [trace for _, trace in read_traces(home / "sample")][:few]


def read(judge: Any, traces: list[Trace]) -> list[float]:
    return [s.value for t in traces for s in run_async(judge(t, t.answers()))]


@pytest.mark.parametrize("way", WAYS)
def test_an_evaluation_s_judge_sits_on_the_policy_s_engine(
    way: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `ponder eval --guide reward:RUN` runs; beside it the same with an engine of the judge's own."""
    made: list[Any] = []
    computed: dict[str, int] = {"shared": 0, "apart": 0}

    def evaluated(name: str, *, apart: bool) -> list[Trace]:
        def found(by: str, policy: Any, *more: Any) -> Any:
            judge = load_guide(by, None if apart else policy, *more)
            engine = judge.reader.engine_policy.engine  # type: ignore[union-attr]
            ask = engine._submit

            async def listened(works: Any, *rest: Any) -> Any:
                out = await ask(works, *rest)
                computed[name] += sum(w.prefill_tokens for w in works if isinstance(w, ReadRequest))
                return out

            engine._submit = listened
            made.append((judge, policy))
            return judge

        monkeypatch.setattr("ponder.pipelines.evaluate.load_guide", found)
        job = Evaluate(
            DigitTask(),
            str(home / "policy"),
            QUESTION_TEMPLATE,
            BestOfN(4, sampling=DRAW),
            f"reward:{home / way}",
            max_concurrency=4,
            **HERE,
        )
        job(tmp_path / name)
        return sorted((t for _, t in read_traces(tmp_path / name)), key=lambda t: t.problem.id)

    shared, apart = evaluated("shared", apart=False), evaluated("apart", apart=True)
    (one, policy), (two, _) = made
    assert (one.reader.engine_policy is policy) == (way != "all") and two.reader.engine_policy is not policy
    steps = [(s, u) for t, v in zip(shared, apart, strict=True) for s, u in zip(t.steps, v.steps, strict=True)]
    scores = [(s.scores["orm"].value, u.scores["orm"].value) for s, u in steps if "orm" in s.scores]
    assert len(scores) >= 20 and len({round(a, 6) for a, _ in scores if a is not None}) > 5
    assert np.allclose([a for a, _ in scores], [b for _, b in scores], atol=1e-5)  # type: ignore[arg-type]
    assert all(np.array_equal(s.token_ids, u.token_ids) for s, u in steps)
    spent = [sum(t.cost.scorer_tokens for t in traces) for traces in (shared, apart)]
    if way == "head":
        assert computed["shared"] == spent[0] < spent[1] / 2 and computed["shared"] < computed["apart"]
    else:  # states of its own, which it computes either way
        assert computed["shared"] <= computed["apart"] and spent[0] == spent[1]


def test_one_adapter_stands_in_an_engine_once(home: Path) -> None:
    policy = policy_of(home)
    first, second = (guide(home, "lora", policy) for _ in range(2))
    assert len(list(policy.engine.adapters)) == 1
    assert np.allclose(read(first, sampled(home)), read(second, sampled(home)), atol=1e-6)
    both = [guide(home, way, policy) for way in ("head", "lora")]
    apart = [load_scorer(str(home / way), "cpu", "float32") for way in ("head", "lora")]
    for one, two in zip(both, apart, strict=True):
        assert np.allclose(read(one, sampled(home)), read(two, sampled(home)), atol=1e-5)


def test_a_policy_of_other_weights_is_left_alone(home: Path, tmp_path: Path) -> None:
    """Also where only what an adapter touches differs: a policy that was itself trained with one."""
    FineTune(
        DigitTask(), str(home / "policy"), QUESTION_TEMPLATE, optimizer=AdamW(lr=1e-3), steps=2, batch_size=5,
        lora=LoRA(2), **HERE
    )(tmp_path / "tuned")  # fmt: skip
    tuned = policy_of(tmp_path, "tuned")
    for way in WAYS:
        result = guide(home, way, tuned)
        assert result.reader.engine_policy is not tuned
        assert read(result, sampled(home)) == read(load_scorer(str(home / way), "cpu", "float32"), sampled(home))
    base = policy_of(home)
    assert load_guide(f"reward:{home / 'head'}", base, None, "cpu", "bfloat16").reader.engine_policy is not base  # type: ignore[union-attr]
    base.net.config = replace(base.net.config, norm_eps=1e-3)
    assert guide(home, "head", base).reader.engine_policy is not base


def test_an_adapter_beside_a_judge_need_not_be_its_own(home: Path, tmp_path: Path) -> None:
    shutil.copytree(find_model(str(home / "head")), tmp_path / "model")
    shutil.copytree(find_model(str(home / "lora")).with_name("adapter"), tmp_path / "adapter")
    policy = policy_of(home)
    result = guide(tmp_path, "model", policy)
    assert result.reader.policy is policy and not list(policy.engine.adapters)
    shutil.rmtree(tmp_path / "model")
    shutil.copytree(find_model(str(home / "all")), tmp_path / "model")
    assert guide(tmp_path, "model", policy).reader.engine_policy is not policy


@pytest.mark.parametrize("way", ["head", "lora"])
def test_a_judge_does_not_change_with_the_policy(way: str, home: Path) -> None:
    policy = policy_of(home)
    result = guide(home, way, policy)
    before = read(result, sampled(home))
    with torch.no_grad():
        policy.net.norm.weight.mul_(1.5)
    with pytest.raises(ModelError, match="must not change with the policy"):
        read(result, sampled(home))
    assert guide(home, way, policy).reader.engine_policy is not policy
    assert np.allclose(read(guide(home, way, policy), sampled(home)), before, atol=1e-5)
    own = HeadReader(policy, result.reader.head, result.reader.score)
    trace = sampled(home, 1)[0]
    run_async(own(trace.token_ids(1), [1]))  # one who learns along says so, and may


def judged_rl(home: Path) -> RL:
    return RL(
        RewardModelTask(DigitTask(), f"reward:{home / 'head'}", device="cpu", dtype="float32"), str(home / "policy"),
        QUESTION_TEMPLATE, Samples(4, DRAW),
        GRPO(kl=None), AdamW(lr=1e-2), steps=2, problems_per_step=4, preflight=False, **HERE,
    )  # fmt: skip


def test_a_reward_keeps_its_own_engine(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head on the policy's weights would be trained along with them."""
    before = read(load_scorer(str(home / "head"), "cpu", "float32"), sampled(home))
    loaded: list[Any] = []
    real = reward_model_task.load_guide
    monkeypatch.setattr(reward_model_task, "load_guide", lambda *a, **k: (loaded.append(real(*a, **k)), loaded[-1])[1])
    trained = judged_rl(home)(tmp_path / "run")
    (held,) = loaded  # once, for all steps
    assert held.reader.engine_policy is not trained and read(held, sampled(home)) == before  # type: ignore[attr-defined]
    assert any(not torch.equal(p, q) for p, q in zip(trained.net.parameters(), policy_of(home).net.parameters(),
                                                     strict=True))  # fmt: skip


def test_later_stages_have_the_memory_of_a_judge_and_of_what_was_trained(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the garbage collector. On a GPU each engine holds a quarter of the free memory."""
    alive, at_begin = WeakSet[object](), dict[str, list[str]]()
    for kind in (Decoder, Learner, KVCache):

        def remember(self: object, *args: Any, init: Any = kind.__init__, **kwargs: Any) -> None:  # type: ignore[misc]
            init(self, *args, **kwargs)
            alive.add(self)

        monkeypatch.setattr(kind, "__init__", remember)
    run = stages._run_stage

    def look(job: Any, place: Path, *more: Any) -> Any:
        at_begin[place.name] = [type(one).__name__ for one in alive]
        return run(job, place, *more)

    monkeypatch.setattr(stages, "_run_stage", look)
    rl = judged_rl(home)
    test = Evaluate(DigitTask(), "stage:rl", QUESTION_TEMPLATE, Samples(1, DRAW), **HERE)
    gc.collect()
    gc.disable()
    try:
        result = Stages((Stage("rl", rl), Stage("test", test), Stage("again", test)))(tmp_path / "run")
    finally:
        gc.enable()
    assert at_begin == {"rl": [], "test": [], "again": []} and not list(alive)
    assert result["rl"] == tmp_path / "run" / "rl" / "checkpoints" / "step-000002" / "model"


# a language model that judges


def test_a_policy_that_judges_itself_is_loaded_once(home: Path, tmp_path: Path) -> None:
    policy = policy_of(home)
    name = f"genrm+2:{home / 'policy'}"
    result = load_guide(name, policy, None, "cpu", "float32")
    assert isinstance(result, GenRM) and result.policy is policy and result.rationales == 2
    for other in (load_policy(str(home / "policy"), "plain", "cpu", "float32"), None):
        result = load_guide(name, other, None, "cpu", "float32")
        assert isinstance(result, GenRM) and result.policy is not other, "its template is another"
    with torch.no_grad():
        policy.net.norm.weight.mul_(1.5)
    result = load_guide(name, policy, None, "cpu", "float32")
    assert isinstance(result, GenRM) and result.policy is not policy
    with pytest.raises(ModelError, match="cannot write"):
        load_guide(f"genrm:{home / 'head'}", policy, None, "cpu", "float32")


def test_a_gguf_file_is_known_too(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = str(save_gguf(tmp_path / "small.gguf"))
    policy = load_policy(path, None, "cpu", "float32")
    result = load_guide(f"genrm:{path}", policy, None, "cpu", "float32")
    assert isinstance(result, GenRM) and result.policy is policy


def test_light_training_is_seen_under_an_adapter_in_bfloat16(tmp_path: Path) -> None:
    """Weights of that type are rounded coarsely: what a judge's adapter was added to must still be told apart."""
    pytest.importorskip("peft")
    base, tokenizer = ScratchModel(ALPHABET, width=32, layers=1, heads=2).build(torch.bfloat16, torch.device("cpu"))
    valued = DecoderWithHead.from_decoder(base, OutcomeReward().head)
    lora.attach(valued, LoRA(4), seed=0)
    with torch.no_grad():
        for name, p in valued.named_parameters():
            if ".lora_B." in name:
                p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)).to(p))
    hf.save(valued, tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    lora.save(valued, LoRA(4), tmp_path / "adapter", "base")
    policy = PonderPolicy(base, tokenizer)
    assert find_head_adapter(policy, tmp_path / "model") == tmp_path / "adapter"
    with torch.no_grad():
        weight = dict(base.named_parameters())["layers.0.mlp.up_proj.weight"]
        weight[:2] = torch.nextafter(weight[:2], torch.full_like(weight[:2], torch.inf))  # one step of rounding
    with pytest.raises(ModelError, match=r"up_proj\.weight differs"):
        find_head_adapter(policy, tmp_path / "model")
