"""How many batches begin ahead of the learner, with samplers that are simulated."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from ponder.pipelines.training.admission_pace import WINDOW_STEPS, AdmissionPace


@dataclass
class Simulation:
    """A learner that takes `learn` seconds a step, and a sampler that takes at least `latency` for a batch and can
    do one batch in `work` seconds at most, shared fairly by those in flight. `noise`: by how much each step differs."""

    learn: float
    latency: float
    work: float
    most: int
    noise: float = 0.0
    fixed: int | None = None
    seconds: list[float] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    aheads: list[int] = field(default_factory=list)

    def run(self, steps: int, tick: float = 0.01) -> Simulation:
        pace, rng = AdmissionPace(self.most), random.Random(0)
        begun: dict[int, list[float]] = {}  # step: [when it began, work left, version at its end or -1]
        version, now, asked, arrived = 0, 0.0, 0.0, -1.0
        waited, taken, early = 0.0, False, False
        learn = self.learn

        def admit() -> None:
            ahead = pace.ahead if self.fixed is None else self.fixed
            for b in range(version, min(version + ahead, steps - 1) + 1):
                if b not in begun and b not in done:
                    begun[b] = [now, self.work, version]

        done: dict[int, int] = {}
        admit()
        while version < steps:
            now += tick
            for b, (began, left, first) in list(begun.items()):
                left -= tick / len(begun)
                begun[b][1] = left
                if left <= 0 and now - began >= self.latency:
                    done[b] = int(first)
                    del begun[b]
            if not taken and version in done:
                waited, taken, arrived = now - asked, True, now
                early = version + 1 in done
                self.ages.append(version - done[version])
                learn = self.learn * (1 + self.noise * rng.uniform(-1, 1))
            if taken and now - arrived >= learn:
                version, taken = version + 1, False
                self.seconds.append(now - asked)
                self.aheads.append(pace.ahead)
                pace.record(waited, learn, early)
                asked = now
                admit()
        return self

    def late_seconds(self) -> float:
        """Of a step, in the second half."""
        half = self.seconds[len(self.seconds) // 2 :]
        return sum(half) / len(half)


def test_fast_sampler_is_one_batch_ahead() -> None:
    """It keeps the learner busy from there: with more the samples would be older, and nothing faster."""
    paced = Simulation(learn=1, latency=0.4, work=0.2, most=4, noise=0.2).run(60)
    oldest = Simulation(learn=1, latency=0.4, work=0.2, most=4, noise=0.2, fixed=4).run(60)
    assert set(paced.ages[1:]) == {1} and set(oldest.ages[4:]) == {4}
    assert paced.late_seconds() == pytest.approx(oldest.late_seconds(), rel=0.02)


def test_long_answers_begin_as_early_as_they_must() -> None:
    """A batch takes 2.5 steps, whatever else is sampled: three batches ahead, and the learner does not wait."""
    paced = Simulation(learn=1, latency=2.5, work=0.2, most=6).run(150)
    assert paced.aheads[-1] == 3
    assert paced.late_seconds() == pytest.approx(1, rel=0.05)


def test_sampler_at_its_limit_gets_no_more_batches() -> None:
    """It needs twice the learner's time, however many batches are in flight."""
    paced = Simulation(learn=1, latency=0.5, work=2, most=8, noise=0.1).run(160)
    ahead = paced.aheads[len(paced.aheads) // 2 :]
    assert sum(a == 1 for a in ahead) > 0.6 * len(ahead) and max(ahead) == 2  # tried now and then
    assert paced.late_seconds() == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("most", [1, 2])
def test_never_more_than_the_staleness(most: int) -> None:
    paced = Simulation(learn=1, latency=5, work=0.1, most=most).run(60)
    assert max(paced.aheads) == most and max(paced.ages) <= most


def test_fewer_are_ahead_once_the_sampler_is_faster() -> None:
    pace = AdmissionPace(4, ahead=3)
    for _ in range(4 * (WINDOW_STEPS + 5)):
        pace.record(0.0, 1.0, next_is_ready=True)
    assert pace.ahead == 1
