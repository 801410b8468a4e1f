"""What flags mean for a model that another program runs: its reasoning effort, its device and its number type."""

from __future__ import annotations

import warnings
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ponder.errors import UsageError

OPENAI_PREFIX, VLLM_PREFIX = "openai:", "vllm:"  # as models.load has them, which imports torch; a test holds them equal


def resolve_remote_model(
    model: str,
    effort: str | None = None,
    template: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    guide: str = "",
) -> str:
    """The model, which for a server carries the effort in its address: each request then asks for it.

    A device and a number type are refused where nothing in this process would take them; a learned `guide` does.
    """
    guide = guide.removeprefix("oracle+")
    learned = guide.startswith(("reward", "genrm")) and not guide.partition(":")[2].startswith(("http", "openai:"))
    if model.startswith(VLLM_PREFIX) and device not in ("auto", "cuda") and not learned:
        raise UsageError(f"vLLM runs on the GPU that it finds: leave out --device {device}, or give the folder alone")
    if not model.startswith(OPENAI_PREFIX):
        return model
    for flag, value in (("device", device), ("dtype", dtype)):
        if value != "auto" and not learned:
            raise UsageError(f"a server chose its own {flag} when it was started: leave out --{flag} {value}")
    if effort is None:
        return model
    parts = urlsplit(model.removeprefix(OPENAI_PREFIX))
    query = dict(parse_qsl(parts.query))
    if template is not None or "tokenizer" in query:
        warnings.warn(
            f"--effort {effort} bounds answers and tokens only: a server that is given ready-made prompts (--template, "
            "?tokenizer=) takes no reasoning effort",
            stacklevel=2,
        )
        return model
    if query.setdefault("effort", effort) != effort:
        raise UsageError(f"the address asks for effort {query['effort']} and --effort for {effort}: give one of them")
    return OPENAI_PREFIX + urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(query), parts.fragment))
