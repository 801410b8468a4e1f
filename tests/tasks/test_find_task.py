"""Tasks by name, by `name:part`, and what `ponder tasks` says of one that must be told more."""

from __future__ import annotations

import json

import pytest

from ponder.cli import main
from ponder.errors import UnknownName, UsageError
from ponder.tasks import BBH, Addition, CustomTask, ReasoningGym, find


def test_task_part_is_a_setting():
    assert find("addition", {"level": "2"}) == (Addition, {"level": "2"})
    assert find("bbh:navigate", {"limit": "3"}) == (BBH, {"part": "navigate", "limit": "3"})
    assert find("reasoning-gym:leg_counting") == (ReasoningGym, {"dataset": "leg_counting"})
    assert find("ponder.tasks:CustomTask") == (CustomTask, {})


def test_module_may_have_a_tasks_name(tmp_path, monkeypatch):
    (tmp_path / "maze.py").write_text("class Mine: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find("maze:Mine", {"a": "1"})[0].__name__ == "Mine"


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("addition:easy", {}, UsageError, "cannot load 'addition:easy'"),
        ("bbh:navigate", {"part": "all"}, UsageError, "already names its part"),
        ("additoin", {}, UnknownName, "Did you mean 'addition'"),
        ("additoin:easy", {}, UsageError, "cannot load"),
    ],
)
def test_unknown_task_names_are_refused(name, settings, error, message):
    with pytest.raises(error, match=message):
        find(name, settings)


def test_tasks_command_names_required_data(capsys):
    assert main(["tasks", "custom"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("Your own rows") and "a problem:" not in output
    needs, settings = output.split("settings (--task.NAME VALUE):")
    assert "data " in needs and ".jsonl" in needs and "rewards" in needs and "bad_rows = 'refuse'" in settings
    assert main(["tasks", "custom", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["needs"]) == ["data", "rewards"]
    assert main(["tasks", "custom", "--task.data", "rows.jsonl"]) == 2
    assert "'custom' also needs --task.rewards (functions" in capsys.readouterr().err


def test_invalid_setting_is_refused(capsys):
    assert main(["tasks", "custom", "--task.dat", "rows.jsonl"]) == 2
    assert "Did you mean 'data'" in capsys.readouterr().err


def test_reasoning_gym_lists_its_data_sets_and_takes_one_by_name(capsys):
    pytest.importorskip("reasoning_gym", reason="the extra 'tasks' (reasoning-gym) is not installed")
    assert main(["tasks", "reasoning-gym"]) == 0
    assert "leg_counting" in capsys.readouterr().out
    assert main(["tasks", "reasoning-gym:leg_counting", "--task.pool_size", "100", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["task"] == "reasoning-gym:leg_counting" and output["verdict"]["value"] == 1.0
    assert main(["tasks", "reasoning-gym:leg_countin"]) == 2
    assert "Did you mean 'leg_counting'" in capsys.readouterr().err
