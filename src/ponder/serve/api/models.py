"""`GET /v1/models` and `GET /v1/models/{name}`."""

from __future__ import annotations

from typing import Any

from ponder.protocols import Scorer
from ponder.serve.errors import not_found
from ponder.serve.served_models import ServedModel, ServedModels
from ponder.serve.served_scorers import head_json, scorer_head


def model_entry(model: ServedModel) -> dict[str, Any]:
    """OpenAI's fields, and vLLM's context length. `owned_by` tells ponder's own client what server this is."""
    meta = {} if model.base is None else {"max_model_len": model.context_length}
    return {
        "id": model.name, "object": "model", "created": model.created, "owned_by": "ponder",
        "root": model.root or model.name, "parent": None, **meta,
        "guides": list(model.guides), "thinks": model.think is not None,
    }  # fmt: skip


def scorer_entry(name: str, scorer: Scorer, created: int) -> dict[str, Any]:
    """`head`: what a reward, process or value model predicts."""
    return {"id": name, "object": "model", "created": created, "owned_by": "ponder", "root": name, "parent": None,
            "scores": True, "head": head_json(scorer_head(scorer))}  # fmt: skip


def list_models(models: ServedModels) -> dict[str, Any]:
    entries = [model_entry(model) for model in models.models.values()]
    scorers = ((name, scorer) for name, scorer in models.scorers.items() if name not in models.models)
    entries += [scorer_entry(name, scorer, models.created) for name, scorer in scorers]
    return {"object": "list", "data": entries}


def find_model_entry(models: ServedModels, name: str) -> dict[str, Any]:
    for entry in list_models(models)["data"]:
        if entry["id"] == name:
            return dict(entry)
    raise not_found(f"no model named {name[:200]!r}", "model_not_found", "model")
