"""Guides by name: the scorers that lead a search."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, Literal, cast

from ponder.errors import ModelError, UnknownName, UsageError
from ponder.models.model_paths import OPENAI_PREFIX, find_model, split_library_prefix
from ponder.protocols import Policy, Scorer, Task
from ponder.reason.operators.evaluate import REDUCTIONS
from ponder.reason.operators.self_evaluate import PTrue
from ponder.reason.scorers import Likelihood, OutcomeAndValue, as_scorer
from ponder.registry import import_object

ORACLE = "oracle"
KNOWN_GUIDES = (
    "likelihood",
    "p_true",
    ORACLE,
    "oracle+GUIDE",
    "reward:FOLDER",
    "reward:URL",
    "logprob:MODEL",
    "likelihood:MODEL",
    "genrm:MODEL",
    "module:object",
)
READINGS = ("ratio", "logprob", "likelihood")  # of an implicit reward model
_REWARD_PATTERN = re.compile(rf"reward(?:\+(?:{'|'.join(READINGS)}))?(?:\+(?:{'|'.join(REDUCTIONS)}))?")
_LOGPROB_KINDS = ("logprob", "likelihood")


def load_guide(
    name: str, policy: Policy | None, task: Task | None = None, device: str = "auto", dtype: str = "auto"
) -> Scorer | None:
    """A scorer that needs no gold answer, or the oracle, which is the task's verifier.

    A learned guide that was trained on this policy's weights, or is this model, runs in its engine and cache. So pass
    no policy while it is being trained.

    likelihood      the policy's own probability of what it wrote
    p_true          the policy's own probability that its answer is right, when asked
    reward:FOLDER   a trained outcome, process or value model: a folder, or the run that trained it. A process model's
                    score of a path is its lowest step; reward+product:FOLDER, +last and +mean reduce them otherwise
                    An implicit reward model is read by its log-ratio; reward+logprob:FOLDER and +likelihood read log pi
                    alone, and reward+ratio+min:FOLDER its steps
    reward:URL      the same behind a server that `ponder serve` started; reward:URL#NAME if it serves several
    logprob:MODEL   the probability of the answer under a language model, such as one fine-tuned on right answers;
                    likelihood:MODEL is its geometric mean over the tokens
    genrm:MODEL     a language model asked whether the answer is correct, as trained on `harvest --kind verdicts`;
                    genrm+8:MODEL writes 8 rationales first, as trained on `--kind rationales`
    module:object   your own, or one of ponder's: a scorer, or a function of the text written so far
    oracle+GUIDE    the oracle for finished answers, and the other guide before that
    """
    check_guide(name, task)
    kind, _, rest = name.partition(":")
    if not name:
        return None
    if name == "likelihood":
        return Likelihood()
    if name == "p_true":
        if policy is None:
            raise UsageError("p_true asks the policy itself, and there is none here: name another guide")
        return PTrue(policy)
    if name.startswith(ORACLE + "+"):
        outcome = load_guide(ORACLE, policy, task)
        value = load_guide(name.removeprefix(ORACLE + "+"), policy, None, device, dtype)
        assert outcome is not None and value is not None
        return OutcomeAndValue(outcome, value)
    if name == ORACLE:
        assert task is not None
        return task.verifier
    if _REWARD_PATTERN.fullmatch(kind) and rest:
        from ponder.models.load_scorer import load_or_share_scorer

        return load_or_share_scorer(policy, rest, device, dtype, **_reward_settings(kind))
    if kind in _LOGPROB_KINDS and rest:
        from ponder.models.load_scorer import load_implicit_scorer

        reading = cast(Literal["logprob", "likelihood"], kind)
        return load_implicit_scorer(rest, device, dtype, reading=reading, policy=policy)
    if kind.startswith("genrm") and rest:
        from ponder.models.genrm import GenRM
        from ponder.models.load import load_inference_policy
        from ponder.models.weight_sharing import runs_model

        rationales = int(kind.removeprefix("genrm") or 0)
        if policy is not None and runs_model(policy, rest, device, dtype):
            return GenRM(policy, rationales)
        return GenRM(load_inference_policy(rest, device=device, dtype=dtype), rationales)
    loaded: Any = import_object(name)
    return as_scorer(loaded() if isinstance(loaded, type) else loaded, f"the guide {name}")


def check_guide(name: str, task: Task | None = None) -> None:
    """Raise if a guide of this name cannot be loaded, as far as that is known without loading a model."""
    kind, _, rest = name.partition(":")
    if name in ("", "likelihood", "p_true"):
        return
    if name == ORACLE or name.startswith(ORACLE + "+"):
        if task is None:
            raise UsageError("an oracle needs a task with gold answers: --guide oracle is for `ponder eval`")
        if name == ORACLE + "+":
            raise UsageError(f"{name!r} does not say what scores unfinished answers: oracle+reward:FOLDER does")
        check_guide(name.removeprefix(ORACLE).removeprefix("+"))
    elif _REWARD_PATTERN.fullmatch(kind) and rest:
        _check_reward_model(rest)
    elif kind in _LOGPROB_KINDS and rest:
        find_model(rest)
    elif kind.startswith("genrm") and rest:
        if not parse_reward_model(name)[0]:
            raise UsageError(
                f"{kind!r} is not a guide: genrm:MODEL asks at once, genrm+8:MODEL writes 8 rationales first"
            )
        if not rest.startswith(OPENAI_PREFIX):
            find_model(split_library_prefix(rest)[1])
    elif rest:
        as_scorer(import_object(name), f"the guide {name}")
    else:
        raise UnknownName("guide", name, KNOWN_GUIDES)


def _reward_settings(kind: str) -> dict[str, str]:
    """The settings in a guide's kind: reward, reward+READING, reward+REDUCTION or reward+READING+REDUCTION."""
    return {"reading" if word in READINGS else "reduce": word for word in kind.split("+")[1:]}


def _check_reward_model(model: str) -> None:
    from ponder.models.server_discovery import is_server_address
    from ponder.nets import hf

    if is_server_address(model):
        return  # connecting says what is wrong with it
    if not hf.is_score_model(find_model(model)):
        raise ModelError(f"{model} holds a language model, which has no head: give a value or reward model")


def default_guide(strategy: Any) -> str:
    """The guide of a search that needs one, if none is named: the policy's probability of its own steps."""
    from ponder.reason.strategies.mcts import MCTS
    from ponder.reason.strategies.stepwise import Stepwise

    searches = isinstance(strategy, MCTS) or (
        isinstance(strategy, Stepwise) and getattr(strategy, "rank_by", "") != "logprob"
    )
    inner = [getattr(strategy, field.name) for field in fields(strategy)]
    return "likelihood" if searches or any(is_dataclass(s) and default_guide(s) for s in inner) else ""


def is_oracle(guide: str) -> bool:
    return guide.partition("+")[0] == ORACLE


def guide_code(guide: str) -> str:
    """The `module:object` in a guide's name; empty if there is none."""
    while guide.startswith(ORACLE + "+"):
        guide = guide.removeprefix(ORACLE + "+")
    return guide if ":" in guide and not parse_reward_model(guide)[0] else ""


def parse_reward_model(guide: str) -> tuple[str, str]:
    """The kind of reward model and its folder or name; both empty for a guide without weights of its own."""
    kind, _, rest = guide.partition(":")
    return (
        (kind, rest)
        if rest and re.fullmatch(rf"(oracle\+)?({_REWARD_PATTERN.pattern}|genrm(\+\d+)?|logprob|likelihood)", kind)
        else ("", "")
    )
