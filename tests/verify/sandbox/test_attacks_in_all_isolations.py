"""Every attack, on every rung, as root and as nobody: no undeserved pass, no breach, nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = os.getuid() == 0


def run_attacks_as(isolation, *flags):
    path = os.pathsep.join([str(HERE.parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / "run_attacks.py"), isolation, *flags],
        capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    last = done.stderr.strip().rpartition("\n")[2]
    if done.returncode and ("SandboxError" in last or "WorkerLost" in last):
        pytest.skip(f"this machine cannot build that jail: {last}")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().rpartition("\n")[2])


def assert_nothing_escaped(result):
    assert result["attacks"] >= 150
    assert result["trouble"] == []


def test_namespaces_stop_all_attacks():
    result = run_attacks_as("namespaces")
    assert_nothing_escaped(result)
    assert {"namespaces", "seccomp", "resource limits"} <= set(result["layers"])


@pytest.mark.skipif(not ROOT, reason="only root can become another user")
def test_landlock_as_nobody_stops_all_attacks():
    result = run_attacks_as("landlock", "--user", "nobody")
    assert_nothing_escaped(result)
    assert result["user"] == 65534 and "namespaces" not in result["layers"]


@pytest.mark.nightly
def test_landlock_stops_all_attacks():
    assert_nothing_escaped(run_attacks_as("landlock"))


@pytest.mark.nightly
@pytest.mark.skipif(not ROOT, reason="only root can become another user")
def test_namespaces_as_nobody_stop_all_attacks():
    assert_nothing_escaped(run_attacks_as("namespaces", "--user", "nobody"))


@pytest.mark.nightly
@pytest.mark.skipif(not ROOT, reason="only root can make its Python readable to others")
def test_landlock_as_root_stops_all_attacks():
    result = run_attacks_as("landlock", "--user", "root")
    assert_nothing_escaped(result)
    assert "another user" in result["layers"]


@pytest.mark.skipif(not ROOT, reason="only root can become another user or make its Python readable to others")
@pytest.mark.parametrize(("isolation", "user"), [("namespaces", "nobody"), ("landlock", "me"), ("landlock", "root")])
def test_other_users_cannot_read_secrets(isolation, user):
    result = run_attacks_as(isolation, "--user", user, "--only", "read_")
    assert result["attacks"] >= 5 and result["trouble"] == []
    assert user != "root" or "another user" in result["layers"]


def test_attacks_succeed_without_a_jail():
    """The siege can fail: it does where nothing holds the attackers."""
    trouble = " ".join(run_attacks_as("unsafe", "--only", "read_secret")["trouble"])
    assert "read_secret_by_mmap got out" in trouble and "leaked" in trouble
