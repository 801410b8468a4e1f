"""Loads the other models of a training job: a teacher or reference model, and the model that a critic starts from.

They must have the policy's vocabulary: a distribution over one vocabulary cannot be compared with one over another.
"""

from __future__ import annotations

from typing import TypeVar

from ponder.errors import UsageError
from ponder.models.load import load_policy, load_tokenizer
from ponder.models.model_paths import find_base, find_model
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.nets import hf
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.runs.manifest import MANIFEST_FILE

Net = TypeVar("Net", bound=Decoder)
_OTHER_VOCABULARY_ADVICE = (
    "take one with the same, or learn from its answers as text, which any tokenizer reads: a run of "
    "Collect, `ponder harvest` without --tokenizer, `ponder sft`"
)


def load_teacher(model: str, policy: PonderPolicy) -> Decoder:
    """Another model's network with the policy's vocabulary, on its device and in its dtype."""
    check_same_vocabulary(model, policy.tokenizer)
    net = policy.net
    other = load_policy(model, device=str(net.device), dtype=str(net.dtype).removeprefix("torch."))
    return _check_vocab_size(other.net, model, net)


def load_value_model(model: str, policy: PonderPolicy) -> DecoderWithHead:
    """A value or reward model, likewise. Of a run directory with a critic, the critic."""
    check_same_vocabulary(model, policy.tokenizer)
    folder, net = find_model(model), policy.net
    ours = (folder.parent / MANIFEST_FILE).is_file() and folder.with_name("critic").is_dir()
    return _check_vocab_size(
        hf.load_with_head(folder.with_name("critic") if ours else folder, net.dtype, net.device, find_base), model, net
    )


def check_same_vocabulary(model: str, tokenizer: Tokenizer) -> None:
    """Refuse a model whose vocabulary gives the same token ids other texts."""
    vocabularies = (t.inner.get_vocab() for t in (tokenizer, load_tokenizer(model)))
    ours, theirs = ({index: word for word, index in words.items()} for words in vocabularies)
    other = sorted(index for index in ours.keys() & theirs.keys() if ours[index] != theirs[index])
    if other:
        one = f"{other[0]} is {theirs[other[0]]!r} to it and {ours[other[0]]!r} to the model that learns"
        raise UsageError(
            f"{model} has another vocabulary ({len(other)} tokens differ: {one}); {_OTHER_VOCABULARY_ADVICE}"
        )


def _check_vocab_size(other: Net, model: str, net: Decoder) -> Net:
    if other.config.vocab != net.config.vocab:
        both = f"{other.config.vocab} tokens, the model that learns {net.config.vocab}"
        raise UsageError(f"{model} has a vocabulary of {both}; {_OTHER_VOCABULARY_ADVICE}")
    return other
