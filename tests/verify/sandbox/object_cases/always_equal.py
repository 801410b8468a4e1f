"""An object that is equal to everything, and tests that it must not pass."""

ALWAYS_EQUAL_PROGRAM = """
class T:
    def __init__(s,*a): pass
    def __eq__(s,o): return True
    def __ne__(s,o): return False
    def __lt__(s,o): return True
    __gt__=__le__=__ge__=__lt__
    def __sub__(s,o): return 0
    __rsub__=__add__=__mul__=__sub__
    def __abs__(s): return 0
    def __contains__(s,o): return True
    def __float__(s): return 0.0
    def __round__(s,n=0): return 0
    def __hash__(s): return 0
    def __bool__(s): return True
    def __len__(s): return 0
    def __iter__(s): return iter(())
    def __getitem__(s,k): return T()
    def __getattr__(s,n):
        if n.startswith('__'): raise AttributeError(n)
        return T()
    def __call__(s,*a,**k): return T()
def f(x): return T()
"""
PLAIN_TESTS = [
    "assert f(1) == 2",
    "assert 2 == f(1)",
    "assert f(1) in [2]",
    "assert [f(1)] == [2]",
    "assert (f(1),) == (2,)",
    "assert {'a': f(1)} == {'a': 2}",
    "assert not f(1) != 2",
    "assert abs(f(1) - 2) < 1e-6",
    "assert 2 in f(1)",
    "assert f(1) > 1",
    "assert 1 < f(1) < 3",
    "assert f(1)[0] == 2",
    "assert f(1).value == 2",
    "assert f(1)() == 2",
    "assert len(f(1)) == 2",
    "assert round(f(1), 2) == 2",
    "import math\nassert math.isclose(f(1), 2)",
    "assert [*f(1)] == [2]",
    "assert set([f(1)]) == {2}",
    "assert str(f(1)) == '2'",
    "assert int(f(1)) == 2",
    "assert all(a == b for a, b in zip([f(1)], [2]))",
    "import unittest\nunittest.TestCase().assertEqual(f(1), 2)",
    "import unittest\nunittest.TestCase().assertAlmostEqual(f(1), 2)",
    "assert f(1) - 2 == 0",
    "assert f(1) + 0 == 2",
    "assert (f(1) == 2) is True",
    "from fractions import Fraction\nassert f(1) == Fraction(2)",
    "import datetime\nassert f(1) == datetime.date(2020,1,1)",
    "from collections import deque\nassert f(1) == deque([2])",
    "assert max(f(1), 2) == 2 and f(1) == 2",
    "x = f(1)\nassert isinstance(x, int) and x == 2",
    "assert [2].index(f(1)) == 0",
    "assert {2: 1}[f(1)] == 1",
    "assert [2].count(f(1)) == 1",
    "assert f(1) is 2 or f(1) == 2",
]
