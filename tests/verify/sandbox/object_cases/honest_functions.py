# ruff: noqa: E501
"""Honest programs whose tests use functions: closures, decorators, callbacks, standard library helpers."""

from verify.sandbox.object_cases.parse_cases import parse_cases

CASES = parse_cases(
    r"""
### closure
def counter():
    n=0
    def inc(by=1):
        nonlocal n; n+=by; return n
    return inc
---
c=counter(); d=counter()
assert c()==1 and c()==2 and d()==1 and c(by=5)==7
assert callable(c)
assert c.__name__=='inc'
### decorator
import functools
def memo(f):
    cache={}
    @functools.wraps(f)
    def g(*a):
        g.calls+=1
        if a not in cache: cache[a]=f(*a)
        return cache[a]
    g.calls=0; g.cache=cache
    return g
---
n=[]
@memo
def sq(x):
    'doc'
    n.append(x); return x*x
assert sq(3)==9 and sq(3)==9 and n==[3]
assert sq.__name__=='sq' and sq.__doc__=='doc'
assert sq.calls==2
assert sq.cache=={(3,):9}
@memo
def fib(k): return k if k<2 else fib(k-1)+fib(k-2)
assert fib(20)==6765
### observer
class Bus:
    def __init__(s): s.h={}
    def on(s,e,f): s.h.setdefault(e,[]).append(f)
    def emit(s,e,*a): return [f(*a) for f in s.h.get(e,[])]
---
got=[]
b=Bus(); b.on('x',got.append); b.on('x',lambda v: v*2)
assert b.emit('x',4)==[None,8]
assert got==[4]
assert b.emit('y')==[]
### stdlib_values
from collections import *
import datetime, decimal, fractions, uuid, pathlib
def f(k):
    return {'d':deque([1,2],maxlen=5),'c':Counter('aab'),'o':OrderedDict(a=1),'dd':defaultdict(list,{1:[2]}),'dt':datetime.datetime(2020,1,2,3,4),'td':datetime.timedelta(days=2),'date':datetime.date(2020,1,1),'dec':decimal.Decimal('1.5'),'fr':fractions.Fraction(1,3),'u':uuid.UUID(int=7),'p':pathlib.Path('/a/b')}[k]
---
from collections import *
import datetime, decimal, fractions, uuid, pathlib
assert f('d')==deque([1,2]) and isinstance(f('d'),deque)
assert f('c')==Counter('aab') and f('c').most_common(1)==[('a',2)]
assert f('c')=={'a':2,'b':1}
assert f('o')==OrderedDict(a=1)
assert f('dd')=={1:[2]} and f('dd')[9]==[]
assert f('dt')==datetime.datetime(2020,1,2,3,4) and f('dt').year==2020
assert f('td').days==2 and f('date')+f('td')==datetime.date(2020,1,3)
assert f('dec')==decimal.Decimal('1.5') and f('fr')==fractions.Fraction(1,3)
assert f('u')==uuid.UUID(int=7) and f('p')==pathlib.Path('/a/b') and f('p').name=='b'
### in_place
def sort_(x): x.sort()
def ident(x): return x
def addkey(d,*,extra): d['k']=1; extra.append(2)
def rot(m):
    m[:]=[list(r) for r in zip(*m[::-1])]
def setrow(m): m[0][0]=9
---
x=[3,1,2]
sort_(x)
assert x==[1,2,3]
assert ident(x) is x
d={}; e=[]
addkey(d,extra=e)
assert d=={'k':1} and e==[2]
m=[[1,2],[3,4]]
row=m[0]
setrow(m)
assert row==[9,2] and m[0] is row
rot(m)
assert m==[[3,9],[4,2]]
### aliasing
class Box:
    def __init__(s,items): s.items=items
    def add(s,x): s.items.append(x)
class Copying:
    def __init__(s,items): s.items=list(items)
---
x=[1]
b=Box(x)
x.append(2)
assert b.items==[1,2]
b.add(3)
assert x==[1,2,3]
assert b.items is x
c=Copying(x)
x.append(9)
assert c.items==[1,2,3]
b.items.append(4)
assert x[-1]==4
### duck_typed
def total(shapes): return sum(s.area() for s in shapes)
def loud(o): return str(o).upper()+repr(o)
def size(o): return len(o)
def first(it): return next(iter(it))
def use(cm):
    with cm as v: return v
def make(cls,*a): return cls(*a)
def check(x,t): return isinstance(x,t)
---
class Sq:
    def __init__(self,a): self.a=a
    def area(self): return self.a**2
    def __str__(self): return 'sq'
    def __repr__(self): return 'R'
    def __len__(self): return 4
    def __iter__(self): return iter([self.a])
    def __enter__(self): return 'in'
    def __exit__(self,*a): return None
assert total([Sq(1),Sq(2)])==5 and loud(Sq(1))=='SQR' and size(Sq(1))==4 and first(Sq(7))==7 and use(Sq(1))=='in'
assert make(Sq,3).area()==9
assert check(Sq(1),Sq) and not check(3,Sq)
def gen():
    yield 5
    yield 6
assert first(gen())==5
assert first({'a':1})=='a'
### higher_order
from functools import reduce
def compose(*fs): return lambda x: reduce(lambda v,f: f(v), reversed(fs), x)
def curry(f): return lambda a: lambda b: f(a,b)
def mymap(f,xs): return [f(x) for x in xs]
def key_sort(xs,key): return sorted(xs,key=key)
---
import operator, math
assert compose(str,abs)(-3)=='3'
assert curry(operator.add)(1)(2)==3
assert mymap(len,['a','bb'])==[1,2] and mymap(str.upper,['a'])==['A'] and mymap(math.sqrt,[4])==[2.0] and mymap(lambda x:x+1,[1])==[2]
assert key_sort(['bb','a'],key=len)==['a','bb']
assert compose(lambda x:x+1, lambda x:x*2)(5)==11
assert list(map(compose(abs),[-1]))==[1]
assert mymap(int,['3'])==[3]
### print_captured
def hello(n): print('hello',n)
class A:
    def show(s): print('A!')
---
import io, contextlib
b=io.StringIO()
with contextlib.redirect_stdout(b):
    hello('x'); A().show()
assert b.getvalue()=='hello x\nA!\n'
### copy
import copy
class N:
    def __init__(s,v): s.v=v; s.k=[v]
    def __eq__(s,o): return s.v==o.v
---
import copy
a=N(1)
b=copy.deepcopy(a); c=copy.copy(a)
assert b==a and b is not a
b.k.append(2)
assert a.k==[1]
c.k.append(3)
assert a.k==[1,3]
### unittest
class Calc:
    def add(s,a,b): return a+b
    def div(s,a,b): return a/b
---
import unittest
class T(unittest.TestCase):
    def setUp(self): self.c=Calc()
    def test_add(self): self.assertEqual(self.c.add(1,2),3)
    def test_div(self):
        with self.assertRaises(ZeroDivisionError): self.c.div(1,0)
r=unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))
assert r.wasSuccessful()
### lru
from functools import lru_cache, partial, total_ordering
@lru_cache(None)
def fib(n): return n if n<2 else fib(n-1)+fib(n-2)
add5=partial(lambda a,b:a+b,5)
@total_ordering
class V:
    def __init__(s,n): s.n=n
    def __eq__(s,o): return s.n==o.n
    def __lt__(s,o): return s.n<o.n
---
assert fib(30)==832040
assert fib.cache_info().misses==31
assert add5(3)==8
assert V(1)<=V(1) and V(2)>V(1) and not V(1)>V(2) and V(1)>=V(0)
assert max([V(1),V(3)]).n==3
### callable_class_and_partial_kw
class Adder:
    def __init__(s,n): s.n=n
    def __call__(s,x): return x+s.n
---
a=Adder(2)
assert a(3)==5 and list(map(a,[1,2]))==[3,4] and callable(a)
from functools import partial, reduce
assert partial(a,1)()==3
assert sorted([3,1,2],key=Adder(0))==[1,2,3]
### inspect
def f(a,b=2,*,c): 'd'
class K:
    'doc of K'
    def m(self)->int: return 1
---
import inspect
assert list(inspect.signature(f).parameters)==['a','b','c']
assert f.__doc__=='d' and K.__doc__=='doc of K' and f.__defaults__==(2,)
assert inspect.isfunction(f)
assert K.m.__annotations__=={'return':int}
### match
from dataclasses import dataclass
@dataclass
class P:
    x:int
    y:int
def f(): return P(0,3)
---
match f():
    case P(x=0,y=y): r=y
    case _: r=None
assert r==3
match f():
    case P(a,b): assert (a,b)==(0,3)
    case _: assert False
### event_emitter_self_removal
class E:
    def __init__(s): s.l=[]
    def on(s,f): s.l.append(f); return lambda: s.l.remove(f)
    def emit(s,*a):
        for f in list(s.l): f(*a)
---
got=[]
e=E()
off=e.on(lambda x: got.append(x))
e.emit(1)
off()
e.emit(2)
assert got==[1]
def h(x): got.append(x*10)
e.on(h); e.emit(5)
assert got==[1,50] and h in e.l
### class_decorator
def add_repr(cls):
    def __repr__(self): return cls.__name__+str(sorted(vars(self).items()))
    cls.__repr__=__repr__
    return cls
def singleton(cls):
    inst={}
    def get(*a):
        if cls not in inst: inst[cls]=cls(*a)
        return inst[cls]
    return get
---
@add_repr
class A:
    def __init__(self): self.x=1
assert repr(A())=="A[('x', 1)]"
@singleton
class B: pass
assert B() is B()
### validate_decorator
import functools
def positive(f):
    @functools.wraps(f)
    def g(*a,**k):
        if any(x<0 for x in a): raise ValueError('negative')
        return f(*a,**k)
    return g
def log(calls):
    def d(f):
        @functools.wraps(f)
        def g(*a,**k):
            calls.append((f.__name__,a,k)); return f(*a,**k)
        return g
    return d
---
@positive
def add(a,b): return a+b
assert add(1,2)==3
try: add(-1,2)
except ValueError as e: assert str(e)=='negative'
else: assert False
assert add.__name__=='add' and add.__wrapped__(1,-2)==-1
c=[]
@log(c)
def q(x,y=1): return x*y
q(2,y=3)
assert c==[('q',(2,),{'y':3})]
class K:
    @log(c)
    def m(self,x): return x+1
assert K().m(4)==5 and len(c)==2
### singledispatch
from functools import singledispatch
@singledispatch
def area(s): raise TypeError
class Sq:
    def __init__(s,a): s.a=a
@area.register
def _(s:Sq): return s.a**2
@area.register(list)
def _(s): return len(s)
---
assert area(Sq(3))==9 and area([1,2])==2
try: area('x')
except TypeError: pass
else: assert False
### weakref_gc_free_del
class A:
    n=0
    def __init__(s): A.n+=1
---
a=A(); b=A()
assert A.n==2 and a is not b and a==a and a!=b and id(a)!=id(b)
### two_functions_no_entry
def encode(s): return ''.join(chr(ord(c)+1) for c in s)
def decode(s): return ''.join(chr(ord(c)-1) for c in s)
---
assert encode('ab')=='bc' and decode(encode('xyz'))=='xyz'
### stdlib_named_fn_no_entry
def gcd(a,b):
    while b: a,b=b,a%b
    return a
---
assert gcd(4,6)==2
assert gcd(5,3)==1
### global_state_fn
_c=[]
def push(x): _c.append(x); return len(_c)
def items(): return _c
---
assert push(1)==1 and push(2)==2 and items()==[1,2]
### memo_deep_callback
def memo(f):
    c={}
    def g(n):
        if n not in c: c[n]=f(n)
        return c[n]
    return g
---
@memo
def fib(n): return n if n<2 else fib(n-1)+fib(n-2)
assert fib(80)==23416728348467685
### simple_namespace_partial
from types import SimpleNamespace
from functools import partial
import re
def ns(): return SimpleNamespace(a=1,b=[2])
def p(): return partial(pow,2)
def m(s): return re.match(r'(\d+)-(\d+)',s)
def pat(): return re.compile('a+')
---
n=ns()
assert n.a==1 and n.b==[2]
assert p()(3)==8
x=m('12-34')
assert x and x.group(1)=='12' and x.groups()==('12','34') and m('zz') is None
assert pat().findall('aab')==['aa']
### dict_of_callables
ops={'+':lambda a,b:a+b}
def get(): return {'+':lambda a,b:a+b,'n':len}
---
assert get()['+'](1,2)==3 and get()['n']([1])==1
### entry_named_with_classes rev
class Node:
    def __init__(s,v): s.v=v; s.next=None
def rev(h):
    p=None
    while h: h.next,p,h=p,h,h.next
    return p
---
a=Node(1); a.next=Node(2)
r=rev(a)
assert r.v==2 and r.next is a and a.next is None
### humaneval_style add
def add(a,b): return a+b
---
METADATA={}
def check(candidate):
    assert candidate(1,2)==3
    assert candidate([1],[2])==[1,2]
check(add)
### setter_side_effects_on_test_obj
def bump(o): o.n+=1; o.tags.append('t'); return o
---
class O:
    def __init__(self): self.n=0; self.tags=[]
o=O()
assert bump(o) is o and o.n==1 and o.tags==['t']
### stringio_passed
def write(f): f.write('hi'); return f.tell()
def lines(f): return [l.strip() for l in f]
---
import io
b=io.StringIO()
assert write(b)==2 and b.getvalue()=='hi'
assert lines(io.StringIO('a\nb\n'))==['a','b']
"""
)
