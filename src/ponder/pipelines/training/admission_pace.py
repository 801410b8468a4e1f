"""How many batches begin ahead of the learner: as few as keep it busy, so that samples are as young as they can be.

A batch that begins `ahead` versions before its step has so many steps of time to be sampled. If it begins earlier than
it has to, it waits once it is sampled, and is older when it is learned from. If it begins later, the learner waits. But
a sampler that is at its limit is not made faster by more work at once, so more batches must show a gain:

- The learner waits for more than a tenth of its time: one more batch ahead. It stays if steps get a tenth shorter.
  Otherwise it is taken back, and tried again after twice as many steps as before.
- The batch after the next one is always ready: one less. A batch then had a whole step of time that it did not need.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ponder.train.distributed import SINGLE_PROCESS, DataParallelGroup

WINDOW_STEPS = 8  # between two decisions, which compare means: batches may come in pairs
LONG_WAIT = 0.1  # of the learner, as a share of its time
LEAST_GAIN = 0.1  # of a batch more ahead, as a share of a step's time


@dataclass(slots=True)
class AdmissionPace:
    """Every rank records each of its steps, and all come to the same number: that of the slowest."""

    most: int  # the staleness
    group: DataParallelGroup = SINGLE_PROCESS
    ahead: int = 1
    _skip: int = 1  # steps before a window begins: of the first, or until a change shows
    _seconds: list[float] = field(default_factory=list)
    _waits: list[float] = field(default_factory=list)
    _early: list[bool] = field(default_factory=list)
    _before_trial: float | None = None  # seconds of a window with one batch less, while one more is tried
    _windows_to_trial: int = 0
    _trial_pause: int = 1  # windows

    def record(self, waited: float, learned: float, next_is_ready: bool) -> None:
        """The learner waited so long for a batch, and learned so long from it. When the batch came, was the one after
        it ready, too?"""
        if self._skip:
            self._skip -= 1
            return
        self._seconds.append(waited + learned)
        self._waits.append(waited)
        self._early.append(next_is_ready)
        if len(self._seconds) == WINDOW_STEPS:
            self._decide()

    def _decide(self) -> None:
        step = self.group.max_of(sum(self._seconds))
        wait = self.group.max_of(sum(self._waits))
        is_early = not self.group.max_of(float(not all(self._early)))
        for kept in (self._seconds, self._waits, self._early):
            kept.clear()
        self._windows_to_trial = max(0, self._windows_to_trial - 1)
        if self._before_trial is not None:
            gained = step <= (1 - LEAST_GAIN) * self._before_trial
            self._before_trial = None
            self._trial_pause = 1 if gained else 2 * self._trial_pause
            if not gained:
                self._windows_to_trial = self._trial_pause
                self._change(-1)
                return
        if is_early and self.ahead > 1:
            self._change(-1)
        elif wait > LONG_WAIT * step and self.ahead < self.most and not self._windows_to_trial:
            self._before_trial = step
            self._change(+1)

    def _change(self, by: int) -> None:
        self.ahead += by
        self._skip = self.ahead + 1  # batches that began before are still to come
