"""`/metrics`: counters, gauges and histograms in Prometheus' text format, with vLLM's names where the meaning is equal.

All are written and read in the server's event loop, so there are no locks. The values of labels come from the server
(models, strategies, statuses), never from a request's text, so there are only so many series.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 1_000_000)

Labels = tuple[str, ...]


class Metric:
    """A family of series with one name, told apart by the values of its labels."""

    kind = ""

    def __init__(self, name: str, help: str, label_names: Sequence[str] = ()) -> None:
        self.name, self.help, self.label_names = name, help, tuple(label_names)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {_escape(self.help, quotes=False)}"
        yield f"# TYPE {self.name} {self.kind}"
        yield from self.samples()

    def samples(self) -> Iterator[str]:
        """One line for each number."""
        raise NotImplementedError

    def sample(self, suffix: str, labels: Labels, value: float, **more: str) -> str:
        pairs = [*zip(self.label_names, labels, strict=True), *more.items()]
        inside = ",".join(f'{name}="{_escape(text)}"' for name, text in pairs)
        return f"{self.name}{suffix}{{{inside}}} {_number(value)}" if pairs else f"{self.name}{suffix} {_number(value)}"


class Counter(Metric):
    """A number that only grows."""

    kind = "counter"

    def __init__(self, name: str, help: str, label_names: Sequence[str] = ()) -> None:
        super().__init__(name, help, label_names)
        self.values: dict[Labels, float] = {} if label_names else {(): 0}

    def add(self, amount: float, *labels: str) -> None:
        if amount < 0:
            raise ValueError(f"{self.name} only grows; {amount} was to be added")
        self.values[labels] = self.values.get(labels, 0) + amount

    def samples(self) -> Iterator[str]:
        for labels, value in self.values.items():
            yield self.sample("", labels, value)


class Gauge(Metric):
    """A number that is read when the metrics are, by a function that gives one for each value of the labels."""

    kind = "gauge"

    def __init__(
        self, name: str, help: str, label_names: Sequence[str], read: Callable[[], Iterable[tuple[Labels, float]]]
    ) -> None:
        super().__init__(name, help, label_names)
        self.read = read

    def samples(self) -> Iterator[str]:
        for labels, value in self.read():
            yield self.sample("", labels, value)


class Histogram(Metric):
    """How often a number was at most so large."""

    kind = "histogram"

    def __init__(self, name: str, help: str, label_names: Sequence[str], buckets: Sequence[float]) -> None:
        super().__init__(name, help, label_names)
        self.buckets = tuple(buckets)
        self.counts: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = {}

    def observe(self, value: float, *labels: str, count: int = 1) -> None:
        """The same number was seen `count` times."""
        counts = self.counts.setdefault(labels, [0] * (len(self.buckets) + 1))
        counts[bisect.bisect_left(self.buckets, value)] += count
        self.sums[labels] = self.sums.get(labels, 0.0) + value * count

    def samples(self) -> Iterator[str]:
        for labels, counts in self.counts.items():
            total = 0
            for bound, count in zip((*map(_number, self.buckets), "+Inf"), counts, strict=True):
                total += count
                yield self.sample("_bucket", labels, total, le=bound)
            yield self.sample("_sum", labels, self.sums[labels])
            yield self.sample("_count", labels, total)


def render_metrics(metrics: Iterable[Metric]) -> str:
    """The body of `/metrics`."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escape(text: str, quotes: bool = True) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text
