"""The sandbox pool: right programs pass, wrong ones and attacks do not, and nothing outside the jail changes."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from ponder.verify.code.compare_values import values_equal
from ponder.verify.sandbox import Sandbox, SandboxLimits
from verify.sandbox.attacks import OWN, PRELUDE
from verify.sandbox.run_attacks import AttackField
from verify_code import CALLS, CASES, HOSTILE, correct_program

SLOTS = 4
HONEST, TIGHT = SandboxLimits(cpu_seconds=10, wall_seconds=30), SandboxLimits(cpu_seconds=1, wall_seconds=1.5)


class Workload:
    def __init__(self) -> None:
        self.field = AttackField()
        self.jail = Sandbox(SLOTS, limits=TIGHT)
        self.threads = ThreadPoolExecutor(SLOTS)
        with self.jail._worker("python") as worker:
            self.two_users = "another user" in worker.layers()

    def round(self, draw: random.Random) -> tuple[int, list[str]]:
        """How many results were looked at, and what was wrong with them."""
        programs = [(*correct_program(draw.randrange(10**9)), "an honest program", HONEST) for _ in range(8)]
        programs += [(draw.choice(HOSTILE), False, "a hostile program", TIGHT)]
        attack = draw.choice(OWN)
        programs += [(self.field.aim(PRELUDE + attack.code, self.two_users), False, attack.name, TIGHT)]
        draw.shuffle(programs)
        lost = [why for item in self.threads.map(self._judge, programs) for why in item]
        return len(programs), lost + self.field.damage()

    def _judge(self, program: tuple[str, bool, str, SandboxLimits]) -> list[str]:
        code, right, name, limits = program
        replies = self.jail.call_program(code, "f", CALLS, limits)
        lost = [f"{name} broke the jail: {r.detail}"[:300] for r in replies if r.run_status == "lost"]
        passed = all(
            r.run_status == "done" and values_equal(r.value, x + 1) for r, x in zip(replies, CASES, strict=True)
        )
        if passed != right:
            lost.append(f"{name} was judged {passed}, which is not so: {[r.run_status for r in replies]}")
        escaped = [r.value for r in replies if isinstance(r.value, str) and r.value.startswith("EV:")]
        return lost + [f"{name} got out: {value[:200]}" for value in escaped]

    def close(self) -> None:
        self.threads.shutdown()
        self.jail.close()
        self.field.close()
