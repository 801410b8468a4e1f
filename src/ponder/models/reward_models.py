"""Scorers that were learned: outcome and process reward models, rewards from preferences, value models.

They read a trace's own tokens, never its text, through the engine of a `native` policy: one of their own, or the one
that samples. There a head alone reads the very states that the policy wrote with, and its cached prefix; a head with a
LoRA adapter has states and a cache of its own beside them, in the same batches.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from ponder.errors import ModelError, UsageError
from ponder.models import chat_templates
from ponder.models.load import load_policy
from ponder.models.model_paths import find_model
from ponder.models.ponder_policy import AdapterPolicy, PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.models.tokenizer import Tokenizer
from ponder.models.weight_sharing import adapter_digest, find_head_adapter, runs_on
from ponder.nets import hf
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead, apply_head, build_head
from ponder.nets.hardware import pick_device, pick_dtype, set_threads
from ponder.protocols import Policy
from ponder.reason.operators.evaluate import Reduction, reduce_scores
from ponder.tasks.step_labels.step_split import step_ends
from ponder.types import Cost, Ids, Score, Step, Trace

_MAX_CACHED_SCORES = 1 << 16  # numbers, so that a longer path does not pay for its beginning again


class HeadReader:
    """What a head reads at tokens of a text. It remembers, until the weights change."""

    def __init__(
        self, policy: PonderPolicy | AdapterPolicy, head: ScoreHead, score: nn.Module, frozen: bool = False
    ) -> None:
        """`frozen`: the weights are to stay as they are now, and whoever changes them is told."""
        self.policy, self.head, self.score = policy, head, score
        self.engine_policy = policy.policy if isinstance(policy, AdapterPolicy) else policy
        self._has_own_states = isinstance(self.engine_policy.net, DecoderWithHead) or isinstance(policy, AdapterPolicy)
        self._cache: OrderedDict[bytes, float] = OrderedDict()
        self._stamp: Any = None
        self._frozen_stamp: tuple[int, ...] | None = None
        if frozen:
            self.engine_policy.drop_stale_cache()
            self._frozen_stamp = self._weight_versions()

    def text(self, tokens: Ids) -> str:
        return self.policy.text(tokens)

    async def __call__(self, tokens: Ids, at: Sequence[int]) -> tuple[list[float], Cost]:
        """At each of these places of a text, in order; and what that took."""
        self.engine_policy.drop_stale_cache()
        if self._frozen_stamp is not None and self._weight_versions() != self._frozen_stamp:
            raise ModelError(
                "the policy was trained while a judge read in its engine, and a judge must not change with what it"
                " judges: give it an engine of its own (load_scorer)"
            )
        if self._stamp != (stamp := (self.engine_policy.weights_stamp, self.head)):
            self._cache.clear()
            self._stamp = stamp
        keys = dict(zip(at, _prefix_digests(tokens, at), strict=True))
        found = {place: self._cache[key] for place, key in keys.items() if key in self._cache}
        new = [place for place in at if place not in found]
        cost = Cost()
        if new:
            cost = self._cost(new[0], new[-1], known=[place for place in at if place < new[0]])
            hidden = await self.policy.hidden_states(tokens[: new[-1] + 1], new[0])
            with torch.inference_mode():
                read = self.head.interpret(apply_head(self.score, hidden[[place - new[0] for place in new]])).tolist()
            found |= zip(new, read, strict=True)
        if self._stamp == stamp:  # else others found new weights while this was read
            for place, key in keys.items():
                self._cache[key] = found[place]
                self._cache.move_to_end(key)
            while len(self._cache) > _MAX_CACHED_SCORES:
                self._cache.popitem(last=False)
        return [found[place] for place in at], cost

    def _weight_versions(self) -> tuple[int, ...]:
        """Changes when the weights do; not when the engine lays the same ones elsewhere."""
        return self.engine_policy.weight_versions()

    def _cost(self, first: int, last: int, known: Sequence[int]) -> Cost:
        """What was read before, or was written in these same states, is in the cache."""
        cached = (known[-1] + 1 if known else 0) if self._has_own_states else first
        count = last + 1 - cached
        flops = self.engine_policy.net.config.flops_per_token((cached + last + 1) // 2) * count
        return Cost(scorer_tokens=count, flops=flops)


def _prefix_digests(tokens: Ids, at: Sequence[int]) -> list[bytes]:
    """A name for the text up to and with each place."""
    name, begin, out = hashlib.blake2b(digest_size=16), 0, []
    for place in at:
        name.update(tokens[begin : place + 1].tobytes())
        begin = place + 1
        out.append(name.digest())
    return out


@dataclass(frozen=True, eq=False)
class LearnedScorer:
    """What these scorers share: a number at the end of a step."""

    reader: HeadReader
    gameable: ClassVar[bool] = True
    head_kind: ClassVar[str] = "value"

    def __post_init__(self) -> None:
        if self.reader.head.predicts != self.head_kind:
            raise UsageError(
                f"a model trained for {self.reader.head.predicts!r} is no {type(self).__name__}: see load_scorer"
            )

    @property
    def name(self) -> str:
        return self.head_kind

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return list(await asyncio.gather(*(self._score(trace, step) for step in steps)))

    async def _score(self, trace: Trace, step: int) -> Score:
        if why := self._unreadable(trace, step):
            return Score(None, why)
        tokens = trace.token_ids(step)
        (value,), cost = await self.reader(tokens, [len(tokens) - 1])
        return Score(value, cost=cost)

    def _unreadable(self, trace: Trace, step: int) -> str:
        said = trace.steps[step]
        if not len(trace.token_ids(step)):
            return "there are no tokens to read: encode the trace first"
        if said.sampled and len(said.token_ids) and said.text:
            body = said.token_ids[:-1] if said.stop == "eos" else said.token_ids
            if body.max(initial=0) >= self.reader.engine_policy.vocab_size or self.reader.text(body) != said.text:
                return "these tokens are of another tokenizer: a model reads only what its own tokenizer wrote"
        return ""


class ORM(LearnedScorer):
    """The probability that a solution is right, at its end (Cobbe et al. 2021)."""

    head_kind = "outcome"

    @property
    def name(self) -> str:
        return "orm"


class PreferenceModel(LearnedScorer):
    """A reward learned from preferences; only differences between answers to one prompt mean anything."""

    head_kind = "reward"


class ValueModel(LearnedScorer):
    """What is to be expected from here on."""

    head_kind = "value"


@dataclass(frozen=True, eq=False)
class PRM(LearnedScorer):
    """The probability that each step of a path is right (`Score.steps`), and the path's score from them (`Score.value`;
    Lightman et al. 2023).

    `reduce` is for whoever takes the path's score as it is: votes, MCTS, best of n by a judge. A step-wise search
    reduces the steps' probabilities itself (`Stepwise.reduce`). `per`: a number at the end of every step of the trace,
    or of every line; auto: of lines where the path is one step that was not cut. `separator` ends a line; by default
    the one that it was trained with.
    """

    reduce: Reduction = "min"
    granularity: Literal["auto", "step", "line"] = "auto"
    separator: str = ""
    head_kind: ClassVar[str] = "process"
    scores_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        reduce_scores([1.0], self.reduce)
        if self.granularity not in ("auto", "step", "line"):
            raise UsageError(f"steps are read per auto, step or line, not {self.granularity!r}")

    @property
    def name(self) -> str:
        return "prm"

    async def step_scores(self, trace: Trace, step: int) -> tuple[list[float], Cost]:
        """The probability of each step on the way to this one."""
        return await self.reader(trace.token_ids(step), self.step_end_positions(trace, step))

    def step_end_positions(self, trace: Trace, step: int) -> list[int]:
        """The last token of each step on the path, or of each line of a path that is one long step."""
        path = [i for i in trace.path(step)[1:] if len(trace.steps[i].token_ids)]
        own = [i for i in path if trace.steps[i].sampled] or path  # without a tool's output, where others wrote
        lines = self.granularity == "line" or (
            self.granularity == "auto" and len(own) == 1 and not _is_cut_step(trace.steps[own[0]])
        )
        out = []
        for i in own:
            said = trace.steps[i]
            begin = len(trace.token_ids(i)) - len(said.token_ids)
            cuts = [len(said.token_ids)]
            if lines:
                separator = self.separator or self.reader.head.separator
                cuts = step_ends(said.token_ids, self.reader.text, separator, said.stop == "eos")
            out += [begin + end - 1 for end in cuts]
        return out

    async def _score(self, trace: Trace, step: int) -> Score:
        if why := self._unreadable(trace, step):
            return Score(None, why)
        places = self.step_end_positions(trace, step)
        if not places:
            return Score(None, "nothing was written yet, so there is no step to judge")
        read, cost = await self.reader(trace.token_ids(step), places)
        worst = int(np.argmin(read)) + 1
        said = f"{self.reduce} of {len(read)} steps, the worst is {worst}"
        return Score(reduce_scores(read, self.reduce), said, cost, tuple(read))


def _is_cut_step(step: Step) -> bool:
    """It is a step of an answer, and no whole one: a cut ended it."""
    return step.stop == "stop" and not step.last


SCORER_CLASSES: dict[str, type[LearnedScorer]] = {
    "outcome": ORM,
    "reward": PreferenceModel,
    "process": PRM,
    "value": ValueModel,
}


def make_scorer(reader: HeadReader, **settings: Any) -> LearnedScorer:
    """The scorer that a head was trained to be."""
    kind = SCORER_CLASSES[reader.head.predicts]
    if settings and kind is not PRM:
        raise UsageError(f"a model trained for {reader.head.predicts!r} has no setting {min(settings)!r}")
    return kind(reader, **settings)


def load_scorer(model: str, device: str = "auto", dtype: str = "auto", **settings: Any) -> LearnedScorer:
    """A trained judge from a run directory or a folder, on an engine of its own. `settings`: of a PRM."""
    return make_scorer(make_head_reader(load_policy_with_head(model, None, device=device, dtype=dtype)), **settings)


def load_shared_scorer(policy: PonderPolicy, model: str, name: str = "", **settings: Any) -> LearnedScorer:
    """A trained judge on the policy's own engine, where it was trained on these very weights: as a head alone, or as a
    LoRA adapter. `name`: of the adapter in the engine. It reads as long as the weights stay as they are."""
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
    """A trained judge on the policy's engine where it can share it, else on one of its own. The policy must not be
    trained: a judge on its engine reads what it reads only with these weights."""
    if isinstance(policy, PonderPolicy) and runs_on(policy, device, dtype):
        with suppress(ModelError):  # another base, or all of its weights were trained; or a fault, which comes again
            return load_shared_scorer(policy, model, **settings)
    return load_scorer(model, device, dtype, **settings)


def make_head_reader(policy: PonderPolicy) -> HeadReader:
    """Of a policy whose network is a judge's."""
    if not isinstance(policy.net, DecoderWithHead):
        raise UsageError("this policy's network reads no numbers: load a value or reward model")
    return HeadReader(policy, policy.net.head, policy.net.score)


def load_policy_with_head(
    model: str | ScratchModel,
    head: ScoreHead | None,
    template: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
) -> PonderPolicy:
    """A network that reads numbers, in an engine: a trained judge as it is; or with a `head` to train, a language model
    under that head, and a judge of the same form to go on with."""
    folder = None if isinstance(model, ScratchModel) else find_model(model)
    if folder is None or not hf.is_score_model(folder):
        if head is None:
            raise ModelError(f"{model} holds a language model, which judges nothing: give a value or reward model")
        policy = load_policy(model, template, device, dtype, seed)
        return PonderPolicy(DecoderWithHead.from_decoder(policy.net, head, seed), policy.tokenizer, seed)
    where = pick_device(device)
    if where.type == "cpu":
        set_threads()
    net = hf.load_with_head(folder, pick_dtype(dtype, where), where)
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
