"""Diagnose a training run from its metrics: each finding names a problem and the setting to change.

No single step raises a finding. A metric's level is the smaller (or larger) of the window's trimmed mean and the median
of the last three steps, so that neither a spike nor a problem that is already going away counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

MetricRows = Sequence[Mapping[str, float]]

START_STEPS = 10  # steps that define the level at the start
LOOKBACK_STEPS = 50  # steps looked back at; of a longer run, only these and the first START_STEPS are read
WINDOW_STEPS = 10  # steps that define the level now
MIN_VALUES = 6  # with fewer values in the window there is no finding

ZERO_STD_SHARE = 0.6  # share of groups without a gradient: most of the sampling is wasted
ZERO_STD_SHARE_SEVERE = 0.95  # next to nothing is left to learn from
ONE_SIDED_SHARE = 0.7  # share of the dead groups that must lie on one side to call the problems too hard or too easy
# Mean rewards that decide between too hard and too easy where groups were not counted, for rewards in [0, 1].
LOW_REWARD, HIGH_REWARD = 0.2, 0.8
# share of truncated answers: a quarter of the rewards measure the token budget, not the reasoning
TRUNCATED_SHARE = 0.25
NO_EOS_SHARE = 0.99  # no answer ends by itself: the model does not write EOS
UNDECIDED_SHARE = 0.05  # share of answers without a verdict; a working grader leaves fewer
LOGP_DIFFERENCE = 0.05  # nats per token; rounding in bfloat16 makes some 0.01, another distribution much more
LOGP_DIFFERENCE_SEVERE = 0.5  # the samples do not come from the policy
ESS_SHARE = 0.5  # effective sample size as a share of the tokens: importance weights waste the other half
ESS_SHARE_SEVERE = 0.1  # the gradient is that of a few tokens
CLIPPED_SHARE = 0.3  # share of tokens beyond the clip; GSPO alone, which clips most, reports some 0.15
MEAN_LOG_RATIO = 0.2  # mean |log ratio| within a step: the usual clip, so that the average token is at its edge
ENTROPY_COLLAPSE_SHARE = 0.1  # entropy as a share of its start; a tenth leaves hardly a choice in a group
ENTROPY_COLLAPSE_NATS = 0.1  # nats per token; above it there is still something to choose
ENTROPY_EXPLOSION_FACTOR = 3.0  # times the entropy of the start, and at least
ENTROPY_EXPLOSION_NATS = 2.0  # nats per token: fluent text has less
GRAD_NORM_FACTOR = 10.0  # times the usual gradient norm, and at least
MIN_GRAD_NORM = 1.0  # the norm to which AdamW clips by default: below it nothing is cut
KL_NATS = 0.5  # nats per token to the reference; a policy that stays close keeps below about 0.1
MIN_SKIPPED_STEPS = 2  # steps of the window; a single overflow can happen by chance
REWARD_FALL_ERRORS = 3.0  # standard errors by which the later half must be worse, and at least
REWARD_FALL_SHARE = 0.1  # as a share of the earlier half
REWARD_GAIN_ERRORS = 1.0  # standard errors by which the later half must be better to count as movement


@dataclass(frozen=True, slots=True)
class TrainingFinding:
    """A problem, what to do about it, and its severity: 3 the run is broken, 2 it learns badly, 1 worth knowing."""

    name: str
    text: str
    severity: int


def diagnose(rows: MetricRows) -> list[TrainingFinding]:
    """The findings of a run now, most severe first. `rows`: its metrics, one mapping per step; any may be missing."""
    findings = [finding for check in CHECKS for finding in check(rows)]
    return sorted(findings, key=lambda f: -f.severity)


def check_skipped_steps(rows: MetricRows) -> Iterator[TrainingFinding]:
    """Steps whose loss or gradient was not finite."""
    recent = rows[-WINDOW_STEPS:]
    count = sum(row.get("skipped_steps", 0.0) > 0 for row in recent)
    if count >= MIN_SKIPPED_STEPS:
        text = f"{count} of the last {len(recent)} steps skipped: loss or gradient was not finite; lower --lr"
        yield TrainingFinding("skipped", text, 3)


def check_undecided(rows: MetricRows) -> Iterator[TrainingFinding]:
    """Answers that the verifier could not grade."""
    share = _lower_level(rows, "frac_undecided")
    if share is not None and share >= UNDECIDED_SHARE:
        text = f"{_percent(share)} of answers undecided: the grader fails; `ponder traces` shows the reasons"
        yield TrainingFinding("undecided", text, 3 if share >= 0.5 else 2)


def check_truncated(rows: MetricRows) -> Iterator[TrainingFinding]:
    """Completions cut off at the token limit."""
    share = _lower_level(rows, "completions/clipped_ratio")
    longest = max(_window_values(rows, "completions/max_length"), default=0.0)
    budget = f"raise --max-tokens (now {longest:.0f})" if longest else "raise --max-tokens"
    if share is None or share < TRUNCATED_SHARE:
        return
    if share >= NO_EOS_SHARE:
        yield TrainingFinding(
            "no EOS", f"no completion ends with EOS: check the chat template (--template), or {budget}", 3
        )
    else:
        yield TrainingFinding("truncated", f"{_percent(share)} truncated: {budget}", 2)


def check_zero_std_groups(rows: MetricRows) -> Iterator[TrainingFinding]:
    """Groups with equal rewards, which have no gradient: the problems are too hard or too easy."""
    share = _lower_level(rows, "frac_reward_zero_std")
    if share is None or share < ZERO_STD_SHARE:
        return
    summary, side = f"{_percent(share)} of groups have equal rewards", _zero_std_side(rows)
    if side == "failed":
        advice = "use easier ones, --curriculum frontier or a larger --group-size"
        yield TrainingFinding(
            "too hard",
            f"{summary}, mostly the lowest: problems too hard; {advice}",
            3 if share >= ZERO_STD_SHARE_SEVERE else 2,
        )
    elif side == "solved":
        advice = "use harder ones or --curriculum frontier"
        yield TrainingFinding("too easy", f"{summary}, mostly the best: problems too easy; {advice}", 1)
    else:
        yield TrainingFinding("dead groups", f"{summary}: try --curriculum frontier or more samples (--group-size)", 1)


def check_logp_difference(rows: MetricRows) -> Iterator[TrainingFinding]:
    """Log-probabilities of sampler and learner that differ. Those of old samples do: see `check_old_samples`."""
    if _lower_level(rows, "staleness/max"):
        return
    gap = _lower_level(rows, "sampling/sampling_logp_difference/mean")
    if gap is not None and gap >= LOGP_DIFFERENCE:
        text = f"ratio drifts: sampler and learner differ by {gap:.2f} nats per token"
        yield TrainingFinding(
            "drift", f"{text}; no top-p or top-k, or --dtype float32", 3 if gap >= LOGP_DIFFERENCE_SEVERE else 2
        )


def check_old_samples(rows: MetricRows) -> Iterator[TrainingFinding]:
    """Samples of a policy from which the present one has moved away."""
    share, age = _upper_level(rows, "rollout_correction/ess"), _lower_level(rows, "staleness/mean")
    if share is not None and age and share < ESS_SHARE:
        text = f"samples are {age:.1f} steps old and count for {_percent(share)} of their tokens"
        yield TrainingFinding("old samples", f"{text}; lower --staleness or --lr", 3 if share < ESS_SHARE_SEVERE else 2)


def check_step_size(rows: MetricRows) -> Iterator[TrainingFinding]:
    """Optimizer steps that move the policy beyond the clip range."""
    clipped, moved = _lower_level(rows, "clip_ratio/region_mean"), _lower_level(rows, "ratio/mean_abs")
    if clipped is not None and clipped >= CLIPPED_SHARE:
        text = f"{_percent(clipped)} of tokens clipped: lower --lr, or fewer --epochs-per-batch and --minibatches"
        yield TrainingFinding("overstepping", text, 2)
    elif moved is not None and moved >= MEAN_LOG_RATIO:
        text = f"the policy moves {moved:.2f} nats per token within a step: lower --lr, or fewer --epochs-per-batch"
        yield TrainingFinding("overstepping", text, 2)


def check_entropy(rows: MetricRows) -> Iterator[TrainingFinding]:
    """Entropy that collapses or explodes."""
    if not rows or "reward" not in rows[-1]:  # imitation is meant to lower it
        return
    start = _start_level(rows, "entropy")
    low, high = _upper_level(rows, "entropy"), _lower_level(rows, "entropy")
    if start is None or low is None or high is None or start <= 0:
        return
    collapsed = low <= ENTROPY_COLLAPSE_SHARE * start and low <= ENTROPY_COLLAPSE_NATS
    if collapsed and _zero_std_side(rows) != "solved":  # a policy that solves everything may have low entropy
        text = f"entropy collapses: {low:.2g} nats, {_percent(low / start)} of what it was at the start"
        yield TrainingFinding(
            "entropy collapse",
            f"{text}; --algorithm.clip_high 0.28 or --algorithm.entropy_coef 0.001, or lower --lr",
            2,
        )
    if high >= max(ENTROPY_EXPLOSION_FACTOR * start, ENTROPY_EXPLOSION_NATS):
        text = f"entropy explodes: {high:.2g} nats, {high / start:.0f} times the start; the model writes noise"
        yield TrainingFinding("entropy explosion", f"{text}: lower --lr or raise --beta", 3)


def check_gradient_norm(rows: MetricRows) -> Iterator[TrainingFinding]:
    """A gradient norm far above its usual level."""
    now = _lower_level(rows, "grad_norm", positive=True)  # a step without live groups has none
    usual = _finite_values(rows[-LOOKBACK_STEPS:-WINDOW_STEPS], "grad_norm", positive=True)
    if now is None or len(usual) < MIN_VALUES:
        return
    if now >= max(GRAD_NORM_FACTOR * median(usual), MIN_GRAD_NORM):
        text = f"gradient norm explodes: {now:.3g}, {now / median(usual):.0f} times the usual; lower --lr"
        yield TrainingFinding("gradient explosion", text, 3)


def check_kl(rows: MetricRows) -> Iterator[TrainingFinding]:
    """A large KL divergence to the reference."""
    kl = _lower_level(rows, "kl")
    if kl is not None and kl >= KL_NATS:
        text = f"KL to the reference grows past {KL_NATS:g} nats per token (now {kl:.2g}): raise --beta or lower --lr"
        yield TrainingFinding("KL", text, 2)


def check_reward(rows: MetricRows) -> Iterator[TrainingFinding]:
    """A reward that falls or does not rise."""
    values = _finite_values(rows[-LOOKBACK_STEPS:], "reward")
    if len(values) < LOOKBACK_STEPS or _zero_std_side(rows) == "solved":
        return
    old, new = values[: LOOKBACK_STEPS // 2], values[LOOKBACK_STEPS // 2 :]
    error = math.sqrt(variance(old) / len(old) + variance(new) / len(new))
    before, after = fmean(old), fmean(new)
    if before - after > max(REWARD_FALL_ERRORS * error, REWARD_FALL_SHARE * abs(before)):
        text = f"reward falls: {before:.2f} -> {after:.2f} in {LOOKBACK_STEPS} steps"
        text += "; lower --lr, or go back to a checkpoint"
        yield TrainingFinding("reward falls", text, 2)
    elif after - before <= REWARD_GAIN_ERRORS * error and _zero_std_side(rows) != "failed":  # else "too hard" is found
        text = f"reward has not moved in {LOOKBACK_STEPS} steps ({after:.2f}), unless the curriculum holds it there"
        yield TrainingFinding("reward stalls", f"{text}: raise --lr or change problems", 1)


# Among findings of equal severity this order holds: first what makes the metrics unreliable, then what they show.
CHECKS: tuple[Callable[[MetricRows], Iterator[TrainingFinding]], ...] = (
    check_skipped_steps, check_undecided, check_truncated, check_logp_difference, check_old_samples,
    check_gradient_norm, check_step_size, check_kl, check_zero_std_groups, check_entropy, check_reward,
)  # fmt: skip


def _zero_std_side(rows: MetricRows) -> str:
    """Where most groups have equal rewards: "failed" or "solved" if these lie on one side; else ""."""
    dead = _lower_level(rows, "frac_reward_zero_std")
    if dead is None or dead < ZERO_STD_SHARE:
        return ""
    failed, solved = (_lower_level(rows, f"frac_groups_{side}") for side in ("failed", "solved"))
    if failed is not None and solved is not None:
        return "failed" if failed >= ONE_SIDED_SHARE * dead else "solved" if solved >= ONE_SIDED_SHARE * dead else ""
    mean = _lower_level(rows, "reward")
    if mean is None or not 0 <= mean <= 1:
        return ""
    return "failed" if mean <= LOW_REWARD else "solved" if mean >= HIGH_REWARD else ""


def _finite_values(rows: MetricRows, name: str, positive: bool = False) -> list[float]:
    values = [row[name] for row in rows if name in row and math.isfinite(row[name])]
    return [v for v in values if v > 0] if positive else values


def _window_values(rows: MetricRows, name: str, positive: bool = False) -> list[float]:
    return _finite_values(rows[-WINDOW_STEPS:], name, positive)


def _lower_level(rows: MetricRows, name: str, positive: bool = False) -> float | None:
    """The smaller of trimmed mean and recent median; None where too few steps have the metric."""
    values = _window_values(rows, name, positive)
    return None if len(values) < MIN_VALUES else min(_trimmed_mean(values), median(values[-3:]))


def _upper_level(rows: MetricRows, name: str) -> float | None:
    """The larger of trimmed mean and recent median; None where too few steps have the metric."""
    values = _window_values(rows, name)
    return None if len(values) < MIN_VALUES else max(_trimmed_mean(values), median(values[-3:]))


def _start_level(rows: MetricRows, name: str) -> float | None:
    """The level of the first steps; None until these have passed out of the window."""
    values = _finite_values(rows[:START_STEPS], name)
    return None if len(rows) < START_STEPS + WINDOW_STEPS or len(values) < MIN_VALUES else _trimmed_mean(values)


def _trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the two extremes."""
    return fmean(sorted(values)[1:-1])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
