"""Environments that misbehave, each in its own way; the row's column `kind` says in which."""

import contextlib
import os
import signal
import sys
import time

from ponder.types import Turn

KINDS = (
    "hang in reset", "hang in act", "hang in close", "crash in reset", "crash in act", "lie", "lie about done", "10 MB",
    "raise in close", "os._exit", "kill", "garbage", "close the pipe",
)  # fmt: skip


class Hostile:
    """Counts the policy's turns, and ends after the third with the reward 1."""

    def reset(self, problem, seed):
        self.kind, self.turns = problem.answer["columns"]["kind"], 0
        self.misbehave("reset")
        return Turn(({"role": "user", "content": "begin"},))

    def act(self, action):
        self.turns += 1
        if self.turns == 2:
            self.misbehave("act")
            if self.kind == "lie":
                return "no turn"
            if self.kind == "lie about done":
                return Turn(({"role": "user", "content": "x"},), done="perhaps")
            if self.kind == "10 MB":
                return Turn(({"role": "user", "content": "x" * 10_000_000},))
        if self.turns == 3:
            return Turn(reward=1.0, done=True)
        return Turn(({"role": "user", "content": f"turn {self.turns}"},))

    def close(self):
        self.misbehave("close")

    def misbehave(self, where):
        if self.kind == f"hang in {where}":
            time.sleep(1000)
        if self.kind == f"crash in {where}":
            raise RuntimeError("broken on purpose")
        if self.kind == "raise in close" and where == "close":
            raise RuntimeError("broken on purpose")
        if where == "act":
            if self.kind == "os._exit":
                os._exit(3)
            if self.kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kind == "garbage":
                for fd in range(3, 64):
                    with contextlib.suppress(OSError):
                        os.write(fd, b"\x00garbage\n")
                time.sleep(1000)
            if self.kind == "close the pipe":
                os.closerange(3, 64)
                time.sleep(1000)


class Countdown:
    """Wants the next lower number, down from 3. It knows what to say, and says how often it was begun and copied."""

    begun = copied = 0

    def reset(self, problem, seed):
        Countdown.begun += 1
        self.left = 3
        return Turn(({"role": "user", "content": "3"},))

    def act(self, action):
        if action.text.strip() != self.gold():
            return Turn(reward=0.0, done=True, reason="wrong")
        self.left -= 1
        said = f"{self.left}: begun {Countdown.begun}, copied {Countdown.copied}"
        return Turn(({"role": "user", "content": said},), reward=1.0 if not self.left else None, done=not self.left)

    def gold(self):
        return str(self.left - 1)

    def copy(self):
        Countdown.copied += 1
        other = Countdown()
        other.left = self.left
        return other

    def close(self):
        pass


def double(x: int) -> int:
    """Double a number; a negative one takes for ever."""
    time.sleep(1000 if x < 0 else 0)
    return 2 * x


class Peek:
    """A tool that looks into its callers while it is made and in each call, and returns what they hold."""

    name = "peek"

    def __init__(self):
        self.seen = ""
        self._look()

    def _look(self):
        frame = sys._getframe()
        while frame := frame.f_back:
            self.seen += "".join(f"{name}={value!r};" for name, value in frame.f_locals.items() if name != "self")

    def __call__(self) -> str:
        """Look around."""
        self._look()
        return " ".join(word for word in ("Play.", "SECRET") if word in self.seen)
