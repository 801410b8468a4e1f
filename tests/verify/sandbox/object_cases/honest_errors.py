"""Honest programs whose tests use exceptions."""

from verify.sandbox.object_cases.parse_cases import parse_cases

CASES = parse_cases(
    r"""
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
"""
)
