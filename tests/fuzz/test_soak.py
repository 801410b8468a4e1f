"""The soak: each kind of work for a moment, and losses and growth that it must notice."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from audit.soak import __main__ as command
from audit.soak import engine, sandbox, server, serving
from audit.soak.resources import LeakDetector, ResourceUsage, resource_usage
from ponder.verify.sandbox import SandboxError


@pytest.mark.parametrize("kind", command.KINDS)
def test_a_short_soak_of_each_kind_has_no_loss(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = command.main([kind, "--minutes", "0.001", "--seed", "7"])
    except SandboxError as why:
        pytest.skip(f"this machine cannot build a jail: {why}")
    output = capsys.readouterr().out
    assert code == 0 and f"{kind}: nothing lost, nothing grew" in output, output


@pytest.mark.parametrize("kind", [sandbox, engine, server, serving])
def test_a_wrong_result_is_a_loss(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held to be right is changed: the soak says so and ends with 1."""
    monkeypatch.setattr(command, "WARM_ROUNDS", 1)  # losses show in the first round
    if kind is sandbox:
        monkeypatch.setattr(sandbox, "correct_program", lambda n: ("def f(x): return x", True))
    elif kind in (engine, serving):
        real = kind.Workload.__init__

        def other(self: Any) -> None:
            real(self)
            self.right = [[[1]] if kind is engine else "no such text"] * len(self.right)

        monkeypatch.setattr(kind.Workload, "__init__", other)
    else:
        monkeypatch.setattr(server, "HONEST", server.stream(server.piece("z"), server.piece(why="stop")))
    try:
        assert command.main([kind.__name__.rpartition(".")[2], "--minutes", "0.001", "--seed", "1"]) == 1
    except SandboxError as why:
        pytest.skip(f"this machine cannot build a jail: {why}")


def test_soak_reports_memory_growth(tmp_path: Any) -> None:
    watch = LeakDetector()
    watch.warm(resource_usage())
    assert watch.settled(seconds=0) == []
    (tmp_path / "x").touch()
    files = [open(tmp_path / "x") for _ in range(20)]  # noqa: SIM115
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(10)]
    for thread in threads:
        thread.start()
    try:
        output = " ".join(watch.settled(seconds=0.3))
        assert "descriptors grew from" in output and "threads grew from" in output and "mib" not in output
    finally:
        done.set()
        for file in files:
            file.close()
        for thread in threads:
            thread.join()
    assert watch.settled() == [], "what ends in a moment has not grown"


def test_soak_accepts_varying_memory() -> None:
    watch = LeakDetector(ResourceUsage(1000, 10, 5, 2))
    assert watch.grown(ResourceUsage(1100, 10, 5, 2)) == []
    assert watch.grown(ResourceUsage(1200, 10, 5, 9)) == ["mib grew from 1000 to 1200", "children grew from 2 to 9"]


@pytest.mark.parametrize("given", [["everything"], ["engine", "--minutes", "0"], ["engine", "--minutes", "nan"]])
def test_an_empty_soak_is_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(given)
    assert end.value.code == 2
