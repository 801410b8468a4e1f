"""Templates, formulas, mutations, duplicates, the choice of s1K, and rows that the columns task reads."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.errors import MissingExtra, TaskError, UsageError
from ponder.tasks import CustomTask
from ponder.tasks.question_identity import normalize_question
from ponder.tasks.synthetic import (
    exact_duplicates,
    generate_from_templates,
    infer_template,
    near_duplicates,
    parse_reply,
    read_problems,
    select_diverse,
    to_row,
)
from ponder.tasks.synthetic.deduplicate import embedding_near_duplicates, shingles
from ponder.tasks.synthetic.formula import Condition, Formula, NoExactValue
from ponder.tasks.synthetic.generation_prompts import (
    EVOLVE_INSTRUCTIONS,
    backward_prompt,
    evolve_prompt,
    new_problem_prompt,
)
from ponder.tasks.synthetic.mutate import change_names, change_numbers, change_units, find_formulas, mutate
from ponder.tasks.synthetic.problem_rows import accuracy, synthetic_problem
from ponder.tasks.synthetic.template import Template, read_templates
from ponder.types import Problem, user_messages

APPLE_TEMPLATE = {
    "name": "apples",
    "question": "{who} has {a} apples and buys {b} bags of {c}. How many does {who} have?",
    "variables": {"who": ["Ann", "Bo"], "a": [2, 50], "b": {"from": 2, "to": 10, "step": 2}, "c": {"of": [6, 12]}},
    "let": {"bought": "b * c"},
    "where": ["bought > a", "2 divides a"],
    "answer": "a + bought",
}


def of(text, **given_):
    return Formula.parse(text, given_).value({name: Fraction(v) for name, v in given_.items()})


# Formulas


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("a + b * 2", 13), ("(a + b) * 2", 16), ("a / b", Fraction(3, 5)), ("a^2 - b", 4), ("-a + b", 2),
        ("floor(b / 2)", 2), ("ceil(b / 2) + floor((a + b) / 3)", 5), ("a!", 6), ("\\binom{b}{a}", 10),
        ("sqrt(a + 1)", 2),
        ("abs(a - b)", 2), ("2a", 6), ("b^(a - 1)", 25), ("a * price", 21),
    ],
)  # fmt: skip
def test_formulas_by_hand(text, wanted):
    assert of(text, a=3, b=5, price=7) == wanted


@given(st.recursive(
    st.sampled_from(["a", "b", "c", "7", "2"]),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=8,
))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_formulas_equal_python_arithmetic(text):
    values = {"a": 3, "b": -4, "c": 11}
    assert of(text, **values) == eval(text, {}, values)


@pytest.mark.parametrize(
    "text", ["1 / (a - 3)", "sqrt(2)", "\\pi a", "\\sin(a)", "a^(1/2)", "(a^999)^999", "2000!", "0^0"]
)
def test_inexact_formulas_are_refused(text):
    with pytest.raises(NoExactValue):
        of(text, a=3)


@pytest.mark.parametrize(
    "text",
    ["a +", "a ** b ** c", "__import__('os')", "a;b", "new + 1", "pi a", "sin(a)", "floor(a", "x" * 600, ""],
)
def test_invalid_formulas_are_refused(text):
    with pytest.raises(TaskError, match="formula"):
        Formula.parse(text, ["a", "b", "c"])


def test_conditions():
    def holds(text, **given_):
        return Condition.parse(text, given_).holds({k: Fraction(v) for k, v in given_.items()})

    assert holds("a < b", a=1, b=2) and not holds("a < b", a=2, b=2) and holds("a <= b", a=2, b=2)
    assert holds("a != b", a=1, b=2) and holds("a = b + 1", a=3, b=2) and holds("a >= b", a=2, b=2)
    assert (
        holds("3 divides a", a=12, b=0) and not holds("b divides a", a=12, b=5) and not holds("b divides a", a=1, b=0)
    )
    assert not holds("1 / a > 0", a=0, b=0)  # no value: it does not hold
    for text in ("a", "a < b < 3"):
        with pytest.raises(TaskError, match="compare two formulas once"):
            Condition.parse(text, ["a", "b"])


# Templates


def test_a_template_draws_what_fits():
    (template,) = [Template.parse(APPLE_TEMPLATE, "here")]
    problems = list(generate_from_templates([template], 100, seed=3))
    assert len({p.tags["question"] for p in problems}) == 100 and len({p.id for p in problems}) == 100
    for p in problems:
        v = p.tags["values"]
        assert v["who"] in ("Ann", "Bo") and 2 <= v["a"] <= 50 and v["b"] in range(2, 11, 2) and v["c"] in (6, 12)
        assert v["b"] * v["c"] > v["a"] and v["a"] % 2 == 0
        assert p.answer == str(v["a"] + v["b"] * v["c"])
        assert p.tags["question"] == (
            f"{v['who']} has {v['a']} apples and buys {v['b']} bags of {v['c']}. How many does {v['who']} have?"
        )
        assert (p.tags["source"], p.tags["parents"], p.tags["seed"]) == ("template", ["apples"], 3)
    assert [p.question for p in generate_from_templates([template], 100, seed=3)] == [p.question for p in problems]
    assert {p.question for p in generate_from_templates([template], 100, seed=4)} != {p.question for p in problems}


def test_a_small_template_is_exhausted_and_others_go_on():
    small = Template.parse({"question": "What is {a} + 1?", "variables": {"a": [1, 3]}, "answer": "a + 1"}, "small")
    large = Template.parse(
        {"question": "{a} + {b}?", "variables": {"a": [1, 99], "b": [1, 99]}, "answer": "a+b"}, "large"
    )
    problems = list(generate_from_templates([small, large], 20, seed=0))
    assert Counter(p.tags["parents"][0] for p in problems) == {"small": 3, "large": 17}
    assert len(list(generate_from_templates([small], 20, seed=0))) == 3


def test_latex_stays_and_answers_may_be_fractions():
    given_ = {"question": "Find \\frac{{a}}{{b}} \\text{ of } \\sqrt{{n}} in \\text{metres}.",
              "variables": {"a": {"of": [1]}, "b": {"of": [3]}, "n": {"of": [4]}},
              "answer": "a / b * sqrt(n)", "whole": False}  # fmt: skip
    (problem,) = generate_from_templates([Template.parse(given_, "x")], 1, 0)
    assert problem.tags["question"] == "Find \\frac{1}{3} \\text{ of } \\sqrt{4} in \\text{metres}."
    assert problem.answer == "2/3"
    with pytest.raises(TaskError, match="answer is not whole"):
        list(generate_from_templates([Template.parse({**given_, "whole": True}, "x")], 1, 0))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"answer": None}, "cannot be read|unknown quantity"),
        ({"variables": {"a": []}}, "give .low, high. or a list"),
        ({"variables": {"a": [5, 2]}}, "no values from 5 to 2"),
        ({"variables": {"a": [1, "x"]}}, "whole numbers, or all of them texts"),
        ({"variables": {"a": {"low": 1}}}, "give .low, high., a list"),
        ({"variables": 3}, "malformed"),
        ({"question": "{nobody} asks"}, "neither a variable"),
        ({"where": "a > 1"}, "list of conditions"),
        ({"let": {"a": "2"}}, "drawn and worked out"),
        ({"kind": "x"}, "'kind', which no template has"),
    ],
)  # fmt: skip
def test_invalid_template_error_names_the_problem(change, message):
    with pytest.raises(TaskError, match=message):
        Template.parse({**APPLE_TEMPLATE, **change}, "file.json, template 1")


def test_templates_that_cannot_be_met_say_which_condition():
    with pytest.raises(TaskError, match=r"no values fit .* bought > a \(2000 times\)"):
        list(generate_from_templates([Template.parse({**APPLE_TEMPLATE, "let": {"bought": "0"}}, "x")], 1, 0))


def test_template_files_load(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(APPLE_TEMPLATE))
    (tmp_path / "list.json").write_text(json.dumps([APPLE_TEMPLATE, {**APPLE_TEMPLATE, "name": "pears"}]))
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps({**APPLE_TEMPLATE, "name": n}) for n in "ab"))
    assert [len(read_templates(tmp_path / f)) for f in ("one.json", "list.json", "lines.jsonl")] == [1, 2, 2]
    (tmp_path / "unnamed.json").write_text(json.dumps({k: v for k, v in APPLE_TEMPLATE.items() if k != "name"}))
    assert [t.name for t in read_templates(tmp_path / "unnamed.json")] == ["unnamed-1"]
    for text, message in (
        ("{", "not JSON"),
        ("[]", "no templates"),
        ("[3]", "int, not a template"),
        ("{}", "lacks 'question'"),
        (json.dumps([APPLE_TEMPLATE, APPLE_TEMPLATE]), "two templates are named"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(TaskError, match=message):
            read_templates(tmp_path / "bad.json")
    with pytest.raises(TaskError, match="cannot read the templates"):
        read_templates(tmp_path / "nowhere.json")


# Mutations


def problem(question, answer, **tags):
    return Problem("p/1", user_messages(question), answer, tags)


APPLE_PROBLEM = problem("Anna has 15 apples. She gives 4 apples to Tom and buys 20 more. How many has she?", "31")


def test_the_one_way_to_an_answer():
    assert find_formulas((3, 4), Fraction(12)) == ["(n0 * n1)"]
    assert set(find_formulas((2, 2), Fraction(4))) == {
        "(n0 + n1)",
        "(n0 * n1)",
    }  # two ways: nobody knows which was meant
    assert find_formulas((3, 4), Fraction(100)) == []
    result = infer_template(APPLE_PROBLEM.question, "31")
    assert result is not None and result.numbers == (15, 4, 20)
    assert result.formula.value({"n0": Fraction(1), "n1": Fraction(2), "n2": Fraction(9)}) == 8


@given(st.lists(st.integers(2, 60), min_size=2, max_size=3), st.integers(0, 3**2 - 1))
@settings(max_examples=60, deadline=None)
def test_a_way_that_was_taken_is_found_again(numbers, choice):
    signs = ["+-*"[choice % 3], "+-*"[choice // 3]]
    text = str(numbers[0])
    for sign, n in zip(signs, numbers[1:], strict=False):
        text = f"({text} {sign} {n})"
    ways = find_formulas(numbers, Fraction(eval(text)))
    assert ways
    for way in ways:
        assert eval(way, {}, {f"n{i}": Fraction(n) for i, n in enumerate(numbers)}) == eval(text)


@pytest.mark.parametrize(
    "question",
    ["Half of 15 apples and 4 more and 20?", "15 apples, 4 of them at 2.50 and 20?", "He has 15%, 4 and 20 more",
     "On the 15th he has 4 and 20", "15 a dozen, 4 and 20"],
)  # fmt: skip
def test_hidden_numbers_forbid_a_template(question):
    assert infer_template(question, "31") is None


def test_numbers_change_with_their_answer():
    seen = set()
    for seed in range(30):
        question, answer = change_numbers(APPLE_PROBLEM, random.Random(seed))
        a, b, c = (int(word) for word in question.replace(".", "").split() if word.isdigit())
        assert answer == str(a - b + c) and b < a < c  # the order of sizes stays, so she can give them away
        assert question.startswith("Anna has ") and (a, b, c) != (15, 4, 20)
        seen.add(question)
    assert len(seen) > 20
    whole = problem("12 cookies for 4 children. How many for a child?", "3")
    for seed in range(20):
        question, answer = change_numbers(whole, random.Random(seed))
        a, b = (int(word) for word in question.split() if word.isdigit())
        assert answer == str(Fraction(a, b)) and a % b == 0


def test_large_numbers_keep_their_commas():
    question, answer = change_numbers(
        problem("A firm has 12,000 pens and 3,500 more come.", "15,500"), random.Random(1)
    )
    a, b = (int(w.replace(",", "")) for w in question.split() if w[0].isdigit())
    assert f"{a:,}" in question and answer == str(a + b)


def test_names_and_things_change_only_words():
    question, answer = change_names(APPLE_PROBLEM, random.Random(0))
    assert answer == "31" and "Anna" not in question and "Tom" not in question and "15 apples" in question
    question, answer = change_units(APPLE_PROBLEM, random.Random(0))
    assert answer == "31" and "apple" not in question and question.startswith("Anna has 15 ")
    assert change_names(problem("What is 2 + 2?", "4"), random.Random(0)) is None
    assert change_units(problem("5 apples and 3 pears: how many more apples?", "2"), random.Random(0)) is None
    for seed in range(10):
        question, _ = change_units(problem("Apples: he eats an apple of 5 apples.", "4"), random.Random(seed))
        assert question == "Oranges: he eats an orange of 5 oranges."


def test_mutation_records_its_parent():
    changed = mutate(problem(APPLE_PROBLEM.question, "31", domain="fruit"), "numbers", "m/0", 5)
    assert changed is not None and changed.id == "m/0"
    tags = {k: changed.tags[k] for k in ("source", "operator", "parents", "seed", "domain")}
    assert tags == {"source": "mutation", "operator": "numbers", "parents": ["p/1"], "seed": 5, "domain": "fruit"}
    assert mutate(problem("Why?", "because"), "numbers", "m/1", 5) is None


# What is there already


def test_exact_duplicates_ignore_case_and_spacing():
    texts = ["What is 3 + 4?", "what is  3 + 4", "What is 3 - 4?", "Was ist das?", "什么是 3 + 4?", "什么是 3 - 4?"]
    assert exact_duplicates(texts) == [None, 0, None, None, None, None]
    assert normalize_question("A?! ") == "a"


def test_near_duplicates_are_those_of_a_full_comparison():
    pytest.importorskip("datasketch")
    rng = random.Random(0)
    words = [f"w{i}" for i in range(40)]
    texts = []
    for _ in range(12):
        base = [rng.choice(words) for _ in range(30)]
        texts.append(" ".join(base))
        for changes in (1, 3, 9):
            other = list(base)
            for _ in range(changes):
                other[rng.randrange(30)] = rng.choice(words)
            texts.append(" ".join(other))
    kept, wanted = [], []
    for i, text in enumerate(texts):
        near = [
            j
            for j in kept
            if len(shingles(text) & shingles(texts[j])) >= 0.7 * len(shingles(text) | shingles(texts[j]))
        ]
        wanted.append(near[0] if near else None)
        kept += [] if near else [i]
    result = near_duplicates(texts, 0.7)
    assert sum(w is not None for w in wanted) > 8
    assert sum(f == w for f, w in zip(result, wanted, strict=True)) >= len(texts) - 2  # MinHash may miss a few
    assert all(w is not None for f, w in zip(result, wanted, strict=True) if f is not None)  # and claims none falsely


def test_missing_datasketch_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(MissingExtra, match=r"needs the package 'datasketch': pip install 'ponder\[data\]'"):
        near_duplicates(["a"], 0.8)


def test_embedding_near_duplicates_are_found():
    vectors = {"a": [1.0, 0.0], "a'": [0.99, 0.14], "b": [0.0, 1.0], "zero": [0.0, 0.0]}
    assert embedding_near_duplicates(lambda texts: [vectors[t] for t in texts], ["a", "b", "a'", "zero"], 0.9) == [
        None,
        None,
        0,
        None,
    ]
    for embed in (lambda texts: [1.0], lambda texts: np.full((len(texts), 2), np.nan)):
        with pytest.raises(UsageError, match="one finite row each"):
            embedding_near_duplicates(embed, ["a", "b"], 0.9)
    with pytest.raises(UsageError, match="share above 0"):
        near_duplicates(["a"], 1.5)


# Selection


def test_selection_spreads_over_domains_and_leans_to_long_reasoning():
    domains = ["a"] * 90 + ["b"] * 10
    lengths = [float(i) for i in range(90)] + [float(i) for i in range(10)]
    counts, first = Counter(), Counter()
    for seed in range(400):
        taken = select_diverse(domains, lengths, 4, seed)
        assert len(set(taken)) == 4
        counts.update(domains[i] for i in taken)
        first.update(i for i in taken[:1] if domains[i] == "a")
    assert 0.42 < counts["b"] / counts.total() < 0.58  # domains alike, however many problems they have
    share = first[89] / first.total()  # the longest has weight 1 of 2
    assert 0.4 < share < 0.6 and 0.15 < first[88] / first.total() < 0.35
    assert sorted(select_diverse(domains, lengths, 1000)) == list(range(100))
    assert select_diverse(domains, lengths, 5, 7) == select_diverse(domains, lengths, 5, 7)
    assert select_diverse([], [], 5) == []


# What a model is asked, and what it replies


def test_requests_say_what_they_need():
    assert (
        "Anna has 15 apples" in new_problem_prompt([APPLE_PROBLEM])[-1]["content"]
        and "<problem>" in new_problem_prompt([])[-1]["content"]
    )
    assert "whose answer is 42" in backward_prompt("42")[-1]["content"]
    for operator in EVOLVE_INSTRUCTIONS:
        asked = evolve_prompt(operator, [APPLE_PROBLEM, APPLE_PROBLEM] if operator == "combine" else [APPLE_PROBLEM])[
            -1
        ]["content"]
        assert EVOLVE_INSTRUCTIONS[operator] in asked and asked.count("Anna has") == (2 if operator == "combine" else 1)


@pytest.mark.parametrize(
    "reply, wanted",
    [
        ("<problem>What is 1 + 1?</problem>\n<answer> 2 </answer>", ("What is 1 + 1?", "2")),
        (
            "<think>hm <problem>no</problem></think><problem>Q?</problem><answer>2</answer>",
            ("Q?", "2"),
        ),
        ("no tags", "no <problem>"),
        ("<problem>Q?</problem>", "no <answer>"),
        ("<problem>Q?</problem><answer></answer>", "no <answer>"),
        ("<problem>Q?</problem><answer>1</answer><answer>2</answer>", "several answers"),
        ("<problem>Q?</problem><problem>R?</problem><answer>1</answer>", "several problems"),
        ("<problem>Q?<problem>R?</problem><answer>1</answer>", "several problems"),
        ("<problem>  </problem><answer>1</answer>", "an empty problem"),
        ("<problem>Q? <answer>1</answer></problem><answer>1</answer>", "the answer stands in the problem"),
        ("<think>for ever", "its thinking never ends"),
        ("x" * 30_000, "too long"),
    ],
)
def test_parse_reply_reads_problem_and_answer(reply, wanted):
    assert parse_reply(reply) == wanted


# Rows


def test_rows_are_read_back_by_the_columns_task(tmp_path):
    problems = list(generate_from_templates([Template.parse(APPLE_TEMPLATE, "x")], 40, 0))
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(to_row(p, pass_rate=0.5)) + "\n" for p in problems))
    task = CustomTask(
        data=str(path), rewards=("ponder.tasks.synthetic.problem_rows:accuracy",), gold_column="gold", held_out_tenths=3
    )
    assert len(task.train) + len(task.test) == 40
    first = task.train[0]
    assert first.question.endswith("Put the final answer in \\boxed{}.")
    gold = first.answer["columns"]["answer"]
    assert accuracy([task.gold(first), "\\boxed{1}", "no"], [gold] * 3) == [1.0, 0.0, 0.0]
    assert accuracy([[{"role": "assistant", "content": f"\\boxed{{{gold}}}"}]], [gold]) == [1.0]
    assert accuracy(["\\boxed{1}"], [""]) == [None]  # no gold answer: unknown is not zero
    again = read_problems(path)
    assert [(p.id, p.messages, p.answer, p.tags) for p in again] == [
        (p.id, p.messages, p.answer, json.loads(json.dumps(p.tags))) for p in problems
    ]


def test_missing_columns_are_named(tmp_path):
    path = tmp_path / "p.jsonl"
    for text, message in (
        ('{"question": "Q", "answer": 1}', "line 1 lacks the column 'prompt'; it has: question, answer"),
        ('{"prompt": "Q"}', "lacks the column 'answer'"),
        ('{"prompt": "Q", "answer": null}', "'answer' is None"),
        ('{"prompt": "", "answer": 1}', "'prompt' is ''"),
        ('{"prompt": [], "answer": 1}', "neither a text nor messages"),
        ('{"prompt": [3], "answer": 1}', "neither a text nor messages"),
        ("3", "not a JSON object"),
        ("{", "is no problem"),
        ("", "holds no problems"),
        ('{"prompt":"Q","answer":1,"id":"a"}\n{"prompt":"R","answer":1,"id":"a"}', "'a' stands there twice"),
    ):
        path.write_text(text)
        with pytest.raises(TaskError, match=message):
            read_problems(path)
    path.write_text('{"question": "Q", "result": 7}')
    (one,) = read_problems(path, "question", "result")
    assert (one.question, one.answer, one.id) == ("Q", "7", "p/1")
    with pytest.raises(TaskError, match="cannot read"):
        read_problems(tmp_path / "nowhere")


def test_conversation_prompt_is_kept():
    talk = ({"role": "system", "content": "s"}, {"role": "user", "content": "q"})
    row = to_row(Problem("x", talk, "1", {"source": "given"}))
    assert row["prompt"] == list(talk) and row["tags"] == {"source": "given"}
    assert synthetic_problem("i", "Braces {x}?", "1", source="s", operator="o").question.startswith("Braces {x}?")
