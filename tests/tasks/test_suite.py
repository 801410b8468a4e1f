"""The built-in suite: enough questions, one answer each, solved again by other means, and the same for a version."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
from collections import Counter
from typing import Any

import pytest

from ponder.errors import TaskError, UnknownName, UsageError
from ponder.runs import job_json
from ponder.tasks import TASKS, Suite
from ponder.tasks.suite.question import SuiteQuestion
from ponder.tasks.suite.suite_task import CATEGORIES, category_questions
from ponder.types import Problem, Step, Trace, ids, prompt_trace

# What version 1 is. A change of any question or answer changes this: then raise the version, and keep both if you can.
VERSION_1 = "7f2b7dcb6d4656e0"


def kind(category: str, name: str) -> list[SuiteQuestion]:
    result = [item for item in category_questions(category) if item.kind == name]
    assert len(result) >= 10
    return result


def correct_text(item: SuiteQuestion) -> str:
    """What the item says is right, in words."""
    return str(item.answer.get("number") or item.answer["options"][item.answer["choice"]])


def score_text(task: Suite, problem: Problem, text: str) -> float | None:
    trace: Trace = prompt_trace(problem, ids([0]))
    trace.add(Step(0, text, ids([0]), stop="eos"))
    (score,) = asyncio.run(task.verifier(trace, [1]))
    return score.value


def test_at_least_fifty_of_each_and_no_question_twice() -> None:
    for category in CATEGORIES:
        assert len(category_questions(category)) >= 50
        assert len({item.question for item in category_questions(category)}) == len(category_questions(category))
    assert len({p.id for p in Suite().test}) == len(Suite().test) == sum(len(category_questions(c)) for c in CATEGORIES)


def test_a_version_is_the_same_everywhere() -> None:
    output = json.dumps(
        [[c, i.kind, i.question, i.answer] for c in CATEGORIES for i in category_questions(c)], sort_keys=True
    )
    assert hashlib.sha256(output.encode()).hexdigest()[:16] == VERSION_1
    assert all(p.tags["version"] == 1 for p in Suite().test)
    assert "version" in job_json.encode(Suite()), "so that a run says which it was"


@pytest.mark.parametrize("think", [True, False])
def test_gold_is_right_and_everything_else_is_wrong(think: bool) -> None:
    task = Suite(think=think)
    for problem in task.test:
        assert score_text(task, problem, task.gold(problem)) == 1.0
        if "number" in problem.answer:
            assert score_text(task, problem, f"\\boxed{{{int(problem.answer['number']) + 1}}}") == 0.0
        else:
            for letter in problem.answer["options"]:
                right = letter == problem.answer["choice"]
                assert score_text(task, problem, f"\\boxed{{{letter}}}") == float(right)
    assert score_text(task, task.test[0], "no idea") == 0.0
    assert score_text(task, task.test[0], task.test[0].question) == 0.0


def test_thinking_is_a_matter_of_the_prompt_only() -> None:
    with_it, without = Suite().test, Suite(think=False).test
    assert [p.answer for p in with_it] == [p.answer for p in without]
    assert all("step by step" in p.question for p in with_it)
    assert all("without explanation" in p.question and "step by step" not in p.question for p in without)
    number = next(p for p in without if "number" in p.answer)
    assert score_text(Suite(think=False), number, number.answer["number"]) == 1.0, (
        "a bare answer is enough where asked for"
    )
    assert score_text(Suite(), number, number.answer["number"]) == 0.0


def test_answer_letters_are_balanced() -> None:
    for category in ("deduction", "spatial", "common-sense"):
        letters = Counter(
            i.answer["choice"] for i in category_questions(category) if len(i.answer.get("options", "")) == 4
        )
        assert max(letters.values()) <= 0.45 * sum(letters.values())


def test_extract_answer_supports_votes() -> None:
    read = Suite().verifier.extract_answer
    assert read("so \\boxed{12}") == read("\\boxed{12.0}") == "12"
    assert read("\\boxed{(B)}") == read("The answer is B.") == "B"
    assert read("hm") is None


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UnknownName, match="'deduction'"):
        Suite(categories=("deducton",))
    with pytest.raises(UsageError, match="twice"):
        Suite(categories=("spatial", "spatial"))
    with pytest.raises(UsageError, match="no version 2"):
        Suite(version=2)
    with pytest.raises(TaskError, match="made to measure with"):
        Suite().train  # noqa: B018
    assert {p.tags["category"] for p in Suite(categories=("spatial",)).test} == {"spatial"}
    assert TASKS["suite"] is Suite


# Solved again, from the words alone


def test_expressions_by_python() -> None:
    for item in kind("arithmetic", "expression"):
        result = re.fullmatch(r"What is ([\d+*()\- ]+)\?", item.question)
        assert result
        assert eval(result[1]) == int(correct_text(item))


def test_stories_by_other_arithmetic() -> None:
    for item in kind("arithmetic", "shopping"):
        n, p, m, q, paid = map(int, re.findall(r"\d+", item.question))
        assert int(correct_text(item)) == paid - n * p - m * q >= 0
    for item in kind("arithmetic", "sharing"):
        total, eaten, people = map(int, re.findall(r"\d+", item.question))
        assert int(correct_text(item)) == (total - eaten) % people
    for item in kind("arithmetic", "percentage"):
        base, off, wrapping = map(int, re.findall(r"\d+", item.question))
        assert int(correct_text(item)) == pytest.approx(base * (1 - off / 100) + wrapping)
    for item in kind("arithmetic", "hours"):
        h, m, hh, mm = map(int, re.findall(r"\d+", item.question))
        assert int(correct_text(item)) == (60 * (hh - h) + mm - m) % 1440


def test_orders_follow_from_their_clues() -> None:
    ranks = {"the tallest": 0, "the second tallest": 1, "in the middle": 2, "the second shortest": 3, "the shortest": 4}
    for item in kind("deduction", "ordering"):
        clues = re.findall(r"(\w+) is (taller|shorter) than (\w+)\.", item.question)
        people = list(item.answer["options"].values())
        asked = re.search(r"who is ([a-z ]+)\?", item.question)
        assert asked
        fits = {
            order[ranks[asked[1]]]
            for order in itertools.permutations(people)
            if all((order.index(a) < order.index(b)) == (how == "taller") for a, how, b in clues)
        }
        assert fits == {correct_text(item)}


def test_syllogisms_in_small_worlds() -> None:
    """Up to three things of each kind, in place of regions: other models, the same verdicts."""
    words: dict[str, Any] = {"All": lambda a, b: a <= b, "No": lambda a, b: not a & b, "Some": lambda a, b: bool(a & b)}
    universe = range(4)
    sets = [frozenset(c) for n in range(1, 5) for c in itertools.combinations(universe, n)]
    for item in kind("deduction", "syllogism"):
        matches = re.findall(r"(All|No|Some) (\w+)s are (\w+)s\.", item.question)
        *premises, asked = matches
        names = sorted({w for _, a, b in matches for w in (a, b)})
        truths = set()
        for world in itertools.product(sets, repeat=3):
            of = dict(zip(names, world, strict=True))
            if all(words[q](of[a], of[b]) for q, a, b in premises):
                truths.add(words[asked[0]](of[asked[1]], of[asked[2]]))
        verdict = {(True,): "It must be true", (False,): "It must be false"}.get(tuple(truths), "It cannot be known")
        assert correct_text(item) == verdict
    assert len({correct_text(i) for i in kind("deduction", "syllogism")}) == 3


def test_implications_by_following_the_chain() -> None:
    for item in kind("deduction", "implication"):
        ifs = dict(re.findall(r"If ([a-z ]+), then ([a-z ]+)\.", item.question))
        fact = re.search(r"It is (true|false) that ([a-z ]+)\. Consider: ([a-z ]+)\.", item.question)
        assert fact
        value, known, asked = fact[1], fact[2], fact[3]

        def reaches(a: str, b: str, ifs: dict[str, str] = ifs) -> bool:
            while a in ifs:
                a = ifs[a]
                if a == b:
                    return True
            return False

        if value == "true" and reaches(known, asked):
            expected = "It must be true"
        elif value == "false" and reaches(asked, known):
            expected = "It must be false"
        else:
            expected = "It cannot be known"
        assert correct_text(item) == expected


def test_liars_by_words() -> None:
    for item in kind("deduction", "liars"):
        matches = re.findall(r'(\w+) says: "([^"]+)\."', item.question)
        people = [p for p, _ in matches]

        def holds(text: str, honest: dict[str, bool]) -> bool:
            names = [w for w in re.findall(r"[A-Z]\w+", text) if w in honest]
            if "same kind" in text:
                return honest[names[0]] == honest[names[1]]
            if "exactly one" in text:
                return [honest[n] for n in names].count(False) == 1
            return honest[names[0]] == text.endswith("tells the truth")

        ways = []
        for flags in itertools.product((True, False), repeat=3):
            honest = dict(zip(people, flags, strict=True))
            if all(holds(text, honest) == honest[p] for p, text in matches):
                ways.append({p for p in people if honest[p]})
        assert len(ways) == 1
        named = set(re.findall(r"[A-Z]\w+", correct_text(item)))
        assert named == ways[0]


def test_pets_by_exclusion() -> None:
    for item in kind("deduction", "matching"):
        nots = re.findall(r"(\w+) does not own the (\w+)\.", item.question)
        people = re.findall(r"[A-Z]\w+", item.question.partition(" own a ")[0])
        pets = [text.removeprefix("the ") for text in item.answer["options"].values()]
        asked = re.search(r"What does (\w+) own", item.question)
        assert asked and len(people) == 3
        ways = [dict(zip(people, o, strict=True)) for o in itertools.permutations(pets)]
        left = [w for w in ways if all(w[p] != pet for p, pet in nots)]
        assert len(left) == 1
        assert correct_text(item) == f"the {left[0][asked[1]]}"


WAYS = {"north": 1j, "south": -1j, "east": 1, "west": -1}
WINDS: dict[str, complex] = {"-".join(w): sum(WAYS[x] for x in w) for w in (
    ("north",), ("north", "east"), ("east",), ("south", "east"), ("south",), ("south", "west"), ("west",),
    ("north", "west"),
)}  # fmt: skip


def towards(z: complex) -> str:
    parts = [("north" if z.imag > 0 else "south") * (z.imag != 0), ("east" if z.real > 0 else "west") * (z.real != 0)]
    return "-".join(filter(None, parts))


def nearest(at: complex) -> str:
    """Of the eight winds, by the angle: what one may also say where a way is nearly straight."""
    return max(WINDS, key=lambda wind: (WINDS[wind].conjugate() * at).real / abs(WINDS[wind]))


def test_walks_with_complex_numbers() -> None:
    for item in kind("spatial", "walk"):
        facing: complex = 0
        at: complex = 0
        for word in re.findall(r"facing (\w+)|turn (\w+)|walk (\d+)", item.question):
            if word[0]:
                facing = WAYS[word[0]]
            elif word[1]:
                facing *= {"left": 1j, "right": -1j, "around": -1}[word[1]]
            else:
                at += int(word[2]) * facing
        assert correct_text(item) == towards(-at)
        assert nearest(-at) not in set(item.answer["options"].values()) - {correct_text(item)}


def test_layouts_with_complex_numbers() -> None:
    for item in kind("spatial", "layout"):
        text = item.question.partition("In which")[0]
        at = sum(int(far) * WAYS[wind] for far, wind in re.findall(r"(\d+) metres? (\w+)", text))
        assert correct_text(item) == towards(at)
        assert nearest(at) not in set(item.answer["options"].values()) - {correct_text(item)}


def test_squares_by_index() -> None:
    """Where a place's letter came from, followed backwards."""
    back: dict[str, Any] = {
        "turned a quarter clockwise": lambda r, c: (2 - c, r),
        "turned a quarter anticlockwise": lambda r, c: (c, 2 - r),
        "turned by half": lambda r, c: (2 - r, 2 - c),
        "mirrored left to right": lambda r, c: (r, 2 - c),
    }
    rows = {"top": 0, "bottom": 2}
    columns = {"left": 0, "middle": 1, "right": 2}
    for item in kind("spatial", "turning"):
        head, a, b, c, asked, *_ = item.question.split("\n")
        moves = head.removeprefix("This square of letters is ").rstrip(":").split(", then ")
        place = re.search(r"at the (\w+) (\w+)\?", asked)
        assert place
        r, col = rows[place[1]], columns[place[2]]
        for move in reversed(moves):
            r, col = back[move](r, col)
        assert correct_text(item) == [line.split() for line in (a, b, c)][r][col]


def test_dice_by_rolling_all_six_faces() -> None:
    roll = {  # which face comes to each of: top, bottom, north, south, east, west
        "north": "SNTBEW", "south": "NSBTEW", "east": "WENSTB", "west": "EWNSBT",
    }  # fmt: skip
    for item in kind("spatial", "rolling"):
        result = re.search(r"On top is (\d), (\d) faces north and (\d) faces east.* to the ([a-z, ]+)\.", item.question)
        assert result
        top, north, east = (int(result[i]) for i in (1, 2, 3))
        faces = {"T": top, "B": 7 - top, "N": north, "S": 7 - north, "E": east, "W": 7 - east}
        assert sorted(faces.values()) == [1, 2, 3, 4, 5, 6]
        for wind in result[4].split(", "):
            faces = {to: faces[source] for to, source in zip("TBNSEW", roll[wind], strict=True)}
        assert int(correct_text(item)) == faces["T"]


def test_mirrored_clocks_by_their_hands() -> None:
    """A mirror turns each hand's angle round; the true hands must fit together."""
    for item in kind("spatial", "mirror"):
        h, m = map(int, re.findall(r"(\d+):(\d+)", item.question)[0])
        angle = (360 - (30 * (h % 12) + m / 2)) % 360
        hour, minute = divmod(angle * 2, 60)
        assert correct_text(item) == f"{int(hour) or 12}:{round(minute):02d}"
