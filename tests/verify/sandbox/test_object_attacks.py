# ruff: noqa: E501
"""Objects of a program in its tests: what honest programs need works, and what a cheat would need does not."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

from ponder.types import Score
from ponder.verify.code.assert_tests import AssertTests
from ponder.verify.sandbox import Sandbox, SandboxLimits
from ponder.verify.sandbox.operations import PROGRAM_OPERATIONS, TESTS_OPERATIONS
from ponder.verify.sandbox.peer import Peer
from verify.sandbox.attacks import OWN
from verify.sandbox.object_attacks import CHEATS, HONEST
from verify.sandbox.object_cases.always_equal import ALWAYS_EQUAL_PROGRAM, PLAIN_TESTS
from verify.sandbox.test_sandbox import isolations

LIMITS = SandboxLimits(cpu_seconds=5, wall_seconds=20)


def grade(source, share=False, **row):
    return AssertTests(partial_credit=share, limits=LIMITS).grade(f"```python\n{source}\n```", row)


@pytest.fixture(scope="module")
def jail():
    if not isolations():
        pytest.skip("no jail can be built here")
    with Sandbox(2, limits=LIMITS) as sandbox:
        yield sandbox


def run_all(jail, cases):
    def run(case):
        return case.name, jail.run_tests(case.program, [case.tests], case.entry)

    with ThreadPoolExecutor(2) as threads:
        return dict(threads.map(run, cases))


def test_honest_programs_with_objects_pass(jail):
    results = run_all(jail, HONEST)
    assert len(results) > 90
    failed = {n: t for n, t in results.items() if (t.run_status, t.passed, t.undecided) != ("done", t.total, "")}
    assert failed == {}


def test_cheating_programs_neither_pass_nor_break_the_tests(jail):
    results = run_all(jail, CHEATS)
    assert len(results) > 90
    assert {n: t for n, t in results.items() if t.run_status == "lost"} == {}
    assert {
        n: t for n, t in results.items() if t.run_status == "done" and t.passed == t.total and not t.undecided
    } == {}


def test_an_always_equal_object_equals_no_plain_data(jail):
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda test: (test, jail.run_tests(ALWAYS_EQUAL_PROGRAM, [test], "f")), PLAIN_TESTS))
    assert [r for r in results if r[1].run_status == "done" and r[1].passed == r[1].total and not r[1].undecided] == []
    undecided = [test for test, tested in results if tested.undecided]
    assert all("-" in test or "+" in test or "AlmostEqual" in test for test in undecided), "only where it is added to"


@pytest.mark.parametrize(
    ("source", "test", "reason"),
    [
        ("class M:\n    def __init__(s, v): s.v = v\n    def __eq__(s, o): return s.v == o", "M(5) == 5", "__eq__"),
        ("class M:\n    def __init__(s, v): s.v = v\n    def __lt__(s, o): return s.v < o", "M(5) < 6", "__lt__"),
        (
            "class M:\n    def __init__(s, v): s.v = v\n    def __sub__(s, o): return s.v - o",
            "M(5) - 5 == 0",
            "__sub__",
        ),
        ("def f(): return 1", "pickle.dumps(f()) and f() == 2", "pickled objects"),
        ("import random\ndef f(): return random.random()", "random.seed(1) or f() == 0.13436424411240122", "a seed"),
        ("def f(): return open('x').read()", "open('x', 'w').write('1') and f() == '1'", "a file"),
        ("def f(): return undefined", "missing(1) == f()", "missing"),
        ("N = 3\ndef f(): return N", "f() == N", "neither a function nor a class"),
    ],
)
def test_tests_that_do_not_cross_are_undecided_with_a_reason(jail, source, test, reason):
    tests = [f"import pickle, random\nassert {test}"]
    score = grade(source, tests=tests, entry="f" if "def f" in source else "M")
    assert score.value is None and reason in score.reason, score


def test_a_failed_test_decides_beside_an_undecided_one():
    source = "class M:\n    def __init__(s, v): s.v = v\n    def __eq__(s, o): return s.v == o"
    row = {"entry": "M", "tests": ["assert M(5) == 5", "assert M(5).v == 6"]}
    assert grade(source, **row).value == 0.0
    assert grade(source, share=True, **row).value is None, "a share of tests cannot be told"


def test_variables_named_like_builtins_do_not_leave_tests_undecided():
    """A variable called input or signal is nobody's standard input."""
    row = {"entry": "f", "tests": ["input = [1]\nsignal, open = 2, 3\nassert f(input) == signal"]}
    assert grade("def f(x): return 0", **row).value == 0.0


WEAK = [
    ("def inv(d): d.clear(); return {}", "d = {'a': 1}\nr = inv(d)\nassert all(r[v] == k for k, v in d.items())", "argument"),
    ("class T:\n    def __bool__(s): return True\ndef f(x): return T()", "assert f(7)", "no bool"),
    ("def f(x): return []", "for x in f([3, 1]): assert x > 0", "items"),
    ("def f(x): raise ValueError", "try:\n    f(-1)\n    assert False\nexcept Exception: pass", "any error"),
    ("def f(x): return float('nan')", "assert not f(1) > 2 and not f(1) < 2", "deny"),
    ("class V:\n    def __init__(s, *a): pass\n    def __eq__(s, o): return True", "assert V(1) == V(2)", "never seen to say no"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "test", "weakness"), WEAK)
def test_weak_tests_are_reported_with_the_verdict(source, test, weakness):
    score = grade(source, tests=[test])
    assert score.value == 1.0 and score.reason.startswith("right, by weak tests: ") and weakness in score.reason


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("def s(x): x.sort()", "x = [2, 1]\ns(x)\nassert x == [1, 2]"),
        ("def p(n): return n % 2 == 0", "assert p(2)\nassert not p(3)"),
        ("class V:\n    def __init__(s, x): s.x = x\n    def __eq__(s, o): return s.x == o.x", "assert V(1) == V(1) != V(2)"),
        ("def f(x):\n    if x < 0: raise ValueError", "try:\n    f(-1)\nexcept ValueError: pass\nelse: assert False"),
    ],
)  # fmt: skip
def test_strong_tests_are_not_reported_as_weak(source, test):
    assert grade(source, tests=[test]) == Score(1.0, "right")


HELPERS = [
    ("def isclose(*a, **k): return True\ndef area(r): return 0", "assert isclose(area(1), 3.14, rel_tol=0.01)", "area", 0),
    ("def isclose(*a, **k): return True\ndef area(r): return 0", "assert isclose(area(1), 3.14, rel_tol=0.01)", "", 0),
    ("def area(r): return 3.14159 * r * r", "assert isclose(area(1), 3.14, rel_tol=0.01)", "area", 1),
    ("class Counter:\n    def __init__(s, *a): pass\n    def __eq__(s, o): return True\ndef f(x): return Counter()",
     "assert f('ab') == Counter('ab')", "f", 0),
    ("def f(x): return {'a': 1, 'b': 1}", "assert f('ab') == Counter('ab')", "f", 1),
    ("def gcd(a, b): return 0", "assert gcd(4, 6) == 2", "", 0),
    ("class np:\n    @staticmethod\n    def allclose(*a, **k): return True\ndef g(x): return 0",
     "assert np.allclose(g([1, 2]), [2, 3])", "g", None),
    ("def close(*a): return True\ndef f(x): return 0", "assert close(f(1), 2)", "f", None),
]  # fmt: skip


@pytest.mark.parametrize(("source", "test", "entry", "value"), HELPERS)
def test_helpers_never_come_from_the_program(source, test, entry, value):
    assert grade(source, entry=entry, tests=[test]).value == value


def test_names_adds_names_that_the_program_supplies():
    source, test = "def enc(s): return s[::-1]\ndef dec(s): return s[::-1]", "assert dec(enc('ab')) == 'ab'"
    score = grade(source, entry="enc", tests=[test])
    assert score.value is None and "list it under 'names'" in score.reason
    assert grade(source, entry="enc", tests=[test], names=["dec"]).value == 1.0
    assert grade(source, entry="enc", tests=[test], names="dec").value is None


def test_shared_list_of_honest_programs_passes(jail, data):
    path = Path(data).parent / "attacks" / "class_tests_honest.json"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    cases = json.loads(path.read_text())
    results = {case["name"]: jail.run_tests(case["program"], [case["test"]]) for case in cases}
    assert {n: t for n, t in results.items() if (t.passed, t.undecided) != (t.total, "")} == {}


def test_a_shared_list_stays_equal_on_both_sides(jail):
    source = "kept = []\ndef keep(x): kept.append(x)\ndef change(): kept[0].append(9)\ndef look(): return kept[0]"
    tests = """
x = [1]
keep(x)
x.append(2)
assert look() == [1, 2] and look() is x
change()
assert x == [1, 2, 9]
y = x
x = None
for n in range(50): assert look() == [1, 2, 9]
assert look() is y
"""
    tested = jail.run_tests(source, [tests])
    assert tested.passed == 1, tested


def test_a_long_shared_list_can_be_passed_repeatedly(jail):
    source = "def f(x, i): return x[i]"
    test = "x = list(range(20000))\nfor i in range(20): assert f(x, i) == i"
    assert jail.run_tests(source, [test]).passed == 1


def test_redirected_stdout_reaches_the_tests(jail):
    test = "import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): f()\nassert b.getvalue() == 'a\\nb\\n'"
    source = "class A:\n    def g(s): print('b')\ndef f(): print('a'); A().g()"
    assert jail.run_tests(source, [test]).passed == 1
    assert jail.run_tests(source, [test.replace("'a", "'x")]).passed == 0


FUZZ = """
import os, random, sys
from ponder.verify.sandbox import guest
guest.send("r", ["ok"])
draw = random.Random(SEED)
words = ["@", "o", "t", "z", "V", "E", "n", "K", "h", "x", "G", "W", "A", "X", "=", "!", "?", "call", "get", "__eq__",
         "builtins", "list", "int", "ValueError", "deque", "f", "function", "class", "__init__", "other", "...", ""]
def tree(depth=0):
    kind = draw.randrange(8)
    if kind < 2: return draw.choice(words)
    if kind < 4: return draw.choice([0, 1, 2, 3, -1, 77, True, None, 1.5])
    return [tree(depth + 1) for _ in range(draw.randrange(6))] if depth < 4 else None
def message():
    if draw.random() < 0.3: return tree()
    changes = [[draw.randrange(6), draw.choice(["list", "dict", "set", "deque", "x"]), None, tree()] for _ in range(2)]
    classes = [[n, ["T", None, [], draw.choice([None, "int", "list", "x"]), ["__eq__", "__bool__"], ["m"], [], [], [], True]]
               for n in range(4)]
    body = draw.choice([tree(), ["t", ["t", "function", ["h", 0, 1]]], ["h", 0, 1], ["h", 2, 3, 5], ["o", 0], ["@", 0]])
    return [draw.choice("=!?="), body, changes if draw.random() < 0.3 else [], [], classes, ""]
for _ in range(200):
    guest.receive()
    guest.send("a", message())
os._exit(0)
"""


def test_random_answers_neither_pass_nor_break_the_tests(jail):
    test = "x = [1]\nassert f(x) == 12345 and f(x).y == [12345]\nassert x == [1]"

    def run(seed):
        return jail.run_tests(
            FUZZ.replace("SEED", str(seed)), [test, "assert f(2) == 54321"], "f", limits=SandboxLimits(wall_seconds=3)
        )

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(run, range(40)))
    assert [t for t in results if t.run_status == "lost" or (t.run_status == "done" and t.passed > 0)] == []


INTERNALS = re.compile(r"\b(codec|guest|peer|proxies|zygote)\.(_peer\.)?([A-Za-z_]\w*)")


def test_attacks_on_internals_use_existing_names():
    """A renamed module or function would make an attack fail at its import, and be counted as held."""
    sources = [attack.code for attack in OWN] + [case.program for case in CHEATS] + [FUZZ]
    aimed = [source for source in sources if "ponder.verify" in source]
    assert len(aimed) > 25
    for source in aimed:
        for imported in re.findall(r"from ponder\.verify\.sandbox import ([\w, ]+)", source):
            for name in imported.split(", "):
                import_module(f"ponder.verify.sandbox.{name}")
        for module, of_peer, name in INTERNALS.findall(source.replace("ponder.verify.sandbox.", "")):
            owner = Peer if of_peer else import_module(f"ponder.verify.sandbox.{module}")
            assert name in ("__file__", "_peer") or hasattr(owner, name), (module, name, source)
        assert all(hasattr(Peer, name) for name in re.findall(r"\bp\.(\w+)", source)), source
        operations = re.findall(r"\.ask\([\"'](\w+)", source)
        assert set(operations) <= {*TESTS_OPERATIONS, *PROGRAM_OPERATIONS, "names"}, source
