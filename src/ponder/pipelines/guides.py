"""What guides a search, by name."""

from __future__ import annotations

import re
from typing import Any

from ponder.errors import UnknownName, UsageError
from ponder.names import load
from ponder.protocols import Policy, Scorer, Task
from ponder.reason.operators.self_evaluate import PTrue
from ponder.reason.scorers import Likelihood

ORACLE = "oracle"
KNOWN = ("likelihood", "p_true", ORACLE, "reward:FOLDER", "genrm:MODEL", "module:object")


def guide_named(
    name: str, policy: Policy | None, task: Task | None = None, device: str = "auto", dtype: str = "auto"
) -> Scorer | None:
    """A scorer that needs no gold answer, or the oracle, which is the task's verifier.

    likelihood      how likely the policy finds what it wrote
    p_true          how likely the policy finds that it is right, when asked
    reward:FOLDER   a trained outcome, process or value model: a folder, or the run that trained it
    genrm:MODEL     a language model asked whether the answer is correct, as trained on `harvest --what verdicts`;
                    genrm+8:MODEL writes 8 rationales first, as trained on `--what rationales`
    module:object   your own, or one of ponder's
    """
    kind, _, rest = name.partition(":")
    if not name:
        return None
    if name == "likelihood":
        return Likelihood()
    if name == "p_true":
        if policy is None:
            raise UsageError("p_true asks the policy that thinks, and there is none here: name another guide")
        return PTrue(policy)
    if name == ORACLE:
        if task is None:
            raise UsageError("an oracle needs a task with gold answers: --guide oracle is for `ponder eval`")
        return task.verifier
    if kind == "reward" and rest:
        from ponder.models.reward import load_scorer

        return load_scorer(rest, device=device, dtype=dtype)
    if kind.startswith("genrm") and rest:
        from ponder.models.genrm import GenRM
        from ponder.models.load import load_any

        if not learned(name)[0]:
            raise UsageError(f"{kind!r} is no judge: genrm:MODEL asks at once, genrm+8:MODEL writes 8 rationales first")
        return GenRM(load_any(rest, device=device, dtype=dtype), int(kind.removeprefix("genrm") or 0))
    if rest:
        found: Any = load(name)
        return found() if isinstance(found, type) else found
    raise UnknownName("guide", name, KNOWN)


def learned(guide: str) -> tuple[str, str]:
    """What kind of judge it is, and its model; both empty where a guide has no weights of its own."""
    kind, _, rest = guide.partition(":")
    return (kind, rest) if rest and re.fullmatch(r"reward|genrm(\+\d+)?", kind) else ("", "")
