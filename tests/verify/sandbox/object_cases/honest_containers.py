"""Honest programs whose tests use containers: lists, trees, mappings, subclasses of builtin types."""

from verify.sandbox.object_cases.parse_cases import parse_cases

CASES = parse_cases(
    r"""
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
"""
)
