"""`serve.metrics`: Prometheus' text format."""

from __future__ import annotations

import re

import pytest

from ponder.serve.metrics import Counter, Gauge, Histogram, render_metrics


def test_render_metrics_writes_the_text_format():
    tokens = Counter("vllm:generation_tokens_total", "Tokens that were sampled", ["model_name"])
    tokens.add(3, "a")
    tokens.add(2, "a")
    running = Gauge("vllm:num_requests_running", "Requests\nthat run", ["model_name"], lambda: [(("a",), 2)])
    latency = Histogram("vllm:e2e_request_latency_seconds", "Seconds", [], [0.5, 1])
    for seconds in (0.25, 0.5, 0.75, 3):
        latency.observe(seconds)
    assert render_metrics([tokens, running, latency]).splitlines() == [
        "# HELP vllm:generation_tokens_total Tokens that were sampled",
        "# TYPE vllm:generation_tokens_total counter",
        'vllm:generation_tokens_total{model_name="a"} 5',
        r"# HELP vllm:num_requests_running Requests\nthat run",
        "# TYPE vllm:num_requests_running gauge",
        'vllm:num_requests_running{model_name="a"} 2',
        "# HELP vllm:e2e_request_latency_seconds Seconds",
        "# TYPE vllm:e2e_request_latency_seconds histogram",
        'vllm:e2e_request_latency_seconds_bucket{le="0.5"} 2',
        'vllm:e2e_request_latency_seconds_bucket{le="1"} 3',
        'vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 4',
        "vllm:e2e_request_latency_seconds_sum 4.5",
        "vllm:e2e_request_latency_seconds_count 4",
    ]


def test_labels_are_escaped():
    counter = Counter("c", "x", ["name"])
    counter.add(1, 'a"b\\c\nd')
    (line,) = counter.samples()
    assert line == r'c{name="a\"b\\c\nd"} 1'
    assert re.fullmatch(r'c\{name="(?:[^"\\\n]|\\[\\"n])*"\} 1', line)


def test_histogram_counts_equal_observations_together():
    one, many = (Histogram("h", "x", ["m"], [1, 2]) for _ in range(2))
    for _ in range(5):
        one.observe(1.5, "a")
    many.observe(1.5, "a", count=5)
    assert list(one.samples()) == list(many.samples())


def test_counter_refuses_to_shrink():
    with pytest.raises(ValueError, match="only grows"):
        Counter("c", "x").add(-1)
