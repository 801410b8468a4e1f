"""Contamination: runs of words by the definition, against a search through everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.cli import main
from ponder.errors import UsageError
from ponder.measure.diagnostics.contamination import MIN_OVERLAP_WORDS, find_contamination, normalized_words

LONG = "A farmer has seven red hens and nine white ones and sells four of them at the market on Monday"


def test_a_shared_run_flags_and_a_shorter_one_does_not() -> None:
    train = [("t", f"Once upon a time, {LONG.upper()}!!! The end.")]
    result = find_contamination(
        train, [("same run", f"{LONG}. How many are left?"), ("other", "The farmer has seven red hens")]
    )
    assert [o.problem for o in result.flagged] == ["same run"]
    assert result.flagged[0].seen_in == "t"
    assert not result.flagged[0].exact
    twelve = " ".join(normalized_words(LONG)[:12])
    assert not find_contamination(
        [("t", twelve)], [("p", f"{twelve} and then something else happens to the hens")]
    ).flagged


def test_an_equal_text_is_exact_whatever_its_case_and_points() -> None:
    result = find_contamination(
        [("t", "  what's the SUM, of two\nand two? ")], [("p", "What's the sum of two and two?")]
    )
    (one,) = result.flagged
    assert one.exact and one.share == 1.0
    assert result.short_problems == 1


def test_a_short_problem_is_looked_for_as_a_whole() -> None:
    result = find_contamination(
        [("t", "so then: how many hens are left now, he asked")], [("p", "How many hens are left now?")]
    )
    assert result.flagged[0].share == 1.0 and not result.flagged[0].exact
    assert not find_contamination(
        [("t", "how many hens are right now")], [("p", "How many hens are left now?")]
    ).flagged


def test_very_few_words_count_only_where_they_are_all() -> None:
    train = [("a", "we know that 2 + 2 is four"), ("b", "2 + 3")]
    result = find_contamination(train, [("p", "2 + 2"), ("q", "2 + 3")])
    assert [o.problem for o in result.flagged] == ["q"]
    assert result.tiny_problems == 2


def test_what_stands_in_many_texts_is_boilerplate() -> None:
    asked = "think step by step and then put the final answer in a box at the end"
    train = [(f"t{i}", f"{i} question number {i}: {asked}") for i in range(20)]
    result = find_contamination(train, [("p", f"quite another question: {asked}")])
    assert not result.flagged and result.common_ngrams > 0
    assert find_contamination(train[:5], [("p", f"quite another question: {asked}")]).flagged
    copied = find_contamination([*train, *[(f"c{i}", LONG) for i in range(20)]], [("p", LONG)])
    assert copied.flagged[0].exact, "the whole problem counts however often it was copied"


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(UsageError, match="no problems"):
        find_contamination([("t", "x")], [])
    with pytest.raises(UsageError, match="no texts"):
        find_contamination([], [("p", LONG)])
    with pytest.raises(UsageError, match="has no words"):
        find_contamination([("t", "x")], [("p", "...")])
    with pytest.raises(UsageError, match="n is 1"):
        find_contamination([("t", "x")], [("p", LONG)], n=1)


TEXT = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=12).map(" ".join)


@given(
    st.lists(TEXT, min_size=1, max_size=5), st.lists(TEXT, min_size=1, max_size=4), st.integers(MIN_OVERLAP_WORDS, 7)
)
def test_it_finds_what_a_search_through_everything_finds(train: list[str], asked: list[str], n: int) -> None:
    result = find_contamination(enumerated(train), enumerated(asked), n, common=len(train))
    flagged = {o.problem for o in result.flagged}
    for name, text in enumerated(asked):
        w = text.split()
        size = min(n, len(w))
        runs = [w[i : i + size] for i in range(len(w) - size + 1)]
        seen = any(contains(t.split(), run) for run in runs for t in train) and len(w) >= MIN_OVERLAP_WORDS
        assert (name in flagged) == (seen or text in train)


def enumerated(texts: list[str]) -> list[tuple[str, str]]:
    return [(str(i), t) for i, t in enumerate(texts)]


def contains(text: list[str], run: list[str]) -> bool:
    return any(text[i : i + len(run)] == run for i in range(len(text) - len(run) + 1))


def test_files_and_tasks_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, asked = tmp_path / "train.jsonl", tmp_path / "eval.csv"
    train.write_text(json.dumps({"messages": [{"role": "user", "content": LONG}], "n": 3}) + "\n")
    asked.write_text(
        f'id,question,answer\n1,"{LONG}?",12\n2,"Something quite different is asked here, is it not so?",3\n'
    )
    assert main(["contamination", str(train), str(asked), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["share"]["correct"], output["problems"], output["exact"]) == (1, 2, 1)
    assert output["flagged"][0]["problem"] == "eval.csv, row 1"
    assert main(["contamination", str(train), str(asked)]) == 0
    assert "50.0 %" in capsys.readouterr().out
    assert main(["contamination", str(train), str(asked), "--column", "problem"]) == 2
    assert "id, question, answer" in capsys.readouterr().err
    assert main(["contamination", "additon", "addition"]) == 2
    assert "Did you mean 'addition'" in capsys.readouterr().err


def test_gsm8ks_sides_share_no_problem(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["contamination", "gsm8k", "gsm8k", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["problems"], output["exact"]) == (1319, 0)
    assert output["share"]["mean"] < 0.05


def test_texts_without_spaces_are_compared_by_their_signs() -> None:
    asked = "小明有十二个苹果,他给了小红三个,还剩多少个?"
    train = [("t", "旧题:小明有十二个苹果,他给了小红三个,还剩多少个?答案是九。")]
    result = find_contamination(train, [("q", asked)])
    assert [o.problem for o in result.flagged] == ["q"] and not result.tiny_problems
    assert not find_contamination([("t", "小红有三只猫和两只狗,一共有多少只动物?")], [("q", asked)]).flagged
