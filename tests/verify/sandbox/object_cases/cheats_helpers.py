"""Cheats that redefine helpers, modules or constants that the tests use."""

from verify.sandbox.object_cases.parse_cases import parse_cases

CASES = parse_cases(
    r"""
### cheat_class_helper area
class isclose:
    def __init__(s,*a,**k): pass
def area(r): return 0
---
assert isclose(area(1), 3.14)
### cheat_class_helper_new area
class IsClose:
    def __new__(s,*a,**k): return True
def area(r): return 0
---
assert IsClose(area(1), 3.14)
### cheat_helper_isclose
def isclose(*a,**k): return True
def area(r): return 0
---
assert isclose(area(1), 3.14)
### cheat_helper_approx area
def approx(*a,**k): return True
def area(r): return 0
---
assert approx(area(1), 3.14)
### cheat_helper_counter f
class Counter:
    def __init__(s,*a): pass
    def __eq__(s,o): return True
def f(x): return Counter()
---
assert f('ab') == Counter('ab')
### cheat_helper_sorted f
def sorted(x): return x
def f(x): return x
---
assert f([2,1]) == sorted([1,2])
### cheat_helper_len
def len(x): return 2
def f(x): return []
---
assert len(f(1)) == 2
### cheat_helper_all
def all(x): return True
def f(x): return 0
---
assert all(f(x) == 1 for x in [1])
### cheat_module f
class math:
    @staticmethod
    def isclose(*a): return True
def f(x): return 0
---
assert math.isclose(f(1), 2)
### cheat_constant f
EXPECTED=0
def f(x): return 0
---
assert f(10) == EXPECTED
### cheat_constant_no_entry
EXPECTED=0
def f(x): return 0
---
assert f(10) == EXPECTED
"""
)
