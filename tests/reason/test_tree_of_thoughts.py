"""Trees of thoughts: small ones by hand, and the published ones to the last choice."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ponder.errors import ModelError, UsageError
from ponder.pipelines.solve import solve
from ponder.reason.budget import Budget
from ponder.reason.operators.cut import CUTS
from ponder.reason.operators.self_evaluate import TREE_OF_THOUGHTS_SCALE, score_from_replies
from ponder.reason.strategies.tree_of_thoughts import (
    BELOW_THRESHOLD,
    NOT_KEPT,
    TREE_OF_THOUGHTS_GAME_OF_24,
    TreeOfThoughts,
)
from ponder.reason.strategies.tree_of_thoughts_prompts import GAME_OF_24_PROMPTS, GENERAL_PROMPTS, ThoughtPrompts
from ponder.runs.job_json import decode, encode
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Problem, Sampling, Score, Trace, user_messages
from ponder.verify import GameOf24Verifier

from .text_policy import TextPolicy, tree_rows

PLAIN = ThoughtPrompts(propose="P{question}|{thoughts}", value="V{thoughts}", answer="A{thoughts}", vote="W{choices}")
SMALL = TreeOfThoughts(depth=2, beam_width=2, thoughts_per_step=3, evaluations_per_thought=1, prompts=PLAIN)


def think(strategy: TreeOfThoughts, policy: TextPolicy, tokens: int | None = None, **more: Any) -> Trace:
    assert decode(encode(strategy)) == strategy
    problem = Problem("p", user_messages("Q"))
    return asyncio.run(solve(problem, strategy, policy, budget=Budget(tokens) if tokens else None, **more))


def by_rule(before: str, _: int) -> str:
    """Proposes three letters; `b` and `c` are sure, `a` is likely."""
    if before.startswith("P"):
        return "a\n\n- b\n3. c\nd"
    if before.startswith("V"):
        last = before.strip()[-1]
        return {"a": "hm\nlikely", "b": "sure.", "c": "It is: Sure"}.get(last, "Answer, so: impossible")
    return {"a": "Answer: 0", "b": "Answer: 1", "c": "Answer: 2"}[before[-1]]


def test_breadth_first_equals_hand_count() -> None:
    trace = think(SMALL, TextPolicy(by_rule))
    assert tree_rows(trace) == [
        (None, "Q", False),
        (None, "PQ|(nothing yet)", False), (1, "a\n\n- b\n3. c\nd", True),
        (0, "a\n", False), (0, "b\n", False), (0, "c\n", False),
        (None, "Va", False), (6, "hm\nlikely", True), (None, "Vb", False), (8, "sure.", True),
        (None, "Vc", False), (10, "It is: Sure", True),
        (None, "Ab", False), (12, "Answer: 1", True), (None, "Ac", False), (14, "Answer: 2", True),
        (4, "Answer: 1\n", False), (5, "Answer: 2\n", False),
        (None, "Vb\nAnswer: 1", False), (18, "Answer, so: impossible", True),
        (None, "Vc\nAnswer: 2", False), (20, "Answer, so: impossible", True),
    ]  # fmt: skip
    assert [trace.score(i, "self_value") for i in (3, 4, 5, 16, 17)] == [1.0, 20.0, 20.0, 0.001, 0.001]
    assert trace.steps[3].pruned == NOT_KEPT and trace.chosen == 16 and trace.answers() == [16, 17]
    assert trace.steps[12].cites == (4,) and trace.steps[16].cites == (13,) and trace.steps[8].cites == (4,)
    assert all(trace.steps[i].meta for i in (2, 7, 9, 11, 13, 15, 19, 21)), "questions are no answers"
    assert trace_to_json(trace_from_json(trace_to_json(trace))) == trace_to_json(trace)


def test_calling_again_changes_nothing_and_wider_takes_up_what_was_dropped() -> None:
    policy = TextPolicy(by_rule)
    trace = think(SMALL, policy)
    before, asked = trace_to_json(trace), len(policy.asked)
    asyncio.run(SMALL(trace, policy))
    assert trace_to_json(trace) == before and len(policy.asked) == asked
    asyncio.run(replace(SMALL, beam_width=3)(trace, policy))
    assert trace.steps[3].pruned == "" and len(trace.answers()) == 3


@pytest.mark.parametrize("search", ["bfs", "dfs"])
@pytest.mark.parametrize("tokens", range(1, 90, 4))
def test_tree_of_thoughts_keeps_its_budget(search: str, tokens: int) -> None:
    how = replace(SMALL, search=search)  # type: ignore[arg-type]
    trace = think(how, TextPolicy(by_rule), tokens)
    assert trace.cost.generated_tokens <= tokens and (trace.budget_exhausted or trace.answers())
    rated = [i for i, s in enumerate(trace.steps) if "self_value" in s.scores]
    assert (trace.chosen is None) == (not rated), "what there is decides"


def test_resume_gives_the_same_tree() -> None:
    class LimitedSpeaker(TextPolicy):
        """Answers so many calls, then says that the budget is used up."""

        left = 0

        async def generate(self, prefix: Any, sampling: Sampling, n: int = 1) -> Any:
            from ponder.errors import BudgetExhausted

            if not self.left:
                raise BudgetExhausted("no more calls")
            self.left -= 1
            return await super().generate(prefix, sampling, n)

    for how in (SMALL, replace(SMALL, search="dfs", max_answers=2), replace(SMALL, evaluation="vote")):
        once = think(how, TextPolicy(by_vote if how.evaluation == "vote" else by_rule))
        for first in range(12):
            policy = LimitedSpeaker(by_vote if how.evaluation == "vote" else by_rule)
            policy.left = first
            trace = think(how, policy)
            policy.left = 99
            asyncio.run(how(trace, policy))
            assert sorted(map(str, tree_rows(trace))) == sorted(map(str, tree_rows(once))) or how.search == "bfs"
            assert {trace.text(i) for i in trace.answers()} == {once.text(i) for i in once.answers()}
            assert trace.chosen is not None and once.chosen is not None
            assert trace.text(trace.chosen) == once.text(once.chosen)


def by_vote(before: str, j: int) -> str:
    if before.startswith("W"):
        return "so\nThe best choice is 2." if "Choice 2" in before else "The best choice is **1**"
    return by_rule(before, j)


def test_votes_decide() -> None:
    trace = think(replace(SMALL, evaluation="vote", evaluations_per_thought=3, beam_width=1), TextPolicy(by_vote))
    first = list(trace.children(0))
    assert [trace.score(i, "self_vote") for i in first] == [0.0, 3.0, 0.0]
    assert trace.chosen is not None and trace.text(trace.chosen) == "b\nAnswer: 1\n"
    lost = think(replace(SMALL, evaluation="vote"), TextPolicy(lambda t, j: "none" if t[0] == "W" else by_rule(t, j)))
    assert lost.steps[first[0]].scores["self_vote"] == Score(None, "none of 1 replies names a choice")


def test_resume_does_not_repeat_votes() -> None:
    how = replace(SMALL, search="dfs", evaluation="vote", evaluations_per_thought=2, max_answers=3)
    policy = TextPolicy(by_vote)
    trace = think(how, policy)
    before, asked = trace_to_json(trace), len(policy.asked)
    asyncio.run(how(trace, policy))
    assert trace_to_json(trace) == before and len(policy.asked) == asked


def test_depth_first_backtracks_from_low_values() -> None:
    def says(before: str, _: int) -> str:
        if before.startswith("P"):
            thoughts = before.split("|")[1]
            return {"(nothing yet)": "a\nb", "a": "c\nd", "b": "e"}[thoughts.replace("\n", "")]
        if before.startswith("V"):
            return {"a": "sure", "b": "likely", "c": "impossible", "d": "impossible", "e": "likely"}.get(
                before.strip()[-1], "sure"
            )
        return "Answer: 7"

    how = TreeOfThoughts("dfs", depth=3, thoughts_per_step=2, evaluations_per_thought=1, threshold=0.5, prompts=PLAIN)
    policy = TextPolicy(says)
    trace = think(how, policy)
    assert [s.text for s in trace.steps if s.parent is not None and not s.meta] == [
        "a\n", "b\n", "c\n", "d\n", "e\n", "Answer: 7\n",
    ]  # fmt: skip
    pruned = [s.text for s in trace.steps if s.pruned == BELOW_THRESHOLD]
    assert pruned == ["c\n", "d\n"] and trace.chosen is not None
    assert trace.text(trace.chosen) == "b\ne\nAnswer: 7\n"
    before, asked = trace_to_json(trace), len(policy.asked)
    asyncio.run(how(trace, policy))
    assert trace_to_json(trace) == before and len(policy.asked) == asked
    asyncio.run(replace(how, threshold=0.0, max_answers=2)(trace, policy))
    assert not any(s.pruned == BELOW_THRESHOLD for s in trace.steps) and len(trace.answers()) == 3
    short = think(replace(how, max_expansions=2), TextPolicy(says))
    assert short.answers() == [] and short.chosen is not None and short.text(short.chosen) == "a\n"


def test_sampled_thoughts_are_the_policys_own_tokens() -> None:
    lines = iter(["x\n", "y\n", "x\n", "1", "2", "3", "4", "5", "6"])
    policy = TextPolicy(lambda t, j: {"V": "likely"}.get(t[0]) or next(lines))
    trace = think(replace(SMALL, generation="sample", beam_width=1, thoughts_per_step=3, cut=CUTS["line"]), policy)
    first = list(trace.children(0))
    assert [trace.steps[i].text for i in first] == ["x\n", "y\n", "x\n"] and all(trace.steps[i].sampled for i in first)
    assert trace.steps[first[2]].scores["self_value"] == Score(0.0, "the same thought again")
    short = replace(
        SMALL, generation="sample", beam_width=1, thoughts_per_step=1, cut=CUTS["line"], sampling=Sampling(max_tokens=6)
    )
    bounded = think(short, TextPolicy(lambda t, j: "likely" if t[0] == "V" else "xxx\n" if t == "Q" else "y" * 9))
    assert bounded.chosen is not None and bounded.text(bounded.chosen) == "xxx\nyy", "max_tokens are for the whole"
    ends = trace.children(first[0])
    assert [trace.steps[i].text for i in ends] == ["1", "2", "3"] and trace.chosen == ends[0]


def test_guide_replaces_self_evaluation() -> None:
    class Late:
        name = "late"

        async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
            return [Score(float(ord(trace.text(i).strip()[-1]))) for i in steps]

    policy = TextPolicy(by_rule)
    trace = think(replace(SMALL, beam_width=1), policy, guide=Late())
    assert trace.chosen is not None and trace.text(trace.chosen) == "c\nAnswer: 2\n"
    assert not any(text.startswith("V") for text, _, _ in policy.asked)

    class Negative(Late):
        name = "low"

        async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
            return [Score(-3.0) for _ in steps]

    below = think(
        replace(SMALL, beam_width=1, depth=1), TextPolicy(lambda *_: "Answer: x\nAnswer: x"), guide=Negative()
    )
    assert [below.score(i, "low") for i in below.children(0)] == [-3.0, None] and below.chosen == 3

    class Broken(Late):
        async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
            raise RuntimeError("out of memory")

    blind = think(SMALL, TextPolicy(by_rule), guide=Broken())
    assert "out of memory" in blind.steps[3].scores["late"].reason
    assert blind.chosen is None and "out of memory" in blind.failed, "unknown is not the best"


def test_failed_branch_is_pruned() -> None:
    policy = TextPolicy(by_rule, fails=lambda t: ModelError("the context is full") if t == "Ab" else None)
    trace = think(SMALL, policy)
    assert trace.steps[4].pruned == "the context is full"
    assert trace.chosen is not None and trace.text(trace.chosen) == "c\nAnswer: 2\n"
    deep = replace(SMALL, search="dfs")
    back = think(deep, TextPolicy(by_rule, fails=lambda t: ModelError("the context is full") if t == "Ab" else None))
    assert back.steps[4].pruned == "the context is full" and back.text(back.chosen or 0) == "c\nAnswer: 2\n"
    with pytest.raises(ModelError, match="gone"):
        think(deep, TextPolicy(by_rule, fails=lambda t: ModelError("gone")))
    with pytest.raises(ModelError, match="gone"):
        think(SMALL, TextPolicy(by_rule, fails=lambda t: ModelError("gone")))
    silent = think(SMALL, TextPolicy(lambda *_: ""))
    assert silent.chosen is None and silent.steps[0].pruned == "no thought was proposed after it"


def test_value_is_the_papers_sum() -> None:
    assert score_from_replies(["sure", "x\nlikely", "impossible"], TREE_OF_THOUGHTS_SCALE).value == 21.001
    assert score_from_replies(["sure"] * 3, TREE_OF_THOUGHTS_SCALE).value == 60.0
    assert score_from_replies(["<think>likely</think>sure", "", "maybe"], TREE_OF_THOUGHTS_SCALE).value == 20.0
    assert score_from_replies(["I am not sure", "sure or likely", "**Likely**"], TREE_OF_THOUGHTS_SCALE).value == 1.0
    assert score_from_replies(["?"], TREE_OF_THOUGHTS_SCALE) == Score(
        None, "none of 1 replies ends with impossible, likely, sure"
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TreeOfThoughts("bsf"), "Did you mean 'bfs'"),
        (lambda: TreeOfThoughts(depth=0), "depth is 0"),
        (lambda: TreeOfThoughts(generation="sample", thoughts_per_step=0), "number of thoughts to sample"),
        (lambda: ThoughtPrompts(state_pattern="("), "no regular expression"),
        (lambda: ThoughtPrompts(vote="?"), "{choices}"),
        (lambda: ThoughtPrompts(scale=()), "scale is empty"),
    ],
)
def test_invalid_settings_are_refused(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


def test_game_of_24_prompt_shows_remaining_numbers() -> None:
    problem = Problem("24", user_messages("4 5 6 10"))
    first = GAME_OF_24_PROMPTS.propose_messages(problem, "", 0, last=False)[0]["content"]
    assert first.endswith("Numbers: 4 5 6 10\n")
    then = GAME_OF_24_PROMPTS.propose_messages(problem, "4 * 5 = 20 (left: 6 10 20)\n", 0, last=False)[0]["content"]
    assert then.endswith("Numbers: 6 10 20\n")
    done = GAME_OF_24_PROMPTS.propose_messages(problem, "4 + 20 = 24 (left: 24)\n", 0, last=False)[0]["content"]
    assert "one expression" in done and done.endswith("Numbers: 4 5 6 10\n4 + 20 = 24 (left: 24)\n")
    assert "Answer: 4 + 20 = 24" in GAME_OF_24_PROMPTS.value_messages(problem, "a\nAnswer: 4 + 20 = 24\n")[0]["content"]
    assert GENERAL_PROMPTS.parse_thoughts("So:\n- Answer: 3\n", 5, last=True) == ["Answer: 3\n"]
    assert GENERAL_PROMPTS.parse_thoughts("It is 3.\n\nI think.", 5, last=True) == ["It is 3.\n\nI think.\n"]
    assert GENERAL_PROMPTS.parse_thoughts("<think>hm\n", 5) == [] and GENERAL_PROMPTS.parse_thoughts(
        "<think>a</think>\nb", 5
    ) == ["b\n"]
    assert GENERAL_PROMPTS.parse_thoughts("1. one\n\n2) two\n- three\n4", 9) == ["one\n", "two\n", "three\n", "4\n"]


LOGS = Path(os.environ.get("PONDER_DATA", "")) / "logs/tree_of_thoughts_game24"


@pytest.mark.skipif("PONDER_DATA" not in os.environ, reason="the logged trees are in the folder PONDER_DATA")
def test_faithful_to_the_published_breadth_first_trees() -> None:
    """With the log's proposals and ratings, our search makes the published choices: 400 of 400, and 69 are solved."""
    logs = json.loads((LOGS / "gpt-4_0.7_propose1_value3_greedy5_start900_end1000.json").read_text())
    traces: list[Trace] = []

    async def all_of_them() -> None:
        for log in logs:
            traces.append(await replayed(log))

    asyncio.run(all_of_them())
    exact = solved = 0
    for log, trace in zip(logs, traces, strict=True):
        exact += sum(level == s["select_new_ys"] for level, s in zip(levels(trace), log["steps"], strict=True))
        ends = [trace.text(i) for i in trace.answers()]
        assert sorted(ends) == sorted(log["ys"])
        message = [f"\\boxed{{{end.strip().partition('Answer: ')[2]}}}" for end in ends]
        right = [GameOf24Verifier().grade(text, log["steps"][0]["x"]) for text in message]
        output = {y: info["r"] for y, info in zip(log["ys"], log["infos"], strict=True)}
        assert [bool(r.value) for r in right] == [output[end] == 1 for end in ends]
        solved += any(r.value for r in right)
    assert (exact, len(logs) * 4, solved) == (400, 400, 69)


async def replayed(log: Any) -> Trace:
    """A policy that says what the log says: proposals in order, and ratings by what they are about."""
    problem = Problem(str(log["idx"]), user_messages(log["steps"][0]["x"]))
    proposals: dict[str, list[str]] = {}
    ratings: dict[str, list[str]] = {}
    for number, step in enumerate(log["steps"], 1):
        left = list(step["new_ys"])
        for place, y in enumerate(step["ys"]):
            mine = [n for n in left if n.startswith(y)]
            if step["ys"].count(y) > 1:  # the same thought kept twice: the second reply begins where lines repeat
                again = next(i for i, n in enumerate(mine) if n in mine[:i])
                mine = mine[:again] if y not in step["ys"][:place] else mine[again:]
            asked = GAME_OF_24_PROMPTS.propose_messages(problem, y, 0, last=number == 4)[0]["content"]
            proposals.setdefault(asked, []).append("\n".join(n[len(y) : -1] for n in mine))
        for y, total in zip(step["new_ys"], step["values"], strict=True):
            ratings.setdefault(GAME_OF_24_PROMPTS.value_messages(problem, y)[0]["content"], words(total))

    def says(before: str, j: int) -> str:
        return ratings[before][j] if before in ratings else proposals[before].pop(0)

    return await solve(problem, TREE_OF_THOUGHTS_GAME_OF_24, TextPolicy(says, width=10_000))


def words(total: float) -> list[str]:
    """Three replies that are worth so much."""
    sure, rest = divmod(round(total * 1000), 20_000)
    likely, impossible = divmod(rest, 1000)
    text = ["sure"] * sure + ["likely"] * likely + ["impossible"] * impossible
    assert len(text) <= 3
    return text + ["?"] * (3 - len(text))


def levels(trace: Trace) -> list[list[str]]:
    """What was kept of each level, best first."""
    out, beam = [], [0]
    for _ in range(4):
        below = [c for i in beam for c in trace.children(i)]
        kept = [c for c in below if not trace.steps[c].pruned]
        beam = sorted(kept, key=lambda i: trace.steps[i].value, reverse=True)
        out.append([trace.text(i) for i in beam])
    return out


def test_answer_is_kept_when_other_branches_fail() -> None:
    """The beam holds an answer and a thought, and the thought cannot be thought on."""

    def says(before: str, _: int) -> str:
        return "Answer: 1\nb" if before.startswith("P") else "sure"

    policy = TextPolicy(says, fails=lambda t: ModelError("the context is full") if t == "Ab" else None)
    trace = think(SMALL, policy)
    assert trace.chosen is not None and trace.text(trace.chosen) == "Answer: 1\n" and not trace.failed
    assert "the context is full" in [s.pruned for s in trace.steps]


def test_undecided_thoughts_are_not_expanded() -> None:
    class Half:
        name = "half"

        async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
            return [Score(None, "no idea") if "a" in trace.text(i) else Score(-5.0) for i in steps]

    trace = think(replace(SMALL, beam_width=9), TextPolicy(by_rule), guide=Half())
    assert {s.pruned for s in trace.steps if s.text == "a\n"} == {"no score: no idea"}
    assert trace.chosen is not None and "a" not in trace.text(trace.chosen).split("Answer")[0]
