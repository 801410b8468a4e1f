# ruff: noqa: E501
"""Programs whose tests use their objects: honest ones, which must pass, and cheats, which must not.

Each begins with its name and, where it has one, its entry; its tests follow after a line of dashes. A program that was
written out before is given by the name of its case.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    name: str
    entry: str
    program: str
    tests: str


HONEST_TEXT = r"""
### vector_eq
class Vector:
    def __init__(s,x,y): s.x,s.y=x,y
    def __add__(s,o): return Vector(s.x+o.x,s.y+o.y)
    def __eq__(s,o): return isinstance(o,Vector) and (s.x,s.y)==(o.x,o.y)
    def __mul__(s,k): return Vector(s.x*k,s.y*k)
    __rmul__=__mul__
    def __repr__(s): return f'Vector({s.x}, {s.y})'
    def __abs__(s): return (s.x**2+s.y**2)**.5
    def __neg__(s): return Vector(-s.x,-s.y)
    def __iter__(s): yield s.x; yield s.y
    def __hash__(s): return hash((s.x,s.y))
---
a=Vector(1,2); b=Vector(3,4)
assert a+b==Vector(4,6)
assert a!=b
assert a*2==Vector(2,4)
assert 3*a==Vector(3,6)
assert repr(a)=='Vector(1, 2)'
assert abs(b)==5.0
assert tuple(-a)==(-1,-2)
x,y=a
assert (x,y)==(1,2)
assert len({a,Vector(1,2),b})==2
a+=b
assert a==Vector(4,6)
assert {b:1}[Vector(3,4)]==1
assert str([b])=='[Vector(3, 4)]'
assert f'{b}'=='Vector(3, 4)'
### linked_list
class Node:
    def __init__(s,v,n=None): s.val=v; s.next=n
class LinkedList:
    def __init__(s): s.head=None; s.n=0
    def push(s,v): s.head=Node(v,s.head); s.n+=1
    def __len__(s): return s.n
    def __iter__(s):
        c=s.head
        while c: yield c.val; c=c.next
    def __contains__(s,v): return any(v==x for x in s)
    def __getitem__(s,i):
        return list(s)[i]
    def __bool__(s): return s.n>0
    def __reversed__(s): return reversed(list(s))
---
l=LinkedList()
assert not l
assert l.head is None
for i in range(3): l.push(i)
assert len(l)==3
assert list(l)==[2,1,0]
assert 1 in l and 9 not in l
assert l[0]==2 and l[-1]==0 and l[0:2]==[2,1]
assert list(reversed(l))==[0,1,2]
assert l.head.next.next.val==0
assert l.head.next.next.next is None
l.head.val=7
assert l[0]==7
assert sum(l)==8
try:
    l[10]
    assert False
except IndexError as e: assert 'range' in str(e)
### context_manager
class R:
    log=[]
    def __enter__(s): R.log.append('in'); return s
    def __exit__(s,t,v,tb): R.log.append(t.__name__ if t else 'out'); return t is ValueError
---
with R() as r: pass
assert R.log==['in','out']
with R(): raise ValueError('x')
assert R.log[-1]=='ValueError'
try:
    with R(): raise KeyError('k')
except KeyError: pass
else: assert False
### contextlib
from contextlib import contextmanager
log=[]
@contextmanager
def tag(n):
    log.append('<'+n)
    try: yield n.upper()
    finally: log.append('>'+n)
def getlog(): return log
---
with tag('a') as t: assert t=='A'
assert getlog()==['<a','>a']
try:
    with tag('b'): raise ValueError
except ValueError: pass
assert getlog()[-1]=='>b'
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
### retry
def retry(times):
    def deco(f):
        def g(*a,**k):
            for i in range(times):
                try: return f(*a,**k)
                except ValueError as e: last=e
            raise last
        return g
    return deco
---
n=[0]
@retry(3)
def flaky():
    n[0]+=1
    if n[0]<3: raise ValueError('no')
    return 'ok'
assert flaky()=='ok' and n==[3]
@retry(2)
def bad(): raise ValueError('always')
try: bad(); assert False
except ValueError as e: assert str(e)=='always'
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
### exception_attrs
class InsufficientFunds(ValueError):
    def __init__(s,need,have): super().__init__(f'need {need}'); s.need=need; s.have=have
class Account:
    def __init__(s,b=0): s._b=b
    @property
    def balance(s): return s._b
    def withdraw(s,n):
        if n>s._b: raise InsufficientFunds(n,s._b)
        s._b-=n
        return s
    @balance.setter
    def balance(s,v):
        if v<0: raise ValueError('neg')
        s._b=v
    @classmethod
    def empty(cls): return cls()
    @staticmethod
    def bank(): return 'B'
---
a=Account(10)
a.withdraw(3)
assert a.balance==7
try:
    a.withdraw(100); assert False
except InsufficientFunds as e:
    assert e.need==100 and e.have==7 and str(e)=='need 100' and e.args==('need 100',)
try: a.withdraw(50)
except ValueError as e: assert isinstance(e,InsufficientFunds)
else: assert False
try:
    a.balance=-1; assert False
except ValueError: pass
a.balance=5
assert a.balance==5
assert Account.empty().balance==0 and Account.bank()=='B'
assert isinstance(a,Account) and type(a) is Account and type(a).__name__=='Account'
assert issubclass(InsufficientFunds,ValueError)
assert hasattr(a,'withdraw') and not hasattr(a,'nope')
assert getattr(a,'nope',3)==3
### raise_from
def f():
    try: 1/0
    except ZeroDivisionError as e: raise RuntimeError('bad') from e
---
try: f()
except RuntimeError as e: assert isinstance(e.__cause__,ZeroDivisionError)
else: assert False
### dataclass
from dataclasses import dataclass, field
@dataclass(order=True)
class P:
    x:int
    y:int=0
    t:list=field(default_factory=list)
@dataclass(frozen=True)
class F:
    a:int
---
import dataclasses
p=P(1,2)
assert p==P(1,2) and p!=P(2,1) and p<P(1,3)
assert repr(p)=='P(x=1, y=2, t=[])'
assert dataclasses.asdict(p)=={'x':1,'y':2,'t':[]}
assert sorted([P(2),P(1)])==[P(1),P(2)]
assert dataclasses.is_dataclass(P)
assert [f.name for f in dataclasses.fields(P)]==['x','y','t']
assert dataclasses.replace(p,x=9).x==9
try: F(1).a=2
except dataclasses.FrozenInstanceError: pass
else: assert False
assert hash(F(1))==hash(F(1)) and len({F(1),F(1)})==1
p.t.append(4)
assert p.t==[4]
assert vars(p)=={'x':1,'y':2,'t':[4]}
### enum
import enum
class Color(enum.Enum):
    RED=1
    BLUE=2
class L(enum.IntEnum):
    LO=1
    HI=2
def mix(c): return Color.BLUE if c is Color.RED else Color.RED
---
from enum import Enum
assert mix(Color.RED) is Color.BLUE
assert mix(Color.BLUE)==Color.RED
assert [c.name for c in Color]==['RED','BLUE']
assert Color(1) is Color.RED and Color['BLUE'].value==2
assert len(Color)==2
assert Color.RED in Color
assert isinstance(Color.RED,Enum) and isinstance(Color.RED,Color)
assert L.LO<L.HI and L.HI==2 and L.LO+1==2
assert {Color.RED:1}[Color.RED]==1
assert str(Color.RED)=='Color.RED'
try: Color(9)
except ValueError: pass
else: assert False
### abc
from abc import ABC, abstractmethod
class Shape(ABC):
    @abstractmethod
    def area(self): ...
    def describe(self): return f'{type(self).__name__} {self.area()}'
class Sq(Shape):
    def __init__(s,a): s.a=a
    def area(s): return s.a**2
---
try: Shape()
except TypeError: pass
else: assert False
assert Sq(3).describe()=='Sq 9' and isinstance(Sq(1),Shape) and issubclass(Sq,Shape)
class C(Shape):
    def __init__(self,r): self.r=r
    def area(self): return 3*self.r
assert C(2).describe()=='C 6'
class D(Sq):
    def __init__(self,a):
        super().__init__(a+1)
    def area(self): return super().area()+100
assert D(1).area()==104 and isinstance(D(1),Shape)
assert D(1).a==2
### generator_send
def acc():
    t=0
    while True:
        v=yield t
        if v is None: return t
        t+=v
---
g=acc()
assert next(g)==0 and g.send(5)==5 and g.send(2)==7
try: g.send(None)
except StopIteration as e: assert e.value==7
else: assert False
### generator_type
def f(n):
    for i in range(n): yield i*i
---
import types
g=f(3)
assert isinstance(g,types.GeneratorType)
assert list(g)==[0,1,4] and list(g)==[]
assert sum(f(1000))==sum(i*i for i in range(1000))
assert next(iter(f(0)),None) is None
### iterator_class
class Count:
    def __init__(s,a,b): s.a,s.b=a,b
    def __iter__(s): return s
    def __next__(s):
        if s.a>=s.b: raise StopIteration
        s.a+=1
        return s.a-1
---
c=Count(0,3)
assert next(c)==0 and list(c)==[1,2]
try: next(c); assert False
except StopIteration: pass
assert iter(c) is c
assert [x for x in Count(5,8)]==[5,6,7]
assert max(Count(0,4))==3
a,*b=Count(0,3)
assert b==[1,2]
assert list(zip(Count(0,2),'ab'))==[(0,'a'),(1,'b')]
### async
import asyncio
async def fetch(x):
    await asyncio.sleep(0.001)
    return x*2
async def all_(xs): return await asyncio.gather(*(fetch(x) for x in xs))
class Res:
    async def __aenter__(s): s.o=True; return s
    async def __aexit__(s,*a): s.o=False
async def agen(n):
    for i in range(n):
        await asyncio.sleep(0); yield i
async def boom(): raise ValueError('b')
async def apply(cb,x): return await cb(x)
---
import asyncio
assert asyncio.run(fetch(2))==4
assert asyncio.run(all_([1,2]))==[2,4]
async def main():
    async with Res() as r:
        assert r.o
    assert not r.o
    got=[x async for x in agen(3)]
    assert got==[0,1,2]
    a,b=await asyncio.gather(fetch(1),fetch(2))
    t=asyncio.create_task(fetch(5))
    assert await t==10
    async def cb(v):
        await asyncio.sleep(0.001)
        return v+1
    assert await apply(cb,1)==2
    try: await boom()
    except ValueError as e: assert str(e)=='b'
    else: assert False
    return a+b
assert asyncio.run(main())==6
assert asyncio.iscoroutinefunction(fetch)
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
### list_subclass
class Stack(list):
    def push(s,x): s.append(x)
    def peek(s): return s[-1]
    def __len__(s): return list.__len__(s)
class D(dict):
    def __missing__(s,k): return k*2
    def __getattr__(s,n):
        try: return s[n]
        except KeyError: raise AttributeError(n)
---
s=Stack()
s.push(1); s.push(2)
assert s==[1,2] and s.peek()==2 and len(s)==2 and s.pop()==2
assert isinstance(s,list) and s[0]==1
s.append(5)
assert s.peek()==5 and list(s)==[1,5]
d=D(a=1)
assert d['a']==1 and d.a==1 and d['zz']=='zzzz'
assert d=={'a':1}
### namedtuple
from typing import NamedTuple
from collections import namedtuple
class P(NamedTuple):
    x:int
    y:int=0
    def norm(s): return s.x+s.y
Q=namedtuple('Q','a b')
def q(): return Q(1,2)
---
p=P(1,2)
assert p==(1,2) and p.x==1 and p.norm()==3 and p._replace(x=5)==(5,2)
x,y=p
assert y==2 and p==P(1,2) and repr(p)=='P(x=1, y=2)'
assert q().b==2 and q()==Q(1,2) and q()._asdict()=={'a':1,'b':2}
assert isinstance(p,tuple) and p[1]==2 and hash(p)==hash((1,2))
### operators
class M:
    def __init__(s,v): s.v=v
    def __matmul__(s,o): return M(s.v*o.v)
    def __getitem__(s,k): return (k if not isinstance(k,tuple) else sum(k))
    def __setitem__(s,k,v): s.v=(k,v)
    def __delitem__(s,k): s.v=('del',k)
    def __call__(s,*a,**k): return (a,k)
    def __int__(s): return 5
    def __float__(s): return 2.5
    def __index__(s): return 2
    def __round__(s,n=0): return n
    def __invert__(s): return M(~s.v)
    def __lt__(s,o): return s.v<o.v
    def __format__(s,sp): return 'F'+sp
    def __bytes__(s): return b'x'
    def __bool__(s): return s.v!=0
    def __divmod__(s,o): return (M(1),M(2))
    def __iadd__(s,o): s.v+=o.v; return s
    def __floordiv__(s,o): return M(s.v//o)
    def __enter__(s): return s
    def __exit__(s,*a): return False
---
m=M(3)
assert (m@M(4)).v==12
assert m[1]==1 and m[1,2]==3 and m[1:3]==slice(1,3)
m['a']=5
assert m.v==('a',5)
del m['q']
assert m.v==('del','q')
assert m(1,k=2)==((1,),{'k':2})
assert int(m)==5 and float(m)==2.5 and [10,20,30][m]==30 and round(m,3)==3
assert (~M(0)).v==-1
assert sorted([M(3),M(1)])[0].v==1 and min(M(3),M(1)).v==1
assert f'{m:>3}'=='F>3' and bytes(m)==b'x'
assert not M(0) and M(1)
q,r=divmod(M(1),M(1))
assert q.v==1 and r.v==2
a=M(1); b=a
a+=M(5)
assert a is b and b.v==6
assert (M(7)//2).v==3
### singleton
class S:
    _i=None
    def __new__(cls):
        if cls._i is None: cls._i=super().__new__(cls)
        return cls._i
def get(): return S()
---
assert S() is S()
assert get() is S()
assert S() == S()
### descriptor
class Pos:
    def __set_name__(s,o,n): s.n='_'+n
    def __get__(s,i,o=None): return s if i is None else getattr(i,s.n,0)
    def __set__(s,i,v):
        if v<0: raise ValueError('neg')
        setattr(i,s.n,v)
---
class A:
    x=Pos()
a=A()
assert a.x==0
a.x=5
assert a.x==5
try: a.x=-1
except ValueError: pass
else: assert False
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
### graph
class Graph:
    def __init__(s): s.e={}
    def add(s,a,b): s.e.setdefault(a,set()).add(b); s.e.setdefault(b,set()).add(a)
    def neighbors(s,a): return s.e[a]
    def bfs(s,a):
        seen=[a]; q=[a]
        while q:
            x=q.pop(0)
            for y in sorted(s.e[x]):
                if y not in seen: seen.append(y); q.append(y)
        return seen
---
g=Graph(); g.add(1,2); g.add(1,3)
assert g.neighbors(1)=={2,3}
assert g.bfs(2)==[2,1,3]
assert g.e=={1:{2,3},2:{1},3:{1}}
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
### generic
from typing import Generic, TypeVar
T=TypeVar('T')
class Stack(Generic[T]):
    def __init__(s): s._i=[]
    def push(s,x:T): s._i.append(x)
    def pop(s)->T:
        if not s._i: raise IndexError('empty')
        return s._i.pop()
    @property
    def size(s): return len(s._i)
---
s=Stack[int]()
s.push(1)
assert s.size==1 and s.pop()==1
try: Stack().pop()
except IndexError as e: assert 'empty' in str(e)
else: assert False
### slots_and_mangling
class A:
    __slots__=('x',)
    def __init__(s): s.x=1
class B:
    def __init__(s): s.__p=3
    def get(s): return s.__p
---
a=A()
try:
    a.y=1; assert False
except AttributeError: pass
assert B().get()==3 and B()._B__p==3
try: B().__p
except AttributeError: pass
else: assert False
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
### mro_and_super
class A:
    def who(s): return 'A'
class B(A):
    def who(s): return 'B'+super().who()
class C(A):
    def who(s): return 'C'+super().who()
class D(B,C):
    def who(s): return 'D'+super().who()
---
assert D().who()=='DBCA'
assert [k.__name__ for k in D.__mro__][:4]==['D','B','C','A']
assert issubclass(D,A) and isinstance(D(),C)
assert A.who(D())=='A'
### exception_group
class AppError(Exception): pass
class NotFound(AppError):
    code=404
    def __str__(s): return 'nf:'+','.join(map(str,s.args))
def find(k):
    if k=='a': return 1
    raise NotFound(k, 2)
def guard(f):
    try: f()
    except KeyError: return 'key'
    except AppError as e: return 'app'+str(e)
---
try: find('z')
except AppError as e:
    assert isinstance(e,NotFound) and e.code==404 and str(e)=='nf:z,2' and e.args==('z',2)
else: assert False
def bad(): raise KeyError('q')
assert guard(bad)=='key'
def bad2(): raise NotFound('u')
assert guard(bad2)=='appnf:u'
class Mine(Exception): pass
def bad3(): raise Mine('m')
try: guard(bad3)
except Mine as e: assert str(e)=='m'
else: assert False
import contextlib
with contextlib.suppress(NotFound): find('x')
### trie
class Trie:
    def __init__(s): s.root={}
    def insert(s,w):
        n=s.root
        for c in w: n=n.setdefault(c,{})
        n['$']=True
    def search(s,w):
        n=s.root
        for c in w:
            if c not in n: return False
            n=n[c]
        return '$' in n
---
t=Trie(); t.insert('ab')
assert t.search('ab') and not t.search('a')
assert t.root=={'a':{'b':{'$':True}}}
### tree_node_inputs
class TreeNode:
    def __init__(s,val=0,left=None,right=None): s.val=val; s.left=left; s.right=right
def invert(r):
    if r: r.left,r.right=invert(r.right),invert(r.left)
    return r
def depth(r): return 0 if r is None else 1+max(depth(r.left),depth(r.right))
---
r=TreeNode(1,TreeNode(2),TreeNode(3,TreeNode(4)))
assert depth(r)==3
i=invert(r)
assert i is r and i.left.val==3 and i.left.right.val==4 and depth(None)==0
assert r.left.left is None and r.left.left == None
### threads
import threading
class C:
    def __init__(s): s.n=0; s.l=threading.Lock()
    def inc(s):
        with s.l: s.n+=1
def pmap(f,xs):
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(3) as p: return list(p.map(f,xs))
---
import threading
c=C()
ts=[threading.Thread(target=c.inc) for _ in range(5)]
for t in ts: t.start()
for t in ts: t.join()
assert c.n==5
assert pmap(lambda x:x*2,[1,2,3])==[2,4,6]
### views_and_iter
def f(): return {1:2}.items()
def g(): return zip([1],[2])
def m(): return map(str,[1,2])
def r(): return range(3)
def e(): return enumerate('a')
def mem(): return memoryview(b'ab')
---
assert list(f())==[(1,2)] and dict(g())=={1:2} and list(m())==['1','2'] and r()==range(3) and list(e())==[(0,'a')]
assert len(f())==1 and (1,2) in f()
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
### class_attrs
class K:
    count=0
    items=[]
    def __init__(s): K.count+=1
    def __del__(s): pass
---
K(); K()
assert K.count==2
K.count=10
assert K().count==11
K.items.append(1)
assert K.items==[1]
### ordering_mixed_types
class Money:
    def __init__(s,a,c): s.a,s.c=a,c
    def __eq__(s,o): return isinstance(o,Money) and (s.a,s.c)==(o.a,o.c)
    def __sub__(s,o): return Money(s.a-o.a,s.c)
    def __str__(s): return f'{s.a} {s.c}'
    def __lt__(s,o):
        if s.c!=o.c: raise ValueError('currency')
        return s.a<o.a
---
assert str(Money(5,'EUR')-Money(2,'EUR'))=='3 EUR'
assert Money(5,'EUR')==Money(5,'EUR') and not Money(5,'EUR')==Money(5,'USD')
try: Money(1,'EUR')<Money(1,'USD')
except ValueError: pass
else: assert False
assert [Money(1,'E')]==[Money(1,'E')] and Money(1,'E') in [Money(2,'E'),Money(1,'E')]
assert Money(1,'E') is not None and Money(1,'E') != None
### self_returning_dict_of_objs
class U:
    def __init__(s,n): s.name=n
    def __eq__(s,o): return s.name==o.name
def users(): return {'a':U('x'),'b':[U('y')]}
---
u=users()
assert u['a'].name=='x' and u['b'][0].name=='y'
assert u['a']==U('x')
assert [v.name for v in u['b']]==['y']
assert users()=={'a':U('x'),'b':[U('y')]}
### str_and_int_subclasses
class Name(str):
    def initials(s): return ''.join(p[0] for p in s.split())
class Even(int):
    def __new__(cls,v):
        if v%2: raise ValueError
        return super().__new__(cls,v)
---
n=Name('ab cd')
assert n=='ab cd' and n.initials()=='ac' and n.upper()=='AB CD' and isinstance(n,str) and len(n)==5
assert Even(4)+1==5 and Even(4)==4
try: Even(3)
except ValueError: pass
else: assert False
### matrix
class Matrix:
    def __init__(s,r): s.rows=r
    def __mul__(s,o):
        if isinstance(o,(int,float)): return Matrix([[x*o for x in r] for r in s.rows])
        return Matrix([[sum(a*b for a,b in zip(r,c)) for c in zip(*o.rows)] for r in s.rows])
    def __eq__(s,o): return s.rows==o.rows
    def __getitem__(s,ij): return s.rows[ij[0]][ij[1]]
    def T(s): return Matrix([list(c) for c in zip(*s.rows)])
---
a=Matrix([[1,2],[3,4]])
assert (a*a).rows==[[7,10],[15,22]] and (a*2).rows[0]==[2,4] and a[1,0]==3 and a.T()==Matrix([[1,3],[2,4]]) and a!=a.T()
### event_loop_closures
def make():
    fs=[]
    for i in range(3): fs.append(lambda i=i: i)
    return fs
def once(f):
    done=[]
    def g():
        if not done: done.append(f())
        return done[0]
    return g
---
assert [f() for f in make()]==[0,1,2]
n=[]
g=once(lambda: n.append(1) or len(n))
assert g()==1 and g()==1 and n==[1]
### property_deleter_and_dir
class A:
    def __init__(s): s._x=1
    @property
    def x(s):
        'the x'
        return s._x
    @x.deleter
    def x(s): s._x=None
---
a=A()
del a.x
assert a.x is None
assert 'x' in dir(a)
assert A.__name__=='A'
assert A.x.__doc__=='the x'
a.new=4
assert a.new==4
del a.new
assert not hasattr(a,'new')
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
### mapping
class M:
    def __init__(s): s.d={'a':1}
    def keys(s): return s.d.keys()
    def __getitem__(s,k): return s.d[k]
    def __setitem__(s,k,v): s.d[k]=v
    def __len__(s): return len(s.d)
    def __iter__(s): return iter(s.d)
    def __delitem__(s,k): del s.d[k]
---
m=M()
assert dict(m)=={'a':1}
assert {**m}=={'a':1}
def g(**k): return k
assert g(**m)=={'a':1}
m['b']=2
m['b']+=5
assert m['b']==7
del m['b']
assert list(m)==['a'] and len(m)==1
try: m['zz']
except KeyError as e: assert e.args==('zz',)
else: assert False
### mutable_mapping_abc
from collections.abc import MutableMapping, Sequence
class D(MutableMapping):
    def __init__(s,**k): s._d=dict(k)
    def __getitem__(s,k): return s._d[k.lower()]
    def __setitem__(s,k,v): s._d[k.lower()]=v
    def __delitem__(s,k): del s._d[k.lower()]
    def __iter__(s): return iter(s._d)
    def __len__(s): return len(s._d)
---
from collections.abc import Mapping, Iterable, Hashable, Callable
d=D(a=1)
d['B']=2
assert d['b']==2 and d.get('zz',5)==5 and 'A' in d and sorted(d.items())==[('a',1),('b',2)]
assert isinstance(d,Mapping) and isinstance(d,Iterable)
assert d.pop('a')==1 and len(d)==1
d.update(c=3)
assert d['c']==3
### isinstance_abcs
class A:
    def __iter__(s): return iter([])
class B:
    def __call__(s): return 1
class C: pass
---
from collections.abc import Iterable, Callable, Sized
assert isinstance(A(),Iterable) and not isinstance(C(),Iterable)
assert isinstance(B(),Callable) and not isinstance(C(),Callable) and not callable(C())
assert not isinstance(A(),Sized)
assert not hasattr(C(),'__len__') and hasattr(A(),'__iter__')
### heap_of_objs
import functools
@functools.total_ordering
class Task:
    def __init__(s,p,n): s.p,s.n=p,n
    def __lt__(s,o): return s.p<o.p
    def __eq__(s,o): return s.p==o.p
---
import heapq
h=[Task(3,'c'),Task(1,'a'),Task(2,'b')]
heapq.heapify(h)
assert [heapq.heappop(h).n for _ in range(3)]==['a','b','c']
assert sorted([Task(2,'x'),Task(1,'y')],key=lambda t:t.n)[0].n=='x'
assert max([Task(1,'q'),Task(5,'r')],key=lambda t:t.p).n=='r'
### sum_of_objs
class V:
    def __init__(s,x): s.x=x
    def __add__(s,o): return V(s.x+o.x)
    def __radd__(s,o): return s if o==0 else s+o
---
assert sum([V(1),V(2),V(3)]).x==6
assert sum([V(1)],V(5)).x==6
### init_subclass_registry
class Base:
    reg={}
    def __init_subclass__(cls,**k):
        super().__init_subclass__(**k)
        Base.reg[cls.__name__]=cls
class A(Base): pass
---
assert 'A' in Base.reg and Base.reg['A'] is A
class Z(Base): pass
assert Base.reg['Z'] is Z
### metaclass
class Meta(type):
    def __call__(cls,*a,**k):
        if not hasattr(cls,'_i'): cls._i=super().__call__(*a,**k)
        return cls._i
    def __len__(cls): return 7
class S(metaclass=Meta):
    def __init__(s): s.v=1
---
assert S() is S()
assert len(S)==7
S().v=5
assert S().v==5
### exitstack
class R:
    def __init__(s,n,log): s.n,s.log=n,log
    def __enter__(s): s.log.append('+'+s.n); return s
    def __exit__(s,*a): s.log.append('-'+s.n)
---
from contextlib import ExitStack
log=[]
with ExitStack() as st:
    for n in 'ab': st.enter_context(R(n,log))
assert log==['+a','+b','-b','-a']
with R('x',log), R('y',log): pass
assert log[4:]==['+x','+y','-y','-x']
### generator_close
log=[]
def g():
    try:
        while True: yield 1
    finally: log.append('closed')
def seen(): return log
---
x=g()
next(x)
x.close()
assert seen()==['closed']
### generator_throw
def g():
    while True:
        try: yield 'ok'
        except ValueError: yield 'caught'
---
x=g()
next(x)
assert x.throw(ValueError)=='caught' or True
assert next(x)=='ok'
### yield_from_pipeline
def evens(it):
    for x in it:
        if x%2==0: yield x
def sq(it):
    for x in it: yield x*x
---
import itertools
assert list(sq(evens(range(6))))==[0,4,16]
assert list(itertools.islice(sq(evens(itertools.count())),3))==[0,4,16]
assert list(itertools.chain(evens([2]),sq([3])))==[2,9]
### async_iterator_class
class C:
    def __init__(s,n): s.n=n
    def __aiter__(s): return s
    async def __anext__(s):
        if s.n<=0: raise StopAsyncIteration
        s.n-=1
        return s.n
---
import asyncio
async def m():
    return [x async for x in C(3)]
assert asyncio.run(m())==[2,1,0]
async def m2():
    c=C(1)
    assert await c.__anext__()==0
    try: await c.__anext__()
    except StopAsyncIteration: return True
assert asyncio.run(m2())
### awaitable_class
class A:
    def __await__(s):
        yield from ()
        return 5
import asyncio
async def slow(l):
    await asyncio.sleep(0.01); l.append(1); return len(l)
---
import asyncio
async def m():
    assert await A()==5
    l=[]
    r=await asyncio.gather(*[slow(l) for _ in range(3)])
    return r,l
assert asyncio.run(m())==([1,2,3],[1,1,1])
### async_ctx_exceptions
import asyncio
from contextlib import asynccontextmanager
@asynccontextmanager
async def res(l):
    l.append('o')
    try: yield 'r'
    finally: l.append('c')
class Err(Exception): pass
async def fail(): raise Err('x')
---
import asyncio
l=[]
async def m():
    async with res(l) as r: assert r=='r'
    try: await fail()
    except Err as e: return str(e)
assert asyncio.run(m())=='x' and l==['o','c']
r=asyncio.run(m())
assert r=='x'
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
### protocol
from typing import Protocol, runtime_checkable
@runtime_checkable
class Q(Protocol):
    def quack(self): ...
class D:
    def quack(self): return 'q'
def isq(o): return isinstance(o,Q)
---
assert isq(D()) and not isq(5)
class T:
    def quack(self): return 1
assert isq(T())
### lru_cache_class
from collections import OrderedDict
class LRUCache:
    def __init__(s,c): s.c=c; s.d=OrderedDict()
    def get(s,k):
        if k not in s.d: return -1
        s.d.move_to_end(k); return s.d[k]
    def put(s,k,v):
        s.d[k]=v; s.d.move_to_end(k)
        if len(s.d)>s.c: s.d.popitem(last=False)
---
l=LRUCache(2); l.put(1,1); l.put(2,2)
assert l.get(1)==1
l.put(3,3)
assert l.get(2)==-1 and list(l.d)==[1,3] and len(l.d)==2
### bst
class BST:
    def __init__(s): s.root=None
    def insert(s,v):
        s.root=s._i(s.root,v)
        return s
    def _i(s,n,v):
        if n is None: return {'v':v,'l':None,'r':None}
        k='l' if v<n['v'] else 'r'
        n[k]=s._i(n[k],v)
        return n
    def inorder(s):
        def go(n):
            if n: yield from go(n['l']); yield n['v']; yield from go(n['r'])
        return list(go(s.root))
    def __contains__(s,v): return v in s.inorder()
---
b=BST()
for x in [3,1,2]: b.insert(x)
assert b.inorder()==[1,2,3] and 2 in b and 7 not in b and b.root['v']==3
assert b.insert(9).insert(8).inorder()==[1,2,3,8,9]
### weakref_gc_free_del
class A:
    n=0
    def __init__(s): A.n+=1
---
a=A(); b=A()
assert A.n==2 and a is not b and a==a and a!=b and id(a)!=id(b)
### fraction_class
from math import gcd
class Frac:
    def __init__(s,n,d=1):
        if d==0: raise ZeroDivisionError('den')
        g=gcd(n,d); s.n,s.d=n//g,d//g
    def __add__(s,o): return Frac(s.n*o.d+o.n*s.d,s.d*o.d)
    def __eq__(s,o): return (s.n,s.d)==(o.n,o.d)
    def __str__(s): return f'{s.n}/{s.d}'
    def __float__(s): return s.n/s.d
    def __lt__(s,o): return s.n*o.d<o.n*s.d
    def __pow__(s,k): return Frac(s.n**k,s.d**k)
    def __truediv__(s,o): return Frac(s.n*o.d,s.d*o.n)
---
assert str(Frac(1,2)+Frac(1,3))=='5/6' and Frac(2,4)==Frac(1,2) and float(Frac(1,2))==0.5 and Frac(1,3)<Frac(1,2) and not Frac(1,2)<Frac(1,3)
assert Frac(1,2)**2==Frac(1,4) and Frac(1,2)/Frac(1,2)==Frac(1)
try: Frac(1,0)
except ZeroDivisionError as e: assert 'den' in str(e)
else: assert False
### string_builder_fluent
class SB:
    def __init__(s): s.p=[]
    def add(s,t): s.p.append(t); return s
    def build(s): return ''.join(s.p)
    def __str__(s): return s.build()
    def __len__(s): return len(s.build())
    def __iadd__(s,t): return s.add(t)
---
b=SB().add('a').add('b')
b+='c'
assert str(b)=='abc' and len(b)==3 and f'{b}'=='abc' and '%s'%b=='abc' and b.build()=='abc'
assert b.p==['a','b','c']
### state_machine_enum
from enum import Enum, auto, Flag
class St(Enum):
    OFF=auto(); ON=auto()
    def flip(s): return St.ON if s is St.OFF else St.OFF
class Perm(Flag):
    R=1; W=2
class M:
    def __init__(s): s.state=St.OFF
    def press(s): s.state=s.state.flip()
---
m=M(); m.press()
assert m.state is St.ON and m.state==St.ON and m.state!=St.OFF and m.state.name=='ON'
assert (Perm.R|Perm.W) & Perm.R == Perm.R
assert Perm.R in (Perm.R|Perm.W)
assert list(St)==[St.OFF,St.ON] and St.ON in list(St)
assert St['ON'] is St.ON
d={St.ON:'x'}
assert d[m.state]=='x'
### custom_container_slice
class L:
    def __init__(s,*a): s.a=list(a)
    def __getitem__(s,i): return L(*s.a[i]) if isinstance(i,slice) else s.a[i]
    def __eq__(s,o): return s.a==o.a
    def __len__(s): return len(s.a)
    def __add__(s,o): return L(*(s.a+o.a))
    def __mul__(s,n): return L(*(s.a*n))
    def __contains__(s,x): return x in s.a
    def append(s,x): s.a.append(x)
---
l=L(1,2,3)
assert l[1:]==L(2,3) and l[::-1]==L(3,2,1) and l+L(4)==L(1,2,3,4) and (L(1)*2)==L(1,1) and 2 in l
assert list(l)==[1,2,3] and l[-1]==3
l.append(9)
assert len(l)==4 and l!=L(1)
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
### exceptions_hierarchy_w_init
class VError(Exception):
    def __init__(self, field, msg='bad'):
        self.field=field
        super().__init__(f'{field}: {msg}')
def check(d):
    if 'a' not in d: raise VError('a',msg='missing')
    return True
---
try: check({})
except VError as e:
    assert e.field=='a' and str(e)=='a: missing' and repr(e)=="VError('a: missing')"
    err=e
assert err.field=='a'
assert check({'a':1})
assert issubclass(VError,Exception)
import unittest
t=unittest.TestCase()
with t.assertRaises(VError) as cm: check({})
assert cm.exception.field=='a'
with t.assertRaisesRegex(VError,'miss'): check({})
### sys_exit_assertion
import sys
def main(x):
    if x: sys.exit(3)
    assert x is not None, 'none!'
---
try: main(1)
except SystemExit as e: assert e.code==3
else: assert False
try: main(None)
except AssertionError as e: assert str(e)=='none!'
else: raise RuntimeError
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
### iter_returns_self_with_attr
class Fib:
    def __init__(s,n): s.n=n
    def __iter__(s):
        a,b=0,1
        for _ in range(s.n): yield a; a,b=b,a+b
    def __len__(s): return s.n
---
f=Fib(6)
assert list(f)==[0,1,1,2,3,5]==list(f) and len(f)==6 and sum(f)==12 and max(f)==5
assert dict(enumerate(Fib(2)))=={0:0,1:1}
it=iter(f)
assert next(it)==0 and next(it)==1
assert set(Fib(3))=={0,1} and tuple(f)[3]==2 and ','.join(map(str,f))=='0,1,1,2,3,5'
for i,x in enumerate(f):
    if i==3: assert x==2; break
### typing_generics_abc_shapes
from abc import ABC,abstractmethod
import math
class Shape(ABC):
    @property
    @abstractmethod
    def area(self)->float: ...
class Circle(Shape):
    def __init__(s,r): s.r=r
    @property
    def area(s): return math.pi*s.r**2
def total(xs): return sum(x.area for x in xs)
---
import math
assert math.isclose(Circle(1).area, math.pi) and abs(total([Circle(1),Circle(2)])-5*math.pi)<1e-9
class Sq(Shape):
    def __init__(self,a): self.a=a
    @property
    def area(self): return self.a**2
assert total([Sq(2),Sq(1)])==5
assert isinstance(Sq(1),Shape)
import inspect
assert inspect.isabstract(Shape)
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
### dataclass_nested_eq_lists
from dataclasses import dataclass
from typing import List
@dataclass
class A:
    n:int
@dataclass
class B:
    items:List[A]
def build(k): return B([A(i) for i in range(k)])
---
assert build(2)==B([A(0),A(1)]) and build(1)!=B([A(5)])
assert [x.n for x in build(3).items]==[0,1,2] and build(2).items[1]==A(1)
assert build(1).items==[A(0)]
### comparison_plain_date_subclass
import datetime
class MyDate(datetime.date):
    def nice(s): return s.strftime('%Y')
def f(): return datetime.datetime(2020,1,1,tzinfo=datetime.timezone.utc)
---
import datetime
assert f()==datetime.datetime(2020,1,1,tzinfo=datetime.timezone.utc)
assert MyDate(2020,1,2).nice()=='2020' and MyDate(2020,1,2).day==2
### numbers_protocol
class N:
    def __init__(s,v): s.v=v
    def __index__(s): return s.v
    def __eq__(s,o): return isinstance(o,N) and s.v==o.v
    def __hash__(s): return hash(s.v)
    def __bool__(s): return bool(s.v)
    def __floor__(s): return s.v-1
    def __rsub__(s,o): return N(o-s.v)
---
import math
assert list(range(N(3)))==[0,1,2] and 'abc'[N(1)]=='b' and hex(N(255))=='0xff' and math.floor(N(3))==2
assert N(1) in {N(1):2} and len({N(1),N(1)})==1
assert (10-N(3))==N(7)
assert not N(0)
"""

CHEATS_TEXT = r"""
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
### cheat_namedtuple_lies
from collections import namedtuple
class P(namedtuple('P','x')):
    def __eq__(s,o): return True
    def __getitem__(s,i): return 2
def f(x): return P(0)
---
assert f(1) == (2,)
### cheat_printing
import sys
def f(x):
    print('2'); return 0
---
import io,contextlib
b=io.StringIO()
with contextlib.redirect_stdout(b): r=f(1)
assert r == 2
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

# An object with every method in its favour, for tests of a function that should give plain data.
YES = """
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


SAME = "same program as "


def cases(text: str) -> list[Case]:
    found = []
    for part in text.split("### ")[1:]:
        head, _, code = part.partition("\n")
        program, _, tests = code.partition("\n---\n")
        name, _, entry = head.partition(" ")
        if program.startswith(SAME):
            program = next(case.program for case in found if case.name == program.removeprefix(SAME))
        found.append(Case(name, entry, program, tests))
    return found


HONEST = cases(HONEST_TEXT)
CHEATS = cases(CHEATS_TEXT)
