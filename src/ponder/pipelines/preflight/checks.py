"""The preflight checks: each is a function of the preflight data that reports what it measured, and advice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ponder.errors import NoGoldAnswer, PonderError
from ponder.pictures.message_parts import content_text
from ponder.pipelines.preflight.gradient_probe import UNLIMITED_TOKENS, PreflightData, TrainedSequence, gradient_norms
from ponder.pipelines.training.gold_episodes import episode_score, play_episode
from ponder.protocols import Task
from ponder.tasks.environments.episode_reward import EpisodeReward
from ponder.tasks.reward_functions import NOTHING_RETURNED
from ponder.train.learner import Learner, OutOfMemory
from ponder.types import Problem, Score, Step, Trace, ids, prompt_trace

MAX_LOGPROB_GAP_NATS = 1e-3  # the largest difference of two computations of a log-probability in float32
MAX_MEAN_LOGPROB_GAP_NATS = 0.1  # the mean one in half precision; rounding alone makes 0.02 in a 135 M model
MAX_MEAN_LOGPROB_GAP_FP8_NATS = 0.3  # with FP8 products; like the limit below chosen by figures of a CPU, not of a GPU
MAX_GRADIENT_DIFFERENCE_FP32 = (
    5e-4  # relative difference of two gradients; 1.5e-4 by rounding in a 135 M model (Neoverse-N1)
)
MAX_GRADIENT_DIFFERENCE_HALF = 0.2  # the same in half precision, where 0.03 is usual
MAX_GRADIENT_DIFFERENCE_FP8 = 0.5  # the same with FP8 products, whose scales depend on the micro-batch
MIN_GRADIENT_SHARE = 0.01  # of the credit's sum: the scale for gradients that nearly cancel
REFERENCE_SHIFT_NATS = 0.5  # between policy and reference when the pull of the KL term is measured
MAX_KL_PULL_ERROR = 1e-3  # relative difference between the measured pull and the formula's, both in float32
MAX_COMPILED_DIFFERENCE = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.2}  # of the gradient's norm
NO_ANSWER = "I do not know."
NOT_FINITE = "numbers that are not finite, see there"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check. `passed` is None if it does not apply, or if a failure is expected; `value` says which."""

    name: str
    passed: bool | None
    value: str
    advice: str


class PreflightError(PonderError):
    """Lists each failed check: what was measured, why it matters and what to do."""

    def __init__(self, results: Sequence[Check]) -> None:
        self.checks = list(results)
        failed = [c for c in results if c.passed is False]
        lines = [f"  {c.name}: {c.value}. {c.advice}" for c in failed]
        summary = f"{len(failed)} of {len(results)} checks before the run failed, so nothing was trained:"
        super().__init__("\n".join([summary, *lines]))


def raise_if_failed(results: list[Check]) -> list[Check]:
    if any(c.passed is False for c in results):
        raise PreflightError(results)
    return results


LOGPROBS_ADVICE = (
    "What is trained must be what was sampled, or every ratio is wrong from the first step: use one temperature on "
    "both sides; if --dtype float32 closes the gap, it is rounding"
)


def _is_exact(learner: Learner) -> bool:
    return learner.net.dtype == torch.float32 and not learner.fp8


def _max_logprob_gap(learner: Learner) -> float:
    """The largest difference in float32, else the mean one."""
    if learner.fp8:
        return MAX_MEAN_LOGPROB_GAP_FP8_NATS
    return MAX_LOGPROB_GAP_NATS if _is_exact(learner) else MAX_MEAN_LOGPROB_GAP_NATS


def check_logprobs(e: PreflightData, truncated: bool) -> Check:
    """The learner's log-probabilities of sampled tokens are the sampler's."""
    pairs = zip(e.credited(), e.shared_prompt.sequences, strict=False)
    sampled = [(t, np.flatnonzero(~np.isnan(t.sampled_S[: e.sampled_lengths[id(step)]]))) for (_, step), t in pairs]
    gaps = np.abs(np.concatenate([t.logprobs_S[at] - t.sampled_S[at] for t, at in sampled]))
    summary = f"mean {gaps.mean():.1e}, largest {gaps.max():.1e} nats"
    if truncated:
        return Check(
            "log-probabilities", None, f"{summary}: expected, top_p, top_k and min_p renormalise", LOGPROBS_ADVICE
        )
    if not np.isfinite(gaps).all():
        return Check("log-probabilities", None, NOT_FINITE, LOGPROBS_ADVICE)
    exact, most = _is_exact(e.learner), _max_logprob_gap(e.learner)
    passed = (gaps.max() if exact else gaps.mean()) <= most
    allowed = f"{most:g}" if exact else f"{most:g} in the mean"
    return Check("log-probabilities", bool(passed), f"{summary} (at most {allowed})", LOGPROBS_ADVICE)


CREDIT_ADVICE = (
    "A group with a right and a wrong answer must have something to learn from: check the objective's credit(), which "
    "writes an advantage on each step that the policy wrote"
)


def check_credit(e: PreflightData) -> Check:
    """A group with correct and wrong completions has a gradient."""
    count = len(e.credited())
    summary = f"{count} of {sum(len(t.steps) - 1 for t in e.traces)} completions have an advantage"
    return Check("credit", count > 0, summary, CREDIT_ADVICE)


INVARIANCE_ADVICE = (
    "Memory settings must not change what is learned: denominators count the whole step and not a micro-batch, and a "
    "shared prompt is worth its copies; check the objective's weigh() and loss(), which may read no other completion"
)


def check_gradient_invariance(e: PreflightData) -> Check:
    """The gradient does not depend on how the step is split into micro-batches and packed."""
    tolerance = MAX_GRADIENT_DIFFERENCE_FP32 if _is_exact(e.learner) else MAX_GRADIENT_DIFFERENCE_HALF
    if e.learner.fp8:
        tolerance = MAX_GRADIENT_DIFFERENCE_FP8
    scale = max(
        e.shared_prompt.norm(),
        MIN_GRADIENT_SHARE * sum(float(np.abs(t.weights_S).sum()) for t in e.shared_prompt.sequences),
        1e-30,
    )
    cut = e.shared_prompt.minus(e.microbatched).norm() / scale
    apart = 0.0 if e.unshared_prompt is None else e.shared_prompt.minus(e.unshared_prompt).norm() / scale
    if not (math.isfinite(cut) and math.isfinite(apart)):
        return Check("invariance", None, NOT_FINITE, INVARIANCE_ADVICE)
    unshared = "" if e.unshared_prompt is None else f", {apart:.0e} with copied prompts"
    summary = f"the gradient differs by {cut:.0e} in micro-batches{unshared} (at most {tolerance:g} of its norm)"
    return Check("invariance", max(cut, apart) <= tolerance, summary, INVARIANCE_ADVICE)


KL_ADVICE = (
    "Without a live term nothing holds the policy near the reference: the loss must carry the gradient of the policy's "
    "log-probability, and the reference must be read at the same temperature; or leave it out (--beta 0)"
)


def check_kl_term(e: PreflightData, own: bool) -> Check:
    """The reference starts equal to the policy, and the loss pulls the two together as its formula says.

    With the reference d nats above the policy at every token, descending k3 raises the log-likelihood as descending
    beta (e^d - 1) times the negative log-likelihood would; descending k2, beta d times. `own`: there is no teacher.
    """
    term = e.learner.objective.kl
    if term is None:
        return Check("KL", None, "there is no KL term", KL_ADVICE)
    summary = []
    if own:
        pairs = zip(e.credited(), e.shared_prompt.sequences, strict=False)
        parts = [t.logprobs_S - s.notes["reference"][: len(t.logprobs_S)] for (_, s), t in pairs]
        gap = float(np.abs(np.concatenate(parts)).mean())
        if gap > _max_logprob_gap(e.learner):
            return Check("KL", False, f"the reference begins {gap:.1e} nats per token from the policy", KL_ADVICE)
        summary.append(f"the reference begins {gap:.0e} nats away" if gap else "the reference begins as the policy")
    if term.where == "reward":
        return Check("KL", True if own else None, "; ".join([*summary, "it enters the reward"]), KL_ADVICE)
    pull = _measure_kl_pull(e)
    expected = term.beta * (2 * REFERENCE_SHIFT_NATS if term.estimator == "k2" else 2 * math.sinh(REFERENCE_SHIFT_NATS))
    if not math.isfinite(pull):
        return Check("KL", None, NOT_FINITE, KL_ADVICE)
    summary.append(f"its pull is {pull:.3g} (by its formula {expected:.3g})")
    return Check("KL", abs(pull - expected) <= MAX_KL_PULL_ERROR * expected, "; ".join(summary), KL_ADVICE)


def _measure_kl_pull(e: PreflightData) -> float:
    """How much more the loss raises a token's log-probability with a reference SHIFT nats above the policy than with
    one as far below, over the token's weight. No token has an advantage, so that the KL term is all there is. It is the
    loss's own gradient, in float32 whatever the network's type.
    """
    pull = weights = 0.0
    for batch, tokens in e.learner.loss_inputs(e.traces, UNLIMITED_TOKENS):
        logprobs_N = tokens.logprobs_N.detach().clone().requires_grad_()
        own_N, none_N = logprobs_N.detach(), torch.zeros_like(logprobs_N)
        for sign in (1, -1):
            notes = tokens.notes | {"reference": own_N + sign * REFERENCE_SHIFT_NATS}
            moved = replace(tokens, advantage_N=none_N, logprobs_N=logprobs_N, old_N=own_N, notes=notes)
            loss_N, _ = e.learner.objective.loss(moved)
            (grad_N,) = torch.autograd.grad((loss_N * batch.weight_N).sum(), logprobs_N, allow_unused=True)
            pull -= sign * float((grad_N * batch.weight_N).sum()) if grad_N is not None else 0.0
        weights += float((batch.weight_N * batch.weight_N).sum())
    return pull / max(weights, 1e-30)


GRADIENT_ADVICE = (
    "What gets no gradient never learns, and nothing else would say so: another release of torch compiles otherwise; "
    "report it with the versions that `ponder doctor` shows"
)


def check_gradient(learner: Learner, traces: Sequence[Trace], name: str = "gradient") -> Check:
    """Every parameter that learns has a gradient; with compiled blocks it is that of the plain blocks."""
    learning = learner.master_weights.params
    try:
        plain = gradient_norms(learner, traces, compiled=False)
        norms = gradient_norms(learner, traces, compiled=True) if learner.compiled else plain
    except OutOfMemory as why:
        return Check(name, None, f"not compared, for lack of memory ({why})", GRADIENT_ADVICE)
    if lacking := [n for n in learning if n not in norms]:
        has = f"{len(lacking)} of {len(learning)} parameters that should learn have no gradient: {lacking[0]}"
        return Check(
            name, False, has + ("" if lacking[0] not in plain else ", which has one uncompiled"), GRADIENT_ADVICE
        )
    norm, expected = (math.hypot(*each.values()) for each in (norms, plain))
    if not (math.isfinite(norm) and math.isfinite(expected)):
        return Check(name, None, NOT_FINITE, GRADIENT_ADVICE)
    summary = f"all {len(learning)} parameters that learn have a gradient, of norm {norm:.3g}"
    if not learner.compiled:
        return Check(name, True, summary, GRADIENT_ADVICE)
    difference = math.hypot(*(norms[n] - plain[n] for n in learning)) / max(expected, 1e-30)
    allowed = MAX_GRADIENT_DIFFERENCE_FP8 if learner.fp8 else MAX_COMPILED_DIFFERENCE[learner.net.dtype]
    summary += f"; compiled it differs by {difference:.0e} (at most {allowed:g})"
    return Check(name, difference <= allowed, summary, GRADIENT_ADVICE)


PROMPT_ADVICE = (
    "The policy did not write the prompt, and would learn to: only a completion's own tokens may be targets; check who "
    "gives credit to the first step"
)


def check_prompt_mask(e: PreflightData) -> Check:
    """Only the completions' own tokens are trained."""
    pairs = list(zip(e.credited(), e.shared_prompt.sequences, strict=False))
    foreign = sum(_count_prompt_targets(step.token_ids, t) for (_, step), t in pairs)
    foreign += sum(len(t.targets_S) for t in e.shared_prompt.sequences[len(pairs) :])
    own = sum(len(t.targets_S) for t in e.shared_prompt.sequences) - foreign
    prompt_tokens = sum(len(t.steps[0].token_ids) for t in e.traces)
    summary = f"{own} tokens of completions are trained, and {foreign or 'none'} of the {prompt_tokens} before them"
    return Check("prompt", not foreign, summary, PROMPT_ADVICE)


def _count_prompt_targets(tokens: NDArray[np.int32], t: TrainedSequence) -> int:
    """The number of targets that are not the completion's own tokens. The completion may be cut at either end."""
    size = len(t.targets_S)
    parts = (tokens[:size], tokens[len(tokens) - size :]) if size <= len(tokens) else ()
    return 0 if any(np.array_equal(t.targets_S, p) for p in parts) else max(1, size - len(tokens))


EOS_ADVICE = (
    "A policy that is never trained on its end does not learn to stop: mask by length, never by a padding token that "
    "is also EOS, and add no second one; check the tokenizer's eos_token"
)


def check_eos(e: PreflightData, stops: bool) -> Check:
    """The EOS of an ended completion is a target, once. `stops`: the job ends answers with stop strings."""
    eos = sorted(e.policy.eos)
    if not eos:
        summary = "the tokenizer names no EOS token" + ", but stop strings end an answer" * stops
        return Check("EOS", None if stops else False, summary, EOS_ADVICE)
    steps = [step for _, step in e.credited() if step.token_ids[-1] in eos]
    counts = [
        int(np.isin(t.targets_S, eos)[t.weights_S > 0].sum())
        for (_, step), t in zip(e.credited(), e.shared_prompt.sequences, strict=False)
        if step.token_ids[-1] in eos
    ]
    right = sum(c == 1 for c in counts)
    name = e.policy.tokenizer.token(int(steps[0].token_ids[-1])) if steps else e.policy.tokenizer.token(eos[0])
    pad = ", which is also the padding" if e.policy.tokenizer.pad in eos else ""
    summary = f"{name}{pad} is a target once in {right} of {len(steps)} ended completions"
    return Check("EOS", right == len(steps) > 0, summary, EOS_ADVICE)


TEMPLATE_ADVICE = (
    "The model would answer another question than the one that is scored: look at the prompt (`ponder plan` shows "
    "it), and give another --template (plain, qa, r1 or jinja2 text)"
)


def check_template(e: PreflightData) -> Check:
    """A prompt has at most one BOS token and contains all messages."""
    tokenizer = e.policy.tokenizer
    for problem in e.problems:
        tokens = e.policy.encode(problem.messages)
        if len(tokens) > 1 and tokens[0] == tokens[1] == tokenizer.bos:
            return Check(
                "template", False, f"the prompt begins with {tokenizer.token(tokenizer.bos)} twice", TEMPLATE_ADVICE
            )
        text = _without_whitespace(tokenizer.decode(tokens, keep_special=True))
        for message in problem.messages:
            content = content_text(message["content"])
            if message["role"] not in ("user", "system"):
                continue  # templates may shorten what the assistant said before
            again = tokenizer.decode(tokenizer.encode(content, add_special_tokens=False), keep_special=True)
            if not any(
                _without_whitespace(c) in text for c in (content, again)
            ):  # some tokenizers normalise what they read
                role = message["role"]
                return Check("template", False, f"the prompt lacks the {role}'s {content[:40]!r}", TEMPLATE_ADVICE)
    return Check("template", True, "the prompt has one beginning and all that was asked", TEMPLATE_ADVICE)


def _without_whitespace(text: str) -> str:
    return "".join(text.split())


VERIFIER_ADVICE = (
    "The reward is all that is learned from: the task's gold(problem) must score more than a wrong answer and than "
    "none; check the form in which the verifier expects answers (--no-preflight, where any answer may be right)"
)


async def check_verifier(e: PreflightData, task: Task) -> Check:
    """The task's gold answer is decided, and scores more than a wrong and than an empty one."""
    if isinstance(task.verifier, EpisodeReward):
        return await _check_environment(e, task)
    summary = []
    for problem in e.problems:
        try:
            gold = task.gold(problem)
        except (NoGoldAnswer, NotImplementedError):
            return await _check_without_gold(task, problem)
        except Exception as why:  # a task of the user's own
            return Check("grader", False, f"gold({problem.id}) failed: {type(why).__name__}: {why}", VERIFIER_ADVICE)
        texts = {"gold": gold, "wrong": _wrong_answer(task, problem), "empty": ""}
        scores = {name: await _score(task, problem, text) for name, text in texts.items()}
        values = {name: s.value for name, s in scores.items()}
        good, wrong, empty = values["gold"], values["wrong"], values["empty"]
        for name, value in (("gold", good), ("wrong", wrong)):
            if value is None or not math.isfinite(value):
                text = f"the {name} answer {texts[name][:40]!r} is undecided: {scores[name].reason}"
                return Check("grader", False, text, VERIFIER_ADVICE)
        assert good is not None and wrong is not None
        summary.append(", ".join(f"{n} {'undecided' if v is None else f'{v:g}'}" for n, v in values.items()))
        if not good > wrong or (empty is not None and not good > empty):
            return Check("grader", False, f"{summary[-1]} for {gold[:40]!r} ({scores['gold'].reason})", VERIFIER_ADVICE)
    return Check("grader", True, "; ".join(dict.fromkeys(summary)), VERIFIER_ADVICE)


ENVIRONMENT_ADVICE = (
    "The reward is all that is learned from: an episode of the environment's gold() must earn more than one that says "
    "the same wrong text in every turn (--no-preflight, where there is nothing to say wrong)"
)


async def _check_environment(e: PreflightData, task: Task) -> Check:
    """Gold actions earn more than a text that is no action."""
    summary = []
    for problem in e.problems:
        scores = {}
        try:
            for name, text in (("gold", None), ("wrong", NO_ANSWER)):
                scores[name] = episode_score(
                    await play_episode(e.policy, problem, task.verifier, text), task.verifier.name
                )
        except NoGoldAnswer as why:
            return Check("grader", None, f"{why}; so nothing shows that the environment rewards a good episode", "")
        except PonderError as why:
            return Check("grader", False, str(why), ENVIRONMENT_ADVICE)
        for name, score in scores.items():
            if score.value is None:
                return Check("grader", False, f"the {name} episode is undecided: {score.reason}", ENVIRONMENT_ADVICE)
        good, wrong = scores["gold"].value, scores["wrong"].value
        assert good is not None and wrong is not None
        summary.append(f"gold {good:g}, wrong {wrong:g}")
        if not good > wrong:
            return Check("grader", False, f"{summary[-1]} ({scores['gold'].reason})", ENVIRONMENT_ADVICE)
    return Check("grader", True, "; ".join(dict.fromkeys(summary)), ENVIRONMENT_ADVICE)


async def _check_without_gold(task: Task, problem: Problem) -> Check:
    """Without a gold answer: the reward must work on a text and on none, whatever it says of them."""
    texts = {"a text": NO_ANSWER, "an empty answer": ""}
    scores = {name: await _score(task, problem, text) for name, text in texts.items()}
    for name, score in scores.items():
        if score.value is None and score.reason != NOTHING_RETURNED:
            return Check("grader", False, f"{name} is undecided: {score.reason}", VERIFIER_ADVICE)
    values = ", ".join(f"{n} {'undecided' if s.value is None else f'{s.value:g}'}" for n, s in scores.items())
    return Check("grader", None, f"the task has no gold answers to compare with; {values}", VERIFIER_ADVICE)


def _wrong_answer(task: Task, problem: Problem) -> str:
    """The answer of another problem, if one differs."""
    others = (task.train[i] for i in range(min(20, len(task.train))))
    return next((task.gold(p) for p in others if p.answer != problem.answer), NO_ANSWER)


async def _score(task: Task, problem: Problem, text: str) -> Score:
    trace = prompt_trace(problem, ids([]))
    try:
        (score,) = await task.verifier(trace, [trace.add(Step(0, text, ids([]), stop="eos"))])
    except Exception as why:  # a verifier of the user's own
        return Score(None, f"the verifier raised {type(why).__name__}: {why}")
    return score


FINITE_ADVICE = (
    "One number that is not finite spoils every weight: look for damaged weights, --dtype float32 or bfloat16 in place "
    "of float16, and an objective that divides by or takes the logarithm of 0"
)


def check_finite(e: PreflightData) -> Check:
    summary = f"loss {e.shared_prompt.loss:.3g}, gradient norm {e.shared_prompt.norm():.3g}"
    return Check(
        "finite", math.isfinite(e.shared_prompt.loss) and math.isfinite(e.shared_prompt.norm()), summary, FINITE_ADVICE
    )
