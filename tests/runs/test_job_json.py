"""A job as data and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fakes import QUESTION_TEMPLATE, DigitTask
from ponder.errors import PonderError, RunError, UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.reason.strategies import Chain, Samples
from ponder.runs import job_json
from ponder.tasks import Addition, Arithmetic, Countdown
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

SAMPLING = Sampling(0.7, 0.9, 5, 0.01, 33, ("a", "\n"), (3, 4), 8)
JOBS = [
    RL(Addition(digits=3)),
    RL(
        Countdown(), ScratchModel("01+= ", seed=4), "r1", Samples(3, Sampling(0.7, max_tokens=33, stop=("\n",))),
        GRPO(0.1, bessel=True),
        AdamW(1e-3, (0.5, 0.6), warmup_steps=3, max_grad_norm=float("inf")), seed=5,
    ),
    RL(DigitTask(3), template=QUESTION_TEMPLATE, group_size=4, sampling=replace(SAMPLING, seed=None)),
    FineTune("data/é.jsonl"),
    FineTune(Arithmetic(), ScratchModel("ab"), frozen_layers=2),
    Evaluate(Addition(), strategy=Chain(SAMPLING), limit=3),
    Evaluate(Countdown(), strategy=Samples()),
]  # fmt: skip


@pytest.mark.parametrize("job", JOBS, ids=lambda j: type(j).__name__)
def test_decode_inverts_encode(job: Any) -> None:
    data = json.loads(json.dumps(job_json.encode(job)))
    again = job_json.decode(data, trust=True)
    assert again == job and type(again) is type(job)
    assert job_json.encode(again) == job_json.encode(job) == data
    assert not job_json.differences(data, job_json.encode(again))


def test_encoded_job_is_readable() -> None:
    data = job_json.encode(Evaluate(Addition(), strategy=Chain(SAMPLING)))
    assert data["is"] == "ponder.pipelines.evaluate:Evaluate"
    assert data["strategy"]["is"] == "ponder.reason.strategies.chain:Chain"
    assert data["strategy"]["sampling"]["stop"] == ["a", "\n"]


@dataclass
class Loose:
    x: int = 1


@dataclass(frozen=True)
class Holder:
    inner: Any = None
    made: int = field(init=False, default=3)


def test_encode_refuses_unsupported_values() -> None:
    for bad, words in (
        (Loose(), "Loose must be a frozen dataclass"), (Holder(Loose()), "Loose"), (Holder(object()), "not object"),
        (Holder({1, 2}), "not set"), (Holder(b"x"), "not bytes"),
        (Holder(Loose), "not type"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            job_json.encode(bad)


def test_encode_plain_values() -> None:
    for value in (None, True, 3, 2.5, "x", (1, ("a", None)), {"a": (1,)}):
        assert job_json.decode(json.loads(json.dumps(job_json.encode(value)))) == value
    assert job_json.encode(Path("/a/b")) == "/a/b"
    assert job_json.decode(job_json.encode(Holder((1, 2))), trust=[f"{__name__}:Holder"]) == Holder((1, 2))


@pytest.mark.parametrize(
    "kind",
    ["nowhere:Thing", "ponder.types:Thing", "ponder.types", "json:dumps", "ponder.errors:UsageError", "os:system"],
)
def test_decode_refuses_unknown_types(kind: str) -> None:
    with pytest.raises(PonderError, match=kind):
        job_json.decode({"is": kind, "x": 1})
    with pytest.raises(PonderError, match=kind):
        job_json.decode({"is": kind, "x": 1}, trust=True)


def test_decode_names_fields_of_another_version() -> None:
    data = job_json.encode(AdamW())
    with pytest.raises(RunError, match=r"another version.*nesterov"):
        job_json.decode({**data, "nesterov": True})
    missing = job_json.encode(Evaluate(Addition()))
    del missing["task"]
    with pytest.raises(RunError, match=r"another version.*task"):
        job_json.decode(missing)


@pytest.mark.parametrize("kind", ["ponder.tasks.removed:Task", "ponder.tasks.mixture:Removed"])
def test_decode_names_types_of_another_version(kind: str) -> None:
    job = job_json.encode(Evaluate(Addition()))
    for data in ({"is": kind}, job | {"task": {"is": kind}}):
        with pytest.raises(RunError, match=rf"another version of ponder \({kind}: no such type\): start a new run"):
            job_json.decode(data)


def test_differences_name_the_field() -> None:
    a = job_json.encode(RL(Addition(digits=3)))
    b = job_json.encode(RL(Addition(digits=4), optimizer=AdamW(betas=(0.9, 0.99)), template="qa"))
    result = job_json.differences(a, b)
    assert sorted(result) == [
        "optimizer.betas: [0.9, 0.999] -> [0.9, 0.99]", "task.digits: 3 -> 4", "template: None -> 'qa'"
    ]  # fmt: skip
    assert job_json.differences(a, a) == []


@dataclass(frozen=True)
class Named:
    name: str
    job: Any = None


def test_differences_name_the_list_item() -> None:
    def found(a: Any, b: Any) -> list[str]:
        return job_json.differences(job_json.encode(Holder(a)), job_json.encode(Holder(b)))

    one, two = Named("sample", Holder({"model": "a"})), Named("tune", AdamW())
    assert found((one, two), (Named("sample", Holder({"model": "b"})), two)) == [
        "inner.sample.job.inner.model: 'a' -> 'b'"
    ]
    assert found((one, two), (two,)) == ["inner.sample: Named(...) -> absent"]
    assert found((one, two), (two, one)) == ["inner: sample, tune -> tune, sample"]
    assert found((AdamW(), 3), (AdamW(lr=0.5), 3)) == ["inner.0.lr: 1e-05 -> 0.5"]
    assert found((AdamW(), AdamW()), (AdamW(),)) == ["inner.1: AdamW(...) -> absent"]
    assert found(AdamW(), one) == ["inner: AdamW(...) -> Named(...)"]
    assert job_json.differences(job_json.encode(AdamW()), job_json.encode(one)) == ["job: AdamW(...) -> Named(...)"]
    assert found((1, 2), (1, 2, 3)) == ["inner: [1, 2] -> [1, 2, 3]"]
    runs = tuple(f"runs/number-{i:03}" for i in range(40))
    assert found(runs, (*runs[:-1], "runs/other")) == ["inner.39: 'runs/number-039' -> 'runs/other'"]
    assert found((("a", 1), ("b", 2)), (("a", 1), ("b", 3))) == ["inner.1: ['b', 2] -> ['b', 3]"]


def test_differences_shorten_long_values() -> None:
    begin = "/a/very/long/place" * 20
    (line,) = job_json.differences({"model": f"{begin}/one/model"}, {"model": f"{begin}/two/model" + "x" * 5000})
    assert "/one/model' -> ..." in line and "/two/modelxxx" in line and line.endswith("...") and len(line) < 160
    (line,) = job_json.differences({"model": "short"}, {"model": "y" * 5000})
    assert line == f"model: 'short' -> 'y{'y' * 58}..."
    (line,) = job_json.differences({"table": {"a": [1] * 5000}}, {"table": None})
    assert len(line) < 100 and line.endswith("... -> None")


def test_differences_report_missing_keys() -> None:
    assert len(job_json.differences({"a": 1}, {"a": 1, "b": None})) == 1
    assert len(job_json.differences({"a": 1, "b": None}, {"a": 1})) == 1


def test_encoded_job_is_standard_json() -> None:
    text = json.dumps(job_json.encode(AdamW(max_grad_norm=float("inf"))), allow_nan=False)
    assert job_json.decode(json.loads(text)) == AdamW(max_grad_norm=float("inf"))
