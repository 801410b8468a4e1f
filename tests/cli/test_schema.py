"""The signature that is read from source is the one that Python has after the import."""

from __future__ import annotations

import pytest

from ponder.cli import recipe_files, schema
from ponder.cli.command_help import PLAN_FLAGS, RERUN_FLAGS, RUN_FLAGS
from ponder.cli.commands import COMMANDS
from ponder.cli.job_command import command_signature
from ponder.reason.presets import PRESETS
from ponder.reason.strategies import STRATEGIES
from ponder.registry import import_object
from ponder.settings import Named, SettingsOf
from ponder.tasks import TASKS
from ponder.train import algorithms

FUNCTIONS = [*(c.target for c in COMMANDS.values() if not c.raw_args), RUN_FLAGS, RERUN_FLAGS, PLAN_FLAGS]


@pytest.mark.parametrize("target", FUNCTIONS)
def test_command_signature_is_read_as_it_is(target: str) -> None:
    assert command_signature(target) == schema.live_signature(import_object(target))


@pytest.mark.parametrize("name", [*recipe_files.shipped_recipes()])
def test_recipe_signature_is_read_as_it_is(name: str) -> None:
    path = recipe_files.find_recipe(name)
    assert schema.read_signature(f"{path}:recipe") == schema.live_signature(recipe_files.load_recipe(path))


def test_tables_are_read_as_they_are() -> None:
    assert schema.table_names("ponder.tasks:TASKS") == list(TASKS)
    assert schema.table_names("ponder.reason.strategies:STRATEGIES") == list(STRATEGIES)
    assert schema.table_names("ponder.reason.presets:PRESETS") == list(PRESETS)
    assert schema.table_names("ponder.train.algorithms:ON_POLICY") == list(algorithms.ON_POLICY)


def test_every_table_and_class_that_a_flag_names_can_be_read() -> None:
    for target in FUNCTIONS:
        for parameter in command_signature(target).parameters:
            for marker in getattr(parameter.hint, "__metadata__", ()):
                if isinstance(marker, Named):
                    assert schema.table_names(*marker.tables)
                if isinstance(marker, SettingsOf) and marker.target:
                    assert schema.read_fields(marker.target)


def test_what_only_a_run_can_tell_is_unreadable(tmp_path) -> None:
    (tmp_path / "odd.py").write_text("import os\n\n\ndef recipe(where: str = os.getcwd()) -> None: ...\n")
    with pytest.raises(schema.Unreadable):
        schema.read_signature(f"{tmp_path}/odd.py:recipe")
