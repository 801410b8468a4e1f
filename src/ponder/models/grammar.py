"""Grammars: masks of the tokens that keep a text matching a regular expression, a JSON schema or a structural tag, by
llguidance.

A token is allowed if the text with it can still be completed to a match. No way of splitting a text into tokens is
preferred, so a draw is from the model's own distribution over the allowed tokens, renormalised. The end-of-sequence
tokens are allowed exactly where the text matches as it is.

The regular expressions are those of the Rust crate `regex`, except that `\\d` is only 0 to 9. There are no look-arounds
and no references to groups.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponder.engine.request import GrammarMatcher
from ponder.errors import MissingExtra, PonderError, UsageError
from ponder.models.structural_tag import structural_tag_rule
from ponder.models.tokenizer import Tokenizer
from ponder.models.vocabulary_bytes import NotPiecesOfText, vocabulary_bytes
from ponder.types import Sampling

MAX_GRAMMAR_SOURCE_CHARS = 30_000  # of a regex or schema: compile time grows faster than the length
_MAX_COMPILED = 64  # grammars that stay compiled
_MAX_CROSSED_PATTERNS = 8  # patterns in a schema that requires several at once: llguidance's time doubles with each
_MAX_ERROR_CHARS = 200  # of llguidance's own message in an error
# Without `no_forcing`, text without an alternative would be split into tokens in a single way.
_LARK_GRAMMAR = '%llguidance {{"no_forcing": true}}\nstart: {}'
# Weak models write white space without end; 40 characters indent a deep object.
_JSON_OPTIONS = {"whitespace_pattern": r"[ \t\r\n]{1,40}", "lenient": False}


class GrammarCompiler:
    """Compiles grammars for a tokenizer and a model with `vocab` tokens."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self.tokenizer, self.vocab = tokenizer, vocab
        self._compiled: dict[str, Any] = {}
        self._lock = threading.Lock()  # calls come from several threads

    def __call__(self, sampling: Sampling) -> Callable[[], GrammarMatcher] | None:
        """A function that makes a matcher for each continuation; None if the sampling has no grammar. Raises for a
        grammar that cannot be compiled."""
        if not sampling.has_grammar:
            return None
        _llguidance()
        try:
            rule = _grammar_rule(sampling)
            with self._lock:
                start = self._compiled_matcher(rule)
        except PonderError:
            raise
        except BaseException as reason:  # a panic in Rust is no Exception
            if not isinstance(reason, Exception) and type(reason).__name__ != "PanicException":
                raise
            raise UsageError(f"the regex or JSON schema cannot be used: {str(reason)[:_MAX_ERROR_CHARS]}") from None
        return lambda: _GrammarMatcher(start.deep_copy(), self.tokenizer.eos, self.vocab)

    def _compiled_matcher(self, rule: str) -> Any:
        """A matcher at the beginning of a text; from then on it is only copied."""
        if (start := self._compiled.get(rule)) is None:
            library = _llguidance()
            start = library.LLMatcher(
                self._tokens, library.LLMatcher.grammar_from_lark(_LARK_GRAMMAR.format(rule)), log_level=0,
                limits=library.LLParserLimits(verbose_errors=False),
            )  # fmt: skip
            if start.is_error():
                raise UsageError(f"the regex or JSON schema cannot be used: {_error_sentence(start.get_error())}")
            _GrammarMatcher(
                start.deep_copy(), self.tokenizer.eos, self.vocab
            ).allowed_mask()  # report an immediate failure now
            while len(self._compiled) >= _MAX_COMPILED:
                self._compiled.pop(next(iter(self._compiled)))
            self._compiled[rule] = start
        return start

    @cached_property
    def _tokens(self) -> Any:
        library = _llguidance()
        if not self.tokenizer.eos:
            raise UsageError("the tokenizer has no end-of-sequence token, so a text under a grammar could never end")
        try:
            written = vocabulary_bytes(self.tokenizer, self.vocab)
        except NotPiecesOfText as why:
            raise UsageError(
                f"regexes and JSON schemas need a tokenizer whose tokens are pieces of text; of this one: {why}"
            ) from None
        given = _LLGuidanceTokenizer(written, sorted(_special_ids(self.tokenizer)), self.tokenizer.eos[0])
        return library.LLTokenizer(library.TokenizerWrapper(given), eos_token=list(self.tokenizer.eos))


def check_grammar(sampling: Sampling) -> None:
    """Raise for a regex or JSON schema that cannot be used with any tokenizer, or whose library is not installed."""
    if sampling.has_grammar:
        library = _llguidance()
        grammar = library.LLMatcher.grammar_from_lark(_LARK_GRAMMAR.format(_grammar_rule(sampling)))
        if error := library.LLMatcher.validate_grammar(grammar):
            raise UsageError(f"the regex or JSON schema cannot be used: {_error_sentence(error)}")


class _GrammarMatcher:
    """The state of one text under a grammar."""

    def __init__(self, matcher: Any, eos: tuple[int, ...], vocab: int) -> None:
        self._matcher, self._eos, self._vocab = matcher, list(eos), vocab

    def allowed_mask(self) -> NDArray[np.bool_]:
        may_end = self._matcher.is_accepting()  # llguidance also allows an end where nothing else can follow
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise UsageError(f"the regex or JSON schema leads nowhere: {_error_sentence(self._matcher.get_error())}")
        mask = np.unpackbits(bits, count=self._vocab, bitorder="little").view(np.bool_)
        mask[self._eos] = may_end
        return mask

    def accept_token(self, token: int) -> None:
        self._matcher.consume_token(token)


class _LLGuidanceTokenizer:
    """The tokenizer interface of llguidance."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special: list[int], eos: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, eos

    def __call__(self, text: str | bytes) -> list[int]:
        raise NotImplementedError("needed only to force text, which is not done here")


def _special_ids(tokenizer: Tokenizer) -> set[int]:
    """Tokens that are not text."""
    added = tokenizer.inner.get_added_tokens_decoder().items()
    named = {tokenizer.bos, tokenizer.pad, *tokenizer.eos} - {None}
    return {index for index, token in added if token.special} | {int(i) for i in named if i is not None}


def _grammar_rule(sampling: Sampling) -> str:
    if sampling.regex:
        return _regex_rule(sampling.regex)
    if sampling.json_schema:
        return _json_schema_rule(sampling.json_schema)
    _check_length("structural tag", sampling.structural_tag)
    return structural_tag_rule(sampling.structural_tag, _json_schema_rule)


def _regex_rule(pattern: str) -> str:
    _check_length("regex", pattern)
    return f"/{_llguidance().regex_to_lark(pattern, 'd')}/"


def _json_schema_rule(text: str) -> str:
    _check_length("schema", text)
    try:
        schema = json.loads(text)
        keys = Counter(_schema_keys(schema) if isinstance(schema, dict) else ())
        written = json.dumps({**schema, "x-guidance": _JSON_OPTIONS} if isinstance(schema, dict) else schema)
    except (ValueError, RecursionError) as reason:
        raise UsageError(f"the schema is not JSON, or too deep ({str(reason)[:_MAX_ERROR_CHARS]})") from None
    if not isinstance(schema, dict):
        raise UsageError("the schema is JSON, but no object: write {} for any JSON")
    if keys["allOf"] + keys["$ref"] and keys["pattern"] > _MAX_CROSSED_PATTERNS:
        raise UsageError(
            f"a schema with allOf or $ref may have at most {_MAX_CROSSED_PATTERNS} patterns; join some of them"
        )
    return f"%json {written}"


def _schema_keys(part: Any) -> Iterator[str]:
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        yield str(key)
        if isinstance(value, dict | list):
            yield from _schema_keys(value)


def _check_length(what: str, text: str) -> None:
    if not text.isascii() and re.search("[\ud800-\udfff]", text):
        raise UsageError(f"the {what} has half of a surrogate pair, which is not a character")
    if len(text) > MAX_GRAMMAR_SOURCE_CHARS:
        raise UsageError(f"the {what} has {len(text)} characters; at most {MAX_GRAMMAR_SOURCE_CHARS} are allowed")


def _error_sentence(error: str) -> str:
    """The sentence of llguidance's message that names the error; the rest prints the whole grammar."""
    if error.startswith("NoExtensionBias"):
        return "what must come next cannot be written with this model's tokens"
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    message = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    return re.sub(r"^at \d+\(\d+\): ", "", message)[:_MAX_ERROR_CHARS]


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise MissingExtra("a regex or JSON schema", "llguidance", "grammar") from None
    return llguidance
