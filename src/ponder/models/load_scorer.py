"""Load a trained reward or value model: on an engine of its own, on the engine of a policy with the same weights, or
behind a ponder server."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from ponder.errors import ModelError, UsageError
from ponder.models import chat_templates
from ponder.models.head_reader import HeadReader, ScoreReader
from ponder.models.load import load_policy
from ponder.models.logprob_reader import LogprobReader
from ponder.models.model_paths import find_base, find_model
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.remote_head_reader import RemoteHeadReader
from ponder.models.reward_models import LearnedScorer, make_scorer
from ponder.models.scratch_model import ScratchModel
from ponder.models.server_discovery import is_server_address
from ponder.models.tokenizer import Tokenizer
from ponder.models.weight_sharing import adapter_digest, find_head_adapter, runs_model, runs_on
from ponder.nets import hf
from ponder.nets.decoder_with_head import DecoderWithHead, LogprobReading, ScoreHead, build_head
from ponder.nets.decoder_with_reference import DecoderWithReference
from ponder.nets.hardware import pick_device, pick_dtype, set_threads
from ponder.protocols import Policy


def load_scorer(model: str, device: str = "auto", dtype: str = "auto", **settings: Any) -> LearnedScorer:
    """A trained reward model from a run directory or a folder, on an engine of its own; or one behind a ponder server,
    "URL#MODEL". `settings` are a PRM's or an implicit reward model's."""
    if is_server_address(model):
        for name, value in (("device", device), ("dtype", dtype)):
            if value != "auto":
                raise UsageError(f"a server chose its own {name} when it was started: leave out {name} {value}")
        return make_scorer(RemoteHeadReader.connect(model), **settings)
    if hf.load_implicit_head(find_model(model)) is not None:
        return load_implicit_scorer(model, device, dtype, **settings)
    return make_scorer(make_head_reader(load_policy_with_head(model, None, device=device, dtype=dtype)), **settings)


def load_implicit_scorer(
    model: str,
    device: str = "auto",
    dtype: str = "auto",
    *,
    reading: LogprobReading | Literal[""] = "",
    policy: Policy | None = None,
    **settings: Any,
) -> LearnedScorer:
    """An implicit reward model; or, with the reading "logprob" or "likelihood", any language model as a judge. Log pi
    alone needs no reference. Where `policy` runs the reference, or that language model, its engine is shared."""
    folder = find_model(model)
    head = hf.load_implicit_head(folder)
    if head is None and reading in ("", "ratio"):
        raise ModelError(f"{model} has no reference to compare with: read it by logprob or likelihood")
    head = replace(head or ScoreHead("implicit", "logit"), reading=reading or (head.reading if head else "logprob"))

    def load(path: str) -> PonderPolicy:
        if policy is not None and runs_model(policy, path, device, dtype):
            assert isinstance(policy, PonderPolicy)
            return policy
        return load_policy(path, device=device, dtype=dtype)

    reference = load(str(folder / hf.REFERENCE_FOLDER)) if head.reading == "ratio" else None
    return make_scorer(LogprobReader(load(model), reference, head), **settings)


def load_shared_scorer(policy: PonderPolicy, model: str, name: str = "", **settings: Any) -> LearnedScorer:
    """A trained reward model on the policy's own engine, if it was trained on these very weights: as a head alone, or
    as a LoRA adapter. `name` is the adapter's in the engine. It works as long as the weights stay as they are."""
    folder = find_model(model)
    head, stored = hf.load_head(folder)
    adapter = find_head_adapter(policy, folder)
    module = build_head(policy.net.config.width, head).to(policy.net.device, policy.net.dtype).requires_grad_(False)
    try:
        module.load_state_dict({n.removeprefix("score."): t for n, t in stored.items()})
    except RuntimeError as why:
        raise ModelError(f"the head in {folder} is not what its config.json says ({why})") from None
    if adapter is None:
        return make_scorer(HeadReader(policy, head, module, frozen=True), **settings)
    own = adapter_digest(adapter)
    if name or own not in policy.engine.adapters:
        policy.engine.adapters.add(name or own, adapter)
    return make_scorer(HeadReader(policy.with_adapter(name or own), head, module, frozen=True), **settings)


def load_or_share_scorer(
    policy: Policy | None, model: str, device: str = "auto", dtype: str = "auto", **settings: Any
) -> LearnedScorer:
    """A trained reward model on the policy's engine if it can share that, else on one of its own. The policy must not
    be trained: a reward model on its engine needs these weights."""
    if is_server_address(model):
        return load_scorer(model, **settings)
    if hf.load_implicit_head(find_model(model)) is not None:
        return load_implicit_scorer(model, device, dtype, policy=policy, **settings)
    if isinstance(policy, PonderPolicy) and runs_on(policy, device, dtype):
        with suppress(ModelError):  # another base model or fully trained weights; any other fault is raised again below
            return load_shared_scorer(policy, model, **settings)
    return load_scorer(model, device, dtype, **settings)


def make_head_reader(policy: PonderPolicy) -> ScoreReader:
    """The reader of a policy whose network has a head, or a reference."""
    if isinstance(policy.net, DecoderWithReference):
        return LogprobReader(policy, PonderPolicy(policy.net.reference, policy.tokenizer), policy.net.head)
    if not isinstance(policy.net, DecoderWithHead):
        raise UsageError("this policy's network has no head: load a value or reward model")
    return HeadReader(policy, policy.net.head, policy.net.score)


def load_policy_with_head(
    model: str | ScratchModel,
    head: ScoreHead | None,
    template: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
) -> PonderPolicy:
    """A policy whose network has a head: a trained reward model as it is; or, with a `head` to train, a language model
    under a new head, or a reward model of the same form to continue from."""
    folder = None if isinstance(model, ScratchModel) else find_model(model)
    if folder is not None and (stored := hf.load_implicit_head(folder)) is not None:
        if head is not None and head.predicts != "implicit":
            raise ModelError(f"{model} was trained for {stored.predicts!r}, not {head.predicts!r} ({head.form})")
        policy = load_policy(str(folder), template, device, dtype, seed)
        before = load_policy(str(folder / hf.REFERENCE_FOLDER), template, device, dtype, seed)
        net = DecoderWithReference.from_decoder(policy.net, head or stored, before.net)
        return PonderPolicy(net, policy.tokenizer, seed)
    if folder is None or not hf.is_score_model(folder):
        if head is None:
            raise ModelError(f"{model} holds a language model, which has no head: give a value or reward model")
        policy = load_policy(model, template, device, dtype, seed)
        if head.predicts == "implicit":
            return PonderPolicy(DecoderWithReference.from_decoder(policy.net, head), policy.tokenizer, seed)
        return PonderPolicy(DecoderWithHead.from_decoder(policy.net, head, seed), policy.tokenizer, seed)
    where = pick_device(device)
    if where.type == "cpu":
        set_threads()
    scored = hf.load_with_head(folder, pick_dtype(dtype, where), where, find_base)
    if head is not None and _head_shape(scored.head) != _head_shape(head):
        raise ModelError(f"{model} was trained for {_describe_head(scored.head)}, not {_describe_head(head)}")
    tokenizer = Tokenizer.from_folder(folder)
    return PonderPolicy(
        scored, tokenizer if template is None else chat_templates.with_chat_template(tokenizer, template), seed
    )


def _describe_head(head: ScoreHead) -> str:
    return f"{head.predicts!r} ({head.form}{', reads log-probabilities' if head.logprob_weights else ''})"


def _head_shape(head: ScoreHead) -> tuple[Any, ...]:
    reads_logprobs = bool(head.logprob_weights)
    return head.predicts, head.form, head.bias, head.hidden, head.bins, head.low, head.high, reads_logprobs
