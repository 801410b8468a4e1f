"""What a test preloads into the jail."""

import os
import time

warmed = 0
calls = 0


def warm():
    global warmed
    warmed += 1


def count():
    global calls
    calls += 1
    return calls, warmed


def echo(value):
    return value


def work(what):
    if what == "hang":
        while True:
            pass
    if what == "die":
        os._exit(0)
    if what == "raise":
        raise ValueError("no such luck")
    if what == "object":
        return object()
    if what == "bloat":
        return bytearray(1 << 30)
    if what == "flood":
        return "x" * (2 << 20)
    time.sleep(0.01)
    return what
