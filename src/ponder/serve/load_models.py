"""Load what a server serves, by name: policies, LoRA adapters of a policy, and reward, process and value models.

What a folder holds decides what it is. A scorer that was trained on a served policy's weights, as a head or an adapter,
runs in that policy's engine and cache; any other has an engine of its own. Each scorer is also a guide, under its name,
for the policies that share its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from ponder.errors import ModelError, PonderError, UsageError
from ponder.models.base_policy import BasePolicy
from ponder.models.load import load_inference_policy
from ponder.models.load_scorer import load_implicit_scorer, load_scorer, load_shared_scorer
from ponder.models.model_paths import OPENAI_PREFIX, find_model, split_library_prefix
from ponder.models.openai_policy import OpenAIPolicy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.model_replicas import ModelReplicas, ReplicaModel, decoder_config
from ponder.models.reward_models import LearnedScorer
from ponder.models.server_discovery import is_server_address
from ponder.models.weight_sharing import runs_on
from ponder.nets import hf, lora
from ponder.nets.hardware import pick_device
from ponder.protocols import Policy, Scorer
from ponder.reason.operators.self_evaluate import PTrue
from ponder.reason.scorers import Likelihood
from ponder.serve.served_models import ServedModel, ServedModels, find_think_markers


@dataclass(frozen=True)
class ServedModelSpec:
    """MODEL, or NAME=MODEL to serve it under another name."""

    name: str
    model: str

    @classmethod
    def parse(cls, text: str) -> ServedModelSpec:
        name, equals, model = text.partition("=")
        if not equals or any(mark in name for mark in "/:?#"):  # an address or a path may have an equals sign
            return cls(default_name(text), text)
        if not name or not model:
            raise UsageError(f"{text!r} is not NAME=MODEL: give both, or the model alone")
        return cls(name, model)


def default_name(model: str) -> str:
    """The last part of a path, or the name that a hub or a server has for the model."""
    if model.startswith(OPENAI_PREFIX) or is_server_address(model):
        parts = urlsplit(model.removeprefix(OPENAI_PREFIX))
        return parts.fragment or parts.netloc
    path = Path(split_library_prefix(model)[1]).expanduser()
    return (path.stem if path.suffix == ".gguf" else path.resolve().name) if path.exists() else model


def load_served_models(
    models: Sequence[str],
    template: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
    replicas: int | None = 0,
    tensor_parallel: int = 1,
) -> ServedModels:
    """Load MODEL or NAME=MODEL, each a policy, an adapter or a scorer. `replicas`: sampler processes for each policy,
    which load it when the server starts; 0: this process samples; None: one process on a GPU, where that can be.
    `tensor_parallel`: GPUs, or processes on the CPU, over which each replica's network is split."""
    specs = [ServedModelSpec.parse(model) for model in models]
    if repeated := {spec.name for spec in specs if sum(spec.name == other.name for other in specs) > 1}:
        raise UsageError(f"two models are named {min(repeated)!r}: give one another name, as NAME=MODEL")
    kinds = {spec.name: _kind(spec.model) for spec in specs}
    served: list[ServedModel] = []
    if tensor_parallel > 1 and replicas is None:
        replicas = 1
    count = _replica_count(specs, kinds, device, replicas)
    if tensor_parallel > 1 and not count:
        raise UsageError("--tensor-parallel splits the networks of replicas: give --replicas 1 or more")
    for spec in (spec for spec in specs if kinds[spec.name] == "policy"):
        policy: BasePolicy
        if count:
            model = ReplicaModel(spec.model, template, device, dtype, seed)
            policy = ModelReplicas(model, count, tensor_parallel=tensor_parallel)
        else:
            policy = load_inference_policy(spec.model, template, device, dtype, seed)
        served.append(ServedModel(spec.name, policy, find_think_markers(policy), root=spec.model))
    served += [_with_adapter(served, spec) for spec in specs if kinds[spec.name] == "adapter"]
    bases = [model.policy for model in served if isinstance(model.policy, PonderPolicy)]
    scorers = {
        spec.name: _load_scorer(spec.model, bases, device, dtype) for spec in specs if kinds[spec.name] == "scorer"
    }
    with_guides = [
        replace(m, guides={**own_guides(m.policy), **{n: s for n, s in scorers.items() if _same_tokens(m, s)}})
        for m in served
    ]
    return ServedModels(with_guides, scorers)


def _replica_count(
    specs: Sequence[ServedModelSpec], kinds: Mapping[str, str], device: str, replicas: int | None
) -> int:
    """Adapters and scorers run in a policy's own engine, so they need it in this process; and other libraries'
    networks and pictures are not for replicas."""
    if replicas == 0 or (replicas is None and pick_device(device).type != "cuda"):
        return 0
    unfit = [spec.name for spec in specs if kinds[spec.name] != "policy" or not _is_own_text_model(spec.model)]
    if unfit and replicas is not None:
        raise UsageError(f"replicas run ponder's own text models, without adapters and judges: leave out --replicas, or"
                         f" {unfit[0]}")  # fmt: skip
    return 0 if unfit else 1 if replicas is None else replicas


def _is_own_text_model(model: str) -> bool:
    is_elsewhere = model.startswith(OPENAI_PREFIX) or split_library_prefix(model)[0]
    return not is_elsewhere and decoder_config(model).vision is None


def own_guides(policy: Policy) -> dict[str, Scorer]:
    """The guides that need no other model."""
    return {"likelihood": Likelihood(), "p_true": PTrue(policy)}


def _kind(model: str) -> str:
    """What a name stands for: "policy", "adapter" or "scorer"."""
    if is_server_address(model):
        return "scorer"
    path = Path(model).expanduser()
    if (path / lora.ADAPTER_CONFIG_FILE).is_file():
        return "adapter"
    if model.startswith(OPENAI_PREFIX) or split_library_prefix(model)[0]:
        return "policy"
    found = find_model(model)
    return "scorer" if found.is_dir() and hf.is_score_model(found) else "policy"


def _with_adapter(served: Sequence[ServedModel], spec: ServedModelSpec) -> ServedModel:
    """An adapter under its own name, over the first policy that it fits."""
    reasons: list[str] = []
    for base in served:
        if isinstance(base.policy, PonderPolicy):
            try:
                base.policy.engine.adapters.add(spec.name, Path(spec.model).expanduser())
            except PonderError as reason:
                reasons.append(str(reason))
                continue
            return replace(base, name=spec.name, policy=base.policy.with_adapter(spec.name), root=base.name)
    raise UsageError(
        f"{spec.model} is an adapter, and fits no model that is served"
        + (f" ({reasons[0]})" if reasons else "; name its base model first")
    )


def _load_scorer(model: str, bases: Sequence[PonderPolicy], device: str, dtype: str) -> LearnedScorer:
    """On the engine of the first policy whose weights it was trained on, else on one of its own."""
    if not is_server_address(model) and hf.load_implicit_head(find_model(model)) is not None:
        return load_implicit_scorer(model, device, dtype, policy=bases[0] if bases else None)
    for policy in bases:
        if not is_server_address(model) and runs_on(policy, device, dtype):
            with suppress(ModelError):  # another base model
                return load_shared_scorer(policy, model)
    return load_scorer(model, device, dtype)


def _same_tokens(model: ServedModel, scorer: LearnedScorer) -> bool:
    base, other = model.base, scorer.reader.engine_policy
    if base is None or (isinstance(base, OpenAIPolicy) and not base.sends_token_ids):
        return False
    return base is other or base.tokenizer.inner.to_str() == other.tokenizer.inner.to_str()
