"""Text while it is sampled: the pieces joined are the text, however the tokens arrive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.models import byte_tokenizer
from ponder.serve.text_pieces import TextPieces

TOKENIZER = byte_tokenizer.make_tokenizer()  # a token for each byte: characters are spread over several


def decode(tokens: Sequence[int]) -> str:
    return TOKENIZER.decode(tokens, keep_special=True)


def pieces_of(tokens: Sequence[int], cuts: Sequence[int], reader: TextPieces) -> list[str]:
    places = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    chunks = [tokens[a:b] for a, b in pairwise(places)]
    return [*(reader.feed(chunk) for chunk in chunks), reader.finish()]


TEXTS = st.text(alphabet="ab<>\n é😀", max_size=40)
STOPS = st.lists(st.text(alphabet="ab<>\né", min_size=1, max_size=4), max_size=3)


@given(TEXTS, STOPS, st.lists(st.integers(0, 200), max_size=8))
def test_pieces_joined_are_the_text_before_the_first_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    tokens = list(text.encode())
    ends = [text.find(stop) for stop in stops if stop in text]
    joined = "".join(pieces_of(tokens, cuts, TextPieces(decode, stops)))
    assert joined == (text[: min(ends)] if ends else text)


@given(TEXTS, STOPS, st.lists(st.integers(0, 200), max_size=8))
def test_no_piece_has_to_be_taken_back(text: str, stops: list[str], cuts: list[int]) -> None:
    tokens = list(text.encode())
    whole = "".join(pieces_of(tokens, range(len(tokens)), TextPieces(decode, stops)))
    shown = ""
    for piece in pieces_of(tokens, cuts, TextPieces(decode, stops)):
        shown += piece
        assert whole.startswith(shown)


def test_a_character_comes_when_its_last_byte_does() -> None:
    reader = TextPieces(decode)
    tokens = list("é".encode())
    assert [reader.feed(tokens[:1]), reader.feed(tokens[1:]), reader.finish()] == ["", "é", ""]


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    reader = TextPieces(decode)
    assert reader.feed([*b"a", "é".encode()[0]]) + reader.finish() == "a\ufffd"


def test_what_may_become_a_stop_is_held_back() -> None:
    reader = TextPieces(decode, ["</think>"])
    assert [reader.feed(list(part)) for part in (b"x</th", b"in", b"gs")] == ["x", "", "</things"]


def test_text_after_a_stop_is_dropped() -> None:
    reader = TextPieces(decode, ["END"])
    assert [reader.feed(list(b"aE")), reader.feed(list(b"NDb")), reader.feed(list(b"c")), reader.finish()] == [
        "a", "", "", "",
    ]  # fmt: skip


def test_silent_tokens_have_no_text() -> None:
    reader = TextPieces(decode, silent=[byte_tokenizer.END_ID])
    assert reader.feed([*b"ab", byte_tokenizer.END_ID]) + reader.finish() == "ab"


@pytest.mark.parametrize(("text", "shown"), [("\n\na\n", "a\n"), ("a\n", "a\n"), ("\n\n", "\n\n"), ("", "")])
def test_leading_newlines_are_skipped_unless_there_is_nothing_else(text: str, shown: str) -> None:
    for cuts in ([], [1], [1, 2]):
        reader = TextPieces(decode, skip_newlines=True)
        assert "".join(pieces_of(list(text.encode()), cuts, reader)) == shown


@given(st.lists(st.integers(0, 255), max_size=30), STOPS, st.lists(st.integers(0, 200), max_size=8))
def test_pieces_without_context_are_the_same_where_a_text_is_its_tokens_bytes(
    tokens: list[int], stops: list[str], cuts: list[int]
) -> None:
    """Any bytes, characters or not."""
    alone = pieces_of(tokens, cuts, TextPieces(decode, stops, joins_bytes=True))
    assert alone == pieces_of(tokens, cuts, TextPieces(decode, stops))
