"""Answers that are looked at again: refined, merged, and the graph of operations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ponder.errors import BudgetExhausted, ModelError, UsageError
from ponder.pipelines.solve import solve, try_solve
from ponder.reason.operators.follow_up import FollowUpQuestion, FollowUps
from ponder.reason.operators.refine import aggregate
from ponder.reason.strategies.graph_of_thoughts import SORTING_GRAPH, GraphOfThoughts, Improve, Merge, Solve, Split
from ponder.reason.strategies.self_refine import SelfRefine
from ponder.runs.job_json import decode, encode
from ponder.types import Completion, Ids, Problem, Sampling, Score, Trace, ids, user_messages

from .text_policy import TextPolicy, tree_rows

SHORT = {"critique_template": "C{question}{answer}", "template": "R{question}{answer}|{feedback}"}
PROBLEM = Problem("p", user_messages("Q"))


def think(strategy: Any, policy: Any, **more: Any) -> Trace:
    assert decode(encode(strategy)) == strategy
    return asyncio.run(solve(PROBLEM, strategy, policy, **more))


class Near:
    """The nearer to 42 the better; tells how far it is."""

    name = "near"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        off = [abs(42 - int(trace.text(i).removeprefix("Answer: "))) for i in steps]
        return [Score(1.0 - d / 100, f"off by {d}") for d in off]


def test_self_refine_equals_hand_count() -> None:
    trace = think(SelfRefine(**SHORT), TextPolicy(["Answer: 5", "too small", "Answer: 6", "No mistakes."]))
    assert tree_rows(trace) == [
        (None, "Q", False), (0, "Answer: 5", True),
        (None, "CQAnswer: 5", False), (2, "too small", True),
        (None, "RQAnswer: 5|What was found about this attempt:\ntoo small\n\n", False), (4, "Answer: 6", True),
        (None, "CQAnswer: 6", False), (6, "No mistakes.", True),
    ]  # fmt: skip
    assert trace.chosen == 5 and trace.answers() == [1, 5], "critiques are no answers"
    assert trace.steps[4].cites == (1,) and trace.steps[2].cites == (1,)


def test_self_refine_ends_when_nothing_changes() -> None:
    policy = TextPolicy(["Answer: 5", "so, Answer: 5.0", "never"])
    trace = think(SelfRefine(feedback="none", **SHORT), policy)
    assert len(policy.asked) == 2 and trace.chosen == 3
    rounds = think(SelfRefine(feedback="none", max_rounds=2, **SHORT), TextPolicy([f"Answer: {i}" for i in range(9)]))
    assert rounds.chosen == 5 and len(rounds.answers()) == 3


def test_guide_gives_feedback_and_the_best_attempt_is_chosen() -> None:
    policy = TextPolicy(["Answer: 40", "Answer: 41", "Answer: 7"])
    trace = think(SelfRefine(feedback="guide", max_rounds=2, **SHORT), policy, guide=Near())
    assert "off by 2" in policy.asked[1][0] and "off by 1" in policy.asked[2][0]
    assert trace.text(trace.chosen or 0) == "Answer: 41", "the last was worse"
    content = think(SelfRefine(feedback="guide", **SHORT), TextPolicy(["Answer: 42"]), guide=Near())
    assert len(content.steps) == 2
    with pytest.raises(UsageError, match="needs a guide"):
        think(SelfRefine(feedback="guide"), TextPolicy(["x"]))


def test_last_attempt_with_an_answer_is_chosen() -> None:
    unread = "x" * 300  # too long to be an answer by itself
    trace = think(SelfRefine(feedback="none", max_rounds=1, **SHORT), TextPolicy(["Answer: 5", unread]))
    assert trace.chosen == 1

    class Broken(Near):
        async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
            return []

    odd = think(
        SelfRefine(feedback="guide", max_rounds=1, **SHORT), TextPolicy(["Answer: 5", "Answer: 6"]), guide=Broken()
    )
    assert odd.chosen == 3 and odd.steps[1].scores["near"].value is None


def test_failed_attempt_leaves_earlier_attempts() -> None:
    policy = TextPolicy(
        ["Answer: 5", "bad"], fails=lambda t: ModelError("the context is full") if t[0] == "R" else None
    )
    trace = think(SelfRefine(**SHORT), policy)
    assert trace.chosen == 1 and trace.failed == "the context is full"
    with pytest.raises(ModelError):
        think(SelfRefine(**SHORT), TextPolicy([], fails=lambda t: ModelError("gone")))


class Counted(TextPolicy):
    """Answers so many calls, then says that the budget is used up."""

    left = 99

    async def generate(self, prefix: Any, sampling: Sampling, n: int = 1) -> Any:
        if not self.left:
            raise BudgetExhausted("no more calls")
        self.left -= 1
        return await super().generate(prefix, sampling, n)


def says(before: str, _: int) -> str:
    if before.startswith("C"):
        return "wrong"
    return f"Answer: {1 + int(result[-1])}" if (result := re.findall(r"\d+", before)) else "Answer: 1"


@pytest.mark.parametrize("first", range(7))
def test_self_refine_resumes(first: int) -> None:
    policy = Counted(says)
    once = think(SelfRefine(**SHORT), Counted(says))
    policy.left = first
    trace = think(SelfRefine(**SHORT), policy)
    assert (trace.chosen is None) == (first == 0)
    policy.left = 99
    asyncio.run(SelfRefine(**SHORT)(trace, policy))
    assert tree_rows(trace) == tree_rows(once) and trace.chosen == once.chosen
    asyncio.run(SelfRefine(**SHORT)(trace, policy))
    assert tree_rows(trace) == tree_rows(once)


def test_aggregate_cites_the_quoted_steps() -> None:
    trace = think(SelfRefine(feedback="none", max_rounds=1, **SHORT), TextPolicy(["Answer: 5", "Answer: 6"]))
    made = asyncio.run(aggregate(FollowUps(trace, policy := TextPolicy(["Answer: 7"])), [1, 3], Sampling()))
    assert made == [5] and trace.steps[4].cites == (1, 3)
    assert "Attempt 1:\nAnswer: 5\n\nAttempt 2:\nAnswer: 6" in policy.asked[0][0]


def test_follow_up_questions_are_asked_once() -> None:
    trace = Trace(PROBLEM, [])
    trace.add(think(SelfRefine(feedback="none", max_rounds=1), TextPolicy(["a", "a"])).steps[0])
    policy = TextPolicy(lambda t, j: f"{t}{j}")
    follow_ups = FollowUps(trace, policy)
    one, two = user_messages("one"), user_messages("two")
    asked = [
        FollowUpQuestion(one, (0,)),
        FollowUpQuestion(two, (0,)),
        FollowUpQuestion(one, (0,)),
        FollowUpQuestion(two, (), shared_prompt=True),
    ]
    result = asyncio.run(follow_ups.ask_all(asked, Sampling(), 2))
    assert result[0] == result[2] == [2, 3] and result[1] == [5, 6] and len(policy.asked) == 3
    assert asyncio.run(FollowUps(trace, policy).ask_all(asked[:2], Sampling(), 2)) == [[2, 3], [5, 6]]
    more = asyncio.run(FollowUps(trace, policy).ask_all(asked[:1], Sampling(), 3))
    assert more[0] == [2, 3, len(trace.steps) - 1]
    policy.fails = lambda t: ModelError("no") if t == "bad" else None
    mixed = asyncio.run(
        follow_ups.ask_all(
            [FollowUpQuestion(user_messages("bad"), ()), FollowUpQuestion(user_messages("fine"), ())], Sampling()
        )
    )
    assert isinstance(mixed[0], ModelError) and trace.steps[mixed[1][0]].text == "fine0"  # type: ignore[index]


# The graph: lists are sorted by a policy that can sort two numbers, and merge, but no more.


def sorts(before: str, j: int) -> str:
    lists = [[int(n) for n in re.findall(r"\d+", line)] for line in re.findall(r"\[[\d, ]*\]", before)]
    if "Do not sort yet" in before:
        (numbers,) = lists
        half = len(numbers) // 2
        return f"Here.\nPart: {numbers[:half]}\n Part: {numbers[half:]}"
    if before.startswith("Sort this"):
        return str(sorted(lists[0]) if j else lists[0])  # the first of three is wrong
    if before.startswith("Merge"):
        return str(sorted(lists[0] + lists[1]))
    return str(lists[-1])


LIST = Problem("s", user_messages("Sort [7, 3, 9, 1]"))


def test_graph_of_thoughts_sorts_by_splitting_and_merging() -> None:
    trace = asyncio.run(solve(LIST, SORTING_GRAPH, TextPolicy(sorts)))
    assert decode(encode(SORTING_GRAPH)) == SORTING_GRAPH
    assert [(s.parent, s.cites, s.text if s.sampled else "", s.meta) for s in trace.steps] == [
        (None, (), "", False),
        (None, (0,), "", False), (1, (), "Here.\nPart: [7, 3]\n Part: [9, 1]", True),
        (None, (2,), "", False), (3, (), "[7, 3]", True), (3, (), "[3, 7]", True), (3, (), "[3, 7]", True),
        (None, (2,), "", False), (7, (), "[9, 1]", True), (7, (), "[1, 9]", True), (7, (), "[1, 9]", True),
        (None, (5, 9), "", False), *[(11, (), "[1, 3, 7, 9]", False)] * 3,
        (None, (12,), "", False), (15, (), "[1, 3, 7, 9]", False),
    ]  # fmt: skip
    assert trace.chosen == 16 and trace.text(16) == "[1, 3, 7, 9]"


@pytest.mark.parametrize("first", range(7))
def test_graph_of_thoughts_resumes(first: int) -> None:
    policy = Counted(sorts)
    policy.left = first
    once = asyncio.run(solve(LIST, SORTING_GRAPH, TextPolicy(sorts)))
    trace = asyncio.run(solve(LIST, SORTING_GRAPH, policy))
    assert (trace.chosen is None) == (first < 4), "halves are no answers"
    assert first >= 4 or not trace.answers()
    policy.left = 99
    asyncio.run(SORTING_GRAPH(trace, policy))
    assert sorted(map(str, tree_rows(trace))) == sorted(map(str, tree_rows(once)))
    assert trace.text(trace.chosen or 0) == once.text(once.chosen or 0)


def test_a_guide_keeps_the_best_solution_and_the_better_of_two() -> None:
    graph = GraphOfThoughts((Solve(3), Improve(1, "R{answer}")))
    policy = TextPolicy(["Answer: 1", "Answer: 41", "Answer: 50", "Answer: 3"])
    trace = think(graph, policy, guide=Near())
    assert trace.text(trace.chosen or 0) == "Answer: 41"
    alone = think(graph, TextPolicy(["Answer: 1", "Answer: 41", "Answer: 50", "Answer: 3"]))
    assert alone.text(alone.chosen or 0) == "Answer: 3"


def test_unsplittable_thought_passes_through_whole() -> None:
    trace = think(GraphOfThoughts(), TextPolicy(["I would rather not.", "Answer: 4", "Answer: 4"]))
    assert trace.text(trace.chosen or 0) == "Answer: 4" and not trace.steps[trace.chosen or 0].meta


def test_merging_pairs_until_one_is_left() -> None:
    parts = "\n".join(f"Part: {c}" for c in "abcde")
    joins = lambda t, j: "".join(re.findall(r":\n(\w+)", t)) if t.startswith("M") else (parts if "Split" in t else t)  # noqa: E731
    trace = think(GraphOfThoughts((Split(5), Solve(), Merge(1, 2, "M{thoughts}"))), TextPolicy(joins))
    assert trace.text(trace.chosen or 0) == "abcde"
    assert [s.text for s in trace.steps if s.sampled][6:] == ["ab", "cd", "abcd", "abcde"]


def test_a_part_that_fails_fails_the_graph() -> None:
    policy = TextPolicy(sorts, fails=lambda t: ModelError("refused") if "[9, 1]" in t and "Sort this" in t else None)
    with pytest.raises(ModelError, match="refused"):
        asyncio.run(solve(LIST, SORTING_GRAPH, policy))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GraphOfThoughts(()), "ends with an answer"),
        (lambda: GraphOfThoughts((Solve(), Split())), "ends with"),
        (lambda: GraphOfThoughts((Merge(),)), "let Solve come"),
        (lambda: GraphOfThoughts((Split(), Improve())), "let Solve come"),
        (lambda: Split(1), "at least 2"),
        (lambda: Solve(0), "at least one"),
        (lambda: Merge(merge_size=1), "0, 2 or more"),
        (lambda: Improve(0), "leave"),
        (lambda: SelfRefine(max_rounds=0), "use a chain"),
        (lambda: SelfRefine(feedback="slf"), "Did you mean 'self'"),
        (lambda: SelfRefine(critique_template="?"), "{question}"),
        (lambda: Solve(template="?"), "{part}"),
    ],
)
def test_invalid_settings_are_refused(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


def silent_after(count: int) -> TextPolicy:
    """Answers so many times, then with no tokens at all."""

    class Mute(TextPolicy):
        def _completion(self, text: str, prefix: Ids, sampling: Sampling) -> Completion:
            if len(self.asked) > count:
                return Completion("", ids([]), np.zeros(0, np.float32), "stop")
            return super()._completion(text, prefix, sampling)

    return Mute(lambda before, j: f"= {len(before)}")


@pytest.mark.parametrize("answers", range(6))
@pytest.mark.parametrize(
    "how", [SelfRefine(), SelfRefine(feedback="none"), GraphOfThoughts(), GraphOfThoughts((Solve(2), Improve()))]
)
def test_empty_attempt_is_never_chosen(how: Any, answers: int) -> None:
    trace = asyncio.run(try_solve(Problem("p", user_messages("Q")), how, silent_after(answers)))
    if trace.chosen is not None:
        assert trace.steps[trace.chosen].done and not trace.steps[trace.chosen].pruned and trace.text(trace.chosen)
    else:
        assert "nothing was written" in trace.failed
    assert trace.chosen is not None or answers < 4
