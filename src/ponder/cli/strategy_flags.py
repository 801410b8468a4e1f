"""A strategy from flags: its name or a preset's, an effort, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.cli import flags
from ponder.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from ponder.protocols import Strategy
    from ponder.reason.budget import Budget


def strategy_from_flags(
    name: str | None,
    effort: str | None = None,
    *,
    n: int | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    settings: Mapping[str, str] | None = None,
    default_name: str = "majority-vote",
    sampling_defaults: Mapping[str, float] | None = None,
) -> tuple[Strategy, str, Budget | None]:
    """The strategy, its own guide if it has one, and the effort's budget.

    Flags override the effort's bounds, and those the defaults. `sampling_defaults`: how a command samples where
    nothing else says it (max_tokens, temperature). Flags that the strategy has no use for are refused.
    """
    from ponder import registry
    from ponder.reason.effort import get_effort
    from ponder.reason.presets import PRESETS, unpack_preset
    from ponder.reason.strategies import STRATEGIES
    from ponder.reason.strategy_limits import COUNT_FIELDS, has_field, with_effort_count, with_limits

    level = get_effort(effort) if effort else None
    name = name or (level.strategy if level else default_name)
    kind, guide = unpack_preset(registry.lookup("strategy", name, {**STRATEGIES, **PRESETS}))
    settings = dict(settings or {})
    cut = settings.pop("cut", None)
    if (rule := settings.pop("selection", None)) is not None:
        kind = _with_selection(kind, name, rule)
    built = flags.build_with_settings("strategy", kind, settings, "strategy")
    if not callable(built) or not is_dataclass(built):
        raise UsageError(f"{name} is no strategy: it must be a dataclass that is called with a trace and a policy")
    given_names = {name.partition(".")[0] for name in settings}
    count = n if n is not None else level.answers if level and not given_names & set(COUNT_FIELDS) else None
    sampling_defaults = sampling_defaults or {}
    token_limit = (
        max_tokens
        if max_tokens is not None
        else level.max_answer_tokens
        if level
        else sampling_defaults.get("max_tokens")
    )
    sampling_temperature = temperature if temperature is not None else sampling_defaults.get("temperature")
    if n is not None and not any(has_field(built, c) for c in COUNT_FIELDS) and n != 1:
        raise UsageError(f"{name} takes no --n: its settings are {', '.join(f.name for f in fields(built))}")
    strategy: Any = _with_cut(built, name, cut)
    if n is None and count is not None:
        strategy = with_effort_count(strategy, count, given_names)
    _refuse_unused_sampling(strategy, name, {"max_tokens": max_tokens, "temperature": temperature})
    limits = {"max_tokens": None if token_limit is None else int(token_limit), "temperature": sampling_temperature}
    strategy = with_limits(strategy, count, {name: value for name, value in limits.items() if value is not None})
    return strategy, guide, level.budget if level else None


def _refuse_unused_sampling(strategy: Any, name: str, given: Mapping[str, float | None]) -> None:
    """Refuse how to sample where the strategy does not sample so."""
    unused = unused_settings(strategy)
    for setting, value in given.items():
        if value is None:
            continue
        if not _has_sampling(strategy):
            raise UsageError(f"{name} takes no --{_flag_name(setting)}: it says itself how it samples")
        if setting in unused:
            raise UsageError(f"{name} takes no --{_flag_name(setting)}: {unused[setting]}")


def _has_sampling(strategy: Any) -> bool:
    from ponder.reason.inner_strategies import inner_strategies
    from ponder.reason.strategy_limits import has_field

    return has_field(strategy, "sampling") or any(map(_has_sampling, inner_strategies(strategy).values()))


def _flag_name(name: str) -> str:
    return name.replace("_", "-")


def unused_settings(strategy: Any) -> dict[str, str]:
    """What a strategy has no use for as it stands, and why: settings, and `guide` where it would not ask one."""
    return strategy.unused() if hasattr(strategy, "unused") else {}


def refuse_unused_guide(strategy: Any, guide: str) -> None:
    """Refuse a guide that nobody would ask."""
    if guide and (why := unused_settings(strategy).get("guide")):
        raise UsageError(f"--guide {guide} changes nothing: {why}")


def _with_cut(strategy: Any, name: str, cut: str | None) -> Any:
    """Where its steps end: `--strategy.cut sentence`, `tokens:32`, `mark:TEXT`, `token:TEXT` or `auto`."""
    from ponder.reason.operators.auto_cut import AUTO_CUT
    from ponder.reason.operators.cut import parse_cut
    from ponder.reason.strategy_limits import has_field

    if cut is None:
        return strategy
    if why := unused_settings(strategy).get("cut"):
        raise UsageError(f"{name} takes no cut: {why}")
    if not has_field(strategy, "cut"):
        raise UsageError(f"{name} takes no cut: its settings are {', '.join(f.name for f in fields(strategy))}")
    return replace(strategy, cut=AUTO_CUT if cut == "auto" else parse_cut(cut))


def _with_selection(kind: Any, name: str, rule: str) -> Any:
    """Which child a tree search visits next: `--strategy.selection uct`, `puct` or `x1`, with their papers' numbers."""
    from ponder.reason.operators.tree_policy import SELECTION_RULES
    from ponder.reason.strategy_limits import has_field

    strategy = kind() if isinstance(kind, type) else kind
    if not (is_dataclass(strategy) and has_field(strategy, "selection")):
        raise UsageError(f"{name} takes no selection rule: that is for mcts")
    if rule not in SELECTION_RULES:
        raise UnknownName("selection rule", rule, SELECTION_RULES)
    return replace(strategy, selection=SELECTION_RULES[rule]())  # type: ignore[type-var]


def budget_from_flags(
    level: Budget | None, settings: Mapping[str, str], prices: Path | None = None, model: str = ""
) -> Budget | None:
    """The effort's bound on tokens, changed by the flags; and the price of its tokens, where there is a table."""
    from ponder import registry
    from ponder.reason.budget import Budget
    from ponder.reason.price import Price, read_prices

    if level is None and not settings and prices is None:
        return None
    price = registry.lookup("price", model, read_prices(prices)) if prices is not None else Price()
    return flags.build_with_settings("budget", Budget(level.tokens if level else None, price=price), settings, "budget")
