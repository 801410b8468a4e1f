"""A signature becomes a command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import pytest

from ponder.cli import flags, job_commands, shared_flags
from ponder.errors import UsageError
from ponder.pipelines.problems.curriculum import CURRICULA
from ponder.train import algorithms


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
    ("argv", "said"),
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
def test_bad_argument_is_named(argv: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as why:
        call(*argv)
    assert str(why.value).startswith(said)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call("--help")
    said = capsys.readouterr().out
    assert "Takes one of each." in said and "how fast, in % (default 0.5)" in said
    assert "--loud" in said and "--no-loud" not in said, "only what changes something is shown"
    assert "--no-safe" in said


@dataclass(frozen=True)
class ExampleSettings:
    size: int
    kinds: tuple[Literal["a", "b"], ...] = ("a",)
    quick: bool = False


def test_build() -> None:
    assert flags.build_with_settings("thing", ExampleSettings, ["size=3", "kinds=b,a", "quick=yes"]) == ExampleSettings(
        3, ("b", "a"), True
    )
    assert flags.build_with_settings("thing", ExampleSettings(1), ["quick=1"]) == ExampleSettings(1, quick=True)


def test_build_names_the_flag_it_reads() -> None:
    with pytest.raises(UsageError, match="--option size: 'x' is not a whole number"):
        flags.build_with_settings("thing", ExampleSettings, ["size=x"], "--option")


def test_help_lists_every_algorithm() -> None:
    assert (
        tuple(algorithms.ONLINE) == shared_flags.ONLINE_ALGORITHMS
        and tuple(algorithms.OFFLINE) == shared_flags.OFFLINE_ALGORITHMS
    )
    assert set(get_args(get_type_hints(job_commands.train)["curriculum"])) == set(CURRICULA)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "this thing needs --set size=..."),
        (["size"], "--set takes key=value, not 'size'"),
        (["size=big"], "--set size: 'big' is not a whole number"),
        (["size=1", "quick=perhaps"], "--set quick: 'perhaps' is neither true nor false"),
        (["sise=1"], "no thing setting named 'sise'. Did you mean 'size'?"),
    ],
)
def test_build_refuses(settings: list[str], said: str) -> None:
    with pytest.raises(UsageError) as why:
        flags.build_with_settings("thing", ExampleSettings, settings)
    assert str(why.value).startswith(said)
