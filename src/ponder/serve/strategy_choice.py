"""How a request is thought about: one chain or a strategy, its guide, and how many tokens it may sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ponder.errors import UsageError
from ponder.models.guides import default_guide, load_guide
from ponder.protocols import Scorer
from ponder.reason.effort import EFFORTS, Effort
from ponder.reason.inner_strategies import inner_strategies
from ponder.reason.missing_guide import missing_guide
from ponder.reason.operators.auto_cut import AUTO_CUT
from ponder.reason.operators.cut import parse_cut
from ponder.reason.operators.tree_policy import SELECTION_RULES
from ponder.reason.presets import PRESETS, unpack_preset
from ponder.reason.prompts import PLAIN, Prompt
from ponder.reason.strategies import STRATEGIES, BestOfN, Chain, MajorityVote, Samples
from ponder.reason.strategy_limits import COUNT_FIELDS, has_field, with_effort_count, with_limits
from ponder.serve.errors import invalid
from ponder.serve.generation import GenerationRequest, StrategySpec
from ponder.serve.limits import Limits
from ponder.serve.served_models import ServedModel
from ponder.types import Sampling

MAX_ANSWER_RESERVE = 1024  # tokens kept for the answer while the model thinks


@dataclass(frozen=True, slots=True)
class Approach:
    """`strategy` None: one chain, sampled with `sampling` after `prompt`."""

    max_tokens: int  # sampled for one choice, thinking and answer together
    sampling: Sampling
    strategy: Any = None
    prompt: Prompt = PLAIN
    guide: Scorer | None = None

    @property
    def search_tokens(self) -> int:
        """What a strategy may sample; the rest is kept for an answer after it."""
        return self.max_tokens - answer_reserve(self.max_tokens)

    @property
    def is_flat(self) -> bool:
        """Whether the strategy samples whole answers side by side, of which the first is shown."""
        strategy = self.strategy
        return isinstance(strategy, MajorityVote | Samples) or (isinstance(strategy, BestOfN) and strategy.cut is None)


def answer_reserve(max_tokens: int) -> int:
    """Tokens that thinking may not use, so that an answer follows it."""
    return max(1, min(max_tokens // 4, MAX_ANSWER_RESERVE))


def choose_approach(
    request: GenerationRequest, model: ServedModel, limits: Limits, suffix: str = "", room: int = 1 << 30
) -> Approach:
    """`suffix`: the strategy in the model's name. `room`: tokens that the context has after the prompt."""
    level = EFFORTS[request.effort] if request.effort is not None else None
    spec = request.strategy
    if suffix:
        if spec is not None and spec.name != suffix:
            raise invalid(f"the model's name asks for {suffix}, the field for {spec.name}: give one", "strategy")
        spec = spec or StrategySpec(suffix)
    bound = request.max_tokens or (level.budget.tokens if level else None) or limits.default_max_tokens
    try:
        if spec is not None:
            return _named_approach(spec, level, request, model, limits, bound, room)
        if level is None or level.answers == 1:
            return _chain(bound, room, request.sampling)
        if request.sampling.deterministic:  # equal chains need no vote
            return _chain(request.max_tokens or level.max_answer_tokens, room, request.sampling)
        approach = Approach(bound, request.sampling)
        n = max(1, min(level.answers, approach.search_tokens))
        longest = _longest_answer(approach, min(bound, level.max_answer_tokens), room)
        return replace(approach, strategy=MajorityVote(n, sampling=replace(request.sampling, max_tokens=longest)))
    except UsageError as reason:
        raise invalid(str(reason)) from None


def _chain(bound: int, room: int, sampling: Sampling, prompt: Prompt = PLAIN) -> Approach:
    bound = min(bound, room)
    return Approach(bound, sampling.with_max_tokens(bound), prompt=prompt)


def _longest_answer(approach: Approach, longest: int, room: int) -> int:
    """Tokens of one of a strategy's answers: another answer must fit after it."""
    reserve = answer_reserve(min(approach.max_tokens, room))
    return max(1, min(longest, approach.search_tokens, room - reserve))


def _named_approach(
    spec: StrategySpec, level: Effort | None, request: GenerationRequest, model: ServedModel, limits: Limits,
    bound: int, room: int,
) -> Approach:  # fmt: skip
    strategy, own_guide = _build_strategy(spec, limits)
    if level is not None and not set(spec.settings) & set(COUNT_FIELDS):
        strategy = with_limits(with_effort_count(strategy, level.answers, spec.settings), level.answers, {})
    changes = {name: getattr(request.sampling, name) for name in request.given}
    if isinstance(strategy, Chain):
        if request.max_tokens is None and level is None and spec.name in PRESETS:
            bound = strategy.sampling.max_tokens
        return _chain(bound, room, replace(strategy.sampling, **changes), strategy.prompt)
    approach = Approach(bound, request.sampling)
    longest = level.max_answer_tokens if level is not None else request.max_tokens or _own_max_tokens(strategy, bound)
    if _looks_first(strategy):
        longest = min(longest, approach.search_tokens // 4)
    longest = _longest_answer(approach, longest, room)
    strategy = with_limits(strategy, None, {**changes, "max_tokens": longest})
    return replace(approach, strategy=strategy, guide=_find_guide(spec, strategy, own_guide, model))


def _own_max_tokens(strategy: Any, default: int) -> int:
    return int(strategy.sampling.max_tokens) if has_field(strategy, "sampling") else default


def _looks_first(strategy: Any) -> bool:
    """Whether it samples a whole answer to see how the model writes: that must leave tokens for the search."""
    inner = inner_strategies(strategy).values()
    return getattr(strategy, "cut", None) is AUTO_CUT or any(map(_looks_first, inner))


def _find_guide(spec: StrategySpec, strategy: Any, own_guide: str, model: ServedModel) -> Scorer | None:
    if spec.guide and spec.guide not in model.guides:
        have = ", ".join(model.guides) or "none"
        raise invalid(f"no guide {spec.guide[:100]!r}; this server has {have}", "strategy.guide", "unknown_guide")
    if spec.guide and hasattr(strategy, "unused") and (why := strategy.unused().get("guide")):
        raise invalid(f"the guide {spec.guide} changes nothing: {why}", "strategy.guide")
    if own_guide and not spec.guide:  # a preset's own: one of ponder's scorers
        return load_guide(own_guide, model.policy)
    name = spec.guide or default_guide(strategy)
    if name and name not in model.guides:
        raise invalid(f"{spec.name} needs the guide {name}, which this server does not have", "strategy.guide")
    if not name and (why := missing_guide(strategy)):
        raise invalid(why, "strategy.guide")
    return model.guides[name] if name else None


def _build_strategy(spec: StrategySpec, limits: Limits) -> tuple[Any, str]:
    """Only ponder's own strategies: a name from a request never imports code."""
    table = {**STRATEGIES, **PRESETS}
    if spec.name not in table:
        raise invalid(f"no strategy named {spec.name[:100]!r}; known: {', '.join(table)}", "strategy",
                      "unknown_strategy")  # fmt: skip
    kind: Any
    kind, guide = unpack_preset(table[spec.name])
    strategy: Any = kind() if isinstance(kind, type) else kind
    assert is_dataclass(strategy)
    known = {f.name: getattr(strategy, f.name) for f in fields(strategy) if f.init}
    changes = {}
    for name, value in spec.settings.items():
        if name not in known or name in ("sampling", "prompt"):
            takes = ", ".join(n for n in known if n not in ("sampling", "prompt"))
            raise invalid(f"{spec.name} has no setting {name[:100]!r}; it has {takes}", f"strategy.{name[:100]}",
                          "unknown_parameter")  # fmt: skip
        changes[name] = _read_setting(name, value, known[name], limits)
    return replace(strategy, **changes), guide  # type: ignore[type-var]


def _read_setting(name: str, value: Any, default: Any, limits: Limits) -> Any:
    """A setting from JSON, of its default's type; cuts and selection rules by name."""
    param = f"strategy.{name}"
    if name == "cut" and isinstance(value, str):
        return AUTO_CUT if value == "auto" else parse_cut(value)
    if name == "selection" and isinstance(value, str):
        if value not in SELECTION_RULES:
            raise invalid(f"no selection rule {value[:100]!r}; known: {', '.join(SELECTION_RULES)}", param)
        return SELECTION_RULES[value]()
    if isinstance(default, bool):
        fits = isinstance(value, bool)
    elif isinstance(default, int):
        most = limits.max_tokens if "tokens" in name else limits.max_count
        fits = isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= most
    elif isinstance(default, float):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        fits = isinstance(default, str | None) and isinstance(value, str) and len(value) <= 1000
    if not fits:
        raise invalid(f"{param} is {value!r:.100}, which cannot be its value; the usual one is {default!r:.100}", param)
    return value


def read_strategy(value: Any) -> StrategySpec | None:
    """The field `strategy` of a request: a name, or an object with a name and settings."""
    if value is None:
        return None
    if isinstance(value, str):
        return StrategySpec(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise invalid("strategy must be a name, or an object with a name and the strategy's settings", "strategy")
    guide = value.get("guide") or ""
    if not isinstance(guide, str):
        raise invalid("strategy.guide must be the name of a guide", "strategy.guide")
    return StrategySpec(value["name"], {k: v for k, v in value.items() if k not in ("name", "guide")}, guide)
