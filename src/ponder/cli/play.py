"""`ponder play`: a match between players, at the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ponder import event_loop
from ponder.cli import shared_flags as opt
from ponder.cli.graceful_stop import GracefulStop
from ponder.cli.progress import ProgressLines, ProgressTracker, print_json, progress_display
from ponder.cli.typed_moves import EndOfInput, TypedMoves
from ponder.errors import Interrupted, UnknownName, UsageError
from ponder.settings import Named, SettingsOf

if TYPE_CHECKING:
    from ponder.pipelines.play import Match, MatchResult
    from ponder.reason.games.judged_game import GameEvent
    from ponder.reason.games.player_specs import PlayerResources

SIGNS = "XO"  # of the player who begins, and of the other


def play(
    game: Annotated[str, Named("ponder.reason.games:GAMES", listed=True)],
    /,
    *,
    player: Annotated[
        str, Named("ponder.reason.games.player_specs:PLAYERS"),
        "random, lookahead:PLIES, alphabeta (exact), mcts:SIMULATIONS, network:FILE, model (see --model) or me",
    ] = "model",
    against: Annotated[str, Named("ponder.reason.games.player_specs:PLAYERS"), "the same names"] = "mcts:800",
    model: opt.Model = "smollm2",
    games: Annotated[int, "games to play; the players begin in turns"] = 1,
    opening: Annotated[int, "random moves before the players', the same for both games of a pair"] = 0,
    illegal: Annotated[Literal["forfeit", "random"], "an illegal move loses, or a legal one is drawn"] = "forfeit",
    show: Annotated[
        Literal["boards", "summary"] | None, "every position, or the counts only; one game and your own are drawn"
    ] = None,
    template: opt.Template = None,
    seed: int = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: opt.Json = False,
    game_settings: Annotated[dict[str, str], SettingsOf("game"), "a setting of the game: columns, rows"] = {},  # noqa: B006
    player_settings: Annotated[
        dict[str, str], SettingsOf("player"), "a setting of the player: c, playouts, network or prior of mcts, samples,"
        " temperature, max-tokens or regex of model"
    ] = {},  # noqa: B006
    against_settings: Annotated[dict[str, str], SettingsOf("against"), "the same of the other player"] = {},  # noqa: B006
) -> int:  # fmt: skip
    """Let two players play a game: programs, a language model, or you.

    Counts wins, draws and losses with an interval, illegal moves, and wins and blocks that were missed.
    """
    from ponder.cli import flags
    from ponder.pipelines.play import Match
    from ponder.reason.games import GAMES

    if game not in GAMES:
        raise UnknownName("game", game, GAMES)
    board = flags.build_with_settings("game", GAMES[game], game_settings, "game")
    players = (
        player_from_flag(player, player_settings, "player"), player_from_flag(against, against_settings, "against")
    )  # fmt: skip
    match = Match(board, players, games, illegal, opening, seed)
    _refuse_unused_model_flags(match, {"model": model, "template": template, "device": device, "dtype": dtype})
    people = [text for text in (player, against) if text == "me"]
    names = player_names((player, against), model, match)
    drawn = bool(people) or show == "boards" or (show is None and games == 1 and not json)
    with GracefulStop(resumable=False) as stop:
        progress = _progress(f"{game} · {names[0]} - {names[1]}", stop, json, drawn)
        session = PlaySession(match, names, progress, stop, drawn, sys.stderr if json else sys.stdout)
        with progress:
            resources = session.resources(_load_model(match, model, template, device, dtype, seed, progress))
            try:
                event_loop.run(session.play_all(resources))
            except (Interrupted, EndOfInput) as ended:
                session.ended = ended
            except asyncio.CancelledError:  # a second way in which a stop arrives
                session.ended = Interrupted("stopped")
    return session.report(json)


def player_from_flag(text: str, settings: Mapping[str, str], prefix: str) -> Any:
    """A player's settings from `mcts:800` and `--PREFIX.NAME VALUE`."""
    from ponder.cli import flags
    from ponder.reason.games.player_specs import PLAYERS

    name, colon, argument = text.partition(":")
    if name not in PLAYERS:
        raise UnknownName("player", name, PLAYERS)
    kind = PLAYERS[name]
    given = dict(settings)
    if colon and not kind.ARGUMENT:
        raise UsageError(f"{name} takes nothing behind a colon: give --{prefix} {name}")
    if colon and kind.ARGUMENT in given:
        raise UsageError(f"{kind.ARGUMENT} is given twice: leave out --{prefix}.{kind.ARGUMENT}, or :{argument}")
    if colon:
        given[kind.ARGUMENT] = argument
    return flags.build_with_settings(f"player {name}", kind, given, prefix)


def player_names(given: tuple[str, str], model: str, match: Match) -> tuple[str, str]:
    """What each player is called in the output; two alike are told apart."""
    names = [f"{text} ({model})" if spec.needs_model else text for text, spec in zip(given, match.players, strict=True)]
    return (names[0], names[1]) if names[0] != names[1] else (f"{names[0]} (1)", f"{names[1]} (2)")


def _refuse_unused_model_flags(match: Match, given: Mapping[str, str | None]) -> None:
    if any(spec.needs_model for spec in match.players):
        return
    usual = {"model": "smollm2", "template": None, "device": "auto", "dtype": "auto"}
    for flag, value in given.items():
        if value != usual[flag]:
            raise UsageError(f"--{flag} changes nothing: no language model plays; give --player model, or leave it out")


def _load_model(
    match: Match, model: str, template: str | None, device: str, dtype: str, seed: int, progress: ProgressTracker
) -> Any:
    if not any(spec.needs_model for spec in match.players):
        return None
    from ponder.cli.remote_model import resolve_remote_model
    from ponder.models.load import load_inference_policy

    model = resolve_remote_model(model, None, template, device, dtype)
    progress.phase("load")
    policy = load_inference_policy(model, template=template, device=device, dtype=dtype)
    policy.on_tokens = progress.tokens
    policy.reseed(seed)
    return policy


def _progress(title: str, stop: GracefulStop, json: bool, drawn: bool) -> ProgressTracker:
    if drawn and not json:  # a live panel and boards would overwrite each other
        return ProgressLines(title, stop, unit="game")
    return progress_display("" if json else title, stop, unit="game", json=json)


class PlaySession:
    """A match that is being played: draws boards, counts, and stops when asked to."""

    def __init__(
        self, match: Match, names: tuple[str, str], progress: ProgressTracker, stop: GracefulStop, drawn: bool, out: Any
    ) -> None:
        from ponder.pipelines.play import PlayedGame

        self.match, self.names, self.progress, self.stop, self.drawn, self.out = (
            match,
            names,
            progress,
            stop,
            drawn,
            out,
        )
        self.played: list[PlayedGame] = []
        self.ended: Interrupted | EndOfInput | None = None
        self.last_answer = ""  # of a language model

    def resources(self, model: Any) -> PlayerResources:
        from ponder.reason.games.player_specs import PlayerResources

        return PlayerResources(model, TypedMoves(self.out, self.stop.check), self._keep_answer)

    async def play_all(self, resources: PlayerResources) -> None:
        self.progress.phase("play")
        for index in range(self.match.games):
            self._draw_start(index)
            self.played.append(await self.match.play(index, resources, partial(self._on_move, index)))
            self._draw_end()
            result = self.result
            metrics = {"points": result.points.mean, "won": result.won, "drawn": result.drawn, "lost": result.lost}
            self.progress.step(len(self.played), self.match.games, metrics, [])
            self.stop.check()

    @property
    def result(self) -> MatchResult:
        from ponder.pipelines.play import MatchResult

        return MatchResult(self.played)

    def report(self, json: bool) -> int:
        """Print what was counted, also of a match that was stopped."""
        result = self.result
        if json:
            event = "partial" if isinstance(self.ended, Interrupted) else "done"
            print_json({"event": event, "game": self.match.game.name, "players": self.names, **result.to_json()})
        else:
            if self.ended is not None:
                print(f"ended after {len(self.played)} of {self.match.games} games")
            print("\n".join(result_lines(result, self.names)))
        if isinstance(self.ended, Interrupted):
            raise self.ended
        return 0

    def _keep_answer(self, text: str) -> None:
        self.last_answer = text

    def _on_move(self, index: int, event: GameEvent) -> None:
        self.stop.check()
        answer, self.last_answer = self.last_answer, ""
        if self.drawn:
            who = f"{SIGNS[event.side]} {self.names[(index + event.side) % 2]}"
            self._print(f"{who} {_move_text(event, answer)}")
            if event.move is not None:
                self._draw(self.match.game.play(event.state, event.move))

    def _draw_start(self, index: int) -> None:
        if not self.drawn:
            return
        first, second = self.names[index % 2], self.names[(index + 1) % 2]
        self._print(f"game {index + 1} of {self.match.games}: {SIGNS[0]} {first}, {SIGNS[1]} {second}")
        game: Any = self.match.game
        state = game.start()
        for move in self.match.opening_moves(index):
            state = game.play(state, move)
        self._draw(state)

    def _draw_end(self) -> None:
        if self.drawn:
            outcome = self.played[-1].outcome
            self._print(
                f"{self.names[0]} wins\n" if outcome > 0 else f"{self.names[1]} wins\n" if outcome else "a draw\n"
            )

    def _draw(self, state: Any) -> None:
        game: Any = self.match.game
        self._print(f"\n{game.board(state)}\n")

    def _print(self, text: str) -> None:
        print(text, file=self.out, flush=True)


def _move_text(event: GameEvent, answer: str) -> str:
    if event.move is not None and event.named == event.move:
        return f"plays {event.move + 1}"
    fault = "names no move" if event.named is None else f"names {event.named + 1}, which is illegal"
    shown = f" (it wrote {answer.strip()[:60]!r})" if answer else ""
    then = "and loses the game" if event.move is None else f"so {event.move + 1} is drawn for it"
    return f"{fault}{shown}, {then}"


def result_lines(result: MatchResult, names: tuple[str, str]) -> list[str]:
    """The counts as a table, one line for each player's mistakes."""
    if not result.games:
        return ["no game was finished"]
    total, points = len(result.games), result.points
    lines = [
        f"{names[0]} against {names[1]}: {result.won} won, {result.drawn} drawn, {result.lost} lost of {total}",
        f"points {100 * points.mean:.1f} % [{100 * points.low:.1f}, {100 * points.high:.1f}]"
        " (a draw is half a point; 95 % bootstrap over games)",
    ]
    if total > 2 and 2 * result.distinct < total:
        lines.append(f"only {result.distinct} of these games differ, so the interval says little: give --opening 2")
    width = max(map(len, names))
    lines += ["", f"{'':<{width}}  moves  illegal  no move  missed wins  missed blocks"]
    for player, name in enumerate(names):
        c = result.counts(player)
        wins, blocks = f"{c.missed_wins} of {c.win_chances}", f"{c.missed_blocks} of {c.block_chances}"
        lines.append(f"{name:<{width}}  {c.moves:>5}  {c.illegal:>7}  {c.unreadable:>7}  {wins:>11}  {blocks:>13}")
        if forfeits := result.forfeits(player):
            lines.append(f"{'':<{width}}  {forfeits} lost by a move that was not legal")
    return lines
