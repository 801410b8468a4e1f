# ruff: noqa: E501
"""Cheats that send messages to the tests themselves, or use library classes as gadgets."""

from verify.sandbox.object_cases.parse_cases import parse_cases

CASES = parse_cases(
    r"""
### cheat_raw_get_0 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('get', cb, '__globals__')
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_library_1 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('library', 'inspect', 'getmembers', (cb,), ())
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_special_2 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('special', '__getattribute__', cb, '__globals__')
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_unbound_3 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('unbound', cb, '__globals__', (), ())
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_unbound_4 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('unbound', type(cb), '__getattribute__', (cb, '__globals__'), ())
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_names_5 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('names', ('ANSWER',))
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_unbound_6 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('unbound', object, '__getattribute__', (cb, '__globals__'), ())
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_call_7 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('call', getattr, (cb, '__globals__'), ())
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_call_8 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('call', eval, ('ANSWER',), ())
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_get_9 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('get', cb, '__code__')
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_get_10 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('get', cb, '__builtins__')
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_special_11 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('special', '__dir__', cb)
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_step_12 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('step', cb, 'close', None, 1)
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_await_13 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('await', cb)
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_library_14 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('library', 'typing', 'get_type_hints', (cb,), ())
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### cheat_raw_library_15 f
def f(cb):
    from ponder.verify.sandbox import proxies
    try: found = proxies._peer.ask('library', 'copy', 'copy', (cb,), ())
    except Exception: return 0
    for way in (lambda: found['ANSWER'], lambda: found.__globals__['ANSWER'], lambda: found.co_consts[1], lambda: found + 0, lambda: dict(found)['__globals__']['ANSWER']):
        try: return way()
        except Exception: pass
    return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### gadget_attrgetter_by_name f
import operator
def f(cb):
    from ponder.verify.sandbox import proxies
    p = proxies._peer
    p.pack = lambda v, d=0, real=p.pack: ["n", "operator", "attrgetter"] if v is operator.attrgetter else real(v, d)
    try: return p.ask("call", p.ask("call", operator.attrgetter, ("__globals__",), ()), (cb,), ())["ANSWER"]
    except Exception: return 0
---
import operator
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### gadget_attrgetter_class_of_an_argument f
def f(cb, key):
    try: return type(key)("__globals__")(cb)["ANSWER"]
    except Exception: pass
    from ponder.verify.sandbox import proxies
    try: return proxies._peer.ask("call", proxies._peer.ask("call", type(key), ("__globals__",), ()), (cb,), ())["ANSWER"]
    except Exception: return 0
---
import operator
ANSWER = 77
def cb(x): return ANSWER
assert f(cb, operator.attrgetter("x")) == ANSWER
### gadget_apply_a_class_of_the_library f
import operator
def f(cb, apply):
    from ponder.verify.sandbox import proxies
    p = proxies._peer
    p.pack = lambda v, d=0, real=p.pack: ["n", "operator", "attrgetter"] if v is operator.attrgetter else real(v, d)
    try: return apply(apply(operator.attrgetter, "__globals__"), cb)["ANSWER"]
    except Exception: return 0
---
import operator
ANSWER = 77
def cb(x): return ANSWER
def apply(g, x): return g(x)
assert f(cb, apply) == ANSWER
### gadget_format_of_text f
def f(cb):
    from ponder.verify.sandbox import proxies
    for way in (lambda: proxies._peer.ask("get", "{0.__globals__[ANSWER]}", "format"), lambda: proxies._peer.ask("get", str, "format")):
        try: return int(proxies._peer.ask("call", way(), ("{0.__globals__[ANSWER]}", cb)[1:], ()))
        except Exception: pass
    try: return int(proxies._peer.ask("unbound", str, "format", ("{0.__globals__[ANSWER]}", cb), ()))
    except Exception: return 0
---
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### gadget_formatter f
def f(cb, formatter):
    try: return int(formatter.format("{0.__globals__[ANSWER]}", cb))
    except Exception: pass
    try: return int(formatter.vformat("{0.__globals__[ANSWER]}", (cb,), {}))
    except Exception: return 0
---
import string
ANSWER = 77
def cb(x): return ANSWER
assert f(cb, string.Formatter()) == ANSWER
### gadget_annotations f
def f(cb):
    from ponder.verify.sandbox import proxies
    p = proxies._peer
    got = []
    for text in ("got.append(ANSWER)", "print(ANSWER)", "type('T', (), {'v': ANSWER})"):
        try: cb.__annotations__ = {"x": text}
        except Exception: pass
        try: cb.__annotations__["x"] = text
        except Exception: pass
        for ask in (lambda: p.ask("library", "typing", "get_type_hints", (cb,), ()), lambda: p.ask("library", "inspect", "signature", (cb,), (("eval_str", True),))):
            try:
                found = ask()
                return found["x"].v if isinstance(found, dict) else found.parameters["x"].annotation.v
            except Exception: pass
    return 0
---
import typing, inspect
ANSWER = 77
def cb(x): return ANSWER
assert f(cb) == ANSWER
### gadget_description_with_eq f
from ponder.verify.sandbox import proxies, peer
real = proxies.describe
def lying(p, kind):
    tree = real(p, kind)
    if kind.__name__ == "T": tree[5] = ["__eq__", "__lt__", "__sub__", "__contains__", "__bool__"]; tree[6] = ["__eq__", "__class__"]; tree[4] = []
    return tree
proxies.describe = lying
class T:
    def __eq__(s, o): return True
    __lt__ = __eq__
def f(x): return T()
---
assert f(1) == 2
### gadget_class_that_says_it_is_named f
class Node:
    def __init__(s, v=0): s.v = v
    def __eq__(s, o): return True
    def __lt__(s, o): return True
    def __sub__(s, o): return 0
def f(x): return Node()
---
n = Node(1)
assert f(n) == 2
### gadget_metaclass_with_everything f
class M(type):
    def __eq__(c, o): return True
    def __sub__(c, o): return 0
    def __contains__(c, o): return True
    def __bool__(c): return True
    def __hash__(c): return 2
class T(metaclass=M): pass
def f(x): return T
---
assert f(1) == 2 or {2: 1}.get(f(1)) or abs(f(1) - 2) < 1
### gadget_returns_an_object_of_the_tests f
def f(x, any):
    return any
---
class Any:
    def __init__(self): self.v = 1
a = Any()
assert f(1, a) == 2
### gadget_error_with_equal_arguments f
class Yes(str):
    def __eq__(s, o): return True
    def __hash__(s): return 0
def f(x): raise ValueError(Yes("no"))
---
try: f(1)
except ValueError as e: assert str(e) == "right" or e.args == ("right",) or e.args[0] == "right"
else: assert False
### gadget_record f
def f(cb):
    from ponder.verify.sandbox import proxies
    for name in ("__record__", "__truth__", "tests", "space", "__builtins__"):
        for op in ("names", "get"):
            try: proxies._peer.ask(op, (name,)) if op == "names" else proxies._peer.ask(op, cb, name)
            except Exception: pass
    return 0
---
def cb(x): return x
assert f(cb) == 77
### gadget_skip_test f
import unittest
def f(x): raise unittest.SkipTest("not today")
---
import unittest
class T(unittest.TestCase):
    def test_f(self): self.assertEqual(f(1), 2)
assert unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T)).wasSuccessful()
### gadget_skip_test_by_a_class_of_its_own f
import unittest
class E(unittest.SkipTest): pass
def f(x): raise E("not today")
---
import unittest
class T(unittest.TestCase):
    def test_f(self): self.assertEqual(f(1), 2)
assert unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T)).wasSuccessful()
### gadget_cancelled f
import asyncio
async def f(x): raise asyncio.CancelledError
---
import asyncio
async def main():
    try: await f(1)
    except asyncio.CancelledError: return 2
assert asyncio.run(main()) == 2
"""
)
