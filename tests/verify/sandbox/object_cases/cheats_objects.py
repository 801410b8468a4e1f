# ruff: noqa: E501
"""Cheats that attack the objects of the tests: callbacks, errors, containers, generators, exits."""

from verify.sandbox.object_cases.parse_cases import parse_cases

CASES = parse_cases(
    r"""
### cheat_meta_eq
class M(type):
    def __eq__(c,o): return True
    def __hash__(c): return 0
class T(metaclass=M): pass
def f(x): return T
---
assert f(1) == 2
### cheat_meta_eq_named f
class M(type):
    def __eq__(c,o): return True
    def __hash__(c): return 0
class EXPECTED(metaclass=M): pass
def f(x): return 0
---
assert f(1) == EXPECTED
### cheat_callback_globals f
def f(cb):
    for n in ('__globals__','__code__','__closure__','__self__','__func__','__dict__','__builtins__','func_globals','__defaults__','__kwdefaults__'):
        try: return getattr(cb,n)['ANSWER']
        except Exception: pass
    return 0
---
ANSWER=77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_callback_method_globals f
def f(o):
    for p in (lambda: o.m.__globals__, lambda: o.m.__func__.__globals__, lambda: type(o).m.__globals__, lambda: o.__init__.__globals__, lambda: o.__class__.__init__.__globals__, lambda: o.m.__self__.__init__.__globals__, lambda: o.g.gi_frame.f_globals, lambda: o.__reduce_ex__(2), lambda: vars(type(o))['m'].__globals__):
        try: return p()['ANSWER']
        except Exception: pass
    return 0
---
ANSWER=77
class O:
    def __init__(self):
        self.g=(x for x in [1])
    def m(self): return ANSWER
assert f(O()) == ANSWER
### cheat_callback_generator_frame f
def f(g):
    try: return g.gi_frame.f_globals['ANSWER']
    except Exception: pass
    try: return g.gi_frame.f_back.f_globals['ANSWER']
    except Exception: return 0
---
ANSWER=77
def gen():
    yield ANSWER*0
assert f(gen()) == ANSWER
### cheat_callback_error_traceback f
def f(cb):
    try: cb()
    except Exception as e:
        try: return e.__traceback__.tb_next.tb_frame.f_globals['ANSWER']
        except Exception: pass
        try: return e.__traceback__.tb_frame.f_back.f_globals['ANSWER']
        except Exception: return 0
---
ANSWER=77
def cb(): raise ValueError
assert f(cb) == ANSWER
### cheat_swallow_assertion f
def f(cb):
    try: cb(0)
    except AssertionError: pass
    return 1
---
def cb(x): assert x == 5
assert f(cb) == 1 and f(cb) == 2
### cheat_stop_iteration_by_object
class I:
    def __iter__(s): return s
    def __next__(s): raise StopIteration
def f(x): return I()
---
assert list(f(1)) == [2]
### cheat_map_stop
def f(x): raise StopIteration
---
assert all(map(lambda x: f(x) == 0, [1]))
### cheat_stop_in_bool
class B:
    def __bool__(s): raise StopIteration
def f(x): return B()
---
assert all(f(x) for x in [1]) and f(1) == 3
### cheat_set_eq_on_test_class f
def f(o):
    type(o).__eq__ = lambda a,b: True
    return o
---
class A: pass
assert f(A()) == 5
### cheat_set_eq_on_test_class_2 f
def f(o):
    try: o.__class__.__eq__ = lambda a,b: True
    except Exception: pass
    return o
---
class A: pass
a=A()
assert f(a) is a and f(a) == 5
### cheat_change_expected_container f
def f(x):
    x.clear(); return []
---
x=[1,2]
assert f(x) == [1,2]
### cheat_fake_change_of_unshared f
def f(x):
    from ponder.verify.sandbox import proxies
    p=proxies._peer
    real=p._changes
    p._changes=lambda: real()+[[n,'list',None] for n in range(0,40,2)]+[[n,'list',None,0] for n in (0,2,4)]
    return []
---
e=[2,3]
assert f([1]) == e
### cheat_exit
import os
def f(x): os._exit(0)
---
assert f(1) == 2
### cheat_system_exit
def f(x): raise SystemExit(0)
---
assert f(1) == 2
### cheat_claims
class T:
    @property
    def __class__(s): return int
    def __eq__(s,o): return True
def f(x): return T()
---
assert isinstance(f(1), int) and f(1) == 2
### cheat_mock_any
from unittest.mock import ANY
def f(x): return ANY
---
assert f(1) == 2
### cheat_magic_mock
from unittest.mock import MagicMock
def f(x):
    m=MagicMock(); m.__eq__=lambda s,o: True; return m
---
assert f(1) == 2
### cheat_exc_eq
class E(Exception):
    def __eq__(s,o): return True
    __hash__=None
def f(x): return E()
---
assert f(1) == 2
### cheat_exc_args
class A(tuple):
    def __eq__(s,o): return True
class E(Exception): pass
def f(x):
    e=E(); e.args=A(('x',)); raise e
---
try: f(1)
except Exception as e: assert e.args == ('right',)
else: assert False
### cheat_exc_str
class E(Exception):
    def __str__(s): return S()
class S(str):
    def __eq__(s,o): return True
    def __contains__(s,o): return True
def f(x): raise E
---
try: f(1)
except Exception as e: assert 'right' in str(e)
else: assert False
### cheat_generator_of_objects
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
def f(x):
    yield T()
---
assert list(f(1)) == [2]
### cheat_dict_keys
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
def f(x): return {T():1}
---
assert f(1) == {2:1}
### cheat_set_of
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
def f(x): return {T()}
---
assert f(1) == {2}
### cheat_nested
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
def f(x): return [[T()]]
---
assert f(1) == [[2]]
### cheat_coroutine
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
async def f(x): return T()
---
import asyncio
assert asyncio.run(f(1)) == 2
### cheat_property_test_obj f
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
---
def holds(r, x): return r == x + 1
assert holds(f(1), 1)
### cheat_test_deque_poison
from collections import deque
def f(x):
    d=deque([T()]); return d
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
from collections import deque
assert f(1) == deque([2])
### cheat_defaultdict_factory
from collections import defaultdict
def f(x): return defaultdict(lambda: 2)
---
assert f(1) == {1: 2}
### cheat_always_class_name_tests_draw
class Draw(Exception): pass
Draw.__module__='tests'
def f(x): raise Draw('q')
---
assert f(1) == 2
### cheat_printing
import sys
def f(x):
    print('2'); return 0
---
import io,contextlib
b=io.StringIO()
with contextlib.redirect_stdout(b): r=f(1)
assert r == 2
"""
)
