"""Reward, process and value models among a server's models, and the tokenizer of any of them."""

from __future__ import annotations

from ponder.models.base_policy import BasePolicy
from ponder.models.openai_policy import OpenAIPolicy
from ponder.models.reward_models import LearnedScorer
from ponder.nets.decoder_with_head import ScoreHead
from ponder.protocols import Scorer
from ponder.serve.errors import invalid
from ponder.serve.served_models import ServedModels


def find_scorer(models: ServedModels, name: str | None) -> LearnedScorer | None:
    """The scorer of this name, or the only one of a server that has nothing else; None: no scorer has that name."""
    if name is None and len(models.scorers) == 1 and not models.models:
        name = next(iter(models.scorers))
    scorer = models.scorers.get(name or "")
    return scorer if isinstance(scorer, LearnedScorer) else None


def find_tokenizing_policy(models: ServedModels, name: str | None) -> BasePolicy:
    """The policy with the tokenizer of this model or scorer; a 400 where the model has none."""
    if (scorer := find_scorer(models, name)) is not None:
        return scorer.reader.engine_policy
    model, _ = models.find(name)
    base = model.base
    if base is None or (isinstance(base, OpenAIPolicy) and not base.sends_token_ids):
        raise invalid(f"the tokens of {model.name!r} are not known here: ask the server that runs it", "model")
    return base


def scorer_head(scorer: Scorer) -> ScoreHead | None:
    """What a scorer's head predicts; None for a scorer without a head."""
    return scorer.reader.head if isinstance(scorer, LearnedScorer) else None


def head_json(head: ScoreHead | None) -> dict[str, str | float] | None:
    """The head as a client reads it: what it predicts, and what ends the steps that it was trained on; of an implicit
    reward model also how its sums of log-probabilities are read."""
    if head is None:
        return None
    out: dict[str, str | float] = {"predicts": head.predicts, "separator": head.separator}
    return out | ({"reading": head.reading, "temperature": head.temperature} if head.predicts == "implicit" else {})
