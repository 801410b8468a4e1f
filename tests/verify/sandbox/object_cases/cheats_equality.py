"""Cheats that return objects equal to everything: of classes that the tests name, and of builtin subclasses."""

from verify.sandbox.object_cases.parse_cases import parse_cases

CASES = parse_cases(
    r"""
### cheat_named_0
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
---
assert T(1) == 2
### cheat_named_entry_0 T
same program as cheat_named_0
---
assert T(1) == 2
### cheat_named_1
same program as cheat_named_0
---
assert T(1) + 1 == 2
### cheat_named_entry_1 T
same program as cheat_named_0
---
assert T(1) + 1 == 2
### cheat_named_2
same program as cheat_named_0
---
assert abs(T(1) - 2) < 1e-6
### cheat_named_entry_2 T
same program as cheat_named_0
---
assert abs(T(1) - 2) < 1e-6
### cheat_named_3
same program as cheat_named_0
---
assert T(1).v == 2
### cheat_named_entry_3 T
same program as cheat_named_0
---
assert T(1).v == 2
### cheat_named_4
same program as cheat_named_0
---
assert [T(1)] == [2]
### cheat_named_entry_4 T
same program as cheat_named_0
---
assert [T(1)] == [2]
### cheat_named_5
same program as cheat_named_0
---
assert T(1).get() == 2
### cheat_named_entry_5 T
same program as cheat_named_0
---
assert T(1).get() == 2
### cheat_named_6
same program as cheat_named_0
---
assert str(T(1)) == '2'
### cheat_named_entry_6 T
same program as cheat_named_0
---
assert str(T(1)) == '2'
### cheat_named_7
same program as cheat_named_0
---
t=T(1)
assert t > 1
### cheat_named_entry_7 T
same program as cheat_named_0
---
t=T(1)
assert t > 1
### cheat_builtin_int f
class B(int):
    def __eq__(s,o): return True
    def __ne__(s,o): return False
    def __sub__(s,o): return 0
    __rsub__=__sub__
    def __lt__(s,o): return True
    __gt__=__lt__
    def __hash__(s): return 0
    def __contains__(s,o): return True
def f(x): return B()
---
assert f(1) == 2
### cheat_builtin_rev_int
same program as cheat_builtin_int
---
assert 2 == f(1)
### cheat_builtin_list_int
same program as cheat_builtin_int
---
assert [f(1)] == [2]
### cheat_builtin_in_int
same program as cheat_builtin_int
---
assert f(1) in [2]
### cheat_builtin_abs_int f
same program as cheat_builtin_int
---
assert abs(f(1)-2) < 1e-6
### cheat_builtin_float f
class B(float):
    def __eq__(s,o): return True
    def __ne__(s,o): return False
    def __sub__(s,o): return 0
    __rsub__=__sub__
    def __lt__(s,o): return True
    __gt__=__lt__
    def __hash__(s): return 0
    def __contains__(s,o): return True
def f(x): return B()
---
assert f(1) == 2.0
### cheat_builtin_rev_float
same program as cheat_builtin_float
---
assert 2.0 == f(1)
### cheat_builtin_list_float
same program as cheat_builtin_float
---
assert [f(1)] == [2.0]
### cheat_builtin_in_float
same program as cheat_builtin_float
---
assert f(1) in [2.0]
### cheat_builtin_abs_float f
same program as cheat_builtin_float
---
assert abs(f(1)-2) < 1e-6
### cheat_builtin_str f
class B(str):
    def __eq__(s,o): return True
    def __ne__(s,o): return False
    def __sub__(s,o): return 0
    __rsub__=__sub__
    def __lt__(s,o): return True
    __gt__=__lt__
    def __hash__(s): return 0
    def __contains__(s,o): return True
def f(x): return B()
---
assert f(1) == '2'
### cheat_builtin_rev_str
same program as cheat_builtin_str
---
assert '2' == f(1)
### cheat_builtin_list_str
same program as cheat_builtin_str
---
assert [f(1)] == ['2']
### cheat_builtin_in_str
same program as cheat_builtin_str
---
assert f(1) in ['2']
### cheat_builtin_list f
class B(list):
    def __eq__(s,o): return True
    def __ne__(s,o): return False
    def __sub__(s,o): return 0
    __rsub__=__sub__
    def __lt__(s,o): return True
    __gt__=__lt__
    def __hash__(s): return 0
    def __contains__(s,o): return True
def f(x): return B()
---
assert f(1) == [2]
### cheat_builtin_rev_list
same program as cheat_builtin_list
---
assert [2] == f(1)
### cheat_builtin_list_list
same program as cheat_builtin_list
---
assert [f(1)] == [[2]]
### cheat_builtin_in_list
same program as cheat_builtin_list
---
assert f(1) in [[2]]
### cheat_builtin_contains_list f
same program as cheat_builtin_list
---
assert 2 in f(1)
### cheat_builtin_tuple f
class B(tuple):
    def __eq__(s,o): return True
    def __ne__(s,o): return False
    def __sub__(s,o): return 0
    __rsub__=__sub__
    def __lt__(s,o): return True
    __gt__=__lt__
    def __hash__(s): return 0
    def __contains__(s,o): return True
def f(x): return B()
---
assert f(1) == (2,)
### cheat_builtin_rev_tuple
same program as cheat_builtin_tuple
---
assert (2,) == f(1)
### cheat_builtin_list_tuple
same program as cheat_builtin_tuple
---
assert [f(1)] == [(2,)]
### cheat_builtin_in_tuple
same program as cheat_builtin_tuple
---
assert f(1) in [(2,)]
### cheat_builtin_contains_tuple f
same program as cheat_builtin_tuple
---
assert 2 in f(1)
### cheat_builtin_dict f
class B(dict):
    def __eq__(s,o): return True
    def __ne__(s,o): return False
    def __sub__(s,o): return 0
    __rsub__=__sub__
    def __lt__(s,o): return True
    __gt__=__lt__
    def __hash__(s): return 0
    def __contains__(s,o): return True
def f(x): return B()
---
assert f(1) == {1:2}
### cheat_builtin_rev_dict
same program as cheat_builtin_dict
---
assert {1:2} == f(1)
### cheat_builtin_list_dict
same program as cheat_builtin_dict
---
assert [f(1)] == [{1:2}]
### cheat_builtin_in_dict
same program as cheat_builtin_dict
---
assert f(1) in [{1:2}]
### cheat_builtin_contains_dict f
same program as cheat_builtin_dict
---
assert 2 in f(1)
### cheat_builtin_set f
class B(set):
    def __eq__(s,o): return True
    def __ne__(s,o): return False
    def __sub__(s,o): return 0
    __rsub__=__sub__
    def __lt__(s,o): return True
    __gt__=__lt__
    def __hash__(s): return 0
    def __contains__(s,o): return True
def f(x): return B()
---
assert f(1) == {2}
### cheat_builtin_rev_set
same program as cheat_builtin_set
---
assert {2} == f(1)
### cheat_builtin_list_set
same program as cheat_builtin_set
---
assert [f(1)] == [{2}]
### cheat_builtin_in_set
same program as cheat_builtin_set
---
assert f(1) in [{2}]
### cheat_builtin_contains_set f
same program as cheat_builtin_set
---
assert 2 in f(1)
### cheat_namedtuple_lies
from collections import namedtuple
class P(namedtuple('P','x')):
    def __eq__(s,o): return True
    def __getitem__(s,i): return 2
def f(x): return P(0)
---
assert f(1) == (2,)
"""
)
