"""A discrete-event model of RL on many GPUs: replicas sample, verifiers grade, a learner updates and publishes weights.

Times come from cost functions, so that closed-form cases can be run as well as measured ones. Two rules of which
samples a step learns from: "batch", ponder's, in which the batch of step b begins when version b - S of the weights is
published and is learned from as a whole; and "first", in which any sample may begin while fewer than (version + 1 + S)
batches have begun, and a step takes the samples that are done first (AReaL, verl). New weights interrupt answers, which
go on afterwards.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count, pairwise
from typing import Any, Literal, Protocol

import numpy as np

Seconds = float


class SamplerCost(Protocol):
    """A pass of a replica takes fixed + max(flat, floor + keys * slope), with the first three from `parts(rows)`."""

    @property
    def slope(self) -> float: ...
    @property
    def cache_tokens(self) -> float: ...
    def parts(self, rows: int) -> tuple[float, float, float]: ...
    def prefill_seconds(self, tokens: float) -> float: ...


@dataclass(slots=True)
class Sample:
    number: int
    batch: int  # of which step, with the rule "batch"
    tokens: int  # that it will have
    version: int = -1  # of the weights when it began
    trained: int = -1  # at which step


class Clock:
    """The events to come, in order of time, and of their making where times are equal."""

    def __init__(self) -> None:
        self.now: Seconds = 0.0
        self._events: list[tuple[Seconds, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, seconds: Seconds, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), do))

    def run(self, done: Callable[[], bool]) -> None:
        while not done():
            if not self._events:
                raise RuntimeError(f"nothing is left to happen at {self.now:g} s: the set-up cannot go on")
            self.now, _, do = heapq.heappop(self._events)
            do()


class Servers:
    """So many equal servers with one queue, first come, first served."""

    def __init__(self, clock: Clock, servers: int) -> None:
        self.clock, self.free_at = clock, [0.0] * servers
        self.waited: Seconds = 0.0

    def serve(self, seconds: Seconds, done: Callable[[], None]) -> None:
        start = max(self.clock.now, heapq.heappop(self.free_at))
        self.waited += start - self.clock.now
        heapq.heappush(self.free_at, start + seconds)
        self.clock.after(start + seconds - self.clock.now, done)


class Replica:
    """An engine with continuous batching: in each pass every sequence gets one token. Between two events the number of
    rows is constant, so many passes are one formula."""

    def __init__(
        self, clock: Clock, cost: SamplerCost, prompt: int, max_rows: int, done: Callable[[Sample], None]
    ) -> None:
        self.clock, self.cost, self.prompt, self.max_rows, self.done = clock, cost, prompt, max_rows, done
        self._parts, self._slope, self._cache_tokens = cost.parts, cost.slope, cost.cache_tokens
        self.waiting: deque[Sample] = deque()
        self.active: list[tuple[float, int, Sample]] = []  # by the pass after which each is done
        self.passes = 0.0
        self.keys = 0.0  # tokens in the cache
        self.reserved = 0.0  # tokens that all active ones will have
        self.busy: Seconds = 0.0
        self.row_seconds: Seconds = 0.0
        self._since: Seconds = 0.0  # time up to which all this is known
        self._plan = 0  # the newest planned completion; older ones are void

    @property
    def load(self) -> int:
        return len(self.active) + len(self.waiting)

    def submit(self, samples: Sequence[Sample], version: int) -> None:
        self._advance()
        for sample in samples:
            sample.version = version
        self.waiting.extend(samples)
        self._admit()
        self._replan()

    def stall(self, seconds: Seconds) -> None:
        """Do nothing for so long: weights are being loaded, or prompts computed."""
        self._advance()
        self._since = max(self._since, self.clock.now) + seconds
        self._replan()

    def _admit(self) -> None:
        begun = 0
        while self.waiting and len(self.active) < self.max_rows:
            need = self.prompt + self.waiting[0].tokens
            if self.active and self.reserved + need > self._cache_tokens:
                break
            sample = self.waiting.popleft()
            heapq.heappush(self.active, (self.passes + sample.tokens, sample.number, sample))
            self.keys += self.prompt
            self.reserved += need
            begun += 1
        if begun and self.prompt:
            self._since = max(self._since, self.clock.now) + self.cost.prefill_seconds(begun * self.prompt)

    def _advance(self) -> None:
        """Up to the clock's time."""
        spent = self.clock.now - self._since
        if spent <= 0:
            return
        if rows := len(self.active):
            n = min(self._passes_in(spent, rows), self.active[0][0] - self.passes)
            self.passes += n
            self.keys += n * rows
            self.busy += spent
            self.row_seconds += spent * rows
        self._since = self.clock.now

    def _replan(self) -> None:
        self._plan += 1
        if not self.active:
            return
        rows, plan = len(self.active), self._plan
        seconds = self.pass_seconds(self.active[0][0] - self.passes, rows, self.keys)
        at = max(self._since, self.clock.now) + seconds
        self.clock.after(at - self.clock.now, lambda: self._complete(plan))

    def _complete(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        ends = self.active[0][0]
        self.passes = ends
        finished = []
        while self.active and self.active[0][0] <= ends + 1e-9:
            _, _, sample = heapq.heappop(self.active)
            self.keys -= self.prompt + sample.tokens
            self.reserved -= self.prompt + sample.tokens
            finished.append(sample)
        if not self.active:
            self.keys = self.reserved = 0.0
        self._admit()
        self._replan()
        for sample in finished:
            self.done(sample)

    def pass_seconds(self, n: float, rows: int, keys: float) -> Seconds:
        """Of n passes that begin with so many keys: the sum of fixed + max(flat, floor + keys * slope)."""
        fixed, flat, floor = self._parts(rows)
        slope = self._slope
        first, rise = floor + keys * slope, rows * slope  # of reading: before the first pass, and its growth
        if rise <= 0 or first >= flat:
            low = 0.0 if first >= flat else n
        else:
            low = min(n, (flat - first) / rise)  # passes in which multiplying is longer
        high = n - low
        return n * fixed + low * flat + high * (first + rise * (low + high / 2))

    def _passes_in(self, seconds: Seconds, rows: int) -> float:
        """The inverse of `pass_seconds`."""
        fixed, flat, floor = self._parts(rows)
        slope = self._slope
        first, rise = floor + self.keys * slope, rows * slope
        low = 0.0 if first >= flat else math.inf if rise <= 0 else (flat - first) / rise
        if seconds <= low * (fixed + flat):
            return seconds / (fixed + flat)
        rest = seconds - low * (fixed + flat) if low else seconds
        base = fixed + first + rise * low
        if rise <= 0:
            return low + rest / base
        return low + 2 * rest / (base + math.sqrt(base * base + 2 * rise * rest))


@dataclass(frozen=True)
class Workload:
    batch: int  # samples of a step
    lengths: Callable[[np.random.Generator, int], np.ndarray[Any, Any]]  # of so many samples, in tokens
    prompt: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Cluster:
    """`replicas` equal samplers. `update`: seconds for samples of these lengths. `fetches`: in how many parts the
    learner takes a batch, each as soon as it is there. `recompute_cache`: interrupted answers are computed again.
    `background`: nobody waits while weights are on the wire; else learner and samplers do."""

    replicas: int
    sampler: SamplerCost
    update: Callable[[Sequence[int]], Seconds]
    publish: Seconds = 0.0
    staleness: float = 0
    rule: Literal["batch", "first"] = "batch"
    fetches: int = 1
    recompute_cache: bool = False
    background: bool = False
    max_rows: int = 256
    verifiers: int = 16
    verify: Seconds = 0.0


@dataclass
class Outcome:
    step_seconds: list[Seconds]  # after the warm-up
    learner_busy: float  # share of the time
    publishing: float
    sampler_busy: float
    mean_rows: float  # of a replica, over the time that it is busy
    tokens: int  # learned from in the measured steps
    samples: list[Sample] = field(repr=False, default_factory=list)  # all that were trained

    @property
    def step(self) -> Seconds:
        return float(np.mean(self.step_seconds))

    @property
    def ages(self) -> list[int]:
        return [s.trained - s.version for s in self.samples]


class Simulation:
    def __init__(self, cluster: Cluster, work: Workload) -> None:
        self.cluster, self.work, self.clock = cluster, work, Clock()
        self.verifiers = Servers(self.clock, cluster.verifiers)
        self.replicas = [
            Replica(self.clock, cluster.sampler, work.prompt, cluster.max_rows, self._sampled)
            for _ in range(cluster.replicas)
        ]
        parts = cache(cluster.sampler.parts)
        for replica in self.replicas:
            replica._parts = parts
        self.version = 0  # that the samplers have
        self.step = 0  # that the learner is at
        self._wire_free: Seconds = 0.0
        self._samples = self._make_samples()
        self._begun = 0
        self._ready: dict[int, list[Sample]] = {}  # verified, by batch; all under 0 with the rule "first"
        self._taken = 0  # of this step
        self._learning = False
        self._step_ends: list[Seconds] = []
        self._busy: list[Seconds] = []  # of the learner, by step
        self.trained: list[Sample] = []

    def _make_samples(self) -> Iterator[Sample]:
        rng, number = np.random.default_rng(self.work.seed), count()
        for batch in count():
            for tokens in self.work.lengths(rng, self.work.batch):
                yield Sample(next(number), batch, int(tokens))

    def run(self, steps: int, warmup: int | None = None) -> Outcome:
        """So many steps after the warm-up, by default until the pipeline is full."""
        warmup = math.ceil(self.cluster.staleness) + 2 if warmup is None else warmup
        self._begin()
        self.clock.run(lambda: len(self._step_ends) >= warmup)
        began, marks = self.clock.now, [(r.busy, r.row_seconds) for r in self.replicas]
        self.clock.run(lambda: len(self._step_ends) >= warmup + steps)
        span = self.clock.now - began
        busy = sum(r.busy - b for r, (b, _) in zip(self.replicas, marks, strict=True))
        rows = sum(r.row_seconds - x for r, (_, x) in zip(self.replicas, marks, strict=True))
        ends = [began, *self._step_ends[warmup : warmup + steps]]
        return Outcome(
            [b - a for a, b in pairwise(ends)],
            sum(self._busy[warmup : warmup + steps]) / span,
            steps * self.cluster.publish / span,
            busy / span / len(self.replicas),
            rows / busy if busy else 0.0,
            sum(s.tokens for s in self.trained if warmup <= s.trained < warmup + steps),
            self.trained,
        )

    def _begin(self) -> None:
        """Begin what the published version allows: each sample goes to the replica with the fewest."""
        allowed = math.floor((self.version + 1 + self.cluster.staleness) * self.work.batch)
        new = [next(self._samples) for _ in range(allowed - self._begun)]
        self._begun = max(self._begun, allowed)
        parts: list[list[Sample]] = [[] for _ in self.replicas]
        order = [(r.load, i) for i, r in enumerate(self.replicas)]
        heapq.heapify(order)
        for sample in new:
            load, i = order[0]
            parts[i].append(sample)
            heapq.heapreplace(order, (load + 1, i))
        for replica, part in zip(self.replicas, parts, strict=True):
            if part:
                replica.submit(part, self.version)

    def _sampled(self, sample: Sample) -> None:
        if self.cluster.verify:
            self.verifiers.serve(self.cluster.verify, lambda: self._verified(sample))
        else:
            self._verified(sample)

    def _verified(self, sample: Sample) -> None:
        key = sample.batch if self.cluster.rule == "batch" else 0
        self._ready.setdefault(key, []).append(sample)
        self._learn()

    def _learn(self) -> None:
        """Take the next part of the batch, if it is there."""
        ready = self._ready.get(self.step if self.cluster.rule == "batch" else 0, [])
        part = -(-self.work.batch // self.cluster.fetches)
        part = min(part, self.work.batch - self._taken)
        if self._learning or len(ready) < part:
            return
        taken, ready[:] = ready[:part], ready[part:]
        self._learning, self._taken = True, self._taken + part
        for sample in taken:
            assert sample.trained < 0, "a sample is trained once"
            sample.trained = self.step
        self.trained += taken
        seconds = self.cluster.update([s.tokens + self.work.prompt for s in taken])
        if len(self._busy) == self.step:
            self._busy.append(0.0)
        self._busy[self.step] += seconds
        self.clock.after(seconds, self._learned)

    def _learned(self) -> None:
        if self._taken < self.work.batch:
            self._learning = False
            self._learn()
            return
        publish = self.cluster.publish
        if self.cluster.background:
            self._wire_free = max(self._wire_free, self.clock.now) + publish
            self.clock.after(self._wire_free - self.clock.now, self._published)
            self._next_step()
            return
        for replica in self.replicas:
            again = replica.cost.prefill_seconds(replica.keys) if self.cluster.recompute_cache else 0.0
            replica.stall(publish + again)
        self.clock.after(publish, self._published_and_next)

    def _published_and_next(self) -> None:
        self._published()
        self._next_step()

    def _published(self) -> None:
        self.version += 1
        self._begin()

    def _next_step(self) -> None:
        if self.cluster.rule == "batch":
            self._ready.pop(self.step, None)
        self.step, self._taken, self._learning = self.step + 1, 0, False
        self._step_ends.append(self.clock.now)
        self._learn()
