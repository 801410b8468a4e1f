# ruff: noqa: E501
"""Honest programs whose tests use classes: operators, properties, enums, dataclasses, inheritance, metaclasses."""

from verify.sandbox.object_cases.parse_cases import parse_cases

CASES = parse_cases(
    r"""
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
)
