"""Verifiers of programs: what counts as the program, what counts as right, and that nothing but being right does."""

import ast
import asyncio
import gzip
import json
import math
import shutil
import textwrap
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.errors import TaskError, UnknownName, UsageError
from ponder.protocols import Scorer
from ponder.types import Problem, Score, Step, Trace, ids, user_messages
from ponder.verify.code.assert_tests import AssertTests, prepend_prefix
from ponder.verify.code.call_tests import CallTests
from ponder.verify.code.compare_values import values_equal
from ponder.verify.code.dataset_rows import from_humaneval, from_mbpp
from ponder.verify.code.extract_program import MAX_PROGRAM_CHARS, extract_program
from ponder.verify.code.languages import JAIL_PATH, PROGRAMMING_LANGUAGES
from ponder.verify.code.model_tools import calculate, run_python
from ponder.verify.code.output_tests import OutputTests
from ponder.verify.code.property_tests import PropertyTests
from ponder.verify.sandbox import SandboxError, SandboxLimits, detect_isolation
from ponder.verify.sandbox.codec import encode

if detect_isolation().isolation is None:
    pytest.skip(f"no jail can be built here: {detect_isolation()}", allow_module_level=True)

LIMITS = SandboxLimits(cpu_seconds=5, wall_seconds=20)
ADD = {"entry": "f", "tests": [{"args": [x], "expected": x + 1} for x in (1, 41, -7)]}
GOOD = "def f(x): return x + 1"


def block(source, tag="python"):
    return f"<think>hm</think>Here:\n```{tag}\n{source}\n```\nDone."


# -- which program -----------------------------------------------------------------------------------------------------

FOUND = [
    ("```python\nx = 1\n```", "x = 1\n"),
    ("```py\nx = 1\n```\nprints\n```\n1\n```", "x = 1\n"),
    ("```\nx = 1\n```", "x = 1\n"),
    ("~~~python\nx = '```'\n~~~", "x = '```'\n"),
    ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
    ("1. this:\n   ```python\n   def f():\n       pass\n   ```", "def f():\n    pass\n"),
    ("<think>```python\ny = 2\n```</think>```Python\nx = 1\n```", "x = 1\n"),
    ("```bash\npip install x\n```\n```python\nx = 1\n```", "x = 1\n"),
    ("```python title=a.py\nx = 1\n```", "x = 1\n"),
]
NOT_FOUND = [
    ("", "no program"),
    ("x = 1", "no program"),
    ("<think>```python\nx = 1\n```", "no program"),
    ("```python\n```", "no program"),
    ("```python\n  \n```", "no program"),
    ("```javascript\nx = 1\n```", "no program"),
    ("```python\nx = 1\n```\n```python\nx = 2\n```", "several programs"),
    ("```\nx = 1\n```\n```\nx = 2\n```", "several programs"),
    ("```python\nx = 1", "malformed: a code block without an end"),
    ("```python\nx = 1\n```\n```python\nx", "malformed: a code block without an end"),
    ("```python\n" + "#" * (MAX_PROGRAM_CHARS + 1) + "\n```", "too long"),
]


@pytest.mark.parametrize(("text", "source"), FOUND)
def test_extract_program_finds_the_one_program(text, source):
    assert extract_program(text).answer == source


@pytest.mark.parametrize(("text", "reason"), NOT_FOUND)
def test_extract_program_gives_a_reason(text, reason):
    extracted = extract_program(text)
    assert extracted.answer is None and extracted.reason == reason


@given(st.text("`~ \npython#x", max_size=60))
def test_extract_program_never_raises(text):
    extracted = extract_program(text)
    assert (extracted.answer is None) == bool(extracted.reason)


# -- what is equal -----------------------------------------------------------------------------------------------------

inf, nan = math.inf, math.nan
# Values that are right for each other stand in one row; every other pair is wrong, both ways.
EQUALS = [
    [0, 0.0, -0.0],
    [False],
    [1, 1.0],
    [True],
    ["1"],
    ["1.0"],
    [inf],
    [-inf],
    [nan],
    ["nan"],
    [None],
    [[], ()],
    [{}],
    [set()],
    [[1], (1.0,)],
    [[True]],
    [{1: nan}, {1.0: nan}],
    [{True: nan}],
]
GRID = [(row, value) for row, values in enumerate(EQUALS) for value in values]
MORE = [
    *EQUALS,
    [2**53, 2.0**53], [2**53 + 1], [10**30], [1e30], [0.1 + 0.2, 0.3], [0.3000001], [1j], [complex(nan, 0)],
    [b"1", bytearray(b"1")], [{1, 2}, frozenset({2.0, 1})], [{"a": [1, {"b": (2,)}]}, {"a": (1, {"b": [2]})}],
    [{"a": 1, "b": 2}], [{(1, 2): 3}], [{1: 1, 2: 2}], [""], [" "], ["\ud800\udc00"], ["\U00010000"],
    [[()], [[]], ([],)],
    [Fraction(1, 3)], [Decimal("0.1")], [range(3)], [[0, 1, 2], (0, 1, 2)], [{frozenset({1})}], [{"1": None}],
    [[nan, inf]], [[inf, nan]],
]  # fmt: skip


@pytest.mark.parametrize("table", [EQUALS, MORE], ids=["odd", "more"])
def test_values_equal_by_table(table):
    values = [(row, value) for row, alike in enumerate(table) for value in alike]
    wrong = [
        (answer, expected)
        for row, expected in values
        for other, answer in values
        if values_equal(encode(answer), expected) != (row == other)
    ]
    assert wrong == []


def test_values_equal_tolerance_is_for_floats_only():
    assert values_equal(0.30000000000000004, 0.3) and not values_equal(0.30000000000000004, 0.3, tolerance=0)
    assert values_equal(1e-13, 0.0) and not values_equal(1e-13, 0.0, tolerance=0) and not values_equal(0.0, 1e-13)
    assert not values_equal(1 + 1e-12, 1) and not values_equal(encode(2**60 + 1), 2**60)


@pytest.mark.parametrize(
    "tree",
    [
        [],
        ["l"],
        ["i"],
        ["i", "zz"],
        ["d", 1],
        ["d", [1]],
        ["s", ["d"]],
        ["f", "x"],
        ["c"],
        [[]],
        ["q", 1, 0],
        ["m", "sNaN"],
    ],
)
def test_values_equal_rejects_malformed_trees(tree):
    for _, expected in GRID:
        if not (tree == ["l"] and expected in ([], ())):
            assert not values_equal(tree, expected)


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([*"iftlszdbcrmqughy", "lt", "ff", ""])
)
CROOKED = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


@given(CROOKED)
def test_values_equal_never_raises(tree):
    for _, expected in GRID:
        assert values_equal(tree, expected) in (True, False)
    for expected in ({(1, frozenset({2})): [3]}, {frozenset()}, b"", 1j, Decimal(1), Fraction(1, 2), range(2)):
        assert values_equal(tree, expected) in (True, False)


@pytest.mark.parametrize(
    "tree",
    [
        ["m", "1E+999999999"],
        ["m", "1E-999999999"],
        ["q", ["i", hex(3**200_000)], ["i", hex(7**150_000)]],
        ["l", *[["q", ["i", hex(3**2000)], ["i", hex(7**1500)]]] * 500],
        ["s", *[["i", hex((i + 1) * ((1 << 61) - 1))] for i in range(30_000)]],
        ["d", *[[["i", hex((i + 1) * ((1 << 61) - 1))], 0] for i in range(30_000)]],
    ],
    ids=["large", "small", "fraction", "fractions", "set", "dict"],
)
def test_values_equal_is_fast_on_hostile_trees(tree):
    wanted = [
        0,
        0.5,
        Decimal(1),
        Fraction(1, 3),
        [Fraction(1, 3)] * 500,
        set(range(30_000)),
        dict.fromkeys(range(30_000), 0),
    ]
    started = time.thread_time()
    assert not any(values_equal(t, e) for t in (tree, ["s", tree], ["d", [tree, 0]]) for e in (*wanted, {1}, {1: 0}))
    assert time.thread_time() - started < 5


def test_values_equal_rejects_sets_with_repeats():
    assert not values_equal(["s", 1, 1], {1, 2}) and not values_equal(["s", 1, 1], {1})
    assert not values_equal(["d", [1, 2], [1, 2]], {1: 2, 3: 4})


# -- calls -------------------------------------------------------------------------------------------------------------


def test_call_tests_scores():
    verifier = CallTests(limits=LIMITS)
    assert isinstance(verifier, Scorer) and verifier.name == "accuracy"
    assert verifier.grade(block(GOOD), ADD) == Score(1.0, "right")
    assert verifier.grade(block("def f(x): return x + (x < 9)"), ADD) == Score(0.0, "wrong (test 2); passed 2 of 3")
    assert verifier.grade(block("def f(x): return 1 / 0"), ADD).reason.startswith("raised: ZeroDivisionError")
    assert verifier.grade(block("def f(x) return"), ADD).reason.startswith("raised: SyntaxError")
    assert verifier.grade(block("def g(x): return x + 1"), ADD).reason.startswith(
        "raised: NameError: the program defines"
    )
    assert verifier.grade("no code", ADD) == Score(0.0, "no program")
    method = {"entry": "Solution.f", "tests": ADD["tests"]}
    assert verifier.grade(block("class Solution:\n    def f(self, x): return x + 1"), method).value == 1.0
    named = {"entry": "f", "tests": [{"args": [], "kwargs": {"x": 1}, "expected": 2}]}
    assert verifier.grade(block(GOOD), named).value == 1.0


def test_partial_credit_is_the_share_of_tests():
    verifier = CallTests(partial_credit=True, limits=LIMITS)
    assert verifier.grade(block("def f(x): return 2"), ADD).value == pytest.approx(1 / 3)
    assert verifier.grade(
        block("import os\ndef f(x): return 2 if x == 1 else os._exit(0)"), ADD
    ).value == pytest.approx(1 / 3)


def test_code_verifiers_grade_steps_together():
    texts = [block(GOOD), block("def f(x): return x"), "nothing", block("def f(x):\n    while True: pass")]
    steps = [Step(None, "?", ids([])), *(Step(0, text, ids([])) for text in texts)]
    trace = Trace(Problem("p", user_messages("?"), ADD), steps)
    scores = asyncio.run(CallTests(limits=SandboxLimits(cpu_seconds=1, wall_seconds=5))(trace, [1, 2, 3, 4]))
    assert [s.value for s in scores] == [1.0, 0.0, 0.0, 0.0]
    assert scores[3].reason.startswith("timed out")


BAD_ROWS = [
    (CallTests(), None, "mapping"),
    (CallTests(), {}, "entry"),
    (CallTests(), {"entry": "f"}, "tests"),
    (CallTests(), {"entry": "f", "tests": []}, "tests"),
    (CallTests(), {"entry": "f", "tests": [{"args": [1]}]}, "expected"),
    (CallTests(), {"entry": "f", "tests": [{"args": [object()], "expected": 1}]}, "plain"),
    (OutputTests(), {"tests": [{"stdin": "1"}]}, "stdout"),
    (AssertTests(), {"tests": ["assert f(1) =="]}, "not Python"),
    (AssertTests(), {"tests": ""}, "tests"),
    (AssertTests(), {"tests": ["", "pass"]}, "no assert"),
    (AssertTests(), {"tests": ["def check(f): assert f(1) == 2"]}, "ask the program nothing"),
    (AssertTests(), {"tests": [1]}, "not Python"),
    (AssertTests(), {"tests": ["assert f(1) == 2"], "setup": "import no_such_module"}, "no_such_module"),
    (CallTests(), {"entry": "f", "tests": [{"args": "12", "expected": 3}]}, "must be a list"),
    (CallTests(), {"entry": 5, "tests": [{"args": [1], "expected": 2}]}, "name of a function"),
    (OutputTests(), {"tests": [{"stdin": 0, "stdout": "1"}]}, "must be text"),
    (
        PropertyTests(),
        {"entry": "f", "property": "import no_such_module\ndef draw(r): ...\ndef holds(a): ..."},
        "no_such",
    ),
    (PropertyTests(), {"entry": "f", "property": "def draw(r): return ()"}, "holds"),
    (PropertyTests(), {"entry": "f", "property": "def"}, "not Python"),
]


@pytest.mark.parametrize(("verifier", "row", "named"), BAD_ROWS)
def test_a_row_that_cannot_be_graded_is_undecided(verifier, row, named):
    score = verifier.grade(block(GOOD), row)
    assert score.value is None and named in score.reason


def test_check_reference_refuses_a_failing_reference():
    verifier = CallTests(limits=LIMITS)
    verifier.check_reference(ADD, GOOD, "add/1")
    with pytest.raises(TaskError, match=r"add/1.*reference.*wrong"):
        verifier.check_reference(ADD, "def f(x): return x", "add/1")
    with pytest.raises(TaskError, match=r"add/1 cannot be graded.*tests"):
        verifier.check_reference({"entry": "f"}, GOOD, "add/1")


def test_a_broken_jail_is_undecided(monkeypatch):
    from ponder.verify.sandbox import sandbox_run, worker

    def broken(*_, **__):
        raise sandbox_run.WorkerLost("no room")

    monkeypatch.setattr(worker.Worker, "launch", broken)
    for verifier, row in (
        (CallTests(limits=LIMITS), ADD),
        (OutputTests(limits=LIMITS), {"tests": [{"stdin": "", "stdout": ""}]}),
        (AssertTests(limits=LIMITS), {"tests": ["assert f(1) == 2"]}),
    ):
        assert verifier.grade(block(GOOD), row) == Score(None, "crashed: no room")


def test_no_jail_is_undecided_with_the_reason(monkeypatch):
    def refuse(*_):
        raise SandboxError("nothing here would hold it")

    monkeypatch.setattr("ponder.verify.code.code_verifier.shared_sandbox", refuse)
    trace = Trace(Problem("p", user_messages("?"), ADD), [Step(None, "?", ids([])), Step(0, block(GOOD), ids([]))])
    assert asyncio.run(CallTests()(trace, [1])) == [Score(None, "refused: nothing here would hold it")]


def test_invalid_settings_are_refused():
    with pytest.raises(UsageError, match="tolerance"):
        CallTests(tolerance=2)
    with pytest.raises(UsageError, match="compare"):
        OutputTests(compare="nearly")
    with pytest.raises(UnknownName, match="c\\+\\+"):
        OutputTests(language="c+")
    with pytest.raises(UsageError, match="cases"):
        PropertyTests(n_cases=0)


# -- output ------------------------------------------------------------------------------------------------------------

ECHO = {"tests": [{"stdin": "1\n", "stdout": "2\n"}, {"stdin": "41", "stdout": "42"}]}


def test_output_tests_scores():
    verifier = OutputTests(limits=LIMITS)
    assert verifier.grade(block("print(int(input()) + 1)"), ECHO) == Score(1.0, "right")
    assert (
        verifier.grade(block("if __name__ == '__main__': print(int(input()) + 1, end='  \\n\\n')"), ECHO).value == 1.0
    )
    assert verifier.grade(block("print(2)"), ECHO) == Score(0.0, "wrong (test 2)")
    assert verifier.grade(block("print(2); exit(1)"), ECHO).reason.startswith("raised: exit status 1")
    assert verifier.grade(block("print(int(input()) / 0)"), ECHO).reason.startswith("raised: ZeroDivisionError")
    assert OutputTests(partial_credit=True, limits=LIMITS).grade(block("print(2)"), ECHO).value == 0.5
    spaced = block("print(' 2 ' if input() == '1' else '42')")
    score = {c: OutputTests(compare=c, limits=LIMITS).grade(spaced, ECHO).value for c in ("lines", "words", "exact")}
    assert score == {"lines": 0.0, "words": 1.0, "exact": 0.0}


PROGRAMS = {
    "bash": "read x; echo $((x + 1))",
    "perl": "my $x = <STDIN>; print $x + 1, qq{\n};",
    "ruby": "puts gets.to_i + 1",
    "lua": "print(io.read('n') + 1)",
    "javascript": "console.log(parseInt(require('fs').readFileSync(0)) + 1)",
    "c": '#include <stdio.h>\nint main(void) { int x; scanf("%d", &x); printf("%d\\n", x + 1); return 0; }',
    "c++": "#include <iostream>\nint main() { int x; std::cin >> x; std::cout << x + 1 << std::endl; }",
    "rust": "fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap();"
    ' println!("{}", s.trim().parse::<i32>().unwrap() + 1); }',
}


@pytest.mark.parametrize("name", PROGRAMMING_LANGUAGES)
def test_output_tests_in_other_languages(name):
    language, verifier = PROGRAMMING_LANGUAGES[name], OutputTests(language=name, limits=LIMITS)
    tag = min(language.fence_tags)
    if shutil.which(language.required_program, path=JAIL_PATH) is None:
        score = verifier.grade(block(PROGRAMS[name], tag), ECHO)
        assert score.value is None and f"{language.required_program} is not installed" in score.reason
        return
    if detect_isolation().isolation != "namespaces" and language.compiler:
        pytest.skip("compilers need namespaces")
    assert verifier.grade(block(PROGRAMS[name], tag), ECHO) == Score(1.0, "right")
    wrong = PROGRAMS[name].replace("1", "2")
    assert verifier.grade(block(wrong, tag), ECHO).value == 0.0
    broken = verifier.grade(block("(((", tag), ECHO)
    assert broken.value == 0.0 and (not language.compiler or broken.reason.startswith("malformed: it does not compile"))


def test_a_compiler_cannot_read_host_files():
    if shutil.which("gcc", path=JAIL_PATH) is None or detect_isolation().isolation != "namespaces":
        pytest.skip("needs gcc and namespaces")
    source = '#include "/etc/passwd"\nint main(void) { return 0; }'
    score = OutputTests(language="c", limits=LIMITS).grade(block(source, "c"), ECHO)
    assert score.value == 0.0 and "No such file" in score.reason


# -- tests with asserts ------------------------------------------------------------------------------------------------

PALINDROME = {
    "entry": "p",
    "setup": "def helper(): return 'abba'",
    "prefix": "def p(s):\n    '''A palindrome?'''\n",
    "tests": ["def check(c):\n    assert c(helper())\n    assert not c('ab')\n    assert c('')\ncheck(p)"],
}


def test_assert_tests_scores():
    verifier = AssertTests(limits=LIMITS)
    for source in ("def p(s): return s == s[::-1]", "    return s == s[::-1]"):
        assert verifier.grade(block(source), PALINDROME) == Score(1.0, "right")
    assert verifier.grade(block("def p(s): return True"), PALINDROME) == Score(0.0, "wrong; passed 0 of 1")
    shared = AssertTests(partial_credit=True, limits=LIMITS)
    assert shared.grade(block("def p(s): return True"), PALINDROME).value == pytest.approx(2 / 3)
    assert verifier.grade(block("def p(s): return s / 2"), PALINDROME).reason.startswith("wrong: TypeError")
    assert verifier.grade(block("import os\nos._exit(0)"), PALINDROME).reason.startswith("crashed")


def test_a_value_that_breaks_the_comparison_is_wrong():
    source = """
    import os
    def f(x):
        b = b'a["ok",' + b'["c",' * 400 + b"1.0" + b",1.0]" * 400 + b"]"
        os.write(3, len(b).to_bytes(4, "big") + b)
    """
    assert CallTests(limits=LIMITS).grade(block(textwrap.dedent(source)), ADD).value == 0.0


def test_reasons_with_program_text_are_printable():
    for verifier, row in (
        (CallTests(limits=LIMITS), ADD),
        (AssertTests(limits=LIMITS), {"tests": ["assert f(1) == 2"]}),
    ):
        reason = verifier.grade(block("def f(x): raise ValueError('\\ud800\\x1b[2J\\n')"), row).reason
        assert "ValueError" in reason and reason.isprintable()


def test_prefix_precedes_the_program():
    assert prepend_prefix("", "x") == "x"
    assert prepend_prefix("def f():\n", "    return 1") == "def f():\n    return 1"
    assert prepend_prefix("import math\n", "def f(): pass") == "import math\n\n\ndef f(): pass"


SORT = {
    "entry": "s",
    "property": "def draw(random): return ([random.randrange(9) for _ in range(random.randrange(6))],)\n"
    "def holds(result, given): return result == sorted(given)",
}


def test_property_tests_scores():
    verifier = PropertyTests(limits=LIMITS)
    assert verifier.grade(block("def s(x): return sorted(x)"), SORT) == Score(1.0, "right")
    lazy = verifier.grade(block("def s(x): return x"), SORT)
    assert lazy.value == 0.0 and "wrong" in lazy.reason
    some = PropertyTests(partial_credit=True, limits=LIMITS).grade(block("def s(x): return x"), SORT).value
    assert 0 < some < 0.7
    assert (
        PropertyTests(partial_credit=True, seed=1, limits=LIMITS).grade(block("def s(x): return x"), SORT).value != some
    )
    broken = {**SORT, "property": "def draw(random): return 1 / 0\ndef holds(result): return True"}
    assert "draw failed" in verifier.grade(block("def s(): pass"), broken).reason


# -- public sets -------------------------------------------------------------------------------------------------------

SLOW = SandboxLimits(cpu_seconds=30, memory_bytes=1 << 30)


@pytest.fixture(scope="module")
def problems(request):
    folder = request.getfixturevalue("data")
    human, mostly = folder / "humaneval" / "HumanEval.jsonl.gz", folder / "mbpp" / "mbpp.jsonl"
    for path in (human, mostly):
        if not path.exists():
            pytest.skip(f"{path} is not there")
    rows = []
    with gzip.open(human, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            rows.append((row["task_id"], from_humaneval(row), row["prompt"] + row["canonical_solution"]))
    with mostly.open(encoding="utf-8") as lines:
        rows += [(f"MBPP/{row['task_id']}", from_mbpp(row), row["code"]) for row in map(json.loads, lines)]
    assert len(rows) == 164 + 974
    return rows


class Mutant(ast.NodeTransformer):
    """Every function returns something it should not."""

    def visit_Return(self, node):
        wrong = ast.parse("('mutant',)", mode="eval").body
        return ast.copy_location(ast.Return(wrong), node)


def mutated(source):
    return ast.unparse(ast.fix_missing_locations(Mutant().visit(ast.parse(source))))


def failing(rows, verifier):
    from concurrent.futures import ThreadPoolExecutor

    def one(row):
        return row[0], verifier.grade(block(row[2]), {**row[1], "prefix": ""})

    with ThreadPoolExecutor(2) as threads:
        return {name: score for name, score in threads.map(one, rows) if score.value != 1}


def test_some_references_pass_and_mutants_fail(problems):
    some = [*problems[::17], *[p for p in problems if p[0] in ("MBPP/126", "MBPP/533", "MBPP/596", "HumanEval/32")]]
    verifier = AssertTests(limits=LIMITS)
    assert failing(some, verifier) == {}
    mutants = [(name, row, mutated(source)) for name, row, source in some]
    assert len(failing(mutants, verifier)) == len({name for name, *_ in mutants})


@pytest.mark.nightly
def test_all_references_pass_and_all_mutants_fail(problems):
    verifier = AssertTests(limits=SLOW)
    assert failing(problems, verifier) == {}
    mutants = [(name, row, mutated(source)) for name, row, source in problems]
    survivors = {name for name, *_ in mutants} - failing(mutants, verifier).keys()
    assert survivors == set()


@pytest.mark.parametrize("row", [{}, {"task_id": 7, "prompt": "x", "test": "", "entry_point": "f"}])
def test_rows_without_tests_are_refused(row):
    with pytest.raises(TaskError, match=str(row.get("task_id", r"\?"))):
        from_humaneval(row)
    with pytest.raises(TaskError, match="test_list"):
        from_mbpp({"task_id": 3})


# -- tools -------------------------------------------------------------------------------------------------------------


def test_model_tools():
    assert run_python("import math\nmath.factorial(10)") == "3628800\n"
    assert "ZeroDivisionError" in run_python("print('before')\n1 / 0")
    long = run_python("print('x' * 100000)")
    assert len(long) < 4200 and "left out" in long
    assert run_python("import os; os._exit(0)") == ""
    assert run_python("import ctypes; ctypes.string_at(0)") == "[crashed: SIGSEGV]"
    assert (calculate("2 * (3 + 4)"), calculate("1 / 3"), calculate("1 / 0")) == (
        "14",
        "1/3 = 0.333333333333",
        "[divides by zero]",
    )
