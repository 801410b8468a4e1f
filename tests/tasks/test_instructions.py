"""The task `instructions`: every drawn combination of constraints is satisfied by the text that `solution` writes."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from ponder.errors import UsageError
from ponder.tasks import Instructions
from ponder.tasks.generated.constrained_text import CLAUSES, CLOSINGS, OPENINGS, SENTENCES, TOPICS, write_text
from ponder.tasks.generated.instructions import KINDS, draw_constraints, max_compatible

MAX_COUNT = max_compatible(KINDS)
UNITS = {
    "sentences": lambda text: len(re.findall(r"[.?!](?:\s|$)", text)),
    "paragraphs": lambda text: text.count("\n\n") + 1,
    "bullet": lambda text: sum(line.startswith("- ") for line in text.split("\n")),
    "words": lambda text: sum(piece != "-" for piece in text.split()),
}


def within(line, count):
    number = 1 if "once" in line else int(re.search(r"[0-9]+", line)[0])
    return count == number if "exactly" in line else count >= number if "at least" in line else count <= number


def follows(line, text):
    """Whether a text follows one line of the question, by another way than the verifier's."""
    quoted = line.partition('"')[2].rpartition('"')[0]
    if line.startswith("Begin"):
        return text[: len(quoted)] == quoted
    if line.startswith("End"):
        return text[-len(quoted) :] == quoted
    if "case" in line:
        letters = [c for c in text if c.isalpha()]
        return all(c.isupper() if "upper" in line else c.islower() for c in letters)
    used = [word.strip(".,:?!").lower() for word in text.split()]
    if line.startswith("Do not"):
        return not set(used) & set(line.rstrip(".").partition(": ")[2].split(", "))
    if line.startswith("Use"):
        return within(line, used.count(quoted))
    unit = re.match(r"Write (?:exactly|at least|at most) [0-9]+ (\w+)", line)[1]
    return within(line, UNITS[unit](text))


@pytest.mark.parametrize("count", range(1, MAX_COUNT + 1))
def test_solution_satisfies_thousands_of_drawn_combinations(count):
    task = Instructions(count=count)
    rng = random.Random(count)
    for _ in range(700):
        problem = task.problem(task.draw(rng), "x")
        score = task.verifier.grade(task.gold(problem), problem.answer)
        assert (score.value, score.reason) == (1.0, f"keeps all {count}"), problem


def test_every_pair_of_compatible_kinds_is_drawn_and_satisfied():
    for pair in itertools.combinations(KINDS, 2):
        if max_compatible(pair) == 2:
            task = Instructions(count=2, kinds=pair)
            for problem in task.train[:20]:
                assert sorted(problem.tags["kinds"]) == sorted(pair)
                assert task.verifier.grade(task.gold(problem), problem.answer).value == 1.0, problem


@pytest.mark.parametrize("count", [1, 3, 8])
def test_solution_follows_the_question_as_a_person_reads_it(count):
    task = Instructions(count=count)
    for problem in task.train[:150]:
        asked = [line[2:] for line in problem.bare_question.split("\n") if line.startswith("- ")]
        assert len(asked) == count
        assert [line for line in asked if not follows(line, task.solution(problem))] == [], problem


def test_texts_of_other_problems_break_some_line():
    """The check above can fail, and the verifier agrees with it."""
    task = Instructions(count=3)
    problems = task.train[:40]
    broken = 0
    for problem, other in itertools.pairwise(problems):
        text = task.solution(other)
        asked = [line[2:] for line in problem.bare_question.split("\n") if line.startswith("- ")]
        kept = sum(follows(line, text) for line in asked)
        graded = Instructions(count=3, partial_credit=True).verifier.grade(task.gold(other), problem.answer)
        assert graded.value == pytest.approx(kept / 3), (problem.question, text)
        broken += kept < 3
    assert broken > 20


def test_demanded_and_forbidden_words_are_in_no_phrase():
    phrases = [*OPENINGS, *CLOSINGS, *SENTENCES, *CLAUSES, *TOPICS, "This text is about", "It makes me think of and of"]
    used = {word for phrase in phrases for word in re.findall(r"\w+", phrase.lower())}
    related = [word for words in TOPICS.values() for word in words]
    assert not used & set(related) and all(len(set(words)) == 8 for words in TOPICS.values())
    assert not {"mr", "mrs", "ms", "dr", "prof", "st", "vs", "etc", "no", "fig", "approx", "cf"} & set(related)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_text_of_one_word_is_never_enough_but_for_case(count):
    task = Instructions(count=count, kinds=tuple(kind for kind in KINDS if kind != "case"))
    assert not [p for p in task.train[:400] if task.verifier.grade("<answer>Yes</answer>", p.answer).value]
    limits = Instructions(count=2, kinds=("max-words", "absent"))  # asked for by name, they are drawn
    assert limits.verifier.grade("<answer>Yes</answer>", limits.train[0].answer).value == 1.0


def test_case_applies_to_the_phrases_of_the_question():
    task = Instructions(count=3, kinds=("starts", "ends", "case"))
    for problem in task.train[:20]:
        by_kind = {c["kind"]: c for c in problem.answer}
        for kind in ("starts", "ends"):
            text = by_kind[kind]["text"]
            assert text == (text.upper() if by_kind["case"]["case"] == "upper" else text.lower())


def test_order_of_constraints_does_not_make_another_problem():
    task = Instructions()
    item = task.draw(random.Random(1))
    turned = item._replace(constraints=item.constraints[::-1])
    assert task.key(turned) == task.key(item) and task.question(turned) != task.question(item)
    assert write_text(item.topic, turned.constraints) == write_text(item.topic, item.constraints)


def test_constraints_are_in_the_order_of_their_kinds():
    drawn = draw_constraints(random.Random(0), "drinking tea", ("max-words", "bullets", "min-words"))
    assert [c["kind"] for c in drawn] == ["words", "bullets", "words"]
    assert "at_most" in drawn[0] and drawn[0]["at_most"] > drawn[2]["at_least"]


def test_partial_credit_is_the_share_of_constraints():
    constraints = [{"kind": "case", "case": "lower"}, {"kind": "sentences", "exactly": 2}]
    text = "<answer>all is well.</answer>"
    assert Instructions().verifier.grade(text, constraints).value == 0.0
    assert Instructions(partial_credit=True).verifier.grade(text, constraints).value == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"count": MAX_COUNT + 1}, f"at most {MAX_COUNT} of the kinds"), ({"count": 0}, "at least 1"),
     ({"count": 2, "kinds": ("bullets", "sentences")}, "at most 1 of the kinds"), ({"kinds": ("rhyme",)}, "rhyme")],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Instructions(**settings)
