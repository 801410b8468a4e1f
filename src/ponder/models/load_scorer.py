"""Load a trained reward or value model: on an engine of its own, on the engine of a policy with the same weights, or
behind a ponder server."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ponder.errors import ModelError, UsageError
from ponder.models import chat_templates
from ponder.models.head_reader import HeadReader
from ponder.models.load import load_policy
from ponder.models.model_paths import find_base, find_model
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.remote_head_reader import RemoteHeadReader
from ponder.models.reward_models import LearnedScorer, make_scorer
from ponder.models.scratch_model import ScratchModel
from ponder.models.server_discovery import is_server_address
from ponder.models.tokenizer import Tokenizer
from ponder.models.weight_sharing import adapter_digest, find_head_adapter, runs_on
from ponder.nets import hf
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead, build_head
from ponder.nets.hardware import pick_device, pick_dtype, set_threads
from ponder.protocols import Policy


def load_scorer(model: str, device: str = "auto", dtype: str = "auto", **settings: Any) -> LearnedScorer:
    """A trained reward model from a run directory or a folder, on an engine of its own; or one behind a ponder server,
    "URL#MODEL". `settings` are a PRM's."""
    if is_server_address(model):
        for name, value in (("device", device), ("dtype", dtype)):
            if value != "auto":
                raise UsageError(f"a server chose its own {name} when it was started: leave out {name} {value}")
        return make_scorer(RemoteHeadReader.connect(model), **settings)
    return make_scorer(make_head_reader(load_policy_with_head(model, None, device=device, dtype=dtype)), **settings)


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
    if isinstance(policy, PonderPolicy) and runs_on(policy, device, dtype):
        with suppress(ModelError):  # another base model or fully trained weights; any other fault is raised again below
            return load_shared_scorer(policy, model, **settings)
    return load_scorer(model, device, dtype, **settings)


def make_head_reader(policy: PonderPolicy) -> HeadReader:
    """The reader of a policy whose network has a head."""
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
    if folder is None or not hf.is_score_model(folder):
        if head is None:
            raise ModelError(f"{model} holds a language model, which has no head: give a value or reward model")
        policy = load_policy(model, template, device, dtype, seed)
        return PonderPolicy(DecoderWithHead.from_decoder(policy.net, head, seed), policy.tokenizer, seed)
    where = pick_device(device)
    if where.type == "cpu":
        set_threads()
    net = hf.load_with_head(folder, pick_dtype(dtype, where), where, find_base)
    if head is not None and _head_shape(net.head) != _head_shape(head):
        raise ModelError(
            f"{model} was trained for {net.head.predicts!r} ({net.head.form}), not {head.predicts!r} ({head.form})"
        )
    tokenizer = Tokenizer.from_folder(folder)
    return PonderPolicy(
        net, tokenizer if template is None else chat_templates.with_chat_template(tokenizer, template), seed
    )


def _head_shape(head: ScoreHead) -> tuple[Any, ...]:
    return head.predicts, head.form, head.bias, head.hidden, head.bins, head.low, head.high
