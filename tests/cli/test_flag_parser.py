"""A signature becomes a command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from ponder.cli import flags
from ponder.errors import UsageError
from ponder.settings import SettingsOf


def command_with_every_type(
    first: str,
    second: int = 2,
    /,
    *,
    count: int = 1,
    rate: Annotated[float, "how fast, in %"] = 0.5,
    name: str | None = None,
    most: int | None = 7,
    loud: bool = False,
    safe: bool = True,
    where: Path = Path("."),
    mode: Literal["a", "b"] = "a",
    pair: tuple[float, float] = (0.9, 0.95),
    sizes: tuple[int, ...] = (1, 2),
    more: list[str] = [],  # noqa: B006
    bare=3,  # type: ignore[no-untyped-def]
) -> dict[str, Any]:
    """Takes one of each."""
    return locals()


def call(*argv: str) -> dict[str, Any]:
    return flags.run_command(command_with_every_type, argv, "prog")


def test_defaults_are_the_functions_own() -> None:
    assert call("x") == command_with_every_type("x")


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (("--count", "5"), "count", 5),
        (("--count=-5",), "count", -5),
        (("--rate", "1e-3"), "rate", 1e-3),
        (("--rate", "-1"), "rate", -1.0),
        (("--name", "you"), "name", "you"),
        (("--name", "none"), "name", None),
        (("--most", "none"), "most", None),
        (("--most", "9"), "most", 9),
        (("--loud",), "loud", True),
        (("--no-loud",), "loud", False),
        (("--no-safe",), "safe", False),
        (("--safe",), "safe", True),
        (("--where", "a/b"), "where", Path("a/b")),
        (("--mode", "b"), "mode", "b"),
        (("--pair", "0.1,0.2"), "pair", (0.1, 0.2)),
        (("--sizes", "3,4,5"), "sizes", (3, 4, 5)),
        (("--more", "a=1,2", "--more", "b"), "more", ["a=1,2", "b"]),
        (("--bare", "4"), "bare", 4),
        (("8",), "second", 8),
    ],
)
def test_each_type(argv: tuple[str, ...], name: str, value: Any) -> None:
    assert call("x", *argv) == {**command_with_every_type("x"), name: value}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "the following arguments are required: FIRST; see `prog --help`"),
        (("x", "1", "2"), "'2' is one argument too many"),
        (("x", "--count", "many"), "--count: 'many' is not a whole number"),
        (("x", "--count", "1.5"), "--count: '1.5' is not a whole number"),
        (("x", "--rate", "fast"), "--rate: 'fast' is not a number"),
        (("x", "--mode", "c"), "--mode: 'c' is not one of a, b"),
        (("x", "--pair", "1"), "--pair: '1' has 1 values, not 2"),
        (("x", "--coutn", "1"), "no flag --coutn, did you mean --count?"),
        (("x", "--coun=1"), "no flag --coun, did you mean --count?"),
        (("x", "--count"), "--count: expected one argument"),
    ],
)
def test_bad_argument_is_named(argv: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as why:
        call(*argv)
    assert str(why.value).startswith(message)


def test_first_argument_by_place_may_be_a_flag() -> None:
    assert call("--first", "x", "--count", "5") == command_with_every_type("x", count=5)
    assert call("--count", "5", "--first=x", "8") == command_with_every_type("x", 8, count=5)
    for argv, message in {
        ("--first",): "--first: expected one argument",
        ("--first", "--loud"): "--first: expected one argument",
        ("--first", "x", "8", "9"): "'9' is one argument too many",
        ("x", "--second", "8"): "no flag --second",
    }.items():
        with pytest.raises(UsageError, match=message):
            call(*argv)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call("--help")
    output = capsys.readouterr().out
    assert "Takes one of each." in output and "how fast, in % (default 0.5)" in output
    assert "--loud" in output and "--no-loud" not in output, "only what changes something is shown"
    assert "--no-safe" in output


@dataclass(frozen=True)
class ExampleSettings:
    size: int
    kinds: tuple[Literal["a", "b"], ...] = ("a",)
    quick: bool = False


def test_build() -> None:
    assert flags.build_with_settings(
        "thing", ExampleSettings, {"size": "3", "kinds": "b,a", "quick": "yes"}, "x"
    ) == ExampleSettings(3, ("b", "a"), True)
    assert flags.build_with_settings("thing", ExampleSettings(1), {"quick": "1"}, "x") == ExampleSettings(1, quick=True)


def test_build_names_the_flag_it_reads() -> None:
    with pytest.raises(UsageError, match=r"--algorithm\.size: 'x' is not a whole number"):
        flags.build_with_settings("thing", ExampleSettings, {"size": "x"}, "algorithm")


@dataclass(frozen=True)
class Inner:
    beta: float = 0.0
    where: str = "loss"


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner(beta=0.5)
    other: Inner | None = None
    plain: int = 1


def test_dotted_settings_reach_into_nested_dataclasses() -> None:
    def build(**settings: str) -> Outer:
        dotted = {name.replace("__", "."): text for name, text in settings.items()}
        return flags.build_with_settings("thing", Outer, dotted, "x")

    assert build(inner__where="reward") == Outer(Inner(0.5, "reward")), "what is not given stays as it is"
    assert build(other__beta="2") == Outer(other=Inner(2.0)), "None becomes an object"
    with pytest.raises(UsageError, match=r"--x\.plain is a single value"):
        build(plain__beta="2")
    with pytest.raises(UsageError, match=r"no thing's inner setting named 'bta'\. Did you mean 'beta'"):
        build(inner__bta="2")
    with pytest.raises(UsageError, match=r"--x\.inner\.beta: 'y' is not a number"):
        build(inner__beta="y")


def command_with_settings(
    task: str = "",
    /,
    *,
    steps: int = 1,
    task_settings: Annotated[dict[str, str], SettingsOf("task"), "of the task"] = {},  # noqa: B006
) -> dict[str, Any]:
    return locals()


def test_dotted_flags_are_collected_by_their_prefix() -> None:
    argv = ["--task.digits", "3", "sums", "--task.use-all=no", "--steps", "2", "--task.low", "-5"]
    given = flags.run_command(command_with_settings, argv, "prog")
    assert given == {"task": "sums", "steps": 2, "task_settings": {"digits": "3", "use_all": "no", "low": "-5"}}
    for wrong in (["--task.digits"], ["--task.digits", "--steps", "2"]):
        with pytest.raises(UsageError, match=r"--task\.digits: expected one argument"):
            flags.run_command(command_with_settings, wrong, "prog")
    with pytest.raises(UsageError, match=r"no flag --other\.x"):
        flags.run_command(command_with_settings, ["--other.x", "1"], "prog")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "this thing needs --thing.size ..."),
        ({"size": "big"}, "--thing.size: 'big' is not a whole number"),
        ({"size": "1", "quick": "perhaps"}, "--thing.quick: 'perhaps' is neither true nor false"),
        ({"sise": "1"}, "no thing setting named 'sise'. Did you mean 'size'?"),
    ],
)
def test_build_refuses(settings: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as why:
        flags.build_with_settings("thing", ExampleSettings, settings, "thing")
    assert str(why.value).startswith(message)


def test_help_says_what_happens_without_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """A user of the command line cannot type None."""

    def command(*, width: Annotated[int | None, "neurons to keep; None: all"] = None) -> None: ...

    with pytest.raises(SystemExit):
        flags.run_command(command, ["--help"], "prog")
    shown = capsys.readouterr().out
    assert "neurons to keep; default: all" in shown and "None" not in shown
