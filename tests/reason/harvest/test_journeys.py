"""Wrong turns, the way back, and one answer in the end."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.errors import TaskError
from ponder.filter_report import FilterReport
from ponder.reason.harvest import (
    Provenance,
    compose_journey,
    harvest_journeys,
    journey_trace,
    outcomes_by_step,
    wrong_turns,
)
from ponder.reason.harvest.journeys import BACKTRACK_PHRASES, RESTART_PHRASES, SWITCH_PHRASES, WrongTurn
from ponder.types import Problem, Score, Step, Trace, ids, user_messages
from ponder.verify import FinalNumber

EOS = 3  # no character of a test's


def letters(text):
    return ids(ord(c) for c in text)


class Letters:
    """Reads and writes characters, and an end mark that has no text."""

    def tokens(self, text):
        return letters(text)

    def text(self, tokens):
        return "".join("<end>" if t == EOS else chr(t) for t in tokens)


def told(trace, **options):
    funnel = FilterReport()
    return list(harvest_journeys(trace, "accuracy", funnel, Provenance("r", 1), **options)), funnel


def test_journey_enters_the_wrong_branch_and_returns(grow):
    trace = grow(
        ("First, ", [
            ("add to 5. ", [("So \\boxed{5}", 0.0)]),
            ("add to 4. ", [("So \\boxed{4}", 1.0)]),
        ]),
    )  # fmt: skip
    ((one, parts),), _ = told(trace)
    text = one.row["messages"][-1]["content"]
    (back,) = [p.text for p in parts if p.step is None]
    assert back in BACKTRACK_PHRASES
    assert text == f"First, add to 5. {back}add to 4. So \\boxed{{4}}"  # the wrong answer itself is not told
    assert [p.step for p in parts] == [1, 2, None, 4, 5]
    assert one.row["from"] == {"run": "r", "at": 1, "problem": "p/0", "steps": [0, 1, 4, 5], "wrong": [2]}
    assert FinalNumber().grade(text, "4").value == 1.0


def test_whole_wrong_answers_are_inside_the_thinking(grow):
    trace = grow(("2 + 2 = 5. \\boxed{5}", 0.0), ("2 + 2 = 4. \\boxed{4}", 1.0))
    ((one, _),), _ = told(trace)
    text = one.row["messages"][-1]["content"]
    assert text.startswith("<think>\n2 + 2 = 5") and text.endswith("</think>\n2 + 2 = 4. \\boxed{4}")
    assert FinalNumber().grade(text, "4").value == 1.0
    assert any(word in text for word in RESTART_PHRASES)


def test_thinking_tags_are_not_repeated(grow):
    wrong, right = "<think>It is 5.</think>\\boxed{5}", "<think>It is 4.</think>\\boxed{4}"
    ((one, _),), _ = told(grow((wrong, 0.0), (right, 1.0)))
    text = one.row["messages"][-1]["content"]
    assert text.count("<think>") == text.count("</think>") == 1 and "\\boxed{5}" not in text and "It is 5." in text
    assert FinalNumber().grade(text, "4").value == 1.0
    # The prompt opened the thinking: the answer has only the end of it.
    ((one, _),), _ = told(grow(("It is 5.</think>\\boxed{5}", 0.0), ("It is 4.</think>\\boxed{4}", 1.0)))
    text = one.row["messages"][-1]["content"]
    assert text.startswith("It is 5.") and "<think>" not in text and text.count("</think>") == 1
    assert FinalNumber().grade(text, "4").value == 1.0


def test_wrong_turn_after_the_thinking_is_dropped(grow):
    trace = grow(("<think>hm</think>", [("\\boxed{5}", 0.0), ("\\boxed{4}", 1.0)]))
    result, funnel = told(trace)
    assert result == [] and funnel.dropped["composed"] == {"the thinking ends before the turn": 1}


def test_only_scored_or_pruned_branches_become_wrong_turns(grow):
    trace = grow(
        ("unknown", [("x", None)]),
        ("mixed", [("y", 0.0), ("z", 1.0)]),
        ("dropped", [], {"pruned": "not kept", "scores": {"guide": Score(0.2)}}),
        ("failed", [], {"pruned": "the context is full"}),
        ("unscored", [], {"pruned": "no score", "scores": {"guide": Score(None, "timed out")}}),
        ("better", [], {"pruned": "not kept", "scores": {"guide": Score(0.9)}}),
        ("open", [], {"scores": {"guide": Score(0.1)}}),
        ("bad", [("w", 0.0)]),
        ("right", 1.0),
    )
    trace.steps[-1].scores["guide"] = Score(0.8)
    trace.add(Step(0, "tool", ids([1])))
    end = next(i for i, s in enumerate(trace.steps) if s.text == "right")
    turns = wrong_turns(trace, end, outcomes_by_step(trace, "accuracy"), 1.0, 4, random.Random(0))
    assert {(trace.steps[t.steps[0]].text, t.wrong) for t in turns} == {("dropped", False), ("bad", True)}
    one, parts = next((one, parts) for one, parts in told(trace)[0] if one.row["from"]["steps"] == [0, end])
    after = {trace.steps[a.step].text: b.text for a, b in pairwise(parts) if a.step is not None and b.step is None}
    assert (
        after["dropped"] in SWITCH_PHRASES and after["bad"] in RESTART_PHRASES
    )  # what nobody judged is not called wrong
    assert one.row["turns"] == 2


def test_a_corrected_answer_is_a_journey(grow):
    trace = grow(("First. ", [("\\boxed{5}", 0.0)]), ("\\boxed{4}!", 1.0))
    for cited in (2, 3):
        prompt = trace.add(Step(None, "Improve it", letters("Improve it"), cites=(cited,)))
        tokens = ids([*letters("No: \\boxed{4}"), EOS])
        better = Step(prompt, "No: \\boxed{4}", tokens, np.zeros(len(tokens), np.float32), "eos")
        better.scores["accuracy"] = Score(1.0)
        trace.add(better)
    result, funnel = told(trace)
    assert funnel.stages["corrections"] == 1  # what was right already is not corrected
    one, parts = next((one, parts) for one, parts in result if one.row["from"]["steps"] == [4, 5])
    assert one.text.startswith("<think>\nFirst. \\boxed{5}\n\n") and one.text.endswith("</think>\nNo: \\boxed{4}")
    assert FinalNumber().grade(one.text, "4").value == 1.0 and one.row["from"]["wrong"] == [1, 2]
    alone = journey_trace(trace, parts, Letters())
    assert alone is not None and alone.steps[0].token_ids.tolist() == trace.steps[0].token_ids.tolist()


def test_turns_and_depth_are_bounded(grow):
    deep = ("a", [("b", [("c", [("d", [("e", 0.0)])])])])
    trace = grow(deep, ("no1", 0.0), ("no2", 0.0), ("yes", 1.0))
    for turns in (1, 2, 3):
        ((one, _),), _ = told(trace, turns=turns, depth=2)
        assert one.row["turns"] == turns
    assert "c" not in {trace.steps[i].text for i in one.row["from"]["wrong"]}
    assert told(trace)[0][0][0].text == told(trace)[0][0][0].text  # the same every time
    alone, funnel = told(grow(("yes", 1.0), ("also", 1.0)))
    assert alone == [] and funnel.dropped["with a wrong turn"] == {"no wrong branch": 2}


def test_journey_follows_the_most_visited_path(grow):
    trace = grow(("a", [("seldom", [], {"visits": 1}), ("often", [("x", 0.0)], {"visits": 5})]), ("yes", 1.0))
    ((one, _),), _ = told(trace)
    assert [trace.steps[i].text for i in one.row["from"]["wrong"]] == ["a", "often"]


def test_journey_tokens_are_the_sampled_ones(grow):
    trace = grow(("five", 0.0), ("two ", [("three", 0.0), ("four", 1.0)]))
    (result,), _ = told(trace, turns=5)
    alone = journey_trace(trace, result[1], Letters())
    assert alone is not None
    assert "".join(s.text for s in alone.steps[1:]) == result[0].text
    for step in alone.steps[1:]:
        own = [s for s in trace.steps[1:] if s.text == step.text]
        assert step.sampled == bool(own) and step.parent is not None
        if own:
            sampled = own[0].token_ids if step is alone.steps[-1] else own[0].token_ids[:-1]
            assert step.token_ids.tolist() in (sampled.tolist(), own[0].token_ids.tolist())
            assert step.logprobs is not None and len(step.logprobs) == len(step.token_ids)
    assert alone.token_ids(len(alone.steps) - 1)[-1] == 3  # one end mark, at the end
    assert (alone.token_ids(len(alone.steps) - 1)[:-1] != 3).all()
    assert [s.done for s in alone.steps].count(True) == 1


def test_truncated_thoughts_have_no_token_ids(grow):
    trace = grow(("<think>5</think>5", 0.0), ("<think>4</think>4", 1.0))
    ((_, parts),), _ = told(trace)
    assert journey_trace(trace, parts, Letters()) is None


def test_another_tokenizer_is_refused(grow):
    trace = grow(("a", 0.0), ("b", 1.0))
    ((_, parts),), _ = told(trace)
    trace.steps[2].token_ids = ids([5, 6])
    with pytest.raises(TaskError, match="another one wrote the"):
        journey_trace(trace, parts, Letters())

    class Breaks:
        tokens = Letters.tokens

        def text(self, tokens):
            raise IndexError("beyond the vocabulary")

    with pytest.raises(TaskError, match="another one wrote the"):
        journey_trace(trace, parts, Breaks())


@given(st.integers(0, 100_000))
@settings(max_examples=120, deadline=None)
def test_random_journeys_are_the_right_path_with_whole_detours(seed):
    """However a tree grew: the right path stands in order, what is between are wrong thoughts and known words, the
    tokens are those of the trace, and a reader finds the right answer only."""
    rng = random.Random(seed)
    trace = Trace(Problem("p", user_messages("?"), "4"), [Step(None, "?", letters("?"))])
    for number in range(rng.randint(1, 14)):
        parent = rng.choice([i for i, s in enumerate(trace.steps) if not s.done])
        done, right = rng.random() < 0.5, rng.random() < 0.4
        text = f"thought {number}. " + (f"\\boxed{{{4 if right else number + 10}}}" if done else "")
        tokens = ids([*letters(text), *([EOS] if done else [])])
        step = Step(parent, text, tokens, np.zeros(len(tokens), np.float32), "eos" if done else "stop")
        if done and rng.random() < 0.9:
            step.scores["accuracy"] = Score(float(right))
        elif rng.random() < 0.3:
            step.pruned = "not kept"
        step.scores["guide"] = Score(rng.random())
        step.visits = rng.randint(0, 4)
        trace.add(step)
    for one, parts in harvest_journeys(
        trace, "accuracy", FilterReport(), Provenance(), turns=3, depth=rng.randint(1, 4)
    ):
        path, wrong = one.row["from"]["steps"], one.row["from"]["wrong"]
        output = [p.step for p in parts if p.step is not None]
        assert [i for i in output if i in path] == path[1:] and sorted(output) == sorted([*path[1:], *wrong])
        assert not set(path) & set(wrong) and 1 <= one.row["turns"] <= 3
        assert all(best is None or best < 1 for best in (outcomes_by_step(trace, "accuracy")[i].best for i in wrong))
        assert FinalNumber().grade(one.text, "4").value == 1.0
        alone = journey_trace(trace, parts, Letters())
        assert alone is not None and [s.parent for s in alone.steps] == [None, *range(len(parts))]
        body = [int(t) for s in alone.steps[1:] for t in s.token_ids]
        assert "".join(map(chr, body[:-1])) == one.text and body[-1] == EOS and EOS not in body[:-1]


def test_compose_journey_orders_its_parts(grow):
    trace = grow(("a", [("b", 1.0), ("x", [])]))
    parts = compose_journey(trace, 2, [WrongTurn(1, (3,))], random.Random(0))
    assert parts is not None and [p.step for p in parts] == [1, 3, None, 2]
    assert np.all([p.text == trace.steps[p.step].text for p in parts if p.step is not None])
