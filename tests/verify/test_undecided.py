"""When a run should stop because its grader does not judge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.types import Score
from ponder.verify import VerdictCounts, count_verdicts, too_many_undecided


def step(decided, undecided=0, reason="crashed: ValueError"):
    return count_verdicts([Score(1.0, "right")] * decided + [Score(None, reason)] * undecided)


def test_count_verdicts_groups_reasons_by_kind():
    scores = [
        Score(1.0, ""),
        Score(0.0, ""),
        Score(None, "timed out after 3 s"),
        Score(None, "timed out after 12 s"),
        Score(None, "no package 'a'"),
        Score(None, "no package 'b'"),
        Score(None, ""),
    ]
    counted = count_verdicts(scores)
    assert counted == VerdictCounts(7, {"timed out after N s": 2, "no package '...'": 2, "no reason given": 1})
    assert counted.undecided == 5 and count_verdicts([]) == VerdictCounts(0, {})
    reasons = ["its process ended with code -9", "it answered with 10,000,128 bytes", "it answered with 2.5 MB"]
    kinds = ["its process ended with code -9", "it answered with N bytes", "it answered with N MB"]
    assert [*count_verdicts(Score(None, reason) for reason in reasons).reasons] == kinds
    own = ["env1.py:Wordle2.act: it raised ValueError (env1.py, line 7)", "env1.py:act: it did not return within 10 s"]
    assert [*count_verdicts(Score(None, reason) for reason in own).reasons] == own


def test_a_run_continues_while_few_verdicts_are_undecided():
    assert too_many_undecided([]) is None
    assert too_many_undecided([step(90, 10)] * 5) is None
    assert too_many_undecided([step(40, 10)]) is None  # 20 % is not above 20 %
    assert too_many_undecided([step(30, 10)]) is None  # 25 %, of too few
    assert too_many_undecided([VerdictCounts()] * 10) is None


def test_a_run_stops_when_too_many_verdicts_are_undecided():
    message = too_many_undecided([step(100), step(39, 11)])
    assert message is not None and message.startswith("11 of the last 50 answers could not be graded: 11 x crashed")
    assert too_many_undecided([step(10, 3)] * 4) is not None  # four steps hold enough
    assert too_many_undecided([step(10, 30), step(50)]) is None  # it has healed
    assert too_many_undecided([step(10, 30), step(50)], min_verdicts=51) is not None


def test_a_run_stops_early_when_all_verdicts_are_undecided():
    assert too_many_undecided([step(0, 7)]) is None
    assert too_many_undecided([step(0, 8)]) is not None
    assert too_many_undecided([step(50, 0), step(0, 4), step(0, 4)]) is not None


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("bad data: no 'clauses'", "Check the task's data"),
        ("a JSON schema needs ...: pip install 'x'", "Install what is missing"),
        ("timed out after 3 s", "time limit"),
        ("the sandbox refused to start", "ponder doctor"),
        ("crashed: KeyError", "ponder traces"),
        ("the judge did not give exactly one verdict", "judge"),
    ],
)
def test_message_gives_advice(reason, advice):
    message = too_many_undecided([step(0, 60, reason)])
    assert message is not None and advice in message


def test_message_lists_the_commonest_reasons_first():
    mixed = VerdictCounts(60, {"a": 5, "b": 20, "c": 10, "d": 1})
    assert "20 x b; 10 x c; 5 x a; 1 other reasons." in str(too_many_undecided([mixed]))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12))
def test_too_many_undecided_by_definition(counts):
    steps = [step(*c) for c in counts]
    decided = undecided = 0
    expected = False
    for good, bad in reversed(counts):
        decided, undecided = decided + good, undecided + bad
        if decided + undecided >= 8 and decided == 0:
            expected = True
            break
        if decided + undecided >= 50:
            expected = undecided / (decided + undecided) > 0.2
            break
    assert (too_many_undecided(steps) is not None) is expected
