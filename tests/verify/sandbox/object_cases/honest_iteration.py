"""Honest programs whose tests use iterators, generators, coroutines, threads and context managers."""

from verify.sandbox.object_cases.parse_cases import parse_cases

CASES = parse_cases(
    r"""
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
"""
)
